"""Mods that read tensors' contents, change tensors or have tensors of their own, beside plain maths."""

import copy

import pytest
import torch
from flashlift.torch import flex_attention, scaled_dot_product_attention
from torch.fx.experimental.proxy_tensor import make_fx

KV = torch.arange(20)
Q = KV[:, None]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def tensors():
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(1, 4, 20, 16, generator=generator) for _ in range(3)]


def plain(change=lambda score: score, keep=None):
    q, k, v = tensors()
    scores = change(q @ k.mT / 4)
    return (scores if keep is None else scores.masked_fill(~keep, -torch.inf)).softmax(-1) @ v


def close(found, wanted):
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [torch.tensor, torch.as_tensor, torch.LongTensor, Q.new_tensor],
    ids=["tensor", "as_tensor", "LongTensor", "new_tensor"],
)
def test_numbers_that_a_mod_puts_into_a_tensor(make):
    def windows(sizes):
        return lambda b, h, q, kv: (q >= kv) & (q - kv < make(sizes)[h])

    for sizes in ([2, 4, 8, 16], [3, 5, 9, 17], [4, 8, 16, 20], [1, 1, 1, 1]):
        out = flex_attention(*tensors(), mask_mod=windows(sizes))
        close(out, plain(keep=(Q >= KV) & (torch.tensor(sizes)[:, None, None] > Q - KV)))


TABLE = torch.randn(20)
SLOPES = torch.nn.Parameter(torch.rand(4))


@pytest.mark.parametrize(
    "score_mod",
    [
        lambda s, b, h, q, kv: torch.tensor([s, s])[0],
        lambda s, b, h, q, kv: torch.as_tensor([[0.0, s]])[0, 1],
        lambda s, b, h, q, kv: s.new_tensor((s, 2 * s))[1],
        lambda s, b, h, q, kv: torch.Tensor([s])[0],
        lambda s, b, h, q, kv: s + TABLE[torch.LongTensor([h])[0]],
        lambda s, b, h, q, kv: s + TABLE[torch.tensor([h, kv])[0]],
        lambda s, b, h, q, kv: s + torch.tensor([TABLE[0], TABLE[1]])[h % 2],
        lambda s, b, h, q, kv: copy.deepcopy(s),
    ],
    ids=["tensor", "as_tensor", "new_tensor", "Tensor", "LongTensor", "coordinates", "captured", "deepcopy"],
)
def test_contents_are_not_read_while_a_mod_is_traced(score_mod):
    with pytest.raises(RuntimeError, match="reads the content of .*while the mod is traced"):
        flex_attention(*tensors(), score_mod)


class Named(torch.Tensor):
    """A subclass that only gives results its own type."""


