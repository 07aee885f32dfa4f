"""flashlift.torch with the rest of PyTorch: torch.compile without graph breaks, opcheck, SDPA's signature."""

import numpy as np
import pytest
import torch
import torch_mods
from flashlift.torch import flex_attention, scaled_dot_product_attention
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, noop_mask


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


def test_compile_of_a_score_that_changes_in_place():
    q, k, v = (one.requires_grad_() for one in tensors())

    def score_mod(score, b, h, q_idx, kv_idx):
        q_idx += 3
        score *= 0.5
        score += (q_idx - kv_idx) * 0.1
        return score

    def mask_mod(b, h, q_idx, kv_idx):
        keep = q_idx >= kv_idx
        keep |= kv_idx < 3
        return keep

    def model(q, k, v):
        return flex_attention(q, k, v, score_mod, mask_mod=mask_mod)

    want = flex_attention(
        q,
        k,
        v,
        lambda s, b, h, i, j: s * 0.5 + (i + 3 - j) * 0.1,
        mask_mod=lambda b, h, i, j: (i >= j) | (j < 3),
    )
    gradients = [torch.autograd.grad(want.sin().sum(), (q, k, v))]
    for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        out = call(q, k, v)
        torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)
        gradients.append(torch.autograd.grad(out.sin().sum(), (q, k, v)))
        torch.testing.assert_close(gradients[-1], gradients[0], atol=1e-5, rtol=1e-5)


PARTS = {
    "ellipsis": lambda s, table, h, i, j: s + table[..., j].sum(0)[i],
    "slice": lambda s, table, h, i, j: s + table[h, :, j].mean(),
    "slice_of_numbers": lambda s, table, h, i, j: s + table[h, 1:3, j].sum(),
    "new_dimension": lambda s, table, h, i, j: s + table[h, None, i, j][0],
    "list": lambda s, table, h, i, j: s + table[[0, 2], i, j].sum(),
    "no_dimension": lambda s, table, h, i, j: s + table[h][i][..., j, ...],
    "of_a_mask": lambda s, table, h, i, j: torch.where((table > 0)[..., h, i, j], s, s - 1),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compile_of_indices_that_are_more_than_scalars(name, dtype):
    q, k, v = (one.to(dtype).requires_grad_() for one in tensors())
    table = torch.randn(4, 60, 60, requires_grad=True)

    def model(q, k, v):
        return flex_attention(q, k, v, lambda s, b, h, i, j: PARTS[name](s, table, h, i, j))

    results = []
    for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        out = call(q, k, v)
        given = (q, k, v) if name == "of_a_mask" else (q, k, v, table)
        results.append([out, *torch.autograd.grad(out.sin().sum(), given)])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@torch.no_grad()
def test_compile_of_the_type_of_a_score(dtype):
    q, k, v = (one.to(dtype) for one in tensors())
    table = torch.randn(60)

    def attend(score_mod):
        compiled = torch.compile(flex_attention, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(q, k, v, score_mod), flex_attention(q, k, v, score_mod))

    attend(lambda s, b, h, i, j: torch.lerp(s, table[i], 0.3))
    attend(lambda s, b, h, i, j: s + table[j].to(s.dtype))
    attend(lambda s, b, h, i, j: s + torch.finfo(s.dtype).eps * 200 * j)


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [None, True])
def test_compile_of_a_score_that_is_a_number(dynamic):
    q, k, v = tensors()

    def model(q, k, v, number):
        aux = AuxRequest(lse=True)
        return flex_attention(q, k, v, lambda score, b, h, q_idx, kv_idx: number * 2, return_aux=aux)[1].lse

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for number in (0.5, 1.5, 2.5):
        torch.testing.assert_close(compiled(q, k, v, number), model(q, k, v, number))


