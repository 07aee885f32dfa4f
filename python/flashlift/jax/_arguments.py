"""Checks of flash_attention's arguments.

Each gives what the call needs, or says what was expected, what came and what to do.
"""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from flashlift._errors import InvalidArgumentError, UnsupportedError

_PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}  # and JAX's names of them
_FLOATS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_LOGITS = {"float32": "", "bfloat16": "logits=bf16", "float16": "logits=f16"}
_EMPTY_ROWS = ("zero", "uniform", "nan")
_INT32 = np.iinfo(np.int32)
_LARGEST, _SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)


def as_array(name: str, value: ArrayLike) -> jax.Array:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{name} is {_short(value)}; expected an array") from error


def described(array: jax.Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


def check_operands(names: tuple[str, str, str], q: jax.Array, k: jax.Array, v: jax.Array, layout: str) -> None:
    """Refuses dtypes and sizes of queries, keys and values that do not go together."""
    q_name, k_name, v_name = names
    for name, array in zip(names, (q, k, v), strict=True):
        if array.ndim != 4 or array.dtype.name not in _FLOATS:
            raise InvalidArgumentError(
                f'{name} is {described(array)}; expected 4 dimensions ("{layout}") of float32, bfloat16 or float16'
            )
    if not q.dtype == k.dtype == v.dtype:
        raise InvalidArgumentError(
            f"{q_name} is {q.dtype}, {k_name} is {k.dtype} and {v_name} is {v.dtype}; expected one dtype: cast them"
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
    if of_k["h"] == 0 or of_q["h"] % of_k["h"] != 0:
        raise InvalidArgumentError(
            f"{q_name} has {of_q['h']} heads and {k_name} {of_k['h']}; expected a number that divides the query's heads"
        )
    for name, depth in ((q_name, of_q["d"]), (v_name, of_v["d"])):
        if not 1 <= depth <= 256:
            raise UnsupportedError(f"{name} has a depth of {depth}; expected 1 to 256")


def check_sinks(name: str, sinks: jax.Array, heads: int) -> jax.Array:
    """Sinks in float32, [q_heads, n] or [n]."""
    fits = sinks.ndim == 1 or (sinks.ndim == 2 and sinks.shape[0] == heads)
    if sinks.dtype.name not in _FLOATS or not fits or sinks.shape[-1] == 0:
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


def check_flag(name: str, value: object) -> bool:
    if isinstance(value, jax.core.Tracer) or not isinstance(value, (bool, int, np.bool_)) or value not in (0, 1):
        raise InvalidArgumentError(f"{name} is {_short(value)}; expected True or False, known when the call is traced")
    return bool(value)


def check_precision(precision: Any) -> None:
    """Takes what jax.lax takes. The products are those of Precision.HIGHEST, so only float64 would be more."""
    for one in precision if isinstance(precision, (tuple, list)) and len(precision) == 2 else (precision,):
        algorithm = _algorithm(one)
        if algorithm is not None and "F64" in algorithm:
            raise UnsupportedError(f"precision is {algorithm}; products are float32's: leave precision out")


def _algorithm(precision: Any) -> str | None:
    """The name of the algorithm that a precision asks for, if it is one."""
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
        f"precision is {_short(precision)}; expected None, a jax.lax.Precision or its name, a "
        "jax.lax.DotAlgorithmPreset, or a pair of these"
    )


def logits_word(dtype: DTypeLike | None) -> str:
    try:
        name = "float32" if dtype is None else jnp.dtype(dtype).name
    except TypeError as error:
        raise InvalidArgumentError(f"logits_dtype is {_short(dtype)}; expected {', '.join(_LOGITS)}") from error
    if name not in _LOGITS:
        raise UnsupportedError(f"logits_dtype is {name}; expected {', '.join(_LOGITS)}")
    return _LOGITS[name]


def empty_rows_word(empty_rows: str) -> str:
    if empty_rows not in _EMPTY_ROWS:
        raise InvalidArgumentError(f"empty_rows is {_short(empty_rows)}; expected one of {', '.join(_EMPTY_ROWS)}")
    return f"empty_rows={empty_rows}"


def scale_word(scale: float) -> str:
    number = _number("softmax_scale", scale, "to learn it, multiply query by it and pass softmax_scale=1.0")
    if not abs(number) <= _LARGEST:
        raise InvalidArgumentError(f"softmax_scale is {number}; expected a finite number, or None for 1/sqrt(depth)")
    return f"scale={number!r}"


def cap_program(cap: float) -> str:
    """The cap as a program: the problem's own word stands for a cap before the bias."""
    number = _number("logits_soft_cap", cap, "each cap is a kernel of its own")
    if not _SMALLEST <= number <= _LARGEST:
        raise InvalidArgumentError(f"logits_soft_cap is {number}; expected a positive number, or None for no cap")
    return f"score_mod() {{ %0 = div score, {number!r}; %1 = tanh %0; %2 = mul %1, {number!r}; return %2 }}"


def dropout_rate(name: str, rate: float) -> float:
    number = _number(name, rate, "each probability is a kernel of its own")
    if not 0 <= number < 1:
        raise InvalidArgumentError(f"{name} is {number}; expected a probability: at least 0 and below 1")
    return number


def _number(name: str, value: object, advice: str) -> float:
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
        raise InvalidArgumentError(f"{name} is {_short(value)}; expected a number") from error


def band_words(causal: bool | str, window: int | tuple[int, int] | None) -> list[str]:
    """The words of a causal and of a sliding window's mask."""
    words = []
    if isinstance(causal, str):
        if causal != "bottom_right":
            raise InvalidArgumentError(f'causal is "{causal}"; expected True, False or "bottom_right"')
        words.append("causal=bottom_right")
    elif check_flag("causal", causal):
        words.append("causal")
    if window is not None:
        left, right = _window(window)
        words.append(f"window={left},{right}")
    return words


def _window(window: int | tuple[int, int]) -> tuple[int, int]:
    sides = tuple(window) if isinstance(window, (tuple, list)) else (window, window)
    expected = (
        "expected how many positions to the left and to the right are kept: one integer or two, not negative, "
        "known when the call is traced; None is no window"
    )
    if len(sides) != 2 or any(isinstance(side, (bool, jax.core.Tracer)) for side in sides):
        raise InvalidArgumentError(f"sliding_window is {_short(window)}; {expected}")
    try:
        left, right = (operator.index(side) for side in sides)
    except TypeError as error:
        raise InvalidArgumentError(f"sliding_window is {_short(window)}; {expected}") from error
    if left < 0 or right < 0:
        raise InvalidArgumentError(f"sliding_window is {_short(window)}; {expected}")
    return min(left, 1 << 30), min(right, 1 << 30)


def bias_plane(bias: jax.Array, query: jax.Array, key: jax.Array) -> tuple[str, jax.Array]:
    """The bias's dtype in a problem, and the bias in four dimensions."""
    if bias.dtype.name not in _FLOATS:
        advice = (
            "pass a mask as attention_mask="
            if bias.dtype == jnp.bool_
            else "cast it, or pass a mask as attention_mask="
        )
        raise InvalidArgumentError(
            f"bias is {bias.dtype}; expected {', '.join(_FLOATS)}, added to the scores: {advice}"
        )
    return _FLOATS[bias.dtype.name], _as_plane("bias", bias, query, key)


def mask_plane(name: str, mask: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    """The mask as booleans in four dimensions."""
    if mask.dtype != jnp.bool_ and not jnp.issubdtype(mask.dtype, jnp.integer):
        raise InvalidArgumentError(
            f"{name} is {mask.dtype}; expected booleans or integers, not 0 where a key is kept: pass a mask that is "
            f"added to the scores (0 and -inf) as bias=, and one of 0.0 and 1.0 as {name} != 0"
        )
    batch, heads = query.shape[0], query.shape[2]
    if mask.ndim == 2:
        if mask.shape[0] not in (1, batch):
            raise InvalidArgumentError(
                f"{name} is {list(mask.shape)}; expected [batch, kv_len], {[batch, key.shape[1]]}, in two dimensions: "
                f"write a mask of [q_len, kv_len] as {name}[None, None]"
            )
        mask = mask[:, None, None, :]
    elif mask.ndim == 3 and mask.shape[0] == batch > 1:
        raise InvalidArgumentError(
            f"{name} is {list(mask.shape)} for {batch} batches and {heads} heads; expected to know which it is of: "
            f"write {name}[:, None] for batches, {name}[None] for heads"
        )
    return _as_plane(name, mask, query, key).astype(jnp.bool_)


def as_flax_mask(given: ArrayLike) -> jax.Array:
    """Flax's masks are floats by default, 1.0 where a key is kept. Other values, where they are known, are a misuse."""
    mask = as_array("mask", given)
    if not jnp.issubdtype(mask.dtype, jnp.floating):
        return mask
    values = _known(given)
    if values is not None and not ((values == 0) | (values == 1)).all():
        raise InvalidArgumentError(
            f"mask is {described(mask)} with other values than 0 and 1; expected 1 where a key is kept: pass a "
            "mask that is added to the scores (0 and -inf) as bias="
        )
    return mask != 0


def _as_plane(name: str, array: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    """The array as [batch or 1, q_heads or 1, q_len or 1, kv_len or 1]."""
    plane = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    if array.ndim > 4 or any(size not in (1, of) for size, of in zip(array.shape[::-1], plane[::-1], strict=False)):
        raise InvalidArgumentError(
            f"{name} is {list(array.shape)}, which does not broadcast to {list(plane)}: [batch, q_heads, q_len, kv_len]"
        )
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def segment_pair(
    q_ids: ArrayLike | None, kv_ids: ArrayLike | None, query: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Both segment ids as int32 [batch or 1, length]."""
    names = ("q_segment_ids", "kv_segment_ids")
    return tuple(
        _ids(name, ids, of)
        for name, ids, of in zip(names, _both(names, q_ids, kv_ids, query, key), (query, key), strict=True)
    )


def _ids(name: str, given: ArrayLike, of: jax.Array) -> jax.Array:
    ids = _int32(name, given)
    if ids.ndim != 2 or ids.shape[0] not in (1, of.shape[0]) or ids.shape[1] != of.shape[1]:
        raise InvalidArgumentError(
            f"{name} is {described(ids)}; expected an integer for each position: {[of.shape[0], of.shape[1]]}"
        )
    return ids


def keep_padding_apart(q_ids: jax.Array, kv_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The ids with those that are negative made different on both sides, so that padding meets nothing."""
    return jnp.where(q_ids < 0, -1, q_ids), jnp.where(kv_ids < 0, -2, kv_ids)


def sequence_ends(
    cum_q: ArrayLike | None, cum_k: ArrayLike | None, query: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Both cumulative lengths as int32 [sequences + 1], their values checked where they are known."""
    names = ("cum_seqlens_q", "cum_seqlens_k")
    given = _both(names, cum_q, cum_k, query, key)
    ends = tuple(_ends(name, one, of) for name, one, of in zip(names, given, (query, key), strict=True))
    if ends[0].shape != ends[1].shape:
        raise InvalidArgumentError(
            f"cum_seqlens_q is {list(ends[0].shape)} and cum_seqlens_k {list(ends[1].shape)}; expected one length: "
            "both name the same sequences"
        )
    return ends


def _ends(name: str, given: ArrayLike, of: jax.Array) -> jax.Array:
    ends = _int32(name, given)
    batch, length = of.shape[:2]
    if ends.ndim != 1 or ends.shape[0] < 2:
        raise InvalidArgumentError(f"{name} is {described(ends)}; expected int32 [sequences + 1]")
    if batch > 1 and ends.shape[0] != batch + 1:
        raise InvalidArgumentError(
            f"{name} is {list(ends.shape)} for a batch of {batch}; expected [{batch + 1}], one sequence for each "
            "batch, each padded to the length of the array; or a batch of 1 in which all sequences follow one another"
        )
    values = _known(given)
    if values is None:
        return ends
    lengths = np.diff(values.astype(np.int64))
    if values[0] != 0 or (lengths < 0).any():
        raise InvalidArgumentError(
            f"{name} is {_listed(values)}; expected cumulative lengths: 0 first, none below the one before it"
        )
    if batch == 1 and values[-1] > length:
        raise InvalidArgumentError(
            f"{name} is {_listed(values)}; expected at most {length} at the end, the array's length"
        )
    if batch > 1 and lengths.max() > length:
        raise InvalidArgumentError(
            f"{name} is {_listed(values)}, with a sequence of {lengths.max()}; expected sequences of at most {length}, "
            "the array's length"
        )
    return ends


def sequence_lengths(name: str, given: ArrayLike, batch: int) -> jax.Array:
    lengths = _int32(name, given)
    if lengths.shape != (batch,):
        raise InvalidArgumentError(f"{name} is {described(lengths)}; expected int32 {[batch]}, a length for each batch")
    return lengths


def padded_ids(ends: jax.Array, length: int) -> jax.Array:
    """Segment ids [batch, length] of sequences that each begin a batch: 0 up to its end, then -1."""
    return jnp.where(jnp.arange(length)[None] < jnp.diff(ends)[:, None], 0, -1).astype(jnp.int32)


def _both(
    names: tuple[str, str], of_q: ArrayLike | None, of_k: ArrayLike | None, query: jax.Array, key: jax.Array
) -> tuple[ArrayLike, ArrayLike]:
    """Both of a pair; the keys' are the queries' if these have the same length."""
    if of_q is None or (of_k is None and query.shape[1] != key.shape[1]):
        raise InvalidArgumentError(
            f"{names[0]} and {names[1]} go together; only {names[0]} may stand alone, and only for as many keys as "
            "queries"
        )
    return of_q, of_q if of_k is None else of_k


def _int32(name: str, given: ArrayLike) -> jax.Array:
    values = _known(given)
    array = as_array(name, given)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise InvalidArgumentError(f"{name} is {described(array)}; expected int32")
    if values is not None and values.size and not (_INT32.min <= values.min() and values.max() <= _INT32.max):
        raise InvalidArgumentError(f"{name} has values from {values.min()} to {values.max()}; expected int32")
    return array.astype(jnp.int32)


def seed_words(seed: jax.Array | int) -> jax.Array:
    """The 64 bits of a seed, low half first. An integer is the same seed in Python, numpy and JAX, traced or not."""
    if isinstance(seed, (int, np.integer)):
        number = int(seed)
        if not -(1 << 63) <= number < 1 << 64:
            raise InvalidArgumentError(f"dropout_seed is {number}; expected an integer of 64 bits")
        return jnp.asarray([number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF], jnp.uint32)
    seed = as_array("dropout_seed", seed)
    if seed.ndim == 0 and jnp.issubdtype(seed.dtype, jnp.integer):
        wide = seed.dtype.itemsize == 8
        sign = jnp.where(seed < 0, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
        return jnp.stack([seed.astype(jnp.uint32), (seed >> 32).astype(jnp.uint32) if wide else sign])
    if seed.dtype == jnp.uint32 and seed.shape == (4,):
        seed = jax.random.wrap_key_data(seed, impl="rbg")
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.ndim == 0:
        data = jax.random.key_data(seed)
        seed = data if data.shape == (2,) else jax.random.bits(seed, (2,), jnp.uint32)
    if seed.dtype != jnp.uint32 or seed.shape != (2,):
        raise InvalidArgumentError(
            f"dropout_seed is {described(seed)}; expected a key of jax.random, its uint32[2], or an integer"
        )
    return seed


def _known(value: ArrayLike) -> np.ndarray | None:
    """The values, if they are known before the call runs."""
    if isinstance(value, jax.core.Tracer) or not getattr(value, "is_fully_addressable", True):
        return None
    return np.asarray(value)


def _listed(values: np.ndarray) -> str:
    return np.array2string(values, separator=", ", threshold=16)


def _short(value: object) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return described(value)
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
