"""flashlift.torch.flex_attention compared with float64, and judged against unfused maths in the same type."""

import functools
import math

import pytest
import torch
import torch_mods
from flashlift.testing import judge
from flashlift.torch import TraceError, flex_attention
from flashlift.torch._internals import sliced_mask_mod_error
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask
from torch.nn.attention.flex_attention import flex_attention as torch_flex_attention

# (batch, q_heads, kv_heads, q_len, kv_len, depth, value depth)
SHAPES = {
    torch.float32: (2, 4, 4, 99, 99, 64, 64),
    torch.bfloat16: (2, 4, 2, 65, 130, 40, 72),
    torch.float16: (1, 4, 1, 128, 128, 64, 32),
}
DTYPES = list(SHAPES)
NAMES = list(torch_mods.cases(1, 32, 32))


def tensors(dtype, shape=None, seed=0):
    batch, q_heads, kv_heads, q_len, kv_len, depth, value_depth = shape or SHAPES[dtype]
    generator = torch.Generator().manual_seed(seed)
    sizes = (q_heads, q_len, depth), (kv_heads, kv_len, depth), (kv_heads, kv_len, value_depth)
    return [torch.randn(batch, *size, generator=generator).to(dtype) for size in sizes]


def plane(mod, first, sizes):
    """A mod over the whole plane, as PyTorch's eager flex_attention has it."""
    prefix = (0,) if first is not None else ()
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        mod = torch.vmap(mod, in_dims=prefix + dims)
    indices = [torch.arange(size) for size in sizes]
    with TransformGetItemToIndex():
        return mod(*([first] if first is not None else []), *indices)


def unfused(query, key, value, score_mod=None, mask_mod=None, scale=None):
    """(out, lse, maximum): sums in float32, or float64 for float64 inputs."""
    working = torch.promote_types(query.dtype, torch.float32)
    group = query.shape[1] // key.shape[1]
    key, value = (one.repeat_interleave(group, dim=1) for one in (key, value))
    scores = query.to(working) @ key.to(working).transpose(-1, -2)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if score_mod is not None:
        scores = plane(score_mod, scores, scores.shape).to(working)
    if mask_mod is not None:
        scores = torch.where(plane(mask_mod, None, scores.shape), scores, -math.inf)
    maximum = scores.max(-1)[0]
    empty = maximum == -math.inf
    weights = torch.softmax(scores, -1).masked_fill(empty[..., None], 0)
    lse = scores.logsumexp(-1).masked_fill(empty, -math.inf)
    return weights.to(query.dtype) @ value, lse, maximum


def check(out, golden, eager, **options):
    judgement = judge(out.detach(), golden, eager, **options)
    assert judgement.ok, judgement.reason


@pytest.mark.parametrize("dtype", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_mods(name, dtype):
    q, k, v = tensors(dtype)
    score_mod, mask_mod = torch_mods.cases(q.shape[0], q.shape[2], k.shape[2])[name]
    out, aux = flex_attention(
        q, k, v, score_mod, enable_gqa=True, mask_mod=mask_mod, return_aux=AuxRequest(lse=True, max_scores=True)
    )
    golden, golden_lse, golden_max = unfused(q.double(), k.double(), v.double(), score_mod, mask_mod)
    eager, eager_lse, _ = unfused(q, k, v, score_mod, mask_mod)
    check(out, golden, eager)
    assert torch.equal(aux.lse == -math.inf, golden_lse == -math.inf)
    torch.testing.assert_close(aux.lse.double(), golden_lse, atol=3e-3 if name == "in_half" else 2e-4, rtol=2e-5)
    torch.testing.assert_close(aux.max_scores.double(), golden_max, atol=3e-3 if name == "in_half" else 2e-4, rtol=2e-5)


@pytest.mark.parametrize("name", ["causal", "window", "prefix_lm", "documents", "eagle3", "nothing_kept", "table_mask"])
@torch.no_grad()
def test_block_masks(name):
    q, k, v = tensors(torch.float32, (2, 4, 2, 150, 300, 32, 32))
    _, mask_mod = torch_mods.cases(2, 150, 300)[name]
    block_mask = create_block_mask(mask_mod, 2, 4, 150, 300, device="cpu")
    out = flex_attention(q, k, v, block_mask=block_mask, enable_gqa=True)
    golden = unfused(q.double(), k.double(), v.double(), None, mask_mod)[0]
    check(out, golden, unfused(q, k, v, None, mask_mod)[0])
    assert torch.equal(out, flex_attention(q, k, v, mask_mod=mask_mod, enable_gqa=True))


def block_lists(dense):
    """(number of blocks in each row, indices of them first) of a bool [batch, heads, rows, columns]."""
    return dense.sum(-1).to(torch.int32), dense.int().argsort(dim=-1, descending=True, stable=True).to(torch.int32)


@pytest.mark.parametrize("batch, heads", [(1, 1), (2, 1), (2, 4)])
@torch.no_grad()
def test_block_mask_made_of_lists(batch, heads):
    q, k, v = tensors(torch.float32, (2, 4, 4, 128, 192, 32, 32))
    dense = torch.rand(batch, heads, 4, 6, generator=torch.Generator().manual_seed(1)) > 0.4
    block_mask = BlockMask.from_kv_blocks(*block_lists(dense), BLOCK_SIZE=32)
    keep = dense.repeat_interleave(32, -1).repeat_interleave(32, -2).expand(2, 4, 128, 192)
    mask_mod = lambda b, h, q_idx, kv_idx: keep[b, h, q_idx, kv_idx]
    golden = unfused(q.double(), k.double(), v.double(), None, mask_mod)[0]
    check(flex_attention(q, k, v, block_mask=block_mask), golden, unfused(q, k, v, None, mask_mod)[0])


@pytest.mark.skipif(sliced_mask_mod_error is None, reason="PyTorch 2.9 does not tell that a mask was sliced")
@torch.no_grad()
def test_sliced_block_mask():
    q, k, v = tensors(torch.float32, (1, 1, 1, 128, 256, 32, 32))
    causal = create_block_mask(torch_mods.causal, 1, 1, 256, 256, device="cpu", BLOCK_SIZE=128)
    rows = causal[:, :, 1:]
    rows.seq_lengths = (128, 256)
    with pytest.raises(RuntimeError, match="sliced BlockMask"):
        flex_attention(q, k, v, block_mask=rows)
    rows.mask_mod = lambda b, h, q_idx, kv_idx: q_idx + 128 >= kv_idx
    assert torch.equal(
        flex_attention(q, k, v, block_mask=rows), flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i + 128 >= j)
    )


