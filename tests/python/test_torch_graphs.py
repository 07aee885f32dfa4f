"""Functions that Inductor's compiled graphs call: in C, and in Python for the first call of each kind."""

import pytest
import torch
from flashlift.torch import flex_attention
from flashlift.torch._run import graphs
from torch.profiler import ProfilerActivity, profile

ATTENTION = "flashlift.torch._run.graphs.run_for_backward"
BACKWARD = "flashlift.torch._run.graphs.differentiate"


def tensors(length=40, dtype=torch.float32, depth=16):
    return [torch.randn(2, length, 4, depth, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3)]


def causal(b, h, q, kv):
    return q >= kv


def gradients(attend, given, **options):
    out = attend(*given, mask_mod=causal, **options)
    return out.detach(), *torch.autograd.grad(out, given[:3], torch.ones_like(out) + out.detach())


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    return torch.compile(flex_attention, fullgraph=True, dynamic=False)


@pytest.fixture
def in_python(monkeypatch):
    """The calls that Python makes, in order."""
    calls = []
    if graphs._c() is None:
        pytest.skip("this torch has not what the functions in C need")
    for name, path in (("forward", ATTENTION), ("backward", BACKWARD)):
        kernel = getattr(graphs, path.rsplit(".", 1)[1])
        monkeypatch.setattr(path, lambda *given, kernel=kernel, name=name: calls.append(name) or kernel(*given))
    for records in (graphs._forward_records, graphs._backward_records):
        records.first.clear()
        records._known.clear()
    return calls


def same(some, others):
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def test_only_the_first_call_of_a_kind_is_pythons(compiled, in_python):
    for length in (40, 24):
        given = tensors(length)
        expected = gradients(flex_attention, given)
        del in_python[:]
        for _ in range(3):
            assert same(gradients(compiled, given), expected)
        assert in_python == ["forward", "backward"], length


def test_results_lie_in_memory_as_the_operators_do(compiled, in_python):
    given = tensors()
    for _ in range(2):
        out, *others = gradients(compiled, given)
        assert out.stride() == given[0].stride()
        assert [one.stride() for one in others] == [one.stride() for one in given]
    assert in_python == ["forward", "backward"]


def test_sinks_and_captured_tensors(compiled, in_python):
    given = tensors()
    bias, sinks = torch.randn(4, 40), torch.randn(4, 1)

    def biased(score, b, h, q, kv):
        return score + bias[h, kv]

    with torch.no_grad():
        expected = flex_attention(*given, score_mod=biased, sinks=sinks)
        for _ in range(2):
            assert torch.equal(compiled(*given, score_mod=biased, sinks=sinks), expected)
        assert in_python == ["forward"]
        bias += 1
        assert torch.equal(
            compiled(*given, score_mod=biased, sinks=sinks), flex_attention(*given, score_mod=biased, sinks=sinks)
        )
    trained = sinks.requires_grad_()
    out = compiled(*given, score_mod=biased, sinks=trained)
    found = torch.autograd.grad(out.sum(), (*given, trained))
    out = flex_attention(*given, score_mod=biased, sinks=trained)
    assert same(found, torch.autograd.grad(out.sum(), (*given, trained)))


def test_outputs_of_another_type_are_pythons(in_python):
    """On a CPU, training in 16 bits has an output of f32, whose rows Python processes."""
    given = [one.detach() for one in tensors(dtype=torch.bfloat16)]
    others = [], None, None, "causal", 0.25, False, True, False
    for _ in range(3):
        out = getattr(torch.ops.flashlift, graphs._NAMES[0])(*given, *others)[0]
        assert torch.equal(out, torch.ops.flashlift.attention(*given, *others)[0])
    assert in_python == ["forward"] * 3


def test_dropout_draws_anew(compiled):
    given = tensors()
    with torch.no_grad():
        drawn = [compiled(*given, dropout_p=0.5) for _ in range(3)]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_row_maxima(compiled):
    from torch.nn.attention.flex_attention import AuxRequest

    given = [one.detach() for one in tensors()]
    request = AuxRequest(lse=True, max_scores=True)
    expected = flex_attention(*given, return_aux=request)[1]
    attend = torch.compile(lambda *given: flex_attention(*given, return_aux=request)[1], fullgraph=True)
    for _ in range(2):
        found = attend(*given)
        assert torch.equal(found.lse, expected.lse)
        assert torch.equal(found.max_scores, expected.max_scores)


def test_profilers_see_the_calls(compiled):
    given = tensors()
    gradients(compiled, given)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        gradients(compiled, given)
    names = {one.name for one in seen.events()}
    assert {"flashlift::attention", "flashlift::attention_backward"} <= names


def test_errors_are_raised(in_python):
    """Also an error of a call that has a record."""
    function = getattr(torch.ops.flashlift, graphs._NAMES[0])
    q, k, v = (one.detach() for one in tensors())
    features = "score_mod(t: f32[?]) { %0 = load t[kv]; %1 = add score, %0; return %1 }"
    table = torch.randn(40)
    others = None, None, features, 0.25, False, False, False
    for _ in range(2):
        out = function(q, k, v, [table], *others)[0]
        function = getattr(torch.ops.flashlift, graphs._NAMES[0])
    assert torch.equal(out, torch.ops.flashlift.attention(q, k, v, [table], *others)[0])
    for captures in ([], [table, table], [table.double()]):
        with pytest.raises(ValueError, match="captured"):
            function(q, k, v, captures, *others)
    with pytest.raises(ValueError, match="captured"):
        torch.ops.flashlift.attention(q, k, v, [], *others)
    with pytest.raises((TypeError, AttributeError, RuntimeError)):
        function(q, k, v, [None], *others)
    assert torch.equal(function(q, k, v, [table], *others)[0], out)


def test_many_records_are_forgotten(monkeypatch, in_python):
    monkeypatch.setattr(graphs, "_MOST_RECORDS", 3)
    others = [], None, None, "causal", 0.25, False, False, False
    getattr(torch.ops.flashlift, graphs._NAMES[0])(*(one.detach() for one in tensors()), *others)
    function = getattr(torch.ops.flashlift, graphs._NAMES[0])
    for length in (8, 9, 10, 11, 12, 8, 12):
        given = [one.detach() for one in tensors(length)]
        expected = torch.ops.flashlift.attention(*given, *others)[0]
        for _ in range(2):
            assert torch.equal(function(*given, *others)[0], expected)
        assert len(graphs._forward_records._known) <= 3
