"""Attention in JAX by the names that its features have elsewhere."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flashlift._errors import InvalidArgumentError, UnsupportedError
from flashlift.jax._attention import attention

_PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}  # and JAX's names of them
_LOGITS = {"float32": "", "bfloat16": "logits=bf16", "float16": "logits=f16"}


def flash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attention_mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    softmax_scale: float | None = None,
    dropout_prob: float = 0.0,
    causal: bool = False,
    dropout_seed: jax.Array | int | None = None,
    cum_seqlens_q: jax.Array | None = None,
    cum_seqlens_k: jax.Array | None = None,
    sliding_window: int | tuple[int, int] | None = None,
    logits_soft_cap: float | None = None,
    softmax_aux: jax.Array | None = None,
    normalize_output: bool = True,
    precision: jax.lax.PrecisionLike = None,
    logits_dtype: DTypeLike = jnp.float32,
    q_segment_ids: jax.Array | None = None,
    kv_segment_ids: jax.Array | None = None,
    platform: str | None = None,
    *,
    empty_rows: str = "zero",
    return_lse: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """softmax(cap(scale query keyᵀ + bias) where kept) value as one fused kernel, with gradients.

    query: [batch, q_len, q_heads, depth]; key: [batch, kv_len, kv_heads, depth]; value: [batch, kv_len, kv_heads, value
    depth], where kv_heads divides q_heads. float32, bfloat16 or float16, the same for all three.

    attention_mask: true (or not 0) where a key is kept: [batch, kv_len], or what broadcasts to [batch, q_heads, q_len,
        kv_len]. bias: added to the scaled scores, of such a shape. softmax_scale: 1/sqrt(depth) unless given.
    causal: keeps keys up to the query's position, both counted from the beginning. sliding_window: how many positions
        to the left and to the right of the query are kept; one number is both.
    cum_seqlens_q, cum_seqlens_k: int32 [sequences + 1], for sequences packed one after the other in a batch of 1; causal
        and sliding_window then count within each. q_segment_ids, kv_segment_ids: int32 [batch, length]; a query sees
        the keys of its own segment. Without kv_segment_ids they are the query's.
    logits_soft_cap: c, for c tanh(score / c) after the bias. softmax_aux: sinks, float32 [q_heads, n], or [n] for all
        heads: logits that take part in the softmax and have no value.
    dropout_prob: leaves each key of a row out with this probability; dropout_seed: a key of jax.random, its uint32 [2] or
        an integer. The keys left out are a function of the seed alone. On CPUs only.
    normalize_output: False leaves out the division by the softmax's sum (no gradient). logits_dtype: what scale query keyᵀ
        is rounded to; sums, and all else, are float32. precision: whatever it asks for is kept, since products are those of
        Precision.HIGHEST.
    platform: None or "auto", for wherever JAX runs the call; "cpu" or "cuda", which is an error elsewhere. Tiles are chosen
        by shapes, and kernels are cached in memory and on disk, so there is nothing to tune.
    empty_rows: what a query without keys gives, "zero", "uniform" (the mean of value) or "nan".
    return_lse: also returns float32 [batch, q_heads, q_len], the logarithm of each row's sum of exponentials.

    Gradients by query, key, value, bias and softmax_aux, through both results. Errors: InvalidArgumentError for shapes
    and arguments that do not go together, UnsupportedError for a platform that JAX does not run on.
    """
    _check_platform(platform)
    words: list[str] = []
    captures: dict[str, jax.Array] = {}
    if softmax_scale is not None:
        words.append(f"scale={float(softmax_scale)!r}")
    words.append(_logits_word(logits_dtype))
    program = ""
    if bias is not None:
        words.append(f"bias={_float_name(bias)}")
        captures["bias"] = _as_plane("bias", bias, query, key)
    if logits_soft_cap is not None:
        cap = float(logits_soft_cap)
        if not cap > 0:
            raise InvalidArgumentError(f"logits_soft_cap is {cap}; expected a positive number")
        # The word stands for a cap before the bias.
        capped = f"%0 = div score, {cap!r}; %1 = tanh %0; %2 = mul %1, {cap!r}; return %2"
        program = f"score_mod() {{ {capped} }}"
    if causal:
        words.append("causal")
    if sliding_window is not None:
        words.append(_window_word(sliding_window))
    if cum_seqlens_q is not None or cum_seqlens_k is not None:
        words.append("cu_seqlens")
        pair = _pair("cum_seqlens_q", cum_seqlens_q, "cum_seqlens_k", cum_seqlens_k, query, key)
        captures["cu_seqlens_q"], captures["cu_seqlens_kv"] = pair
    if q_segment_ids is not None or kv_segment_ids is not None:
        words.append("segment_ids")
        pair = _pair("q_segment_ids", q_segment_ids, "kv_segment_ids", kv_segment_ids, query, key)
        captures["q_segments"], captures["kv_segments"] = pair
    if attention_mask is not None:
        words.append("mask=bool")
        mask = attention_mask[:, None, None, :] if attention_mask.ndim == 2 else attention_mask
        captures["mask"] = _as_plane("attention_mask", mask, query, key).astype(jnp.bool_)
    if dropout_prob > 0:
        words.append(f"dropout={float(dropout_prob)!r}")
    words += ["lse"] * return_lse + ["unnormalized"] * (not normalize_output)
    words += [f"empty_rows={empty_rows}", program]
    return attention(
        query,
        key,
        value,
        " ".join(filter(None, words)),
        captures=captures,
        sinks=softmax_aux,
        dropout_seed=dropout_seed if dropout_prob > 0 else None,
    )


def _check_platform(platform: str | None) -> None:
    if platform in (None, "auto"):
        return
    if platform not in _PLATFORMS:
        raise UnsupportedError(f'platform is "{platform}"; expected "cpu", "cuda", or None for wherever JAX runs')
    if jax.default_backend() != _PLATFORMS[platform]:
        raise UnsupportedError(f'platform is "{platform}", but JAX runs on {jax.default_backend()}')


def _logits_word(dtype: DTypeLike) -> str:
    name = jnp.dtype(dtype).name
    if name not in _LOGITS:
        raise UnsupportedError(f"logits_dtype is {name}; expected {', '.join(_LOGITS)}")
    return _LOGITS[name]


def _float_name(bias: jax.Array) -> str:
    names = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
    if bias.dtype.name not in names:
        raise InvalidArgumentError(f"bias is {bias.dtype}; expected {', '.join(names)}")
    return names[bias.dtype.name]


def _window_word(window: int | tuple[int, int]) -> str:
    left, right = (window, window) if isinstance(window, int) else window
    if left < 0 or right < 0:
        raise InvalidArgumentError(f"sliding_window is {window}; expected numbers that are not negative")
    return f"window={left},{right}"


def _as_plane(name: str, array: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    """The array as [batch or 1, q_heads or 1, q_len or 1, kv_len or 1]."""
    plane = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    if array.ndim > 4 or any(size not in (1, of) for size, of in zip(array.shape[::-1], plane[::-1], strict=False)):
        raise InvalidArgumentError(f"{name} is {list(array.shape)}, which does not broadcast to {list(plane)}")
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _pair(
    q_name: str, q_array: jax.Array | None, k_name: str, k_array: jax.Array | None, query: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Both arrays as int32; the keys' are the queries' if these have the same length."""
    if q_array is None or (k_array is None and query.shape[1] != key.shape[1]):
        raise InvalidArgumentError(
            f"{q_name} and {k_name} go together; only {q_name} may stand alone, and only for as many keys as queries"
        )
    return q_array.astype(jnp.int32), (q_array if k_array is None else k_array).astype(jnp.int32)
