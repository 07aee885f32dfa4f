"""Segment ids: what they say of lengths and positions, and checks of what a MaskInfo is made from."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from flashlift._errors import InvalidArgumentError
from flashlift.jax._arguments import as_array, described
from flashlift.jax._mask_rules import Keep


def padding(kept: jax.Array) -> jax.Array:
    """Segment ids for padding: 0 for positions that are kept, and -1 for padding."""
    return jnp.where(kept, 0, -1).astype(jnp.int32)


def plane_of(keep: Keep, of_q: jax.Array, of_kv: jax.Array) -> jax.Array:
    plane = (of_q.shape[0], 1, of_q.shape[1], of_kv.shape[1])
    return jnp.asarray(keep(*(jax.lax.broadcasted_iota(jnp.int32, plane, axis) for axis in range(4))))


def positions(ids: jax.Array, of_padding: int) -> jax.Array:
    """For each position, the number of positions of the same segment directly before it."""
    at = jnp.arange(ids.shape[1], dtype=jnp.int32)
    is_first = jnp.concatenate([jnp.full_like(ids[:, :1], True, bool), ids[:, 1:] != ids[:, :-1]], axis=1)
    first = jax.lax.cummax(jnp.where(is_first, at, 0), axis=1)
    return jnp.where(ids < 0, of_padding, at - first).astype(jnp.int32)


def counts(ids: jax.Array) -> jax.Array:
    segments = int(jnp.max(ids, initial=-1)) + 1
    if segments <= 1:
        return (ids >= 0).sum(1).astype(jnp.int32)
    return jnp.diff(ends_of(ids, segments))


def ends_of(ids: jax.Array, segments: int) -> jax.Array:
    """Cumulative lengths of segments 0 to `segments`, all batches together, after a 0."""
    counts = jnp.zeros(segments, jnp.int32).at[jnp.where(ids < 0, segments, ids)].add(1, mode="drop")
    return jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)])


def bounds_of(kept: jax.Array) -> jax.Array:
    """For each batch, the first kept position and the position after the last: [start, end, start, end, ...]."""
    start, end = jnp.argmax(kept, 1), kept.shape[1] - jnp.argmax(kept[:, ::-1], 1)
    return jnp.where(kept.any(1)[:, None], jnp.stack([start, end], 1), 0).reshape(-1).astype(jnp.int32)


def checked_ids(name: str, given: ArrayLike) -> jax.Array:
    array = as_array(name, given)
    if array.ndim != 2 or not (jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == jnp.bool_):
        raise InvalidArgumentError(
            f"{name} is {described(array)}; expected an integer for each position: [batch, length]"
        )
    return array.astype(jnp.int32)


def checked_lengths(name: str, given: ArrayLike) -> jax.Array:
    array = as_array(name, given)
    if array.ndim > 1 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise InvalidArgumentError(f"{name} is {described(array)}; expected int32 [batch]")
    return array.astype(jnp.int32).reshape(-1)


def whole_number(name: str, given: Any) -> int:
    try:
        number = operator.index(given)
    except TypeError as error:
        raise InvalidArgumentError(f"{name} is {given!r}; expected an integer") from error
    if number < 0 or isinstance(given, bool):
        raise InvalidArgumentError(f"{name} is {given!r}; expected an integer, not negative")
    return number
