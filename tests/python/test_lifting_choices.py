"""The gradient of lax.cond and lax.switch: branches return probabilities, and the same branches of a second choice read
them.
"""

import flashlift.jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

R = np.random.default_rng(5)
S, D = 24, 8


def normal(*shape):
    return jnp.asarray(R.standard_normal(shape), jnp.float32)


X, WEIGHTS = normal(2, S, 4 * D), [normal(4 * D, 4 * D) / 6 for _ in range(3)]
ROW, KEY = jnp.arange(S)[:, None], jnp.arange(S)[None]
CAUSAL, NEAR = ROW >= KEY, abs(ROW - KEY) < 5
KEY_OF_DROPOUT = jax.random.key(3)


def attend(x, weights, keep, bias=0.0, drop=lambda p: p):
    q, k, v = (jnp.reshape(x @ w, (2, S, 4, D)) for w in weights)
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 3 + bias
    p = drop(jax.nn.softmax(jnp.where(keep, s, -jnp.inf), -1))
    return x + jnp.einsum("bhqk,bkhd->bqhd", p, v).reshape(x.shape)


CHOICES = {
    "cond": (2, lambda i, x, w: jax.lax.cond(i > 0, lambda: attend(x, w, CAUSAL), lambda: attend(x, w, NEAR))),
    "one branch": (1, lambda i, x, w: jax.lax.cond(i > 0, lambda x: attend(x, w, CAUSAL), jnp.tanh, x)),
    "switch": (
        2,
        lambda i, x, w: jax.lax.switch(
            i, [lambda x: attend(x, w, CAUSAL), lambda x: x @ w[0], lambda x: attend(2 * x, w, NEAR, KEY / 9.0)], x
        ),
    ),
    "two layers": (
        2,
        lambda i, x, w: jax.lax.cond(i > 0, lambda: attend(attend(x, w, CAUSAL), w, NEAR), lambda: x),
    ),
    "a factor for dropout": (
        2,
        lambda i, x, w: jax.lax.cond(
            i > 0,
            lambda: attend(x, w, CAUSAL, drop=lambda p: p * (jax.random.bernoulli(KEY_OF_DROPOUT, 0.5, p.shape) / 0.5)),
            lambda: attend(x, w, NEAR),
        ),
    ),
    "two choices": (
        2,
        lambda i, x, w: jax.lax.cond(
            i > 0,
            lambda x: attend(x, w, CAUSAL),
            jnp.cos,
            jax.lax.cond(i > 0, lambda x: attend(x, w, NEAR), jnp.sin, x),
        ),
    ),
}

LAYERS = jnp.arange(3)


def step(x, i, w):
    return jax.lax.cond(i % 2 == 0, lambda x: attend(x, w, CAUSAL), lambda x: attend(x, w, NEAR), x), None


def step_of_data(x, w):
    return jax.lax.cond(x[0, 0, 0] > 0, lambda x: attend(x, w, CAUSAL), lambda x: jnp.tanh(x @ w[0]), x), None


# The two choices of a gradient stand in two loops, or in branches of two outer choices.
CHOICES |= {
    "in a loop": (2, lambda i, x, w: jax.lax.scan(lambda x, layer: step(x, i + layer, w), x, LAYERS)[0]),
    "in a loop backwards": (
        2,
        lambda i, x, w: jax.lax.scan(lambda x, layer: step(x, i + layer, w), x, LAYERS, reverse=True)[0],
    ),
    "in a loop by data": (1, lambda i, x, w: jax.lax.scan(lambda x, _: step_of_data(x, w), x, None, length=3)[0]),
    "two layers in a loop": (
        3,
        lambda i, x, w: jax.lax.scan(
            lambda x, layer: (
                jax.lax.cond(
                    (i + layer) % 2 > 0,
                    lambda x: attend(jnp.tanh(attend(x, w, CAUSAL)), w, NEAR),
                    lambda x: attend(x / 2, w, CAUSAL),
                    x,
                ),
                None,
            ),
            x,
            LAYERS[:2],
        )[0],
    ),
    "before another choice in a loop": (
        4,
        lambda i, x, w: jax.lax.scan(
            lambda x, layer: step(jnp.tanh(step(x, i + layer, w)[0]), layer // 2, w), x, LAYERS[:2]
        )[0],
    ),
    "before attention in a loop": (
        3,
        lambda i, x, w: jax.lax.scan(
            lambda x, layer: (attend(jnp.tanh(step(x, i + layer, w)[0]), w, NEAR), None), x, LAYERS[:2]
        )[0],
    ),
    "in a choice": (
        3,
        lambda i, x, w: jax.lax.cond(i > 0, lambda x: step(x, i, w)[0], lambda x: attend(2 * x, w, CAUSAL & NEAR), x),
    ),
}


def run_each(function, choices, *operands):
    """Compares with XLA, for each of these indices, if anything is fused."""
    mine, theirs = flashlift.jax.fuse(function), jax.jit(function)
    if mine.analyze(*choices[0], *operands).fused_count == 0:
        return mine.report  # what would run is jax.jit(function) (test_what_stays_unfused_is_left_to_jax)
    for choice in choices:
        got, want = (jax.tree.leaves(each(*choice, *operands)) for each in (mine, theirs))
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5 * max(1, abs(other).max()))
    return mine.report


