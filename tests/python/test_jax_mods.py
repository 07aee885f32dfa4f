"""score_mod and mask_mod as Python functions, beside the same over whole arrays in jax.numpy, gradients included."""

import flashlift
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashlift.jax import attention
from test_jax_gradients import assert_gradients, normal

B, S, T, H, D = 2, 17, 23, 4, 8
AT = dict(zip("bhqk", np.ix_(range(B), range(H), range(S), range(T)), strict=True))
DOCUMENTS = jnp.sort(jnp.asarray(np.random.default_rng(0).integers(0, 3, (B, T)), jnp.int32))


def plain(q, k, v, score=lambda s, b, h, q, kv: s, keep=lambda b, h, q, kv: True):
    at = [jnp.asarray(AT[one], jnp.int32) for one in "bhqk"]
    s = score(jnp.einsum("bqhd,bkhd->bhqk", q, k) * D**-0.5, *at)
    s = jnp.where(keep(*at), s, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)


def check(score, keep=None, *arrays):
    mine = lambda q, k, v, *arrays: attention(
        q, k, v, score_mod=score and score(*arrays), mask_mod=keep and keep(*arrays)
    )
    theirs = lambda q, k, v, *arrays: plain(
        q, k, v, *([score(*arrays)] if score else []), **({"keep": keep(*arrays)} if keep else {})
    )
    given = (normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D), *arrays)
    np.testing.assert_allclose(mine(*given), theirs(*given), atol=1e-5)
    assert_gradients(mine, theirs, given)


def test_captured_arrays_have_gradients():
    def score(bias, slopes, temperature):
        halved = slopes / 2  # of no coordinate: computed before the call
        return lambda s, b, h, q, kv: (
            jnp.tanh(s * jnp.exp(temperature)) + bias[h, q - kv + T - 1] - halved[h] * jnp.abs(q - kv)
        )

    check(score, None, normal(H, S + T), jnp.ones(H), jnp.float32(0.3))


def test_masks():
    def keep():
        return lambda b, h, q, kv: (DOCUMENTS[b, q] == DOCUMENTS[b, kv]) & ((q >= kv) | (kv < 2))

    check(None, keep)


def test_rows_of_arrays():
    given = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)
    row_first = attention(*given, mask_mod=lambda b, h, q, kv: DOCUMENTS[b][kv] > DOCUMENTS[:, 3][b])
    np.testing.assert_array_equal(
        row_first, attention(*given, mask_mod=lambda b, h, q, kv: DOCUMENTS[b, kv] > DOCUMENTS[b, 3])
    )


def test_operations():
    def score(table):
        def mod(s, b, h, q, kv):
            far = jnp.where((q + kv) % 3 == 0, s**2, jax.nn.sigmoid(s))
            near = jnp.clip(s, -1.0, table[kv].astype(jnp.float32)) * jnp.float32(q // 2)
            return far + near / (1 + kv)

        return mod

    check(score, lambda table: lambda b, h, q, kv: jnp.logical_xor(q >= kv, h < 2), normal(T))


def test_transformations():
    q, k, v = normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D)

    def of(bias, q):
        return attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i, j])

    biases = normal(3, H, S, T)
    expected = jnp.stack([of(bias, q) for bias in biases])
    np.testing.assert_allclose(jax.jit(jax.vmap(of, (0, None)))(biases, q), expected, atol=1e-5)
    slope = jax.vmap(jax.grad(lambda bias, q: of(bias, q).sum()), (0, None))
    np.testing.assert_allclose(slope(biases, q)[1], jax.grad(lambda bias: of(bias, q).sum())(biases[1]), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score_mod": 3}, "score_mod is 3; expected a function of"),
        (
            {"score_mod": lambda s, b, h, q, kv: s > 0},
            r"score_mod returns bool\[\]; expected one scalar, the new score",
        ),
        ({"mask_mod": lambda b, h, q, kv: q}, r"mask_mod returns int32\[\]; expected one scalar, a bool"),
        ({"score_mod": lambda s, b, h, q, kv: s + DOCUMENTS[b].sum()}, "score_mod computes reduce_sum"),
        ({"score_mod": lambda s, b, h, q, kv: (s + DOCUMENTS[b])[q]}, "expected scalars"),
        ({"score_mod": lambda s, b, h, q, kv: jax.lax.lgamma(s)}, "score_mod computes lgamma"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(flashlift.FlashliftError, match=message):
        attention(normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D), **arguments)
