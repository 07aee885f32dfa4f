"""Sinks that join a row by its log-sum-exp: e^(s - logaddexp(lse, sink)), however it is written, and its gradient. All
results are compared with XLA's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lifting_rules import B, H, S, T, assert_fused, assert_left_alone, fused, products, qkv, weigh

LOGITS = np.asarray([0.5, -2.0], np.float32)[:H]


def causal(s):
    return jnp.where(jnp.arange(S)[:, None] + (T - S) >= jnp.arange(T), s, -jnp.inf)


def log_sum_exp(s):
    return jax.nn.logsumexp(s, -1, keepdims=True)


def by_maximum(s):
    m = s.max(-1, keepdims=True)
    return m + jnp.log(jnp.exp(s - m).sum(-1, keepdims=True))


def with_largest(x, y):
    m = jnp.maximum(x, y)
    return m + jnp.log(jnp.exp(x - m) + jnp.exp(y - m))


JOINED = {
    "logaddexp": jnp.logaddexp,
    "logaddexp of the sink": lambda x, y: jnp.logaddexp(y, x),
    "softplus": lambda x, y: x + jax.nn.softplus(y - x),
    "log1p": lambda x, y: x + jnp.log1p(jnp.exp(y - x)),
    "log_sigmoid": lambda x, y: x - jax.nn.log_sigmoid(x - y),
    "exponentials": lambda x, y: jnp.log(jnp.exp(x) + jnp.exp(y)),
    "exponentials below the largest": with_largest,
}


def attend(join, mask=causal, lse=log_sum_exp):
    def attention(q, k, v, sinks, *more):
        s = mask(products(q, k) / 4, *more)
        return weigh(jnp.exp(s - join(lse(s), sinks[:, None, None])), v)

    return attention


def with_gradients(attention):
    """The output, and the gradients by queries, keys, values and sinks."""

    def both(*arguments):
        out, pullback = jax.vjp(attention, *arguments)
        return out, pullback(jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape))

    return both


@pytest.mark.parametrize("name", JOINED)
def test_sinks_join_the_log_sum_exp(name):
    assert "sinks=1" in assert_fused(attend(JOINED[name]), *qkv(), LOGITS)
    candidates, report = fused(with_gradients(attend(JOINED[name])), *qkv(), LOGITS)
    assert all(candidate.fused for candidate in candidates), report


@pytest.mark.parametrize("sinks", [LOGITS + 60, LOGITS - 60])
def test_sinks_far_from_the_scores(sinks):
    assert_fused(with_gradients(attend(jnp.logaddexp, lse=by_maximum)), *qkv(), sinks)


@pytest.mark.parametrize("stack", [jnp.stack, jnp.concatenate])
def test_sinks_stacked_on_the_log_sum_exp(stack):
    def join(x, y):
        both = stack([x, jnp.broadcast_to(y, x.shape)], -1)
        return jax.nn.logsumexp(both, -1).reshape(x.shape)

    assert_fused(attend(join), *qkv(), LOGITS)


def test_two_sinks_that_join_one_after_the_other_stay():
    function = attend(lambda x, y: jnp.logaddexp(jnp.logaddexp(x, y), 2 * y))
    assert_left_alone(function, *qkv(), LOGITS, words="sink logits are split into 2 separate pieces")


def test_rows_without_keys_beside_sinks_that_join():
    """jax.nn.logsumexp gives -inf for such a row, and log(sum) + max gives NaN."""
    keep = np.arange(T) < np.asarray([0, 5][:B]).reshape(-1, 1, 1, 1)
    assert_fused(attend(jnp.logaddexp, lambda s, keep: jnp.where(keep, s, -jnp.inf)), *qkv(), LOGITS, keep)
    assert_left_alone(
        attend(jnp.logaddexp, lambda s, keep: jnp.where(keep, s, -jnp.inf), by_maximum),
        *qkv(),
        LOGITS,
        keep,
        words="a row without keys, but with sinks, is not 0",
    )


OTHERS = {
    "the larger of both": jnp.maximum,
    "the smaller of both": lambda x, y: jnp.minimum(x, y) + jnp.log1p(jnp.exp(-jnp.abs(x - y))),
    "twice the distance": lambda x, y: jnp.maximum(x, y) + jnp.log1p(jnp.exp(-2 * jnp.abs(x - y))),
    "another distance": lambda x, y: jnp.maximum(x, y) + jnp.log1p(jnp.exp(-jnp.abs(x + y))),
    "a logarithm to base two": jnp.logaddexp2,
    "half of it": lambda x, y: jnp.logaddexp(x, y) / 2,
    "the row twice": lambda x, y: jnp.logaddexp(jnp.logaddexp(x, y), x),
    "softplus of the opposite": lambda x, y: x + jax.nn.softplus(x - y),
    "the sink unshifted": lambda x, y: (lambda m: m + jnp.log(jnp.exp(x - m) + jnp.exp(y)))(jnp.maximum(x, y)),
    "the row unshifted": lambda x, y: (lambda m: m + jnp.log(jnp.exp(x) + jnp.exp(y - m)))(jnp.maximum(x, y)),
    "shifted by the smaller": lambda x, y: (lambda m: m + jnp.log(jnp.exp(x - m) + jnp.exp(y - m)))(jnp.minimum(x, y)),
    "another number for NaN": lambda x, y: jnp.where(jnp.isnan(x - y), 1.0, with_largest(x, y)),
    "their difference": lambda x, y: x + jnp.log1p(-jnp.exp(jnp.minimum(y - x, -1.0))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_sums_of_a_row_and_a_sink_stay(name):
    candidates, report = fused(attend(OTHERS[name]), *qkv(), LOGITS)
    assert not any(candidate.fused for candidate in candidates), report


def test_the_log_sum_exp_of_other_scores_stays():
    def attention(q, k, v, sinks):
        s = products(q, k) / 4
        return weigh(jnp.exp(s - jnp.logaddexp(log_sum_exp(2 * s), sinks[:, None, None])), v)

    assert_left_alone(attention, *qkv(), LOGITS, words="a sum of other exponentials than those that it divides")


# --- Backward passes by hand, which save the log-sum-exp of keys and sinks ---


def by_hand(
    of_scores=lambda d_s: d_s,
    of_sinks=lambda d_sink: d_sink,
    saved=lambda lse, sink: lse,
    logit=lambda sink, lse: sink - lse,
    row_sum=lambda p, d_p, out, d_out: (out * d_out).sum(-1, keepdims=True),
):
    @jax.custom_vjp
    def attention(q, k, v, sinks):
        return forward(q, k, v, sinks)[0]

    def forward(q, k, v, sinks):
        s = causal(products(q, k) / 4)
        sink = jnp.broadcast_to(sinks[:, None, None], (*s.shape[:-1], 1))
        lse = jnp.logaddexp(log_sum_exp(s), sink)
        out = weigh(jnp.exp(s - lse), v)
        return out, (q, k, v, sinks, out, saved(lse, sink))

    def backward(residuals, d_out):
        q, k, v, sinks, out, lse = residuals
        p = jnp.exp(causal(products(q, k) / 4) - lse)
        d_p = jnp.einsum("bhqd,bhkd->bhqk", d_out, v)
        row = row_sum(p, d_p, out, d_out)
        d_s = of_scores(p * (d_p - row)) / 4
        p_sink = jnp.exp(logit(sinks[:, None, None], lse))
        d_sinks = of_sinks(-(p_sink * row)).sum((0, 2, 3))
        return (
            jnp.einsum("bhqk,bhkd->bhqd", d_s, k),
            jnp.einsum("bhqk,bhqd->bhkd", d_s, q),
            jnp.einsum("bhqk,bhqd->bhkd", p, d_out),
            d_sinks,
        )

    attention.defvjp(forward, backward)
    return attention


def of_probabilities(p, d_p, out, d_out):
    return (p * d_p).sum(-1, keepdims=True)


@pytest.mark.parametrize("options", [{}, {"row_sum": of_probabilities}])
def test_a_backward_pass_that_saves_the_log_sum_exp_with_sinks(options):
    candidates, report = fused(with_gradients(by_hand(**options)), *qkv(), LOGITS)
    assert all(candidate.fused for candidate in candidates), report


CHANGED = {
    "the sinks' sign": {"of_sinks": lambda d: -d},
    "half of the sinks'": {"of_sinks": lambda d: d / 2},
    "a row's sinks left out": {"of_sinks": lambda d: d.at[:, :, 0].set(0)},
    "a clipped gradient of the sinks": {"of_sinks": lambda d: jnp.clip(d, -1e-3, 1e-3)},
    "the sink without the log-sum-exp": {"logit": lambda sink, lse: sink + 0 * lse},
    "the log-sum-exp below the sink": {"logit": lambda sink, lse: lse - sink},
    "a smaller log-sum-exp": {"saved": lambda lse, sink: lse - 0.1},
    "sinks cut at the log-sum-exp": {"logit": lambda sink, lse: jnp.where(lse > 1.0, -jnp.inf, sink - lse)},
    "no sink above zero": {"logit": lambda sink, lse: jnp.where(sink > 0, -jnp.inf, sink - lse)},
    "one sink left out": {"logit": lambda sink, lse: jnp.where(sink == 0.5, 0.0, sink) - lse},
    "the scores' sign": {"of_scores": lambda d: -d},
    "clipped scores": {"of_scores": lambda d: jnp.clip(d, -1e-3, 1e-3)},
}


@pytest.mark.parametrize("row_sum", [None, of_probabilities])
@pytest.mark.parametrize("name", CHANGED)
def test_changed_gradients_stay_right(name, row_sum):
    """A backward pass with another gradient of the scores stays. The module computes another gradient of the sinks."""
    options = CHANGED[name] | ({"row_sum": row_sum} if row_sum else {})
    candidates, report = fused(with_gradients(by_hand(**options)), *qkv(), LOGITS)
    if "of_scores" in options or row_sum:
        assert "with gradients" not in report, report


# --- Which heads have sinks ---


def beside(s, sinks):
    column = jnp.broadcast_to(sinks, (*s.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([s, column], -1), -1)[..., :-1]


@jax.custom_vjp
def softmax_by_hand(s):
    return jax.nn.softmax(s, -1)


def softmax_backward(s, d_p):
    """The gradient of the maximum, which is 0 but for roundings, is added, too."""
    m = s.max(-1, keepdims=True)
    e = jnp.exp(s - m)
    p = e / e.sum(-1, keepdims=True)
    d_s = p * (d_p - (p * d_p).sum(-1, keepdims=True))
    return (d_s + jnp.where(s == m, -d_s.sum(-1, keepdims=True), 0),)


softmax_by_hand.defvjp(lambda s: (jax.nn.softmax(s, -1), s), softmax_backward)


def before(s, sinks):
    column = jnp.broadcast_to(sinks, (*s.shape[:-1], 1))
    return softmax_by_hand(jnp.concatenate([column, s], -1))[..., 1:]


def joined(s, sinks):
    return jnp.exp(s - jnp.logaddexp(log_sum_exp(s), sinks))


def draw(*shape):
    return jnp.asarray(np.random.default_rng(5).standard_normal(shape), jnp.float32)


@pytest.mark.parametrize("softmax", [beside, before, joined])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("shape", ["one", "head"])
def test_heads_may_share_a_sink(shape, heads, softmax):
    """Of one head, the batch counts as the heads, and shares the sink."""
    q, k, v = draw(3, heads, S, 8), draw(3, heads, T, 8), draw(3, heads, T, 8)
    sinks = draw(heads, 1, 1) if shape == "head" else draw(1)
    attention = lambda q, k, v, sinks: weigh(softmax(products(q, k), sinks), v)
    assert "sinks=1" in assert_fused(attention, q, k, v, sinks)
    candidates, report = fused(with_gradients(attention), q, k, v, sinks)
    assert all(candidate.fused for candidate in candidates), report


@pytest.mark.parametrize("softmax", [beside, joined])
@pytest.mark.parametrize("keys", ["repeated", "of one head", "of one head, with heads first"])
def test_sinks_of_heads_that_share_keys(keys, softmax):
    q, sinks = draw(2, 4, 3, 8), draw(4)  # more heads than queries

    def attention(q, k, v, sinks):
        if keys == "repeated":
            k, v = jnp.repeat(k, 2, 1), jnp.repeat(v, 2, 1)
            return weigh(softmax(products(q, k), sinks[:, None, None]), v)
        if keys == "of one head":
            p = softmax(jnp.einsum("bhqd,bkd->bhqk", q, k), sinks[:, None, None])
            return jnp.einsum("bhqk,bkd->bhqd", p, v)
        p = softmax(jnp.einsum("bhqd,bkd->hbqk", q, k), sinks[:, None, None, None])
        return jnp.einsum("hbqk,bkd->bqhd", p, v)

    k, v = (draw(2, 2, T, 8), draw(2, 2, T, 8) + 1) if keys == "repeated" else (draw(2, T, 8), draw(2, T, 8) + 1)
    assert "sinks=1" in assert_fused(attention, q, k, v, sinks)
    candidates, report = fused(with_gradients(attention), q, k, v, sinks)
    assert all(candidate.fused for candidate in candidates), report


def test_sinks_of_queries_stay():
    attention = lambda q, k, v, sinks: weigh(beside(products(q, k), sinks[:, None]), v)
    assert_left_alone(attention, *qkv(), draw(S))


@pytest.mark.parametrize("scale", [0.02, 0.125, 0.72, 3.0])  # e to -720 is denormal
@pytest.mark.parametrize("softmax", [beside, joined])
def test_gradients_of_sinks_beside_scaled_scores(softmax, scale):
    attention = lambda q, k, v, sinks: weigh(softmax(products(q, k) * scale, sinks[:, None, None]), v)
    candidates, report = fused(with_gradients(attention), *qkv(), LOGITS)
    assert all(candidate.fused for candidate in candidates), report
