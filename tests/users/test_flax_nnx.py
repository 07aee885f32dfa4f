"""Flax's nnx.MultiHeadAttention with our attention function, and a training loop that XLA compiles by itself or through
our PJRT plugin. Run by scripts/test_jax_users.py, which installs Flax.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift.jax import flash_attention, flax_attention_fn
from flax import nnx

X = jax.random.normal(jax.random.key(1), (2, 3, 16, 32))
CAUSAL = nnx.make_causal_mask(jnp.ones((2, 3, 16)))


def layer(attention_fn, **options):
    return nnx.MultiHeadAttention(
        num_heads=4, in_features=32, decode=False, attention_fn=attention_fn, rngs=nnx.Rngs(0), **options
    )


@pytest.mark.parametrize("mask", [None, CAUSAL], ids=["full", "causal"])
def test_module_and_its_gradients(mask):
    def both(attention_fn):
        module = layer(attention_fn)
        loss = nnx.value_and_grad(lambda one: (one(X, mask=mask, deterministic=True) ** 2).sum())
        return loss(module)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4),
        both(flax_attention_fn),
        both(nnx.dot_product_attention),
    )


def test_flash_attention_itself():
    theirs, ours = (
        layer(one)(X[0], mask=CAUSAL[0], deterministic=True) for one in (nnx.dot_product_attention, flash_attention)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_dropout_leaves_keys_out():
    module = layer(flax_attention_fn, dropout_rate=0.3, broadcast_dropout=False)
    one, same, other = (module(X, deterministic=False, rngs=nnx.Rngs(dropout=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other) and not np.allclose(one, module(X, deterministic=True), atol=1e-3)


def test_promote_dtype():
    heads = X.reshape(6, 16, 4, 8)
    out = flax_attention_fn(heads, heads, heads, dtype=jnp.bfloat16, promote_dtype=nnx.nn.dtypes.promote_dtype)
    assert out.dtype == jnp.bfloat16


def test_a_training_loop():
    """The losses decrease; scripts/test_jax_users.py compares XLA's losses with those through the plugin."""
    module = layer(nnx.dot_product_attention)
    graph, params = nnx.split(module)

    @jax.jit
    def step(params):
        def loss(params):
            out = nnx.merge(graph, params)(X[0], mask=CAUSAL[0], deterministic=True)
            return jnp.mean((out - jnp.roll(X[0], 1, axis=1)) ** 2)

        value, slopes = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, g: p - 0.5 * g, params, slopes)

    losses = []
    for _ in range(8):
        value, params = step(params)
        losses.append(float(value))
    print("losses", *losses)
    assert losses[-1] < losses[0]
