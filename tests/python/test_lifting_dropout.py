"""Dropout after the softmax, as libraries write it: fused with the module's own random bits as a keep mask, forward and
backward, or unfused with a reason. All results are compared with XLA's of the original.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lifting_rules import B, D, H, S, T, assert_fused, assert_left_alone, fused, products, qkv, weigh

KEY = jnp.asarray([5, 7], jnp.uint32)


def causal():
    return jnp.arange(T)[None, :] <= jnp.arange(S)[:, None]


def uniform(key, shape):
    """Numbers from 0 to 1. XLA takes seconds to compile JAX's own generator; one test uses that."""
    x = jax.lax.iota(jnp.uint32, int(np.prod(shape))).reshape(shape) * jnp.uint32(2654435761) + key[0]
    for _ in range(2):
        x = (x ^ (x >> 15)) * jnp.uint32(2246822519) + key[1]
    return (x >> 8).astype(jnp.float32) * 2.0**-24


def bits(key, shape=(B, H, S, T), rate=0.25):
    return uniform(key, shape) < 1 - rate


def flax(p, key, rate=0.25, shape=(B, H, S, T)):
    return p * (bits(key, shape, rate).astype(p.dtype) / jnp.asarray(1 - rate, p.dtype))


def flax_broadcast(p, key):
    return flax(p, key, shape=(1, 1, S, T))


def linen_dropout(p, key, rate=0.25):
    return jax.lax.select(jnp.broadcast_to(bits(key, p.shape, rate), p.shape), p / (1 - rate), jnp.zeros_like(p))


def haiku(p, key, rate=0.25):
    return bits(key, p.shape, rate) * p / (1 - rate)


def equinox(p, key, rate=0.25):
    return jnp.where(bits(key, p.shape, rate), p / (1 - rate), 0)


def torch(p, key, rate=0.25):
    return (uniform(key, p.shape) > rate) * p * (1 / (1 - rate))


def unscaled(p, key):
    return p * bits(key, p.shape)


DROPOUTS = [flax, flax_broadcast, linen_dropout, haiku, equinox, torch, unscaled]
MASKS = {
    "plain": lambda s: s,
    "causal": lambda s: jnp.where(causal(), s, jnp.finfo(s.dtype).min),
    "causal of infinity": lambda s: jnp.where(causal(), s, -jnp.inf),
    "bias": lambda s: s + jnp.sin(jnp.arange(H * T, dtype=s.dtype)).reshape(H, 1, T),
}


def attention(drop, mask=MASKS["plain"]):
    return lambda q, k, v, key: weigh(drop(jax.nn.softmax(mask(products(q, k) / 4), -1), key).astype(v.dtype), v)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("drop", DROPOUTS)
def test_dropout_is_fused(drop, mask, gradients):
    report = assert_fused(attention(drop, MASKS[mask]), *qkv(), KEY, gradients=gradients)
    assert "keep_mask" in report and "stays" not in report, report


def test_each_gradient_of_a_loss_is_fused():
    def step(q, k, v, key):
        return jax.grad(lambda *x: jnp.sum(jnp.sin(attention(equinox, MASKS["causal"])(*x, key))), (0, 1, 2))(q, k, v)

    assert_fused(step, *qkv(), KEY)


def test_bits_of_jax():
    def drop(p, key):
        return jnp.where(jax.random.bernoulli(jax.random.wrap_key_data(key), 0.75, p.shape), p / 0.75, 0)

    assert_fused(attention(drop), *qkv(), KEY, gradients=True)


def test_grouped_queries():
    def grouped(q, k, v, key):
        k, v = k[:, :1], v[:, :1]
        s = jnp.einsum("bghqd,bgkd->bghqk", q.reshape(B, 1, H, S, D), k)
        p = flax(jax.nn.softmax(s / 4, -1), key, shape=(B, 1, H, S, T))
        return jnp.einsum("bghqk,bgkd->bghqd", p, v)

    assert_fused(grouped, *qkv(), KEY, gradients=True)


@pytest.mark.parametrize("gradients", [False, True])
def test_conditions_that_are_joined(gradients):
    def drop(p, key):
        return jnp.where(bits(key) & bits(key + 1), p * 2, 0)

    def drop_and_mask(p, key):
        return jnp.where(bits(key) & causal(), p / 0.75, 0)

    for mask, both in (("plain", drop), ("causal", drop_and_mask)):
        assert_fused(attention(both, MASKS[mask]), *qkv(), KEY, gradients=gradients)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_16_bits(dtype):
    assert_fused(attention(flax), *qkv(dtype=dtype), KEY, gradients=True, tolerance=3e-2)


