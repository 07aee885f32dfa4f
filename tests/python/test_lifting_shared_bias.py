"""Layers that share a bias. JAX adds their gradients of the scores before it sums them; each attention gives its own
sum (docs/design.md, "Rearranged"). All results are compared with XLA's.
"""

import flashlift.stablehlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_lifting_rules import B, D, H, S, fused, products, weigh

RNG = np.random.default_rng(19)
TABLE = jnp.asarray(RNG.standard_normal((8, H)), jnp.float32)
PADDED = jnp.asarray(RNG.random((B, S)) > 0.3).at[1].set(False)


def rows():
    return tuple(jnp.asarray(RNG.standard_normal((B, H, S, D)), jnp.float32) for _ in range(2))


def table_of(table):
    """T5's: an entry of the table for each distance."""
    distance = jnp.arange(S)[None, :] - jnp.arange(S)[:, None]
    return jnp.take(table, jnp.clip(distance + 4, 0, 7), axis=0).transpose(2, 0, 1)[None]


def padded(low):
    return jnp.where(PADDED[:, None, None], 0.0, low)


BIAS = {
    "added padding": lambda table: table_of(table) + padded(-1e9),
    "lowest": lambda table: table_of(table) + padded(float(np.finfo(np.float32).min)),
    "in 16 bits": lambda table: (table_of(table) + padded(-1e9)).astype(jnp.bfloat16).astype(jnp.float32),
    "without padding": table_of,
}


def layers(bias_of, count=3, change=lambda bias, layer: bias):
    def model(x, y, table):
        bias = bias_of(table)
        for layer in range(count):
            x = x + weigh(jax.nn.softmax(products(x, y) / 3 + change(bias, layer), -1), y)
        return x

    return model


@pytest.mark.parametrize("name", ["added padding", "lowest", "without padding"])
def test_each_layer_sums_its_own_gradient(name):
    candidates, report = fused(layers(BIAS[name]), *rows(), TABLE, gradients=True, tolerance=5e-5)
    assert len(candidates) == 3 and all(candidate.fused for candidate in candidates), report


@jax.custom_vjp
def halved_gradient(bias):
    return bias


halved_gradient.defvjp(lambda bias: (bias, ()), lambda _, ct: (0.5 * ct,))
CHANGES = {
    "a layer whose gradient is halved": lambda bias, layer: halved_gradient(bias) if layer == 1 else bias,
    "a layer with a negative bias": lambda bias, layer: -bias if layer == 2 else bias,
    "a layer with a capped bias": lambda bias, layer: 4 * jnp.tanh(bias / 4) if layer == 0 else bias,
}


@pytest.mark.parametrize("bias", ["added padding", "in 16 bits"])
@pytest.mark.parametrize("name", CHANGES)
def test_sums_of_changed_gradients_stay_right(name, bias):
    tolerance = 5e-5 if bias == "added padding" else 2e-2
    fused(layers(BIAS[bias], change=CHANGES[name]), *rows(), TABLE, gradients=True, tolerance=tolerance)


def test_a_bias_that_is_also_used_otherwise_stays_right():
    def model(x, y, table):
        bias = BIAS["added padding"](table)
        return layers(lambda _: bias)(x, y, table) + jnp.sin(bias).sum((1, 3))[:, None, :, None]

    fused(model, *rows(), TABLE, gradients=True, tolerance=5e-5)


def test_gradients_that_are_returned_before_their_sum_stay_right():
    x, y = rows()
    bias = BIAS["added padding"](TABLE)
    model = layers(lambda bias: bias, count=2)

    def gradients(x, y, bias):
        d_bias = jax.grad(lambda bias: jnp.sin(model(x, y, bias)).sum())(bias)
        return d_bias, d_bias.sum(0), d_bias.max(0)

    fused(gradients, x, y, bias, tolerance=5e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_gradient_by_a_bias_and_a_mask_is_summed_over_what_the_bias_shares(dtype):
    """In 16 bits, the sum of both is a number of its own, and its gradient has the size of the scores."""
    (q, k), table = rows(), TABLE.astype(dtype)
    q, k = q.astype(dtype), k.astype(dtype)

    def attend(q, k, table):
        s = products(q, k) + (table_of(table) + padded(-1e9).astype(dtype))
        return weigh(jax.nn.softmax(s.astype(jnp.float32), -1).astype(dtype), k)

    candidates, report = fused(attend, q, k, table, gradients=True, tolerance=5e-5 if dtype == jnp.float32 else 3e-2)
    assert [candidate.fused for candidate in candidates] == [True], report

    def both(*arguments):
        out, pullback = jax.vjp(attend, *arguments)
        return out, pullback(out)

    text = flashlift.stablehlo.fuse(jax.jit(both).lower(q, k, table).as_text(), gradients=True).module
    (call,) = [line for line in text.splitlines() if "flashlift.attention_backward" in line]
    assert call.endswith(f"tensor<{S}x{S}x{H}xf32>)"), call


def test_a_gradient_that_is_also_returned_before_its_sum_has_its_own_size():
    q, k = rows()
    bias = BIAS["in 16 bits"](TABLE)

    def gradients(q, k, bias):
        attend = lambda bias: jnp.sin(weigh(jax.nn.softmax(products(q, k) / 3 + bias, -1), k))
        out, pullback = jax.vjp(attend, bias)
        (d_bias,) = pullback(out)
        return out, d_bias, d_bias.sum(0), d_bias.sum((0, 2))

    candidates, report = fused(gradients, q, k, bias, tolerance=5e-5)
    assert [candidate.fused for candidate in candidates] == [True], report
