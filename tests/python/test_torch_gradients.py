"""Gradients of flashlift.torch.flex_attention on the CPU, compared with float64 by the rule of PyTorch's own tests."""

import contextlib
import functools
import re
import subprocess
import sys

import flashlift
import pytest
import test_torch_flex
import torch
import torch.nn.functional as F
import torch_mods
from flashlift.torch import flex_attention, scaled_dot_product_attention
from flashlift.torch._mods import traced
from flashlift.torch._program import Bounds, print_program
from flashlift.torch._run import dispatch, kernels
from flashlift.torch._run.call import Call
from flashlift.torch._trace import IndexByTensors
from test_torch_flex import NAMES, tensors, unfused
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask
from torch.utils.checkpoint import checkpoint

# (batch, q_heads, kv_heads, q_len, kv_len, depth, value depth)
SHAPES = {
    torch.float32: (2, 4, 4, 40, 40, 16, 16),
    torch.bfloat16: (2, 4, 2, 33, 66, 24, 40),
    torch.float16: (1, 4, 1, 48, 48, 32, 16),
}


@pytest.fixture(autouse=True)
def differentiable_indexing(monkeypatch):
    """PyTorch's own indexing under vmap has no gradient for bias[h][q]; ours, which replaces it in the reference, has
    one."""
    monkeypatch.setattr("test_torch_flex.TransformGetItemToIndex", IndexByTensors)


@contextlib.contextmanager
def in_double(leaves):
    """The exact result is computed from float64 leaves."""
    before = [one.data for one in leaves]
    for one in leaves:
        one.data = one.data.double()
    yield
    for one, data in zip(leaves, before, strict=True):
        one.data = data


def captured(*mods):
    """The floating-point tensors that mods capture; they now require a gradient."""
    found = []
    for kind, mod in zip(("score_mod", "mask_mod"), mods, strict=False):
        if mod is not None:
            found += [one for one in traced(mod, kind)[1].tensors if one.is_floating_point()]
    return [one.requires_grad_() for one in found]


def gradients(attend, inputs, leaves, cotangents):
    inputs = [one.detach().requires_grad_() for one in inputs]
    out, lse, _ = attend(*inputs)
    kept = lse > -torch.inf
    loss = (out * cotangents[0]).sum() + (lse.masked_fill(~kept, 0) * cotangents[1]).sum()
    found = torch.autograd.grad(loss, [*inputs, *leaves], allow_unused=True)
    return [torch.zeros_like(to) if one is None else one for one, to in zip(found, [*inputs, *leaves], strict=True)]


def fused(score_mod, mask_mod, **options):
    def attend(q, k, v):
        request = AuxRequest(lse=True)
        out, aux = flex_attention(q, k, v, score_mod, mask_mod=mask_mod, enable_gqa=True, return_aux=request, **options)
        return out, aux.lse, None

    return attend


def drawn(attend, inputs, leaves, draws):
    """The gradients for each draw of cotangents, stacked."""
    each = [gradients(attend, inputs, leaves, cotangents) for cotangents in draws]
    return [torch.stack(of_tensor) for of_tensor in zip(*each, strict=True)]


def check(ours, golden, eager, names="qkv"):
    """Compares each tensor with the same computation in its own type."""
    for i, (one, true, plain) in enumerate(zip(ours, golden, eager, strict=True)):
        name = names[i] if i < 3 else f"captured tensor {i - 3}"
        width = None if i < 3 else 1  # the elements of a captured tensor's row have errors of their own
        test_torch_flex.check(one, true, plain, name=name, row_width=width, is_gradient=True)


