"""Less common uses of PyTorch: broadcast keys, profiling, other default devices, odd shapes."""

import importlib
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch_mods
from flashlift.torch import flex_attention, scaled_dot_product_attention
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode


def tensors(requires_grad=False, dtype=torch.float32):
    return [torch.randn(2, 4, 20, 16, dtype=dtype, requires_grad=requires_grad) for _ in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_keys_of_one_batch_beside_a_mask_mod(dtype):
    q, k, v = tensors(dtype=dtype)
    k, v = k[:1], v[:1]
    given = [one.requires_grad_() for one in (q, k, v)]
    results = []
    for key, value in ((k, v), (k.expand(2, -1, -1, -1), v.expand(2, -1, -1, -1))):
        out = flex_attention(q, key, value, mask_mod=torch_mods.causal)
        results.append([out, *torch.autograd.grad(out.sin().sum(), given)])
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-5)


def test_keys_of_another_batch_are_refused():
    q, k, v = tensors()
    with pytest.raises(ValueError, match="give a mask_mod"):
        flex_attention(q, k[:1], v[:1])
    with pytest.raises(RuntimeError, match="Bq=3 and Bkv=2"):
        flex_attention(torch.cat([q, q[:1]]), k, v, mask_mod=torch_mods.causal)


def names_in_profile(function):
    with profile(activities=[ProfilerActivity.CPU]) as found:
        function()
    return [one.name for one in found.events()]


def test_a_profiler_shows_attention():
    q, k, v = tensors(requires_grad=True)
    names = names_in_profile(lambda: flex_attention(q, k, v).sum().backward())
    assert names.count("flashlift::attention") == names.count("flashlift::attention_backward") == 1
    with torch.no_grad():
        names = names_in_profile(lambda: flex_attention(q, k, v))
    assert names.count("flashlift::attention") == 1
    assert (
        names_in_profile(lambda: torch.func.vmap(lambda q: flex_attention(q[None], k[:1], v[:1]))(q)).count(
            "flashlift::attention"
        )
        == 2
    )


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_a_flop_counter_counts_attention(compiles):
    """As it counts PyTorch's own: twice for each multiplication, whatever a mask leaves out."""
    attend = torch.compile(flex_attention, backend="aot_eager") if compiles else flex_attention
    q, k, v = torch.randn(2, 4, 6, 8, requires_grad=True), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 16)
    with FlopCounterMode(display=False) as forward:
        out = attend(q, k, v, mask_mod=torch_mods.causal, enable_gqa=True)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    pairs = 2 * 4 * 6 * 9
    assert forward.get_total_flops() == 2 * pairs * (8 + 16)
    assert backward.get_total_flops() == 2 * pairs * (3 * 8 + 2 * 16)


