"""Each pair of matrix products with a softmax in between is a candidate in the report, with a reason if it stays
unfused.
"""

import time

import flashlift.stablehlo
import jax
import jax.numpy as jnp
import pytest

HEAD = "%q: tensor<8x16xf32>, %k: tensor<8x16xf32>, %v: tensor<8x16xf32>"
SCORES = """
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1] : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
"""
SOFTMAX = """
  %e = stablehlo.exponential {scores} : tensor<8x8xf32>
  %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  %w = stablehlo.broadcast_in_dim %l, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32>
  %p = stablehlo.divide %e, %w : tensor<8x8xf32>
"""
OUTPUT = """
  %o = stablehlo.dot_general {weights}, %v, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
"""


def module(*parts, head=HEAD):
    return f"func.func public @main({head}) -> tensor<8x16xf32> {{{''.join(parts)}  return %o : tensor<8x16xf32>\n}}\n"


def softmax(scores="%s"):
    return SOFTMAX.format(scores=scores)


def output(weights="%p"):
    return OUTPUT.format(weights=weights)


def call(target, operand):
    return f"\n  %c = stablehlo.custom_call @{target}({operand}) : (tensor<8x8xf32>) -> tensor<8x8xf32>\n"


def case(name, product, operands, type):
    """A product in both branches of a `case`, as jax.export writes it for several platforms."""
    branch = f"""{{
    {name}0 = stablehlo.dot_general {product} : {operands} -> {type}
    stablehlo.return {name}0 : {type}
  }}"""
    return f"""
  %i = stablehlo.constant dense<0> : tensor<i32>
  {name} = "stablehlo.case"(%i) ({branch}, {branch}) : (tensor<i32>) -> {type}
"""


SCORES_IN_CASE = case(
    "%s", "%q, %k, contracting_dims = [1] x [1]", "(tensor<8x16xf32>, tensor<8x16xf32>)", "tensor<8x8xf32>"
)
OUTPUT_IN_CASE = case(
    "%o", "%p, %v, contracting_dims = [1] x [0]", "(tensor<8x8xf32>, tensor<8x16xf32>)", "tensor<8x16xf32>"
)

ZERO = "\n  %zero = stablehlo.constant dense<0.0> : tensor<f32>\n"

ONES = """
  %e = stablehlo.exponential %s : tensor<8x8xf32>
  %ones = stablehlo.constant dense<1.0> : tensor<8x8xf32>
  %w = stablehlo.dot_general %e, %ones, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %p = stablehlo.divide %e, %w : tensor<8x8xf32>
"""

MODULES = {
    "custom call on the scores": (
        module(SCORES, call("another_library", "%s"), softmax("%c"), output()),
        "another_library",
    ),
    "custom call on the probabilities": (
        module(SCORES, softmax(), call("another_library", "%p"), output("%c")),
        "another_library",
    ),
    "scores in branches": (
        module(ZERO, SCORES_IN_CASE, softmax(), output()),
        "in a `stablehlo.case`",
    ),
    "values in branches": (
        module(SCORES, softmax(), OUTPUT_IN_CASE),
        "outside of a `stablehlo.case`",
    ),
    "sum by a product with ones": (module(SCORES, ONES, output()), ""),
}


@pytest.mark.parametrize("name", MODULES)
def test_says_why_a_softmax_between_products_stays(name):
    text, words = MODULES[name]
    result = flashlift.stablehlo.fuse(text)
    assert result.candidates, "no candidate"
    for candidate in result.candidates:
        assert candidate.fused or words in candidate.reason, candidate.reason


def exported(function, *shapes, **options):
    return jax.export.export(jax.jit(function), **options)(*shapes).mlir_module()


def attention(q, k, v, change=lambda s: s):
    return jax.nn.softmax(change(q @ k.mT / 4)) @ v


def test_an_export_with_symbolic_sizes_says_so():
    q = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, n, 16"), jnp.float32)
    result = flashlift.stablehlo.fuse(exported(attention, q, q, q))
    assert [c.fused for c in result.candidates] == [False]
    assert "known at run time" in result.candidates[0].reason


@pytest.mark.parametrize("size, fused", [("stablehlo.constant dense<8>", True), ("stablehlo.constant dense<5>", False)])
def test_a_size_set_at_run_time_of_a_static_type_says_so(size, fused):
    """XLA gives all that is computed from it this size, so that it runs no custom call on it."""
    keys = f"""
  %size = {size} : tensor<i32>
  %d = stablehlo.set_dimension_size %k, %size, dim = 0 : (tensor<8x16xf32>, tensor<i32>) -> tensor<8x16xf32>
"""
    result = flashlift.stablehlo.fuse(module(keys, SCORES.replace("%k,", "%d,"), softmax(), output()))
    assert [c.fused for c in result.candidates] == [fused]
    assert fused or "sets a size at run time" in result.candidates[0].reason


