"""Hand-written backward passes, as in FlashAttention: they compute probabilities from the log-sum-exp that the forward
pass saved, and use sum(d_out * out) for sum(p * d_p). Correct ones are fused with their attention; others stay, with a
reason. All results are compared with XLA's.
"""

import functools

import flashlift.stablehlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lifting_rules import D, H, S, T, fused, products, qkv, weigh

SCALE = D**-0.5


def causal():
    return jnp.arange(T)[None, :] <= jnp.arange(S)[:, None]


def softmax(s):
    m = s.max(-1, keepdims=True)
    e = jnp.exp(s - m)
    return e, e.sum(-1, keepdims=True), m


def by_hand(
    mask=lambda s: s,
    saved=lambda out: out,
    log_sum_exp=lambda lse: lse,
    delta=lambda d_out, out: jnp.sum(d_out * out, -1),
    probabilities=lambda p: p,
    scores=lambda q, k: products(q, k) * SCALE,
    gradients=lambda d_s, q, k: (weigh(d_s, k) * SCALE, weigh(d_s.swapaxes(-1, -2), q) * SCALE),
    again=lambda s: s,
    divides_output=False,
):
    """Attention with its backward pass; `again` changes the scores that the backward pass recomputes."""

    def attend(q, k, v):
        e, z, m = softmax(mask(scores(q, k)))
        out = weigh(e, v) / z if divides_output else weigh(e / z, v)
        return out, (m + jnp.log(z))[..., 0]

    @jax.custom_vjp
    def attention(q, k, v):
        return attend(q, k, v)[0]

    def forward(q, k, v):
        out, lse = attend(q, k, v)
        return out, (q, k, v, saved(out), log_sum_exp(lse))

    def backward(kept, d_out):
        q, k, v, out, lse = kept
        p = probabilities(jnp.exp(again(mask(scores(q, k))) - lse[..., None]))
        d_p = products(d_out, v)
        d_s = p * (d_p - delta(d_out, out)[..., None])
        return *gradients(d_s, q, k), weigh(p.swapaxes(-1, -2), d_out)

    attention.defvjp(forward, backward)
    return attention


def where_causal(s):
    return jnp.where(causal(), s, -1e30)


RIGHT = {
    "plain": {},
    "causal": {"mask": where_causal},
    "causal by -inf": {"mask": lambda s: jnp.where(causal(), s, -jnp.inf)},
    "division behind the values": {"divides_output": True},
    "delta as a product": {"delta": lambda d_out, out: jnp.einsum("bhqd,bhqd->bhq", d_out, out)},
    "delta times the output first": {"delta": lambda d_out, out: jnp.sum(out * d_out, -1)},
    "scaled before the products": {
        "scores": lambda q, k: products(q * SCALE, k),
        "gradients": lambda d_s, q, k: (weigh(d_s, k) * SCALE, weigh(d_s.swapaxes(-1, -2), q) * SCALE),
    },
    "scaled gradient of scores": {
        "gradients": lambda d_s, q, k: (weigh(d_s * SCALE, k), weigh((d_s * SCALE).swapaxes(-1, -2), q)),
    },
    "queries scaled in the backward pass": {
        "gradients": lambda d_s, q, k: (weigh(d_s, k * SCALE), weigh(d_s.swapaxes(-1, -2), q * SCALE)),
    },
    "probabilities masked again": {"mask": where_causal, "probabilities": lambda p: jnp.where(causal(), p, 0)},
}


def check(options, dtype=jnp.float32, tolerance=3e-5):
    candidates, report = fused(by_hand(**options), *qkv(dtype=dtype), gradients=True, tolerance=tolerance)
    assert candidates, report
    return candidates, report


@pytest.mark.parametrize("name", RIGHT)
def test_right_backward_passes_are_fused(name):
    candidates, report = check(RIGHT[name])
    assert len(candidates) == 1 and candidates[0].fused, report


@pytest.mark.parametrize("diagonal", [0, -1])
@pytest.mark.parametrize("size", [4, 8, 13, 16, 32])
def test_as_many_queries_as_keys_below_a_diagonal(size, diagonal):
    """Each row has a key if the mask keeps the diagonal. Otherwise the first one has none, and the gradient reaches
    scores that the mask replaced."""

    def mask(s):
        return jnp.where(jnp.tril(jnp.ones((size, size), bool), diagonal), s, -1e9)

    rng = np.random.default_rng(size)
    q, k, v = (jnp.asarray(rng.standard_normal((1, 2, size, 8)), jnp.float32) for _ in range(3))
    function = with_exponentials_again(mask)
    candidates, report = fused(function, q, k, v, gradients=True, tolerance=3e-5)
    assert all(candidate.fused == (diagonal == 0) for candidate in candidates), report


