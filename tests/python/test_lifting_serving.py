"""Modules exported for serving: products in branches by platform, 8-bit caches with scales, one softmax over a cache
and new keys. Compared with XLA's results of the original.
"""

import flashlift.jax
import flashlift.stablehlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lifting_reasons import HEAD, case, module, output, softmax
from test_lifting_rules import D, H, S, T, assert_fused, assert_left_alone, causal, fused, products, qkv, weigh

RNG = np.random.default_rng(11)
B = 2


def draw(*shape):
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


# --- Branches by platform ---


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_an_export_for_several_platforms(dtype):
    q = jax.ShapeDtypeStruct((2, 8, 4, 16), dtype)
    attention = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True))
    text = jax.export.export(attention, platforms=("cpu", "cuda", "tpu"))(q, q, q).mlir_module()
    assert "stablehlo.case" in text
    result = flashlift.stablehlo.fuse(text)
    assert [c.fused for c in result.candidates] == [True], result.candidates


ZERO = "\n  %zero = stablehlo.constant dense<0.0> : tensor<f32>\n"
SCORES = case("%s", "%q, %k, contracting_dims = [1] x [1]", "(tensor<8x16xf32>, tensor<8x16xf32>)", "tensor<8x8xf32>")


def test_equal_branches_are_one():
    result = flashlift.stablehlo.fuse(module(ZERO, SCORES, softmax(), output(), head=HEAD))
    assert result.candidates[0].fused, result.candidates
    assert "case" not in result.module


@pytest.mark.parametrize(
    "one, other",
    [
        ("contracting_dims = [1] x [1]", "contracting_dims = [1] x [1], precision = [HIGH, HIGH]"),
        ("%q, %k", "%q, %v"),
        ("%q, %k", "%k, %q"),
    ],
)
def test_branches_that_differ_stay(one, other):
    first, second = SCORES.split("}, {")
    assert one in second
    text = module(ZERO, first + "}, {" + second.replace(one, other), softmax(), output(), head=HEAD)
    result = flashlift.stablehlo.fuse(text)
    assert not any(c.fused for c in result.candidates)
    assert "in a `stablehlo.case`" in result.candidates[0].reason


# --- Scales of 8-bit caches ---


def cache():
    """q, keys and values of 8 bits, and their scales, one number per key."""
    q, _, _ = qkv()
    integers = [jnp.asarray(RNG.integers(-127, 128, (B, H, T, D)), jnp.int8) for _ in range(2)]
    scales = [jnp.asarray(RNG.random((B, H, T)) * 0.02 + 0.001, jnp.float32) for _ in range(2)]
    return q, integers[0], integers[1], *scales


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_scales_on_scores_and_probabilities(dtype):
    def attention(q, k, v, k_scale, v_scale):
        s = products(q.astype(dtype), k.astype(dtype)).astype(jnp.float32) * k_scale[:, :, None] / 3
        p = jax.nn.softmax(jnp.where(causal(), s, -1e30), -1)
        return weigh((p * v_scale[:, :, None]).astype(dtype), v.astype(dtype))

    assert_fused(attention, *cache(), tolerance=2e-5 if dtype == jnp.float32 else 2e-2)


def test_scales_on_grouped_heads():
    q, v, scale = draw(B, 2, 3, S, D), draw(B, 2, T, D), draw(B, 2, T)

    def attention(q, v, scale):
        p = jax.nn.softmax(jnp.einsum("bghqd,bgkd->bghqk", q, v), -1)
        return jnp.einsum("bghqk,bgkd->bghqd", p * scale[:, :, None, None], v)

    assert_fused(attention, q, v, scale)


W = draw(B, H, max(S, T), T)
NOT_OF_KEYS = {
    "of queries and keys": lambda p: p * W[:, :, :S],
    "of queries and keys, for all heads": lambda p: p * W[0, 0, :S],
    "of the probabilities": lambda p: p * p,
    "of their maximum over queries": lambda p: p * p.max(2, keepdims=True),
}


