"""What the types of sharded operands say about a call's results."""

from collections.abc import Sequence

import jax


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
    if not hasattr(jax.sharding, "ManualAxisType"):  # before JAX 0.10.1
        return jax.ShapeDtypeStruct(shape, dtype, vma=frozenset(axes))
    manual = jax.sharding.ManualAxisType(varying=frozenset(axes))
    mesh = next(jax.typeof(one).sharding.mesh for one in operands if _varying_axes([one]))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, manual_axis_type=manual)


def _varying_axes(operands: Sequence[jax.Array]) -> tuple[str, ...]:
    """Their names in a fixed order."""
    axes: set[str] = set()
    for one in operands:
        kind = jax.typeof(one)
        manual = getattr(kind, "manual_axis_type", None)
        axes |= getattr(kind, "vma", None) or frozenset() if manual is None else manual.varying
    return tuple(sorted(axes, key=str))
