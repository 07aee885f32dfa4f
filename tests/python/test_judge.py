"""flashlift.testing, and the references by which the benchmarks judge."""

import sys
from pathlib import Path

import flashlift
import numpy as np
import pytest
import torch
from flashlift.testing import judge

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import golden


def causal(b, h, q, kv):
    return q >= kv


def softcap(score, b, h, q, kv):
    return 3 * torch.tanh(score / 3)


PROBLEMS = {
    "full": ("", None, None),
    "causal": ("causal", None, causal),
    "softcap": ("softcap=3 causal", softcap, causal),
}


def results(name, dtype):
    """Flashlift's results of one problem, and the references of the judge."""
    words, score_mod, mask_mod = PROBLEMS[name]
    q, k, v, d_out = (torch.randn(2, heads, 96, 24).to(dtype) for heads in (4, 2, 2, 4))
    text = f"attn b2 hq4 hkv2 s96 d24 {({torch.float32: 'f32', torch.bfloat16: 'bf16'})[dtype]} lse {words}"
    attention = flashlift.compile(text)
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    attention.bind(q, k, v, out, lse=lse)()
    found = {"out": out, "d_q": torch.empty_like(q), "d_k": torch.empty_like(k), "d_v": torch.empty_like(v)}
    gradients = {name: one for name, one in found.items() if name != "out"}
    attention.bind_backward(q, k, v, out, d_out, lse=lse, **gradients)()
    given = golden.Attention(q, k, v, score_mod, mask_mod)
    return found, {"out": golden.forward(given), **golden.backward(given, d_out)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_benchmarks_judge_right_results_right_and_wrong_ones_wrong(name, dtype, capsys):
    found, references = results(name, dtype)
    assert golden.complaints({"flashlift": found}, references) == []
    for tensor in references:
        wrong = found | {tensor: found[tensor].clone()}
        wrong[tensor][1, 1, 70] = 0
        (complaint,) = golden.complaints({"peer": wrong}, references)
        assert complaint.startswith("WRONG: peer: ") and tensor in complaint
        verdict = golden.Verdict()
        assert verdict.exit_code() == 0
        verdict.add([complaint])
        assert verdict.exit_code() == 1
        assert complaint in capsys.readouterr().err


def test_judges_numpy_arrays():
    generator = np.random.default_rng(1)
    want = generator.normal(size=(2, 3, 50, 8))
    eager = (want * (1 + 1e-6 * generator.normal(size=want.shape))).astype(np.float32)
    got = want.astype(np.float32)
    judgement = judge(got, want, eager)
    assert judgement.ok and judgement.reason == "" and 0 < judgement.ratio < 1
    assert judgement.mean.error <= judgement.largest.error <= judgement.largest.limit
    got[1, 2, 30] = got[1, 2, 31]
    judgement = judge(got, want, eager, name="rows")
    assert not judgement.ok and judgement.ratio > 1 and "rows[1,2,30,:]" in judgement.reason
    got[1, 2, 30] = np.nan
    assert "got nan" in judge(got, want, eager).reason


def test_says_what_does_not_fit():
    got = np.zeros((2, 3), np.float32)
    with pytest.raises(flashlift.InvalidArgumentError, match=r"want has shape \[3, 2\]; expected \[2, 3\]"):
        judge(got, np.zeros((3, 2)), got)
    with pytest.raises(flashlift.InvalidArgumentError, match="got has element type i32"):
        judge(got.astype(np.int32), got, got)
    with pytest.raises(flashlift.InvalidArgumentError, match="eager is a NoneType"):
        judge(got, got, None)