@pytest.mark.parametrize("name", NOT_OF_KEYS)
def test_weights_that_are_no_scales_of_keys_stay(name):
    assert_left_alone(lambda q, k, v: weigh(NOT_OF_KEYS[name](jax.nn.softmax(products(q, k), -1)), v), *qkv())


def test_scales_in_f16_stay():
    """Their product with values may overflow although that with probabilities does not."""
    q, k, v = qkv(dtype=jnp.float16)
    scale = jnp.full((B, H, T), 6e4, jnp.float16)
    assert_left_alone(lambda q, k, v: weigh(jax.nn.softmax(products(q, k), -1) * scale[:, :, None], v), q, k, v)


# --- One softmax over two parts of the keys ---

N = 5  # new keys


def parts(queries=16):
    _, k, v = qkv()
    return draw(B, H, queries, D), k, v, draw(B, H, N, D), draw(B, H, N, D)


def scores(q, k, new_k):
    return products(q, k) / 3, products(q, new_k) / 3


def of_concatenated(q, k, v, new_k, new_v, mask=lambda x, y: (x, y)):
    p = jax.nn.softmax(jnp.concatenate(mask(*scores(q, k, new_k)), -1), -1)
    return weigh(p[..., :T], v) + weigh(p[..., T:], new_v)


def of_statistics(q, k, v, new_k, new_v, mask=lambda x, y: (x, y), behind=True):
    x, y = mask(*scores(q, k, new_k))
    m = jnp.maximum(x.max(-1, keepdims=True), y.max(-1, keepdims=True))
    e, f = jnp.exp(x - m), jnp.exp(y - m)
    z = e.sum(-1, keepdims=True) + f.sum(-1, keepdims=True)
    if behind:
        return (weigh(e, v) + weigh(f, new_v)) / z
    return weigh(e / z, v) + weigh(f / z, new_v)


MASKS = {
    "nothing": lambda x, y: (x, y),
    "lengths of the cache": lambda x, y: (jnp.where(jnp.arange(T) < 7, x, -1e30), y),
    "new keys, causal": lambda x, y: (x, jnp.where(jnp.arange(16)[:, None] >= jnp.arange(N), y, -1e30)),
    "both": lambda x, y: (jnp.where(jnp.arange(T) < 7, x, -1e30), jnp.where(jnp.arange(N) < 3, y, -1e30)),
    "by -inf": lambda x, y: (jnp.where(jnp.arange(T) < 7, x, -jnp.inf), y),
    "capped": lambda x, y: (30 * jnp.tanh(x / 30), 30 * jnp.tanh(y / 30)),
}


@pytest.mark.parametrize("of", [of_concatenated, of_statistics, lambda *x, **y: of_statistics(*x, behind=False, **y)])
@pytest.mark.parametrize("mask", MASKS)
def test_a_cache_and_new_keys(of, mask):
    report = assert_fused(lambda *x: of(*x, mask=MASKS[mask]), *parts())
    assert f"softmax over {T + N} keys" in report


def test_few_queries_do_not_pay_for_the_copy():
    assert_left_alone(of_concatenated, *parts(queries=1), words="dynamic_update_slice")


def halves(p):
    return p[..., :T], p[..., T:]