def with_output_saved(attend, probabilities):
    """Attention whose backward pass reads the output and the log-sum-exp that attend(q, k, v) returns, from which
    probabilities(q, k, lse) follow."""

    @jax.custom_vjp
    def attention(q, k, v):
        return attend(q, k, v)[0]

    def forward(q, k, v):
        out, lse = attend(q, k, v)
        return out, (q, k, v, out, lse)

    def backward(kept, d_out):
        q, k, v, out, lse = kept
        p = probabilities(q, k, lse)
        d_s = p * (products(d_out, v) - jnp.sum(d_out * out, -1, keepdims=True)) * SCALE
        return weigh(d_s, k), weigh(d_s.swapaxes(-1, -2), q), weigh(p.swapaxes(-1, -2), d_out)

    attention.defvjp(forward, backward)
    return attention


@pytest.mark.parametrize("mask", [lambda s: s, where_causal])
@pytest.mark.parametrize("log_sum_exp", [lambda m, z: m + jnp.log2(z), lambda m, z: m + jnp.log2(z) + 1e-3])
def test_backward_passes_with_a_log_sum_exp_of_base_two(mask, log_sum_exp):
    def scores(q, k):
        return mask(products(q, k) * (SCALE * np.float32(np.log2(np.e))))

    def attend(q, k, v):
        s = scores(q, k)
        m = s.max(-1, keepdims=True)
        e = jnp.exp2(s - m)
        z = e.sum(-1, keepdims=True)
        return weigh(e, v) / z, log_sum_exp(m, z)

    attention = with_output_saved(attend, lambda q, k, lse: jnp.exp2(scores(q, k) - lse))
    candidates, report = fused(attention, *qkv(), gradients=True, tolerance=3e-5)
    is_right = float(log_sum_exp(0.0, 1.0)) == 0
    assert (len(candidates) == 1 and candidates[0].fused) == is_right, report


