"""Attention in loops over layers: `jax.grad` of `jax.lax.scan` stores residuals of all layers in one loop and reads
them in another one. The second loop computes scores and probabilities again if that is proved to give the same. All
results are compared with XLA's.
"""

import functools

import flashlift.jax
import flashlift.stablehlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

LAYERS, TOKENS, HEADS, DEPTH = 3, 24, 2, 8
POLICIES = jax.checkpoint_policies
KEEP = np.tril(np.ones((TOKENS, TOKENS), bool))


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape) * 0.5


def report(function, *arguments, tolerance=2e-5):
    """Compares with XLA if anything is fused."""
    mine = flashlift.jax.fuse(function)
    if mine.analyze(*arguments).fused_count == 0:
        return mine.report  # what would run is jax.jit(function) (test_what_stays_unfused_is_left_to_jax)
    got, want = jax.tree.leaves(mine(*arguments)), jax.tree.leaves(jax.jit(function)(*arguments))
    for one, other in zip(got, want, strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1, np.abs(other).max()))
    return mine.report


def count(found):
    """The fused attentions, and those of them that have their gradient."""
    fused = [each for each in found.candidates if each.fused]
    return len(fused), len([each for each in fused if " lse" in each.problem])


# --- Gradients of jax.lax.scan ---


def layer(x, weights, mask=None, change=lambda s: s, drop=lambda p: p):
    q, k, v = (jnp.tanh(jnp.einsum("nc,chd->nhd", x, w)) for w in weights)
    mask = jnp.tril(jnp.ones((TOKENS, TOKENS), bool)) if mask is None else mask
    s = jnp.where(mask, change(jnp.einsum("qhd,khd->hqk", q, k) / 3).astype(jnp.float32), -1e9)
    p = drop(jax.nn.softmax(s)).astype(x.dtype)
    return x + jnp.sin(jnp.einsum("hqk,khd->qhd", p, v).reshape(x.shape))


def training_step(body, *more, dtype="float32", **options):
    """The gradient of a scan over layers, by their weights, with its arguments."""
    weights = normal(1, 3, LAYERS, HEADS * DEPTH, HEADS, DEPTH).astype(dtype)

    def loss(weights, x):
        out = lax.scan(lambda x, w: (body(x, *w), None), x, (tuple(weights), *more), **options)[0]
        return jnp.sum(jnp.sin(out.astype(jnp.float32)))

    return jax.value_and_grad(loss), weights, normal(2, TOKENS, HEADS * DEPTH).astype(dtype)


def biased(x, weights, bias):
    return layer(x, weights, change=lambda s: s + bias)


def windowed(x, weights, width):
    rows, columns = jnp.arange(TOKENS)[:, None], jnp.arange(TOKENS)
    return layer(x, weights, (columns <= rows) & (rows - columns < width))


def dropped(x, weights, key):
    return layer(x, weights, drop=lambda p: jnp.where(jax.random.bernoulli(key, 0.75, p.shape), p / 0.75, 0))


@pytest.mark.parametrize(
    "step",
    [
        training_step(layer),
        training_step(layer, reverse=True),
        training_step(functools.partial(layer, change=lambda s: 5 * jnp.tanh(s / 5))),
        training_step(biased, normal(3, LAYERS, HEADS, TOKENS, TOKENS)),
        training_step(windowed, jnp.array([3, 24, 5])),
        training_step(dropped, jax.random.split(jax.random.key(4), LAYERS)),
        training_step(jax.checkpoint(layer, policy=POLICIES.dots_saveable)),
        training_step(jax.checkpoint(layer, policy=POLICIES.everything_saveable)),
    ],
    ids=["causal", "reverse", "softcap", "bias", "window", "dropout", "dots_saveable", "everything_saveable"],
)
def test_training_steps(step):
    found = report(*step)
    assert count(found) == (2, 1), found
    assert f"bool[{HEADS},{TOKENS}" not in str(found), "a mask of constants is not a program"


def test_dropout_by_a_factor():
    """Flax multiplies probabilities by 0 or 1 / 0.75, and the first loop stores these factors. The second one computes
    them again, since a tensor of numbers does not show that they are a condition times a constant."""

    def factor(x, weights, key):
        keep = jax.random.bernoulli(key, 0.75, (1, TOKENS, TOKENS))
        return layer(x, weights, drop=lambda p: p * (keep.astype(p.dtype) / jnp.asarray(0.75, p.dtype)))

    found = report(*training_step(factor, jax.random.split(jax.random.key(4), LAYERS)))
    assert count(found) == (2, 1) and "dropout" in str(found), found


