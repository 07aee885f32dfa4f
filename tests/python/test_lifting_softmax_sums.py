"""Values that are weighted by a sum or difference of several softmaxes, as in the Differential Transformer: each one is
fused. Compared with XLA's results of the original, in both directions.
"""

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lifting_rules import D, H, S, T, assert_fused, assert_left_alone, fused, products, qkv, weigh

RNG = np.random.default_rng(17)
CAUSAL = jnp.arange(T) <= jnp.arange(S)[:, None] + 2
KEPT = jnp.asarray(RNG.random((H, S, T)) < 0.8)
NUMBER, NUMBERS = jnp.asarray(0.3, jnp.float32), jnp.linspace(-0.5, 0.5, H, dtype=jnp.float32)


def softmax(q, k, low=-1e9):
    return jax.nn.softmax(jnp.where(CAUSAL, products(q, k) / 4, low), -1)


def operands(dtype=jnp.float32):
    """Queries, keys and values, and the queries and keys of another softmax."""
    q, k, v = qkv(dtype=dtype)
    return q, k, v, jnp.flip(q, 2) + 0.25, jnp.flip(k, 2) - 0.25


def check(function, *arguments, gradients, count=2, tolerance=2e-5):
    """All attentions are fused, each with its gradient."""
    candidates, report = fused(function, *arguments, gradients=gradients, tolerance=tolerance)
    assert len(candidates) == count and all(candidate.fused for candidate in candidates), report


COMBINED = {
    "difference": lambda p, r, w: p - r,
    "sum": lambda p, r, w: p + r,
    "mean": lambda p, r, w: (p + r) / 2,
    "negative first": lambda p, r, w: -p + r,
    "weighted difference": lambda p, r, w: p - w * r,
    "both weighted": lambda p, r, w: (1 - w) * p + w * r,
    "scaled difference": lambda p, r, w: 0.5 * (p - w * r),
    "cleared rows": lambda p, r, w: jnp.where(jnp.arange(S)[:, None] < 5, p - w * r, 0),
    "dropout": lambda p, r, w: jnp.where(KEPT, p + r, 0) / 0.8,
}


@pytest.mark.parametrize("weight", [NUMBER, NUMBERS[:, None, None]], ids=["number", "heads"])
@pytest.mark.parametrize("name", COMBINED)
@pytest.mark.parametrize("gradients", [False, True])
def test_each_softmax_of_a_sum_is_fused(name, weight, gradients):
    def attention(w, q, k, v, q2, k2):
        return weigh(COMBINED[name](softmax(q, k), softmax(q2, k2), w), v)

    check(attention, weight, *operands(), gradients=gradients)


@pytest.mark.parametrize("gradients", [False, True])
def test_the_gradient_by_the_values_of_a_difference(gradients):
    """Of the arguments, the first three are differentiated."""

    def attention(v, q2, k2, q, k):
        return weigh(softmax(q, k, -jnp.inf) - 0.3 * softmax(q2, k2, -jnp.inf), v)

    q, k, v, q2, k2 = operands()
    check(attention, v, q2, k2, q, k, gradients=gradients)


@pytest.mark.parametrize("mask", [lambda p: jnp.where(KEPT, p, 0), lambda p: jnp.where(KEPT, p / 0.8, 0)])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_masked_difference(mask, gradients):
    def attention(w, q, k, v, q2, k2):
        return weigh(mask(softmax(q, k) - w * softmax(q2, k2)), v)

    check(attention, NUMBER, *operands(), gradients=gradients)


@pytest.mark.parametrize("divides", [False, True])
def test_weights_before_a_mask_that_may_be_infinite_where_it_keeps_nothing_stay(divides):
    def attention(q, k, v, kept, w):
        p = softmax(q, k) / w[:, None, None] if divides else softmax(q, k) * w[:, None, None]
        return weigh(jnp.where(kept, p, 0), v)

    w = jnp.asarray([0.0 if divides else jnp.inf, 1.0])
    assert_left_alone(attention, *qkv(), KEPT.at[0].set(False), w)


@pytest.mark.parametrize("by", ["a quotient", "a product", "NaN"])
def test_rows_that_a_mask_clears_are_0_for_any_weight(by):
    """1 / (the number of keys that a mask keeps) is infinite if it keeps none at all."""

    def attention(q, k, v, kept, count):
        p = softmax(q, k) / count if by == "a quotient" else softmax(q, k) * (1 / count if by == "a product" else count)
        return weigh(jnp.where(kept, p, 0), v)

    count = jnp.float32(jnp.nan if by == "NaN" else 0)
    assert_fused(attention, *qkv(), jnp.zeros_like(KEPT), count)
    assert_fused(attention, *qkv(), jnp.zeros_like(KEPT), jnp.float32(3))


