"""Checkpointing: the repeated forward pass must save the same as the first one, and give its gradients."""

import functools

import pytest
import torch
from flashlift.torch import flex_attention
from flashlift.torch._mods import families
from test_torch_flex import unfused
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

# Of each layer: its window, and the factor of its scores. Each kind of change that makes a number an argument.
LAYERS = [(4, 0.5), (9, 0.5), (9, 2.0), (4, 0.5), (3, 1.5), (11, 0.25)]


@pytest.fixture(autouse=True)
def nothing_met_before():
    families._families.clear()
    torch._dynamo.reset()


def tensors():
    q, k, v = torch.randn(3, 1, 2, 24, 8, generator=torch.Generator().manual_seed(2))
    return [one.clone().requires_grad_() for one in (q, k, v)]


def mods(window, factor, bias):
    """A score_mod and a mask_mod in which, by where(), a number decides whether a captured tensor is read at all."""

    def score_mod(score, b, h, i, j):
        return torch.where(torch.as_tensor(window > 5), score * factor + bias[h], score * factor - (bias * window)[h])

    return score_mod, lambda b, h, i, j: (i - j).abs() < window


def layer(x, k, v, bias, window, factor, attend=flex_attention):
    score_mod, mask_mod = mods(window, factor, bias)
    return attend(x, k, v, score_mod, mask_mod=mask_mod).tanh()


def plain(x, k, v, bias, window, factor):
    score_mod, mask_mod = mods(window, factor, bias)
    return unfused(x, k, v, score_mod, mask_mod)[0].tanh()


def network(x, k, v, bias, run):
    for window, factor in LAYERS:
        x = run(x, k, v, bias, window, factor)
    return x


def gradients(run, model=network):
    inputs = [*tensors(), torch.linspace(-1, 1, 2).requires_grad_()]
    model(*inputs, run).sin().sum().backward()
    return [one.grad for one in inputs]


def save_attention(context, operation, *args, **kwargs):
    is_attention = operation == torch.ops.flashlift.attention.default
    return CheckpointPolicy.MUST_SAVE if is_attention else CheckpointPolicy.PREFER_RECOMPUTE


def selective(*args):
    contexts = functools.partial(create_selective_checkpoint_contexts, save_attention)
    return checkpoint(layer, *args, use_reentrant=False, context_fn=contexts)


def nested(*args):
    inner = functools.partial(checkpoint, layer, use_reentrant=False)
    return checkpoint(inner, *args, use_reentrant=False)


@pytest.mark.parametrize(
    "run",
    [
        functools.partial(checkpoint, layer, use_reentrant=False),
        functools.partial(checkpoint, layer, use_reentrant=True),
        functools.partial(checkpoint, layer, use_reentrant=False, early_stop=False),
        selective,
        nested,
    ],
    ids=["plain", "reentrant", "to_the_end", "selective", "nested"],
)
def test_layers_that_differ_in_numbers(run):
    """Tests the first step, in which the numbers of later layers become arguments."""
    found = gradients(run)
    for one, other in zip(found, gradients(layer), strict=True):
        assert torch.equal(one, other)
    for one, true in zip(found, gradients(plain), strict=True):
        torch.testing.assert_close(one, true, atol=1e-5, rtol=1e-4)


def test_more_numbers_than_traces_are_kept(monkeypatch):
    """A trace that newer ones have displaced is still used by the layers that had it."""
    monkeypatch.setattr(families, "_VARIANTS", 2)
    q, k, v = tensors()

    def loops(count):
        def score_mod(score, b, h, i, j):
            for _ in range(count):  # each count is a program of its own
                score = score * 1.01
            return score

        return lambda q: flex_attention(q, k, v, score_mod)

    out = sum(checkpoint(loops(count), q, use_reentrant=False).sum() for count in range(1, 7))
    (found,) = torch.autograd.grad(out, q)
    (again,) = torch.autograd.grad(sum(loops(count)(q).sum() for count in range(1, 7)), q)
    assert torch.equal(found, again)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_dropout(use_reentrant):
    q, k, v = tensors()

    def attend(q):
        return flex_attention(q, k, v, dropout_p=0.3)

    torch.manual_seed(4)
    (expected,) = torch.autograd.grad(attend(q).sin().sum(), q)
    torch.manual_seed(4)
    out = checkpoint(attend, q, use_reentrant=use_reentrant)
    torch.randn(3)  # whatever draws numbers in between
    out.sin().sum().backward()
    assert torch.equal(q.grad, expected)


def test_block_masks():
    """The mask is made inside: each run has another object for the same mask."""
    x, k, v = tensors()

    def attend(x, window):
        mask = create_block_mask(lambda b, h, i, j: (i - j).abs() < window, 1, 1, 24, 24, device="cpu", BLOCK_SIZE=8)
        return flex_attention(x, k, v, block_mask=mask)

    def network(run):
        out = x
        for window in (3, 9, 5):
            out = run(out, window)
        return torch.autograd.grad(out.sum(), x)[0]

    found = network(functools.partial(checkpoint, attend, use_reentrant=False))
    assert torch.equal(found, network(attend))


@pytest.mark.parametrize("dropout_p", [0, 0.3])
def test_compiled(dropout_p):
    """Layers in one graph; two of them run again in its backward pass."""
    attend = functools.partial(flex_attention, dropout_p=dropout_p, dropout_seed=5 if dropout_p else None)

    def run(*args):
        return checkpoint(functools.partial(layer, attend=attend), *args, use_reentrant=False)

    def model(x, k, v, bias, run):
        return run(run(x, k, v, bias, 4, 0.5), k, v, bias, 9, 0.5)

    found = gradients(run, torch.compile(model, backend="aot_eager", fullgraph=True))
    for one, other in zip(found, gradients(functools.partial(layer, attend=attend), model), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


class Steeper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        x, factor = ctx.saved_tensors
        return 2 * gradient * factor, 3 * gradient * x


class ToNumpy(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self):
        super().__init__(lambda one: one.detach().numpy().copy(), torch.from_numpy)


def checkpointed(*args):
    return checkpoint(flex_attention, *args, use_reentrant=False)


def hooked(*args):
    with torch.autograd.graph.save_on_cpu(), ToNumpy():
        return flex_attention(*args)


@pytest.mark.parametrize("attend", [checkpointed, hooked], ids=lambda one: one.__name__)
def test_hooks_do_not_see_what_a_function_in_a_mod_stores(attend):
    """The hooks are for what a call stores, and not for what its trace does."""
    factors = torch.tensor([0.7, 1.3], requires_grad=True)
    inputs = (*tensors(), factors)

    def gradients_of(attend):
        out = attend(*inputs[:3], lambda s, b, h, i, j: Steeper.apply(s, factors[h]))
        return torch.autograd.grad(out.sin().sum(), inputs)

    hooked_gradients = gradients_of(attend)
    families._families.clear()
    for one, other in zip(hooked_gradients, gradients_of(flex_attention), strict=True):
        torch.testing.assert_close(one, other)