def test_values_and_masks_that_a_checkpoint_computes_from_what_it_saves():
    """It saves products, and adds biases to them again; the mask of the first loop is computed before it."""
    mask = jnp.tril(jnp.ones((1, TOKENS, TOKENS)))

    def body(x, weights, biases):
        q, k, v = (jnp.einsum("nc,chd->nhd", x, w) + b for w, b in zip(weights, biases, strict=True))
        s = jnp.where(mask != 0, jnp.einsum("qhd,khd->hqk", q / jnp.sqrt(8.0), k), -1e9)
        return x + jnp.einsum("hqk,khd->qhd", jax.nn.softmax(s), v).reshape(x.shape)

    def loss(weights, x, biases):
        saved = jax.checkpoint(body, policy=POLICIES.dots_saveable, prevent_cse=False)
        return jnp.sum(jnp.sin(lax.scan(lambda x, w: (saved(x, *w), None), x, (tuple(weights), tuple(biases)))[0]))

    weights = normal(1, 3, LAYERS, HEADS * DEPTH, HEADS, DEPTH)
    step = jax.value_and_grad(loss, argnums=(0, 2))
    found = report(step, weights, normal(2, TOKENS, HEADS * DEPTH), normal(3, 3, LAYERS, HEADS, DEPTH))
    assert count(found) == (2, 1), found


@pytest.mark.parametrize("moves", [False, True], ids=["same", "changed"])
def test_rotations_and_masks_that_a_checkpoint_computes_again(moves):
    """The first loop reads them from before it, the second one computes them in each iteration. If layers change the
    positions, these are stored."""

    def rotate(x, positions):
        angles = positions[:, None] * jnp.array([1.0, 0.1, 0.01, 0.001])
        a, b = jnp.split(x, 2, -1)
        sin, cos = jnp.sin(angles), jnp.cos(angles)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def body(carry, weights, segments):
        x, positions = carry
        q, k, v = (jnp.einsum("nc,chd->hnd", x, w) for w in weights)
        s = jnp.einsum("hqd,hkd->hqk", rotate(q, positions), rotate(k, positions)) / 3
        keep = (segments[:, None] == segments) & (positions[:, None] >= positions)
        out = jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.where(keep, s, -1e9)), v)
        return x + out.swapaxes(0, 1).reshape(x.shape), (positions[::-1] if moves else positions)

    def loss(weights, x, positions, segments):
        one = jax.checkpoint(lambda carry, w: (body(carry, w, segments), None), policy=POLICIES.dots_saveable)
        return jnp.sum(jnp.sin(lax.scan(one, (x, positions), tuple(weights))[0][0]))

    weights = normal(1, 3, LAYERS, HEADS * DEPTH, HEADS, DEPTH)
    positions = jnp.arange(TOKENS, dtype=jnp.float32) % 10
    segments = jnp.arange(TOKENS) // 10
    found = report(jax.value_and_grad(loss), weights, normal(2, TOKENS, HEADS * DEPTH), positions, segments)
    assert count(found) == (2, 1), found


def test_division_behind_the_values():
    """The first loop stores the product of exponentials and values divided by squared row sums."""

    def attend(x, weights):
        q, k, v = (jnp.tanh(jnp.einsum("nc,chd->hnd", x, w)) for w in weights)
        s = jnp.einsum("hqd,hkd->hqk", q, k) / 3
        e = jnp.exp(s - lax.stop_gradient(s.max(-1, keepdims=True)))
        return x + (jnp.einsum("hqk,hkd->hqd", e, v) / e.sum(-1, keepdims=True)).swapaxes(0, 1).reshape(x.shape)

    found = report(*training_step(attend))
    assert count(found) == (2, 1), found


def test_a_softmax_of_experts_beside_attention():
    """It is not attention, so that the backward loop reads its probabilities, but computes those of attention again."""

    def mixture(x, weights, gate, experts):
        x = layer(x, weights)
        return x + jnp.einsum("ne,ecd,nc->nd", jax.nn.softmax(x @ gate) ** 2, experts, jnp.sin(x))

    width = HEADS * DEPTH
    found = report(*training_step(mixture, normal(3, LAYERS, width, 4), normal(4, LAYERS, 4, width, width)))
    assert count(found) == (2, 1), found