@pytest.mark.parametrize("mask", [KEPT, ~KEPT], ids=["its mask", "another mask"])
def test_the_gradient_of_weights_before_a_mask(mask):
    """With the mask of the forward pass, it is a sum over the output; with another mask, it is not."""

    @jax.custom_vjp
    def attention(w, q, k, v):
        return weigh(jnp.where(KEPT, w * softmax(q, k), 0), v)

    def forward(w, q, k, v):
        p = softmax(q, k)
        return weigh(jnp.where(KEPT, w * p, 0), v), (w, q, k, v, p)

    def backward(residuals, d_out):
        w, q, k, v, p = residuals
        d_weighted = jnp.einsum("bhqd,bhkd->bhqk", d_out, v)
        d_p = w * jnp.where(KEPT, d_weighted, 0)
        d_s = jnp.where(CAUSAL, p * (d_p - (p * d_p).sum(-1, keepdims=True)), 0) / 4
        d_w = (p * jnp.where(mask, d_weighted, 0)).sum()
        d_v = jnp.einsum("bhqk,bhqd->bhkd", jnp.where(KEPT, w * p, 0), d_out)
        return d_w, weigh(d_s, k), jnp.einsum("bhqk,bhqd->bhkd", d_s, q), d_v

    attention.defvjp(forward, backward)

    def first(q, w, k, v):  # all but the last are differentiated
        return attention(w, q, k, v)

    candidates, report = fused(first, qkv()[0], NUMBER, *qkv()[1:], gradients=True)
    assert candidates[0].fused == (mask is KEPT), report


@pytest.mark.parametrize("gradients", [False, True])
def test_three_softmaxes(gradients):
    def attention(q, k, v, q2, k2):
        return weigh(softmax(q, k) - 0.3 * softmax(q2, k2) + 0.1 * softmax(q + q2, k2), v)

    check(attention, *operands(), gradients=gradients, count=3)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_recomputed_difference(gradients):
    attention = lambda q, k, v: weigh(softmax(q, k) - 0.3 * softmax(jnp.sin(q), jnp.cos(k)), v)
    check(jax.checkpoint(attention), *qkv(), gradients=gradients, count=4 if gradients else 2)


@pytest.mark.parametrize("combine", [lambda p, r: p - jnp.bfloat16(0.3) * r, lambda p, r: 0.7 * p + r])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_difference_in_bf16(combine, gradients):
    def attention(q, k, v, q2, k2):
        return weigh(combine(softmax(q, k), softmax(q2, k2)).astype(jnp.bfloat16), v)

    check(attention, *operands(jnp.bfloat16), gradients=gradients, tolerance=3e-2)


def test_nearly_equal_softmaxes_in_bf16_are_subtracted_before_they_are_rounded():
    """Rounded outputs would differ from each other by as much as their rounding."""

    def attention(q, k, v, k2):
        p, r = (jax.nn.softmax(products(q, x).astype(jnp.float32) / 4, -1) for x in (k, k2))
        return weigh((p - r).astype(v.dtype), v)

    q, k, v = qkv(dtype=jnp.bfloat16)
    arguments = q, k, v + 8, (k * jnp.bfloat16(1.05)).astype(jnp.bfloat16)
    mine = flashlift.jax.fuse(attention)
    got = np.asarray(mine(*arguments), np.float32)
    want = np.asarray(attention(*(x.astype(jnp.float32) for x in arguments)))
    assert mine.report.fused_count == 2
    assert np.abs(got - want).max() < 0.01 * np.abs(want).max()


def test_terms_that_are_read_elsewhere_stay():
    """The three products are one again."""

    def attention(q, k, v, q2, k2):
        p, r, u = softmax(q, k), softmax(q2, k2), softmax(q + q2, k2)
        return weigh(p - 0.3 * r + u, v), p, r, u

    assert_left_alone(attention, *operands(), words="elsewhere")


def test_a_softmax_minus_a_table_stays():
    table = jnp.asarray(RNG.standard_normal((H, S, T)), jnp.float32)
    assert_left_alone(lambda q, k, v: weigh(softmax(q, k) - table, v), *qkv())


def test_one_softmax_minus_its_square_stays():
    def attention(q, k, v):
        p = softmax(q, k)
        return weigh(p - p * p, v)

    assert_left_alone(attention, *qkv())


def test_a_difference_in_the_scores_of_another_attention():
    """Its products stay, because the module returns their probabilities."""

    def attention(q, k, v, q2, k2):
        p, r = softmax(q, k), softmax(q2, k2)
        of_keys = weigh(p - 0.3 * r, v)
        s = products(q, k[:, :, :D]) + of_keys
        return weigh(jax.nn.softmax(s, -1), v[:, :, :D]), p, r

    candidates, report = fused(attention, *operands())
    assert any(candidate.fused for candidate in candidates), report


@pytest.mark.parametrize("returned", [(0, 1), (0,), (1,), ()])
def test_a_difference_whose_product_is_a_multiplication_and_a_sum(returned):
    """The module returns some of the probabilities, whose attention stays: what was read as products of it is restored,
    unless the other attention needs it.
    """

    def attention(q, k, v, q2, k2):
        p = softmax(q, k), softmax(q2, k2)
        return ((p[0] - 0.3 * p[1])[..., None] * v[:, :, None]).sum(-2), *(p[i] for i in returned)

    candidates, report = fused(attention, *operands())
    assert [candidate.fused for candidate in candidates].count(True) == 2 - len(returned), report
