"""flashlift.torch on a CUDA device: checks of test_torch_flex.py and test_torch_gradients.py, on torch's current
stream."""

import math
import threading

import pytest
import torch
import torch_mods
from flashlift._attention import Attention
from flashlift.torch import flex_attention
from flashlift.torch._run import graphs, kernels
from test_torch_flex import check, tensors, unfused
from test_torch_gradients import (  # noqa: F401 - differentiable_indexing is a fixture
    captured,
    check_rows_of_nearly_one_key,
    differentiable_indexing,
    drawn,
    fused,
    in_double,
)
from test_torch_gradients import check as check_gradients
from torch.nn.attention.flex_attention import create_block_mask

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device, and a torch built for it; this machine has none", allow_module_level=True)

# (batch, q_heads, kv_heads, q_len, kv_len, depth, value depth)
SHAPES = {torch.bfloat16: (2, 4, 2, 200, 260, 64, 64), torch.float16: (1, 4, 4, 256, 256, 128, 128)}
GRADIENT_SHAPES = SHAPES | {torch.float32: (2, 4, 4, 70, 90, 40, 40)}
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
    check(out.cpu(), golden, eager)


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


def test_a_block_mask_made_in_inference_mode():
    """PyTorch counts no changes of its tensors, so that their content is compared."""
    q, k, v = (one.cuda() for one in tensors(torch.bfloat16, SHAPES[torch.float16]))
    with torch.inference_mode():
        mask = create_block_mask(torch_mods.causal, None, None, 256, 256, device="cuda")
        expected = flex_attention(q, k, v, mask_mod=torch_mods.causal)
        for _ in range(2):
            assert torch.equal(flex_attention(q, k, v, block_mask=mask), expected)
        mask.kv_num_blocks.zero_()
        mask.full_kv_num_blocks.zero_()
        assert not flex_attention(q, k, v, block_mask=mask).any()


@torch.no_grad()
def test_cuda_graph():
    q, k, v = (one.cuda() for one in tensors(torch.bfloat16, SHAPES[torch.float16]))
    expected = flex_attention(q, k, v, mask_mod=torch_mods.causal)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flex_attention(q, k, v, mask_mod=torch_mods.causal)
    graph.replay()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", GRADIENT_SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_gradients(name, dtype):
    shape = GRADIENT_SHAPES[dtype]
    inputs = tensors(dtype, shape)
    mods = torch_mods.cases(shape[0], shape[3], shape[4])[name]
    if not all(map(plain, mods)):
        pytest.skip("a partial: its tensors cannot be moved in place")
    leaves = captured(*mods)
    out_shape = (*inputs[0].shape[:3], inputs[2].shape[3])
    # As test_torch_gradients: one sample of an error of eager's is ten times smaller now and then, by chance.
    draws = [(torch.randn(out_shape).to(dtype), torch.randn(out_shape[:3])) for _ in range(8 if leaves else 1)]
    doubled = [one.double() for one in inputs], leaves, [(out.double(), lse.double()) for out, lse in draws]
    with in_double(leaves):
        golden = drawn(lambda *given: unfused(*given, *mods), *doubled)
    eager = drawn(lambda *given: unfused(*given, *mods), inputs, leaves, draws)
    mods = [on_gpu(mod) for mod in mods]
    on_device = [one.cuda() for one in inputs], leaves, [(out.cuda(), lse.cuda()) for out, lse in draws]
    ours = drawn(fused(*mods), *on_device)
    check_gradients([one.cpu() for one in ours], golden, eager)


def test_gradients_of_rows_of_nearly_one_key():
    check_rows_of_nearly_one_key("cuda")