def test_forward_mode_is_refused_in_our_words():
    q, k, v = tensors()

    def attend(q):
        return flex_attention(q, k.to(q.dtype), v.to(q.dtype))

    with pytest.raises(NotImplementedError, match="flashlift: attention has no forward-mode derivative"):
        torch.func.jvp(attend, (q,), (q,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(NotImplementedError, match="flashlift: attention has no forward-mode derivative"):
            attend(dual)
        torch.testing.assert_close(attend(k), flex_attention(k, k, v))
    out, tangent = torch.func.jvp(attend, (q.double(),), (q.double(),))
    assert out.shape == tangent.shape


@pytest.mark.parametrize("shape", [(2, 0, 20, 16), (2, 4, 20, 0)], ids=["heads", "depth"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_heads_and_no_depth_are_refused(shape, dtype):
    nothing = torch.ones(shape, dtype=dtype)
    with pytest.raises(ValueError, match="at least one head, and a depth of at least 1"):
        flex_attention(nothing, nothing, nothing)


@pytest.mark.parametrize("shape", [(20,), (4, 20, 16), (2, 0, 20, 16)], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_name_refused_shapes(shape, dynamic):
    one = torch.ones(shape)
    torch.compiler.reset()  # a mode of another test lets Dynamo run this function without a graph
    with pytest.raises(RuntimeError, match=r"but got .?query \["):
        torch.compile(flex_attention, backend="eager", fullgraph=True, dynamic=dynamic)(one, one, one)


def mods(window=5):
    def score_mod(score, b, h, i, j):
        return score * 0.3 + torch.nn.functional.one_hot(h, 4).argmax() + (i - j) / window

    def mask_mod(b, h, i, j):
        return (i >= j) & (i - j < window)

    return score_mod, mask_mod


@torch.no_grad()
def test_another_default_device():
    """Intermediate tensors are created where they are read: on a GPU, the call would wait for each number."""
    q, k, v = tensors()
    block_mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 20, 20, device="cpu")
    results = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            for window in (7, 9):  # the second one is an argument
                score_mod, mask_mod = mods(window)
                results.append(flex_attention(q, k, v, score_mod, block_mask, mask_mod=mask_mod))
                results.append(flex_attention(q, k, v, block_mask=block_mask))
    torch.testing.assert_close(results[:4], results[4:])


def test_sinh_keeps_its_digits_near_zero():
    q, k, v = (torch.randn(1, 2, 9, 16) for _ in range(3))
    out = flex_attention(q, k, v, lambda s, b, h, i, j: torch.sinh(s * 1e-5) * 1e5)
    torch.testing.assert_close(out, flex_attention(q, k, v), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("function", [torch.asinh, torch.acosh])
def test_inverse_hyperbolic_functions_of_large_numbers(function):
    numbers = torch.tensor([1e-20, 0.0, 0.3, 1.5, -1e5, 2e18, 1e25, -1e25, math.inf, -math.inf], requires_grad=True)
    q, k = torch.zeros(1, 1, len(numbers), 4), torch.zeros(1, 1, 1, 4)
    lse = flex_attention(q, k, k, lambda s, b, h, i, j: function(numbers[i]), return_lse=True)[1].flatten()
    expected = function(numbers.double())
    torch.testing.assert_close(lse.double(), expected, equal_nan=True, atol=1e-30, rtol=2e-6)
    within = numbers.isfinite() & expected.isfinite()
    got, wanted = (torch.autograd.grad(one[within].sum(), numbers)[0][within] for one in (lse, expected))
    torch.testing.assert_close(got, wanted, atol=1e-30, rtol=2e-6)


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("depths", [(320, 16), (16, 320)], ids=str)
def test_heads_deeper_than_kernels_take(compiles, depths):
    depth, value_depth = depths
    sizes = ((4, depth), (2, depth), (2, value_depth))
    q, k, v = (torch.randn(1, heads, 9, one, dtype=torch.float64) for heads, one in sizes)

    def attend(q, k, v):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s * 2 + h, mask_mod=torch_mods.causal, enable_gqa=True)

    run = torch.compile(attend, fullgraph=True, backend="aot_eager") if compiles else attend
    results = []
    for dtype in (torch.float32, torch.float64):
        given = [one.to(dtype).requires_grad_() for one in (q, k, v)]
        out = run(*given)
        results.append([one.double() for one in (out, *torch.autograd.grad(out.sin().sum(), given))])
        assert out.dtype == dtype
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    with pytest.raises(Exception, match="without dropout|no dropout"):
        flex_attention(q.float(), k.float(), v.float(), enable_gqa=True, dropout_p=0.5)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("depth", [16, 257])
def test_gradients_of_small_tables_of_16_bits(depth, compiles):
    """They are sums over thousands of scores."""
    q, k, v = (torch.randn(1, 2, 64, depth) for _ in range(3))

    def attend(table):
        near = lambda s, b, h, i, j: s + table[(i - j).abs().clamp(max=2)]
        return flex_attention(q, k, v, near, return_aux=AuxRequest(lse=True))[1].lse

    run = torch.compile(attend, fullgraph=True, backend="aot_eager") if compiles else attend
    want, got = (
        torch.autograd.grad(run(table).sum(), table)[0].float()
        for table in (torch.zeros(3, dtype=dtype, requires_grad=True) for dtype in (torch.float32, torch.bfloat16))
    )
    torch.testing.assert_close(got, want, rtol=2e-2, atol=0)


@pytest.mark.parametrize("compiles", [False, True])
def test_results_need_not_be_deterministic(compiles):
    q, k, v = (one.requires_grad_() for one in tensors())

    def attend(deterministic):
        return flex_attention(q, k, v, mask_mod=torch_mods.causal, deterministic=deterministic)

    run = torch.compile(attend, fullgraph=True, backend="aot_eager") if compiles else attend
    results = [(out, *torch.autograd.grad(out.sin().sum(), (q, k, v))) for out in (run(False), attend(None))]
    assert all(torch.equal(one, same) for one, same in zip(*results, strict=True))  # on a CPU


def test_who_decides_whether_results_are_deterministic(monkeypatch):
    module = importlib.import_module("flashlift.torch._attention.flex_attention")
    asked = []
    attend = module.attend
    monkeypatch.setattr(
        module, "attend", lambda request, *rest: asked.append(request.deterministic) or attend(request, *rest)
    )
    for deterministic in (None, True, False):
        flex_attention(*tensors(), deterministic=deterministic)
    torch.use_deterministic_algorithms(True)
    try:
        flex_attention(*tensors(), deterministic=False)
    finally:
        torch.use_deterministic_algorithms(False)
    assert asked == [True, True, False, True]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"key": None}, "key is NoneType; expected a torch.Tensor"),
        ({"value": torch.eye(16).expand(2, 4, 16, 16).to_sparse()}, "value is torch.sparse_coo; expected a dense"),
        ({"score_mod": 3}, r"score_mod is int; expected a function of \(score, b, h, q_idx, kv_idx\)"),
        (
            {"score_mod": torch_mods.causal},
            r"4 positional arguments but 5 were given; expected a score_mod\(score, b, h, q_idx, kv_idx\), and a "
            r"function of \(b, h, q_idx, kv_idx\) as mask_mod",
        ),
        ({"mask_mod": lambda q, kv: q >= kv}, r"4 were given; expected a mask_mod\(b, h, q_idx, kv_idx\)"),
        ({"scale": "x"}, "scale is 'x'; expected a number, or None"),
        ({"query": torch.ones(4, 20, 16)}, r"must be 4D tensors .* got query \[4, 20, 16\], key \[2, 4, 20, 16\]"),
        ({"sinks": [0.0] * 4}, r"sinks is list; expected a torch.Tensor of shape \[4\]"),
        ({"dropout_p": "x"}, "dropout_p is 'x'; expected a probability"),
        ({"dropout_seed": 1}, "dropout_seed was given without dropout_p"),
        ({"dropout_p": 0.5, "dropout_seed": 1.5}, "dropout_seed is 1.5; expected an integer of 64 bits"),
        ({"dropout_p": 0.5, "dropout_seed": torch.ones(())}, "dropout_seed is torch.float32 .*; expected one integer"),
        ({"dropout_p": 0.5, "dropout_seed": torch.arange(2)}, r"dropout_seed is torch.int64 \[2\]"),
        ({"cu_seqlens": [0, 20]}, "cu_seqlens is list; expected a torch.Tensor of integers"),
        ({"scale": True}, "scale is True; expected a number"),
        ({"scale": [1.0]}, r"scale is \[1.0\]; expected a number"),
        ({"scale": 10**400}, r"scale is 1000.*\.\.\..*; expected a number"),
        ({"scale": torch.tensor(1j)}, "scale is tensor.*; expected a number"),
        ({"enable_gqa": "no"}, "enable_gqa is 'no'; expected True or False"),
        ({"return_lse": "no"}, "return_lse is 'no'; expected True or False"),
        ({"deterministic": "yes"}, "deterministic is 'yes'; expected True or False"),
        ({"return_aux": True}, r"return_aux is True; expected an AuxRequest, such as AuxRequest\(lse=True\)"),
        ({"kernel_options": "FLASH"}, "kernel_options is 'FLASH'; expected a dictionary"),
        ({"kernel_options": {3: 4}}, "kernel option 3 is not known; expected one of"),
        ({"sinks": torch.ones(4, 0)}, r"sinks is torch.float32 \[4, 0\]; expected floating point of shape \[4\]"),
        ({"dropout_p": [0.1]}, r"dropout_p is \[0.1\]; expected a probability"),
        ({"dropout_p": True}, "dropout_p is True; expected a probability"),
        ({"dropout_p": 0.5, "dropout_seed": True}, "dropout_seed is True; expected an integer of 64 bits"),
        ({"dropout_p": 0.5, "dropout_seed": torch.Generator()}, "dropout_seed is .*Generator.*; expected an integer"),
        ({"dropout_p": 0.5, "dropout_seed": 2**64}, "dropout_seed is 18446744073709551616; expected an integer of 64"),
        ({"cu_seqlens": (torch.arange(2),) * 3}, "cu_seqlens is a tuple of 3; expected a tensor, or a pair"),
        ({"score_mod": torch_mods.causal_score}, "score_mod must return a score, got a boolean tensor"),
        ({"score_mod": torch_mods.branching}, "score_mod calls a higher-order operator .* expected .* torch.where"),
        ({"mask_mod": [torch_mods.causal]}, r"mask_mod is list; expected a function of \(b, h, q_idx, kv_idx\)"),
        ({"sinks": torch.ones(4, device="meta")}, "sinks is on meta, the query on cpu; expected both on one device"),
        (
            {"cu_seqlens": torch.zeros(2, dtype=torch.int32, device="meta")},
            "cu_seqlens is on meta.*; expected it on cpu",
        ),
        ({"scale": 1e300}, r"scale must be finite in float32, got 1e\+300"),
    ],
)
def test_arguments_of_other_kinds_are_refused(arguments, expected):
    named = dict(zip(("query", "key", "value"), tensors(), strict=True))
    if "cu_seqlens" in arguments:
        named = {name: one[:1] for name, one in named.items()}
    with pytest.raises((AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError), match=expected):
        flex_attention(**(named | arguments))


