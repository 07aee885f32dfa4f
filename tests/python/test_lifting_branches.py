"""Hand-written gradients that are wrong only at one row, one id or one number of a tensor, where the scores branch,
too. Random rows hardly ever meet such a condition by themselves.
"""

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_fused_gradients import run_both_ways, with_gradients

R = np.random.default_rng(17)
S, T, D = 300, 24, 8
ROW, KEY = jnp.arange(S)[:, None], jnp.arange(T)[None]
POSITION = jnp.arange(S, dtype=jnp.float32)[:, None]
IDS = jnp.asarray(R.integers(70, 80, (1, T))).at[0, 3].set(77).at[0, 4].set(79)
WHOLE = jnp.asarray(R.integers(0, 12, (S, T)), jnp.float32)


def tensors():
    shapes = (1, S, 1, D), (1, T, 1, D), (1, T, 1, D)
    return [jnp.asarray(R.standard_normal(shape), jnp.float32) for shape in shapes]


def attend(q, k, v, change):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(change(s), -1), v)


def pulled_back(function, cut):
    """The function, with a derivative that passes through `cut`."""

    @jax.custom_vjp
    def changed(s):
        return function(s)

    changed.defvjp(
        lambda s: (function(s), s),
        lambda s, gradient: (cut(jax.vjp(function, s)[1](gradient)[0], s),),
    )
    return changed


BRANCHES = {
    "one row": lambda s, x: ROW == 17,
    "all rows but one": lambda s, x: ROW != 17,
    "the last row": lambda s, x: ROW >= S - 1,
    "one remainder": lambda s, x: (ROW + 1) % S == 0,
    "one place": lambda s, x: (ROW == 17) & (KEY == 5),
    "one id": lambda s, x: x[0] == 77,
    "one scalar": lambda s, x: x[1] == 123456,
    "zeros of a bias": lambda s, x: x[2] == 0,
    "a narrow range of a bias": lambda s, x: jnp.abs(x[2] - 5) < 0.01,
    "a narrow range of scores": lambda s, x: jnp.abs(s - 0.5) < 0.01,
    "one whole number of scores": lambda s, x: jnp.floor(100 * s) == 77,
    "far scores": lambda s, x: jnp.floor(s) == 12345,
}


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("name", BRANCHES)
def test_gradients_that_are_wrong_where_the_scores_branch_stay(name, is_right):
    branch = BRANCHES[name]

    def function(q, k, v, *x):
        change = lambda s: jnp.where(branch(s, x), 1.5 * s + jnp.cos(KEY), s)
        cut = lambda gradient, s: jnp.where(branch(s, x), 0, gradient)
        return attend(q, k, v, change if is_right else pulled_back(change, cut))

    report = run_both_ways(with_gradients(function, 3), (*tensors(), IDS, jnp.asarray(123456), WHOLE))
    assert report.fused_count == is_right, report


