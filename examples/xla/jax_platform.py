"""JAX with its attention fused, forward and backward, without a change of the program.

pip install flashlift fastatomstruct-xla-cpu          # or jax[cuda13], on a machine with a GPU
JAX_PLATFORMS=flashlift FLASHLIFT_LOG=info python jax_platform.py
"""

import jax
import jax.numpy as jnp


def loss(weights, x):
    q, k, v = (jnp.einsum("bsm,mhd->bshd", x, w) for w in (weights["q"], weights["k"], weights["v"]))
    attention = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return jnp.mean((jnp.einsum("bshd,hdm->bsm", attention, weights["out"]) - x) ** 2)


@jax.jit
def step(weights, x):
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return value, jax.tree.map(lambda w, g: w - 0.5 * g, weights, gradients)


def main():
    keys = jax.random.split(jax.random.key(0), 5)
    x = jax.random.normal(keys[4], (2, 256, 128))
    weights = {name: 0.05 * jax.random.normal(key, (128, 4, 32)) for name, key in zip("qkv", keys[:3], strict=True)}
    weights["out"] = 0.05 * jax.random.normal(keys[3], (4, 32, 128))
    for i in range(5):
        value, weights = step(weights, x)
        print(f"step {i}: loss {value:.6f}")


main()
