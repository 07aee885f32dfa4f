"""Attention in checkpointed training steps: scores and probabilities that a policy saves for the backward pass are
behind optimization barriers and roundings that change nothing. Either both passes are fused, or both stay. All results
are compared with XLA's.
"""

import flashlift.jax
import flashlift.stablehlo
import jax
import jax.numpy as jnp
import pytest
from test_lifting_dropout import KEY, bits
from test_lifting_rules import S, T, assert_fused, assert_left_alone, fused, products, qkv, weigh

POLICIES = jax.checkpoint_policies


def attention(q, k, v, key):
    s = jnp.where(jnp.arange(T)[None, :] <= jnp.arange(S)[:, None], products(q, k) / 4, -1e30)
    return weigh(jax.nn.softmax(s, -1), v)


def with_biases(q, k, v, key):
    """Queries, keys and values are recomputed from saved tensors."""
    return attention(jnp.sin(q) + 1, jnp.sin(k) + 0.5, jnp.sin(v) + 2, key)


def with_dropout(q, k, v, key):
    p = jax.nn.softmax(products(q, k) / 4, -1)
    return weigh(jnp.where(bits(key), p / 0.75, 0), v)


def with_bits_of_jax(q, k, v, key):
    p = jax.nn.softmax(products(q, k) / 4, -1)
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.75, p.shape)
    return weigh(jnp.where(keep, p / 0.75, 0), v)


def with_division_behind_the_values(q, k, v, key):
    """The backward pass recomputes the product with the values, but does not divide it."""
    s = products(q, k) / 4
    e = jnp.exp(s - jax.lax.stop_gradient(s.max(-1, keepdims=True)))
    return weigh(e, v) / e.sum(-1, keepdims=True)


def fused_step(forward, policy):
    """The report on the attentions that are fused in a training step."""

    def step(q, k, v, key):
        loss = jax.checkpoint(lambda *x: jnp.sum(jnp.sin(forward(*x))), policy=policy)
        return jax.value_and_grad(loss, (0, 1, 2))(q, k, v, key)

    return assert_fused(step, *qkv(), KEY)


@pytest.mark.parametrize("policy", [None, POLICIES.dots_saveable, POLICIES.dots_with_no_batch_dims_saveable])
@pytest.mark.parametrize("forward", [attention, with_biases, with_dropout])
def test_checkpoint_policies(forward, policy):
    fused_step(forward, policy)


def test_a_recomputed_product_that_is_not_divided():
    def step(q, k, v):
        loss = jax.checkpoint(lambda *x: jnp.sum(weights * with_division_behind_the_values(*x, KEY)))
        return jax.value_and_grad(loss, (0, 1, 2))(q, k, v)

    weights = jnp.cos(qkv()[0])
    candidates, report = fused(step, *qkv())
    assert [candidate.fused for candidate in candidates] == [True, True], report


def module_of(forward, policy):
    def step(q, k, v, key):
        loss = jax.checkpoint(lambda *x: jnp.sum(jnp.sin(forward(*x))), policy=policy)
        return jax.value_and_grad(loss, (0, 1, 2))(q, k, v, key)

    return jax.export.export(jax.jit(step))(*qkv(), KEY).mlir_module()


@pytest.mark.parametrize("forward", [attention, with_biases, with_dropout, with_bits_of_jax])
def test_saved_scores_are_not_saved_any_more(forward):
    module = flashlift.stablehlo.fuse(module_of(forward, POLICIES.dots_saveable), gradients=True).module
    assert module.count("@flashlift.attention_backward") + module.count('"flashlift.attention_backward"') == 1
    assert "exponential" not in module
    barriers = [line for line in module.splitlines() if "optimization_barrier" in line]
    assert not any(f"x{S}x{T}xf32" in line for line in barriers)


def test_what_is_not_fused_stays_behind_its_barrier():
    """Without gradients nothing is fused, and the module stays the same byte for byte."""
    text = module_of(attention, POLICIES.dots_saveable)
    result = flashlift.stablehlo.fuse(text, gradients=False)
    assert result.module == text


def test_a_barrier_of_others_keeps_them_together():
    def two(q, k, v, key):
        s, other = jax.lax.optimization_barrier((products(q, k) / 4, jnp.sin(q)))
        return weigh(jax.nn.softmax(s, -1), v) + other

    assert_fused(two, *qkv(), KEY)