@pytest.mark.parametrize("activation", [jax.nn.gelu, jax.nn.softplus, jax.nn.silu, jax.nn.elu, jnp.tanh])
def test_an_activation_between_products_is_no_candidate(activation):
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    assert not flashlift.stablehlo.fuse(exported(lambda a, b, c: activation(a @ b) @ c, x, x, x)).candidates


@jax.custom_jvp
def elu(x):
    return jnp.expm1(x)


elu.defjvp(lambda x, change: (elu(x[0]), change[0] * jnp.exp(x[0])))  # as JAX from 0.11 on writes it


@pytest.mark.parametrize(
    "activation",
    [
        elu,
        lambda x: jax.nn.gelu(x, approximate=False),
        jax.scipy.special.erf,
        jax.nn.sigmoid,
        jax.nn.silu,
        jax.nn.softplus,
        jax.nn.log_sigmoid,
        jax.nn.elu,
        jax.nn.mish,
        lambda x: x / (1 + jnp.exp(-x)),
    ],
)
def test_the_slope_of_an_activation_is_no_candidate(activation):
    """Its exponential, such as e^(-x²), is summed by the gradient with respect to a bias; a softmax of such scores
    divides by the sum."""

    def loss(weights, x):
        a, bias, b = weights
        return (activation(x @ a + bias) @ b).sum()

    x = jnp.ones((16, 16))
    text = jax.jit(jax.grad(loss)).lower((x, x[0], x), x).as_text()
    assert not flashlift.stablehlo.fuse(text, gradients=True).candidates

    def gaussian(q, k, v):
        e = jnp.exp(-jnp.square(q @ k.mT))
        return (e / e.sum(-1, keepdims=True)) @ v

    assert len(flashlift.stablehlo.fuse(exported(gaussian, x, x, x)).candidates) == 1


CROSS_ENTROPIES = {
    "taken": lambda logits, y: -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], -1).mean(),
    "indexed": lambda logits, y: -jax.nn.log_softmax(logits)[jnp.arange(16), y].mean(),
    "log-sum-exp": lambda logits, y: (jax.nn.logsumexp(logits, -1) - (logits * jax.nn.one_hot(y, 32)).sum(-1)).mean(),
    "smoothed": lambda logits, y: (
        -((0.9 * jax.nn.one_hot(y, 32) + 0.1 / 32) * jax.nn.log_softmax(logits)).sum(-1).mean()
    ),
}


@pytest.mark.parametrize("loss", CROSS_ENTROPIES)
def test_the_gradient_of_a_cross_entropy_is_no_candidate(loss):
    """Its softmax stands between products with the same embeddings, as one of scores would."""
    step = jax.value_and_grad(lambda x, words, y: CROSS_ENTROPIES[loss](x @ words.T, y), (0, 1))
    text = jax.jit(step).lower(jnp.ones((16, 8)), jnp.ones((32, 8)), jnp.ones(16, jnp.int32)).as_text()
    assert not flashlift.stablehlo.fuse(text, gradients=True).candidates


def test_a_module_without_attention_costs_no_more_than_reading_it():
    """All layers follow each other without a product between them: the search from each product could cross the whole
    module."""

    def activations(x, weights):
        for w in weights:
            x = jnp.log1p(jnp.exp(x @ w)) * jnp.exp(-x)
        return x.sum()

    weights = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 150
    text = (
        jax.jit(jax.grad(activations, argnums=1)).lower(jax.ShapeDtypeStruct((8, 16), jnp.float32), weights).as_text()
    )
    start = time.process_time()
    assert not flashlift.stablehlo.fuse(text, gradients=True).candidates
    assert time.process_time() - start < 5  # 0.1 s as a rule, and 20 s where each product walks through the module


def test_operands_of_many_products_are_not_searched():
    """The gradient of a classifier of soft labels: its loss sums exponentials, and residuals connect these to every product."""
    layers, width = 12, 8

    def loss(weights, x, labels):
        for first, second in weights:
            x = x + jnp.tanh(x @ first) @ second
        return -jnp.mean(labels * jax.nn.log_softmax(x))

    weights = [(jnp.ones((width, 16)), jnp.ones((16, width)))] * layers
    text = jax.jit(jax.grad(loss)).lower(weights, jnp.ones((4, width)), jnp.ones((4, width))).as_text()
    found = flashlift.stablehlo.fuse(text, gradients=True)
    assert found.fused_count == 0
    assert any("not looked for among more than 16" in each.reason for each in found.candidates)


