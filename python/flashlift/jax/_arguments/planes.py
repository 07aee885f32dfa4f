"""What has a place for each score: biases and masks."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from flashlift._errors import InvalidArgumentError
from flashlift.jax._arguments.values import FLOATS, as_array, described, known, short


def as_bias(given: ArrayLike) -> jax.Array:
    """Refuses single numbers: usually a scale passed as the bias by mistake."""
    bias = as_array("bias", given)
    if bias.ndim == 0:
        raise InvalidArgumentError(
            f"bias is {short(given)}, a single number, on which no softmax depends; expected an array that broadcasts "
            "to [batch, q_heads, q_len, kv_len]: pass a scale by its name"
        )
    return bias


def bias_plane(bias: jax.Array, query: jax.Array, key: jax.Array) -> tuple[str, jax.Array]:
    """The bias's dtype in a problem, and the bias with four dimensions."""
    if bias.dtype.name not in FLOATS:
        advice = (
            "pass a mask as attention_mask="
            if bias.dtype == jnp.bool_
            else "cast it, or pass a mask as attention_mask="
        )
        raise InvalidArgumentError(f"bias is {bias.dtype}; expected {', '.join(FLOATS)}, added to the scores: {advice}")
    return FLOATS[bias.dtype.name], _as_plane("bias", bias, query, key)


def mask_plane(name: str, mask: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    """The mask as booleans, with four dimensions."""
    if mask.dtype != jnp.bool_ and not jnp.issubdtype(mask.dtype, jnp.integer):
        raise InvalidArgumentError(
            f"{name} is {mask.dtype}; expected booleans or integers, not 0 where a key is kept: pass a mask that is "
            f"added to the scores (0 and -inf) as bias=, and one of 0.0 and 1.0 as {name} != 0"
        )
    batch, heads = query.shape[0], query.shape[2]
    if mask.ndim == 2:
        if mask.shape[0] not in (1, batch) or mask.shape[1] not in (1, key.shape[1]):
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
    """Flax's masks are floats by default, 1.0 where a key is kept. Other values are refused if they are known."""
    mask = as_array("mask", given)
    if not jnp.issubdtype(mask.dtype, jnp.floating):
        return mask
    values = known(given)
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