@torch.no_grad()
@pytest.mark.parametrize("length", [100, 128])
def test_adjusted_block_mask(length):
    q, k, v = tensors(torch.float32, (1, 2, 2, length, length, 32, 32))
    block_mask = create_block_mask(torch_mods.causal, 1, 1, 256, 256, device="cpu")._adjust(length, length)
    if block_mask.seq_lengths != (length, length):  # older PyTorch adjusts to whole blocks, and refuses such a mask
        for function in (torch_flex_attention, flex_attention):
            with pytest.raises(ValueError, match="larger"):
                function(q, k, v, block_mask=block_mask)
        return
    expected = flex_attention(q, k, v, mask_mod=torch_mods.causal)
    assert torch.equal(flex_attention(q, k, v, block_mask=block_mask), expected)


@pytest.mark.parametrize("dtype", SHAPES, ids=str)
@torch.no_grad()
def test_strides(dtype):
    q, k, v = tensors(dtype, (2, 4, 4, 65, 77, 32, 32))
    expected = flex_attention(q, k, v, mask_mod=torch_mods.causal)
    bshd = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in (q, k, v)]
    out = flex_attention(*bshd, mask_mod=torch_mods.causal)
    assert torch.equal(out, expected) and out.transpose(1, 2).is_contiguous()
    columns = [one.transpose(2, 3).contiguous().transpose(2, 3) for one in (q, k, v)]
    assert torch.equal(flex_attention(*columns, mask_mod=torch_mods.causal), expected)
    every_second = [torch.stack([one, one], -1).flatten(-2)[..., ::2] for one in (q, k, v)]
    assert torch.equal(flex_attention(*every_second, mask_mod=torch_mods.causal), expected)
    expanded = [one[:1].expand(3, -1, -1, -1) for one in (q, k, v)]
    assert torch.equal(flex_attention(*expanded, mask_mod=torch_mods.causal)[2], expected[0])


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1, 1, 1, 1), (1, 2, 2, 1, 300, 8, 8), (3, 2, 1, 7, 5, 3, 9), (1, 1, 1, 300, 1, 128, 16)]
)
@torch.no_grad()
def test_odd_sizes(sizes):
    q, k, v = tensors(torch.float32, sizes)
    golden = unfused(q.double(), k.double(), v.double(), torch_mods.relative_scaled)[0]
    out = flex_attention(q, k, v, torch_mods.relative_scaled, enable_gqa=True)
    torch.testing.assert_close(out.double(), golden, atol=3e-6, rtol=1e-5)


@torch.no_grad()
def test_batch_of_one_key():
    q, k, v = tensors(torch.float32, (3, 2, 2, 64, 64, 32, 32))
    mask = create_block_mask(lambda b, h, i, j: j <= i + b, 3, None, 64, 64, device="cpu")
    out = flex_attention(q, k[:1], v[:1], block_mask=mask)
    assert torch.equal(out, flex_attention(q, k[:1].expand_as(k), v[:1].expand_as(v), block_mask=mask))