def test_a_softmax_before_both_products_has_one_reason():
    """As where a residual stream leads past a product: the scores of that product have no exponential."""
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    for before in (lambda q, b: b, lambda q, b: b @ q):
        text = exported(lambda q, k, v, b, f=before: (jax.nn.softmax(f(q, b)) + q @ k.mT) @ v, x, x, x, x)
        (candidate,) = flashlift.stablehlo.fuse(text, gradients=True).candidates
        assert not candidate.fused
        assert candidate.reason == "the factor of the values is not an exponential of the scores"


def reasons(function, *shapes, gradients=False):
    text = jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).as_text()
    return [each.reason for each in flashlift.stablehlo.fuse(text, gradients=gradients).candidates if not each.fused]


def gradient(function):
    return jax.grad(lambda *x: jnp.sum(jnp.sin(function(*x))), argnums=(0, 1, 2))


QKV = [(8, 16), (12, 16), (12, 16)]


@pytest.mark.parametrize("scaled", [lambda e: 2 * e.sum(-1, keepdims=True), lambda e: e @ (2 * jnp.ones((12, 1)))])
@pytest.mark.parametrize("is_behind", [False, True])
def test_rows_that_are_divided_by_more_than_their_sum(scaled, is_behind):
    def function(q, k, v):
        e = jnp.exp(q @ k.mT)
        return (e @ v) / scaled(e) if is_behind else (e / scaled(e)) @ v

    assert ["another number beside their sum" in each for each in reasons(function, *QKV)] == [True]


def test_one_key():
    assert ["there is one key" in each for each in reasons(attention, (8, 16), (1, 16), (1, 16))] == [True]


@pytest.mark.parametrize("depths", [(320, 64), (64, 512), (576, 512)])
def test_depths_that_no_kernel_holds(depths):
    found = reasons(attention, (8, depths[0]), (12, depths[0]), (12, depths[1]))
    assert [f"{depths[0]} deep, values {depths[1]}" in each for each in found] == [True]


def test_a_second_product_of_the_probabilities_is_named():
    def relative(q, k, v, r):
        p = jax.nn.softmax(q @ k.mT)
        return p @ v + jnp.einsum("qk,qkd->qd", p, r)

    assert all("the product at" in each and "reads them" in each for each in reasons(relative, *QKV, (8, 12, 16)))


@pytest.mark.parametrize("are_stored", [False, True])
def test_a_loop_that_stores_probabilities(are_stored):
    def layers(q, k, v):
        def layer(x, w):
            p = jax.nn.softmax(x * w @ k.mT / 4)
            return x + p @ v, p if are_stored else None

        return jax.lax.scan(layer, q, jnp.arange(3.0))

    found = reasons(layers, *QKV, gradients=True)
    assert ["put jax.checkpoint around its body" in each for each in found] == ([True] if are_stored else [])


@pytest.mark.parametrize(
    "change, partitions, words",
    [(jnp.abs, 1, "is not their gradient"), (jnp.sin, 8, "the module is compiled for 8 partitions")],
)
def test_a_loop_whose_backward_loop_could_not_be_fused(change, partitions, words):
    """It stores probabilities, but jax.checkpoint would not help."""

    def layers(q, k, v):
        return jax.lax.scan(lambda x, w: (x + attention(x * w, k, v, change), None), q, jnp.arange(3.0))[0]

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in QKV]
    text = jax.jit(gradient(layers)).lower(*shapes).as_text().replace("partitions = 1", f"partitions = {partitions}")
    (candidate,) = flashlift.stablehlo.fuse(text, gradients=True).candidates
    assert words in candidate.reason and "checkpoint" not in candidate.reason, candidate


def test_a_branch_that_returns_probabilities():
    def function(q, k, v):
        def layer():
            p = jax.nn.softmax(q @ k.mT / 4)
            return p @ v, p

        return jax.lax.cond(q.sum() > 0, layer, lambda: (q, jnp.zeros((*q.shape[:-1], k.shape[-2]))))

    (reason,) = reasons(function, *QKV, gradients=True)
    assert "put jax.checkpoint around the function of the branch" in reason, reason


def test_products_of_a_backward_pass_name_the_attention_that_stays():
    found = reasons(gradient(lambda q, k, v: attention(q, k, v)), (8, 320), (12, 320), (12, 320), gradients=True)
    assert "320 deep" in found[0] and len(found) == 4
    assert all("it is computed from the scores of the attention at" in each for each in found[1:])


