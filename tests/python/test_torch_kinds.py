"""Uses of flex_attention in PyTorch's own tests: layouts, types, graphs, block masks and learnt biases."""

import functools
import inspect
import math
import warnings

import pytest
import torch
import torch_mods
from flashlift.torch import _internals, _version, flex_attention
from test_torch_flex import DTYPES, assert_matches, check, tensors, unfused
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention as theirs
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, noop_mask
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def compiled(function=flex_attention, **options):
    return torch.compile(function, **{"fullgraph": True, "backend": "aot_eager", **options})


def close(ours, expected, tolerance=1e-5):
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)


def random(*shape, dtype=torch.float32, requires_grad=False):
    return torch.randn(shape, dtype=dtype, requires_grad=requires_grad)


def gradients(function, inputs, *others):
    inputs = [one.detach().requires_grad_() for one in inputs]
    out = function(*inputs)
    return out, torch.autograd.grad(out.sin().sum(), [*inputs, *others])


# Layouts and types.


def order_of(tensor):
    """The dimensions from the outermost in memory to the innermost."""
    return sorted(range(4), key=lambda i: tensor.stride(i), reverse=True)


ORDERS = [(0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 3, 2), (1, 0, 3, 2)]


@pytest.mark.parametrize("shape", [(2, 1, 24, 16), (2, 5, 24, 16)])
@pytest.mark.parametrize("in_graph", [False, True])
def test_results_lie_in_memory_as_the_inputs_do(shape, in_graph):
    def attend(inputs):
        return [flex_attention(*qkv) for qkv in inputs]

    inputs = [[random(*shape).permute(order).requires_grad_() for _ in range(3)] for order in ORDERS]
    for (q, k, v), out in zip(inputs, compiled(attend)(inputs) if in_graph else attend(inputs), strict=True):
        close(out, unfused(q, k, v)[0])
        found = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
        for given, one in zip((q, q, k, v), (out, *found), strict=True):
            assert one.stride(-1) == 1
            if given.stride(-1) == 1:
                assert order_of(one) == order_of(given)


LAYOUTS = [  # strides and offset of a [2, 4, 64, 32] tensor
    ((8192, 2048, 32, 1), 97),
    ((128, 32, 256, 1), 49),  # heads and batch within a row
    ((2112, 4224, 33, 1), 29),  # rows with a gap
    ((1, 32, 480, 1), 9),  # batches one element apart, that share memory
]


@pytest.mark.parametrize("in_graph", [False, True])
def test_strides(in_graph):
    def attend(inputs):
        return [flex_attention(*qkv, torch_mods.alibi) for qkv in inputs]

    inputs, cotangents = [], []
    for keys, values in ((0, 0), (0, 1), (2, 3), (3, 1)):
        for queries, cotangent in ((0, 1), (1, 2), (1, 0)):
            *given, by_out = [
                torch.as_strided(random(2 * 4 * 64 * 33 * 2), (2, 4, length, 32), *LAYOUTS[layout])
                for layout, length in ((queries, 32), (keys, 64), (values, 64), (cotangent, 32))
            ]
            inputs.append([one.requires_grad_() for one in given])
            cotangents.append(by_out)
    results = compiled(attend)(inputs) if in_graph else attend(inputs)
    flat = [one for qkv in inputs for one in qkv]
    expected = [unfused(*qkv, torch_mods.alibi)[0] for qkv in inputs]
    close(results, expected)
    close(torch.autograd.grad(results, flat, cotangents), torch.autograd.grad(expected, flat, cotangents), 1e-4)


@pytest.mark.parametrize(
    "query_type, key_type",
    [(torch.float32, torch.float16), (torch.float16, torch.float8_e4m3fn), (torch.bfloat16, torch.float32)],
)
def test_keys_of_another_type(query_type, key_type):
    """For example a cache of 8 bits. The result has the query's type."""
    q, k, v = random(1, 2, 40, 16).to(query_type), random(1, 2, 50, 16).to(key_type), random(1, 2, 50, 16).to(key_type)
    out = flex_attention(q, k, v)
    assert out.dtype == query_type
    golden = unfused(q.double(), k.double(), v.double())[0]
    assert (out.double() - golden).abs().mean() < 2e-3
    assert torch.equal(compiled()(q, k, v), out)


