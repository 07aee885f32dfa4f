"""Calls of operands that a mesh of explicit axes splits."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from flashlift._errors import UnsupportedError
from flashlift.jax._arguments.seeds import seed_of_part
from flashlift.jax._mods import counted_from


def is_split(arrays: Sequence[jax.Array]) -> bool:
    """Whether the arrays' types say that a mesh of explicit axes splits one of them."""
    return any(any(_axes(one)) for one in arrays)


def first_of_part(axes: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[Any, Any]:
    """Within a mesh: where this device's batches and heads begin, by "b" and "h" the axes that split them, and the
    part's sizes; None where nothing does."""
    b, h = (jax.lax.axis_index(axes[one]) * sizes[one] if axes[one] else None for one in "bh")
    return b, h


def over_batches_and_heads(
    run: Callable[..., Any],
    operands: Mapping[str, jax.Array],
    letters: Mapping[str, str],
    results: Sequence[str],
    mods: Mapping[str, Callable[..., Any]],
) -> Any:
    """run(**operands, mods=mods) by each device for the batches and heads that it has, as the query's type splits them.

    letters: of each operand's dimensions, of which b and h are split unless their size is 1; results: those of results.
    An operand dropout_seed comes as the seed of the device's part, and mods count batches and heads in the whole.
    """
    query = operands["query"]
    b_axes, _, h_axes, _ = _axes(query)
    for name in ("query", "key", "value"):
        b, s, h, d = _axes(operands[name])
        shared = name != "query" and operands[name].shape[2] == 1
        if s or d or b != b_axes or h != (None if shared else h_axes):
            raise UnsupportedError(
                f"{name} is {jax.typeof(operands[name])} and query is {jax.typeof(query)}; expected batches and heads "
                "to be split alike, and length and depth not at all: use jax.reshard"
            )
    sharding: Any = jax.typeof(query).sharding if isinstance(query, jax.core.Tracer) else query.sharding
    mesh = sharding.mesh
    axes = {"b": b_axes, "h": h_axes}
    specs = {
        name: PartitionSpec(
            *(axes.get(one) if size > 1 else None for one, size in zip(letters[name], array.shape, strict=True))
        )
        for name, array in operands.items()
    }
    placed = {name: jax.reshard(array, NamedSharding(mesh, specs[name])) for name, array in operands.items()}
    out_specs = tuple(PartitionSpec(*(axes.get(one) for one in result)) for result in results)

    def run_part(named: dict[str, Any]) -> Any:
        sizes = dict(zip("bshd", named["query"].shape, strict=True))
        if "dropout_seed" in named:
            named = named | {"dropout_seed": seed_of_part(named["dropout_seed"], axes, sizes)}
        first = first_of_part(axes, sizes)
        return run(**named, mods={name: counted_from(name, one, first) for name, one in mods.items()})

    split = jax.shard_map(
        run_part,
        mesh=mesh,
        in_specs=(specs,),
        out_specs=out_specs if len(out_specs) > 1 else out_specs[0],
    )
    return split(placed)


def _axes(array: jax.Array) -> tuple[Any, ...]:
    """The explicit axes that split each dimension."""
    spec = tuple(jax.typeof(array).sharding.spec)
    return spec + (None,) * (array.ndim - len(spec))