def test_tensors_that_are_split_over_devices_are_refused():
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.device_mesh import init_device_mesh

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        split = [DTensor.from_local(one, mesh) for one in tensors()]
        with pytest.raises(NotImplementedError, match=r"query is a DTensor.*expected.*query.to_local\(\)"):
            flex_attention(*split)
        with pytest.raises(NotImplementedError, match="key is a DTensor"):
            flex_attention(split[0].to_local(), *split[1:])
        for whole in (False, True):
            torch._dynamo.reset()
            compiled = torch.compile(flex_attention, backend="eager", fullgraph=whole)
            with pytest.raises(Exception, match=r"query is a DTensor.*expected.*query.to_local\(\)"):
                compiled(*split)
    finally:
        torch.distributed.destroy_process_group()


def test_a_scale_beyond_float32_is_refused_after_many_others():
    q, k, v = tensors()
    for scale in range(1, 12):
        flex_attention(q, k, v, scale=float(scale))
    with pytest.raises(ValueError, match="scale must be finite in float32, got -1e"):
        flex_attention(q, k, v, scale=-1e39)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sinks_of_other_heads_are_refused(dtype):
    with pytest.raises(ValueError, match=r"sinks is torch.float32 \[2, 2\]; expected floating point of shape \[4\]"):
        flex_attention(*tensors(dtype=dtype), sinks=torch.ones(2, 2))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"attn_mask": True}, "attn_mask is bool; expected a torch.Tensor, or None"),
        ({"attn_mask": [[0.0]]}, "attn_mask is list; expected a torch.Tensor, or None"),
        ({"is_causal": "yes"}, "is_causal is 'yes'; expected True or False"),
        ({"attn_mask": torch.eye(20).to_sparse()}, "attn_mask is torch.sparse_coo; expected a dense tensor"),
        ({"key": torch.ones(2, 0, 20, 16), "enable_gqa": True}, r"Number of heads .* got shapes .*\[2, 0, 20, 16\]"),
    ],
)
def test_scaled_dot_product_attention_of_arguments_of_other_kinds(arguments, expected):
    named = dict(zip(("query", "key", "value"), tensors(), strict=True))
    with pytest.raises((NotImplementedError, RuntimeError, TypeError), match=expected):
        scaled_dot_product_attention(**(named | arguments))