WRONG = {
    "the output scaled": {"saved": lambda out: 1.01 * out},
    "the output rounded": {"saved": lambda out: out.astype(jnp.bfloat16).astype(jnp.float32)},
    "the output moved": {"saved": lambda out: jnp.roll(out, 1, 2)},
    "the output of other heads": {"saved": lambda out: out[:, ::-1]},
    "the output plus a little": {"saved": lambda out: out + 1e-3},
    "depths reversed": {"delta": lambda d_out, out: jnp.sum(d_out * out[..., ::-1], -1)},
    "of the first depths": {"delta": lambda d_out, out: jnp.sum((d_out * out)[..., :4], -1)},
    "a mean": {"delta": lambda d_out, out: jnp.mean(d_out * out, -1)},
    "squared": {"delta": lambda d_out, out: jnp.sum(d_out * out * out, -1)},
    "of another gradient": {"delta": lambda d_out, out: jnp.sum(jnp.sin(d_out) * out, -1)},
    "of no gradient": {"delta": lambda d_out, out: jnp.sum(out, -1)},
    "scaled": {"delta": lambda d_out, out: 0.99 * jnp.sum(d_out * out, -1)},
    "none": {"delta": lambda d_out, out: jnp.zeros(out.shape[:-1])},
    "negative": {"delta": lambda d_out, out: -jnp.sum(d_out * out, -1)},
    "clipped": {"delta": lambda d_out, out: jnp.clip(jnp.sum(d_out * out, -1), -1, 1)},
    "another log-sum-exp": {"log_sum_exp": lambda lse: lse + 1e-3},
    "rows' log-sum-exps moved": {"log_sum_exp": lambda lse: jnp.roll(lse, 1, -1)},
    "heads' log-sum-exps exchanged": {"log_sum_exp": lambda lse: lse[:, ::-1]},
    "the log-sum-exp rounded": {"log_sum_exp": lambda lse: lse.astype(jnp.bfloat16).astype(jnp.float32)},
    "other scores": {"again": lambda s: 0.99 * s},
    "scores with a bias": {"again": lambda s: s + jnp.arange(T, dtype=jnp.float32)},
    "another mask": {"again": where_causal},
    "without the mask": {"mask": where_causal, "again": lambda s: jnp.where(causal(), s, 0.0)},
    "probabilities cut off": {"probabilities": lambda p: jnp.where(p > 0.05, p, 0)},
    "a gradient without the scale": {
        "gradients": lambda d_s, q, k: (weigh(d_s, k), weigh(d_s.swapaxes(-1, -2), q) * SCALE),
    },
    "a part without the scale": {
        "gradients": lambda d_s, q, k: (
            weigh(d_s.at[..., 0].multiply(0.5), k) * SCALE,
            weigh(d_s.swapaxes(-1, -2), q) * SCALE,
        ),
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_other_backward_passes_stay_with_a_reason(name):
    candidates, report = check(WRONG[name])
    assert sum(candidate.fused for candidate in candidates) == 1, report  # the forward pass
    assert any(not candidate.fused and candidate.reason for candidate in candidates), report


# Backward passes with a softmax of their own, which read the output of the forward pass: the masks of both passes.
OWN_SOFTMAX = {
    "plain": (lambda s: s, lambda s: s),
    "causal": (where_causal, where_causal),
    "causal by -inf": (lambda s: jnp.where(causal(), s, -jnp.inf), lambda s: jnp.where(causal(), s, -jnp.inf)),
}
ANOTHER_SOFTMAX = {
    "another mask": (lambda s: s, where_causal),
    "without the mask": (where_causal, lambda s: s),
    "another scale": (lambda s: s, lambda s: 0.99 * s),
    "another bias": (lambda s: s, lambda s: s + 0.01 * jnp.arange(T)),
}


def with_own_softmax(masks, checkpointed=False):
    def attend(q, k, v):
        e, z, m = softmax(masks[0](products(q, k) * SCALE))
        return weigh(e / z, v), (m + jnp.log(z))[..., 0]

    attention = with_output_saved(attend, lambda q, k, lse: jax.nn.softmax(masks[1](products(q, k) * SCALE), -1))
    return jax.checkpoint(attention) if checkpointed else attention


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", OWN_SOFTMAX)
def test_own_softmax_beside_the_output_of_the_forward_pass(name, checkpointed):
    function = with_own_softmax(OWN_SOFTMAX[name], checkpointed)
    candidates, report = fused(function, *qkv(), gradients=True, tolerance=3e-5)
    assert [candidate.fused for candidate in candidates] == [True] * (1 + checkpointed), report


@pytest.mark.parametrize("name", ANOTHER_SOFTMAX)
def test_another_softmax_beside_the_output_of_the_forward_pass(name):
    candidates, report = fused(with_own_softmax(ANOTHER_SOFTMAX[name]), *qkv(), gradients=True, tolerance=3e-5)
    assert sum(candidate.fused for candidate in candidates) == 1, report  # the forward pass
    assert any(not candidate.fused and candidate.reason for candidate in candidates), report


def with_exponentials_again(mask=lambda s: s, saved=lambda m, z: (m, z), row_sum=lambda p, d_p: (p * d_p).sum(-1)):
    """The backward pass computes the exponentials again, and divides them by the row sum of the forward pass."""

    def attend(q, k, v):
        e, z, m = softmax(mask(products(q, k) * SCALE))
        return weigh(e / z, v), m, z

    @jax.custom_vjp
    def attention(q, k, v):
        return attend(q, k, v)[0]

    def forward(q, k, v):
        out, m, z = attend(q, k, v)
        return out, (q, k, v, *saved(m, z))

    def backward(kept, d_out):
        q, k, v, m, z = kept
        p = jnp.exp(mask(products(q, k) * SCALE) - m) / z
        d_p = products(d_out, v)
        d_s = p * (d_p - row_sum(p, d_p)[..., None]) * SCALE
        return weigh(d_s, k), weigh(d_s.swapaxes(-1, -2), q), weigh(p.swapaxes(-1, -2), d_out)

    attention.defvjp(forward, backward)
    return attention


@pytest.mark.parametrize("mask", [lambda s: s, where_causal, lambda s: jnp.where(causal(), s, -jnp.inf)])
def test_exponentials_computed_again(mask):
    candidates, report = fused(with_exponentials_again(mask), *qkv(), gradients=True, tolerance=3e-5)
    assert [candidate.fused for candidate in candidates] == [True], report


EXPONENTIALS = {
    "another row sum": ({"saved": lambda m, z: (m, 1.001 * z)}, "is not their gradient"),
    "another maximum": ({"saved": lambda m, z: (m - 1e-3, z)}, "neither in the scores nor in their derivatives"),
    "maxima of other rows": ({"saved": lambda m, z: (jnp.roll(m, 1, -2), z)}, "used elsewhere, too"),
    "no row sum of the gradient": ({"row_sum": lambda p, d_p: jnp.zeros(p.shape[:-1])}, "is not their gradient"),
    "its negative": ({"row_sum": lambda p, d_p: -(p * d_p).sum(-1)}, "is not their gradient"),
}


@pytest.mark.parametrize("name", EXPONENTIALS)
def test_other_exponentials_computed_again_stay_with_their_reason(name):
    options, reason = EXPONENTIALS[name]
    candidates, report = fused(with_exponentials_again(**options), *qkv(), gradients=True, tolerance=3e-5)
    assert candidates and not any(candidate.fused for candidate in candidates), report
    assert reason in candidates[0].reason, report


def test_probabilities_rounded_with_16_bit_operands():
    """The output is saved in the operands' type, as FlashAttention does; a fused call keeps it unrounded."""

    def attend(q, k, v):
        e, z, m = softmax(products(q, k).astype(jnp.float32) * SCALE)
        return weigh((e / z).astype(q.dtype), v), (m + jnp.log(z))[..., 0]

    @jax.custom_vjp
    def attention(q, k, v):
        return attend(q, k, v)[0]

    def backward(kept, d_out):
        q, k, v, out, lse = kept
        p = jnp.exp(products(q, k).astype(jnp.float32) * SCALE - lse[..., None])
        delta = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), -1, keepdims=True)
        d_s = (p * (products(d_out, v).astype(jnp.float32) - delta) * SCALE).astype(q.dtype)
        return weigh(d_s, k), weigh(d_s.swapaxes(-1, -2), q), weigh(p.astype(q.dtype).swapaxes(-1, -2), d_out)

    def forward(q, k, v):
        out, lse = attend(q, k, v)
        return out, (q, k, v, out, lse)

    attention.defvjp(forward, backward)
    candidates, report = fused(attention, *qkv(dtype=jnp.bfloat16), gradients=True, tolerance=3e-2)
    assert len(candidates) == 1 and candidates[0].fused, report