NEAR_MISSES = {
    "other order of values": lambda p, x, y: weigh(p[..., N:], x) + weigh(p[..., :N], y),
    "overlapping": lambda p, x, y: weigh(p[..., 1 : T + 1], x) + weigh(p[..., T:], y),
    "the difference": lambda p, x, y: weigh(p[..., :T], x) - weigh(p[..., T:], y),
    "twice the first": lambda p, x, y: weigh(p[..., :T], x) + weigh(p[..., :T], x),
    "one scaled": lambda p, x, y: 2 * weigh(p[..., :T], x) + weigh(p[..., T:], y),
    "other divisors": lambda p, x, y: weigh(p[..., :T], x) / 2 + weigh(p[..., T:], y) / 3,
    "one transposed": lambda p, x, y: weigh(p[..., :T], x) + weigh(p[..., T:], y)[:, ::-1],
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_sums_of_other_parts(name):
    """Fused or not, they give XLA's results."""

    def attention(q, k, v, new_k, new_v):
        return NEAR_MISSES[name](jax.nn.softmax(jnp.concatenate(scores(q, k, new_k), -1), -1), v, new_v)

    fused(attention, *parts())


OTHER_STATISTICS = {
    "maximum of one": lambda x, y: (x.max(-1, keepdims=True), None),
    "sum of one": lambda x, y: (None, jnp.exp(x).sum(-1, keepdims=True)),
    "minimum": lambda x, y: (jnp.minimum(x.min(-1, keepdims=True), y.min(-1, keepdims=True)), None),
    "sum of maxima": lambda x, y: (x.max(-1, keepdims=True) + y.max(-1, keepdims=True), None),
    "one counted twice": lambda x, y: (None, jnp.exp(x).sum(-1, keepdims=True) + 2 * jnp.exp(y).sum(-1, keepdims=True)),
    "maximum of sums": lambda x, y: (
        None,
        jnp.maximum(jnp.exp(x).sum(-1, keepdims=True), jnp.exp(y).sum(-1, keepdims=True)),
    ),
}


@pytest.mark.parametrize("name", OTHER_STATISTICS)
def test_other_statistics_of_two_parts(name):
    def attention(q, k, v, new_k, new_v):
        x, y = scores(q, k, new_k)
        m, z = OTHER_STATISTICS[name](x, y)
        m = 0 if m is None else m
        e, f = jnp.exp(x - m), jnp.exp(y - m)
        z = e.sum(-1, keepdims=True) + f.sum(-1, keepdims=True) if z is None else z
        return (weigh(e, v) + weigh(f, new_v)) / z

    fused(attention, *parts())


MASKED = jnp.asarray(RNG.random((B, 1, 16, T + N)) > 0.5).at[:, :, 3].set(True)
ONE_SIDED = {
    "the first": lambda x, y: (jnp.where(MASKED[..., :T], -jnp.inf, x), y),
    "the second": lambda x, y: (x, jnp.where(MASKED[..., T:], -jnp.inf, y)),
    "the other way round": lambda x, y: (
        jnp.where(MASKED[..., :T], -jnp.inf, x),
        jnp.where(MASKED[..., T:], y, -jnp.inf),
    ),
    "by other numbers": lambda x, y: (jnp.where(MASKED[..., :T], -1e9, x), jnp.where(MASKED[..., T:], y, -1e4)),
}


@pytest.mark.parametrize("function", [of_concatenated, of_statistics])
@pytest.mark.parametrize("mask", ONE_SIDED.values(), ids=ONE_SIDED)
def test_parts_masked_by_selects_either_way_round(mask, function):
    assert_fused(lambda *x: function(*x, mask=mask), *parts())


def test_other_scores_in_the_second_part():
    def attention(q, k, v, new_k, new_v):
        return of_concatenated(q, k, v, new_k, new_v, mask=lambda x, y: (x, 2 * y))

    fused(attention, *parts())
    fused(lambda q, *x: of_concatenated(q, *x, mask=lambda a, b: (a, b + q.sum(-1, keepdims=True))), *parts())


def test_queries_that_differ():
    def attention(q, k, v, new_k, new_v):
        p = jax.nn.softmax(jnp.concatenate([products(q, k), products(q + 1, new_k)], -1), -1)
        return weigh(p[..., :T], v) + weigh(p[..., T:], new_v)

    fused(attention, *parts())


# --- Renormalised ---

KEEP = jnp.asarray(RNG.random((B, 1, S, T)) > 0.4).at[0, 0, 2].set(False)


def renormalised(p, eps=0.0):
    return p / (p.sum(-1, keepdims=True) + eps)


EACH_ROW = jnp.broadcast_to(KEEP | (jnp.arange(T) == 3), (B, H, S, T))
RENORMALISED = {
    "as it is": lambda s, keep: renormalised(jax.nn.softmax(s, -1)),
    "masked": lambda s, keep: renormalised(jax.nn.softmax(s, -1) * keep),
    "masked by a select": lambda s, keep: renormalised(jnp.where(keep, jax.nn.softmax(s, -1), 0)),
    "masked again": lambda s, keep: renormalised(jnp.where(keep, jax.nn.softmax(jnp.where(keep, s, -jnp.inf), -1), 0)),
    "masked by a number, and again": lambda s, keep: renormalised(jax.nn.softmax(jnp.where(keep, s, -1e9), -1) * keep),
}


@pytest.mark.parametrize("name", RENORMALISED)
@pytest.mark.parametrize("keep", [KEEP, EACH_ROW])
def test_renormalised_probabilities(name, keep):
    """A row without keys is 0 / 0."""
    assert_fused(lambda q, k, v, keep: weigh(RENORMALISED[name](products(q, k) / 3, keep), v), *qkv(), keep)


@pytest.mark.parametrize("name", RENORMALISED)
def test_gradients_of_renormalised_probabilities(name):
    fused(lambda q, k, v: weigh(RENORMALISED[name](products(q, k) / 3, EACH_ROW), v), *qkv(), gradients=True)


OTHERWISE = {
    "a guard that may act": lambda s: renormalised(jax.nn.softmax(s, -1) * KEEP, 1e-9),
    "another sum": lambda s: jax.nn.softmax(s, -1) / jax.nn.softmax(2 * s, -1).sum(-1, keepdims=True),
    "a sum of squares": lambda s: (lambda p: p / (p * p).sum(-1, keepdims=True))(jax.nn.softmax(s, -1)),
    "over the queries": lambda s: (lambda p: p / p.sum(-2, keepdims=True))(jax.nn.softmax(s, -1)),
    "a divisor of zero": lambda s: renormalised(jnp.exp(s) / jnp.maximum(s.max(-1, keepdims=True), 0)),
    "a row sum of fewer keys": lambda s: renormalised(jnp.exp(s) / (jnp.exp(s) * KEEP).sum(-1, keepdims=True)),
    "of some keys": lambda s: (lambda p: p / p[..., :4].sum(-1, keepdims=True))(jax.nn.softmax(s, -1)),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_divided_by_something_else(name):
    assert_left_alone(lambda q, k, v: weigh(OTHERWISE[name](products(q, k)), v), *qkv())


# --- The log-sum-exp with sinks ---


def with_sinks(scores, sinks):
    return jnp.concatenate([scores, jnp.broadcast_to(sinks[None, :, None, None], (*scores.shape[:3], 1))], -1)


def test_the_log_sum_exp_of_keys_and_sinks():
    def attention(q, k, v, sinks):
        s = with_sinks(products(q, k), sinks)
        return weigh(jax.nn.softmax(s, -1)[..., :T], v), jax.nn.logsumexp(s, -1)

    report = assert_fused(attention, *qkv(), draw(H))
    assert "sinks" in report and "lse" in report


@pytest.mark.parametrize("of", [lambda s, sinks: s, lambda s, sinks: with_sinks(s, 2 * sinks)])
def test_the_log_sum_exp_of_other_terms_stays(of):
    def attention(q, k, v, sinks):
        s = products(q, k)
        return weigh(jax.nn.softmax(with_sinks(s, sinks), -1)[..., :T], v), jax.nn.logsumexp(of(s, sinks), -1)

    assert_left_alone(attention, *qkv(), draw(H))


READ_BESIDE = {
    "probabilities": lambda q, k, v, new_k, new_v: (
        lambda p: (weigh(p[..., :T], v) + weigh(p[..., T:], new_v), p.max(-1))
    )(jax.nn.softmax(jnp.concatenate(scores(q, k, new_k), -1), -1)),
    "the first part's maximum": lambda q, k, v, new_k, new_v: (
        lambda x, y: (
            lambda e, f: (weigh(e, v) + weigh(f, new_v)) / (e.sum(-1, keepdims=True) + f.sum(-1, keepdims=True))
        )(jnp.exp(x - x.max(-1, keepdims=True)), jnp.exp(y - x.max(-1, keepdims=True)))
    )(*scores(q, k, new_k)),
}


@pytest.mark.parametrize("name", READ_BESIDE)
def test_parts_whose_scores_something_else_reads_stay(name):
    """The module would have to compute the scores in addition to the call."""
    assert_left_alone(READ_BESIDE[name], *parts())