@pytest.mark.parametrize(
    "table",
    [
        torch.linalg.inv,
        lambda matrix: torch.linalg.inv(matrix - 2 * matrix.mT),
        lambda matrix: torch.linalg.inv(matrix) / (6 // matrix[0].long().sum()),
        lambda matrix: torch.linalg.cholesky(matrix @ matrix.mT),
    ],
    ids=["inverse", "inverse of a difference", "division", "cholesky"],
)
@torch.no_grad()
def test_compile_of_functions_of_a_captured_matrix(table):
    q, k, v = tensors()
    matrix = torch.eye(4) + 0.1 * torch.rand(4, 4, generator=torch.Generator().manual_seed(1))

    def model(q, k, v):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + table(matrix)[h, j % 4])

    values = table(matrix)
    want = flex_attention(q, k, v, lambda s, b, h, i, j: s + values[h, j % 4])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), want, atol=1e-5, rtol=1e-5)


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


@pytest.mark.parametrize("lead", [(2, 4), (4,), ()], ids=str)
@torch.no_grad()
def test_sdpa_of_dynamic_shapes(lead):
    def model(q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=lead != ())

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (20, 33):
        q, k, v = torch.randn(3, *lead, length, 16)
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(compiled(q, k, v), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("arguments", [{"scale": "x"}, {"dropout_p": "x"}, {"enable_gqa": "x"}], ids=str)
def test_arguments_of_other_kinds_in_graphs(arguments):
    (name,) = arguments
    compiled = torch.compile(lambda *qkv: flex_attention(*qkv, **arguments), backend="aot_eager")
    with pytest.raises(TypeError, match=f"{name} is 'x'; expected"):
        compiled(*tensors())


@pytest.mark.parametrize("name", ["score_mod", "mask_mod"])
@pytest.mark.parametrize(
    "given",
    ["causal", 3, torch.ones(60, 60), [1], create_block_mask(noop_mask, None, None, 60, 60, device="cpu")],
    ids=lambda one: type(one).__name__,
)
def test_graphs_name_mods_that_are_no_functions(name, given):
    compiled = torch.compile(lambda *qkv: flex_attention(*qkv, **{name: given}), backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match=f"{name} is {type(given).__name__}; expected a function of"):
        compiled(*tensors())


@pytest.mark.parametrize("dynamic", [False, True])
def test_seeds_of_more_than_64_bits_in_graphs(dynamic):
    def attend(seed, *qkv):
        return flex_attention(*qkv, dropout_p=0.5, dropout_seed=seed)

    compiled = torch.compile(attend, backend="eager", fullgraph=True, dynamic=dynamic)
    qkv = tensors()
    for seed in (5, -(2**63), 2**63 - 1, 2**64 - 1):
        assert torch.equal(compiled(seed, *qkv), attend(seed, *qkv))
    with pytest.raises(RuntimeError, match="dropout_seed is .*; expected an integer of 64 bits"):
        compiled(2**70, *qkv)


@pytest.mark.parametrize("number", [np.int64, np.uint8])
def test_a_seed_of_numpy(number):
    qkv = tensors()
    compiled = torch.compile(
        lambda *qkv: flex_attention(*qkv, dropout_p=0.5, dropout_seed=number(5)), backend="aot_eager", fullgraph=True
    )
    assert torch.equal(compiled(*qkv), flex_attention(*qkv, dropout_p=0.5, dropout_seed=5))


def test_opcheck():
    import flashlift.torch._run.operators  # noqa: F401 - it registers the operator

    q, k, v = tensors(length=20)
    program = "score_mod(t: f32[?]) { %0 = load t[kv]; %1 = add score, %0; return %1 }"
    arguments = (q, k, v, [torch.randn(20)], None, None, program, 0.2, True, True, False)
    torch.library.opcheck(torch.ops.flashlift.attention.default, arguments)
    bshd = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in (q, k, v)]
    torch.library.opcheck(torch.ops.flashlift.attention.default, (*bshd, *arguments[3:]))
    halves = [one.bfloat16() for one in bshd]
    torch.library.opcheck(torch.ops.flashlift.attention.default, (*halves, *arguments[3:]))
    torch.library.opcheck(torch.ops.flashlift.attention.default, (*halves, *arguments[3:-2], False, False))


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