def test_other_numbers_of_sinks_in_graphs():
    attend = compiled(lambda q, k, v, sinks: flex_attention(q, k, v, sinks=sinks), dynamic=True)
    q, k, v = random(3, 1, 4, 20, 16)
    for count in (3, 1, 5):
        sinks = random(4, count)
        close(attend(q, k, v, sinks), flex_attention(q, k, v, sinks=sinks))


def test_misuse_in_compiled_graphs():
    q, k, v = random(3, 1, 2, 64, 16)
    rows = create_block_mask(torch_mods.causal, 1, 1, 256, 256, device="cpu")[:, :, 0]
    mask = create_block_mask(torch_mods.causal, 1, 1, 32, 32, device="cpu")
    nested = torch.nested.nested_tensor([random(3, 2, 8)], layout=torch.jagged).transpose(1, 2)
    sliced = ("Cannot use mask_mod from a sliced BlockMask", lambda attend: attend(q, k, v, block_mask=rows))
    for message, call in (
        *([sliced] if _internals.sliced_mask_mod_error else []),  # PyTorch 2.9 does not tell
        ("block_mask was created for", lambda attend: attend(q, k, v, block_mask=mask)),
        ("does not support NestedTensor", lambda attend: attend(nested, nested, nested)),
        ("query.device: cpu, key.device: meta", lambda attend: attend(q, k.to("meta"), v)),
        ("only supported on", lambda attend: attend(*(one.to("meta") for one in (q, k, v)))),
    ):
        for attend in (flex_attention, compiled(fullgraph=False)):
            with pytest.raises((ValueError, RuntimeError, NotImplementedError), match=message):
                call(attend)


