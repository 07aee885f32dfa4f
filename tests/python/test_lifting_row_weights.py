"""Rows of probabilities that are weighted or set to 0 after the softmax (docs/design.md, "Rearranged"), and other ways
to write exponentials and sums. Compared with XLA's results of the original, in both directions.
"""

import functools

import flashlift.stablehlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lifting_rules import (
    LOWEST,
    SOME,
    B,
    D,
    H,
    S,
    T,
    assert_fused,
    assert_left_alone,
    fused,
    products,
    qkv,
    weigh,
)

RNG = np.random.default_rng(13)
PADDED = jnp.asarray(RNG.random((B, S)) > 0.4)
KEYS = jnp.asarray(RNG.random((B, T)) > 0.3).at[:, 0].set(True)
ROWS = jnp.asarray(RNG.standard_normal((B, S)), jnp.float32)
HEADS = jnp.asarray([0, 1] + [1] * (H - 2), jnp.int32)


def weighted(by):
    """Attention whose probabilities are changed by `by`; its scores contain the padding mask."""

    def attention(q, k, v):
        s = jnp.where(KEYS[:, None, None], products(q, k) / 4, -1e9)
        return weigh(by(jax.nn.softmax(s, -1), s).astype(v.dtype), v)

    return attention


WEIGHTS = {
    "queries that are padding": lambda p, s: p * PADDED[:, None, :, None],
    "cleared queries": lambda p, s: jnp.where(PADDED[:, None, :, None], p, 0),
    "queries cleared the other way": lambda p, s: jnp.where(~PADDED[:, None, :, None], 0, p),
    "heads": lambda p, s: p * HEADS.astype(p.dtype)[:, None, None],
    "heads and queries": lambda p, s: p * (ROWS[:, None] * jnp.arange(1.0, H + 1)[:, None])[..., None].astype(p.dtype),
    "a number": lambda p, s: 2.5 * p,
    "heads, as a product": lambda p, s: jnp.einsum("bhqk,h->bhqk", p, HEADS.astype(p.dtype)),
    "queries, as a product": lambda p, s: jnp.einsum("bq,bhqk->bhqk", ROWS.astype(p.dtype), p),
    "heads and batches, as a product": lambda p, s: jnp.einsum("bhqk,hb->bhqk", p, ROWS[:, :H].T.astype(p.dtype)),
    "ones, as a product": lambda p, s: jnp.einsum("...hqk,h->...hqk", p, jnp.ones((3, H), p.dtype)[1]),
    "a number, as a product": lambda p, s: jnp.einsum("bhqk,->bhqk", p, jnp.asarray(2.5, p.dtype)),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("by", WEIGHTS)
def test_weights_of_rows_move_behind_the_values(by, dtype):
    assert_fused(weighted(WEIGHTS[by]), *qkv(dtype=dtype), tolerance=2e-5 if dtype == jnp.float32 else 3e-2)


@pytest.mark.parametrize("by", WEIGHTS)
def test_weights_of_rows_in_gradients(by):
    assert_fused(weighted(WEIGHTS[by]), *qkv(), gradients=True)


@pytest.mark.parametrize("by", ["a number", "heads", "heads and batches, as a product"])
def test_weights_of_heads_in_a_gradient_without_the_output(by):
    """They move to the values, which then are computed behind the product that becomes the call."""
    q, k, v = qkv()
    d_out = jnp.cos(jnp.arange(B * S * H * D, dtype=jnp.float32)).reshape(B, S, H, D)
    loss = lambda *x: jnp.vdot(weighted(WEIGHTS[by])(*x), d_out)
    assert_fused(jax.grad(loss, argnums=(0, 1, 2)), q, k, v)


@pytest.mark.parametrize(
    "by",
    [
        lambda p, s: p * s.max(-1, keepdims=True),
        lambda p, s: jnp.where(s.max(-1, keepdims=True) > 1, p, 0),
        lambda p, s: p * p.max(-1, keepdims=True),
        lambda p, s: p * p.sum(1, keepdims=True),
        lambda p, s: jnp.einsum("bhqk,bhq->bhqk", p, s.max(-1)),
        lambda p, s: jnp.einsum("bhqk,bqk->bhqk", p, p.sum(1)),
    ],
)
def test_weights_that_are_computed_from_scores_stay(by):
    assert_left_alone(weighted(by), *qkv())


@pytest.mark.parametrize("gradients", [False, True])
def test_products_of_queries_and_keys_that_sum_nothing_are_scores(gradients):
    def attention(q, k, v):
        return weigh(jax.nn.softmax(jnp.einsum("bhq,bhk->bhqk", q[..., 0], k[..., 0]), -1), v)

    assert_fused(attention, *qkv(), gradients=gradients)


def test_products_that_sum_nothing_beside_an_attention_stay_as_they_are():
    def function(q, k, v):
        return weigh(jax.nn.softmax(products(q, k) / 4, -1), v), jnp.einsum("bhqd,h->bhqd", jnp.exp(q), k[0, :, 0, 0])

    text = jax.jit(function).lower(*qkv()).as_text()
    weights = [line for line in text.splitlines() if "contracting_dims = [] x []" in line]
    result = flashlift.stablehlo.fuse(text)
    assert result.fused_count == 1 and len(weights) == 1
    assert weights[0].split(":")[1].strip() in result.module


def test_a_gradient_with_other_weights_stays_right():
    @jax.custom_vjp
    def scaled(p):
        return p * PADDED[:, None, :, None]

    scaled.defvjp(lambda p: (scaled(p), ()), lambda _, d: (d * ~PADDED[:, None, :, None],))
    candidates, report = fused(weighted(lambda p, s: scaled(p)), *qkv(), gradients=True)
    assert not any(candidate.fused for candidate in candidates), report


LEARNED = {
    "a number": ((), lambda w: w),
    "heads": ((H,), lambda w: w[:, None, None]),
    "queries": ((B, S), lambda w: w[:, None, :, None]),
    "heads and queries": ((S, H), lambda w: w.T[..., None]),
    "rows": ((B, H, S), lambda w: jax.nn.sigmoid(w)[..., None]),
    "two of heads": ((2, H), lambda w: w[0, :, None, None] * w[1, :, None, None]),
}
VALUES = {  # their product with the probabilities, and whether the heads share them
    "bhkd": (weigh, False),
    "bkhd": (lambda p, v: jnp.einsum("bhqk,bkhd->bqhd", p, v.swapaxes(1, 2)), False),
    "bkd": (lambda p, v: jnp.einsum("bhqk,bkd->bhqd", p, v), True),
}


@pytest.mark.parametrize("of_values", VALUES)
@pytest.mark.parametrize("name", LEARNED)
def test_the_gradient_by_weights_of_rows(name, of_values):
    """It sums p d_p over the keys, which is the sum of out d_out over the depth."""
    shape, spread = LEARNED[name]
    multiply, are_shared = VALUES[of_values]

    def attention(weights, q, k, v):
        p = jax.nn.softmax(jnp.where(KEYS[:, None, None], products(q, k) / 4, -1e9), -1)
        return multiply(p * spread(weights), v[:, 0] if are_shared else v)

    assert_fused(attention, jnp.asarray(RNG.standard_normal(shape), jnp.float32), *qkv(), gradients=True)


@pytest.mark.parametrize(("equation", "shape"), [("h", (H,)), ("hb", (H, B)), ("qh", (S, H)), ("bhq", (B, H, S))])
def test_the_gradient_by_weights_of_rows_that_a_product_applies(equation, shape):
    """It is a product, too, in which neither operand has a dimension of its own."""

    def attention(weights, q, k, v):
        p = jax.nn.softmax(products(q, k) / 4, -1)
        return weigh(jnp.einsum(f"bhqk,{equation}->bhqk", p, weights), v)

    assert_fused(attention, jnp.asarray(RNG.standard_normal(shape), jnp.float32), *qkv(), gradients=True)


@pytest.mark.parametrize("as_product", [False, True])
def test_the_gradient_by_weights_of_rows_in_bf16(as_product):
    def attention(weights, q, k, v):
        p = jax.nn.softmax(products(q, k) / 4, -1)
        return weigh(jnp.einsum("bhqk,h->bhqk", p, weights) if as_product else p * weights[:, None, None], v)

    weights = jnp.asarray(RNG.standard_normal(H), jnp.bfloat16)
    assert_fused(attention, weights, *qkv(dtype=jnp.bfloat16), gradients=True, tolerance=3e-2)


@pytest.mark.parametrize("change", [lambda d, p: d * p * p, lambda d, p: d * jax.lax.rev(p, (3,))])
def test_another_gradient_by_the_weights_stays(change):
    @jax.custom_vjp
    def times(p, weights):
        return p * weights[:, None, None]

    times.defvjp(
        lambda p, weights: (times(p, weights), (p, weights)),
        lambda kept, d: (d * kept[1][:, None, None], change(d, kept[0]).sum((0, 2, 3))),
    )

    def attention(weights, q, k, v):
        return weigh(times(jax.nn.softmax(products(q, k) / 4, -1), weights), v)

    candidates, report = fused(attention, jnp.arange(1.0, H + 1), *qkv(), gradients=True)
    assert not any(candidate.fused for candidate in candidates), report


def test_the_gradient_by_other_weights_stays_right():
    fused(lambda q, k, v: weighted(lambda p, s: p * v[:, :1, :1, :1])(q, k, v), *qkv(), gradients=True)
    by_product = lambda v: lambda p, s: jnp.einsum("bhqk,h->bhqk", p, v[0, :, 0, 0])
    fused(lambda q, k, v: weighted(by_product(v))(q, k, v), *qkv(), gradients=True)


def test_values_alone_converted_in_a_gradient():
    def attention(q, k, v):
        s = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32)
        return weigh(jax.nn.softmax(s / 4, -1), v.astype(jnp.float32)).astype(jnp.bfloat16)

    assert_fused(attention, *qkv(dtype=jnp.bfloat16), gradients=True, tolerance=3e-2)


