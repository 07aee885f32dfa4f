"""flashlift.jax.dot_product_attention compared with jax.nn's, argument by argument, including gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift.jax import dot_product_attention
from test_jax_gradients import assert_gradients, normal

B, T, S, N, K, H = 2, 37, 53, 6, 2, 24
MASK = jnp.asarray(np.random.default_rng(0).random((B, 1, T, S)) < 0.5).at[1, 0, 3].set(False)
LENGTHS_Q, LENGTHS_K = jnp.asarray([20, T], jnp.int32), jnp.asarray([S, 31], jnp.int32)


def operands(dtype=jnp.float32):
    return normal(B, T, N, H, dtype=dtype), normal(B, S, K, H, dtype=dtype), normal(B, S, K, H, dtype=dtype)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"is_causal": True, "scale": 0.3},
        {"mask": MASK},
        {"local_window_size": (5, 2)},
        {"local_window_size": 4, "is_causal": True},
        {"key_value_seq_lengths": LENGTHS_K},
        {"query_seq_lengths": LENGTHS_Q, "key_value_seq_lengths": LENGTHS_K, "is_causal": True},
        {"query_seq_lengths": LENGTHS_Q, "implementation": "xla"},
        {"key_value_seq_lengths": LENGTHS_K.at[0].set(0)},
    ],
    ids=lambda arguments: "+".join(arguments) or "nothing",
)
def test_beside_jax_nn(arguments):
    given = (*operands(), normal(1, N, T, S))
    mine = lambda *given: dot_product_attention(*given, **arguments)
    theirs = lambda *given: jax.nn.dot_product_attention(*given, **arguments)
    np.testing.assert_allclose(mine(*given), theirs(*given), atol=1e-5)
    assert_gradients(mine, theirs, given)


def test_the_residual():
    given = operands()
    for arguments in ({"is_causal": True}, {"key_value_seq_lengths": LENGTHS_K}):
        mine = dot_product_attention(*given, **arguments, return_residual=True)
        theirs = jax.nn.dot_product_attention(*given, **arguments, return_residual=True)
        for one, other in zip(mine, theirs, strict=True):
            assert one.shape == other.shape and one.dtype == other.dtype
            np.testing.assert_allclose(one, other, atol=1e-5)
    lse = dot_product_attention(*given, query_seq_lengths=LENGTHS_Q, return_residual=True)[1]
    assert jnp.array_equal(jnp.isneginf(lse).any(-1), jnp.arange(T)[None] >= LENGTHS_Q[:, None])
    no_keys = dot_product_attention(*given, mask=jnp.zeros((1, 1, 1, 1), bool), return_residual=True)[1]
    assert jnp.isneginf(no_keys).all()  # docs/jax.md names this difference
    of_lse = jax.grad(lambda q: dot_product_attention(q, *given[1:], return_residual=True)[1].sum())
    assert not of_lse(given[0]).any()  # a constant there, too


def test_without_a_batch():
    q, k, v = (x[0] for x in operands())
    for bias, mask in ((normal(N, T, S), None), (None, MASK[0]), (normal(T, S), MASK[1, 0])):
        mine, mine_lse = dot_product_attention(q, k, v, bias, mask, return_residual=True)
        theirs, their_lse = jax.nn.dot_product_attention(q, k, v, bias, mask, return_residual=True)
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
        assert mine.shape == theirs.shape and mine_lse.shape == their_lse.shape


def test_16_bits():
    given = operands(jnp.bfloat16)
    mine, theirs = dot_product_attention(*given), jax.nn.dot_product_attention(*given)
    assert mine.dtype == theirs.dtype
    np.testing.assert_allclose(np.float32(mine), np.float32(theirs), atol=2e-2)