class Counting(torch.Tensor):
    """A subclass with operations of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def test_captured_tensors_of_a_subclass():
    q, k, v = tensors()
    named = TABLE.as_subclass(Named)
    close(flex_attention(q, k, v, lambda s, b, h, q, kv: s + named[kv]), plain(lambda s: s + TABLE))
    scalar = torch.tensor(2.0).as_subclass(Named)
    close(flex_attention(q, k, v, lambda s, b, h, q, kv: s * scalar), plain(lambda s: s * 2))
    is_kept = (TABLE > 0).as_subclass(Named)
    close(flex_attention(q, k, v, mask_mod=lambda b, h, q, kv: is_kept[kv]), plain(keep=TABLE > 0))
    mask = TABLE.expand(20, 20).as_subclass(Named)
    close(scaled_dot_product_attention(q, k, v, attn_mask=mask), plain(lambda s: s + TABLE))


def test_a_subclass_with_operations_of_its_own_is_refused():
    counting = TABLE.as_subclass(Counting)
    with pytest.raises(RuntimeError, match=r"type Counting.*as_subclass\(torch.Tensor\)"):
        flex_attention(*tensors(), lambda s, b, h, q, kv: s + counting[kv])


@pytest.mark.parametrize(
    "score_mod",
    [
        lambda s, b, h, q, kv: s.as_subclass(torch.Tensor) * 2,
        lambda s, b, h, q, kv: (2 * q).as_subclass(Named) + s,
        lambda s, b, h, q, kv: s * SLOPES.as_subclass(torch.Tensor)[h],
        lambda s, b, h, q, kv: s * SLOPES.exp().as_subclass(Named)[h],
    ],
    ids=["score", "computed", "captured", "computed from captured"],
)
def test_other_objects_of_known_tensors_are_refused(score_mod):
    """They have no modes, and no gradient: such a score was a constant, such a parameter learnt nothing."""
    with pytest.raises(RuntimeError, match=r"as_subclass\(\).*does not know.*outside of the mod"):
        flex_attention(*tensors(), score_mod)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_module_is_refused():
    scripted = torch.jit.script(torch.nn.Linear(1, 1))
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(NotImplementedError, match="torch.jit.script returned .Linear.*capture the module itself"):
        flex_attention(q, q, q, lambda score, b, h, i, j: scripted(score.reshape(1))[0])


def test_a_captured_float64_tensor_is_read_as_float32_with_a_warning(monkeypatch):
    warned = []
    monkeypatch.setattr("flashlift.torch._trace.recording.warn_once", lambda name, text, *_: warned.append(text))
    wide = TABLE.double()
    close(flex_attention(*tensors(), lambda s, b, h, q, kv: s + wide[kv]), plain(lambda s: s + TABLE))
    assert len(warned) == 1 and "float64" in warned[0]
    flex_attention(*tensors(), lambda s, b, h, q, kv: s + TABLE[kv] * 0.5)
    assert len(warned) == 1


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ["floor_divide", "remainder", "item of a vector", "numbers of both"])
def test_division_by_a_captured_integer(name, compiles):
    four, table = torch.tensor(4), torch.tensor([4, 5])
    score_mod, change = {
        "floor_divide": (lambda s, b, h, q, kv: s + q // four, lambda s: s + Q // 4),
        "remainder": (lambda s, b, h, q, kv: s + torch.remainder(q, four * 2), lambda s: s + Q % 8),
        "item of a vector": (lambda s, b, h, q, kv: s + q % table[1], lambda s: s + Q % 5),
        "numbers of both": (lambda s, b, h, q, kv: s + (table // four)[h % 2] * kv, lambda s: s + KV),
    }[name]
    attend = torch.compile(flex_attention, backend="aot_eager", fullgraph=True) if compiles else flex_attention
    close(attend(*tensors(), score_mod), plain(change))


NUMBERS = [torch.tensor([1.0, -2, 3, -4, -5, 6]), torch.tensor([-1.0, 2, 3, 4, 5, 6])]


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "term",
    [
        lambda x, kv: x[x > 0].sum() * kv,
        lambda x, kv: torch.bincount(x.long().abs())[kv % 3],
        lambda x, kv: x[x > 0][-1] * kv,
        lambda x, kv: x[x < 0].max() * kv,
        lambda x, kv: torch.unique(x)[kv % 2],
        lambda x, kv: x.masked_select(x > 0).view(-1, 1).expand(-1, 2)[kv % 3, 1],
        lambda x, kv: (x[torch.arange(6) < 3] * kv.unsqueeze(-1)).sum(-1),
    ],
    ids=["select", "bincount", "last", "largest", "unique", "view", "constant mask"],
)
def test_tensors_whose_sizes_depend_on_content(term, compiles):
    def attend(q, k, v, numbers):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + term(numbers, j))

    attend = torch.compile(attend, backend="aot_eager", fullgraph=True) if compiles else attend
    for numbers in NUMBERS:
        close(attend(*tensors(), numbers), plain(lambda s, numbers=numbers: s + term(numbers, KV)))


@pytest.mark.parametrize(
    "term",
    [
        lambda x, kv: x[x > 0].shape[0] * kv,
        lambda x, kv: torch.unique(x.sign()).numel() * kv,
        lambda x, kv: x[kv % len((x > 0).nonzero())],
        lambda x, kv: (x[x > 0] > kv.unsqueeze(-1)).sum(-1),
    ],
    ids=["shape", "numel", "len", "reduction"],
)
def test_sizes_that_depend_on_content(term):
    def attend(q, k, v, numbers):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + term(numbers, j))

    for numbers in (*NUMBERS, NUMBERS[1].abs()):
        close(attend(*tensors(), numbers), plain(lambda s, numbers=numbers: s + term(numbers, KV)))
    with pytest.raises(Exception, match="a size that the content of a captured tensor determines"):
        torch.compile(attend, backend="aot_eager", fullgraph=True)(*tensors(), NUMBERS[0])


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "table",
    [
        lambda: torch.where(TABLE > 0, TABLE, torch.tensor(0.5)),
        lambda: TABLE * torch.arange(20),
        lambda: torch.cat([TABLE, torch.zeros(3)]),
        lambda: TABLE[torch.arange(19, -1, -1)],
    ],
    ids=["where", "product", "cat", "index"],
)
def test_tensors_that_a_mod_makes_beside_captured_ones(table, compiles):
    attend = torch.compile(flex_attention, backend="aot_eager", fullgraph=True) if compiles else flex_attention
    wanted = table()[:20]
    close(attend(*tensors(), lambda s, b, h, q, kv: s + table()[kv]), plain(lambda s: s + wanted))


OF_NUMBERS = {
    "sum that wraps": lambda n: torch.tensor(100, dtype=torch.uint8) + n,
    "product that wraps": lambda n: torch.tensor(100, dtype=torch.int8) * n,
    "rounded product": lambda n: torch.tensor(3.0, dtype=torch.float16) * (n + 0.0017),
    "rounded sum": lambda n: torch.tensor(2.0**24) + n - 2.0**24,
    "quotient": lambda n: torch.tensor(7) // n,
    "comparison": lambda n: torch.tensor(201, dtype=torch.uint8) == n + 256,
    "choice": lambda n: torch.where(torch.tensor(True), n, 2.0),
}


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_tensors_that_a_mod_makes_beside_numbers_that_change(name, compiles):
    """A number takes the tensor's type, also where it is an argument of the program."""
    attend = torch.compile(flex_attention, backend="aot_eager", fullgraph=True) if compiles else flex_attention
    of_number = OF_NUMBERS[name]
    for number in (3, 200, 201, 5, 255):
        wanted = of_number(number) * 0.01 * KV
        close(
            attend(*tensors(), lambda s, b, h, q, kv, n=number: s + of_number(n) * 0.01 * kv),
            plain(lambda s: s + wanted),
        )