def test_keys_of_an_image_flattened_for_the_softmax_in_a_gradient():
    def attention(q, k, v):
        s = jnp.einsum("bxyd,bzwd->bxyzw", q, k) / 4
        p = jax.nn.softmax(s.reshape(*s.shape[:3], -1), -1).reshape(s.shape)
        return jnp.einsum("bxyzw,bzwd->bxyd", p, v)

    images = [jnp.asarray(RNG.standard_normal((2, *size, 8)), jnp.float32) for size in ((2, 3), (5, 7), (5, 7))]
    assert_fused(attention, *images, gradients=True)


# --- Exponentials and sums ---


def divided(exponentials, total):
    def attention(q, k, v):
        e = exponentials(products(q, k) / 4)
        return weigh(e / total(e), v)

    return attention


def row_sum(e):
    return e.sum(-1, keepdims=True)


def less_maximum(s):
    return s - s.max(-1, keepdims=True)


@pytest.mark.parametrize(
    "exponentials",
    [
        lambda s: jnp.exp2(less_maximum(s) * np.float32(np.log2(np.e))),
        lambda s: jnp.exp2(np.float32(0.5) * (np.float32(1.5) * less_maximum(s))),
        lambda s: jnp.power(2.0, less_maximum(s)),
        lambda s: jnp.power(np.e, less_maximum(s)),
    ],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_powers_are_exponentials(exponentials, gradients):
    assert_fused(divided(exponentials, row_sum), *qkv(), gradients=gradients)


@jax.custom_jvp
def log2(z):
    return jnp.log2(z)


@log2.defjvp
def derivative_of_log2(primals, tangents):
    """As JAX from 0.11 on writes it."""
    return log2(*primals), tangents[0] / (primals[0] * jnp.log(jnp.full_like(primals[0], 2)))


LOG_SUM_EXPS_OF_BASE_TWO = {
    "log2, derived by one division": lambda m, z: m + log2(z),
    "log2": lambda m, z: m + jnp.log2(z),
    "log2 first": lambda m, z: jnp.log2(z) + m,
    "times a number": lambda m, z: m + jnp.log(z) * np.float32(np.log2(np.e)),
    "divided by a number": lambda m, z: m + jnp.log(z) / np.float32(np.log(2)),
}


def with_log_sum_exp_of_base_two(log_sum_exp):
    def attention(q, k, v):
        s = products(q, k) * np.float32(np.log2(np.e) / 4)
        m = s.max(-1, keepdims=True)
        e = jnp.exp2(s - m)
        return jnp.concatenate([weigh(e / row_sum(e), v), log_sum_exp(m, row_sum(e))], -1)

    return attention


@pytest.mark.parametrize("name", LOG_SUM_EXPS_OF_BASE_TWO)
@pytest.mark.parametrize("gradients", [False, True])
def test_log_sum_exps_of_base_two(name, gradients):
    assert_fused(with_log_sum_exp_of_base_two(LOG_SUM_EXPS_OF_BASE_TWO[name]), *qkv(), gradients=gradients)


@pytest.mark.parametrize(
    "log_sum_exp",
    [
        lambda m, z: m + jnp.log(z),
        lambda m, z: m + 2 * jnp.log2(z),
        lambda m, z: m - jnp.log2(z),
        lambda m, z: m + np.float32(np.log(2)) / jnp.log(z),
    ],
)
def test_other_sums_with_the_logarithm_stay(log_sum_exp):
    assert_left_alone(with_log_sum_exp_of_base_two(log_sum_exp), *qkv())


LOG2_E = np.float32(np.log2(np.e))
EXPONENTS_OF_BASE_TWO = {  # less a logarithm of the row sum; the last two as one number of the row
    "logarithm apart": lambda s, m, log2_z: (s - m) * LOG2_E - log2_z,
    "log-sum-exp": lambda s, m, log2_z: s * LOG2_E - (m * LOG2_E + log2_z),
    "log-sum-exp of base e": lambda s, m, log2_z: s * LOG2_E - jax.nn.logsumexp(s, -1, keepdims=True) * LOG2_E,
}


def less_log_sum_exp_of_base_two(exponent, mask=lambda s: s):
    def attention(q, k, v):
        s = mask(products(q, k) / 4)
        m = s.max(-1, keepdims=True)
        return weigh(jnp.exp2(exponent(s, m, jnp.log2(row_sum(jnp.exp(s - m))))), v)

    return attention


@pytest.mark.parametrize("name", EXPONENTS_OF_BASE_TWO)
@pytest.mark.parametrize("gradients", [False, True])
def test_powers_of_two_less_a_logarithm_of_the_row_sum(name, gradients):
    assert_fused(less_log_sum_exp_of_base_two(EXPONENTS_OF_BASE_TWO[name]), *qkv(), gradients=gradients)


@pytest.mark.parametrize("name", EXPONENTS_OF_BASE_TWO)
@pytest.mark.parametrize("low", [-1e9, LOWEST])
def test_powers_of_two_in_rows_that_a_large_number_masks_whole(name, low):
    """Added to the masked maximum, the logarithm is rounded away; times log2 e, the lowest number is -inf."""
    function = less_log_sum_exp_of_base_two(EXPONENTS_OF_BASE_TWO[name], lambda s: jnp.where(SOME, s, low))
    (assert_fused if name == "logarithm apart" else assert_left_alone)(function, *qkv())


@pytest.mark.parametrize("factor", [0.5, 1.0001])
def test_powers_of_two_less_a_multiple_of_the_logarithm_stay(factor):
    assert_left_alone(less_log_sum_exp_of_base_two(lambda s, m, log2_z: (s - m) * LOG2_E - factor * log2_z), *qkv())


@pytest.mark.parametrize("gradients", [False, True])
def test_powers_of_a_computed_base_beside_another_softmax(gradients):
    """Only the other one shows that the module may hold attention; these scores' exponential is the power."""

    def attention(q, k, v, b):
        s = less_maximum(products(q, k) / 4 + jax.nn.softmax(b))
        e = jnp.power(jnp.sqrt(jnp.full(s.shape, 4.0)), s)
        return weigh(e / row_sum(e), v)

    q, k, v = qkv()
    bias = jnp.asarray(RNG.standard_normal((q.shape[-2], k.shape[-2])), jnp.float32)
    assert_fused(attention, q, k, v, bias, gradients=gradients)


def test_powers_of_less_than_one():
    assert_fused(divided(lambda s: jnp.power(0.5, s.min(-1, keepdims=True) - s), row_sum), *qkv())


def test_a_guard_under_a_scaled_maximum():
    scaled = lambda s: jnp.exp2(less_maximum(s) * np.float32(np.log2(np.e)))
    assert_fused(divided(scaled, lambda e: row_sum(e) + 1e-9), *qkv())
    turned = lambda s: jnp.exp2(less_maximum(s) * np.float32(-1.4))
    assert_left_alone(divided(turned, lambda e: row_sum(e) + 1e-9), *qkv())


@pytest.mark.parametrize(
    "total",
    [
        lambda e: e @ jnp.ones((T, 1)),
        lambda e: jnp.einsum("bhqk,k->bhq", e, jnp.ones(T))[..., None],
        lambda e: jnp.linalg.norm(e, ord=1, axis=-1, keepdims=True),
        lambda e: 1 / row_sum(e) ** -1,
    ],
)
def test_sums_by_products_and_norms(total):
    assert_fused(divided(lambda s: jnp.exp(less_maximum(s)), total), *qkv())


@pytest.mark.parametrize(
    "exponentials, total",
    [
        (lambda s: jnp.exp(less_maximum(s)), lambda e: e @ jnp.arange(1.0, T + 1)[:, None]),
        (
            lambda s: jnp.exp(less_maximum(s)),
            lambda e: jnp.einsum("bhqk,r->bhqk", e, jnp.ones(3)).sum((1, 3))[:, None, :, None],
        ),
        (lambda s: jnp.exp(less_maximum(s)), lambda e: jnp.linalg.norm(e, ord=2, axis=-1, keepdims=True)),
        (lambda s: jnp.exp(less_maximum(s)), lambda e: row_sum(jnp.abs(e - 0.5))),
    ],
)
def test_other_sums_stay(exponentials, total):
    assert_left_alone(divided(exponentials, total), *qkv())


def of_slices(cuts, keepdims=False, is_stable=True):
    """Attention whose row maximum and row sum are those of slices of the keys."""

    def slices(x):
        return [x[..., start:limit] for start, limit in cuts]

    def attention(q, k, v):
        s = products(q, k) / 4
        m = functools.reduce(jnp.maximum, [x.max(-1, keepdims=keepdims) for x in slices(s)])
        e = jnp.exp(s - (m if keepdims else m[..., None])) if is_stable else jnp.exp(s)
        z = functools.reduce(jnp.add, [x.sum(-1, keepdims=keepdims) for x in slices(e)])
        return weigh(e / (z if keepdims else z[..., None]), v)

    return attention


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("cuts", [[(0, 5), (5, T)], [(9, T), (0, 2), (2, 9)]])
def test_sums_and_maxima_of_slices(cuts, keepdims):
    assert_fused(of_slices(cuts, keepdims), *qkv())


@pytest.mark.parametrize("cuts", [[(0, 5), (4, T)], [(0, 5), (6, T)], [(1, 5), (5, T)], [(0, 5), (5, T - 1)]])
def test_sums_of_slices_that_are_not_whole_rows_stay(cuts):
    assert_left_alone(of_slices(cuts, is_stable=False), *qkv())


def test_the_sum_of_other_powers_stays():
    def attention(q, k, v):
        s = less_maximum(products(q, k) / 4)
        return weigh(jnp.power(2.0, s) / row_sum(jnp.power(3.0, s)), v)

    assert_left_alone(attention, *qkv())


def test_half_floats_keep_their_weights():
    # Outputs that were not weighted down might overflow in f16.
    def attention(q, k, v):
        p = jax.nn.softmax(products(q, k) / 4, -1)
        return weigh(p * jnp.float16(1e-3), v * jnp.float16(6e4))

    q, k, v = qkv(dtype=jnp.float16)
    fused(attention, q, k, jnp.ones((B, H, T, D), jnp.float16) + v / 100, tolerance=2e-3)
