"""Several products of the same probabilities with different values: one call. Compared with XLA's results of the
original, in both directions.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lifting_rules import assert_left_alone, fused, products, weigh

B, H, S, T, D = 2, 2, 16, 24, 8
KEPT = jnp.asarray(np.random.default_rng(5).random((B, H, S, T)) < 0.8)


def draw(*shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), dtype)


def qk():
    return draw(B, H, S, D), draw(B, H, T, D)


def softmax(q, k):
    return jax.nn.softmax(jnp.where(jnp.arange(T) <= jnp.arange(S)[:, None] + 3, products(q, k) / 4, -1e9), -1)


def weigh_all(p, *values):
    return [weigh(p, v) for v in values]


V, U = draw(B, H, T, D), draw(B, H, T, 5)
OUTPUTS = {  # and the values
    "alike": (lambda p, v, u: (weigh(p, v), weigh(p, u)), (V, U)),
    "other layouts": (lambda p, v, u: (weigh(p, v), jnp.einsum("bhqk,bkhd->bqhd", p, u)), (V, draw(B, T, H, 5))),
    "points": (lambda p, v, u: (weigh(p, v), jnp.einsum("bhqk,bkhpc->bqhpc", p, u)), (V, draw(B, T, H, 4, 3))),
    "one number": (lambda p, v, u: (weigh(p, v), jnp.einsum("bhqk,bhk->bhq", p, u)), (V, draw(B, H, T))),
    "three": (lambda p, v, u, w: (weigh(p, u), weigh(p, v), weigh(p, w)), (V, U, draw(B, H, T, 3))),
    "computed later": (
        lambda p, v, u: (jnp.sin(weigh(p, v)), weigh(p, jnp.cos(u).swapaxes(1, 2))),
        (V, draw(B, T, H, 5)),
    ),
    "squares": (lambda p, v: weigh(p, v * v) - weigh(p, v) ** 2, (V,)),
    "multiplied": (lambda p, v, u: weigh(p, v) * weigh(p, u), (V, draw(B, H, T, D) + 1)),
    "added": (lambda p, v, u: weigh(p, v) + weigh(p, u), (V, draw(B, H, T, D) + 1)),
    "dropout": (lambda p, v, u: weigh_all(jnp.where(KEPT, p / 0.8, 0), v, u), (V, U)),
}


@pytest.mark.parametrize("differentiated", ["nothing", "queries, keys, values", "values alone"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_one_call_gives_all_outputs(name, differentiated):
    outputs, values = OUTPUTS[name]

    def attention(*given):
        q, k = given[-2:] if differentiated == "values alone" else given[:2]
        v = given[:-2] if differentiated == "values alone" else given[2:]
        return jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(outputs(softmax(q, k), *v))])

    arguments = (*values, *qk()) if differentiated == "values alone" else (*qk(), *values)
    candidates, report = fused(attention, *arguments, gradients=differentiated != "nothing")
    assert [candidate.fused for candidate in candidates] == [True], report


@pytest.mark.parametrize("gradients", [False, True])
def test_keys_are_values_too(gradients):
    def attention(q, k, v):
        p = softmax(q, k)
        return jnp.concatenate([weigh(p, v), weigh(p, k)], -1)

    candidates, report = fused(attention, *qk(), V, gradients=gradients)
    assert [candidate.fused for candidate in candidates] == [True], report


@pytest.mark.parametrize("gradients", [False, True])
def test_bf16(gradients):
    def attention(q, k, v):
        p = softmax(q, k)
        return jnp.concatenate([weigh(p, v), weigh(p, jnp.sin(v))], -1)

    arguments = [x.astype(jnp.bfloat16) for x in (*qk(), V)]
    candidates, report = fused(attention, *arguments, gradients=gradients, tolerance=3e-2)
    assert [candidate.fused for candidate in candidates] == [True], report


STAY = {
    "values of the other output": lambda p, v: (weigh(p, v), weigh(p, v + weigh(p, v).mean())),
    "values of the probabilities": lambda p, v: (weigh(p, v), weigh(p, v * p.sum(2)[..., None])),
    "probabilities, too": lambda p, v: (weigh(p, v), weigh(p, v + 1), p),
    "too deep": lambda p, v: (weigh(p, v), weigh(p, jnp.tile(v, 32))),
}


@pytest.mark.parametrize("name", STAY)
def test_other_uses_of_the_probabilities_stay(name):
    assert_left_alone(lambda q, k, v: STAY[name](softmax(q, k), v), *qk(), V)


def test_the_same_probabilities_twice_are_not_two_parts_of_the_keys():
    def attention(q, k, v):
        p, deep = softmax(q, k), jnp.tile(v, 32)
        return weigh(p, deep) + weigh(p, deep + 1)

    _, report = fused(attention, *qk(), V, gradients=True)
    assert "weights other values with the same probabilities" in report, report