@pytest.mark.parametrize("ends", [(3, 9, 20), (0, 9, 5), (0, 9, 21), ()], ids=str)
def test_sequences_that_are_none(ends):
    q, k, v = (one[:1] for one in tensors())
    with pytest.raises(ValueError, match=r"cu_seqlens is .*; expected where each sequence begins .* at most 20"):
        flex_attention(q, k, v, cu_seqlens=torch.tensor(ends, dtype=torch.int32))


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("make", ["causal_upper_left", "causal_lower_right"])
def test_causal_biases_of_pytorch(make, compiles):
    bias = importlib.import_module("torch.nn.attention.bias")
    attend = torch.compile(scaled_dot_product_attention, backend="aot_eager") if compiles else None
    for q_len in (4, 9):
        mask = getattr(bias, make)(q_len, 9)
        q, k, v = torch.randn(2, 4, q_len, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8)
        out = (attend or scaled_dot_product_attention)(q, k, v, attn_mask=mask)
        torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
    with pytest.raises(ValueError, match="should not be used with is_causal=True"):
        scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=True)
    if make == "causal_lower_right":
        with pytest.raises(RuntimeError, match="CausalBias of 9 queries and 9 keys; expected 5 and 9"):
            scaled_dot_product_attention(q[:, :, :5], k, v, attn_mask=mask)


