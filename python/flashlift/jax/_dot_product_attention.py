"""The signature of jax.nn.dot_product_attention, as one fused kernel."""

import jax
import jax.numpy as jnp

from flashlift._errors import InvalidArgumentError, UnsupportedError
from flashlift.jax import _arguments as arguments
from flashlift.jax._flash_attention import flash_attention

_PLATFORMS = {None: None, "xla": None, "cudnn": "cuda"}


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: jax.Array | None = None,
    key_value_seq_lengths: jax.Array | None = None,
    local_window_size: int | tuple[int | None, int | None] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """jax.nn.dot_product_attention with the same arguments and results, as one fused kernel, with gradients.

    query: [batch, q_len, q_heads, depth] or without the batch; key and value alike.
    bias, mask: four dimensions, or fewer, which are the last of [batch, q_heads, q_len, kv_len]; each has this size or
    1.
    query_seq_lengths, key_value_seq_lengths: int32 [batch]. A query after its sequence's length gives 0. A query that
    has no key for another reason gives the mean of value, as in jax.nn.
    return_residual: also return the logarithm of each row's sum of exponentials, [batch, q_len, q_heads], in query's
    dtype. It is a constant for gradients, as in jax.nn. For a query without keys, or after its sequence's length,
        it is -inf, where jax.nn gives about -2.38e38.
    implementation: None or "xla" runs wherever JAX runs, "cudnn" on CUDA alone; the kernel is always Flashlift's.
    """
    if not isinstance(implementation, (str, type(None))) or implementation not in _PLATFORMS:
        raise UnsupportedError(f'implementation is "{implementation}"; expected None, "xla" or "cudnn"')
    query, key, value = (
        arguments.as_array(name, one) for name, one in (("query", query), ("key", key), ("value", value))
    )
    if not query.ndim == key.ndim == value.ndim or query.ndim not in (3, 4):
        raise InvalidArgumentError(
            f"query is {arguments.described(query)}, key is {arguments.described(key)} and value is "
            f"{arguments.described(value)}; expected [batch, length, heads, depth] or [length, heads, depth] for all"
        )
    shape = query.shape
    if query.ndim == 3:
        query, key, value = query[None], key[None], value[None]
    batch, q_len = query.shape[:2]
    kept = None if mask is None else _plane(arguments.as_array("mask", mask))
    if kept is not None and kept.dtype != jnp.bool_:
        raise InvalidArgumentError(
            f"mask is {kept.dtype}; expected booleans: pass what is added to the scores as bias="
        )
    keys = None
    if key_value_seq_lengths is not None:
        lengths = arguments.sequence_lengths("key_value_seq_lengths", key_value_seq_lengths, batch)
        keys = jnp.where(jnp.arange(key.shape[1], dtype=jnp.int32)[None] < lengths[:, None], 0, -1).astype(jnp.int32)
    within = None
    if query_seq_lengths is not None:
        lengths = arguments.sequence_lengths("query_seq_lengths", query_seq_lengths, batch)
        within = jnp.arange(q_len, dtype=jnp.int32)[None] < lengths[:, None]
    with_lse = arguments.check_flag("return_residual", return_residual)
    # Checked here, so that errors use the names of this function's arguments.
    causal = arguments.check_flag("is_causal", is_causal)
    arguments.band_words(causal, local_window_size, "local_window_size")
    if scale is not None:
        arguments.scale_word(scale, "scale")
    results = flash_attention(
        query,
        key,
        value,
        None if bias is None else _plane(arguments.as_bias(bias)),
        mask=kept,
        softmax_scale=scale,
        causal=causal,
        sliding_window=local_window_size,
        q_segment_ids=None if keys is None else jnp.zeros((1, q_len), jnp.int32),
        kv_segment_ids=keys,
        platform=_PLATFORMS[implementation],
        empty_rows="uniform",
        return_lse=with_lse,
    )
    out: jax.Array
    lse: jax.Array | None
    out, lse = results if isinstance(results, tuple) else (results, None)
    if within is not None:
        out = jnp.where(within[..., None, None], out, 0)
        lse = None if lse is None else jnp.where(within[:, None], lse, -jnp.inf)
    out = out.reshape(*shape[:-1], out.shape[-1])
    if lse is None:
        return out
    return out, jax.lax.stop_gradient(jnp.moveaxis(lse, 1, 2).reshape(shape[:-1]).astype(query.dtype))


def _plane(array: jax.Array) -> jax.Array:
    return array.reshape((1,) * (4 - array.ndim) + array.shape)