def test_bits_of_another_layout():
    def drop(p, key):
        return p * jnp.einsum("kqhb->bhqk", bits(key, (T, S, H, B)).astype(p.dtype)) / 0.75

    assert_fused(attention(drop), *qkv(), KEY)


def test_a_mask_of_its_own_argument():
    keep = jnp.arange(B * H * S * T).reshape(B, H, S, T) % 3 > 0
    report = assert_fused(
        lambda q, k, v, keep: attention(lambda p, _: jnp.where(keep, p * 2, 0))(q, k, v, 0), *qkv(), keep
    )
    assert "dropout=0.5 keep_mask" in report


@pytest.mark.parametrize("drop", [lambda p, key: p * bits(key, p.shape) * 0.5, lambda p, key: p / 0.75])
def test_other_constants_move_behind_the_values(drop):
    assert_fused(attention(drop), *qkv(), KEY)


# --- What is not dropout ---


@pytest.mark.parametrize(
    ("drop", "words"),
    [
        (lambda p, key: p * uniform(key, p.shape), "weights of their own"),
        (lambda p, key: jnp.where(p > 0.1, p, 0), "condition on the scores"),
        (lambda p, key: jnp.where(bits(key, p.shape), p, 0.01), ""),
        (lambda p, key: flax(p, key) / jnp.sum(flax(p, key), -1, keepdims=True), ""),
        (lambda p, key: linen_dropout(flax(p, key), key + 1), ""),
    ],
)
def test_other_weights_stay(drop, words):
    assert_left_alone(attention(drop), *qkv(), KEY, words=words)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("drop", DROPOUTS)
def test_division_behind_the_values(drop, gradients):
    def attend(q, k, v, key):
        s = jnp.where(causal(), products(q, k) / 4, -jnp.inf)
        e = jnp.exp(s - s.max(-1, keepdims=True))
        return weigh(drop(e, key), v) / e.sum(-1, keepdims=True)

    assert "keep_mask" in assert_fused(attend, *qkv(), KEY, gradients=gradients)


def test_dropout_before_the_sum_is_a_mask():
    """Then the sum includes it, and no keep mask is left."""

    def drop(q, k, v, key):
        s = products(q, k) / 4
        e = jnp.exp(s - s.max(-1, keepdims=True)) * bits(key)
        return weigh(e / (e.sum(-1, keepdims=True) + 1e-3), v)

    fused(drop, *qkv(), KEY)


@pytest.mark.parametrize(("other", "rate"), [(1, 0.25), (0, 0.3)])
def test_a_gradient_with_other_bits_or_another_rate_stays(other, rate):
    @jax.custom_vjp
    def drop(p, key):
        return equinox(p, key)

    drop.defvjp(
        lambda p, key: (drop(p, key), key),
        lambda key, g: (jnp.where(bits(key + jnp.uint32(other)), g / (1 - rate), 0), np.zeros(2, jax.dtypes.float0)),
    )
    candidates, report = fused(attention(drop), *qkv(), KEY, gradients=True)
    assert not any(candidate.fused for candidate in candidates), report


def half_empty(s):
    """Each other row of the scores has no keys."""
    return jnp.where(jnp.arange(S)[:, None] % 2 == 0, s, -jnp.inf)


@pytest.mark.parametrize(("shape", "rate"), [((B, H, S, T), 0.9), ((B, 1, 1, T), 0.9), ((H, S, 1), 0.5)])
def test_rows_without_keys_under_a_select(shape, rate):
    """A select clears the NaN of rows without keys where bits are false: a row of which they keep nothing is 0."""

    def drop(q, k, v, key):
        p = jax.nn.softmax(half_empty(products(q, k) / 4), -1)
        return weigh(jnp.where(bits(key, shape, rate), p / (1 - rate), 0), v)

    report = assert_fused(drop, *qkv(), KEY)
    assert "keep_mask" in report or shape[-1] == 1, report
    out = np.isnan(jax.jit(drop)(*qkv(), KEY))
    assert out[..., 1::2, :].any() and not out[..., 1::2, :].all()  # rows without keys are of both kinds


