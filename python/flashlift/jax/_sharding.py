"""Calls of operands that a mesh of explicit axes splits."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from flashlift._errors import InvalidArgumentError, UnsupportedError, counted
from flashlift.jax._arguments.values import short


def placed(layout: str, operands: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """The operands of a call, all with types of one mesh if a mesh of explicit axes splits them. Refuses splits with
    which a call would need what other devices hold. Axes of one device split nothing.

    layout: that of query, key and value, the first operands. A dimension that vmap maps over may be split too, which is
    not visible here.
    """
    mesh = mesh_of_types(operands)
    if mesh is None:
        return operands

    def splits(array: jax.Array) -> dict[str, tuple[str, ...]]:
        return {
            letter: tuple(axis for axis in _listed(axes) if mesh.shape[axis] > 1)
            for letter, axes in zip(layout, _axes(array), strict=True)
        }

    query = operands[0]
    of_query = splits(query)
    for name, one in zip(("query", "key", "value"), operands, strict=False):
        own = splits(one)
        # Devices that hold other query heads may hold the same key-value heads.
        are_alike = own["b"] == of_query["b"] and own["h"] == of_query["h"][: len(own["h"])]
        if own["s"] or own["d"] or not are_alike:
            beside = "" if name == "query" else f" and query is {jax.typeof(query)}"
            raise UnsupportedError(
                f"{name} is {jax.typeof(one)}{beside}; expected batches to be split alike, key-value heads like "
                "query's or over the first of their axes, and length and depth not at all: use jax.reshard"
            )
    return [jax.reshard(one, NamedSharding(mesh, PartitionSpec(*_axes(one)))) for one in operands]


def axes_of_batches(layout: str, query: Any) -> Any:
    """The explicit axes that split the batches."""
    return _axes(query)[layout.index("b")]


def specs_of_results(layout: str, query: Any) -> tuple[PartitionSpec, PartitionSpec]:
    """Those of the output and of lse: batches, heads and queries are split as the query's are."""
    axes = dict(zip(layout, _axes(query), strict=True))
    return (
        PartitionSpec(*(axes[one] if one in "bhs" else None for one in layout)),
        PartitionSpec(axes["b"], axes["h"], axes["s"]),
    )


def by_types(run: Callable[..., Any], operands: Sequence[Any], results: Sequence[jax.core.ShapedArray]) -> list[Any]:
    """Calls run(*operands), whose results have these types. If a mesh of explicit axes splits the operands, XLA splits
    by these axes within run."""
    mesh = mesh_of_types(operands)
    if mesh is None:
        return list(run(*operands))
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    explicit = tuple(axis for axis, kind in kinds if kind == AxisType.Explicit)
    types = [NamedSharding(mesh, one.sharding.spec) for one in results]
    return list(jax.sharding.auto_axes(lambda *given: list(run(*given)), axes=explicit, out_sharding=types)(*operands))


def without_dimension(kind: jax.core.ShapedArray, dim: int | None) -> tuple[jax.core.ShapedArray, Any]:
    """The type without one of its dimensions, and the explicit axes that split this one."""
    if dim is None:
        return kind, None
    axes = _axes(kind)
    sharding = NamedSharding(kind.sharding.mesh, PartitionSpec(*axes[:dim], *axes[dim + 1 :]))
    return kind.update(shape=kind.shape[:dim] + kind.shape[dim + 1 :], sharding=sharding), axes[dim]


def with_first_dimension(kind: jax.core.ShapedArray, size: int, axes: Any) -> jax.core.ShapedArray:
    """The type with one more dimension, which these explicit axes split."""
    sharding = NamedSharding(kind.sharding.mesh, PartitionSpec(axes, *_axes(kind)))
    return kind.update(shape=(size, *kind.shape), sharding=sharding)


def mesh_of_types(operands: Sequence[Any]) -> Any:
    """The mesh of explicit axes in the operands' types, or None."""
    return next(filter(None, map(_explicit_mesh, operands)), None)


def _explicit_mesh(array: jax.Array) -> Any:
    """The mesh of explicit axes; for concrete arrays their own mesh, with its devices."""
    mesh = jax.typeof(array).sharding.mesh
    if AxisType.Explicit not in mesh.axis_types:
        return None
    return mesh if isinstance(array, jax.core.Tracer) else getattr(array.sharding, "mesh", mesh)


def whole(array: jax.Array) -> jax.Array:
    """The array in a form that a traced position can index, which is not possible if a mesh of explicit axes splits
    it."""
    sharding = jax.typeof(array).sharding
    is_split = any(sharding.spec) and AxisType.Explicit in sharding.mesh.axis_types
    return jax.reshard(array, NamedSharding(sharding.mesh, PartitionSpec())) if is_split else array


def first_of_part(axes: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[Any, Any]:
    """Within a mesh: the first batch and the first head of this device's part; None for what is not split. axes, sizes:
    for "b" and "h", the axes that split them, and the part's sizes."""
    b, h = (jax.lax.axis_index(axes[one]) * sizes[one] if axes[one] else None for one in "bh")
    return b, h


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
    """Refuses specs with which a device would compute something other than its part of the whole.

    specs, operands: by name; positional: the given arguments that number queries from the first one.
    """

    if not isinstance(mesh, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
        raise InvalidArgumentError(f"mesh is {short(mesh)}; expected a jax.sharding.Mesh, as jax.make_mesh gives it")
    for name, spec in (*specs.items(), ("the output", out_specs)):
        if spec is not None and not isinstance(spec, PartitionSpec):
            raise InvalidArgumentError(f"the spec of {name} is {short(spec)}; expected a jax.sharding.PartitionSpec")
        most = len("bshd") if operands.get(name) is None else jnp.ndim(operands[name])
        if spec is not None and len(spec) > most:
            raise InvalidArgumentError(f"the spec of {name} is {spec}; expected at most {counted(most, 'dimension')}")

    def split(name: str, spec: PartitionSpec | None, letters: str = "bshd") -> dict[str, tuple[str, ...]]:
        entries = (*(spec or ()), *[None] * len(letters))
        listed = [_listed(one) for one in entries]
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


def _listed(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The axes that an entry of a PartitionSpec names."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def _axes(array: Any) -> tuple[Any, ...]:
    """The explicit axes that split each dimension of an array, or of a type."""
    spec = tuple((array if isinstance(array, jax.core.ShapedArray) else jax.typeof(array)).sharding.spec)
    return spec + (None,) * (array.ndim - len(spec))