def empty_row():
    keep = np.random.default_rng(0).random((S, T)) > 0.5
    keep[2] = False
    return jnp.asarray(keep)


def test_rows_masked_by_a_large_number():
    """If a whole row is masked, p = e^(s - lse) sums to its number of keys: in f32, log z is lost beside the large
    number."""
    candidates, report = check({"mask": lambda s: jnp.where(empty_row(), s, -1e30)})
    assert sum(candidate.fused for candidate in candidates) == 1 and "log-sum-exp is subtracted" in report, report


def with_probabilities_again(mask, of_scores=lambda d_s: d_s, of_values=lambda p: p):
    """The backward pass recomputes the whole softmax, and uses these probabilities in its products."""

    def function(q, k, v, d_out):
        s = mask(products(q, k) * SCALE)
        p = jax.nn.softmax(s, -1)
        d_p = products(d_out, v)
        d_s = of_scores(p * (d_p - (p * d_p).sum(-1, keepdims=True))) * SCALE
        p_v = of_values(p)
        return weigh(p, v), weigh(d_s, k), weigh(d_s.swapaxes(-1, -2), q), weigh(p_v.swapaxes(-1, -2), d_out)

    return function


def select_kept(x):
    return jnp.where(empty_row(), x, 0)


MASKED_ROWS = {
    "select": ({"mask": lambda s: jnp.where(empty_row(), s, -1e9), "of_scores": select_kept}, True),
    "each row keeps a key": ({"mask": where_causal}, True),
    "no number": ({"mask": lambda s: jnp.where(causal(), s, -jnp.inf)}, True),
    "added": ({"mask": lambda s: s + jnp.where(empty_row(), 0, -1e9)}, True),
    "scores that were replaced": ({"mask": lambda s: jnp.where(empty_row(), s, -1e9)}, False),
    "of two masks": (
        {"mask": lambda s: jnp.where(causal(), jnp.where(empty_row(), s, -1e9), -1e12), "of_scores": select_kept},
        False,
    ),
    "values that are left out": (
        {"mask": lambda s: jnp.where(empty_row(), s, -1e9), "of_scores": select_kept, "of_values": select_kept},
        False,
    ),
}


@pytest.mark.parametrize("name", MASKED_ROWS)
def test_gradients_in_rows_that_a_large_number_masks_whole(name):
    """Such a row weighs all values, so that they have a gradient; the scores that the mask replaced have none."""
    options, is_fused = MASKED_ROWS[name]
    q, k, v = qkv()
    candidates, report = fused(with_probabilities_again(**options), q, k, v, jnp.cos(q))
    if is_fused:
        assert len(candidates) == 1 and candidates[0].fused, report
    else:
        assert not any(candidate.fused for candidate in candidates), report
        assert "in a row that a large number masks whole" in report, report


@pytest.mark.parametrize("low, stays", [(-1e9, False), (-1e4, True)])
@pytest.mark.parametrize("size", [2, 3, 4, 6, 7])
def test_a_number_that_scores_may_come_near_does_not_mask(low, stays, size):
    """Beside scores of about -1e4, keys that this number masks have a probability, and d_s must be masked, too."""
    mask = lambda s: jnp.where(jnp.tril(jnp.ones((size, size), bool)), s, low)
    q, k, v = (x[:, :, :size] for x in qkv())
    for is_masked in (False, True):
        of_scores = (
            (lambda d_s: jnp.where(jnp.tril(jnp.ones((size, size), bool)), d_s, 0)) if is_masked else lambda d: d
        )
        candidates, report = fused(with_probabilities_again(mask, of_scores), q, k, v, jnp.cos(q))
        assert any(candidate.fused for candidate in candidates) == (is_masked or not stays), report