def test_rows_without_keys_under_a_select_and_beside_a_log_sum_exp():
    """For such a row, jax.nn's log-sum-exp is -inf and its output NaN, unless the bits leave no key at all."""

    def drop(q, k, v, key):
        s = half_empty(products(q, k) / 4)
        lse = jax.nn.logsumexp(s, -1, keepdims=True)
        p = jnp.exp(s - lse)
        return weigh(jnp.where(bits(key, rate=0.9), p, 0), v), lse

    assert_fused(drop, *qkv(), KEY)


def test_rows_without_keys_under_a_select_before_a_division():
    """A row of which the bits keep nothing is 0 / NaN."""

    def drop(q, k, v, key):
        s = half_empty(products(q, k) / 4)
        e = jnp.exp(s - s.max(-1, keepdims=True))
        return weigh(jnp.where(bits(key, rate=0.9), e, 0), v) / e.sum(-1, keepdims=True)

    assert "keep_mask" in assert_fused(drop, *qkv(), KEY)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("layout", ["bhqd", "qhbd"])
def test_a_bias_of_infinities_under_a_select(layout, dtype):
    """A bias may leave out all keys, too; transposed outputs have the same rows."""
    bias = np.where(np.arange(S * T).reshape(S, T) % 7 < 3, -np.inf, 1).astype(np.float32)
    bias[1::2] = -np.inf

    def drop(q, k, v, key, bias):
        p = jax.nn.softmax((products(q, k) / 4).astype(jnp.float32) + bias, -1)
        p = jnp.where(bits(key, rate=0.9), p / 0.1, 0).astype(v.dtype)
        return jnp.einsum(f"bhqk,bhkd->{layout}", p, v)

    tolerance = 2e-5 if dtype == jnp.float32 else 2e-2
    assert "keep_mask" in assert_fused(drop, *qkv(dtype=dtype), KEY, bias, tolerance=tolerance)


def test_a_select_and_a_product_beside_rows_without_keys_stay():
    """The product keeps the NaN of those keys that its bits drop and the select's keep."""

    def drop(q, k, v, key):
        p = jax.nn.softmax(half_empty(products(q, k) / 4), -1)
        return weigh(jnp.where(bits(key, rate=0.9), p, 0) * bits(key + 1, rate=0.9), v)

    assert_left_alone(drop, *qkv(), KEY, words="combine both conditions with `and`")


# --- Masked again ---


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("value", [-jnp.inf, jnp.finfo(jnp.float32).min, -1e9])
def test_masked_again_is_left_out(value, gradients):
    def again(q, k, v, key):
        p = jax.nn.softmax(jnp.where(causal(), products(q, k) / 4, value), -1)
        return weigh(jnp.where(causal(), p, 0), v)

    report = assert_fused(again, *qkv(), KEY, gradients=gradients)
    assert "keep_mask" not in report


@pytest.mark.parametrize("value", [jnp.finfo(jnp.float32).min, -1e9])
def test_rows_without_keys_masked_again_are_zero(value):
    mask = jnp.broadcast_to(jnp.arange(T) < jnp.asarray([0, 5])[:, None], (B, T))[:, None, None]

    def again(q, k, v, key):
        p = jax.nn.softmax(jnp.where(mask, products(q, k) / 4, value), -1)
        return weigh(p * mask, v)

    assert_fused(again, *qkv(), KEY)


def test_masked_again_by_another_mask_is_kept():
    def again(q, k, v, key):
        p = jax.nn.softmax(jnp.where(causal(), products(q, k) / 4, -1e9), -1)
        return weigh(jnp.where(jnp.arange(T) % 3 > 0, p, 0), v)

    report = assert_fused(again, *qkv(), KEY, gradients=True)
    assert "keep_mask" in report


@pytest.mark.parametrize("gradients", [False, True])
def test_masked_behind_the_sum_alone_is_kept(gradients):
    """The row sum includes masked keys, so this is not a mask of the scores."""

    def behind(q, k, v, key):
        return weigh(jnp.where(causal(), jax.nn.softmax(products(q, k) / 4, -1), 0), v)

    def above(q, k, v, key):
        s = products(q, k) / 4
        e = jnp.exp(s - s.max(-1, keepdims=True))
        return weigh(jnp.where(causal(), e, 0) / e.sum(-1, keepdims=True), v)

    for function in (behind, above):
        assert "keep_mask" in assert_fused(function, *qkv(), KEY, gradients=gradients)