def change_in_place(name, x, d):
    if name == "//=":
        d //= 2
    elif name == "x //=":
        x //= 2
    elif name == "**=":
        d **= 2
    elif name == "<<=":
        d <<= 1
    elif name == ">>=":
        d >>= 1
    elif name == "nan_to_num_":
        x.nan_to_num_(1.0)
    elif name == "fill_":
        d.fill_(3)
    elif name == "zero_":
        d.zero_()
    elif name == "copy_":
        x.copy_(d)
    return x, d


@pytest.mark.parametrize("name", ["//=", "x //=", "**=", "<<=", ">>=", "nan_to_num_", "fill_", "zero_", "copy_"])
def test_operations_in_place_on_a_mods_own_scalars(name):
    def score_mod(s, b, h, q, kv):
        x, d = change_in_place(name, s.clone(), q - kv + 0)
        return s + x + d * 0.1

    def change(s):
        x, d = change_in_place(name, s.clone(), (Q - KV + 0).expand(1, 4, 20, 20).clone())
        return s + x + d * 0.1

    close(flex_attention(*tensors(), score_mod), plain(change))


def of_a_view(s):
    y = s.view_as(s)
    y.mul_(2)
    return s


def through_a_view(s):
    y = s.squeeze()[...]
    s += s
    return y


def of_a_copy(s):
    y = s.to(torch.float32, copy=True)
    y.mul_(2)
    return s + y


def of_another_type(s):
    y = s.to(torch.int32)
    y += 3
    return s + y


@pytest.mark.parametrize("change", [of_a_view, through_a_view, of_a_copy, of_another_type])
def test_operations_in_place_change_what_shares_memory(change):
    want = plain(lambda s: change(s.clone()))
    close(flex_attention(*tensors(), lambda s, b, h, q, kv: change(s)), want)


def of_a_detached_scalar(s):
    y = s.detach()
    y += 1
    return s


