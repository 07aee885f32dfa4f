"""flashlift.torch with the rest of PyTorch: torch.compile without graph breaks, opcheck, SDPA's signature."""

import pytest
import torch
import torch_mods
from flashlift.torch import flex_attention, scaled_dot_product_attention
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask


def tensors(batch=2, heads=4, length=60, depth=32):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(batch, heads, length, depth, generator=generator) for _ in range(3)]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["noop", "causal", "alibi_causal", "full_bias", "captures_nested", "eagle3", "module"])
@torch.no_grad()
def test_compile(name):
    q, k, v = tensors()
    score_mod, mask_mod = torch_mods.cases(2, 60, 60)[name]

    def model(q, k, v):
        out, aux = flex_attention(
            q * 2, k, v, score_mod, mask_mod=mask_mod, return_aux=AuxRequest(lse=True, max_scores=True)
        )
        return out + 1, aux.lse, aux.max_scores

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), model(q, k, v), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_compile_with_inductor_and_a_block_mask():
    q, k, v = tensors()
    sinks = torch.zeros(4)
    block_mask = create_block_mask(torch_mods.causal, None, None, 60, 60, device="cpu")

    def model(q, k, v, block_mask):
        return flex_attention(q * 2, k, v, block_mask=block_mask, scale=0.2, sinks=sinks) + 1

    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v, block_mask), model(q, k, v, block_mask), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_compile_of_dynamic_lengths():
    def model(q, k, v):
        return flex_attention(q, k, v, torch_mods.relative_scaled, mask_mod=torch_mods.causal)

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (20, 33, 64):
        arguments = tensors(length=length)
        torch.testing.assert_close(compiled(*arguments), model(*arguments), atol=1e-5, rtol=1e-5)


def test_opcheck():
    import flashlift.torch._native  # noqa: F401 - it registers the operator

    q, k, v = tensors(length=20)
    program = "score_mod(t: f32[?]) { %0 = load t[kv]; %1 = add score, %0; return %1 }"
    arguments = (q, k, v, [torch.randn(20)], None, None, program, 0.2, True, True)
    torch.library.opcheck(torch.ops.flashlift.attention.default, arguments)
    bshd = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in (q, k, v)]
    torch.library.opcheck(torch.ops.flashlift.attention.default, (*bshd, *arguments[3:]))
    halves = [one.bfloat16() for one in bshd]
    torch.library.opcheck(torch.ops.flashlift.attention.default, (*halves, *arguments[3:]))
    torch.library.opcheck(torch.ops.flashlift.attention.default, (*halves, *arguments[3:-1], False))


@pytest.mark.parametrize("is_causal", [False, True])
@torch.no_grad()
def test_sdpa(is_causal):
    q, k, v = tensors()
    expected = torch.nn.functional.scaled_dot_product_attention
    for given in (
        [q, k, v],
        [q[0], k[0], v[0]],
        [q[0, 0], k[0, 0], v[0, 0]],
        [one.unflatten(0, (2, 1)) for one in (q, k, v)],
    ):
        ours = scaled_dot_product_attention(*given, is_causal=is_causal)
        torch.testing.assert_close(ours, expected(*given, is_causal=is_causal), atol=2e-6, rtol=1e-5)
    grouped = scaled_dot_product_attention(q, k[:, :2], v[:, :2], is_causal=is_causal, enable_gqa=True, scale=0.3)
    other = expected(q, k[:, :2], v[:, :2], is_causal=is_causal, enable_gqa=True, scale=0.3)
    torch.testing.assert_close(grouped, other, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [(60, 60), (2, 1, 60, 60), (4, 60, 60), (2, 4, 1, 60)])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
@torch.no_grad()
def test_sdpa_masks(shape, kind):
    q, k, v = tensors()
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    mask = mask > -0.5 if kind == torch.bool else mask
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, mask), expected, atol=2e-6, rtol=1e-5)


def test_sdpa_misuse():
    q, k, v = tensors()
    with pytest.raises(RuntimeError, match="is_causal"):
        scaled_dot_product_attention(q, k, v, torch.ones(60, 60, dtype=torch.bool), is_causal=True)
    with pytest.raises(ValueError, match="dropout"):
        scaled_dot_product_attention(q, k, v, dropout_p=1.5)


@torch.no_grad()
def test_compile_of_numbers_in_closures():
    """Numbers that differ become symbols of Dynamo's, and arguments of the program."""

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(q, k, v, offset):
        return flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i + offset * 2 >= j)

    q, k, v = tensors()
    for offset in (0, 2, 5, 9):
        plain = flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i + offset * 2 >= j)
        torch.testing.assert_close(compiled(q, k, v, offset), plain, atol=1e-6, rtol=1e-5)


def test_compile_of_float64():
    q, k, v = (one.double().requires_grad_() for one in tensors(length=20, depth=8))
    compiled = torch.compile(flex_attention, fullgraph=True, backend="aot_eager")
    for attend in (compiled, flex_attention):
        out = attend(q, k, v, torch_mods.alibi, mask_mod=torch_mods.causal)
        (gradient,) = torch.autograd.grad(out.sin().sum(), q)
        if attend is compiled:
            expected = out, gradient
    torch.testing.assert_close((out, gradient), expected)
