"""flashlift.torch on a CUDA device: the forward checks of test_torch_flex.py, on torch's current stream."""

import flashlift
import pytest
import torch
import torch_mods
from flashlift.torch import flex_attention
from test_torch_flex import FACTOR, check, tensors, unfused
from torch.nn.attention.flex_attention import create_block_mask

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device, and a torch built for it; this machine has none", allow_module_level=True)

# (batch, q_heads, kv_heads, q_len, kv_len, depth, value depth)
SHAPES = {torch.bfloat16: (2, 4, 2, 200, 260, 64, 64), torch.float16: (1, 4, 4, 256, 256, 128, 128)}
NAMES = [
    *(
        "noop",
        "causal",
        "causal_window",
        "prefix_lm",
        "documents",
        "batched_lengths",
        "head_windows",
        "eagle3",
        "table_mask",
    ),
    *("relative_scaled", "causal_where", "alibi", "alibi_causal", "softcap_causal", "full_bias", "nested_indexing"),
    *("learned_table", "negative_index", "head_specific", "captures_nested", "nothing_kept"),
]


def on_gpu(mod):
    """A copy of a mod whose captured tensors are on the GPU."""
    from flashlift.torch._mods import traced

    if mod is not None:
        kind = "mask_mod" if mod.__code__.co_argcount == 4 else "score_mod"
        for one in traced(mod, kind)[1].tensors:
            one.data = one.data.cuda()
    return mod


def plain(mod):
    return mod is None or hasattr(mod, "__code__")


@pytest.mark.parametrize("dtype", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_mods(name, dtype):
    shape = SHAPES[dtype]
    given = tensors(dtype, shape)
    cases = torch_mods.cases(shape[0], shape[3], shape[4])[name]
    golden = unfused(*(one.double() for one in given), *cases)[0]
    eager = unfused(*given, *cases)[0]
    if not all(map(plain, cases)):
        pytest.skip("a partial: its tensors cannot be moved in place")
    mods = [on_gpu(mod) for mod in torch_mods.cases(shape[0], shape[3], shape[4])[name]]
    out = flex_attention(*(one.cuda() for one in given), mods[0], mask_mod=mods[1], enable_gqa=True)
    check(out.cpu(), golden, eager, FACTOR[dtype])


@torch.no_grad()
def test_block_mask_streams_and_numbers():
    q, k, v = (one.cuda() for one in tensors(torch.bfloat16, SHAPES[torch.float16]))
    mask = create_block_mask(torch_mods.causal, None, None, 256, 256, device="cuda")
    expected = flex_attention(q, k, v, mask_mod=torch_mods.causal)
    assert torch.equal(flex_attention(q, k, v, block_mask=mask), expected)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        doubled = flex_attention(q * 1, k, v, mask_mod=torch_mods.causal) * 2
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(doubled, expected * 2)
    for size in (10, 20, 30):
        out = flex_attention(q, k, v, mask_mod=torch_mods.causal_window(size))
        expected_out = unfused(q.cpu(), k.cpu(), v.cpu(), None, torch_mods.causal_window(size))[0]
        torch.testing.assert_close(out.cpu().float(), expected_out.float(), atol=2e-2, rtol=2e-2)


@torch.no_grad()
def test_cuda_graph():
    q, k, v = (one.cuda() for one in tensors(torch.bfloat16, SHAPES[torch.float16]))
    expected = flex_attention(q, k, v, mask_mod=torch_mods.causal)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flex_attention(q, k, v, mask_mod=torch_mods.causal)
    graph.replay()
    assert torch.equal(out, expected)


def test_gradients_are_refused():
    q, k, v = (one.cuda().requires_grad_() for one in tensors(torch.bfloat16, SHAPES[torch.float16]))
    with pytest.raises(flashlift.UnsupportedError, match="no backward on CUDA"):
        flex_attention(q, k, v).sum().backward()