def causal_floats(s):
    return jnp.tril(jnp.ones(s.shape[-2:], s.dtype))


COME_NEAR = {
    "select": lambda s: jnp.where(causal_floats(s) > 0, s, -1e4),
    "as factors": lambda s: s * causal_floats(s) + -1e4 * (1 - causal_floats(s)),
    "scaled and biased": lambda s: 2 * jnp.where(causal_floats(s) > 0, s, -5e3) + 0.1 * jnp.arange(s.shape[-1]),
    "last row alone": lambda s: jnp.where(jnp.arange(s.shape[-2])[:, None] + jnp.arange(s.shape[-1]) < S, s, -1e4),
}


@pytest.mark.parametrize("keys", [2, 3, T])
@pytest.mark.parametrize("name", COME_NEAR)
def test_a_number_that_scores_may_come_near_in_few_rows(name, keys):
    """A causal mask of 8 queries and 2 keys masks a key of the first query alone."""
    q, k, v = qkv()
    k, v = k[:, :, :keys], v[:, :, :keys]
    candidates, report = fused(with_probabilities_again(COME_NEAR[name]), q, k, v, jnp.cos(q))
    assert not any(candidate.fused for candidate in candidates), report


BOOLEANS = {
    "and": lambda a, b: a & b,
    "not or": lambda a, b: ~(~a | ~b),
    "product of integers": lambda a, b: (a.astype(jnp.int32) * b.astype(jnp.int32)) > 0,
    "sum of integers": lambda a, b: (a.astype(jnp.int8) + b.astype(jnp.int8)) == 2,
    "equal": lambda a, b: (a == b) & a,
}


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("name", BOOLEANS)
def test_gradients_in_rows_that_booleans_mask_whole(name, is_right):
    def function(q, k, v, d_out, rows, keys):
        kept = BOOLEANS[name](rows[:, None], keys[None])
        of_scores = (lambda d_s: jnp.where(kept, d_s, 0)) if is_right else lambda d_s: d_s
        return with_probabilities_again(lambda s: jnp.where(kept, s, -1e9), of_scores)(q, k, v, d_out)

    q, k, v = qkv()
    rows, keys = jnp.arange(q.shape[2]) != 3, jnp.arange(k.shape[2]) % 3 != 1
    candidates, report = fused(function, q, k, v, jnp.cos(q), rows, keys)
    assert any(candidate.fused for candidate in candidates) == is_right, report


def test_gradients_of_masks_that_compute_with_booleans():
    """No row is found whose mask holds for no key."""

    def function(q, k, v, d_out, rows):
        kept = rows[:, None] | (jnp.arange(k.shape[2]) < rows[:, None].astype(jnp.int32))
        return with_probabilities_again(lambda s: jnp.where(kept, s, -1e9), lambda d_s: jnp.where(kept, d_s, 0))(
            q, k, v, d_out
        )

    q, k, v = qkv()
    candidates, report = fused(function, q, k, v, jnp.cos(q), jnp.arange(q.shape[2]) != 3)
    assert not any(candidate.fused for candidate in candidates) and "a mask computes with booleans" in report, report


def test_rows_without_keys():
    """Such a row's output and gradients are 0."""

    def attend(q, k, v):
        s = jnp.where(empty_row(), products(q, k) * SCALE, -jnp.inf)
        m = s.max(-1, keepdims=True)
        m = jnp.where(m == -jnp.inf, 0, m)
        e = jnp.exp(s - m)
        z = e.sum(-1, keepdims=True)
        z = jnp.where(z == 0, 1, z)
        return weigh(e / z, v), (m + jnp.log(z))[..., 0]

    def probabilities(q, k, lse):
        return jnp.exp(jnp.where(empty_row(), products(q, k) * SCALE, -jnp.inf) - lse[..., None])

    candidates, report = fused(with_output_saved(attend, probabilities), *qkv(), gradients=True)
    assert candidates[0].fused, report


@pytest.mark.parametrize("mask", [lambda s: s, where_causal])
def test_derivatives_of_a_division_behind_the_values(mask):
    def attention(q, k, v):
        s = mask(products(q, k) / 4)
        e = jnp.exp(s - jax.lax.stop_gradient(s.max(-1, keepdims=True)))
        return weigh(e, v) / e.sum(-1, keepdims=True)

    candidates, report = fused(attention, *qkv(), gradients=True)
    assert len(candidates) == 1 and candidates[0].fused, report


