"""What the types of sharded operands say about a call's results."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from flashlift._errors import UnsupportedError
from flashlift.jax._arguments.seeds import seed_of_part


def vary_together(operands: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Within shard_map: all operands made to vary over the mesh's axes that any of them varies over.

    JAX then sums the gradient by an operand over the axes that it did not vary over.
    """
    axes = _varying_axes(operands)
    missing = [tuple(axis for axis in axes if axis not in _varying_axes([one])) for one in operands]
    return tuple(
        jax.lax.pcast(one, names, to="varying") if names else one for one, names in zip(operands, missing, strict=True)
    )


def result_type(
    shape: Sequence[int], dtype: jax.typing.DTypeLike, operands: Sequence[jax.Array]
) -> jax.ShapeDtypeStruct:
    """The type of a result that varies over the axes that the operands vary over."""
    axes = _varying_axes(operands)
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    # The mesh is the operands': where JAX lowers a primitive, no other is known.
    mesh = next(jax.typeof(one).sharding.mesh for one in operands if _varying_axes([one]))
    sharding = NamedSharding(mesh, PartitionSpec())
    if not hasattr(jax.sharding, "ManualAxisType"):  # before JAX 0.10.1
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, vma=frozenset(axes))  # type: ignore[call-arg]
    manual = jax.sharding.ManualAxisType(varying=frozenset(axes))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, manual_axis_type=manual)


def result_aval(shape: Sequence[Any], dtype: jax.typing.DTypeLike, operands: Sequence[Any]) -> jax.core.ShapedArray:
    """The same for the abstract operands of a primitive."""
    axes = frozenset(_varying_axes(operands))
    sharding = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec())
    if not axes:
        return jax.core.ShapedArray(tuple(shape), jnp.dtype(dtype), sharding=sharding)
    if not hasattr(jax.sharding, "ManualAxisType"):  # before JAX 0.10.1
        return jax.core.ShapedArray(tuple(shape), jnp.dtype(dtype), sharding=sharding, vma=axes)  # type: ignore[call-arg]
    manual = jax.sharding.ManualAxisType(varying=axes)
    return jax.core.ShapedArray(tuple(shape), jnp.dtype(dtype), sharding=sharding, manual_axis_type=manual)


def _varying_axes(operands: Sequence[jax.Array]) -> tuple[str, ...]:
    """Their names in a fixed order."""
    axes: set[str] = set()
    for one in operands:
        kind = one if isinstance(one, jax.core.ShapedArray) else jax.typeof(one)
        manual = getattr(kind, "manual_axis_type", None)
        axes |= getattr(kind, "vma", None) or frozenset() if manual is None else manual.varying
    return tuple(sorted(axes, key=str))


def is_split(arrays: Sequence[jax.Array]) -> bool:
    """Whether the arrays' types say that a mesh of explicit axes splits one of them."""
    return any(any(_axes(one)) for one in arrays)


def over_batches_and_heads(
    run: Callable[..., Any], operands: Mapping[str, jax.Array], letters: Mapping[str, str], results: Sequence[str]
) -> Any:
    """run(**operands) by each device for the batches and heads that it has, as the query's type splits them.

    letters: of each operand's dimensions, of which b and h are split unless their size is 1; results: those of results.
    An operand dropout_seed comes as the seed of the device's part.
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
        if "dropout_seed" in named:
            sizes = dict(zip("bshd", named["query"].shape, strict=True))
            named = named | {"dropout_seed": seed_of_part(named["dropout_seed"], axes, sizes)}
        return run(**named)

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