@pytest.mark.parametrize("name", ["noop", "causal", "softcap"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_through_the_output_alone(name, dtype):
    """As in the training of models."""
    inputs = [one.detach().requires_grad_() for one in tensors(dtype, GRADIENT_SHAPES[dtype])]
    mods = torch_mods.cases(*(GRADIENT_SHAPES[dtype][i] for i in (0, 3, 4)))[name]
    cotangent = torch.randn(*inputs[0].shape[:3], inputs[2].shape[3]).to(dtype)

    def by_inputs(attend, given, d_out):
        given = [one.detach().requires_grad_() for one in given]
        return torch.autograd.grad(attend(*given)[0], given, d_out)

    golden = by_inputs(lambda *given: unfused(*given, *mods), [one.double() for one in inputs], cotangent.double())
    eager = by_inputs(lambda *given: unfused(*given, *mods), inputs, cotangent)
    attend = fused(*map(on_gpu, mods))
    ours = by_inputs(attend, [one.cuda() for one in inputs], cotangent.cuda())
    check_gradients([one.cpu() for one in ours], golden, eager)


@pytest.fixture
def portable_kernels(monkeypatch):
    """Selects the portable implementation by name, which every GPU but Hopper uses. Returns the attentions compiled
    since."""
    made = []

    class Portable(Attention):
        def __init__(self, *given, **more):
            super().__init__(*given, implementation="cuda_sm80", **more)
            made.append(self)

    def forget():
        """Discards compiled kernels, and the plans that hold them."""
        for kept in (kernels.compiled, kernels._plan):
            kept.cache_clear()

    monkeypatch.setattr(kernels, "Attention", Portable)
    forget()
    yield made
    forget()


@pytest.mark.parametrize("name", ["noop", "causal", "softcap", "full_bias"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_portable_kernels_give_gradients_from_one_kernel(name, dtype, portable_kernels):
    """The kernel with which models train on other GPUs. No gradient of a captured tensor is requested."""
    test_gradients_through_the_output_alone(name, dtype)
    last = portable_kernels[-1]
    assert last.implementation == "cuda_sm80"
    assert "residual" in last.problem
    assert "fused" in last.backward_considerations[-1], last.backward_considerations


def test_gradients_of_captured_tensors_read_the_residual(portable_kernels):
    """The main kernels are the same for calls that request them."""
    q, k, v = (one.cuda().requires_grad_() for one in tensors(torch.bfloat16, SHAPES[torch.float16]))
    bias = torch.zeros(256, device="cuda", requires_grad=True)
    flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: score + bias[kv_idx]).sum().backward()
    assert bias.grad is not None
    assert "residual" in portable_kernels[-1].problem


@pytest.mark.parametrize("name", ["causal", "documents", "softcap_causal"])
def test_compiled_graphs_call_c(name, monkeypatch):
    """Python runs only in their first call, and the results equal those of the operators."""
    if graphs._c() is None:
        pytest.skip("this torch has not what the functions in C need")
    in_python = []
    for kernel in (graphs.run_for_backward, graphs.differentiate):
        monkeypatch.setattr(
            graphs, kernel.__name__, lambda *given, kernel=kernel: in_python.append(1) or kernel(*given)
        )
    shape = SHAPES[torch.bfloat16]
    inputs = [one.cuda().requires_grad_() for one in tensors(torch.bfloat16, shape)]
    score_mod, mask_mod = map(on_gpu, torch_mods.cases(shape[0], shape[3], shape[4])[name])

    def step(attend):
        out = attend(*inputs, score_mod, mask_mod=mask_mod, enable_gqa=True)
        # (An output with its graph would keep the inputs' nodes, and the stream that they were made on.)
        return out.detach(), *torch.autograd.grad(out.float().square().sum(), inputs)

    torch._dynamo.reset()
    attend = torch.compile(flex_attention, fullgraph=True)
    expected = step(flex_attention)
    for _ in range(3):
        for one, other in zip(step(attend), expected, strict=True):
            assert torch.equal(one, other)
    assert len(in_python) == 2
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(attend)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured_step = step(attend)
    graph.replay()
    for one, other in zip(captured_step, expected, strict=True):
        assert torch.equal(one, other)
    assert len(in_python) == 2


def test_gradients_in_a_cuda_graph():
    inputs = [one.cuda().requires_grad_() for one in tensors(torch.bfloat16, SHAPES[torch.float16])]

    def step():
        out = flex_attention(*inputs, mask_mod=torch_mods.causal)
        return torch.autograd.grad(out.float().square().sum(), inputs)

    expected = step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured_step = step()
    graph.replay()
    for one, other in zip(captured_step, expected, strict=True):
        assert torch.equal(one, other)


@torch.no_grad()
def test_cuda_graphs_give_their_memory_back():
    """The memory through which the parts of a row exchange results, some megabytes, belongs to the graph."""
    q = torch.randn(1, 8, 1, 256, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 1, 1, 65536, 256, device="cuda", dtype=torch.bfloat16)
    expected = flex_attention(q, k, v, enable_gqa=True)
    free = []
    for _ in range(60):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = flex_attention(q, k, v, enable_gqa=True)
        graph.replay()
        assert torch.equal(out, expected)
        del graph
        free.append(torch.cuda.mem_get_info()[0])
    assert free[10] - free[-1] < 32 << 20


def test_the_backward_pass_is_compiled_beside_the_forward_pass(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHLIFT_CACHE_DIR", str(tmp_path / "cache"))  # of compiled kernels, a file each
    given = [one.cuda().requires_grad_() for one in tensors(torch.bfloat16, SHAPES[torch.float16])]

    def mod(score, b, h, q_idx, kv_idx):
        return score * 1.0123 + 0.321 * (q_idx - kv_idx)

    out = flex_attention(*given, mod)
    for thread in threading.enumerate():
        if thread.name.startswith("flashlift"):
            thread.join()
    kernels = sorted((tmp_path / "cache").rglob("*"))
    assert kernels
    torch.autograd.grad(out.sum(), given)
    assert sorted((tmp_path / "cache").rglob("*")) == kernels


def test_the_backward_pass_takes_its_memory_from_pytorch():
    shape = (4, 8, 2048, 128)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    out = flex_attention(q, k, v)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    of_gradients = sum(one.nbytes for one in gradients)
    assert torch.cuda.max_memory_allocated() - before > of_gradients
    del gradients
    # Autograd's thread may still hold the gradients when it has given them: not any more when it computes others.
    small = torch.zeros(1, device="cuda", requires_grad=True)
    small.sum().backward()
    assert torch.cuda.memory_allocated() - before < 1 << 20
    if torch.cuda.get_device_capability() != (9, 0):
        return  # what the portable kernels take would be found somewhere
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + of_gradients + (8 << 20)) / whole)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    again = torch.autograd.grad(out, (q, k, v), grad)
    assert all(torch.equal(one, other) for one, other in zip(again, expected, strict=True))


def test_dropout_is_that_of_the_cpu():
    """The random words of a key depend only on the seed and on its position."""
    q, k, v = tensors(torch.float32, (1, 2, 2, 70, 90, 40, 40))

    def step(q, k, v):
        out = flex_attention(q, k, v, dropout_p=0.3, dropout_seed=5)
        return out, *torch.autograd.grad(out.square().sum(), (q, k, v))

    on_cpu = step(*(one.clone().requires_grad_() for one in (q, k, v)))
    on_gpu = step(*(one.cuda().requires_grad_() for one in (q, k, v)))
    for one, other in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(one.cpu(), other, atol=2e-4, rtol=2e-4)
    torch.manual_seed(3)
    drawn = flex_attention(q.cuda(), k.cuda(), v.cuda(), dropout_p=0.3)
    torch.manual_seed(3)
    assert torch.equal(drawn, flex_attention(q.cuda(), k.cuda(), v.cuda(), dropout_p=0.3))


def test_only_gradients_of_queries_may_have_other_bits_if_that_is_asked_for():
    q, k, v = (one.cuda().requires_grad_() for one in tensors(torch.bfloat16, (2, 4, 2, 1000, 1000, 128, 128)))
    block_mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 1000, 1000)

    def gradients(attend, **options):
        out = attend(q, k, v, None, block_mask, enable_gqa=True, **options)
        return torch.autograd.grad(out.float().square().sum(), (q, k, v))

    wanted = gradients(flex_attention)
    for attend in (flex_attention, torch.compile(flex_attention, fullgraph=True)):
        d_q, d_k, d_v = gradients(attend, deterministic=False)
        assert torch.equal(d_k, wanted[1]) and torch.equal(d_v, wanted[2])
        # The sums differ in their last bits, and some of them are rounded to another bfloat16. Of terms up to 12, sums
        # near 0 differ by as much as others.
        torch.testing.assert_close(d_q, wanted[0], atol=1e-5, rtol=2.0**-7)
        assert (d_q == wanted[0]).float().mean() > 0.9


@pytest.mark.parametrize(
    "shape",
    [(1, 2, 2, 1024, 128), (5, 4, 4, 4096, 128), (1, 4, 4, 8192, 96), (3, 8, 4, 2816, 128), (1, 1, 1, 16384, 128)],
    ids=str,
)
def test_long_sequences_without_a_mask(shape):
    batch, heads, kv_heads, length, depth = shape
    inputs = tensors(torch.bfloat16, (batch, heads, kv_heads, length, length, depth, depth))
    inputs = [one.cuda().requires_grad_() for one in inputs]
    exact = [one.detach().float().requires_grad_() for one in inputs]

    def eager(q, k, v):
        k, v = (one.repeat_interleave(heads // kv_heads, 1) for one in (k, v))
        return torch.softmax(q @ k.mT / math.sqrt(depth), -1) @ v

    d_out = torch.randn(batch, heads, length, depth, device="cuda", dtype=torch.bfloat16)
    wanted = torch.autograd.grad(eager(*exact), exact, d_out.float())
    rounded = torch.autograd.grad(eager(*inputs), inputs, d_out)
    out = flex_attention(*inputs, enable_gqa=True)
    found = torch.autograd.grad(out, inputs, d_out, retain_graph=True)
    for name, x, y, z in zip(("d_q", "d_k", "d_v"), found, rounded, wanted, strict=True):
        ours, theirs = ((one.float() - z).abs().mean().item() for one in (x, y))
        assert ours <= 1.1 * theirs, (name, ours, theirs)
    for x, y in zip(found, torch.autograd.grad(out, inputs, d_out), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("reader", ["key", "distance", "bucket", "plane", "head"])
def test_gradients_of_captured_tensors_have_the_same_bits_beside_a_busy_stream(reader):
    shape = (2, 4, 2, 1000, 1000, 64, 64)
    q, k, v = (one.cuda().requires_grad_() for one in tensors(torch.bfloat16, shape))
    size = {"key": (1000,), "distance": (1999,), "bucket": (32,), "plane": (1000, 1000), "head": (4,)}[reader]
    bias = torch.randn(size, device="cuda", requires_grad=True)

    def biased(score, b, h, q_idx, kv_idx):
        if reader == "key":
            return score + bias[kv_idx]
        if reader == "distance":
            return score + bias[q_idx - kv_idx + 999]
        if reader == "bucket":
            return score + bias[(q_idx * 7 + kv_idx) % 32]
        if reader == "plane":
            return score + bias[q_idx, kv_idx]
        return score * bias[h]

    block_mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 1000, 1000)

    def gradients():
        out = flex_attention(q, k, v, biased, block_mask, enable_gqa=True, deterministic=True)
        return torch.autograd.grad(out.float().square().sum(), (q, k, v, bias))

    first = gradients()
    other = torch.randn(4096, 4096, device="cuda")
    busy = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(busy):
            other @ other
        for one, same in zip(first, gradients(), strict=True):
            assert torch.equal(one, same)