@pytest.mark.parametrize("dtype", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_gradients(name, dtype):
    inputs = tensors(dtype, SHAPES[dtype])
    mods = torch_mods.cases(SHAPES[dtype][0], SHAPES[dtype][3], SHAPES[dtype][4])[name]
    leaves = captured(*mods)
    shape = (*inputs[0].shape[:3], inputs[2].shape[3])
    # Of a captured tensor each element is one sample of an error: eager's is ten times smaller now and then, by chance.
    draws = [(torch.randn(shape).to(dtype), torch.randn(shape[:3])) for _ in range(8 if leaves else 1)]
    ours = drawn(fused(*mods), inputs, leaves, draws)
    doubled = [one.double() for one in inputs], leaves, [(out.double(), lse.double()) for out, lse in draws]
    with in_double(leaves):
        golden = drawn(lambda *given: unfused(*given, *mods), *doubled)
    eager = drawn(lambda *given: unfused(*given, *mods), inputs, leaves, draws)
    assert [one.dtype for one in ours] == [one.dtype for one in (*inputs, *leaves)]
    if name == "in_half":  # the reference rounds gradients to float16 as well, ours do not
        for one, true in zip(ours, golden, strict=True):
            torch.testing.assert_close(one.double(), true, atol=2e-2 if dtype == torch.bfloat16 else 3e-3, rtol=2e-2)
    else:
        check(ours, golden, eager)


def small(dtype=torch.float32):
    return tensors(dtype, (2, 4, 2, 20, 30, 8, 8))


def test_sinks_and_float64():
    """Sinks have gradients too; float64 is unfused, and agrees with finite differences."""
    inputs, sinks = small(), torch.linspace(-1, 1, 4).requires_grad_()
    doubled = torch.linspace(-1, 1, 4, dtype=torch.float64, requires_grad=True)
    cotangents = torch.randn(2, 4, 20, 8), torch.randn(2, 4, 20)
    ours = gradients(fused(None, torch_mods.causal, sinks=sinks), inputs, [sinks], cotangents)
    golden = gradients(
        fused(None, torch_mods.causal, sinks=doubled),
        [one.double() for one in inputs],
        [doubled],
        [one.double() for one in cotangents],
    )
    for one, true in zip(ours, golden, strict=True):
        torch.testing.assert_close(one.double(), true, atol=1e-5, rtol=1e-4)
    q, k, v = (one[:1, :, :3].double().requires_grad_() for one in inputs)
    assert torch.autograd.gradcheck(lambda *given: fused(torch_mods.squared, torch_mods.causal)(*given)[:2], (q, k, v))


def test_runs_are_equal_to_the_bit():
    inputs, leaves = tensors(torch.float32), [torch.randn(4, requires_grad=True)]
    bias = leaves[0]
    mods = (lambda score, b, h, q, kv: score + bias[h]), None
    cotangents = torch.randn_like(inputs[0]), torch.randn(inputs[0].shape[:3])
    first, second = (gradients(fused(*mods), inputs, leaves, cotangents) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def grad_of_sum(attend, *inputs):
    inputs = [one.detach().requires_grad_() for one in inputs]
    return torch.autograd.grad(attend(*inputs).sin().sum(), inputs)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend):
    torch._dynamo.reset()
    bias = torch.randn(4, 30, requires_grad=True)
    q, k, v = small()

    def attend(q, k, v, bias):
        return flex_attention(
            q, k, v, lambda score, b, h, i, j: score + bias[h, j] * 2, mask_mod=torch_mods.causal, enable_gqa=True
        )

    compiled = torch.compile(attend, fullgraph=True, backend=backend)
    for ours, plain in zip(grad_of_sum(compiled, q, k, v, bias), grad_of_sum(attend, q, k, v, bias), strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-5)


def test_func_grad_vmap_and_checkpoint():
    bias = torch.randn(4)
    q, k, v = small()

    def loss(q, k, v, bias):
        out = flex_attention(
            q, k, v, lambda score, b, h, i, j: score + bias[h], mask_mod=torch_mods.causal, enable_gqa=True
        )
        return out.sin().sum()

    inputs = [one.detach().requires_grad_() for one in (q, k, v, bias)]
    plain = torch.autograd.grad(loss(*inputs), inputs)
    functional = torch.func.grad(loss, argnums=(0, 1, 2, 3))(q, k, v, bias)
    again = torch.autograd.grad(checkpoint(loss, *inputs, use_reentrant=False), inputs)
    for one, other, third in zip(plain, functional, again, strict=True):
        torch.testing.assert_close(one, other)
        assert torch.equal(one, third)
    stacked = [torch.stack([one, one + 0.1, one - 0.2]) for one in (q, k, v)]
    batched = torch.func.vmap(loss, in_dims=(0, 0, 0, None))(*stacked, bias)
    for i in range(3):
        torch.testing.assert_close(batched[i], loss(*(one[i] for one in stacked), bias))
    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None, None, None))(stacked[0], k, v, bias)
    torch.testing.assert_close(per_sample[0], plain[0])


def test_batched_gradients_of_one_call():
    q, k, v = (one.requires_grad_() for one in small())
    out = flex_attention(q, k, v, mask_mod=torch_mods.causal, enable_gqa=True)
    cotangents = torch.randn(3, *out.shape)

    def gradients(cotangent):
        return torch.autograd.grad(out, (q, k, v), cotangent, retain_graph=True)

    for together, *single in zip(torch.vmap(gradients)(cotangents), *map(gradients, cotangents), strict=True):
        assert torch.equal(together, torch.stack(single))
    with pytest.raises(flashlift.UnsupportedError, match=r"is_grads_batched=True.*expected torch\.vmap"):
        torch.autograd.grad(out, q, cotangents, is_grads_batched=True)