def of_an_element(s):
    both = torch.stack([s, -s])
    both[0] *= 2
    return both.sum()


def of_what_was_expanded(s):
    both = s.expand(2)
    s.mul_(3)
    return both.sum()


def into_an_output(s):
    return torch.mul(s, 2, out=torch.empty(()))


def without_its_gradient(s):
    with torch.no_grad():
        s.mul_(2)
    return s


def of_a_number_without_gradient(s):
    with torch.no_grad():
        y = s * 1
        y.mul_(2)
    return s + y


def test_operations_in_place_without_gradients():
    q, k, v = (one.requires_grad_() for one in tensors())
    fused = flex_attention(q, k, v, lambda s, b, h, i, j: of_a_number_without_gradient(s))
    scores = q @ k.mT / 4
    unfused = (scores + (2 * scores).detach()).softmax(-1) @ v
    found, wanted = (torch.autograd.grad(out.sin().sum(), (q, k, v)) for out in (fused, unfused))
    close(found, wanted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_its_gradient, "a value, but not its gradient"),
        (of_a_detached_scalar, "shares its memory"),
        (of_an_element, "shares its memory"),
        (of_what_was_expanded, "shares its memory"),
        (into_an_output, "writes into out="),
    ],
)
def test_operations_in_place_that_a_trace_cannot_follow(change, words):
    with pytest.raises(NotImplementedError, match=words):
        flex_attention(*tensors(), lambda s, b, h, q, kv: change(s))


def test_an_exported_model_slices_what_a_mod_captures():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = torch.nn.Parameter(torch.ones(()))

        def forward(self, q, k, v, bias):
            return flex_attention(q * self.gain, k, v, lambda s, b, h, i, j: s + bias[:, 0][i] + bias.t()[i, j])

    q, k, v = tensors()
    bias = torch.randn(20, 20)
    exported = torch.export.export(Model(), (q, k, v, bias)).module()
    close(exported(q, k, v, bias), plain(lambda s: s + bias[:, :1] + bias.T))


def test_a_graph_of_open_sizes_has_what_a_mod_captures():
    def attend(q, k, v, bias):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[j])

    q, k, v = tensors()
    graph = make_fx(attend, tracing_mode="symbolic")(q, k, v, TABLE)
    close(graph(q, k, v, TABLE * 2), plain(lambda s: s + TABLE * 2))


def test_an_export_of_any_length_makes_no_length_a_constant():
    class Model(torch.nn.Module):
        def __init__(self, reads_itself):
            super().__init__()
            self.reads_itself = reads_itself

        def forward(self, q, k, v):
            length = q.shape[2]
            if self.reads_itself:
                return flex_attention(q, k, v, lambda s, b, h, i, j: s * q.shape[2] * 0.1)
            return flex_attention(q, k, v, lambda s, b, h, i, j: s * length * 0.1)

    shapes = ({2: torch.export.Dim("length", min=2, max=64)},) * 3
    with pytest.raises(torch._dynamo.exc.UserError, match="Constraints violated"):
        torch.export.export(Model(True), tuple(tensors()), dynamic_shapes=shapes, strict=True)
    exported = torch.export.export(Model(False), tuple(tensors()), dynamic_shapes=shapes, strict=True).module()
    close(exported(*tensors()), plain(lambda s: s * 2))
    shorter = [one[:, :, :7] for one in tensors()]
    close(exported(*shorter), Model(False)(*shorter))


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_of_any_size_makes_no_size_of_a_captured_tensor_a_constant(strict):
    class Model(torch.nn.Module):
        def forward(self, q, documents):
            return flex_attention(q, q, q, mask_mod=lambda b, h, i, j: documents[b, i] == documents[b, j])

    q, documents = torch.randn(2, 4, 20, 16), (torch.arange(20) // 6).expand(2, -1)
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=64)
    shapes = ({0: batch, 2: length}, {0: batch, 1: length})
    exported = torch.export.export(Model(), (q, documents), dynamic_shapes=shapes, strict=strict).module()
    for given in ((q, documents), (q[:1, :, :9], documents[:1, :9])):
        close(exported(*given), Model()(*given))