@torch.no_grad()
def test_scale_lse_and_sinks():
    q, k, v = tensors(torch.float32, (2, 4, 4, 50, 50, 32, 32))
    golden, golden_lse, _ = unfused(q.double(), k.double(), v.double(), scale=0.3)
    with_lse = flex_attention(q, k, v, scale=0.3, return_lse=True)
    torch.testing.assert_close(with_lse[0].double(), golden, atol=3e-6, rtol=1e-5)
    torch.testing.assert_close(with_lse[1].double(), golden_lse, atol=1e-5, rtol=1e-5)
    sinks = torch.linspace(-1, 2, 4)
    out, aux = flex_attention(q, k, v, scale=0.3, sinks=sinks, return_aux=AuxRequest(lse=True))
    sunk = torch.logaddexp(golden_lse, sinks.double()[None, :, None])
    torch.testing.assert_close(aux.lse.double(), sunk, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.double(), golden * (golden_lse - sunk).exp()[..., None], atol=3e-6, rtol=1e-5)
    assert aux.max_scores is None


@pytest.mark.parametrize("backend", ["AUTO", "TRITON", "FLASH", "TRITON_DECODE"])
@torch.no_grad()
def test_kernel_options(backend):
    q, k, v = tensors(torch.float32)
    expected = flex_attention(q, k, v)
    options = {"BACKEND": backend, "fwd_BLOCK_M": 64, "num_warps": 4}
    assert torch.equal(flex_attention(q, k, v, kernel_options=options), expected)


@torch.no_grad()
def test_captures_may_change():
    """The same function with other contents, other shapes, other numbers: a call always uses its own."""
    q, k, v = tensors(torch.float32, (1, 4, 4, 40, 40, 16, 16))
    bias = torch.zeros(40)
    factor = 1.0

    def score_mod(score, b, h, i, j):
        return score * factor + bias[j]

    for factor in (1.0, 0.5, 0.25):  # noqa: B007 - score_mod reads it
        bias = torch.randn(40)
        assert_matches(q, k, v, score_mod)
        bias += 1.0
        assert_matches(q, k, v, score_mod)
    bias = torch.randn(100)[::2]
    assert_matches(q, k, v, score_mod)


def assert_matches(q, k, v, score_mod=None, mask_mod=None):
    golden = unfused(q.double(), k.double(), v.double(), score_mod, mask_mod)[0]
    out = flex_attention(q, k, v, score_mod, mask_mod=mask_mod)
    torch.testing.assert_close(out.double(), golden, atol=3e-6, rtol=1e-4)


GLOBAL_WINDOW = 3


@torch.no_grad()
def test_globals_and_attributes_may_change(monkeypatch):
    q, k, v = tensors(torch.float32, (1, 4, 4, 40, 40, 16, 16))

    def mask_mod(b, h, i, j):
        return (i - j).abs() <= GLOBAL_WINDOW

    for size in (3, 7):
        monkeypatch.setitem(globals(), "GLOBAL_WINDOW", size)
        assert_matches(q, k, v, mask_mod=mask_mod)
    module = torch_mods.Module(40)
    for factor in (0.5, 2.0):
        module.factor = factor
        module.bias.data.normal_()
        assert_matches(q, k, v, module.score_mod)


@torch.no_grad()
def test_numbers_beyond_32_bits():
    q, k, v = tensors(torch.float32, (1, 4, 4, 40, 40, 16, 16))
    assert_matches(q, k, v, mask_mod=lambda b, h, i, j: ((i * 2654435761 + j * 40503) >> 16) % 3 != 0)


def branches(score, b, h, q, kv):
    return score if q > kv else score * 2


def sorts(score, b, h, q, kv, table=torch.randn(8, 4)):
    return score + table[q % 8].sort()[0][0]


def draws(score, b, h, q, kv):
    return score + torch.rand(())


def drops(score, b, h, q, kv):
    return score + torch.nn.functional.dropout(score)


def calls_math(score, b, h, q, kv):
    return score * math.exp(-h)


def reads_a_number(score, b, h, q, kv, table=torch.ones(3)):
    return score * table.max().item()


def reads_traced(score, b, h, q, kv):
    return score + math.sin(q.numpy())


def reads_captured(score, b, h, q, kv, table=torch.ones(3)):
    return score + table.tolist()[0]


def reduces_many(score, b, h, q, kv, table=torch.randn(8, 300)):
    return score + table[q % 8].argmax()


def indexes_a_list(score, b, h, q, kv):
    return score + [1.0, 2.0, 3.0, 4.0][h]


def indexes_a_dict(score, b, h, q, kv):
    return score + {0: 1.0, 1: 2.0}[h]


def looks_up_a_default(score, b, h, q, kv):
    return score + {0: 1.0, 1: 2.0}.get(h, 0.0)