def test_return_lse_is_deprecated(monkeypatch):
    monkeypatch.setattr(theirs, "_WARNINGS_SHOWN", set())
    q, k, v = random(3, 1, 2, 8, 8)
    with pytest.warns(FutureWarning, match="return_lse is deprecated"):
        flex_attention(q, k, v, return_lse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flex_attention(q, k, v, return_lse=True)


@pytest.mark.parametrize(
    "options",
    [
        {"BLOCK_M": 16, "bwd_BLOCK_M1": 32, "num_warps": 4, "num_consumer_groups": 2, "num_buffers_warp_spec": 3},
        {"FORCE_USE_FLEX_ATTENTION": True, "PRESCALE_QK": True, "ROWS_GUARANTEED_SAFE": True, "USE_TMA": True},
    ],
)
def test_kernel_options_change_nothing(options):
    q, k, v = random(3, 1, 2, 8, 16)
    for attend in (flex_attention, compiled()):
        assert torch.equal(attend(q, k, v, kernel_options=options), flex_attention(q, k, v))


# Graphs.


@pytest.mark.parametrize("dynamic, expected", [(True, [1, 1, 1]), (None, [1, 2, 2])])
def test_graphs_of_changing_lengths(dynamic, expected):
    def attend(q, k, v, masks):
        mods = None, torch_mods.alibi
        return sum(flex_attention(q, k, v, *both) for both in zip(mods, masks, strict=True))

    backend, counts = CompileCounterWithBackend("aot_eager"), []
    for batch, length in ((2, 192), (4, 96), (4, 64)):
        masks = [
            create_block_mask(one, 1, 1, length, length, device="cpu", BLOCK_SIZE=32)
            for one in (torch_mods.causal, noop_mask)
        ]
        inputs = random(3, batch, 4, length, 16)
        graph = compiled(attend, backend=backend, dynamic=dynamic)
        out, found = gradients(lambda *qkv: graph(*qkv, masks), inputs)
        plain, other = gradients(lambda *qkv: attend(*qkv, masks), inputs)
        close(out, plain)
        close(found, other, 1e-4)
        counts.append(backend.frame_count)
    assert counts == expected


def test_graphs_of_captured_tensors_of_changing_sizes():
    """An index may be negative, so that the program reads the table's size."""
    backend = CompileCounterWithBackend("aot_eager")

    def attend(q, k, v, table, rows):
        return flex_attention(q, k, v, lambda score, b, h, i, j: score + table[i - j] + rows[h, j])

    graph = compiled(attend, backend=backend, dynamic=True)
    for length in (40, 56, 33):
        q, k, v = random(3, 2, 4, length, 8)
        table, rows = (one.requires_grad_() for one in (random(2 * length), random(4, length)))
        out, found = gradients(lambda q, k, v: graph(q, k, v, table, rows), (q, k, v), table, rows)
        plain, other = gradients(lambda q, k, v: attend(q, k, v, table, rows), (q, k, v), table, rows)
        close(out, plain)
        close(found, other, 1e-4)
    assert backend.frame_count == 1


@torch.no_grad()
def test_sizes_that_shape_a_program_are_guarded():
    def attend(q, k, v, table):
        return flex_attention(q, k, v, lambda score, b, h, i, j: score + (table[h] * 2).sum(-1))

    graph = compiled(attend, dynamic=True)
    q, k, v = random(3, 2, 4, 20, 8)
    for size in (3, 5):
        table = random(4, size)
        close(graph(q, k, v, table), attend(q, k, v, table))


@torch.no_grad()
def test_numbers_of_a_graph_in_masks():
    def attend(q, k, v, position):
        limit = (q.size(-2) // 8 + k.size(-2) // 8) * 8
        last = position + 1

        def mask_mod(b, h, i, j):
            return (i < limit) & (j <= last)

        if torch.__version__.startswith("2.9."):  # whose create_block_mask takes no function of a graph's own
            return flex_attention(q, k, v, mask_mod=mask_mod)
        mask = create_block_mask(mask_mod, None, None, q.size(-2), k.size(-2), device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    graph = compiled(attend, dynamic=True)
    for q_len, kv_len, position in ((48, 32, 5), (40, 24, 9), (40, 24, 12)):
        q, k, v = random(1, 2, q_len, 8), random(1, 2, kv_len, 8), random(1, 2, kv_len, 8)
        close(graph(q, k, v, position), attend(q, k, v, position))


class Capped(torch.nn.Module):
    def __init__(self, cap):
        super().__init__()
        self.cap, self.window = cap, 7

    def score_mod(self, score, b, h, q, kv):
        return self.cap * torch.tanh(score / self.cap)

    def forward(self, q, k, v, slope=0.1):
        mask_mod = lambda b, h, i, j: i - j < self.window
        return flex_attention(
            q, k, v, lambda s, b, h, i, j: self.score_mod(s, b, h, i, j) + slope * j, mask_mod=mask_mod
        )


def test_floats_of_a_graph():
    """Under dynamic=True, Dynamo turns them into tensors, which the mod's graph reads."""
    inputs = random(3, 2, 4, 20, 8)
    model = Capped(5.5)
    graph = compiled(model, dynamic=True)
    for slope in (0.25, -0.125, 0.5):
        out, found = gradients(lambda q, k, v: graph(q, k, v, slope), inputs)
        plain, other = gradients(lambda q, k, v: model(q, k, v, slope), inputs)
        close(out, plain)
        close(found, other, 1e-4)


@pytest.mark.skipif(
    "shape_id" not in inspect.signature(torch._dynamo.decorators.mark_unbacked).parameters,
    reason="this PyTorch has no way to say that sizes which it does not know are equal",
)
def test_sizes_that_a_graph_does_not_know():
    mask = create_block_mask(torch_mods.causal, None, None, 64, 64, device="cpu")

    def halves(q, k, v):
        torch._check(q.shape[0] >= 2)  # without bounds, PyTorch 2.11 does not know that the slices of q and k are equal
        torch._check(q.shape[0] <= 4)
        middle = q.shape[0] // 2
        parts = slice(None, middle), slice(middle, None)
        return sum(flex_attention(q[one], k[one], v[one], block_mask=mask).sum() for one in parts)

    given = [torch.empty_strided((4, 2, 64, 8), (2048, 1024, 8, 1)).normal_() for _ in range(3)]
    _, expected = gradients(halves, given)
    inputs = [one.detach().requires_grad_() for one in given]
    for one in inputs:
        torch._dynamo.decorators.mark_unbacked(one, 0, hint_override=4, shape_id="batch")
        torch._dynamo.decorators.mark_unbacked(one, 2, hint_override=64, shape_id="length")
    out = compiled(halves, dynamic=True)(*inputs)
    close(torch.autograd.grad(out.sin(), inputs), expected, 1e-4)


class Tokens:
    """A mask that is an object."""

    __name__ = "tokens"

    def __init__(self, window):
        self.window = window

    def __call__(self, b, h, q, kv):
        return (q >= kv) | (kv - q < self.window)


class Conditional(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(score, keep):
        return torch.where(keep, score, -math.inf)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(inputs[1])

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def new_tensors(length):
    table = torch.ones(2, 1, length, length, dtype=torch.bool).tril()
    return lambda score, b, h, q, kv: score + table[b, h.new_zeros(h.shape), q, kv]


torch.library.define("flashlift_tests::cap", "(Tensor x) -> Tensor")
torch.library.impl("flashlift_tests::cap", "CompositeExplicitAutograd", lambda x: 5 * torch.tanh(x / 5))


def vectors(combine):
    """Operations on rows selected by indices."""
    table = torch.randn(4, 40, 3, generator=torch.Generator().manual_seed(4))
    return lambda score, b, h, q, kv: score + combine(table[h, q], table[h, kv])


MODS = dict(
    zip(
        "object partial function new_tensor trigonometric integer true_division nested dot norm mish hardswish "
        "own".split(),
        [
            (None, Tokens(7)),
            (None, functools.partial(lambda b, h, q, kv, offset: q + offset >= kv, offset=3)),
            (lambda score, b, h, q, kv: Conditional.apply(score, q <= kv), None),
            (new_tensors(40), None),
            (lambda score, b, h, q, kv: torch.sin(torch.cos(score)) + torch.tan(b), None),
            (lambda score, b, h, q, kv: score - q // (1 + kv), None),
            (
                lambda score, b, h, q, kv: torch.where(((q / 8 - kv / 8).abs() <= 2) | (q % 8 == 3), score, -math.inf),
                None,
            ),
            (torch_mods.nested_indexing(40, 40), None),
            (vectors(torch.dot), None),
            (vectors(lambda x, y: -torch.linalg.vector_norm(x - y)), None),
            (lambda score, b, h, q, kv: torch.nn.functional.mish(score) + torch.nn.functional.selu(score), None),
            (lambda score, b, h, q, kv: torch.nn.functional.hardswish(score) + torch.nn.functional.celu(score), None),
            (lambda score, b, h, q, kv: torch.ops.flashlift_tests.cap(score), None),
        ],
        strict=True,
    )
)


@pytest.mark.parametrize("name", MODS)
@torch.no_grad()
def test_mods_of_every_kind(name):
    q, k, v = random(3, 2, 4, 40, 16)
    assert_matches(q, k, v, *MODS[name])


@torch.no_grad()
def test_mods_of_every_kind_in_a_graph():
    def attend(q, k, v):
        found = []
        for score_mod, mask_mod in MODS.values():
            mask = None if mask_mod is None else create_block_mask(mask_mod, 2, 4, 40, 40, device="cpu")
            found.append(flex_attention(q, k, v, score_mod, block_mask=mask))
        return found

    inputs = random(3, 2, 4, 40, 16)
    close(compiled(attend)(*inputs), attend(*inputs))


def test_graph_that_makes_what_a_mod_captures():
    table = random(30, requires_grad=True)
    index = torch.randint(0, 30, (40, 40))
    offsets = torch.tensor(3)

    def attend(q, k, v):
        bias, squares = (table * 2)[:, None].expand(-1, 4), torch.arange(40.0) ** 2 * 0.01

        def score_mod(score, b, h, i, j):
            kept = (i >= offsets) & (j >= offsets)
            return score + kept.to(score.dtype) * bias[index[i, j], h] + squares[j]

        return flex_attention(q.sin(), k, v, score_mod).cos()

    inputs = random(3, 2, 4, 40, 8)
    out, found = gradients(compiled(attend), inputs, table)
    plain, other = gradients(attend, inputs, table)
    close(out, plain)
    close(found, other, 1e-4)


@pytest.mark.parametrize("saved", ["mm", "attention"])
def test_selective_checkpoints(saved):
    operators = [torch.ops.aten.mm.default if saved == "mm" else torch.ops.flashlift.attention.default]
    contexts = functools.partial(create_selective_checkpoint_contexts, operators)
    weight = random(32, 96)

    def attend(x):
        q, k, v = (x @ weight).view(2, 20, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return flex_attention(q, k, v).transpose(1, 2).flatten(2)

    def checkpointed(x):
        return checkpoint(attend, x, use_reentrant=False, context_fn=contexts)

    x = random(2, 20, 32)
    out, expected = gradients(attend, [x])
    for function in (checkpointed, compiled(checkpointed, fullgraph=False)):
        again, found = gradients(function, [x])
        close(again, out)
        close(found, expected, 1e-4)


class Wrapped(torch.Tensor):
    """A subclass that applies all operators to the tensor inside, and cannot be viewed as strided memory."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"Wrapped({self.inner})"

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        assert func is not torch.ops.aten.as_strided.default
        inner_args, inner_kwargs = torch.utils._pytree.tree_map_only(
            Wrapped, lambda one: one.inner, (args, kwargs or {})
        )
        wrapped = torch.utils._pytree.tree_map_only(torch.Tensor, Wrapped, func(*inner_args, **inner_kwargs))
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


@pytest.mark.parametrize("attend", [flex_attention, compiled()], ids=["eager", "compiled"])
def test_tensor_subclass(attend):
    q, k, v = random(3, 2, 1, 20, 8)
    out = attend(Wrapped(q), Wrapped(k), Wrapped(v))
    assert type(out) is Wrapped
    close(out.inner, flex_attention(q, k, v))


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(random(4, 64))

        def forward(self, q, k, v):
            return flex_attention(
                q, k, v, lambda score, b, h, i, j: score + self.bias[h, j], mask_mod=torch_mods.causal
            )

    model = Model()
    dims = {0: torch.export.Dim("batch", max=64), 2: torch.export.Dim("length", min=2, max=64)}
    program = torch.export.export(
        model, tuple(random(3, 2, 4, 40, 8)), dynamic_shapes=dict.fromkeys("qkv", dims), strict=strict
    )
    q, k, v = random(3, 3, 4, 50, 8)
    close(program.module()(q, k, v), model(q, k, v))


def test_export_without_gradients():
    """The model has the calls alone, and not what enabled gradients or left autocast while a mod was traced."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(random(40))

        def biased(self, score, b, h, i, j):
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                return score + self.bias[j]

        def forward(self, q, k, v):
            return flex_attention(q, k, v, self.biased)

    model, (q, k, v) = Model(), random(3, 2, 4, 40, 8)
    with torch.no_grad():
        program = torch.export.export(model, (q, k, v))
        want = model(q, k, v)
    functions = {node.target for node in program.graph.nodes if node.op == "call_function"}
    assert torch.ops.flashlift.attention.default in functions
    assert not any(isinstance(one, torch._ops.HigherOrderOperator) for one in functions)
    with torch.no_grad():
        close(program.run_decompositions().module()(q, k, v), want)


@pytest.mark.parametrize("captures", [False, True])
def test_aot_inductor(captures, tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(random(64)) if captures else None

        def forward(self, q, k, v):
            score_mod = (lambda score, b, h, i, j: score + self.bias[j]) if captures else None
            return flex_attention(q, k, v, score_mod, mask_mod=torch_mods.causal)

    model = Model()
    dims = {2: torch.export.Dim("length", min=2, max=64)}
    with torch.no_grad():
        program = torch.export.export(model, tuple(random(3, 2, 4, 40, 8)), dynamic_shapes=dict.fromkeys("qkv", dims))
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        q, k, v = random(3, 2, 4, 50, 8)
        close(torch._inductor.aoti_load_package(path)(q, k, v), model(q, k, v))


# Block masks.


def test_lists_in_graphs():
    """Masks that define only blocks: made of lists, without those of the other direction, or narrowed."""
    counts = torch.tensor([[[2, 1]]], dtype=torch.int32)
    indices = torch.tensor([[[[0, 2, 1], [1, 0, 2]]]], dtype=torch.int32)
    inputs = random(1, 2, 64, 8), random(1, 2, 96, 8), random(1, 2, 96, 8)
    for columns in (3, 2):
        lists = counts, indices[..., :columns]
        mask = BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=32, compute_q_blocks=False, seq_lengths=(64, 96))
        attend = functools.partial(flex_attention, block_mask=mask)
        kept = torch.tensor([[True, False, True], [False, True, False]])
        expected = gradients(
            lambda *given: unfused(*given, None, lambda b, h, q, kv: kept[q // 32, kv // 32])[0], inputs
        )
        for function in (attend, compiled(attend)):
            close(gradients(function, inputs), expected, 1e-4)


@torch.no_grad()
def test_row_of_a_mask_for_decoding():
    keys, values = random(2, 4, 8, 256, 16)
    query, position = random(4, 8, 1, 16), torch.tensor(130)
    whole = create_block_mask(torch_mods.causal, B=4, H=None, Q_LEN=256, KV_LEN=256, device="cpu")
    row = whole[:, :, 1]
    row.mask_mod = lambda b, h, q, kv: whole.mask_mod(b, h, q + position, kv)
    row.seq_lengths = (1, 256)
    expected = unfused(query, keys[:, :, :131], values[:, :, :131])[0]
    for attend in (flex_attention, compiled(dynamic=True)):
        close(attend(query, keys, values, block_mask=row), expected)


def test_block_mask_of_a_larger_batch():
    """The call has the first of the sequences, or heads, that the mask was made for."""
    lengths = torch.tensor([9, 20, 33])
    mask = create_block_mask(lambda b, h, q, kv: (kv < lengths[b] + h) & (q >= kv), 3, 4, 40, 40, device="cpu")
    q, k, v = random(3, 2, 2, 40, 8)
    expected = unfused(q, k, v, None, mask.mask_mod)[0]
    for attend in (flex_attention, compiled()):
        close(attend(q, k, v, block_mask=mask), expected)
        close(attend(q[:1], k[:1], v[:1], block_mask=mask), expected[:1])
    with pytest.raises(ValueError, match="block_mask has batch=3, the query 4"):
        flex_attention(*random(3, 4, 4, 40, 8), block_mask=mask)


def test_packed_sequences():
    ends = torch.tensor([0, 17, 17, 40, 58]), torch.tensor([0, 9, 30, 64, 70])
    inputs = random(1, 4, 60, 8), random(1, 4, 75, 8), random(1, 4, 75, 8)

    def packed(q, k, v):
        return flex_attention(q, k, v, torch_mods.relative_scaled, cu_seqlens=ends)

    def one_by_one(q, k, v):
        parts = []
        for (q0, q1), (k0, k1) in zip(*(one.unfold(0, 2, 1).tolist() for one in ends), strict=True):
            score_mod = lambda score, b, h, i, j: score + ((i + q0) - (j + k0)) * 0.01
            if q1 > q0:
                parts.append(unfused(q[:, :, q0:q1], k[:, :, k0:k1], v[:, :, k0:k1], score_mod)[0])
        return torch.cat([*parts, torch.zeros(1, 4, 2, 8)], dim=2)

    expected = gradients(one_by_one, inputs)
    for attend in (packed, compiled(packed)):
        close(gradients(attend, inputs), expected, 1e-4)
    alone = flex_attention(inputs[0], inputs[0], inputs[0], mask_mod=torch_mods.causal, cu_seqlens=ends[0].int())
    close(alone[:, :, 40], inputs[0][:, :, 40])
    for wrong in (ends[0].float(), ends[0][None], (ends[0], ends[1][:3])):
        with pytest.raises(ValueError, match="cu_seqlens"):
            flex_attention(*inputs, cu_seqlens=wrong)


@pytest.mark.parametrize("name", ["noop", "alibi", "full_bias"])
@torch.no_grad()
def test_paged_attention(name):
    """PyTorch's own paged cache: one batch of scattered keys, a block mask and mods that translate positions."""
    length, page = 64, 16
    q, k, v = random(3, 2, 4, length, 8)
    score_mod, _ = torch_mods.cases(2, length, length)[name]
    cache = PagedAttention(24, page, 5, device="cpu")
    for part in (0.25, 0.75, 1):
        for b in range(2):
            cache.reserve(torch.tensor(b), torch.tensor(int(length * part)))
    paged = [torch.zeros(1, 4, 24 * page, 8) for _ in range(2)]
    positions = torch.arange(length, dtype=torch.int32).expand(2, length)
    cache.assign(torch.arange(2, dtype=torch.int32), positions, k, v, *paged)
    mask = create_block_mask(torch_mods.causal, 2, 1, length, length, device="cpu", BLOCK_SIZE=page)
    lengths = torch.full((2,), length)
    mods = cache.get_score_mod(score_mod, kv_len=lengths), cache.convert_logical_block_mask(mask, kv_len=lengths)
    for attend in (flex_attention, compiled()):
        close(attend(q, *paged, *mods), unfused(q, k, v, score_mod, torch_mods.causal)[0])


# Values that poison, and biases that learn.


@pytest.mark.parametrize(
    "score_mod",
    [lambda score, b, h, q, kv: 1 / score, lambda score, b, h, q, kv: torch.where(score > 0, torch.log(score), score)],
    ids=["quotient", "logarithm"],
)
def test_masked_scores_poison_nothing(score_mod):
    inputs = random(3, 1, 2, 140, 16)
    out, (d_q, _, d_v) = gradients(
        lambda q, k, v: flex_attention(q, k, v, score_mod, mask_mod=torch_mods.causal), inputs
    )
    assert all(torch.isfinite(one).all() for one in (out, d_q, d_v))
    poisoned = torch.full((2, 2, 140, 140), math.nan)
    poisoned[0] = 1.0
    biased = functools.partial(
        flex_attention, score_mod=lambda score, b, h, q, kv: score + poisoned[b, h, q, kv], mask_mod=torch_mods.causal
    )
    assert all(torch.isfinite(one).all() for one in gradients(biased, inputs)[1])


LENGTH = 37
BIASES = {  # the shape of the bias, and how a score_mod reads it
    "relative": ((2 * LENGTH,), lambda s, t, b, h, q, kv: s + t[torch.abs(q - kv)]),
    "absolute": ((LENGTH, LENGTH), lambda s, t, b, h, q, kv: s + t[q, kv]),
    "of_heads": ((4, LENGTH, LENGTH), lambda s, t, b, h, q, kv: s + t[h, q, kv]),
    "of_batches": ((2, 4, LENGTH, LENGTH), lambda s, t, b, h, q, kv: s + t[b, h, q, kv]),
    "factor": ((LENGTH,), lambda s, t, b, h, q, kv: s * t[q]),
    "window": ((17,), lambda s, t, b, h, q, kv: s + t[torch.clamp(q - kv + 8, 0, 16)]),
    "keys": ((LENGTH,), lambda s, t, b, h, q, kv: s + t[kv]),
    "chosen": ((2, 4, 3, LENGTH), lambda s, t, b, h, q, kv: s + t[b, h, torch.tensor(0), q]),
    "indirect": ((LENGTH,), lambda s, t, b, h, q, kv: s + t[(q * 7 + kv * 0) % LENGTH]),
    "symmetric": ((LENGTH,), lambda s, t, b, h, q, kv: s + t[q] + t[kv]),
    "flipped": ((LENGTH, LENGTH), lambda s, t, b, h, q, kv: s + t[kv, q]),
    "gate": ((4,), lambda s, t, b, h, q, kv: s * torch.sigmoid(t[h])),
    "scalar": ((1,), lambda s, t, b, h, q, kv: s * t[0]),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BIASES)
def test_learnt_biases(name, dtype):
    """Output and gradients, including the bias's."""
    shape, apply = BIASES[name]
    inputs, cotangent = (
        tensors(dtype, (2, 4, 4, LENGTH, LENGTH, 16, 16)),
        tensors(dtype, (2, 4, 4, LENGTH, 1, 16, 1), 7)[0],
    )
    # Few numbers are kept in float32, as in PyTorch's tests: the errors of rounding them are few, and no mean.
    table = torch.randn(shape, generator=torch.Generator().manual_seed(9))
    table = table.to(dtype) if table.numel() > 20 else table

    def results(attend, type_):
        given = [one.to(type_, copy=True).requires_grad_() for one in inputs]
        given.append(table.to(torch.float64 if type_ == torch.float64 else table.dtype, copy=True).requires_grad_())
        out = attend(*given[:3], lambda score, b, h, q, kv: apply(score, given[3], b, h, q, kv))
        return [out, *torch.autograd.grad(out, given, cotangent.to(type_))]

    golden = results(lambda *given: unfused(*given)[0], torch.float64)
    eager = results(lambda *given: unfused(*given)[0], dtype)
    for i, (one, plain, true) in enumerate(zip(results(flex_attention, dtype), eager, golden, strict=True)):
        assert one.dtype == plain.dtype
        check(one, true, plain, is_gradient=i > 0, row_width=1 if i > 3 else None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_learnt_biases_in_a_graph(dtype):
    """The same bits: each term of a gradient has one place in the graph, so that sums have the same order."""
    inputs = [one for _ in BIASES for one in tensors(dtype, (2, 4, 4, LENGTH, LENGTH, 16, 16))]
    tables = [random(*shape, dtype=dtype, requires_grad=True) for shape, _ in BIASES.values()]

    def attend(*inputs):
        mods = [functools.partial(biased, apply, one) for (_, apply), one in zip(BIASES.values(), tables, strict=True)]
        return torch.stack([flex_attention(*inputs[3 * i : 3 * i + 3], mod) for i, mod in enumerate(mods)])

    out, found = gradients(compiled(attend), inputs, *tables)
    plain, expected = gradients(attend, inputs, *tables)
    assert torch.equal(out, plain)
    assert all(map(torch.equal, found, expected))


def biased(apply, table, score, b, h, q, kv):
    return apply(score, table, b, h, q, kv)


def test_two_halves_of_a_mask_by_their_sums():
    """Attention over near keys and over far ones, combined by their lse: gradients flow through both."""
    inputs = random(3, 2, 2, 90, 16)

    def merged(q, k, v):
        near = flex_attention(q, k, v, mask_mod=lambda b, h, i, j: (i >= j) & (i - j <= 20), return_lse=True)
        far = flex_attention(q, k, v, mask_mod=lambda b, h, i, j: (i >= j) & (i - j > 20), return_lse=True)
        highest = torch.maximum(near[1], far[1])
        weights = [torch.exp(lse - highest)[..., None] for _, lse in (near, far)]
        return (near[0] * weights[0] + far[0] * weights[1]) / (weights[0] + weights[1])

    expected = gradients(
        lambda *given: torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True), inputs
    )
    close(gradients(merged, inputs), expected, 1e-4)
    close(gradients(compiled(merged), inputs), expected, 1e-4)


def test_rows_without_keys():
    inputs = random(3, 2, 4, 40, 16)

    def attend(q, k, v):
        out, lse = flex_attention(q, k, v, mask_mod=lambda b, h, i, j: i < 20, return_lse=True)
        assert (out[:, :, 20:] == 0).all() and (lse[:, :, 20:] == -math.inf).all()
        return out

    _, found = gradients(attend, inputs)
    assert all(torch.isfinite(one).all() for one in found) and (found[0][:, :, 20:] == 0).all()
    for q_len, kv_len in ((0, 5), (5, 0), (0, 0)):
        q, k = random(2, 2, q_len, 8), random(2, 2, kv_len, 8)
        out, found = gradients(flex_attention, (q, k, k))
        assert out.shape == q.shape and all((one == 0).all() for one in (out, *found))


@torch.no_grad()
def test_output_error_beside_pytorchs_own():
    """Compares with PyTorch's own eager function."""
    for dtype in DTYPES:
        q, k, v = tensors(dtype, (1, 4, 4, 128, 128, 64, 64))
        for name in ("causal_where", "squared"):
            score_mod, _ = torch_mods.cases(2, 128, 128)[name]
            golden = unfused(q.double(), k.double(), v.double(), score_mod)[0]
            eager = theirs.flex_attention(q, k, v, score_mod)
            check(flex_attention(q, k, v, score_mod), golden, eager)


@pytest.mark.parametrize("version", ["2.8.1+cu126", "2.16.0", "3.0", "unknown"])
def test_versions_that_nothing_is_known_of_are_refused(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(ImportError, match=rf"for torch 2.9 to 2.15, .* this is torch {version.split('+')[0]}"):
        _version._checked_version()
