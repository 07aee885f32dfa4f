"""Numbers and names as words of a problem."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flashlift._errors import InvalidArgumentError, UnsupportedError
from flashlift.jax._arguments.values import check_flag, short

_LOGITS = {"float32": "", "bfloat16": "logits=bf16", "float16": "logits=f16"}
_EMPTY_ROWS = ("zero", "uniform", "nan")
_ALL = 1 << 30  # more positions than there are
Window = int | tuple[int | None, int | None]
_LARGEST, _SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)


def logits_word(dtype: DTypeLike | None) -> str:
    try:
        name = "float32" if dtype is None else jnp.dtype(dtype).name
    except TypeError as error:
        raise InvalidArgumentError(f"logits_dtype is {short(dtype)}; expected {', '.join(_LOGITS)}") from error
    if name not in _LOGITS:
        raise UnsupportedError(f"logits_dtype is {name}; expected {', '.join(_LOGITS)}")
    return _LOGITS[name]


def empty_rows_word(empty_rows: str) -> str:
    if empty_rows not in _EMPTY_ROWS:
        raise InvalidArgumentError(f"empty_rows is {short(empty_rows)}; expected one of {', '.join(_EMPTY_ROWS)}")
    return f"empty_rows={empty_rows}"


def scale_word(scale: float, name: str = "softmax_scale") -> str:
    number = _number(name, scale, f"to learn it, multiply query by it and pass {name}=1.0")
    if not abs(number) <= _LARGEST:
        raise InvalidArgumentError(f"{name} is {number}; expected a finite number, or None for 1/sqrt(depth)")
    return f"scale={number!r}"


def cap_program(cap: float) -> str:
    """The cap as a program: the problem's own word `softcap` caps before the bias is added."""
    number = _number("logits_soft_cap", cap, "each cap is a kernel of its own")
    if not _SMALLEST <= number <= _LARGEST:
        raise InvalidArgumentError(f"logits_soft_cap is {number}; expected a positive number, or None for no cap")
    return f"score_mod() {{ %0 = div score, {number!r}; %1 = tanh %0; %2 = mul %1, {number!r}; return %2 }}"


def dropout_rate(name: str, rate: float) -> float:
    number = _number(name, rate, "each probability is a kernel of its own")
    if not 0 <= number < 1:
        raise InvalidArgumentError(f"{name} is {number}; expected a probability: at least 0 and below 1")
    return number


def _number(name: str, value: Any, advice: str) -> float:
    if isinstance(value, jax.core.Tracer):
        raise InvalidArgumentError(
            f"{name} is traced; expected a number that is known when the call is traced: {advice}"
        )
    if isinstance(value, (bool, str, bytes)):
        raise InvalidArgumentError(f"{name} is {value!r}; expected a number")
    try:
        with np.errstate(over="ignore"):
            return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"{name} is {short(value)}; expected a number") from error


def band_words(causal: bool | str, window: Window | None, window_name: str = "sliding_window") -> list[str]:
    """The words for a causal mask and for a sliding window."""
    words = []
    if isinstance(causal, str):
        if causal != "bottom_right":
            raise InvalidArgumentError(f'causal is "{causal}"; expected True, False or "bottom_right"')
        words.append("causal=bottom_right")
    elif check_flag("causal", causal):
        words.append("causal")
    if window is not None:
        left, right = window_sides(window, window_name)
        words.append(f"window={left},{right}")
    return words


def window_sides(window: Any, name: str = "sliding_window") -> tuple[int, int]:
    """How many positions to the left and to the right are kept."""
    is_pair = is_pair_of_sides(window)
    is_known = is_pair and isinstance(window, jax.Array) and not isinstance(window, jax.core.Tracer)
    # In a jitted function, the items of a jax.Array are traced, even if their values are known.
    sides = tuple(np.asarray(window) if is_known else window) if is_pair else (window, window)
    expected = (
        "expected how many positions to the left and to the right are kept: one integer or two, not negative, "
        "known when the call is traced; None is no window, and one of two sides that is None keeps all positions there"
    )
    if len(sides) != 2 or any(isinstance(side, (bool, jax.core.Tracer)) for side in sides):
        raise InvalidArgumentError(f"{name} is {short(window)}; {expected}")
    try:
        left, right = (_ALL if side is None else operator.index(side) for side in sides)
    except TypeError as error:
        raise InvalidArgumentError(f"{name} is {short(window)}; {expected}") from error
    if left < 0 or right < 0:
        raise InvalidArgumentError(f"{name} is {short(window)}; {expected}")
    return min(left, _ALL), min(right, _ALL)


def is_pair_of_sides(window: Any) -> bool:
    return isinstance(window, (tuple, list)) or getattr(window, "ndim", 0) == 1
