"""Arguments as arrays, and as they are shown in errors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from flashlift._errors import InvalidArgumentError

FLOATS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def as_array(name: str, value: ArrayLike) -> jax.Array:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{name} is {short(value)}; expected an array") from error


def described(array: jax.Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


def check_flag(name: str, value: object) -> bool:
    if isinstance(value, jax.core.Tracer) or not isinstance(value, (bool, int, np.bool_)) or value not in (0, 1):
        raise InvalidArgumentError(f"{name} is {short(value)}; expected True or False, known when the call is traced")
    return bool(value)


def known(value: ArrayLike) -> np.ndarray | None:
    """The values, if they are known before the call runs."""
    if isinstance(value, jax.core.Tracer) or not getattr(value, "is_fully_addressable", True):
        return None
    return np.asarray(value)


def listed(values: np.ndarray) -> str:
    return np.array2string(values, separator=", ", threshold=16)


def short(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return described(value)
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