def test_mods_that_a_transform_meets_first():
    """The tensors that a mod captures are wrapped by the transform while it is traced."""
    q, k, v = small()
    bias, steps = torch.randn(4, 40), torch.randn(3, 4)

    def loss(q, bias, factor=0.5):
        def score_mod(score, b, h, i, j):
            return score * bias[h, j] * factor + bias[h].sum()

        return flex_attention(q, k, v, score_mod, enable_gqa=True).sin().sum()

    inputs = [q.detach().requires_grad_(), bias.detach().requires_grad_()]
    for factor in (0.5, 0.25, 2.0):  # a number of the program, then an argument
        functional = torch.func.grad(loss, argnums=(0, 1))(q, bias, factor)
        torch.testing.assert_close(functional, torch.autograd.grad(loss(*inputs, factor), inputs))

    def slope(step):
        return flex_attention(q, k, v, lambda score, b, h, i, j: score + step[h] * j, enable_gqa=True)

    batched = torch.func.vmap(slope)(steps)
    lengths = torch.tensor([3, 9, 22])
    masked = torch.func.vmap(lambda n: flex_attention(q, k, v, mask_mod=lambda b, h, i, j: j < n, enable_gqa=True))(
        lengths
    )
    for i in range(3):
        torch.testing.assert_close(batched[i], slope(steps[i]))
        expected = flex_attention(q, k, v, mask_mod=lambda b, h, i, j, n=int(lengths[i]): j < n, enable_gqa=True)
        torch.testing.assert_close(masked[i], expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_jit_trace():
    q, k, v = small()
    graph = torch.jit.trace(lambda q: flex_attention(q, k, v, mask_mod=torch_mods.causal, enable_gqa=True), q * 2)
    torch.testing.assert_close(graph(q), flex_attention(q, k, v, mask_mod=torch_mods.causal, enable_gqa=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_jit_trace_of_scaled_dot_product_attention(kv_heads):
    attend = lambda q: scaled_dot_product_attention(q, q[:, :kv_heads], q[:, :kv_heads], enable_gqa=kv_heads != 4)
    q = small()[0]
    graph = torch.jit.trace(attend, q * 2)
    for one in (q, q[:1, :, :9]):
        torch.testing.assert_close(graph(one), attend(one))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_jit_trace_of_a_table():
    """To it, sizes are tensors, also those that a read of a table is checked against."""
    table = torch.rand(25)

    def attend(q):
        k = q[:, :2] + 1
        return flex_attention(q, k, k, lambda s, b, h, i, j: s + table[i] * table[j], enable_gqa=True)

    q = small()[0]
    graph = torch.jit.trace(attend, q * 2)
    for one in (q, q[:, :, :3]):
        torch.testing.assert_close(graph(one), attend(one))
    with pytest.raises(IndexError, match="expected at least"):
        torch.jit.trace(attend, torch.rand(1, 4, 30, 8))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_jit_trace_of_a_size_that_the_program_reads():
    table = torch.rand(25)

    def attend(q):
        k = q[:, :2] + 1
        return flex_attention(q, k, k, lambda s, b, h, i, j: s + table[i - j], enable_gqa=True)

    q = small()[0]
    torch.testing.assert_close(torch.jit.trace(attend, q * 2)(q), attend(q))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_jit_trace_of_numbers():
    def attend(q):
        k = q[:, :2] + 1
        return flex_attention(q, k, k, lambda s, b, h, i, j: 20.0 * torch.tanh(s / 20.0) - j / 7, enable_gqa=True)

    q = small()[0]
    torch.testing.assert_close(torch.jit.trace(attend, q * 2)(q), attend(q))


class Straight(torch.autograd.Function):
    """Rounds in the forward pass, but not in the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Reversed(torch.autograd.Function):
    """Returns its argument itself, with the opposite gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Power(torch.autograd.Function):
    """factor * base ** x, whose backward function reads the result, an argument and a number."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, base, factor):
        with torch.no_grad():
            return factor * base**x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], inputs[1], output)
        ctx.scale = 0.5

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        x, base, power = ctx.saved_tensors
        d_x = torch.where(x < 0, gradient * power, gradient * ctx.scale)
        return d_x, power * x / base * gradient if ctx.needs_input_grad[1] else None, None


class Product(Reversed):
    @staticmethod
    def forward(x, y):
        return x * y


class Square(torch.autograd.Function):
    """Its backward function calls another one and computes with the result."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        return Product.apply(gradient, ctx.saved_tensors[0]) * 2


class Clipped(Reversed):
    """Limits the gradient, which is no product with it."""

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-0.01, 0.01)


class Two(Reversed):
    @staticmethod
    def forward(x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first + second


class Undifferentiated(Reversed):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output)


@torch.library.custom_op("flashlift_tests::rounded", mutates_args=())
def rounded(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x)


rounded.register_fake(torch.empty_like)
rounded.register_autograd(lambda ctx, gradient: gradient * 3)
rounded.register_vmap(lambda info, dims, x: (rounded(x), dims[0]))


def cosine_alone(x):
    with torch.no_grad():
        return torch.cos(x)


SLOPES = torch.tensor([0.5, 1.5, -0.7, 0.9], requires_grad=True)
OWN_GRADIENTS = {
    "rounded": lambda s, b, h, i, j: Straight.apply(2 * s + SLOPES[h]),
    "reversed": lambda s, b, h, i, j: Reversed.apply(s * SLOPES[h]) + s / 4,
    "reversed parameter": lambda s, b, h, i, j: s * Reversed.apply(SLOPES[h]),
    "composed": lambda s, b, h, i, j: Straight.apply(Power.apply(Reversed.apply(s), SLOPES[h].abs(), 2.0)) + s,
    "used twice": lambda s, b, h, i, j: (lambda y: y.detach() + y * y)(Power.apply(s, SLOPES[h] * SLOPES[h], 1.0)),
    "used without gradient": lambda s, b, h, i, j: (lambda y: cosine_alone(y) * y)(
        Power.apply(s, SLOPES[h].abs(), 1.0)
    ),
    "function in a backward function": lambda s, b, h, i, j: Square.apply(s) * SLOPES[h],
    "custom operation": lambda s, b, h, i, j: rounded(2 * s + SLOPES[h]),
    "under a condition": lambda s, b, h, i, j: torch.where(i < j, Reversed.apply(s), s * SLOPES[h]).view(1)[0],
}


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("name", OWN_GRADIENTS)
def test_gradients_that_a_mod_defines(name, is_graph):
    score_mod = OWN_GRADIENTS[name]
    q, k, v = (one.requires_grad_() for one in small())
    inputs = (q, k, v, SLOPES)
    attend = flex_attention
    if is_graph:
        torch._dynamo.reset()  # each mod is a graph of its own, of which Dynamo keeps a limited number
        attend = torch.compile(flex_attention, backend="aot_eager", fullgraph=True)
    ours = attend(q, k, v, score_mod, enable_gqa=True)
    whole = unfused(q, k, v, score_mod)[0]
    torch.testing.assert_close(ours, whole)
    for one, other in zip(*(torch.autograd.grad(out.sin().sum(), inputs) for out in (ours, whole)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


class Doubled(Reversed):
    """Twice its argument, with the opposite gradient."""

    @staticmethod
    def forward(x):
        return x * 2


def added_in_place(s, b, h, i, j):
    y = torch.zeros(())
    y += s * SLOPES[h]
    return Doubled.apply(y) * 2


def changed_after(s, b, h, i, j):
    y = Doubled.apply(s * SLOPES[h])
    z = Doubled.apply(y)
    y *= 3
    return z + y * s


def not_changed(s, b, h, i, j):
    y = Doubled.apply(s * SLOPES[h])
    return Doubled.apply(y) + 3 * y * s


def caught(s, b, h, i, j):
    try:
        return s.item()
    except flashlift.UnsupportedError:
        return Doubled.apply(s)


@pytest.mark.parametrize(
    ("mod", "same"),
    [
        (added_in_place, lambda s, b, h, i, j: Doubled.apply(s * SLOPES[h]) * 2),
        (changed_after, not_changed),
        (caught, lambda s, *_: Doubled.apply(s)),
    ],
    ids=["added in place", "changed after", "caught"],
)
def test_gradients_that_a_mod_defines_for_what_it_changes_or_reads(mod, same):
    inputs = small()
    found = (
        grad_of_sum(lambda *qkv, one=one: flex_attention(*qkv, one, enable_gqa=True), *inputs) for one in (mod, same)
    )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_gradients_that_a_mod_defines_of_parts_of_one_parameter():
    q, k, v = small()
    found = []
    for attend in (flex_attention, lambda *args, **_: unfused(*args)[0]):
        parameter = torch.tensor([0.7, 1.3], requires_grad=True)
        parts = (parameter * 1.0).unbind()

        def score_mod(s, b, h, i, j, parts=parts):
            return Power.apply(s, parts[1], 2.0) + Power.apply(s, parts[0], 1.0)

        out = attend(q, k, v, score_mod, enable_gqa=True)
        found.append(torch.autograd.grad(out.sin().sum(), parameter)[0])
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)


def test_results_that_a_function_marks_as_not_differentiable():
    q, k, v = (one.requires_grad_() for one in small())
    mods = [lambda s, *_: Undifferentiated.apply(s) + s / 2, lambda s, *_: s.detach() * 2 + s / 2]  # vmap ignores marks
    ours, same = (grad_of_sum(lambda *qkv: flex_attention(*qkv, mod, enable_gqa=True).sin(), q, k, v) for mod in mods)
    torch.testing.assert_close(ours, same, atol=0, rtol=0)


REFUSED = {
    "Clipped": lambda s, b, h, i, j: Clipped.apply(s) + SLOPES[h],
    "Two": lambda s, b, h, i, j: sum(Two.apply(s)) + SLOPES[h],
    "Straight": lambda s, b, h, i, j: s * Straight.apply(SLOPES)[h],
    "Reversed": lambda s, b, h, i, j: s * Reversed.apply((SLOPES * 2).chunk(1)[0])[h],
}


@pytest.mark.parametrize("name", REFUSED)
def test_backward_functions_that_are_no_factors_are_refused(name):
    torch._dynamo.reset()
    score_mod, bias = REFUSED[name], SLOPES
    q, k, v = (one.requires_grad_() for one in small())
    out = flex_attention(q, k, v, score_mod, enable_gqa=True)
    torch.testing.assert_close(out, unfused(q, k, v, score_mod)[0])
    torch.autograd.grad(out.sum(), v, retain_graph=True)
    for one in (q, k, bias):
        with pytest.raises(flashlift.UnsupportedError, match=rf"torch.autograd.Function \({name}\)"):
            torch.autograd.grad(out.sum(), one, retain_graph=True)
    graph = torch.compile(flex_attention, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(graph(q, k, v, score_mod, enable_gqa=True), out)
    with pytest.raises((flashlift.UnsupportedError, RuntimeError), match=r"torch.autograd.Function"):
        graph(q, k, v, score_mod, enable_gqa=True).sum().backward()


def test_second_derivatives_are_refused():
    q, k, v = (one.requires_grad_() for one in small())
    out = flex_attention(q, k, v, enable_gqa=True)
    (first,) = torch.autograd.grad(out.sin().sum(), q, create_graph=True)
    with pytest.raises(flashlift.UnsupportedError, match="no second derivative"):
        first.sum().backward()


def test_block_mask_and_batch_of_one_key():
    q, k, v = tensors(torch.float32, (3, 4, 4, 40, 40, 16, 16))
    mask = create_block_mask(torch_mods.causal, 3, None, 40, 40, device="cpu")
    ours = grad_of_sum(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), q, k[:1], v[:1])
    whole = grad_of_sum(
        lambda q, k, v: unfused(q, k, v, None, torch_mods.causal)[0], q, k[:1].expand_as(k), v[:1].expand_as(v)
    )
    torch.testing.assert_close(ours[0], whole[0], atol=1e-5, rtol=1e-4)
    for one, other in zip(ours[1:], whole[1:], strict=True):
        torch.testing.assert_close(one, other.sum(0, keepdim=True), atol=1e-5, rtol=1e-4)


def test_opcheck_of_the_gradient():
    q, k, v = (one.requires_grad_() for one in tensors(torch.float32, (1, 2, 2, 12, 12, 8, 8)))
    program = "score_mod(t: f32[?]) { %0 = load t[kv]; %1 = mul score, %0; return %1 }"
    bias, sinks = torch.randn(12, requires_grad=True), torch.zeros(2, 1, requires_grad=True)
    torch.library.opcheck(
        torch.ops.flashlift.attention.default,
        (q, k, v, [bias], sinks, torch.tensor(7), f"sinks=1 dropout=0.1 {program}", 0.2, True, False, False),
    )


def test_dropout():
    """The same seed drops the same keys, also in the gradient; the mean stays the same."""
    q, k, v = small()

    def attend(q, k, v, seed=11):
        return flex_attention(q, k, v, enable_gqa=True, dropout_p=0.4, dropout_seed=seed)

    assert torch.equal(attend(q, k, v), attend(q, k, v, torch.tensor(11)))
    assert not torch.equal(attend(q, k, v), attend(q, k, v, 12))
    kept = torch.eye(30).expand(2, 2, 30, 30)  # values that show the probabilities
    weights, whole = attend(q, k, kept), flex_attention(q, k, kept, enable_gqa=True)
    gone = weights == 0
    assert 0.35 < gone.float().mean() < 0.45
    torch.testing.assert_close(weights, torch.where(gone, 0, whole / 0.6), atol=1e-6, rtol=1e-5)

    def reference(q, k, v):
        scores = q.unflatten(1, (2, 2)) @ k.unsqueeze(2).mT / 8**0.5
        probabilities = torch.where(gone.unflatten(1, (2, 2)), 0, torch.softmax(scores, -1) / 0.6)
        return (probabilities @ v.unsqueeze(2)).flatten(1, 2)

    for one, other in zip(grad_of_sum(attend, q, k, v), grad_of_sum(reference, q, k, v), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    torch.manual_seed(3)
    drawn = attend(q, k, v, None)
    torch.manual_seed(3)
    assert torch.equal(drawn, attend(q, k, v, None))
    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), attend(q, k, v))
    assert not torch.equal(compiled(q, k, v, None), compiled(q, k, v, None))


def check_rows_of_nearly_one_key(device):
    """In these rows, the rounding of <d_out, v> cancels if <d_out, out> is a sum of the same products."""

    def steep(score, b, h, q_idx, kv_idx):
        return score - torch.exp2(4.0 - h) * (q_idx - kv_idx).abs()

    inputs = tensors(torch.float32, (1, 4, 4, 256, 256, 64, 64))
    draws = [(torch.randn(1, 4, 256, 64), torch.zeros(1, 4, 256))]
    doubled = [one.double() for one in inputs], [], [(out.double(), lse.double()) for out, lse in draws]
    golden = drawn(lambda *given: unfused(*given, steep), *doubled)
    eager = drawn(lambda *given: unfused(*given, steep), inputs, [], draws)
    on_device = [one.to(device) for one in inputs], [], [(out.to(device), lse.to(device)) for out, lse in draws]
    ours = drawn(fused(steep, None), *on_device)
    check([one.cpu() for one in ours], golden, eager)


def test_gradients_of_rows_of_nearly_one_key():
    check_rows_of_nearly_one_key("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_that_vanish_are_zero(dtype):
    """If all values are equal, no score has an effect; the backward pass sees that only if the output is exactly that
    value."""
    bias = torch.randn(2, 200, 200, dtype=dtype, requires_grad=True)
    q, k, v = (torch.ones(1, 2, 200, 32, dtype=dtype, requires_grad=True) for _ in range(3))
    out = flex_attention(q, k, v, lambda score, b, h, i, j: score + bias[h, i, j], mask_mod=torch_mods.causal)
    for gradient in torch.autograd.grad(out.sum(), (q, k, bias)):
        assert (gradient == 0).all()


def test_a_training_step_does_not_import_dynamo():
    """The import takes two seconds; only compiled code needs it."""
    code = """if True:
        import sys, torch
        from flashlift.torch import flex_attention
        q, k, v = torch.randn(3, 1, 2, 20, 8).requires_grad_().unbind(0)
        bias = torch.randn(2, requires_grad=True)
        flex_attention(q, k, v, lambda score, b, h, i, j: score + bias[h] * (i >= j)).sum().backward()
        assert bias.grad.abs().sum() > 0 and "torch._dynamo" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_gpu_keeps_the_residual_where_the_plan_reads_it(monkeypatch):
    """For every architecture, and for the requested gradients. Nothing runs."""
    asked = []

    class Compiled:
        captures = ("bias",)

        def reads_residual(self, wanted):
            asked.append(wanted)
            return not wanted

    monkeypatch.setattr(kernels, "compiled", functools.lru_cache(lambda *given: Compiled()))

    def wants_residual(dtype, bias_is_wanted=False, any_heads=False):
        shape_env = ShapeEnv()
        heads = shape_env.create_unbacked_symint() if any_heads else 2
        with FakeTensorMode(shape_env=shape_env):
            q, k, v = (torch.empty(1, heads, 64, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
            bias = torch.empty(64, device="cuda", requires_grad=bias_is_wanted)
            call = dispatch.for_gradients(Call(q, k, v, [bias], None, None, "", 1.0))
        assert not call.f32_out
        return call.want_residual

    assert wants_residual(torch.bfloat16)
    assert not wants_residual(torch.float16, bias_is_wanted=True)
    assert asked == [[], ["bias"]]
    assert not wants_residual(torch.float32)
    assert len(asked) == 2  # nothing is rounded, and so nobody asked
    assert wants_residual(torch.bfloat16, any_heads=True)


def angle(x):
    return torch.atan2(x, torch.zeros(()))


def over(function, *numbers):
    others = [torch.tensor(one) for one in numbers]
    return lambda x: function(x, *others)


# Functions of a parameter, and where it starts: where derivatives jump, or come from formulas that have none.
AT_EDGES = {
    **{name: (getattr(torch, name), 0.0) for name in "atan asin acos asinh relu abs sgn sinc expm1 log1p".split()},
    **{
        f"{name} at {start}": (getattr(F, name), start)
        for start, names in (
            (0.0, "relu6 elu selu celu leaky_relu softsign softplus logsigmoid gelu silu mish"),
            (6.0, "relu6"),
            (-1.0, "hardtanh"),
            (1.0, "hardtanh"),
            (-3.0, "hardsigmoid hardswish"),
            (3.0, "hardsigmoid hardswish"),
            (0.5, "hardshrink softshrink"),
            (-0.5, "hardshrink softshrink"),
        )
        for name in names.split()
    },
    "threshold": (lambda x: F.threshold(x, 0.5, 0.0), 0.5),
    "clamp": (lambda x: x.clamp(0, 1), 0.0),
    "clamp at 1": (lambda x: x.clamp(0, 1), 1.0),
    "clamp by tensors": (lambda x: x.clamp(torch.zeros(()), torch.ones(())), 0.0),
    "clamp_min": (lambda x: x.clamp_min(2.0), 2.0),
    "maximum": (over(torch.maximum, 0.0), 0.0),
    "fmax": (over(torch.fmax, 0.0), 0.0),
    "fmin": (over(torch.fmin, 0.0), 0.0),
    "xlogy": (over(torch.xlogy, 2.0), 0.0),
    "xlogy of 0": (over(torch.xlogy, 0.0), 0.0),
    "xlogy of a number": (lambda x: torch.xlogy(x, 3.0), 0.0),
    "xlog1py": (over(torch.special.xlog1py, 2.0), 0.0),
    "atan2": (angle, 0.0),
    "copysign": (over(torch.copysign, -2.0), 0.0),
    "logaddexp": (lambda x: torch.logaddexp(x, x), 0.0),
}


def gradients_of_a_parameter(of_mod, of_plane, parameter):
    """Of flex_attention whose score_mod adds of_mod(parameter, q, kv), and of eager PyTorch."""
    torch.manual_seed(0)
    q, k, v, cotangent = (torch.randn(1, 2, 5, 8) for _ in range(4))
    ours = flex_attention(q, k, v, lambda score, b, h, i, j: score + of_mod(parameter, i, j))
    scores = q @ k.mT / 8**0.5 + of_plane(parameter)
    return [torch.autograd.grad(out, parameter, cotangent)[0] for out in (ours, torch.softmax(scores, -1) @ v)]


@pytest.mark.parametrize("name", AT_EDGES)
def test_gradients_at_edges(name):
    function, start = AT_EDGES[name]
    parameter = torch.full((5,), start, requires_grad=True)
    ours, expected = gradients_of_a_parameter(lambda x, i, j: function(x[j]), function, parameter)
    expected = torch.where(expected.isnan(), 0.0, expected)  # torch 2.9's atan2 at the origin
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


OF_ROWS = {
    **{name: getattr(torch, name) for name in "amax amin logsumexp std var".split()},
    "max": lambda x, dim: x.max(dim).values,
    "min": lambda x, dim: x.min(dim, keepdim=True).values.squeeze(dim),
    "softmax": lambda x, dim: torch.softmax(x, dim).select(dim, 1),
    "log_softmax": lambda x, dim: torch.log_softmax(x, dim).select(dim, 1),
    "rms_norm": lambda x, dim: F.rms_norm(x, (3,)).select(dim, 1),
    "rms_norm by weights": lambda x, dim: F.rms_norm(x, (3,), torch.arange(3.0), 0.1).select(dim, 2),
    "std_mean": lambda x, dim: torch.std_mean(x, dim)[0],
    "normalize": lambda x, dim: F.normalize(x, dim=dim).select(dim, 0),
    "argmax": lambda x, dim: x.argmax(dim) * x.select(dim, 0),
    "mean": lambda x, dim: (x - x.mean(dim, keepdim=True)).prod(dim),
    "nanmean": lambda x, dim: torch.where(x == 1, float("nan"), x).nanmean(dim),
    "lerp": lambda x, dim: torch.lerp(x, x * x, 0.7).sum(dim),
    "lerp by weights": lambda x, dim: torch.lerp(x, x * x, x.sigmoid()).sum(dim),
    "softmax in float32": lambda x, dim: torch.softmax(x, dim, torch.float32).select(dim, 1),
    "pad": lambda x, dim: F.pad(x, (2, -1), value=2.0).prod(dim),
    "pad of a matrix": lambda x, dim: F.pad(x.unsqueeze(-1) * x.unsqueeze(-2), (1, 0, -1, 2), value=0.5).sum((-1, -2)),
    "diagonal": lambda x, dim: (x.unsqueeze(-1) * x.unsqueeze(-2)).diagonal(1, -2, -1).sum(-1),
    "unfold": lambda x, dim: (x.unfold(dim, 2, 1) * x.unfold(dim, 2, 1).flip(-1)).sum((dim, -1)),
    "trace": lambda x, dim: torch.outer(x, x).trace() if dim == 0 else (x * x).sum(dim),
    "norm": lambda x, dim: x.norm(dim=dim),
    "norm of 3": lambda x, dim: torch.linalg.vector_norm(x, 3, dim=dim),
    "norm of infinity": lambda x, dim: torch.linalg.vector_norm(x, float("inf"), dim=dim),
}


@pytest.mark.parametrize("rows", ["equal", "partly", "different"])
@pytest.mark.parametrize("name", OF_ROWS)
def test_gradients_of_rows(name, rows):
    """Rows of zeros, rows in which two of three are equal, and others."""
    function = OF_ROWS[name]
    start = {"equal": torch.zeros(5, 3), "partly": torch.tensor([[2.0, 1.0, 2.0]] * 5), "different": torch.randn(5, 3)}
    parameter = start[rows].requires_grad_()
    ours, expected = gradients_of_a_parameter(lambda x, i, j: function(x[j], 0), lambda x: function(x, 1), parameter)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_gradients_of_distances():
    """The distance of a point from itself has no slope."""
    points = torch.randn(5, 3, requires_grad=True)
    ours, expected = gradients_of_a_parameter(
        lambda x, i, j: torch.dist(x[i], x[j]), lambda x: (x[:, None] - x).norm(dim=-1), points
    )
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


WITHOUT_GRADIENT = {
    "mask": (None, lambda x: lambda b, h, i, j: x[j] > -0.5),
    "choice": (lambda x: lambda score, b, h, i, j: torch.where(x[j] > 0, score, 2 * score), None),
    "integer": (lambda x: lambda score, b, h, i, j: score + (x[j] * 4).long(), None),
    "detached": (lambda x: lambda score, b, h, i, j: score + x[j].detach(), None),
}


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_gradients_of_what_is_only_compared_are_none(name, dtype, is_graph):
    """As in PyTorch: with zeros, an optimizer would let a parameter decay."""
    score_mod, mask_mod = WITHOUT_GRADIENT[name]
    q, slope, x = (torch.randn(*size, dtype=dtype, requires_grad=True) for size in ((1, 2, 6, 8), (2,), (6,)))

    def loss(q, slope, x):
        inner = (lambda score, *place: score) if score_mod is None else score_mod(x)
        keeps = None if mask_mod is None else mask_mod(x)
        out = flex_attention(q, q, q, lambda score, b, h, i, j: inner(score, b, h, i, j) * slope[h], mask_mod=keeps)
        return out.sin().sum()

    run = torch.compile(loss, fullgraph=True, backend="aot_eager") if is_graph else loss
    d_q, d_slope, d_x = torch.autograd.grad(run(q, slope, x), (q, slope, x), allow_unused=True)
    assert d_x is None
    assert d_q.abs().sum() > 0 and d_slope.abs().sum() > 0


def test_the_padding_of_an_embedding_has_no_gradient():
    table = torch.nn.Embedding(5, 1, padding_idx=1)
    every = torch.arange(5)
    ours, expected = gradients_of_a_parameter(lambda x, i, j: table(j)[0], lambda x: table(every)[:, 0], table.weight)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    assert ours[1] == 0


@pytest.mark.parametrize("function", [F.relu, F.relu6, lambda x: x.clamp(min=0), lambda x: -x.clamp(max=0)])
def test_gradients_of_queries_of_zeros(function):
    """Their scores are at the limit."""
    q, k, v, cotangent = (torch.randn(1, 2, 5, 8) for _ in range(4))
    q[:, :, 1] = 0
    q.requires_grad_()
    ours = flex_attention(q, k, v, lambda score, b, h, i, j: function(score))
    expected = torch.softmax(function(q @ k.mT / 8**0.5), -1) @ v
    torch.testing.assert_close(*(torch.autograd.grad(out, q, cotangent)[0] for out in (ours, expected)))


def test_limits_that_need_no_choice_are_one_operation():
    for mod, operations in (
        (lambda score, b, h, q, kv: score.clamp(-3, 3), {"max", "min"}),
        (lambda score, b, h, q, kv: score + torch.relu((q - kv).float()), {"sub", "to_f32", "max", "add"}),
    ):
        found = traced(mod, "score_mod")[0]
        text = print_program("score_mod", found.result, found.captures, found.builder, Bounds())[0]
        assert set(re.findall(r"= (\w+)", text)) == operations
