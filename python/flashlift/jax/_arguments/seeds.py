"""Seeds of dropout."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flashlift._errors import InvalidArgumentError
from flashlift.jax._arguments.values import as_array, described


@dataclasses.dataclass(frozen=True)
class SeedOfPart:
    """The seed of a call that computes a part of a larger one: uint32 [4]. The last two words are the part's first
    batch and first head in the larger call."""

    words: jax.Array


def seed_of_part(words: jax.Array, axes: Mapping[str, Any], sizes: Mapping[str, int]) -> SeedOfPart:
    """Within a mesh: the seed of this device's part. axes, sizes: for "b" and "h", the mesh's axes that split them, and
    the part's sizes. words: the seed words of the whole, which may be a part itself."""
    origin = jnp.zeros(2, jnp.uint32) if words.shape == (2,) else words[2:]
    offsets = [jax.lax.axis_index(axes[one]) * sizes[one] if axes[one] else jnp.int32(0) for one in "bh"]
    # jnp.concatenate asks for the value of `words`; in JAX 0.9's eager shard_map on explicit meshes this fails.
    return SeedOfPart(jax.lax.concatenate([words[:2], origin + jnp.stack(offsets).astype(jnp.uint32)], 0))


def seed_words(seed: jax.Array | int | SeedOfPart) -> jax.Array:
    """The 64 bits of a seed, low half first. An integer gives the same seed in Python, numpy and JAX, traced or not."""
    if isinstance(seed, SeedOfPart):
        return seed.words
    if isinstance(seed, (bool, np.bool_)):
        raise InvalidArgumentError(f"dropout_seed is {seed}; expected a key of jax.random or an integer")
    if isinstance(seed, (int, np.integer)):
        number = int(seed)
        if not -(1 << 63) <= number < 1 << 64:
            raise InvalidArgumentError(f"dropout_seed is {number}; expected an integer of 64 bits")
        return jnp.asarray([number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF], jnp.uint32)
    return _words_of_array(as_array("dropout_seed", seed))


def _words_of_array(seed: jax.Array) -> jax.Array:
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
