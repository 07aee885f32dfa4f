"""Rows without keys, beside sinks and behind several masks: what must be fused, and what the fused call would compute
otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lifting_rules import B, H, S, T, assert_fused, assert_left_alone, fused, products, qkv, sees_itself, weigh

LOGITS = jnp.linspace(-1.0, 1.0, H)
OF_KEYS = jnp.asarray(np.random.default_rng(5).random((B, 1, 1, T)) > 0.4)
OF_QUERIES = jnp.asarray(np.random.default_rng(6).random((B, 1, S, 1)) > 0.5)
SOME = jnp.asarray(np.random.default_rng(5).random((S, T)) > 0.4).at[2].set(False)

# --- Sinks ---


def with_sinks(mask, maximum):
    """Attention whose row sum contains a sink for each head."""

    def function(q, k, v, logits, *more):
        s = mask(products(q, k) / 4, *more)
        sink = logits[None, :, None, None]
        m = maximum(s, sink)
        e = jnp.exp(s - m)
        return weigh(e / (e.sum(-1, keepdims=True) + jnp.exp(sink - m)), v)

    return function


def of_keys(s, sink):
    return s.max(-1, keepdims=True)


MAXIMA = {
    "of both": lambda s, sink: jnp.maximum(s.max(-1, keepdims=True), sink),
    "of keys and 0": lambda s, sink: jnp.maximum(s.max(-1, keepdims=True), 0),
    "of keys, finite": lambda s, sink: jnp.where(jnp.isfinite(of_keys(s, sink)), of_keys(s, sink), 0),
}


@pytest.mark.parametrize("maximum", MAXIMA)
def test_rows_with_sinks_alone_are_zero(maximum):
    assert_fused(with_sinks(lambda s, keep: jnp.where(keep, s, -jnp.inf), MAXIMA[maximum]), *qkv(), LOGITS, SOME)


def test_the_maximum_of_the_keys_alone_beside_sinks():
    """In a row without keys it is -inf, and e^(-inf - -inf) is NaN, where the call gives 0."""
    words = "a row without keys, but with sinks, is not 0"
    infinite = with_sinks(lambda s, keep: jnp.where(keep, s, -jnp.inf), of_keys)
    assert_left_alone(infinite, *qkv(), LOGITS, SOME, words=words)
    one = with_sinks(lambda s, keep: jnp.where(keep, s, -jnp.inf), of_keys)
    assert_left_alone(lambda q, k, v, keep: one(q, k, v, jnp.zeros(H), keep), *qkv(), SOME, words=words)
    assert_left_alone(with_sinks(lambda s, bias: s + bias, of_keys), *qkv(), LOGITS, jnp.zeros(T), words=words)
    assert_fused(with_sinks(lambda s, keep: jnp.where(keep, s, -1e9), of_keys), *qkv(), LOGITS, SOME)
    assert_fused(with_sinks(lambda s: jnp.where(sees_itself(), s, -jnp.inf), of_keys), *qkv(), LOGITS, gradients=True)


# --- Gradients of a log-sum-exp that are not finite where a finite constant masks the whole row ---


@pytest.mark.parametrize(
    "mask",
    [
        lambda s, keep: jnp.where(keep, s, -1e9),
        lambda s, keep: jnp.where(keep, jnp.where(s > -100, s, -1e5), -1e9),
        lambda s, keep: jnp.where(keep, jnp.tanh(s / 5) * 5, -1e9),
        lambda s, keep: jnp.where(keep, s, -1e9) + jnp.linspace(0, 1, T),
    ],
)
def test_a_select_leaves_rows_out_whose_gradient_is_not_finite(mask):
    """e^(1 - lse) is infinite in such a row, so the gradient of lse is NaN; the select gives the scores none."""

    def gated(q, k, v, keep):
        s = mask(products(q, k) / 4, keep)
        gate = 1 / (1 + jnp.exp(1 - jax.nn.logsumexp(s, -1, keepdims=True)))
        return weigh(jax.nn.softmax(s, -1), v) * gate

    assert_fused(gated, *qkv(), SOME, gradients=True)


# --- Gradients beside sinks, in rows whose exponentials overflow ---


def one_more(s, shift):
    e = jnp.exp(s - shift(s))
    return e / (e.sum(-1, keepdims=True) + jnp.exp(-shift(s)))


@pytest.mark.parametrize("shift", [lambda s: s.max(-1, keepdims=True), lambda s: jnp.zeros(())])
def test_gradients_of_softmax_with_one_more(shift):
    """Where the scores are large, or small, e^s or e^-m overflows in f32, and the module gives no numbers."""
    assert_fused(lambda q, k, v: weigh(one_more(products(q, k) / 4, shift), v), *qkv(), gradients=True)


@pytest.mark.parametrize("wrong", [False, True])
def test_gradients_of_softmax_with_one_more_by_hand(wrong):
    @jax.custom_vjp
    def attend(q, k, v):
        return forward(q, k, v)[0]

    def forward(q, k, v):
        e = jnp.exp(products(q, k) / 4)
        return weigh(e / (1 + e.sum(-1, keepdims=True)), v), (q, k, v, e)

    def backward(saved, d_out):
        q, k, v, e = saved
        p = e / (1 + e.sum(-1, keepdims=True))
        d_p = jnp.einsum("bhqd,bhkd->bhqk", d_out, v)
        of_row = e / e.sum(-1, keepdims=True) if wrong else p
        d_s = p * (d_p - (of_row * d_p).sum(-1, keepdims=True)) / 4
        d_k, d_v = (jnp.einsum("bhqk,bhqd->bhkd", *some) for some in ((d_s, q), (p, d_out)))
        return jnp.einsum("bhqk,bhkd->bhqd", d_s, k), d_k, d_v

    attend.defvjp(forward, backward)
    candidates, report = fused(attend, *qkv(), gradients=True)
    assert any(each.fused for each in candidates) != wrong, report


# --- Scores that are clipped far away ---


@jax.custom_vjp
def clip_values(s):
    return jnp.clip(s, -1e8, 1e8)


clip_values.defvjp(lambda s: (clip_values(s), None), lambda saved, d: (d,))


def test_gradients_of_scores_clipped_far_away():
    bias = jnp.where(OF_KEYS, 0, -1e9)
    clipped = lambda clip: lambda q, k, v, bias: weigh(jax.nn.softmax(clip(products(q, k) / 4 + bias), -1), v)
    assert_fused(clipped(lambda s: jnp.clip(s, -1e8, 1e8)), *qkv(), bias, gradients=True)
    assert_fused(clipped(lambda s: jnp.maximum(s, -1e8)), *qkv(), bias, gradients=True)
    candidates, report = fused(clipped(clip_values), *qkv(), bias, gradients=True)
    assert not any(each.fused for each in candidates), report  # clipped scores have a gradient


# --- Masks of which some are applied again ---


def masked_again(low, again):
    def function(q, k, v, of_keys, of_queries):
        p = jax.nn.softmax(jnp.where(of_keys & of_queries, products(q, k) / 4, low), -1)
        return weigh(again(p, of_keys, of_queries), v)

    return function


@pytest.mark.parametrize("low", [-1e9, float(np.finfo(np.float32).min)])
def test_a_part_of_finite_masks_again_stays_a_mask(low):
    """A row that the queries' mask leaves without keys has equal weights, of which the keys' mask then clears some."""
    masks = OF_KEYS, OF_QUERIES
    part = assert_fused(masked_again(low, lambda p, of_keys, of_queries: p * of_keys), *qkv(), *masks, gradients=True)
    assert "keep_mask" in part
    whole = lambda p, of_keys, of_queries: p * (of_keys & of_queries)
    assert "keep_mask" not in assert_fused(masked_again(low, whole), *qkv(), *masks, gradients=True)


def test_a_part_of_infinite_masks_again():
    """A row that the queries' mask leaves without keys is NaN, and one that the keys' mask does is 0."""
    masks = OF_KEYS, OF_QUERIES
    part = masked_again(-jnp.inf, lambda p, of_keys, of_queries: jnp.where(of_keys, p, 0))
    assert_left_alone(part, *qkv(), *masks, words="if one of its masks leaves out its keys")
    assert_fused(masked_again(-jnp.inf, lambda p, a, b: jnp.where(a & b, p, 0)), *qkv(), *masks)
