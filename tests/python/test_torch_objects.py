"""Two ways to pass torch's tensors to the kernels: by DLPack's exchange interface in C, or by views created in Python
if torch lacks it. Also lazy negation, which neither of them represents.
"""

import pytest
import torch
from flashlift.torch import flex_attention
from flashlift.torch._run import kernels, objects


def tensors(dtype=torch.float32):
    return [torch.randn(2, 4, 40, 16, dtype=dtype, requires_grad=True) for _ in range(3)]


def attend(q, k, v, bias, sinks):
    out = flex_attention(q, k, v, lambda score, b, h, q, kv: score + bias[h, kv], sinks=sinks)
    return out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v, bias, sinks))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_ways_give_the_same(monkeypatch, dtype):
    if not objects.takes_objects():
        pytest.skip("this torch has no exchange interface: there is one way only")
    given = *tensors(dtype), torch.randn(4, 40, requires_grad=True), torch.randn(4, 1, requires_grad=True)
    by_objects = attend(*given)
    monkeypatch.setattr(kernels, "takes_objects", lambda: False)
    for one, other in zip(by_objects, attend(*given), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("trains", [False, True])
def test_lazy_negation(compiles, trains):
    q, k, v = (one.detach() for one in tensors())
    if trains:
        k.requires_grad_()
    attention = torch.compile(flex_attention, backend="aot_eager") if compiles else flex_attention
    lazy = torch._neg_view(-q)
    assert lazy.is_neg()
    expected, got = flex_attention(q, k, v), attention(lazy, k, v)
    assert torch.equal(got, expected)
    if trains:
        grad = torch.randn_like(expected)
        (wanted,) = torch.autograd.grad(expected, k, grad)
        (found,) = torch.autograd.grad(got, k, torch._neg_view(-grad))
        assert torch.equal(found, wanted)


def test_calls_of_a_graph_go_past_the_dispatcher(monkeypatch):
    """Calls that no mode, transform or gradient must see."""
    calls = []
    whole = kernels.run_for_backward
    monkeypatch.setattr("flashlift.torch._run.operators.run_for_backward", lambda call: calls.append(1) or whole(call))
    monkeypatch.setattr("flashlift.torch._run.operators.are_plain", lambda tensors: pytest.fail("looked at tensors"))
    q, k, v = (one.detach() for one in tensors())
    with torch.no_grad():
        torch.ops.flashlift.attention(q, k, v, [], None, None, "", 0.25, False, False, False)
    assert calls == [1]