@pytest.mark.parametrize("name", CHOICES)
def test_gradients(name):
    layers, function = CHOICES[name]
    loss = lambda i, *args: jnp.sum(jnp.sin(function(i, *args)))
    report = run_each(jax.value_and_grad(loss, argnums=(1, 2)), [(0,), (1,), (2,)], X, WEIGHTS)
    assert report.fused_count == 2 * layers, report
    assert all("mask_mod" in each.problem for each in report.candidates if each.fused), report


def hand_written(i, j, q, k, v, d_out):
    """A forward pass by choice i, and its backward pass by choice j."""

    def forward(keep):
        p = jax.nn.softmax(jnp.where(keep, q @ k.mT, -jnp.inf), -1)
        return p @ v, p

    def backward(keep):
        d_s = p * (d_out @ v.mT - jnp.sum(d_out * out, -1, keepdims=True))
        return jnp.where(keep, d_s, 0) @ k, jnp.where(keep, d_s, 0).mT @ q, p.mT @ d_out

    out, p = jax.lax.switch(i, [lambda: forward(CAUSAL), lambda: forward(NEAR)])
    return out, *jax.lax.switch(j, [lambda: backward(CAUSAL), lambda: backward(NEAR)])


@pytest.mark.parametrize("is_same", [True, False])
def test_branches_of_a_choice_on_another_index_stay(is_same):
    function = (lambda i, j, *x: hand_written(i, i, *x)) if is_same else hand_written
    report = run_each(function, [(0, 0), (1, 1), (0, 1), (1, 0)], *(normal(2, S, D) for _ in range(4)))
    assert report.fused_count == (4 if is_same else 0), report


@pytest.mark.parametrize("is_same", [True, False])
def test_branches_of_a_choice_on_another_index_in_a_second_loop_stay(is_same):
    def forward(keep, q, k, v):
        p = jax.nn.softmax(jnp.where(keep, q @ k.mT, -jnp.inf), -1)
        return p @ v, p

    def backward(keep, p, q, k, v, d_out):
        d_p = d_out @ v.mT
        d_s = p * (d_p - jnp.sum(d_p * p, -1, keepdims=True))
        return jnp.where(keep, d_s, 0) @ k, jnp.where(keep, d_s, 0).mT @ q, p.mT @ d_out

    def function(i, k, v, d_out, q):
        def layer(q, number):
            j = (number + i) % 2
            out, p = jax.lax.switch(j, [lambda: forward(CAUSAL, q, k, v), lambda: forward(NEAR, q, k, v)])
            return out, (p, j, q)

        def gradient(_, x):
            p, j, q = x
            j = j if is_same else 1 - j
            each = (p, q, k, v, d_out)
            return None, jax.lax.switch(j, [lambda: backward(CAUSAL, *each), lambda: backward(NEAR, *each)])

        out, stored = jax.lax.scan(layer, q, LAYERS)
        return out, jax.lax.scan(gradient, None, stored, reverse=True)[1]

    report = run_each(function, [(0,), (1,)], *(normal(2, S, D) for _ in range(4)))
    assert report.fused_count == (4 if is_same else 0), report


def test_a_branch_that_stays_leaves_the_others():
    """The branches return their residuals in the same places."""

    def function(i, x):
        attention = lambda x: jax.nn.softmax(x @ x.mT, -1) @ x
        too_deep = lambda x: attention(jnp.tile(x, (1, 1, 40)))[..., : x.shape[-1]]
        return jnp.sum(jnp.sin(jax.lax.cond(i > 0, attention, too_deep, x)))

    report = run_each(jax.value_and_grad(function, argnums=1), [(0,), (1,)], normal(2, S, D))
    assert report.fused_count == 2, report


def test_probabilities_of_layers_that_the_caller_gets_stay():
    def function(i, x):
        attention = lambda x: (jnp.tanh((p := jax.nn.softmax(x @ x.mT / 9, -1)) @ x), p)
        nothing = lambda x: (x, jnp.zeros((2, S, S)))
        layer = lambda x, j: jax.lax.cond(j > 0, attention, nothing, x)
        x, p = jax.lax.scan(layer, x, LAYERS + i)
        return jnp.sum(jnp.sin(x)), p

    report = run_each(jax.value_and_grad(function, argnums=1, has_aux=True), [(0,), (-1,)], X)
    assert report.fused_count == 0, report


def test_probabilities_that_the_caller_gets_stay():
    def step(i, x):
        attention = lambda x: (p := jax.nn.softmax(x @ x.mT, -1), p @ x)
        nothing = lambda x: (jnp.zeros((2, S, S)), x)
        results, pull_back = jax.vjp(lambda x: jax.lax.cond(i > 0, attention, nothing, x), x)
        return results, pull_back(results)

    report = run_each(step, [(0,), (1,)], X)
    assert report.fused_count == 0, report