@pytest.mark.parametrize("other", ["returned", "twice", "of another row sum"])
def test_a_division_behind_the_values_whose_parts_are_read_elsewhere(other):
    def attention(q, k, v):
        s = products(q, k) / 4
        e = jnp.exp(s - jax.lax.stop_gradient(s.max(-1, keepdims=True)))
        undivided, z = weigh(e, v), e.sum(-1, keepdims=True)
        out = undivided / z
        if other == "returned":
            return jnp.concatenate([out, jnp.sin(undivided)], -1)
        if other == "twice":
            return out / z
        return out + undivided / (z + 1)

    fused(attention, *qkv(), gradients=True)


@pytest.mark.parametrize("by_product", [False, True])
def test_a_division_behind_the_values_with_a_maximum_that_is_differentiated(by_product):
    def attention(q, k, v):
        s = products(q, k) / 4
        e = jnp.exp(s - s.max(-1, keepdims=True))
        return weigh(e, v) / (e @ jnp.ones((T, 1)) if by_product else e.sum(-1, keepdims=True))

    candidates, report = fused(attention, *qkv(), gradients=True)
    assert any(candidate.fused for candidate in candidates), report


# --- Gradients alone: nothing multiplies the values by the probabilities ---


def pulled_back(attention, wanted, change=lambda d: d):
    """The gradients of a linear loss, which does not need the output. `change` changes the gradient with respect to the
    probabilities."""

    @jax.custom_vjp
    def changed(p):
        return p

    changed.defvjp(lambda p: (p, None), lambda _, d: (change(d),))

    def function(q, k, v, d_out):
        gradients = jax.vjp(lambda *x: attention(*x, changed), q, k, v)[1](d_out)
        return tuple(gradients[i] for i in wanted)

    return function


def behind_the_values(divide, layout="bhqd"):
    def attention(q, k, v, changed):
        e, z, _ = softmax(products(q, k) * SCALE)
        z = z if layout == "bhqd" else z.swapaxes(1, 2)
        out = divide(jnp.einsum("bhqk,bhkd->" + layout, changed(e), v), z)
        return out if layout == "bhqd" else out.swapaxes(1, 2)

    return attention


ALONE = {
    "division behind the values": behind_the_values(lambda out, z: out / z),
    "division in another layout": behind_the_values(lambda out, z: out / jnp.maximum(z, 1e-6), "bqhd"),
    "reciprocal behind the values": behind_the_values(lambda out, z: out * (1 / z)),
    "plain": lambda q, k, v, changed: weigh(changed(jax.nn.softmax(products(q, k) * SCALE)), v),
    "causal": lambda q, k, v, changed: weigh(
        changed(jax.nn.softmax(jnp.where(causal(), products(q, k) * SCALE, -jnp.inf))), v
    ),
    "log_softmax": lambda q, k, v, changed: weigh(changed(jnp.exp(jax.nn.log_softmax(products(q, k) * SCALE))), v),
    "shared keys": lambda q, k, v, changed: jnp.einsum(
        "bhqk,bkd->bhqd", changed(jax.nn.softmax(jnp.einsum("bhqd,bkd->bhqk", q, k[:, 0]) * SCALE)), v[:, 0]
    ),
}


def arguments(dtype=jnp.float32):
    q, k, v = qkv(dtype=dtype)
    return q, k, v, jnp.cos(q)


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("attention", ALONE)
def test_gradients_alone(attention, wanted):
    function = pulled_back(ALONE[attention], wanted)
    text = jax.jit(function).lower(*arguments()).as_text()
    found = flashlift.stablehlo.fuse(text, gradients=True)
    assert found.fused_count == 1 and len(found.candidates) == 1, found.candidates
    fused(function, *arguments())


def test_gradients_alone_of_16_bits():
    candidates, report = fused(pulled_back(ALONE["plain"], (0, 1)), *arguments(jnp.bfloat16), tolerance=3e-2)
    assert any(candidate.fused for candidate in candidates), report


@pytest.mark.parametrize(
    "change",
    [
        lambda d: 2 * d,
        lambda d: jnp.clip(d, -0.1, 0.1),
        lambda d: d.at[..., 0].set(0),
        lambda d: d - d.mean(-1, keepdims=True),
    ],
)
@pytest.mark.parametrize("wanted", [(0,), (0, 1)])
@pytest.mark.parametrize("attention", ["causal", "division behind the values"])
def test_gradients_alone_that_are_changed_stay_right(attention, change, wanted):
    fused(pulled_back(ALONE[attention], wanted, change), *arguments())


@pytest.mark.parametrize(
    "divide", [lambda out, z: out / (2 * z), lambda out, z: out / z / z, lambda out, z: out / (z + 1)]
)
def test_gradients_alone_with_other_divisions_behind_the_values_stay_right(divide):
    fused(pulled_back(behind_the_values(divide), (0, 1, 2)), *arguments())