# Shapes of query, key and value, each of which broadcasts by itself, and whether heads are grouped.
BROADCAST = {
    "one_key_head": ((2, 4, 6, 8), (2, 1, 7, 8), (2, 1, 7, 8), False),
    "batch_of_one_key": ((2, 4, 6, 8), (1, 4, 7, 8), (1, 4, 7, 8), False),
    "one_of_each": ((2, 4, 6, 8), (1, 1, 7, 8), (1, 1, 7, 8), False),
    "one_query": ((1, 1, 6, 8), (2, 4, 7, 8), (2, 4, 7, 8), False),
    "only_values": ((2, 1, 6, 8), (1, 1, 7, 8), (2, 4, 7, 5), False),
    "fewer_dimensions": ((2, 4, 6, 8), (4, 7, 8), (7, 8), False),
    "no_heads": ((6, 8), (4, 7, 8), (7, 8), False),
    "two_batches": ((3, 1, 4, 6, 8), (2, 1, 7, 8), (3, 2, 4, 7, 8), False),
    "grouped": ((2, 4, 6, 8), (1, 2, 7, 8), (2, 2, 7, 8), True),
    "grouped_unequally": ((2, 4, 6, 8), (2, 2, 7, 8), (2, 1, 7, 8), True),
    "no_keys": ((2, 4, 6, 8), (2, 4, 0, 8), (2, 4, 0, 8), False),
    "no_queries": ((2, 4, 0, 8), (2, 4, 7, 8), (2, 4, 7, 8), False),
    "no_batch": ((0, 4, 6, 8), (0, 4, 7, 8), (0, 4, 7, 8), False),
}


def drawn(*shapes):
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("name", BROADCAST)
def test_sdpa_broadcasts(name):
    *shapes, enable_gqa = BROADCAST[name]
    given = drawn(*shapes)
    results = []
    for attend in (scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention):
        for is_causal in (False, True):
            out = attend(*given, is_causal=is_causal, enable_gqa=enable_gqa)
            results.append([out, *torch.autograd.grad(out.sin().sum(), given)])
    for ours, theirs in zip(results[:2], results[2:], strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [(6, 6), (2, 1, 1, 6), (1, 4, 6, 1), (6,), ()], ids=str)
@pytest.mark.parametrize("kind", [torch.bool, torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_sdpa_mask_beside_is_causal(shape, kind):
    """PyTorch up to 2.13 takes both in its kernel for the CPU; 2.14 refuses them, so both become one mask."""
    mask = torch.randn(shape)
    mask = mask > -0.5 if kind == torch.bool else mask.to(kind)
    dtype = torch.bfloat16 if kind == torch.bfloat16 else torch.float32
    q, k, v = (one.to(dtype) for one in drawn(*[(2, 4, 6, 8)] * 3))
    seen = torch.ones(6, 6, dtype=torch.bool).tril()
    both = mask & seen if kind == torch.bool else torch.where(seen, mask, -torch.inf)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, both)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 2e-6
    out = scaled_dot_product_attention(q, k, v, mask, is_causal=True)
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)


def test_sdpa_drops_everything():
    q, k, v = drawn(*[(2, 4, 6, 8)] * 3)
    out = scaled_dot_product_attention(q, k, v, dropout_p=1.0)
    assert torch.equal(out, torch.zeros_like(out))
    assert all(torch.equal(one, torch.zeros_like(one)) for one in torch.autograd.grad(out.sum(), (q, k, v)))


@torch.no_grad()
def test_sdpa_autocast():
    q, k, v = tensors()
    mask = torch.randn(60, 60)
    with torch.autocast("cpu", torch.bfloat16):
        ours = scaled_dot_product_attention(q, k.bfloat16(), v, mask)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k.bfloat16(), v, mask)
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)