def test_scores_in_f64():
    text = module(SCORES, softmax(), output()).replace("f32", "f64")
    (candidate,) = flashlift.stablehlo.fuse(text).candidates
    assert "in f64" in candidate.reason and "convert" in candidate.reason, candidate.reason


def test_a_maximum_over_more_than_the_keys():
    def function(q, k, v):
        s = q @ k.mT
        e = jnp.exp(s - s.max())
        return (e / e.sum(-1, keepdims=True)) @ v

    assert ["is not over the keys of one row" in each for each in reasons(function, *QKV)] == [True]


def test_distances_say_what_to_write_instead():
    def squared(q, k, v):
        return jax.nn.softmax(-jnp.square(q[:, None] - k[None]).sum(-1)) @ v

    def absolute(q, k, v):
        return jax.nn.softmax(-jnp.abs(q[:, None] - k[None]).sum(-1)) @ v

    def expanded(q, k, v):
        return jax.nn.softmax(2 * q @ k.mT - (q * q).sum(-1, keepdims=True) - (k * k).sum(-1)) @ v

    for distance in (squared, absolute):
        assert ["makes scores of differences" in each for each in reasons(distance, *QKV)] == [True]
    assert reasons(expanded, *QKV) == []


def test_exponentials_whose_row_sum_is_another_product():
    weights = jnp.linspace(0.5, 1.5, 12)

    def weighted(q, k, v):
        e = jnp.exp(q @ k.mT)
        return e @ v / (e @ weights)[:, None]

    def column_of_ones(q, k, v):
        out = jnp.exp(q @ k.mT) @ jnp.pad(v, ((0, 0), (0, 1)), constant_values=1)
        return out[:, :-1] / out[:, -1:]

    assert "as a row sum it must be of the exponentials and one number" in reasons(weighted, *QKV)[0]
    assert ["not divided by their sum over the keys" in each for each in reasons(column_of_ones, *QKV)] == [True]


def test_rotary_frequencies_are_no_candidates():
    def rotate(x):
        angles = jnp.arange(8)[:, None] / 1e4 ** (jnp.arange(4) / 4)
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate(
            [first * jnp.cos(angles) - second * jnp.sin(angles), second * jnp.cos(angles) + first * jnp.sin(angles)], -1
        )

    def loss(scale, w, x):
        q, k = (rotate(scale[i] * (x @ w[i])) for i in range(2))
        return jnp.sin(jax.nn.softmax(q @ k.T) @ (x @ w[2])).sum()

    given = jnp.ones((2, 8)), jnp.ones((3, 16, 8)), jnp.ones((8, 16))
    text = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*given).as_text()
    assert [found.fused for found in flashlift.stablehlo.fuse(text, gradients=True).candidates] == [True]


def test_activations_between_products_are_no_candidates():
    for activation in (jax.nn.gelu, jax.nn.sigmoid, jax.nn.silu, jax.nn.softplus, jax.nn.elu, jnp.tanh):
        assert reasons(lambda q, k, v, a=activation: a(q @ k.mT) @ v, *QKV) == []


def test_the_gradient_by_the_values_alone():
    def d_v(q, k, v):
        return jax.grad(lambda v: jnp.vdot(jnp.cos(q), attention(q, k, v)))(v)

    assert ["sums probabilities over the queries" in each for each in reasons(d_v, *QKV, gradients=True)] == [True]


def test_a_gradient_that_the_output_would_not_help():
    """JAX defines the gradient of abs at 0 as 1, with the output and without it."""

    def gradients(q, k, v, d_out):
        return jax.grad(lambda *x: jnp.vdot(d_out, attention(*x, jnp.abs)), argnums=(0, 1, 2))(q, k, v)

    found = reasons(gradients, *QKV, (8, 16), gradients=True)
    assert "is not their gradient" in found[0] and not any("compute both" in each for each in found), found


def test_a_gradient_of_weighted_probabilities_that_the_output_would_help():
    def loss(q, k, v, d_out):
        return jnp.vdot(d_out, (jax.nn.softmax(q @ k.T) * jnp.arange(1.0, 9)[:, None]) @ v)

    shapes = [*QKV, (8, 16)]
    assert "compute both" in reasons(jax.grad(loss, argnums=(0, 1, 2)), *shapes, gradients=True)[0]
    assert reasons(jax.value_and_grad(loss, argnums=(0, 1, 2)), *shapes, gradients=True) == []


