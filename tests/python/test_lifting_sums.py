"""Products of queries and keys, and of probabilities and values, written as multiplications and sums, for example for
one query of a decoder. All results are compared with XLA's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lifting_rules import T, assert_fused, assert_left_alone, fused, qkv


def one_query():
    q, k, v = qkv()
    return q[:, :, 0], k, v


def scores(q, k):
    return (q[:, :, None] * k).sum(-1)


def weigh(p, v):
    return (p[..., None] * v).sum(-2)


def softmax(s):
    return jax.nn.softmax(s, -1)


def seen(s):
    return jnp.where(jnp.arange(T) < jnp.asarray([[[5]], [[9]]]), s, -jnp.inf)


FUSED = {
    "both": lambda q, k, v: weigh(softmax(scores(q, k) / 4), v),
    "masked": lambda q, k, v: weigh(softmax(seen(scores(q, k))), v),
    "scores": lambda q, k, v: jnp.einsum("bhk,bhkd->bhd", softmax(scores(q, k)), v),
    "values": lambda q, k, v: weigh(softmax(jnp.einsum("bhd,bhkd->bhk", q, k)), v),
    "shared keys": lambda q, k, v: weigh(softmax(scores(q, k[:, :1])), v[:, :1]),
    "keys last": lambda q, k, v: weigh(softmax((q[:, :, None] * k).sum(3, keepdims=True)[..., 0]), v),
    "keys in front": lambda q, k, v: (
        jax.nn.softmax((q[:, None] * k.swapaxes(1, 2)).sum(-1), 1)[..., None] * v.swapaxes(1, 2)
    ).sum(1),
    "norms beside": lambda q, k, v: weigh(softmax(scores(q, k) / jnp.sqrt((k * k).sum(-1) + 1)), v),
}


@pytest.mark.parametrize("name", FUSED)
def test_sums_of_one_query_are_products(name):
    assert_fused(FUSED[name], *one_query())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sums_of_16_bit_numbers(dtype):
    q, k, v = qkv(dtype=dtype)
    assert_fused(FUSED["both"], q[:, :, 0], k, v, tolerance=3e-2)


def test_products_beside_an_attention_keep_their_wide_terms():
    """They are read as multiplications and sums. A call's bias may be such a sum, which then stays in the module."""
    q, k, v = (x.swapaxes(1, 2) for x in qkv(dtype=jnp.float16))

    def attend(q, k, v):
        norms = jnp.einsum("bkhd,bkhd->bhk", 256 * k, 256 * k, preferred_element_type=jnp.float32) / 2**17
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4 - norms[:, :, None]
        return jnp.einsum("bhqk,bkhd->bhqd", softmax(s).astype(v.dtype), v)

    assert_fused(attend, q, k, v, gradients=True, tolerance=5e-3)


def test_sums_of_several_queries():
    def attend(q, k, v):
        return (softmax((q[:, :, :, None] * k[:, :, None]).sum(-1))[..., None] * v[:, :, None]).sum(-2)

    assert_fused(attend, *qkv())


GRADIENTS = {
    "scores": lambda s, v: jnp.einsum("bhqk,bhkd->bhqd", softmax(s()), v),
    "both": lambda s, v: (softmax(s())[..., None] * v[:, :, None]).sum(-2),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_sums_of_several_queries(name):
    def attend(q, k, v):
        return GRADIENTS[name](lambda: (q[:, :, :, None] * k[:, :, None]).sum(-1) / 3, v)

    assert_fused(attend, *qkv(), gradients=True)


def test_gradients_of_summed_values():
    def attend(q, k, v):
        return (softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) / 3)[..., None] * v[:, :, None]).sum(-2)

    assert_fused(attend, *qkv(), gradients=True)


STAY = {
    "values of the queries": lambda q, k, v: (softmax(scores(q, k))[..., None] * v * q[:, :, None]).sum(-2),
    "summed over heads": lambda q, k, v: (softmax(scores(q, k))[..., None] * v).sum((-2, -3)),
    "distances": lambda q, k, v: weigh(softmax(-jnp.abs(q[:, :, None] - k).sum(-1)), v),
    "squares of scores": lambda q, k, v: weigh(softmax(((q[:, :, None] * k) ** 2).sum(-1)), v),
    "another reader": lambda q, k, v: (lambda p: (weigh(p, v), p))(softmax(scores(q, k))),
}


@pytest.mark.parametrize("name", STAY)
def test_other_sums_stay(name):
    candidates, report = fused(STAY[name], *one_query())
    assert not any(candidate.fused for candidate in candidates), report


def test_gradients_have_a_reason():
    q, k, v = one_query()
    candidates, report = fused(FUSED["both"], q, k, v, gradients=True)
    assert candidates and all(candidate.reason for candidate in candidates), report


def test_row_sums_of_masked_exponentials_are_no_products():
    """The mask is broadcast, too."""
    mask = jnp.asarray(np.arange(T) != 3, jnp.float32)

    def attend(q, k, v):
        e = jnp.exp(scores(q, k)) * mask
        return weigh(e, v) / e.sum(-1, keepdims=True)

    assert_left_alone(attend, *one_query(), words="multiplied by a float tensor")

    def keep(q, k, v):
        e = jnp.where(mask > 0, jnp.exp(scores(q, k)), 0)
        return weigh(e, v) / e.sum(-1, keepdims=True)

    assert_fused(keep, *one_query())
