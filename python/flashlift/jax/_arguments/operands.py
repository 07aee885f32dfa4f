"""Queries, keys, values and sinks, and where and how precisely the call runs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from flashlift._errors import InvalidArgumentError, UnsupportedError
from flashlift.jax._arguments.values import FLOATS, described, short

_PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}  # and the names that JAX uses


def check_operands(names: tuple[str, str, str], q: jax.Array, k: jax.Array, v: jax.Array, layout: str) -> None:
    """Refuses dtypes and sizes of queries, keys and values that do not match."""
    q_name, k_name, v_name = names
    for name, array in zip(names, (q, k, v), strict=True):
        if array.ndim != 4 or array.dtype.name not in FLOATS:
            raise InvalidArgumentError(
                f'{name} is {described(array)}; expected 4 dimensions ("{layout}") of float32, bfloat16 or float16'
            )
    if not q.dtype == k.dtype == v.dtype:
        raise InvalidArgumentError(
            f"{q_name} is {q.dtype}, {k_name} is {k.dtype} and {v_name} is {v.dtype}; expected one dtype: cast them"
        )
    for name, array in zip(names, (q, k, v), strict=True):
        for letter, what in (("h", "heads"), ("d", "depth")):
            size = array.shape[layout.index(letter)]
            if not isinstance(size, int):
                raise UnsupportedError(
                    f"{name} is {described(array)}, of {what} that jax.export does not know yet; expected a number: "
                    "only the batch and lengths may be symbolic"
                )
    of_q, of_k, of_v = (dict(zip(layout, array.shape, strict=True)) for array in (q, k, v))
    for letter, what in (("b", "batches"), ("s", "keys"), ("h", "heads")):
        if of_k[letter] != of_v[letter]:
            raise InvalidArgumentError(
                f"{k_name} is {described(k)} and {v_name} is {described(v)}; expected as many {what} in both"
            )
    for letter, what in (("b", "batches"), ("d", "depth")):
        if of_q[letter] != of_k[letter]:
            raise InvalidArgumentError(
                f"{q_name} is {described(q)} and {k_name} is {described(k)}; expected the same {what} in both"
            )
    for name, array, letters in ((q_name, q, of_q), (k_name, k, of_k)):
        if letters["h"] == 0:
            raise InvalidArgumentError(f"{name} is {described(array)}, without heads; expected at least one")
    if of_q["h"] % of_k["h"] != 0:
        raise InvalidArgumentError(
            f"{q_name} has {of_q['h']} heads and {k_name} {of_k['h']}; expected a number that divides the query's heads"
        )
    for name, depth in ((q_name, of_q["d"]), (v_name, of_v["d"])):
        if not 1 <= depth <= 256:
            raise UnsupportedError(f"{name} has a depth of {depth}; expected 1 to 256")


def check_dtype(name: str, dtype: DTypeLike) -> None:
    """Refuses dtypes that JAX would silently change, such as float64, which is float32 by default."""
    try:
        given = jnp.dtype(dtype).name
    except TypeError:
        given = short(dtype)
    if given not in FLOATS:
        raise InvalidArgumentError(f"{name} is {given}; expected {', '.join(FLOATS)}, or None for the operands' own")


def check_sinks(name: str, sinks: jax.Array, heads: int) -> jax.Array:
    """Sinks in float32, [q_heads, n] or [n]."""
    fits = sinks.ndim == 1 or (sinks.ndim == 2 and sinks.shape[0] == heads)
    if sinks.dtype.name not in FLOATS or not fits or sinks.shape[-1] == 0:
        raise InvalidArgumentError(
            f"{name} is {described(sinks)}; expected sinks of float32, bfloat16 or float16, [{heads}, n] for n of each "
            "query head, or [n] for n that all heads have"
        )
    return sinks.astype(jnp.float32)


def check_platform(platform: str | None) -> None:
    if platform is None or platform in ("auto", "xla"):
        return
    if not isinstance(platform, str) or platform not in _PLATFORMS:
        raise UnsupportedError(
            f'platform is "{platform}"; expected "cpu", "cuda", or None, "auto" or "xla" for wherever JAX runs'
        )
    if jax.default_backend() != _PLATFORMS[platform]:
        raise UnsupportedError(f'platform is "{platform}", but JAX runs on {jax.default_backend()}')


def check_precision(precision: Any) -> None:
    """Accepts what jax.lax accepts. The products have Precision.HIGHEST's accuracy, so that only float64 would be
    higher."""
    for one in precision if isinstance(precision, (tuple, list)) and len(precision) == 2 else (precision,):
        algorithm = _algorithm(one)
        if algorithm is not None and "F64" in algorithm:
            raise UnsupportedError(f"precision is {algorithm}; products are float32's: leave precision out")


def _algorithm(precision: Any) -> str | None:
    """The name of the algorithm that a precision requests, if it requests one."""
    if precision is None or isinstance(precision, jax.lax.Precision):
        return None
    if isinstance(precision, jax.lax.DotAlgorithmPreset):
        return precision.name
    if isinstance(precision, jax.lax.DotAlgorithm):
        return "F64" if precision.accumulation_type == np.float64 else str(precision)
    if isinstance(precision, str):
        if precision in jax.lax.DotAlgorithmPreset.__members__:
            return precision
        try:
            jax.lax.Precision(precision)
        except ValueError:
            pass
        else:
            return None
    raise InvalidArgumentError(
        f"precision is {short(precision)}; expected None, a jax.lax.Precision or its name, a "
        "jax.lax.DotAlgorithmPreset, or a pair of these"
    )