def test_reading_a_traced_scalar_is_an_error_without_a_warning():
    """In a process of its own: torch gives this warning once."""
    code = (
        "import torch, flashlift.torch\n"
        "q = torch.ones(1, 1, 2, 8)\n"
        "flashlift.torch.flex_attention(q, q, q, lambda score, *_: float(score) * score)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs the value of a traced scalar" in ended.stderr
    assert "requires_grad" not in ended.stderr


def test_scaled_dot_product_attention_of_equal_sizes_broadcasts_nothing(monkeypatch):
    """torch.broadcast_shapes takes longer than all else in a call of a few keys."""
    q, k, v = torch.randn(3, 2, 4, 5, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    monkeypatch.setattr(torch, "broadcast_shapes", None)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v), expected)


def test_scaled_dot_product_attention_of_what_it_does_not_take():
    q, k, v = tensors()
    with pytest.raises(AttributeError, match="key is NoneType; expected a torch.Tensor"):
        scaled_dot_product_attention(q, None, v)
    nested = [torch.nested.nested_tensor(list(one)) for one in (q, k, v)]
    with pytest.raises(NotImplementedError, match="does not support NestedTensor"):
        scaled_dot_product_attention(*nested)


@pytest.mark.parametrize(
    "table",
    [
        lambda: torch.eye(20).to_sparse(),
        lambda: torch.eye(20).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.ones(20), torch.ones(19)], layout=torch.jagged),
    ],
    ids=["sparse", "csr", "jagged"],
)
def test_captured_tensors_that_are_not_dense(table):
    table = table()
    with pytest.raises(NotImplementedError, match=r"layout torch\.(sparse|jagged).*; expected a dense one"):
        flex_attention(*tensors(), lambda s, b, h, i, j: s + table[i, j])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 4), (3, 0)])
def test_no_queries_or_no_keys_with_a_mask(dtype, q_len, kv_len):
    q, k = torch.randn(2, 3, q_len, 8, dtype=dtype), torch.randn(2, 3, kv_len, 8, dtype=dtype)
    for mask in (torch.ones(3, 1, kv_len, dtype=torch.bool), torch.zeros(1, 3, q_len, kv_len, dtype=dtype)):
        assert torch.equal(scaled_dot_product_attention(q, k, k, mask), torch.zeros_like(q))