MISUSES = {
    "heads": ("enable_gqa=True", lambda q: ((q, q[:, :2], q[:, :2]), {})),
    "batch": ("do not broadcast", lambda q: ((q, q.repeat(2, 1, 1, 1)[:3], q), {})),
    "groups": ("must divide the number of heads", lambda q: ((q[:, :3], q[:, :2], q[:, :2]), {"enable_gqa": True})),
    "groups_of_none": (
        "must divide the number of heads",
        lambda q: ((q[0, 0], q[0, 0], q[0, 0]), {"enable_gqa": True}),
    ),
    "types": ("same dtype", lambda q: ((q, q.bfloat16(), q), {})),
    "dimensions": ("at least 2 dimensional", lambda q: ((q[0, 0, 0], q, q), {})),
    "integers": ("torch.int32", lambda q: ((q.int(), q.int(), q.int()), {})),
    "depth": ("embedding dimension", lambda q: ((q, q[..., :4], q), {})),
    "length": ("key and value", lambda q: ((q, q, q[:, :, :5]), {})),
    "mask_of_integers": ("attn_mask dtype", lambda q: ((q, q, q, torch.ones(6, 6, dtype=torch.int32)), {})),
    "mask_of_doubles": ("attn_mask dtype", lambda q: ((q, q, q, torch.ones(6, 6, dtype=torch.float64)), {})),
    "mask_of_another_length": ("does not broadcast to", lambda q: ((q, q, q, torch.ones(6, 5)), {})),
    "mask_of_more_batches": ("does not broadcast to", lambda q: ((q[:1], q[:1], q[:1], torch.ones(2, 4, 6, 6)), {})),
    "dropout": ("dropout", lambda q: ((q, q, q), {"dropout_p": 1.5})),
}


@pytest.mark.parametrize("name", MISUSES)
def test_sdpa_misuse(name):
    """The calls that each of PyTorch's implementations refuses, except for lengths that differ, for which its CPU
    kernel reads out of bounds."""
    words, call = MISUSES[name]
    arguments, options = call(torch.randn(2, 4, 6, 8))
    with pytest.raises((RuntimeError, ValueError, NotImplementedError), match=words):
        scaled_dot_product_attention(*arguments, **options)
    if name != "length":
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            torch.nn.functional.scaled_dot_product_attention(*arguments, **options)


@torch.no_grad()
def test_compile_of_numbers_in_closures():
    """Numbers that change become symbols of Dynamo's, and arguments of the program."""

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


def test_compiled_autograd_of_an_eager_call():
    arguments = [one.requires_grad_() for one in tensors()]
    bias = torch.randn(4, 60, requires_grad=True)

    @torch.compiler.disable
    def model(q, k, v):
        return flex_attention(q, k, v, lambda score, b, h, i, j: score + bias[h, j], mask_mod=torch_mods.causal)

    def step(*given):
        model(*given).square().sum().backward()

    expected = torch.autograd.grad(model(*arguments).square().sum(), (*arguments, bias))
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(step, backend="aot_eager")(*arguments)
    torch.testing.assert_close(tuple(one.grad for one in (*arguments, bias)), expected, atol=1e-5, rtol=1e-5)


class Biased:
    def __init__(self):
        self.bias, self.factor = torch.randn(60), 2.0

    def method(self, score, b, h, q, kv):
        return score * self.factor + self.bias[kv]

    compiled = torch.compile(method, backend="eager")


@pytest.mark.parametrize("name", ["function", "method"])
@torch.no_grad()
def test_mods_that_are_compiled_themselves(name):
    q, k, v = tensors()
    biased = Biased()
    bias, method = biased.bias, biased.method
    function = torch.compile(lambda score, b, h, q, kv: score * biased.factor + bias[kv], backend="eager")
    compiled = {"function": function, "method": biased.compiled}[name]
    for biased.factor in (2.0, 3.0, 2.0):
        assert torch.equal(flex_attention(q, k, v, compiled), flex_attention(q, k, v, method))
