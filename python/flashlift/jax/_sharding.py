"""Calls of operands that a mesh of explicit axes splits."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from flashlift._errors import InvalidArgumentError, UnsupportedError
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


_WHAT = {"b": "batches", "s": "length", "h": "heads", "d": "depth", "k": "keys", "n": "sinks"}
_LETTERS = {
    "bias": "bhsk",
    "softmax_aux": "hn",
    "attention_mask": "bhsk",
    "q_segment_ids": "bs",
    "kv_segment_ids": "bk",
}


def check_specs(
    mesh: jax.sharding.Mesh,
    specs: Mapping[str, PartitionSpec | None],
    out_specs: PartitionSpec | None,
    operands: Mapping[str, Any],
    positional: Sequence[str],
) -> None:
    """Refuses specs by which a device would compute something else than its part of the whole.

    specs, operands: by name; positional: the arguments that came which count queries from the first one.
    """

    def split(name: str, spec: PartitionSpec | None, letters: str = "bshd") -> dict[str, tuple[str, ...]]:
        entries = (*(spec or ()), *[None] * len(letters))
        listed = [() if one is None else one if isinstance(one, tuple) else (one,) for one in entries]
        unknown = [axis for axes in listed for axis in axes if axis not in mesh.shape]
        if unknown:
            raise InvalidArgumentError(
                f'the spec of {name} names the axis "{unknown[0]}"; expected one of the mesh: {", ".join(mesh.shape)}'
            )
        own = [tuple(axis for axis in axes if mesh.shape[axis] > 1) for axes in listed]
        return dict(zip(letters, own, strict=False))

    def refuse(name: str, letter: str, axes: tuple[str, ...], expected: str) -> None:
        how = f"over {', '.join(axes)}" if axes else "not at all"
        raise UnsupportedError(f"{name} is split by {_WHAT[letter]} {how}; expected {expected}")

    query, key, value, out = (
        split(name, spec)
        for name, spec in (*((one, specs[one]) for one in ("query", "key", "value")), ("out", out_specs))
    )
    for name, axes in (("query", query["d"]), ("key", key["d"])):
        if axes:
            refuse(name, "d", axes, "whole depths: a score is a sum over them")
    for name, own in (("key", key), ("value", value)):
        if own["s"]:
            refuse(name, "s", own["s"], "whole lengths: a query attends to all keys")
        if own["b"] != query["b"]:
            refuse(name, "b", own["b"], "what query's are split over")
        is_shared = operands[name].shape[2] == 1 and not own["h"]
        if own["h"] != query["h"] and not is_shared:
            refuse(name, "h", own["h"], "what query's are split over, or one head for all devices")
    if query["s"] and positional:
        refuse("query", "s", query["s"], f"whole lengths for {', '.join(positional)}, by which queries have positions")
    for letter, axes in (query | {"d": value["d"]}).items():
        if out[letter] != axes:
            refuse("the output", letter, out[letter], f"what {'value' if letter == 'd' else 'query'}'s is split over")
    for name in specs.keys() & _LETTERS.keys():
        array = operands.get(name)
        if array is None:
            continue
        letters = "bk" if name == "attention_mask" and array.ndim == 2 else _LETTERS[name][-array.ndim :]
        own = split(name, specs[name], letters)
        for letter, size in zip(letters, array.shape, strict=False):
            expected = query[letter] if letter in query and size > 1 else ()
            if own[letter] != expected:
                refuse(name, letter, own[letter], f"over {', '.join(expected)}, as query" if expected else "none of it")


def _axes(array: jax.Array) -> tuple[Any, ...]:
    """The explicit axes that split each dimension."""
    spec = tuple(jax.typeof(array).sharding.spec)
    return spec + (None,) * (array.ndim - len(spec))