@torch.no_grad()
@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_coordinates_beyond_a_tensor_are_refused(compiles):
    """As PyTorch refuses them, masked or not: nobody would notice that the nearest element is read."""
    q, k, v = tensors()
    small, wide = torch.randn(19), torch.randn(4, 20, 20)

    def attend(score_mod=None, mask_mod=None):
        call = lambda q, k, v: flex_attention(q, k, v, score_mod, mask_mod=mask_mod)
        return (torch.compile(call) if compiles else call)(q, k, v)

    for mod, at in (
        (lambda s, b, h, i, j: s + small[j], "kv, which goes to 19, in a dimension of size 19"),
        (lambda s, b, h, i, j: s + (2 * small)[i.long()], "q, which goes to 19"),
        (lambda s, b, h, i, j: torch.where(j < 3, s * wide[:3][h, i, j], s), "h, which goes to 3, .* size 3"),
        (lambda s, b, h, i, j: s + wide[h, i, j + 1], "an index from 1, which goes to 20, .* size 20"),
        (lambda s, b, h, i, j: s + wide.flatten()[:38][i - j + 19], "an index from 0, which goes to 38, .* least 39"),
        (lambda s, b, h, i, j: s + small[:18][i.long() - j], "an index from -19, which goes to 19, .* size 18"),
    ):
        with pytest.raises(Exception, match=f"score_mod reads a tensor at {at}"):
            attend(mod)
    with pytest.raises(Exception, match="mask_mod reads a tensor at q"):
        attend(mask_mod=lambda b, h, i, j: small[i] > 0)
    attend(
        lambda s, b, h, i, j: s + wide[0].flatten()[:39][i - j + 19] * wide[0, 0][i - j] * small[i - i] + small[h + b]
    )
    clamped = attend(lambda s, b, h, i, j: s + small[j.clamp(max=18)] + wide[h, i, j])
    padded = torch.nn.functional.pad(small[None], (0, 1), mode="replicate")[0]
    torch.testing.assert_close(clamped, torch.softmax(q @ k.mT / 4 + padded + wide, -1) @ v, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_a_number_that_moves_an_index_beyond_a_tensor(compiles):
    """Also where the number is an argument of the program, or another number computed from it is: but not where a graph
    computes that, since its value is not known before the graph runs."""
    q, k, v = tensors()
    table = torch.randn(60)
    call = lambda q, k, v, w: flex_attention(q, k, v, lambda s, b, h, i, j: s + table[i - j + w] + table[j + 2 * w])
    attend = torch.compile(call, backend="aot_eager") if compiles else call
    row, column = torch.arange(20)[:, None], torch.arange(20)
    for w in (4, 5, 300, 6, 41, -80, 7, 20, *(() if compiles else (21,))):
        if w in (300, 41, -80, 21):
            with pytest.raises(Exception, match="an index from .* in a dimension of size 60"):
                attend(q, k, v, w)
            continue
        scores = q @ k.mT / 4 + table[row - column + w] + table[column + 2 * w]
        torch.testing.assert_close(attend(q, k, v, w), scores.softmax(-1) @ v, atol=1e-5, rtol=1e-4)


def test_an_attempt_that_fails_prints_nothing(capfd):
    attend = torch.compile(
        lambda q, w: flex_attention(q, q, q, lambda s, b, h, i, j: s + round(w / 2) * j),
        backend="aot_eager",
        fullgraph=True,
    )
    q = tensors()[0]
    for w in (3, 5, 7):
        attend(q, w)
    assert "Traceback" not in capfd.readouterr().err


def test_a_captured_tensor_that_becomes_too_small():
    """Another size does not need another program."""
    q, k, v = tensors()

    def attend(table):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + table[j])

    for _ in range(2):
        assert attend(torch.zeros(20)).shape == q.shape
        with pytest.raises(IndexError, match="in a dimension of size 12; expected at least 20"):
            attend(torch.zeros(12))


@torch.no_grad()
def test_a_captured_tensor_that_is_too_small_for_a_graph_of_any_length():
    def attend(q, k, v, table):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + table[j] * table[i])

    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for length, size in ((20, 20), (30, 40), (33, 33)):
        inputs = (*torch.randn(3, 2, 4, length, 16), torch.randn(size))
        torch.testing.assert_close(compiled(*inputs), attend(*inputs))
        with pytest.raises(Exception, match=f"kv, which goes to {length - 1}, in a dimension of size {length - 1};"):
            compiled(*inputs[:3], torch.randn(length - 1))