def asks_a_set(score, b, h, q, kv):
    return score * (2 if h in {0, 2} else 1)


def is_cached(score, b, h, q, kv, double=functools.lru_cache(lambda x: 2 * x)):
    return score + double(h)


def has_none(score, b, h, q, kv):
    return score + torch.lgamma(score)


@pytest.mark.parametrize(
    "mod, words",
    [
        (branches, "torch.where"),
        (calls_math, "torch.exp in place of math.exp"),
        (reads_a_number, "read the number outside of the mod"),
        (sorts, r"aten\.sort.*call it outside of the mod, or .* before the mod's arguments index it"),
        (draws, "random"),
        (drops, "dropout_p"),
        (reads_traced, r"Tensor\.numpy reads the content"),
        (reads_captured, r"Tensor\.tolist reads the content"),
        (reduces_many, "a minimum or maximum over 300 elements.* 1 to 256"),
        (indexes_a_list, r"index a tensor, such as torch.tensor\(values\)\[h\]"),
        (indexes_a_dict, r"index a tensor, such as torch.tensor\(list\(values.values\(\)\)\)\[h\]"),
        (looks_up_a_default, r"by its hash, but a mod's arguments are traced scalars.*index a tensor"),
        (asks_a_set, r"\(h == 0\) \| \(h == 2\)"),
        (is_cached, "functools.lru_cache looks a value up by its hash"),
        (has_none, r"aten\.lgamma\.default has no counterpart.*use other operations"),
    ],
)
def test_mods_that_cannot_be_compiled(mod, words):
    q, k, v = tensors(torch.float32)
    with pytest.raises(TraceError, match=words) as caught:
        flex_attention(q, k, v, mod)
    assert f"{__file__}:" in str(caught.value) and "return score" in str(caught.value)
    assert isinstance(caught.value, NotImplementedError)


META = torch.zeros(3, device="meta")
ELSEWHERE = create_block_mask(torch_mods.causal, None, None, 40, 40, device="cpu").to("meta")


def _without(**change):
    return lambda q, k, v: ((q, k, v), change)


@pytest.mark.parametrize(
    "kind, words, call",
    [
        (NotImplementedError, "key torch.int32", lambda q, k, v: ((q, k.int(), v), {})),
        (ValueError, "embedding dimension", lambda q, k, v: ((q, k[..., :8], v), {})),
        (NotImplementedError, "4D", lambda q, k, v: ((q[0], k[0], v[0]), {})),
        (ValueError, "enable_gqa", lambda q, k, v: ((q, k[:, :2], v[:, :2]), {})),
        (ValueError, "multiple of kv heads", lambda q, k, v: ((q, k[:, :3], v[:, :3]), {"enable_gqa": True})),
        (ValueError, "same batch size", lambda q, k, v: ((q, k[:1], v[:1]), {})),
        (ValueError, "key and value", lambda q, k, v: ((q, k, v[:, :, :5]), {})),
        (NotImplementedError, "int32", lambda q, k, v: ((q.int(), k.int(), v.int()), {})),
        (ValueError, "BACKEND", _without(kernel_options={"BACKEND": "CUDNN"})),
        (ValueError, "kernel option BLOKC_M", _without(kernel_options={"BLOKC_M": 64})),
        (AssertionError, "OUTPUT_MAX", _without(kernel_options={"OUTPUT_MAX": True})),
        (ValueError, "return_lse", _without(return_lse=True, return_aux=AuxRequest(lse=True))),
        (ValueError, "scale must be finite", _without(scale=math.nan)),
        (ValueError, "sinks", _without(sinks=torch.zeros(3))),
        (RuntimeError, "boolean", _without(mask_mod=lambda b, h, i, j: i - j)),
        (RuntimeError, "scalar", _without(score_mod=lambda s, b, h, i, j: s + torch.ones(3))),
        (TypeError, "argument", _without(score_mod=lambda s, b: s)),
        (AttributeError, "a function goes into mask_mod=", _without(block_mask=torch_mods.causal)),
        (RuntimeError, r"cpu and meta. Use block_mask.to\('cpu'\)", _without(block_mask=ELSEWHERE)),
        (RuntimeError, r"shape \[3\] on meta, .*move the tensor", _without(score_mod=lambda s, *_: s + META[s.long()])),
    ],
)
def test_misuse(kind, words, call):
    arguments, options = call(*tensors(torch.float32))
    with pytest.raises(kind, match=words):
        flex_attention(*arguments, **options)


@pytest.mark.parametrize("length", [64, 300])
def test_block_mask_of_another_length(length):
    q, k, v = tensors(torch.float32)
    with pytest.raises(ValueError, match="block_mask was created for"):
        mask = create_block_mask(torch_mods.causal, 1, 1, length, length, device="cpu")
        flex_attention(q, k, v, block_mask=mask)