@jax.custom_vjp
def flash(q, k, v):
    return flash_forward(q, k, v)[0]


def flash_scores(q, k):
    return jnp.where(jnp.tril(jnp.ones((TOKENS, TOKENS), bool)), jnp.einsum("hqd,hkd->hqk", q, k) / 3, -jnp.inf)


def flash_forward(q, k, v):
    s = flash_scores(q, k)
    lse = jax.nn.logsumexp(s, -1, keepdims=True)
    out = jnp.exp(s - lse) @ v
    return out, (q, k, v, out, lse)


def flash_backward(residuals, d_out):
    q, k, v, out, lse = residuals
    p = jnp.exp(flash_scores(q, k) - lse)
    d_s = p * (d_out @ v.mT - jnp.sum(d_out * out, -1, keepdims=True)) / 3
    return d_s @ k, d_s.mT @ q, p.mT @ d_out


flash.defvjp(flash_forward, flash_backward)


def test_a_hand_written_backward_pass_is_left_as_it_is():
    """It computes the scores again itself. Another forward pass in the same loop would be of no use."""

    def attend(x, weights):
        out = flash(*(jnp.tanh(jnp.einsum("nc,chd->hnd", x, w)) for w in weights))
        return x + jnp.sin(out).swapaxes(0, 1).reshape(x.shape)

    found = report(*training_step(attend))
    assert [each.fused for each in found.candidates] == [True, False, False, False], found


def test_bf16():
    found = report(*training_step(layer, dtype="bfloat16"), tolerance=4e-2)
    assert count(found) == (2, 1), found


@pytest.mark.parametrize(
    ("unroll", "attentions"),
    [(3, (6, 3)), (True, (6, 6)), (4, (0, 0))],
    ids=["in_a_loop", "without_a_loop", "other_layers_in_the_backward_loop"],
)
def test_several_layers_in_an_iteration(unroll, attentions):
    step, weights, x = training_step(layer, unroll=unroll)
    weights = jnp.concatenate([weights, weights], 1)  # six layers
    found = report(step, weights, x)
    assert count(found) == attentions, found


def lowered(step, *arguments):
    return jax.jit(step).lower(*arguments).as_text()


def test_many_layers_in_an_iteration():
    """JAX concatenates what more than 16 layers store in groups, and then the groups."""
    step, weights, x = training_step(layer, unroll=17)
    result = flashlift.stablehlo.fuse(lowered(step, jnp.repeat(weights[:, :1], 34, 1), x), gradients=True)
    assert count(result) == (34, 17), result.candidates


def test_modules_that_name_attributes_as_flashlift_does():
    step, weights, x = training_step(layer)

    def softmax_and_step(x, *given):
        return jax.nn.softmax(x @ x.T), step(*given)

    text = lowered(softmax_and_step, KEEP * 1.0, weights, x)
    product = "stablehlo.dot_general"
    marked = "\n".join(
        line.replace(" : (tensor", " {flashlift.repeated = 5 : i64} : (tensor", 1) if product in line else line
        for line in text.splitlines()
    )
    assert count(flashlift.stablehlo.fuse(marked, gradients=True)) == (2, 1)


def test_microbatches():
    step, weights, x = training_step(layer)

    def accumulate(weights, x):
        add = lambda total, x: (jax.tree.map(jnp.add, total, step(weights, x)), None)
        return lax.scan(add, (0.0, jnp.zeros_like(weights)), jnp.stack([x, x + 1]))[0]

    found = report(accumulate, weights, x)
    assert count(found) == (2, 1), found


def test_an_inner_loop_whose_result_an_outer_loop_carries_for_nothing():
    """It is removed with what is carried."""
    step, weights, x = training_step(layer)

    def train(weights, x):
        def body(carried):
            i, weights, unused = carried
            unused = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, unused))[1]
            return i + 1, weights - 0.01 * step(weights, x)[1], unused

        return lax.while_loop(lambda carried: carried[0] < 2, body, (0, weights, x))[1]

    assert count(report(train, weights, x)) == (2, 1)
    assert "sine" in jax.jit(train).lower(weights, x).as_text()  # JAX has not removed it


