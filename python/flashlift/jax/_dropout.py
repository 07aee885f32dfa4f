"""Which keys dropout keeps, as docs/problem.md defines it, in plain JAX."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_STEPS = 0x9E3779B9, 0xBB67AE85  # of the key, from one round to the next
_ROUNDS = 7


def keeps(rate: float, seed: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Booleans of this shape, [batch, q_heads, q_len, kv_len]. seed: uint32 [2], or of a part of a larger call [4]."""
    b, h, q, kv = (
        jax.lax.broadcasted_iota(jnp.uint32, [n if i == axis else 1 for i in range(4)], axis)
        for axis, n in enumerate(shape)
    )
    if seed.shape == (4,):
        b, h = b + seed[2], h + seed[3]
    counter = [kv // jnp.uint32(64) * jnp.uint32(16) + kv % jnp.uint32(16), q, h, b]
    words = _philox(jnp.broadcast_arrays(*counter), [seed[0], seed[1]])
    number = kv // jnp.uint32(16) % jnp.uint32(4)
    word = jnp.select([number == jnp.uint32(i) for i in range(4)], words)
    return word >= jnp.uint32(min(round(rate * 2.0**32), 0xFFFFFFFF))


def _philox(words: Sequence[jax.Array], key: Sequence[jax.Array]) -> Sequence[jax.Array]:
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = (_product(words[2 * i], m) for i, m in enumerate(_MULTIPLIERS))
        words = [high1 ^ words[1] ^ key[0], low1, high0 ^ words[3] ^ key[1], low0]
        key = [one + jnp.uint32(step) for one, step in zip(key, _STEPS, strict=True)]
    return words


def _product(x: jax.Array, constant: int) -> tuple[jax.Array, jax.Array]:
    """The high and the low 32 bits of a product of 64 bits, which JAX does not have by default."""
    half, low = jnp.uint32(16), jnp.uint32(0xFFFF)
    x0, x1 = x & low, x >> half
    m0, m1 = jnp.uint32(constant & 0xFFFF), jnp.uint32(constant >> 16)
    carried = (x0 * m0 >> half) + (x0 * m1 & low) + (x1 * m0 & low)
    high = x1 * m1 + (x0 * m1 >> half) + (x1 * m0 >> half) + (carried >> half)
    return high, x * jnp.uint32(constant)