def test_the_gradient_by_the_values_alone_stays():
    candidates, report = fused(pulled_back(ALONE["plain"], (2,)), *arguments())
    assert [candidate.fused for candidate in candidates] == [False], report


def combined(parts, combine, scores=lambda q, k: products(q, k) * SCALE):
    """Attention over parts of the keys, each with its log-sum-exp, and what `combine` makes of their outputs."""

    def of(divides_output):
        def attend(q, k, v):
            e, z, m = softmax(scores(q, k))
            return weigh(e, v) / z if divides_output else weigh(e / z, v), m + jnp.log(z)

        def function(q, k, v):
            size = k.shape[2] // parts
            places = [slice(i * size, (i + 1) * size) for i in range(parts)]
            outs = [attend(q, k[:, :, place], v[:, :, place]) for place in places]
            return combine(*outs[0], *outs[-1]) if combine else functools.reduce(joined_by_sigmoid, outs)[0]

        return function

    return of


def joined_by_sigmoid(one, other):
    (out, lse), (more, lse_of_more) = one, other
    return out - jax.nn.sigmoid(lse_of_more - lse) * (out - more), lse - jax.nn.log_sigmoid(lse - lse_of_more)


def joined(out, lse, more, lse_of_more):
    both = jnp.logaddexp(lse, lse_of_more)
    return out * jnp.exp(lse - both) + more * jnp.exp(lse_of_more - both)


def joined_by_maximum(out, lse, more, lse_of_more):
    largest = jnp.maximum(lse, lse_of_more)
    weight, other = jnp.exp(lse - largest), jnp.exp(lse_of_more - largest)
    return (out * weight + more * other) / (weight + other)


COMBINED = {
    "two parts": combined(2, joined),
    "two parts and their maximum": combined(2, joined_by_maximum),
    "four parts": combined(4, None),
    "one part, weighed by its sum": combined(1, lambda out, lse, *_: out * jnp.exp(lse)),
    "one part, weighed by its sum, which is not differentiated": combined(
        1, lambda out, lse, *_: out * jnp.exp(jax.lax.stop_gradient(lse))
    ),
    "a constant for one of the log-sum-exps": combined(
        2, lambda out, lse, more, other: joined(out, lse, more, jax.lax.stop_gradient(other))
    ),
    "log-sum-exps of other rows": combined(1, lambda out, lse, *_: out * lse[:, :, ::-1]),
    "the output again": combined(1, lambda out, lse, *_: out * jnp.tanh(lse * out)),
    "a gate": combined(1, lambda out, lse, *_: out * jnp.arange(S)[:, None]),
}


@pytest.mark.parametrize("divides_output", [False, True])
@pytest.mark.parametrize("name", COMBINED)
def test_gradients_of_outputs_that_are_weighed_by_their_log_sum_exp(name, divides_output):
    candidates, report = fused(COMBINED[name](divides_output), *qkv(), gradients=True, tolerance=3e-5)
    assert candidates and all(candidate.fused for candidate in candidates), report


WEIGHED_WRONG = {
    "of other rows": lambda d_lse: jnp.roll(d_lse, 1, 2),
    "scaled": lambda d_lse: 1.01 * d_lse,
    "none": jnp.zeros_like,
    "clipped": lambda d_lse: jnp.clip(d_lse, -0.1, 0.1),
}


@pytest.mark.parametrize("divides_output", [False, True])
@pytest.mark.parametrize("name", WEIGHED_WRONG)
def test_log_sum_exps_whose_gradient_is_another(name, divides_output):
    """The gradient by a log-sum-exp is an operand of the call: whatever it is computed from is right."""

    @jax.custom_vjp
    def weight(lse):
        return jnp.exp(lse)

    weight.defvjp(lambda lse: (jnp.exp(lse), lse), lambda lse, d: (WEIGHED_WRONG[name](d * jnp.exp(lse)),))
    function = combined(1, lambda out, lse, *_: out * weight(lse))(divides_output)
    candidates, report = fused(function, *qkv(), gradients=True, tolerance=3e-5)
    assert candidates and all(candidate.fused for candidate in candidates), report


@pytest.mark.parametrize("divides_output", [False, True])
@pytest.mark.parametrize("change", [lambda d_s: 1.01 * d_s, lambda d_s: jnp.clip(d_s, -0.01, 0.01), jnp.flip])
def test_gradients_beside_a_log_sum_exp_that_are_changed_stay(change, divides_output):
    @jax.custom_vjp
    def changed(s):
        return s

    changed.defvjp(lambda s: (s, None), lambda _, d_s: (change(d_s),))
    function = combined(2, joined, scores=lambda q, k: changed(products(q, k) * SCALE))(divides_output)
    candidates, report = fused(function, *qkv(), gradients=True, tolerance=3e-5)
    assert candidates and not any(candidate.fused for candidate in candidates), report