def test_microbatches_with_their_own_segments():
    """A checkpoint computes the mask again from the segments; the first loop over layers has it from before the loop,
    where each iteration over microbatches slices the segments."""

    def loss(weights, x, segments):
        keep = lambda: segments[:, None] == segments
        one = jax.checkpoint(lambda x, w: (layer(x, *w, keep()), None), policy=POLICIES.dots_saveable)
        return jnp.sum(jnp.sin(lax.scan(one, x, weights)[0]))

    def step(weights, x, segments):
        gradient = lambda total, batch: (total + jax.grad(loss)(weights, *batch), None)
        return lax.scan(gradient, jnp.zeros_like(weights), (x, segments))[0]

    def layer(x, q, k, v, keep):
        q, k, v = (jnp.tanh(jnp.einsum("nc,chd->nhd", x, w)) for w in (q, k, v))
        p = jax.nn.softmax(jnp.where(keep, jnp.einsum("qhd,khd->hqk", q, k) / 3, -1e9))
        return x + jnp.sin(jnp.einsum("hqk,khd->qhd", p, v).reshape(x.shape))

    segments = jnp.arange(TOKENS)[None] // jnp.array([[5], [10]])
    weights = normal(1, LAYERS, 3, HEADS * DEPTH, HEADS, DEPTH)
    found = report(step, weights, normal(2, 2, TOKENS, HEADS * DEPTH), segments)
    assert count(found) == (2, 1), found


def test_a_mask_that_is_computed_before_an_outer_loop():
    def loss(weights, x, segments):
        mask = segments[:, None] == segments
        out = lax.scan(lambda x, w: (layer(x, w, mask), None), x, tuple(weights))[0]
        return jnp.sum(jnp.sin(out))

    def of_batches(weights, x, segments):
        add = lambda total, x: (total + loss(weights, x, segments), None)
        return lax.scan(add, 0.0, jnp.stack([x, x + 1]))[0]

    found = report(of_batches, *training_step(layer)[1:], jnp.arange(TOKENS) // 10)
    assert [f"i32[{TOKENS}]" in each.mask_mod for each in found.candidates] == [True], found


def test_batches_of_scans():
    step, weights, x = training_step(layer)
    found = report(jax.vmap(step, (None, 0)), weights, jnp.stack([x, x + 1]))
    assert count(found) == (2, 1), found


@pytest.mark.parametrize("gradients", [False, True])
def test_masks_that_are_computed_before_the_loop(gradients):
    """They are programs, of the segments' numbers, and no tensors with an element per score."""

    def loss(weights, x, segments):
        mask = jnp.tril(jnp.ones((TOKENS, TOKENS), bool)) & (segments[:, None] == segments)
        out = lax.scan(lambda x, w: (layer(x, w, mask), None), x, tuple(weights))[0]
        return jnp.sum(jnp.sin(out))

    step = jax.value_and_grad(loss) if gradients else loss
    found = report(step, *training_step(layer)[1:], jnp.arange(TOKENS) // 10)
    assert count(found) == ((2, 1) if gradients else (1, 0)), found
    fused = [each for each in found.candidates if each.fused]
    assert all("le kv, q" in each.mask_mod and f"i32[{TOKENS}]" in each.mask_mod for each in fused), found


@pytest.mark.parametrize("checkpoint", [lambda body: body, jax.checkpoint])
def test_sinks_of_all_layers(checkpoint):
    """JAX repeats them for all rows before the loop."""

    def loss(weights, x, sinks):
        def attend(x, weights):
            q, k, v = (jnp.tanh(jnp.einsum("nc,chd->hnd", x, w)) for w in weights)
            s = jnp.einsum("hqd,hkd->hqk", q, k) / 3
            s = jnp.concatenate([s, jnp.broadcast_to(sinks[:, None, None], (HEADS, TOKENS, 1))], -1)
            out = jnp.einsum("hqk,hkd->qhd", jax.nn.softmax(s)[..., :-1], v)
            return x + jnp.sin(out.reshape(x.shape)), None

        return jnp.sum(jnp.sin(lax.scan(checkpoint(attend), x, tuple(weights))[0]))

    found = report(jax.grad(loss, (0, 1, 2)), *training_step(layer)[1:], normal(3, HEADS))
    assert count(found) == (2, 1), found


def test_a_bias_that_is_repeated_for_all_batches_has_a_gradient_for_each_one():
    """JAX sums the gradients of the batches behind the loop, so that the bias stays a tensor with all batches."""
    batches = 8

    def loss(weights, x, bias):
        bias = jnp.broadcast_to(bias, (batches, *bias.shape))

        def attend(x, weights):
            q, k, v = (jnp.tanh(jnp.einsum("bnc,chd->bhnd", x, w)) for w in weights)
            p = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) / 3 + bias)
            return x + jnp.sin(jnp.einsum("bhqk,bhkd->bqhd", p, v).reshape(x.shape)), None

        return jnp.sum(jnp.sin(lax.scan(attend, x, tuple(weights))[0]))

    weights, x = training_step(layer)[1:]
    bias = normal(3, HEADS, TOKENS, TOKENS)
    found = report(jax.grad(loss, (0, 2)), weights, normal(2, batches, *x.shape), bias)
    assert count(found) == (2, 1), found


