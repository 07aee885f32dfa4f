"""Attention.backward: gradients against torch's autograd in float64, and its errors."""

import flashlift
import ml_dtypes
import numpy as np
import pytest
import torch

RNG = np.random.default_rng(11)
Q = RNG.normal(size=(2, 4, 33, 16)).astype(np.float32)
K, V = (RNG.normal(size=(2, 2, 33, 16)).astype(np.float32) for _ in range(2))
D_OUT = RNG.normal(size=Q.shape).astype(np.float32)
D_LSE = RNG.normal(size=Q.shape[:3]).astype(np.float32)
TABLE = RNG.normal(size=65).astype(np.float32)
SINKS = RNG.normal(size=(4, 1)).astype(np.float32)
BIAS = (
    "score_mod(table: f32[65]) { %0 = sub kv, q; %1 = add %0, 32; %2 = load table[%1]; %3 = add score, %2; return %3 }"
)


def golden(table=None, sinks=None, d_lse=None, d_out=D_OUT):
    """The gradients of q, k, v, table and sinks, causal."""
    given = [
        None if x is None else torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (Q, K, V, table, sinks)
    ]
    q, k, v, table, sinks = given
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    scores = q @ k.mT / 4
    position = torch.arange(33)
    if table is not None:
        scores = scores + table[position[None] - position[:, None] + 32]
    scores = scores.masked_fill(position[None] > position[:, None], -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None].expand(2, 4, 33, 1)], dim=-1)
    out = torch.softmax(scores, -1)[..., :33] @ v
    loss = (out * torch.tensor(d_out, dtype=torch.float64)).sum()
    if d_lse is not None:
        loss = loss + (torch.logsumexp(scores, -1) * torch.tensor(d_lse)).sum()
    loss.backward()
    return [None if x is None else x.grad.numpy() for x in given]


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 2e-6), (ml_dtypes.bfloat16, 4e-2)])
@pytest.mark.parametrize("first", [0, 5, 33])
def test_many_rows_without_keys_pass_their_gradients_on_to_all_values(dtype, tolerance, first):
    """Padding on the left: the first queries see no key, and are the mean of all values."""
    name = {"float32": "f32", "bfloat16": "bf16"}[np.dtype(dtype).name]
    mask = f"mask_mod() {{ %0 = ge kv, {first}; %1 = ge q, kv; %2 = and %0, %1; return %2 }}"
    attention = flashlift.compile(f"attn b2 hq4 hkv2 s33 d16 {name} lse empty_rows=uniform {mask}")
    narrow = [x.astype(dtype) for x in (Q, K, V, D_OUT)]
    q, k, v, d_out = (torch.tensor(x.astype(np.float64), requires_grad=True) for x in narrow)
    position = torch.arange(33)
    keep = (position[None] <= position[:, None]) & (position[None] >= first)
    scores = (q @ k.repeat_interleave(2, dim=1).mT / 4).masked_fill(~keep, -1e300)  # a mean, if it masks all keys
    (torch.softmax(scores, -1) @ v.repeat_interleave(2, dim=1)).backward(d_out)
    out, lse = attention(*narrow[:3])
    got = attention.backward(*narrow[:3], out, narrow[3], lse=lse)
    for one, other in zip((got.q, got.k, got.v), (q, k, v), strict=True):
        np.testing.assert_allclose(one.astype(np.float64), other.grad, atol=tolerance)