def test_scores_with_another_reader_stay_behind_their_barrier():
    def two(q, k, v, key):
        s = products(q, k) / 4
        held, other = jax.lax.optimization_barrier((s, jnp.sin(q)))
        first = attention(q, k, v, key)
        return first + other, jax.nn.softmax(held, -1), held

    candidates, report = fused(lambda *x: two(*x), *qkv(), KEY)
    assert candidates[0].fused, report


@pytest.mark.parametrize("bits_of", ["scores", "probabilities"])
def test_a_rounding_that_changes_numbers_stays(bits_of):
    def rounded(q, k, v, key):
        s = products(q, k) / 4
        s = jax.lax.reduce_precision(s, 8, 10) if bits_of == "scores" else s
        p = jax.nn.softmax(s, -1)
        return weigh(jax.lax.reduce_precision(p, 8, 10) if bits_of == "probabilities" else p, v)

    assert_left_alone(rounded, *qkv(), KEY, words="reduce_precision")


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_rounding_to_the_type_itself_changes_nothing(dtype):
    exponent, mantissa = {jnp.float32: (8, 23), jnp.bfloat16: (8, 7), jnp.float16: (5, 10)}[dtype]

    def rounded(q, k, v, key):
        s = jax.lax.reduce_precision(products(q, k) / 4, exponent, mantissa)
        return weigh(jax.lax.reduce_precision(jax.nn.softmax(s, -1), exponent, mantissa), v)

    assert_fused(rounded, *qkv(dtype=dtype), KEY, tolerance=2e-5 if dtype == jnp.float32 else 3e-2)


def test_sums_along_other_dimensions_are_not_the_same():
    """Keras computes the positions of its causal mask this way."""

    def keras(q, k, v, key):
        ones = jnp.ones((S, T), jnp.int32)
        mask = jnp.cumsum(ones, -2) >= jnp.cumsum(ones, -1)
        return weigh(jax.nn.softmax(jnp.where(mask, products(q, k) / 4, -1e9), -1), v)

    assert_fused(keras, *qkv(), KEY, gradients=True)


def test_values_that_are_computed_differently_are_not_the_same():
    """The backward pass reads keys made of another constant, and is otherwise the same."""

    @jax.custom_vjp
    def attend(q, k, v):
        return attention(q, jnp.sin(k) + 0.5, v, None)

    def backward(saved, d):
        q, k, v = jax.lax.optimization_barrier(saved)
        return jax.vjp(lambda q, k, v: attention(q, jnp.sin(k) + 0.25, v, None), q, k, v)[1](d)

    attend.defvjp(lambda q, k, v: (attend(q, k, v), (q, k, v)), backward)
    fused(lambda q, k, v: jax.grad(lambda *x: jnp.sum(jnp.sin(attend(*x))), (0, 1, 2))(q, k, v), *qkv())


def test_barriers_around_many_values_join_none_of_them():
    """Each layer's barrier holds all saved values. Each of its results depends on one value alone."""
    layers = 3

    def block(x, weights):
        q, k, v, wide, narrow = weights
        x = x + weigh(jax.nn.softmax(products(x @ q, x @ k) / 4, -1), x @ v)
        return x + jnp.tanh(x @ wide) @ narrow

    def loss(weights, x):
        for each in weights:
            x = jax.checkpoint(block, policy=POLICIES.dots_with_no_batch_dims_saveable)(x, each)
        return jnp.sum(jnp.sin(x))

    square = jnp.eye(8) / 2 + 0.05
    weights = [(square, square, square, jnp.ones((8, 16)) / 16, jnp.ones((16, 8)) / 16)] * layers
    report = assert_fused(jax.grad(loss), weights, qkv(0.25)[0])
    assert "not looked for" not in report


def test_a_bias_on_an_explicit_mesh():
    """The recomputed bias has an annotation behind the barrier. The forward pass reads the bias before the barrier."""

    def attend(q, k, v, bias):
        return weigh(jax.nn.softmax(products(q, k) + bias, -1), v)

    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    step = jax.value_and_grad(lambda *given: jnp.sum(jnp.sin(jax.checkpoint(attend)(*given))), (0, 1, 2, 3))
    with jax.set_mesh(mesh):
        operands = [jax.device_put(one, jax.P("x")) for one in qkv()] + [jnp.ones((1, 1, 1, T))]
        fused_step = flashlift.jax.fuse(step, strict=True)
        for got, expected in zip(*map(jax.tree.leaves, (fused_step(*operands), step(*operands))), strict=True):
            assert jnp.allclose(got, expected, atol=1e-4)
