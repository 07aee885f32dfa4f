"""Integers of 8 and 16 bits in programs, which hold them in an i32 and compute with 32 bits."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

# Writes an operation on values of the program, and returns its result.
Emit = Callable[..., str]
_NARROW = ("int8", "uint8", "int16", "uint16")
# JAX's primitives whose results need no wrapping: they are in the range of operands that are.
_STAYS_IN_RANGE = {
    "and", "or", "xor", "max", "min", "rem", "sign", "clamp", "argmax", "reduce_max", "reduce_min",
    "reduce_and", "reduce_or",
}  # fmt: skip


def is_narrow(dtype: Any) -> bool:
    return dtype.name in _NARROW


def wrapped(emit: Emit, value: str, dtype: Any) -> str:
    """Keeps the low bits of a value, as this narrow type does."""
    return _sign_extended(emit, value, dtype) if _is_signed(dtype) else _zero_extended(emit, value, dtype)


def clamped(emit: Emit, value: str, dtype: Any) -> str:
    """The nearest value of this narrow type: what JAX converts a float to."""
    limits = jnp.iinfo(dtype)
    return emit("min", emit("max", value, str(limits.min)), str(limits.max))


def before(emit: Emit, name: str, value: str, dtype: Any) -> str:
    """The first operand, of a narrow type, as JAX's primitive of this name sees it. Right shifts see the bits alone."""
    if name == "shift_right_logical":
        return _zero_extended(emit, value, dtype)
    if name == "shift_right_arithmetic":
        return _sign_extended(emit, value, dtype)
    return value


def after(emit: Emit, name: str, value: str, dtype: Any) -> str:
    """The result of JAX's primitive of this name, which has a narrow type."""
    return value if name in _STAYS_IN_RANGE else wrapped(emit, value, dtype)


def _is_signed(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.signedinteger))


def _zero_extended(emit: Emit, value: str, dtype: Any) -> str:
    return emit("and", value, str((1 << 8 * dtype.itemsize) - 1))


def _sign_extended(emit: Emit, value: str, dtype: Any) -> str:
    unused = str(32 - 8 * dtype.itemsize)
    return emit("shr", emit("shl", value, unused), unused)