@pytest.mark.parametrize("is_right", [True, False])
def test_gradients_by_values_that_leave_out_one_place_stay(is_right):
    def function(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
        place = (ROW == 17) & (KEY == 5)
        p = jax.nn.softmax(jnp.where(place, 2 * s, s), -1)
        weigh = lambda v: jnp.einsum("bhqk,bkhd->bqhd", p, v)
        changed = jax.custom_vjp(weigh)
        changed.defvjp(
            lambda v: (weigh(v), None),
            lambda _, d_out: (jnp.einsum("bhqk,bqhd->bkhd", jnp.where(place, 0, p), d_out),),
        )
        return (weigh if is_right else changed)(v)

    def both(q, k, v, d_out):
        out, pull_back = jax.vjp(lambda v: function(q, k, v), v)
        return out, pull_back(d_out)

    report = run_both_ways(both, (*tensors(), jnp.asarray(R.standard_normal((1, S, 1, D)), jnp.float32)))
    assert report.fused_count == is_right, report


# 0 in all rows but the last, for all ids but one, or for small numbers of a bias.
NUMBERS = {
    "larger of two positions": lambda x: jnp.maximum(jax.lax.iota(jnp.float32, S)[:, None] - (S - 2), 0),
    "a position as a whole number": lambda x: jnp.floor(jax.lax.iota(jnp.float32, S)[:, None] / (S - 1)),
    "larger of two ids": lambda x: jnp.maximum(x[0].astype(jnp.float32) - 78, 0),
    "larger of two integers": lambda x: jnp.maximum(x[0] - 78, 0).astype(jnp.float32),
    "quotient of ids": lambda x: (x[0] // 79).astype(jnp.float32),
    "a bias as a whole number": lambda x: jnp.floor(x[2] / 11),
    "a bias as an integer": lambda x: (x[2] / 11).astype(jnp.int32).astype(jnp.float32),
}


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("name", NUMBERS)
def test_gradients_times_numbers_that_are_0_nearly_everywhere_stay(name, is_right):
    def function(q, k, v, *x):
        change = lambda s: s + NUMBERS[name](x) * jnp.cos(KEY)
        cut = lambda gradient, s: gradient * (1 + NUMBERS[name](x))
        return attend(q, k, v, change if is_right else pulled_back(change, cut))

    report = run_both_ways(with_gradients(function, 3), (*tensors(), IDS, jnp.asarray(123456), WHOLE))
    assert report.fused_count == is_right, report


KEPT = jnp.ones((S, T), jnp.float32).at[:, 3].set(0).at[7, 5].set(0)

# Of a drawn tensor or score these make one key that has all of the probability, in each row.
ONE_HOT = {
    "a mask of floats": (lambda s, x: s + (1 - x) * -1e9, KEPT),
    "a product with a mask": (lambda s, x: s * jax.lax.stop_gradient(x) - 1e9 * (1 - jax.lax.stop_gradient(x)), KEPT),
    "a large factor": (lambda s, x: 1e4 * s, KEPT),
    "a large factor of small numbers": (lambda s, x: 1e6 * s * x, 1e-6 * KEPT),
    "a large bias": (lambda s, x: s + 1e6 * x, 1e-6 * KEPT),
    "a large quotient": (lambda s, x: s + 1e7 / x, 1e7 * (1 + KEPT)),
}
CHANGES = {
    "none": lambda d_s, p: d_s,
    "twice": lambda d_s, p: 2 * d_s,
    "more": lambda d_s, p: d_s + p * (1 - p),
    "less": lambda d_s, p: d_s * jnp.sum(p * p, -1, keepdims=True),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ONE_HOT)
def test_gradients_are_compared_where_several_keys_have_a_probability(name, change):
    """In rows with one key, p (d_p - sum p d_p) is 0, whatever it is multiplied by."""
    scores, x = ONE_HOT[name]

    @jax.custom_vjp
    def softmax(s):
        return jax.nn.softmax(s, -1)

    def backward(p, d_p):
        return (CHANGES[change](p * (d_p - jnp.sum(p * d_p, -1, keepdims=True)), p),)

    softmax.defvjp(lambda s: (softmax(s), softmax(s)), backward)

    def function(q, k, v, x):
        s = scores(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2, x)
        return jnp.einsum("bhqk,bkhd->bqhd", softmax(s), v)

    q, k, v = tensors()
    size = 1e-4 if name == "a large factor" else 1
    report = run_both_ways(with_gradients(function, 3), (size * q, k, v, x))
    assert report.fused_count == (change == "none"), report


def test_the_gradient_by_a_mask_of_floats():
    """It differs from the gradient with respect to the mask's factor; drawn masks did not distinguish the two."""
    for scores in (lambda s, x: s + (1 - x) * -1e9, lambda s, x: s + 1e6 * x):
        function = lambda q, k, v, x, scores=scores: attend(q, k, v, lambda s: scores(s, x))
        report = run_both_ways(with_gradients(function, 4), (*tensors(), KEPT))
        assert report.fused_count == 1, report


@pytest.mark.parametrize("is_right", [True, False])
def test_gradients_by_values_of_other_probabilities_that_are_1_or_0_alike_stay(is_right):
    def function(q, k, v, x):
        p = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2 + (1 - x) * -1e9, -1)
        weigh = lambda v: jnp.einsum("bhqk,bkhd->bqhd", p, v)
        changed = jax.custom_vjp(weigh)
        changed.defvjp(
            lambda v: (weigh(v), None),
            lambda _, d_out: (jnp.einsum("bhqk,bqhd->bkhd", p if is_right else p * p, d_out),),
        )
        return changed(v)

    def both(q, k, v, x, d_out):
        out, pull_back = jax.vjp(lambda v: function(q, k, v, x), v)
        return out, pull_back(d_out)

    report = run_both_ways(both, (*tensors(), KEPT, jnp.asarray(R.standard_normal((1, S, 1, D)), jnp.float32)))
    assert report.fused_count == is_right, report


LOWERED = {
    "all keys lowered": (lambda s, x: jnp.where(x[0] == 77, s - 40, s), lambda d, x: jnp.where(x[0] == 77, 0, d)),
    "all keys masked": (lambda s, x: jnp.where(x[0] == 77, s - 1e9, s), lambda d, x: jnp.where(x[0] == 77, 2 * d, d)),
    "a row without keys": (lambda s, x: jnp.where(ROW == 17, -jnp.inf, s), lambda d, x: jnp.where(ROW == 17, 1.0, d)),
    "one id in one row": (
        lambda s, x: jnp.where(x[0] == 77, 2 * s, jnp.where(ROW == 17, s + 1, s)),
        lambda d, x: jnp.where((x[0] == 77) & (ROW == 17), 0, d),
    ),
}


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("name", LOWERED)
def test_gradients_that_are_wrong_where_all_keys_or_two_conditions_meet_stay(name, is_right):
    change, wrong = LOWERED[name]

    def function(q, k, v, *x):
        scores = lambda s: change(s, x)
        return attend(q, k, v, scores if is_right else pulled_back(scores, lambda gradient, s: wrong(gradient, x)))

    for ids in (IDS, jnp.full_like(IDS, 77)):
        if name == "a row without keys":
            mine = flashlift.jax.fuse(with_gradients(function, 3))
            mine(*tensors(), ids)
            report = mine.report
        else:
            report = run_both_ways(with_gradients(function, 3), (*tensors(), ids))
        assert report.fused_count == is_right, report


MASKS = {
    "replaced": (lambda s, low: jnp.where(ROW >= KEY, s, low), lambda d: d),
    "added": (lambda s, low: s + jnp.where(ROW >= KEY, 0, low), lambda d: jnp.where(ROW >= KEY, d, 0)),
    "added to some of the kept": (
        lambda s, low: jnp.where(ROW >= KEY, s + jnp.where(KEY % 3 > 0, low, 0), low),
        lambda d: jnp.where((ROW >= KEY) & (KEY % 3 == 0), d, 0),
    ),
}


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("low", [-120.0, -1e4, -1e6, -4e6])
@pytest.mark.parametrize("name", MASKS)
def test_gradients_that_count_a_mask_within_the_reach_of_scores_as_infinite_stay(name, low, is_right):
    """The scores of some keys make up for the number, so that masked keys have probabilities, too."""
    mask, wrong = MASKS[name]
    scores = lambda s: mask(s, low)
    changed = pulled_back(scores, lambda d, s: wrong(d))
    if name == "replaced":  # the derivative without the mask
        changed = jax.custom_vjp(scores)
        changed.defvjp(lambda s: (scores(s), None), lambda _, d: (d,))
    q, k, v = (jnp.round(2 * x) for x in tensors())  # scores are exact
    q = q.at[..., 0].set(2)
    k = k.at[..., 0].set(low if name == "replaced" else 0).at[:, 4 if name == "added" else 3, :, 0].set(-low)
    report = run_both_ways(
        with_gradients(lambda q, k, v: attend(q, k, v, scores if is_right else changed), 3), (q, k, v)
    )
    assert report.fused_count == is_right, report