def test_all_gradients():
    attention = flashlift.compile(f"attn b2 hq4 hkv2 s33 d16 f32 causal sinks=1 lse {BIAS}")
    captures = {"table": TABLE}
    out, lse = attention(Q, K, V, captures=captures, sinks=SINKS)
    got = attention.backward(
        Q, K, V, out, D_OUT, captures=captures, sinks=SINKS, lse=lse, d_lse=D_LSE, wanted=["table"]
    )
    want = golden(TABLE, SINKS, D_LSE)
    for one, other in zip((got.q, got.k, got.v, got.captures["table"], got.sinks), want, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_prepared_for_captured_tensors():
    attention = flashlift.compile(f"attn b2 hq4 hkv2 s33 d16 f32 causal {BIAS}")
    attention.prepare_backward()
    attention.prepare_backward(["table"])
    out = attention(Q, K, V, captures=[TABLE])
    got = attention.backward(Q, K, V, out, D_OUT, captures=[TABLE], wanted=["table"])
    np.testing.assert_allclose(got.captures["table"], golden(TABLE)[3], atol=2e-5)
    with pytest.raises(flashlift.InvalidArgumentError, match=r"no captured tensor is named \['tables'\]"):
        attention.prepare_backward(["tables"])
    with pytest.raises(flashlift.InvalidArgumentError, match=r"wanted is 'table'; expected a list .* \['table'\]"):
        attention.prepare_backward("table")
    with pytest.raises(flashlift.UnsupportedError, match="not normalised"):
        flashlift.compile("attn h2 s8 d16 f32 unnormalized").prepare_backward()


def test_no_backward_pass_on_a_cpu_reads_the_residual():
    attention = flashlift.compile(f"attn b2 hq4 hkv2 s33 d16 f32 causal lse {BIAS}")
    assert not attention.reads_residual()
    assert not attention.reads_residual(["table"])
    with pytest.raises(flashlift.InvalidArgumentError, match=r"no captured tensor is named \['tables'\]"):
        attention.reads_residual(["tables"])
    assert not flashlift.compile("attn h2 s8 d16 f32 unnormalized").reads_residual()


def test_without_lse():
    attention = flashlift.compile("attn b2 hq4 hkv2 s33 d16 f32 causal")
    got = attention.backward(Q, K, V, attention(Q, K, V), D_OUT)
    for one, other in zip((got.q, got.k, got.v), golden(), strict=False):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_bfloat16_and_torch_tensors():
    attention = flashlift.compile("attn b2 hq4 hkv2 s33 d16 bf16 causal lse")
    narrow = [x.astype(ml_dtypes.bfloat16) for x in (Q, K, V)]
    out, lse = attention(*narrow)
    got = attention.backward(*narrow, out, D_OUT.astype(ml_dtypes.bfloat16), lse=lse)
    assert got.q.dtype == ml_dtypes.bfloat16
    for one, other in zip((got.q, got.k, got.v), golden(), strict=False):
        np.testing.assert_allclose(one.astype(np.float32), other, atol=6e-2)

    tensors = [torch.tensor(x.astype(np.float32)).bfloat16() for x in (*narrow, out, D_OUT)]
    d_k = torch.zeros(2, 33, 2, 16, dtype=torch.bfloat16).transpose(1, 2)
    attention.bind_backward(*tensors, lse=torch.tensor(lse), d_k=d_k)()
    assert np.array_equal(d_k.contiguous().view(torch.int16).numpy(), got.k.view(np.int16))


def test_errors():
    out = np.zeros_like(Q)
    attention = flashlift.compile("attn b2 hq4 hkv2 s33 d16 f32")
    for arguments, words in [
        ({"d_q": np.zeros_like(K)}, "d_q: expected"),
        ({"d_k": K.astype(np.float16)}, "d_k: expected"),
        ({"d_v": np.broadcast_to(V[:1], V.shape)}, "may be written"),
        ({"d_lse": D_LSE}, "does not ask for lse"),
        ({"d_sinks": SINKS}, "no sinks"),
        ({"d_captures": {"table": TABLE}}, "table"),
    ]:
        with pytest.raises(flashlift.InvalidArgumentError, match=words):
            attention.bind_backward(Q, K, V, out, D_OUT, **arguments)()
    with pytest.raises(flashlift.InvalidArgumentError, match="no captured tensor"):
        attention.backward(Q, K, V, out, D_OUT, wanted=["table"])
    with pytest.raises(flashlift.InvalidArgumentError, match="captures has 1 array; expected 0 captured tensors"):
        attention.backward(Q, K, V, out, D_OUT, captures=[TABLE])
    with pytest.raises(flashlift.InvalidArgumentError, match="sinks is a list"):
        attention.backward(Q, K, V, out, D_OUT, sinks=[0.5])
    with pytest.raises(flashlift.UnsupportedError, match="not normalised"):
        flashlift.compile("attn b2 hq4 hkv2 s33 d16 f32 unnormalized").backward(Q, K, V, out, D_OUT)
    lookup = "mask_mod(ids: i32[?]) { %0 = load ids[kv]; %1 = le %0, q; return %1 }"
    attention = flashlift.compile(f"attn b2 hq4 hkv2 s33 d16 f32 {lookup}")
    with pytest.raises(flashlift.InvalidArgumentError, match="only float tensors"):
        attention.backward(Q, K, V, out, D_OUT, captures=[np.arange(33, dtype=np.int32)], wanted=["ids"])
