"""What the types of operands within shard_map say about a call's results."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def vary_together(operands: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Within shard_map: makes all operands vary over every mesh axis that any of them varies over.

    JAX then sums the gradient with respect to an operand over the axes that the operand did not vary over.
    """
    axes = _varying_axes(operands)
    if not axes:
        return tuple(operands)
    missing = [tuple(axis for axis in axes if axis not in _varying_axes([one])) for one in operands]
    return tuple(
        jax.lax.pcast(one, names, to="varying") if names else one for one, names in zip(operands, missing, strict=True)
    )


def result_type(
    shape: Sequence[int], dtype: jax.typing.DTypeLike, operands: Sequence[jax.Array]
) -> jax.ShapeDtypeStruct:
    """The type of a result, which varies over the axes that the operands vary over."""
    axes = _varying_axes(operands)
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    # The operands' mesh: where JAX lowers a primitive, no other mesh is known.
    mesh = next(jax.typeof(one).sharding.mesh for one in operands if _varying_axes([one]))
    sharding = NamedSharding(mesh, PartitionSpec())
    if not hasattr(jax.sharding, "ManualAxisType"):  # before JAX 0.10.1
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, vma=frozenset(axes))  # type: ignore[call-arg]
    manual = jax.sharding.ManualAxisType(varying=frozenset(axes))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, manual_axis_type=manual)


def result_aval(
    shape: Sequence[Any], dtype: Any, operands: Sequence[Any], spec: PartitionSpec | None = None
) -> jax.core.ShapedArray:
    """The same for the abstract operands of a primitive. spec: the explicit axes that split the result."""
    axes = frozenset(_varying_axes(operands))
    mesh = jax.sharding.get_abstract_mesh()
    if spec is not None:  # outside of jax.set_mesh, only the operands name it
        typed = (one.sharding.mesh for one in operands if AxisType.Explicit in one.sharding.mesh.axis_types)
        mesh = next(typed, mesh)
    sharding = NamedSharding(mesh, spec or PartitionSpec())
    if not axes:
        return jax.core.ShapedArray(tuple(shape), dtype, sharding=sharding)
    if not hasattr(jax.sharding, "ManualAxisType"):  # before JAX 0.10.1
        return jax.core.ShapedArray(tuple(shape), dtype, sharding=sharding, vma=axes)  # type: ignore[call-arg]
    manual = jax.sharding.ManualAxisType(varying=axes)
    return jax.core.ShapedArray(tuple(shape), dtype, sharding=sharding, manual_axis_type=manual)


def _varying_axes(operands: Sequence[jax.Array]) -> tuple[str, ...]:
    """The names of the axes in a fixed order."""
    axes: set[str] = set()
    for one in operands:
        kind = one if isinstance(one, jax.core.ShapedArray) else jax.typeof(one)
        manual = getattr(kind, "manual_axis_type", None)
        axes |= getattr(kind, "vma", None) or frozenset() if manual is None else manual.varying
    return tuple(sorted(axes, key=str))
