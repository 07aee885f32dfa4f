"""Segments, packed sequences and lengths."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from flashlift._errors import InvalidArgumentError
from flashlift.jax._arguments.values import as_array, described, known, listed

_INT32 = np.iinfo(np.int32)


def segment_pair(
    q_ids: ArrayLike | None, kv_ids: ArrayLike | None, query: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Both segment ids as int32 [batch or 1, length]."""
    names = ("q_segment_ids", "kv_segment_ids")
    given = _both(names, q_ids, kv_ids, query, key)
    ids = [_ids(name, one, of) for name, one, of in zip(names, given, (query, key), strict=True)]
    if not all(map(_fits, given, ids)):
        ids = _renumbered(*ids)
    return ids[0].astype(jnp.int32), ids[1].astype(jnp.int32)


def _ids(name: str, given: ArrayLike, of: jax.Array) -> jax.Array:
    ids = _integers(name, given)
    if ids.ndim != 2 or ids.shape[0] not in (1, of.shape[0]) or ids.shape[1] != of.shape[1]:
        raise InvalidArgumentError(
            f"{name} is {described(ids)}; expected an integer for each position: {[of.shape[0], of.shape[1]]}"
        )
    return ids


def _fits(given: ArrayLike, ids: jax.Array) -> bool:
    """Whether int32 surely has all values."""
    if ids.dtype.itemsize < 4 or ids.dtype == jnp.int32:
        return True
    values = known(given)
    return values is not None and (values.size == 0 or bool(values.max() <= _INT32.max and values.min() >= _INT32.min))


def _renumbered(q_ids: jax.Array, kv_ids: jax.Array) -> list[jax.Array]:
    """Other ids for the same segments: for hashes of documents, which int32 would make padding, or equal to others."""
    unsigned = jnp.uint64 if max(q_ids.dtype.itemsize, kv_ids.dtype.itemsize) == 8 else jnp.uint32
    batch = q_ids.shape[0] if kv_ids.shape[0] == 1 else kv_ids.shape[0]
    values = [
        jnp.broadcast_to(jnp.where(one < 0, 0, one).astype(unsigned), (batch, one.shape[1])) for one in (q_ids, kv_ids)
    ]
    in_order = jnp.sort(jnp.concatenate(values, axis=1), axis=1)
    numbers = [jax.vmap(jnp.searchsorted)(in_order, one) for one in values]
    return [jnp.where(ids < 0, -1, one) for ids, one in zip((q_ids, kv_ids), numbers, strict=True)]


def keep_padding_apart(q_ids: jax.Array, kv_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Replaces negative ids by values that differ between queries and keys, so that no query sees padding."""
    return jnp.where(q_ids < 0, -1, q_ids), jnp.where(kv_ids < 0, -2, kv_ids)


def sequence_ends(
    cum_q: ArrayLike | None, cum_k: ArrayLike | None, query: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Both cumulative lengths as int32 [sequences + 1]. Checks their values if they are known."""
    names = ("cum_seqlens_q", "cum_seqlens_k")
    of_q, of_k = _both(names, cum_q, cum_k, query, key)
    ends = _ends(names[0], of_q, query), _ends(names[1], of_k, key)
    if ends[0].shape != ends[1].shape:
        raise InvalidArgumentError(
            f"cum_seqlens_q is {list(ends[0].shape)} and cum_seqlens_k {list(ends[1].shape)}; expected one length: "
            "both name the same sequences"
        )
    return ends


def _ends(name: str, given: ArrayLike, of: jax.Array) -> jax.Array:
    ends = _int32(name, given)
    batch, length = of.shape[:2]
    is_short = ends.ndim == 1 and isinstance(ends.shape[0], int) and ends.shape[0] < 2
    if ends.ndim != 1 or is_short:
        raise InvalidArgumentError(f"{name} is {described(ends)}; expected int32 [sequences + 1]")
    if batch != 1 and ends.shape[0] != batch + 1:  # also if the batch is still unknown to jax.export
        raise InvalidArgumentError(
            f"{name} is {list(ends.shape)} for a batch of {batch}; expected [{batch + 1}], one sequence for each "
            "batch, each padded to the length of the array; or a batch of 1 in which all sequences follow one another"
        )
    values = known(given)
    if values is None:
        return ends
    lengths = np.diff(values.astype(np.int64))
    if values[0] != 0 or (lengths < 0).any():
        raise InvalidArgumentError(
            f"{name} is {listed(values)}; expected cumulative lengths: 0 first, none below the one before it"
        )
    if not isinstance(length, int):
        return ends
    if batch == 1 and values[-1] > length:
        raise InvalidArgumentError(
            f"{name} is {listed(values)}; expected at most {length} at the end, the array's length"
        )
    if batch != 1 and lengths.max() > length:
        raise InvalidArgumentError(
            f"{name} is {listed(values)}, with a sequence of {lengths.max()}; expected sequences of at most {length}, "
            "the array's length"
        )
    return ends


def sequence_lengths(name: str, given: ArrayLike, batch: int) -> jax.Array:
    lengths = _int32(name, given)
    if lengths.shape != (batch,):
        raise InvalidArgumentError(f"{name} is {described(lengths)}; expected int32 {[batch]}, a length for each batch")
    return lengths


def padded_ids(ends: jax.Array, length: int) -> jax.Array:
    """Segment ids [batch, length] for one sequence at the start of each batch: 0 up to its end, then -1."""
    return jnp.where(jnp.arange(length, dtype=jnp.int32)[None] < jnp.diff(ends)[:, None], 0, -1).astype(jnp.int32)


def _both(
    names: tuple[str, str], of_q: ArrayLike | None, of_k: ArrayLike | None, query: jax.Array, key: jax.Array
) -> tuple[ArrayLike, ArrayLike]:
    """Completes a pair: the keys' value is the queries' if both have the same length."""
    if of_q is None or (of_k is None and query.shape[1] != key.shape[1]):
        raise InvalidArgumentError(
            f"{names[0]} and {names[1]} go together; only {names[0]} may stand alone, and only for as many keys as "
            "queries"
        )
    return of_q, of_q if of_k is None else of_k


def _int32(name: str, given: ArrayLike) -> jax.Array:
    return _integers(name, given, np.iinfo(np.int32)).astype(jnp.int32)


def _integers(name: str, given: ArrayLike, limits: np.iinfo | None = None) -> jax.Array:
    """An array of integers, whose values, if they are known, are within limits: without any, those of its type, which
    may be narrower than what was given."""
    values = known(given)
    array = as_array(name, given)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise InvalidArgumentError(f"{name} is {described(array)}; expected int32 or other integers")
    limits = limits or np.iinfo(array.dtype)
    if values is not None and values.size and not (limits.min <= values.min() and values.max() <= limits.max):
        raise InvalidArgumentError(f"{name} has values from {values.min()} to {values.max()}; expected {limits.dtype}")
    return array