QUERIES = jnp.asarray([[1, 1, 0, 1, 1, 0, 1, 0], [0] * S], bool)  # all of a batch's are padding, too
KEYS = jnp.asarray([[1] * 7 + [0] * 5, [0] * T], bool)
PADDING = {
    "where and where": lambda m, s: jnp.where(m, jax.nn.softmax(jnp.where(m, s, -1e9), -1), 0),
    "where and times": lambda m, s: m * jax.nn.softmax(jnp.where(m, s, -1e9), -1),
    "added and times": lambda m, s: m * jax.nn.softmax(s + jnp.where(m, 0, -1e9), -1),
    "the lowest number": lambda m, s: jnp.where(m, jax.nn.softmax(jnp.where(m, s, jnp.finfo(jnp.float32).min), -1), 0),
    "arithmetic": lambda m, s: jax.nn.softmax(s + (1 - m) * -1e9, -1) * m,
    "causal, too": lambda m, s: jnp.where(m & causal(), jax.nn.softmax(jnp.where(m & causal(), s, -1e9), -1), 0),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("mask", PADDING)
def test_padding_of_queries_and_keys_masked_again(mask, numbers, gradients):
    def again(q, k, v, queries, keys):
        m = queries[:, None, :, None], keys[:, None, None]
        m = m[0].astype(jnp.int32) * m[1].astype(jnp.int32) > 0 if numbers else m[0] & m[1]
        return weigh(PADDING[mask](m, products(q, k) / 4), v)

    report = assert_fused(again, *qkv(), QUERIES, KEYS, gradients=gradients)
    assert "keep_mask" not in report and "stays" not in report, report


@pytest.mark.parametrize(
    "clears",
    [
        lambda p, queries, keys: jnp.where(queries | keys, p, 0),
        lambda p, queries, keys: jnp.where(queries & ~keys, p, 0),
        lambda p, queries, keys: jnp.where(queries & keys & (jnp.arange(T) % 3 > 0), p, 0),
    ],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_padding_masked_again_otherwise_is_kept(clears, gradients):
    def again(q, k, v, queries, keys):
        queries, keys = queries[:, None, :, None], keys[:, None, None]
        p = jax.nn.softmax(jnp.where(queries & keys, products(q, k) / 4, -1e9), -1)
        return weigh(clears(p, queries, keys), v)

    report = assert_fused(again, *qkv(), QUERIES, KEYS, gradients=gradients)
    assert "keep_mask" in report, report


@pytest.mark.parametrize("gradients", [False, True])
def test_padding_masked_again_beside_a_bias_stays_arithmetic(gradients):
    """The bias may hold larger numbers than the mask. Then rows also sum masked keys, which are cleared afterwards."""

    def again(q, k, v, queries, keys, bias):
        m = queries[:, None, :, None] & keys[:, None, None]
        return weigh(m * jax.nn.softmax(products(q, k) / 4 + bias + jnp.where(m, 0, -1e4), -1), v)

    bias = -1e4 * jnp.asarray(np.random.default_rng(3).random((S, T)) > 0.5, jnp.float32)
    report = assert_fused(again, *qkv(), QUERIES, KEYS, bias, gradients=gradients)
    assert "keep_mask" in report, report


def test_rows_cleared_by_the_mask_of_queries_alone_need_no_keep_mask():
    def again(q, k, v, queries, keys):
        s = jnp.where(keys[:, None, None], products(q, k) / 4, -1e9)
        return weigh(jnp.where(queries[:, None, :, None], jax.nn.softmax(s, -1), 0), v)

    assert "keep_mask" not in assert_fused(again, *qkv(), QUERIES, KEYS, gradients=True)


def test_masked_again_and_dropped():
    def again(q, k, v, key):
        p = jax.nn.softmax(jnp.where(causal(), products(q, k) / 4, -1e9), -1)
        return weigh(flax(jnp.where(causal(), p, 0), key), v)

    assert_fused(again, *qkv(), KEY, gradients=True)


def test_masked_again_and_scaled_stays():
    def again(q, k, v, key):
        p = jax.nn.softmax(jnp.where(causal(), products(q, k) / 4, -1e9), -1)
        return weigh(jnp.where(causal(), 2 * p, 0), v)

    fused(again, *qkv(), KEY)
