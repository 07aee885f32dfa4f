"""Attention with the signatures of Flax, Equinox and Haiku, compared with their own."""

import dataclasses

import flashlift
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift.jax import equinox_attention_fn, flash_attention, flax_attention_fn, haiku_attention_fn
from test_jax_gradients import normal

BATCH = (2, 3)
Q, K, V = (normal(*BATCH, 7, 4, 8) for _ in range(3))
MASK = jnp.asarray(np.random.default_rng(0).random((*BATCH, 1, 7, 7)) < 0.5).at[0, 0, 0, 2].set(False)


def theirs(q, k, v, bias=0.0, mask=True):
    """As in Flax: a mask makes scores very small, so that a row without keys gives a mean."""
    s = jnp.einsum("...qhd,...khd->...hqk", q, k) * q.shape[-1] ** -0.5 + bias
    return jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(jnp.where(mask, s, -1e30)), v)


def test_flax():
    bias = normal(3, 1, 7, 7)
    for mask in (MASK, MASK.astype(jnp.float32)):
        np.testing.assert_allclose(flax_attention_fn(Q, K, V, bias, mask), theirs(Q, K, V, bias, MASK), atol=1e-5)
    np.testing.assert_allclose(flax_attention_fn(Q, K, V, bias[:1]), theirs(Q, K, V, bias[:1]), atol=1e-5)
    one = Q[0, 0], K[0, 0], V[0, 0]
    np.testing.assert_allclose(flax_attention_fn(*one, mask=MASK[0, 0]), theirs(*one, mask=MASK[0, 0]), atol=1e-5)
    key = jax.random.key(1)
    dropped = flax_attention_fn(Q[0], K[0], V[0], dropout_rng=key, dropout_rate=0.5)
    same = flash_attention(Q[0], K[0], V[0], dropout_prob=0.5, dropout_seed=key)
    np.testing.assert_array_equal(dropped, same)
    np.testing.assert_allclose(haiku_attention_fn(Q, K, V, MASK), theirs(Q, K, V, mask=MASK), atol=1e-5)


def test_flax_calls_flash_attention_itself():
    """With the keywords that nnx.MultiHeadAttention passes to its attention_fn."""
    keywords = {"dropout_rng": None, "dropout_rate": 0.0, "broadcast_dropout": True, "deterministic": True}
    keywords |= {"dtype": None, "precision": None, "module": None}
    causal = flash_attention(Q[0], K[0], V[0], causal=True)
    np.testing.assert_array_equal(flash_attention(Q[0], K[0], V[0], mask=None, is_causal=True, **keywords), causal)
    np.testing.assert_array_equal(flax_attention_fn(Q[0], K[0], V[0], mask=None, is_causal=True, **keywords), causal)
    with pytest.raises(flashlift.FlashliftError, match='causal is "bottom_right" and is_causal is given'):
        flash_attention(Q[0], K[0], V[0], causal="bottom_right", is_causal=True)


def test_flax_promotes_types():
    out = flax_attention_fn(Q.astype(jnp.bfloat16), K, V)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, theirs(Q.astype(jnp.bfloat16).astype(jnp.float32), K, V), atol=1e-5)
    assert flax_attention_fn(Q, K, V, dtype=jnp.bfloat16).dtype == jnp.bfloat16


@dataclasses.dataclass
class Dropout:
    """The fields of equinox.nn.Dropout that are read."""

    p: float
    inference: bool = False


def test_equinox():
    one = Q[0, 0, :, 0], K[0, 0, :, 0], V[0, 0, :, 0]
    mask = MASK[0, 0, 0]
    expected = theirs(*(x[:, None] for x in one), mask=mask)[:, 0]
    np.testing.assert_allclose(equinox_attention_fn(*one, mask), expected, atol=1e-5)
    key = jax.random.key(2)
    for still in ({"dropout": Dropout(0.5, True)}, {"dropout": Dropout(0.5), "inference": True}):
        np.testing.assert_allclose(equinox_attention_fn(*one, mask, **still, key=key), expected, atol=1e-5)
    assert not np.allclose(equinox_attention_fn(*one, mask, Dropout(0.5), key=key), expected)


def test_equinox_is_of_one_head():
    one = Q[0, 0, :, 0], K[0, 0, :, 0], V[0, 0, :, 0]
    for given, message in (
        ((Q[0, 0], *one[1:]), r"query is float32\[7, 4, 8\], key_ .*jax.vmap goes over heads"),
        ((None, *one[1:]), "query is None; expected an array"),
        ((*one, MASK[0, 0, 0, 0]), r"mask is bool\[7\]; expected booleans \[q_len, kv_len\], \[7, 7\]"),
        ((*one, jnp.ones((7, 7))), r"mask is float32\[7, 7\]; expected booleans"),
    ):
        with pytest.raises(flashlift.InvalidArgumentError, match=message):
            equinox_attention_fn(*given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": MASK[:1, :2]}, r"mask is bool\[1, 2, 1, 7, 7\]; expected the batches \[2, 3\]"),
        ({"einsum_dot_general": jnp.einsum}, "einsum_dot_general was given"),
        ({"module": object()}, "leave sow_weights out"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(flashlift.FlashliftError, match=message):
        flax_attention_fn(Q, K, V, **arguments)