def test_the_reason_of_a_division_behind_the_values_whose_gradient_stays():
    def attention(q, k, v):
        s = jnp.where(empty_row(), products(q, k) * SCALE, -jnp.inf)
        m = s.max(-1, keepdims=True)
        m = jnp.where(jnp.isfinite(m), m, 0)
        e = jnp.exp(s - m)
        z = jnp.maximum(e.sum(-1, keepdims=True), 1e-9)
        return weigh(e, v) / z * (m + jnp.log(z))

    candidates, report = fused(attention, *qkv(), gradients=True)
    assert not candidates[0].fused and "the log-sum-exp of a row without any key left" in candidates[0].reason, report


# --- Exponentials that do not subtract the maximum of their row ---

UNSHIFTED = {
    "nothing": lambda s: s,
    "the maximum and 0": lambda s: s - jnp.maximum(s.max(-1, keepdims=True), 0),
    "the maximum before a mask": lambda s: jnp.where(causal(), s - s.max(-1, keepdims=True), -jnp.inf),
    "the maximum before a finite mask": lambda s: jnp.where(causal(), s - s.max(-1, keepdims=True), -105.0),
}


@pytest.mark.parametrize("name", UNSHIFTED)
def test_exponentials_that_may_vanish(name):
    """Far from 0, the row sum's square is 0 or infinite even in double precision; the module is NaN long before."""

    def attend(q, k, v, bias):
        e = jnp.exp(UNSHIFTED[name](products(q, k) * SCALE + bias))
        return weigh(e / e.sum(-1, keepdims=True), v)

    def step(*arguments):
        out, pullback = jax.vjp(attend, *arguments)
        return out, pullback(jnp.cos(out))

    q, k, v = qkv(0.1)  # with larger ones, the module overflows
    bias = jnp.cos(jnp.arange(H * T, dtype=jnp.float32)).reshape(H, 1, T)
    candidates, report = fused(step, q, k, v, bias, whole=False)
    assert [candidate.fused for candidate in candidates] == [True], report


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("low", [-1e9, -105.0, -80.0])
def test_finite_masks_of_exponents(low, dtype):
    """e^-105 is 0 in f32, so that a row without keys is NaN. e^-80 is a number, with which the row is the mean."""

    def attend(q, k, v):
        s = (products(q, k) * SCALE).astype(jnp.float32)
        e = jnp.exp(jnp.where(empty_row(), s - s.max(-1, keepdims=True), low))
        return weigh((e / e.sum(-1, keepdims=True)).astype(dtype), v)

    arguments = qkv(dtype=dtype)
    candidates, report = fused(attend, *arguments, tolerance=1e-5 if dtype == jnp.float32 else 1e-2)
    assert [candidate.fused for candidate in candidates] == [low < -104], report
    assert bool(jnp.isnan(attend(*arguments)).any()) == (low < -104)


CHANGED = {
    "below 1e-30": lambda z: z / (z + 1e-30),
    "below 1e-38": lambda z: z / (z + 1e-38),
    "below 1e-43": lambda z: z / (z + 1e-43),
    "above 1e30": lambda z: 1 / (1 + z * 1e-30),
    "above 1e38": lambda z: 1 / (1 + z * 1e-38),
}


@pytest.mark.parametrize("scale", [SCALE, 1.0, 0.05])
@pytest.mark.parametrize("name", CHANGED)
def test_gradients_that_change_where_exponentials_nearly_vanish_or_overflow_stay(name, scale):
    @jax.custom_vjp
    def attend(q, k, v):
        e = jnp.exp(products(q, k) * scale)
        return weigh(e / e.sum(-1, keepdims=True), v)

    def backward(kept, d_out):
        q, k, v = kept
        e = jnp.exp(products(q, k) * scale)
        z = e.sum(-1, keepdims=True)
        p, d_p = e / z, products(d_out, v)
        d_s = p * (d_p - (p * d_p).sum(-1, keepdims=True)) * CHANGED[name](z) * scale
        return weigh(d_s, k), weigh(d_s.swapaxes(-1, -2), q), weigh(p.swapaxes(-1, -2), d_out)

    attend.defvjp(lambda q, k, v: (attend(q, k, v), (q, k, v)), backward)
    candidates, report = fused(attend, *qkv(), gradients=True, tolerance=3e-5)
    assert sum(candidate.fused for candidate in candidates) == 1, report  # the forward pass
    assert any(not candidate.fused for candidate in candidates), report
