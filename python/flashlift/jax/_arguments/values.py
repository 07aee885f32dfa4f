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


def check_flag(name: str, value: Any) -> bool:
    found = known(value) if isinstance(value, (np.ndarray, np.number, np.bool_, jax.Array)) else None
    number = found.item() if found is not None and found.ndim == 0 else value
    if not isinstance(number, int) or number not in (0, 1):
        raise InvalidArgumentError(f"{name} is {short(value)}; expected True or False, known when the call is traced")
    return bool(number)


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
