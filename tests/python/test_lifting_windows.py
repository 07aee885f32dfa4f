"""Row maxima and sums by `reduce_window`, as XLA's passes write large reductions, and reductions that start from other
numbers. All results are compared with XLA's.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from test_lifting_rules import T, assert_fused, assert_left_alone, products, qkv, weigh


def windows(x, start, reduce, size, padding="VALID", stride=None):
    return lax.reduce_window(x, np.float32(start), reduce, (1, 1, 1, size), (1, 1, 1, stride or size), padding)


def whole(x, start, reduce):
    return lax.reduce(x, np.float32(start), reduce, (3,))[..., None]


def attention(reduce):
    """Attention whose softmax has `reduce(x, start, reducer)` as its row maximum and row sum."""

    def function(q, k, v):
        s = products(q, k) / 4
        e = jnp.exp(s - reduce(s, -jnp.inf, lax.max))
        return weigh(e / reduce(e, 0, lax.add), v)

    return function


LOW = ((0, 0), (0, 0), (0, 0), (3, 0))
EVERY_ELEMENT_ONCE = {
    "one window": lambda x, *how: windows(x, *how, T),
    "one window, padded": lambda x, *how: windows(x, *how, T + 3, LOW),
    "side by side": lambda x, *how: whole(windows(x, *how, 4), *how),
    "side by side, padded": lambda x, *how: whole(windows(x, *how, 5, "SAME"), *how),
    "side by side, padded in front": lambda x, *how: whole(windows(x, *how, 5, LOW), *how),
    "three times": lambda x, *how: whole(windows(windows(x, *how, 3), *how, 2), *how),
}
OTHERS = {
    "not the last element": lambda x, *how: whole(windows(x, *how, 5), *how),
    "some twice": lambda x, *how: whole(windows(x, *how, 6, stride=3), *how),
    "every second one": lambda x, start, reduce: lax.reduce_window(
        x, np.float32(start), reduce, (1, 1, 1, T // 2), (1, 1, 1, 1), "VALID", None, (1, 1, 1, 2)
    )[..., :1],
    "of two queries": lambda x, start, reduce: whole(
        lax.reduce_window(x, np.float32(start), reduce, (1, 1, 2, 4), (1, 1, 2, 4), "VALID"), start, reduce
    ).repeat(2, 2),
    "another start of the windows": lambda x, start, reduce: whole(
        windows(x, start if start else 0.5, reduce, 4), start, reduce
    ),
    "a sum of maxima": lambda x, start, reduce: whole(windows(x, -jnp.inf, lax.max, 4), start, reduce),
}


@pytest.mark.parametrize("name", EVERY_ELEMENT_ONCE)
def test_windows_that_hold_each_element_once(name):
    assert_fused(attention(EVERY_ELEMENT_ONCE[name]), *qkv())


@pytest.mark.parametrize("name", OTHERS)
def test_other_windows_stay(name):
    assert_left_alone(attention(OTHERS[name]), *qkv())


@pytest.mark.parametrize("less_maximum", [False, True])
def test_a_sum_that_starts_from_a_number_stays(less_maximum):
    """XLA on a CPU adds it several times."""

    def of_start(q, k, v):
        s = products(q, k) / 4
        e = jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True)) if less_maximum else s)
        return weigh(e / lax.reduce(e, np.float32(1), lax.add, (3,))[..., None], v)

    assert_left_alone(of_start, *qkv(), words="starts from a number other than 0")


def test_a_maximum_that_starts_from_a_number_is_one_of_it():
    def softmax_one(q, k, v):
        s = products(q, k) / 4
        m = lax.reduce(s, np.float32(0), lax.max, (3,))[..., None]
        e = jnp.exp(s - m)
        return weigh(e / (e.sum(-1, keepdims=True) + jnp.exp(-m)), v)

    assert_fused(softmax_one, *qkv())