def test_probabilities_that_are_also_a_result_are_stored():
    def loss(weights, x):
        def body(x, weights):
            q, k, v = (jnp.einsum("nc,chd->hnd", x, w) for w in weights)
            p = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k))
            return x + jnp.einsum("hqk,hkd->qhd", p, v).reshape(x.shape), p

        out, p = lax.scan(body, x, tuple(weights))
        return jnp.sum(jnp.sin(out)) + jnp.sum(p[0] * p[1])

    assert count(report(jax.grad(loss), *training_step(layer)[1:])) == (0, 0)


# --- Loops that differ from those of a gradient in one thing ---


class Loops:
    """A loop that stores the residuals of attention, and one that reads them. Subclasses change one thing."""

    n = LAYERS
    iterations = LAYERS

    def start(self):
        return jnp.int32(0)

    def goes_on(self, i, x):
        return i < self.iterations

    def step(self, i):
        return i + 1

    def write(self, stack, value, i):
        return lax.dynamic_update_index_in_dim(stack, value, i, 0)

    def place(self, i, name):
        return i

    def read_place(self, j, name):
        return self.n - 1 - j

    def read(self, stack, j, name):
        return lax.dynamic_index_in_dim(stack, self.read_place(j, name), 0, keepdims=False)

    def scores(self, q, k, i):
        return q @ k.T

    def stored(self, name, value):
        return value

    def between(self, stacks):
        return stacks

    def __call__(self, x):
        shapes = {"q": (TOKENS, DEPTH), "k": (TOKENS, DEPTH), "v": (TOKENS, DEPTH), "p": (TOKENS, TOKENS)}
        stacks = {name: jnp.full((self.n, *shape), 0.25) for name, shape in shapes.items()}

        def forward(state):
            i, x, stacks = state
            q, k, v = jnp.sin(x), jnp.cos(x), jnp.sin(2 * x)
            s = jnp.where(KEEP, self.scores(q, k, i), -jnp.inf)
            p = jax.nn.softmax(s)
            residuals = {"q": q, "k": k, "v": v, "p": p}
            stacks = {
                name: self.write(stack, self.stored(name, residuals[name]), self.place(i, name))
                for name, stack in stacks.items()
            }
            return self.step(i), x + p @ v, stacks

        _, x, stacks = lax.while_loop(lambda state: self.goes_on(*state[:2]), forward, (self.start(), x, stacks))
        stacks = self.between(stacks)

        def backward(j, state):
            d_out, total = state
            q, k, v, p = (self.read(stacks[name], j, name) for name in "qkvp")
            d_p = d_out @ v.T
            d_s = p * (d_p - jnp.sum(p * d_p, -1, keepdims=True))
            return d_out + jnp.cos(q) * (d_s @ k) - jnp.sin(k) * (d_s.T @ q), total + p.T @ d_out

        state = lax.fori_loop(0, self.n, backward, (jnp.cos(x), jnp.zeros_like(x)))
        return (x, *state, *self.results(stacks))

    def results(self, stacks):
        return ()


class CountsFromOne(Loops):
    iterations = LAYERS + 1
    start = lambda self: jnp.int32(1)
    place = lambda self, i, name: i - 1


class HalvesTheCount(Loops):
    start = lambda self: jnp.uint8(2 * LAYERS)
    goes_on = lambda self, i, x: i != 0
    step = lambda self, i: i - jnp.uint8(2)
    place = lambda self, i, name: lax.shift_right_logical(i, jnp.uint8(1)).astype(jnp.int32) - 1


class CountsDownInBytes(Loops):
    start = lambda self: jnp.int8(LAYERS - 1)
    goes_on = lambda self, i, x: i >= 0
    step = lambda self, i: i + jnp.int8(-1)
    place = lambda self, i, name: i.astype(jnp.int32)


class DependsOnTheCount(Loops):
    def scores(self, q, k, i):
        return q @ k.T - 0.1 * i.astype(jnp.float32) * np.subtract.outer(np.arange(TOKENS), np.arange(TOKENS))