@pytest.mark.parametrize("divisor", [0.1, 0.7, -0.3, 2.5, -0.5, 1e-3])
def test_floors_of_quotients_that_are_rounded_up(divisor):
    """1 // 0.1 is 9: the quotient of the two is below 10, and is rounded to it."""
    q, k, v = (torch.randn(1, 1, 40, 8) for _ in range(3))
    places = torch.arange(40, dtype=torch.int32)
    for divide in (lambda x: x // divisor, lambda x: torch.div(x, divisor, rounding_mode="floor")):
        out = flex_attention(q, k, v, lambda score, b, h, i, j: score + divide(i - j) % 7)
        scores = q @ k.mT / math.sqrt(8) + divide(places[:, None] - places) % 7
        torch.testing.assert_close(out, scores.softmax(-1) @ v, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_rounding_to_decimals():
    q, k, v = tensors()
    for decimals in (2, -1):
        out = flex_attention(q, k, v, lambda s, b, h, i, j, d=decimals: torch.round(s * 7, decimals=d))
        scores = torch.round(q @ k.mT / 4 * 7, decimals=decimals)
        torch.testing.assert_close(out, torch.softmax(scores, -1) @ v, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attend", [flex_attention, scaled_dot_product_attention])
def test_other_devices_are_refused_by_name(attend):
    with pytest.raises(ValueError, match="CUDA and CPU devices.*meta"):
        attend(*(one.to("meta") for one in tensors()))


INFERRED = torch.randn(12)


@pytest.mark.parametrize(
    "make",
    [
        lambda w: lambda s, b, h, i, j: s + torch.tensor([1.0, 2.0])[h % 2] * j,
        lambda w: lambda s, b, h, i, j: s + INFERRED[(i - j) % 12],
        lambda w: lambda s, b, h, i, j: torch.where(i - j < w, s, s / w),
    ],
    ids=["literal", "size", "number"],
)
def test_training_after_a_first_call_in_inference_mode(make):
    """What a trace keeps serves both."""
    given = tensors(requires_grad=True)
    for number in (3, 4, 5):
        with torch.inference_mode():
            first = flex_attention(*given, make(number))
        out = flex_attention(*given, make(number))
        out.sum().backward()
        assert first.is_inference() and torch.equal(out, first)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        x, factor = ctx.saved_tensors
        return gradient * factor, gradient * x


def test_a_function_that_stores_inference_tensors():
    make = lambda factor: lambda s, b, h, i, j: Scaled.apply(s, factor)
    given = tensors()
    with torch.inference_mode():
        factor = torch.tensor(0.5)
        first = flex_attention(*given, make(factor))
    factor = factor.clone().requires_grad_()
    out, same = flex_attention(*given, make(factor)), flex_attention(*given, lambda s, *_: s * factor)
    torch.testing.assert_close(out, first)
    torch.testing.assert_close(*(torch.autograd.grad(one.sin().sum(), factor) for one in (out, same)))


def test_a_mod_under_autocast_and_without():
    table, q, k, v = torch.randn(2, 20, 8, requires_grad=True), *tensors()
    mod = lambda s, b, h, i, j: s + table[b, i] @ table[b, j]
    results = []
    for is_on in (False, True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            results.append(flex_attention(q.clone(), k, v, mod).detach())
            # The trace's conversion of the table, which has no gradient, is not that of other operations.
            assert (table[0] @ table[0].T).requires_grad
            (grad,) = torch.autograd.grad((table[0] @ torch.ones(8)).sum(), table)
            assert grad[0].abs().sum() > 0
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
    assert not torch.equal(results[0], results[1].float())


@pytest.fixture
def keeps_default_dtype():
    kept = torch.get_default_dtype()
    yield
    torch.set_default_dtype(kept)


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, i, j: s + j * 0.37,
        lambda s, b, h, i, j: s + (i - j) / 7,
        lambda s, b, h, i, j: s + torch.tensor([0.37, 0.61])[h % 2] * j,
    ],
    ids=["product", "quotient", "literal"],
)
def test_a_mod_under_another_default_dtype(keeps_default_dtype, mod):
    """The type of a product of an integer and a float, for example."""
    q, k, v = tensors()
    results = []
    for dtype in (torch.bfloat16, torch.float32, torch.bfloat16, torch.float32):
        torch.set_default_dtype(dtype)
        results.append(flex_attention(q, k, v, mod))
    want = flex_attention(*(one.double() for one in (q, k, v)), mod)  # under float32
    torch.testing.assert_close(results[1], want.float(), atol=1e-4, rtol=1e-4)
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
    assert not torch.equal(results[0], results[1])


def test_numbers_of_numpy_as_results():
    q = torch.randn(1, 2, 5, 8)
    plain = flex_attention(q, q, q)
    torch.testing.assert_close(flex_attention(q, q, q, mask_mod=lambda b, h, i, j: np.bool_(True)), plain)
    constant = flex_attention(q, q, q, lambda s, b, h, i, j: np.float32(2))
    torch.testing.assert_close(constant, q.mean(2, keepdim=True).expand_as(q))
