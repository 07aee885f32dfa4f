"""Attention with the signatures of neural network libraries, without importing these."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flashlift._errors import InvalidArgumentError, UnsupportedError
from flashlift.jax._arguments import as_array, as_bias, as_flax_mask, described
from flashlift.jax._flash_attention import flash_attention


def flax_attention_fn(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    broadcast_dropout: bool = False,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: DTypeLike | None = None,
    precision: jax.lax.PrecisionLike = None,
    module: Any = None,
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: Any = None,
    qk_attn_weights_einsum: Any = None,
    attn_weights_value_einsum: Any = None,
    is_causal: bool = False,
    promote_dtype: Callable[..., Any] | None = None,
) -> jax.Array:
    """The dot_product_attention of Flax linen and nnx, for `attention_fn=`.

    query, key, value: [batch..., length, heads, depth], with any number of batch dimensions, or none. bias, mask:
    [batch..., heads, q_len, kv_len]; each size may be 1 instead. A query that sees no key gives the mean of value, as
    in Flax. Softmax is always computed in float32. promote_dtype: nnx's function, applied to all three together.
    Dropout works as in Flax, except for broadcast_dropout: each batch and head drops its own keys.
    """
    if einsum_dot_general is not None:
        raise UnsupportedError("einsum_dot_general was given, but the kernel computes the products; leave it out")
    if promote_dtype is not None:
        query, key, value = promote_dtype((query, key, value), dtype=dtype)
    q, k, v = (as_array(name, one) for name, one in (("query", query), ("key", key), ("value", value)))
    if not q.ndim == k.ndim == v.ndim >= 3:
        raise InvalidArgumentError(
            f"query is {described(q)}, key {described(k)} and value {described(v)}; expected [batch..., length, heads, "
            "depth] for all"
        )
    if dtype is None and all(jnp.issubdtype(one.dtype, jnp.floating) for one in (q, k, v)):
        q, k, v = (one.astype(jnp.promote_types(jnp.promote_types(q.dtype, k.dtype), v.dtype)) for one in (q, k, v))
    batch = q.shape[:-3]
    kept = None if mask is None else as_flax_mask(mask)
    q, k, v = (one.reshape(math.prod(one.shape[:-3]), *one.shape[-3:]) for one in (q, k, v))
    out = flash_attention(
        q,
        k,
        v,
        None if bias is None else _plane("bias", as_bias(bias), batch),
        mask=None if kept is None else _plane("mask", kept, batch),
        causal=is_causal,
        dropout_rng=dropout_rng,
        dropout_rate=dropout_rate,
        broadcast_dropout=broadcast_dropout,
        deterministic=deterministic,
        dtype=dtype,
        precision=precision,
        module=module,
        qk_attn_weights_einsum=qk_attn_weights_einsum,
        attn_weights_value_einsum=attn_weights_value_einsum,
        empty_rows="uniform",
    )
    assert isinstance(out, jax.Array), "no lse was asked for"
    return out.reshape(*batch, *out.shape[1:])


def equinox_attention_fn(
    query: jax.Array,
    key_: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    dropout: Any = None,
    *,
    key: jax.Array | None = None,
    inference: bool | None = None,
) -> jax.Array:
    """Equinox's dot_product_attention of one head: query [q_len, depth], key_ and value [kv_len, depth], mask
    booleans [q_len, kv_len], dropout an equinox.nn.Dropout. jax.vmap over heads and batches combines them into one
    call."""
    q, k, v = (as_array(name, one) for name, one in (("query", query), ("key_", key_), ("value", value)))
    if not q.ndim == k.ndim == v.ndim == 2:
        raise InvalidArgumentError(
            f"query is {described(q)}, key_ {described(k)} and value {described(v)}; expected [length, depth] for all: "
            "jax.vmap goes over heads and batches"
        )
    kept = None if mask is None else as_array("mask", mask)
    if kept is not None and (kept.shape != (q.shape[0], k.shape[0]) or kept.dtype != jnp.bool_):
        raise InvalidArgumentError(
            f"mask is {described(kept)}; expected booleans [q_len, kv_len], {[q.shape[0], k.shape[0]]}"
        )
    rate = 0.0
    if dropout is not None and not (dropout.inference if inference is None else inference):
        rate = dropout.p
    out = flash_attention(
        *(one[None, :, None] for one in (q, k, v)),
        attention_mask=None if kept is None else kept[None, None],
        dropout_prob=rate,
        dropout_seed=key if rate else None,
        empty_rows="uniform",
    )
    assert isinstance(out, jax.Array), "no lse was asked for"
    return out[0, :, 0]


def haiku_attention_fn(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The attention that haiku.MultiHeadAttention computes between its projections: inputs [batch..., length, heads,
    depth], with a mask [batch..., heads or 1, q_len, kv_len]."""
    return flax_attention_fn(query, key, value, mask=mask)


def _plane(name: str, array: jax.Array, batch: tuple[int, ...]) -> jax.Array:
    """[batch..., heads, q_len, kv_len] with one dimension for all batches."""
    array = array.reshape((1,) * (len(batch) + 3 - array.ndim) + array.shape)
    if array.ndim > len(batch) + 3 or any(size not in (1, of) for size, of in zip(array.shape, batch, strict=False)):
        raise InvalidArgumentError(
            f"{name} is {described(array)}; expected the batches {list(batch)}, each or 1, and heads, q_len, kv_len"
        )
    plane = array.shape[len(batch) :]
    if all(size == 1 for size in array.shape[: len(batch)]):
        return array.reshape(1, *plane)
    return jnp.broadcast_to(array, (*batch, *plane)).reshape(math.prod(batch), *plane)