class ReadsForwards(DependsOnTheCount):
    read_place = lambda self, j, name: j


class CountsFromOneAndReadsForwards(CountsFromOne, ReadsForwards):
    """The backward loop counts from zero."""


class ReadsOneEntry(DependsOnTheCount):
    """Clamped indices."""

    read_place = lambda self, j, name: j + 7


class HasPlacesBehindThoseThatAreStored(Loops):
    """Other entries of the tensors keep what they had."""

    n = LAYERS + 1
    read_place = lambda self, j, name: jnp.minimum(j, LAYERS - 1)


@pytest.mark.parametrize(
    "loops",
    [
        Loops,
        CountsFromOne,
        CountsDownInBytes,
        DependsOnTheCount,
        ReadsForwards,
        CountsFromOneAndReadsForwards,
        HasPlacesBehindThoseThatAreStored,
    ],
)
def test_residuals_that_are_computed_again(loops):
    found = report(loops(), normal(5, TOKENS, DEPTH))
    assert count(found) == (2, 1), found


def test_the_count_of_one_entry_is_a_constant():
    report(ReadsOneEntry(), normal(5, TOKENS, DEPTH))  # fused or not, the result must be that of the last layer


class ReadsProbabilitiesOfTheLayerBefore(Loops):
    read_place = lambda self, j, name: self.n - 1 - j - (name == "p")


class ReadsKeysOfTheLayerBefore(Loops):
    read_place = lambda self, j, name: self.n - 1 - j - (name == "k")


class ReadsWhatNoIterationStored(Loops):
    iterations = LAYERS - 1


class NeverRuns(Loops):
    iterations = 0


class StoresOtherKeys(Loops):
    def stored(self, name, value):
        return 2 * value if name == "k" else value


class StoresOtherProbabilities(Loops):
    def stored(self, name, value):
        return value * 0.5 if name == "p" else value


class StoresTwice(Loops):
    def write(self, stack, value, i):
        once = lax.dynamic_update_index_in_dim(stack, value, i, 0)
        return lax.dynamic_update_index_in_dim(once, value + 1, jnp.minimum(i + 1, self.n - 1), 0)


class StoresAtOnePlace(Loops):
    place = lambda self, i, name: jnp.minimum(i, 1)


class StoresBeyondTheEnd(Loops):
    place = lambda self, i, name: i + 2


class AddsToWhatIsStored(Loops):
    def write(self, stack, value, i):
        return lax.dynamic_update_index_in_dim(stack + 1, value, i, 0)


class ChangesTensorsBetweenTheLoops(Loops):
    between = lambda self, stacks: {name: stack + 0.125 for name, stack in stacks.items()}


class ReversesTensorsBetweenTheLoops(Loops):
    between = lambda self, stacks: stacks | {"p": stacks["p"][::-1]}


class TransposesEntries(Loops):
    def read(self, stack, j, name):
        entry = super().read(stack, j, name)
        return entry.T if name == "p" else entry


class EndsByItsData(Loops):
    goes_on = lambda self, i, x: (i < self.n) & (jnp.sum(x) < 1e9)


class WrapsAround(Loops):
    start = lambda self: jnp.int8(127)
    goes_on = lambda self, i, x: i != -126
    place = lambda self, i, name: jnp.where(i == 127, 0, i.astype(jnp.int32) + 129)


class ReturnsTheTensor(Loops):
    results = lambda self, stacks: (stacks["p"],)


@pytest.mark.parametrize(
    "loops",
    [
        ReadsProbabilitiesOfTheLayerBefore,
        ReadsKeysOfTheLayerBefore,
        ReadsWhatNoIterationStored,
        NeverRuns,
        StoresOtherKeys,
        StoresTwice,
        StoresAtOnePlace,
        StoresBeyondTheEnd,
        AddsToWhatIsStored,
        ChangesTensorsBetweenTheLoops,
        ReversesTensorsBetweenTheLoops,
        EndsByItsData,
        ReturnsTheTensor,
        HalvesTheCount,
        WrapsAround,
    ],
)
def test_residuals_that_are_read(loops):
    found = report(loops(), normal(5, TOKENS, DEPTH))
    assert count(found) == (0, 0), found


@pytest.mark.parametrize("loops", [StoresOtherProbabilities, TransposesEntries])
def test_other_gradients(loops):
    report(loops(), normal(5, TOKENS, DEPTH))