def test_a_product_that_mixes_the_heads_of_probabilities_is_no_gradient_of_values():
    def talking_heads(q, k, v, mix):
        p = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k), -1)
        return jnp.einsum("hqk,hkd->hqd", jnp.einsum("hqk,hg->gqk", p, mix), v)

    given = reasons(talking_heads, *[(4, 8, 16)] * 3, (4, 4))
    assert given and not any("gradient of the values" in each for each in given), given


def test_two_outputs_of_the_same_probabilities():
    """They are fused, unless there are too few queries to copy both values into one tensor."""

    def two(q, k, v, w):
        p = jax.nn.softmax(q @ k.mT)
        return (p @ v) * (p @ w)

    given = [*QKV, (12, 16)]
    assert ["concatenate both values along their depth" in each for each in reasons(two, *given)] == [True, True]
    of_gradient = reasons(jax.grad(lambda *x: jnp.sum(jnp.sin(two(*x))), argnums=(0, 1, 2, 3)), *given, gradients=True)
    assert of_gradient and not any("row sum" in each for each in of_gradient), of_gradient
    both = reasons(jax.value_and_grad(lambda *x: jnp.sum(two(*x)), argnums=(0, 1, 2, 3)), *given, gradients=True)
    assert ["concatenate both values along their depth" in each for each in both[:2]] == [True, True]
    assert reasons(lambda q, k, v, w: attention(q, k, jnp.concatenate([v, w], -1)), *given) == []


def test_other_products_of_the_probabilities_are_no_second_output():
    def of_heads(q, k, v, r):
        p = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k), -1)
        return jnp.einsum("hqk,hkd->hqd", p, v), jnp.einsum("hqk,kd->hqd", p, r)

    given = reasons(of_heads, *[(2, 8, 16)] * 3, (8, 16))
    assert given and not any("concatenate" in each for each in given), given


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_float_mask_times_the_exponentials(is_behind):
    """Numbers below 0 have no logarithm that could be added to the scores."""

    def weighted(q, k, v, mask):
        e = jnp.exp(q @ k.mT) * mask
        z = e.sum(-1, keepdims=True)
        return e @ v / z if is_behind else (e / z) @ v

    def selected(q, k, v, mask):
        e = jnp.where(mask != 0, jnp.exp(q @ k.mT), 0)
        return (e / e.sum(-1, keepdims=True)) @ v

    def added(q, k, v, mask):
        e = jnp.exp(q @ k.mT + jnp.log(mask))
        return (e / e.sum(-1, keepdims=True)) @ v

    assert ["may hold negative numbers" in each for each in reasons(weighted, *QKV, (8, 12))] == [True]
    assert reasons(selected, *QKV, (8, 12)) == reasons(added, *QKV, (8, 12)) == []


def test_the_gradient_of_one_softmax_over_two_parts_of_the_keys():
    def cached(q, k, v, new_k, new_v):
        p = jax.nn.softmax(jnp.concatenate([q @ k.mT, q @ new_k.mT], -1))
        return p[:, :12] @ v + p[:, 12:] @ new_v

    shapes = [(16, 16), *[(12, 16)] * 2, *[(8, 16)] * 2]
    assert reasons(cached, *shapes) == []
    given = reasons(
        jax.value_and_grad(lambda *x: jnp.sum(jnp.sin(cached(*x))), argnums=(0, 1, 2, 3, 4)), *shapes, gradients=True
    )
    assert ["concatenate the keys of both parts" in each for each in given[:2]] == [True, True]

    def joined(q, k, v, new_k, new_v):
        return attention(q, jnp.concatenate([k, new_k]), jnp.concatenate([v, new_v]))

    of_all = jax.value_and_grad(lambda *x: jnp.sum(jnp.sin(joined(*x))), argnums=(0, 1, 2, 3, 4))
    assert reasons(of_all, *shapes, gradients=True) == []


def test_relative_scores_have_the_reason_of_queries_and_keys():
    """DeBERTa adds a product of queries and relative positions to the scores; its pair with the values is none."""

    def attention(q, k, v, positions, weights):
        distance = jnp.clip(jnp.arange(8)[:, None] - jnp.arange(8) + 4, 0, 7)
        s = q @ k.T + jnp.take_along_axis(q @ positions.T, distance, 1)
        return (jax.nn.softmax(s, -1) * weights) @ v

    shape = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    text = jax.jit(attention).lower(*[shape] * 4, jax.ShapeDtypeStruct((8, 8), jnp.float32)).as_text()
    (candidate,) = flashlift.stablehlo.fuse(text).candidates
    assert not candidate.fused and "weights of their own" in candidate.reason, candidate
