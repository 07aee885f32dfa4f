"""Calls that compile nothing: other tensors, other lengths, other numbers in the same mod."""

import collections
import contextlib
import enum
import functools
import math

import pytest
import torch
import torch._dynamo.testing
import torch_mods
from flashlift.torch import flex_attention
from flashlift.torch._attention.flex_attention import _constant_scales
from flashlift.torch._mods import families
from flashlift.torch._run import kernels
from test_torch_flex import assert_matches, unfused
from torch.nn.attention.flex_attention import create_block_mask, or_masks


@pytest.fixture
def compiled():
    """The number of kernels compiled since the test began."""
    kernels.compiled.cache_clear()
    families._families.clear()
    _constant_scales.cache_clear()
    return lambda: kernels.compiled.cache_info().misses


def tensors(length=60):
    return torch.randn(3, 2, 4, length, 16, generator=torch.Generator().manual_seed(1))


def softcap(cap):
    return lambda score, b, h, q, kv: cap * torch.tanh(score / cap)


def first_keys(count):
    """A mod that needs the value of its number."""

    def mask(b, h, q, kv):
        kept = q >= kv
        for i in range(count):
            kept = kept | (kv == i)
        return kept

    return mask


def derived(window, factor, gain):
    """Numbers combined with each other, with captured tensors, and with traced scalars."""
    table = torch.arange(60.0)

    def mod(score, b, h, q, kv):
        near = (window * 3 - 1) * (q % window) * 0.001
        return score * factor + (table * gain)[kv] - window // 2 * 0.01 + near

    return mod


def within(b, h, q, kv, *, distance):
    return (q - kv).abs() < distance


class Window:
    """A mask whose number is an attribute, of the mask or of an object inside it."""

    def __init__(self, size, inner=None):
        self.size = size
        self.inner = inner

    def __call__(self, b, h, q, kv):
        near = (q - kv).abs() < self.size
        return near if self.inner is None else near | self.inner.mask(b, h, q, kv)

    def mask(self, b, h, q, kv):
        return q - kv > self.size * 2


def without_gradient(factor, extra=None):
    """A `with` statement, whose exceptions are not lost, and a comparison by identity with None."""

    def mod(score, b, h, q, kv):
        with torch.no_grad():
            gain = score * factor
        return gain if extra is None else gain + extra

    return mod


class Scaled(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.register_buffer("bias", torch.arange(4.0))

    def score_mod(self, score, b, h, q, kv):
        return score * self.factor + self.bias[h]


@pytest.mark.parametrize(
    "make, values, most",
    [
        (lambda w: (None, torch_mods.window(w)), range(1, 60, 3), 2),
        (lambda w: (None, torch_mods.causal_window(w)), range(1, 60, 6), 2),
        (lambda c: (softcap(c), None), [1.5, 2.5, 7.0, 9.0, 20.0, -3.0], 2),
        (lambda n: (None, or_masks(torch_mods.window(n), lambda b, h, q, kv: kv < n * 2)), range(1, 30, 5), 2),
        (lambda w: (None, functools.partial(within, distance=w)), range(1, 30, 5), 2),
        (lambda w: (derived(w, 0.5 / w, 0.1 * w), None), range(2, 12, 2), 2),
        (lambda w: (None, Window(w)), range(1, 30, 5), 2),
        (lambda w: (None, Window(w, Window(w + 5)).mask), range(1, 30, 5), 2),
        (lambda w: (None, Window(4, Window(w))), range(1, 30, 5), 2),
        (lambda w: (without_gradient(w / 8), None), range(1, 9), 2),
        (lambda w: (Scaled(w / 8).score_mod, None), range(1, 9), 2),
        (lambda n: (None, first_keys(n)), range(1, 5), 4),
        (lambda p: (lambda score, b, h, q, kv: score.abs() ** p, None), [1, 2, 0.5, 1.5], 4),
    ],
    ids=[
        *("window", "nested", "softcap", "or_masks", "partial", "derived"),
        *("object", "method", "object_in_object", "with", "module", "loop", "power"),
    ],
)
@torch.no_grad()
def test_numbers(compiled, make, values, most):
    for value in values:
        score_mod, mask_mod = make(value)
        assert_matches(*tensors(), score_mod, mask_mod)
    assert compiled() <= most


@torch.no_grad()
def test_zeros_of_both_signs():
    for number in (0.5, 0.25, 0.0, -0.0, 0.0, -0.0):
        assert_matches(*tensors(), lambda score, b, h, q, kv, x=number: score * (1 + torch.signbit((kv + 1.0) * x)))
    for number in (0j, complex(-0.0, 0.0)):
        assert_matches(*tensors(), lambda score, b, h, q, kv, x=number: score * math.copysign(1.0, x.real))


def by_class(number):
    def mod(score, b, h, q, kv):
        match number:
            case int():
                return score * number
            case _:
                return score - 1

    return mod


def by_exception(number):
    def mod(score, b, h, q, kv):
        try:
            factor = {2: 0.5, 11: 0.25}[number]
        except KeyError:
            factor = 1.5
        return score * factor

    return mod


def by_suppressed_exception(number):
    def mod(score, b, h, q, kv):
        with contextlib.suppress(Exception):
            score = score * math.sqrt(number)
        return score

    return mod


BY_DEFAULT = collections.defaultdict(lambda: 1.5, {2: 0.5, 11: 0.25})

# Dynamo may read these in its own way.
NUMBERS_OUTSIDE_OF_GRAPHS = {
    "exception": by_exception,
    "suppress": by_suppressed_exception,
    "root": lambda w: lambda s, b, h, q, kv: s * math.sqrt(w),
    "default": lambda w: lambda s, b, h, q, kv: s * BY_DEFAULT[w],
    "text": lambda w: lambda s, b, h, q, kv: s * len(str(w)),
    "format": lambda w: lambda s, b, h, q, kv: s * len(f"{w:2}{w!r}"),
    "identity": lambda w, held=7: lambda s, b, h, q, kv: s * (2 if w is held else 3),
    "set": lambda w: lambda s, b, h, q, kv: s * len({w, 7}),
    "booleans": lambda w: lambda s, b, h, q, kv: s * ((w > 4) + (w > 2)),
    "inverted": lambda w: lambda s, b, h, q, kv: s * ~(w > 4),
    "double": lambda w: lambda s, b, h, q, kv: s * (1 + (w / 7 * 7 == w)),
    "of_64_bits": lambda w: lambda s, b, h, q, kv: s * ((w << 62) % 5 + 1),
    "tensor": lambda w: lambda s, b, h, q, kv: s * (torch.as_tensor(w > 4) + torch.as_tensor(w > 2)),
}

NUMBERS_THAT_ARE_NONE = {
    "isinstance": lambda w: lambda s, b, h, q, kv: s * (0.5 if isinstance(w, int) else 3) + w,
    "contains": lambda w: lambda s, b, h, q, kv: s * (0.5 if w in {2, 11} else 1.5),
    "get": lambda w: lambda s, b, h, q, kv: s * {2: 0.5, 11: 0.25}.get(w, 1.5),
    "match": by_class,
    "fraction": lambda w: lambda s, b, h, q, kv: s * 2 ** (3 - w),
    "product": lambda w: lambda s, b, h, q, kv: s + (q * w * 999_983 + kv * w) % 97 / 97,
    "large": lambda w: lambda s, b, h, q, kv: s + (q * (w * 99_999_989) + kv) % 97 / 97,
    "integers": lambda w: lambda s, b, h, q, kv: s + ((q % 5 - 2) ** w) % 97 / 97,
}


@pytest.mark.parametrize(
    ("name", "in_graph"),
    # Dynamo does not read `match`.
    [
        (name, in_graph)
        for name in NUMBERS_THAT_ARE_NONE | NUMBERS_OUTSIDE_OF_GRAPHS
        for in_graph in (False, True)
        if not in_graph or name not in ("match", *NUMBERS_OUTSIDE_OF_GRAPHS)
    ],
)
@torch.no_grad()
def test_numbers_that_no_tensor_stands_for(name, in_graph):
    """Python's results from these numbers, or their size, differ from torch's results for a tensor."""
    torch._dynamo.reset()
    attend = torch.compile(by_function, fullgraph=True, backend="aot_eager") if in_graph else by_function
    for number in (2, 7, 11, 4, 5):
        score_mod = (NUMBERS_THAT_ARE_NONE | NUMBERS_OUTSIDE_OF_GRAPHS)[name](number)
        expected = unfused(*(one.double() for one in tensors()), score_mod)[0]
        torch.testing.assert_close(attend(*tensors(), score_mod).double(), expected, atol=1e-4, rtol=1e-4)


QUOTIENTS = {
    "computed": lambda w: lambda s, b, h, q, kv: s - (q - kv).abs() / (2 * w),
    "by_computed": lambda w: lambda s, b, h, q, kv: s + (2 * w) / (q + 1),
    "large": lambda w: lambda s, b, h, q, kv: s + kv / 2**31 * w * 1e9,
    "of_rows": lambda w: lambda s, b, h, q, kv: s + (torch.stack([q, kv]) / (w * 2**20))[0] * 1e6,
    "floor": lambda w: lambda s, b, h, q, kv: s + torch.div(q - kv, 2 * w, rounding_mode="floor"),
    "product": lambda w: lambda s, b, h, q, kv: s + kv * (w * 2**31) // 2**30,
}


@pytest.mark.parametrize("name", QUOTIENTS)
@torch.no_grad()
def test_quotients_of_integers(name):
    """True division gives fractions, also if a number is too large for 32 bits, or may be."""
    for number in (1, 2, 3, 7):
        assert_matches(*tensors(), QUOTIENTS[name](number))


def by_quotient(number):
    def mod(score, b, h, q, kv):
        return score + 1 / number + 8 % number + 0.5 // number

    return mod


@torch.no_grad()
def test_division_of_a_number_by_zero(compiled):
    """Python's error, whichever numbers came before, and also for the second number."""
    for numbers in ((1, 2, 0, 4, 5, 0, 7), (1, 0, 2)):
        families._families.clear()
        for number in numbers:
            if number:
                assert_matches(*tensors(), by_quotient(number))
                continue
            with pytest.raises(ZeroDivisionError):
                flex_attention(*tensors(), by_quotient(number))
    assert compiled() <= 3


def biased(table, bias):
    return lambda score, b, h, q, kv: score + table[q - kv] + bias[h, kv]


@torch.no_grad()
def test_lengths_tensors_and_block_masks(compiled):
    for length in range(20, 60, 4):
        q, k, v = tensors(length)
        score_mod = biased(torch.randn(2 * length), torch.randn(4, length))
        assert_matches(q, k, v, score_mod, torch_mods.causal_window(length // 2))
        mask = create_block_mask(torch_mods.window(length // 3), None, None, length, length, device="cpu")
        flex_attention(q, k, v, block_mask=mask)
    assert compiled() <= 4


class Mode(enum.IntEnum):
    GENTLE = 1
    STRONG = 5


class Bag:
    __slots__ = ("factor", "table")

    def __init__(self, factor):
        self.factor, self.table = factor, torch.full((4,), factor)


class Hidden:
    """Its content is not read by name."""

    def __init__(self, factor):
        self.factor = factor

    def by_string(self, score, b, h, q, kv):
        return score * getattr(self, "factor")  # noqa: B009

    def by_dictionary(self, score, b, h, q, kv):
        return score * vars(self)["factor"]


class Elsewhere(Hidden):
    def __getattr__(self, name):
        return self.__dict__["factor"]

    def unnamed(self, score, b, h, q, kv):
        return score * self.anything


def network(seed):
    torch.manual_seed(seed)
    layers = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    points = torch.linspace(0, 1, 60)[:, None].expand(60, 2)
    return lambda score, b, h, q, kv: score + layers(points[q] - points[kv])[h]


Named = collections.namedtuple("Named", "table")
KEPT = {}


def kept(factor):
    """A tensor that the mod cannot reach through anything that it captures."""
    find = functools.lru_cache(lambda name: KEPT[name])
    KEPT["table"] = torch.full((4,), float(factor))
    return lambda score, b, h, q, kv: score * find("table")[h]


@pytest.mark.parametrize(
    "make",
    [
        lambda i: lambda score, b, h, q, kv, mode=list(Mode)[i]: score * int(mode),
        lambda i: lambda score, b, h, q, kv, bag=Bag(i + 1.0): score * bag.factor + bag.table.exp()[h],
        lambda i: lambda score, b, h, q, kv, one=Named(torch.full((4,), i + 1.0)): score * one.table.exp()[h],
        lambda i: lambda score, b, h, q, kv, one=collections.OrderedDict(x=i + 1.0): score * one["x"],
        lambda i: Hidden(i + 1.0).by_string,
        lambda i: Hidden(i + 1.0).by_dictionary,
        lambda i: Elsewhere(i + 1.0).unnamed,
        network,
        kept,
    ],
    ids="enum slots namedtuple ordered_dict getattr vars own_getattr network cache".split(),
)
@torch.no_grad()
def test_another_object_is_another_mod(compiled, make):
    for i in range(2):
        assert_matches(*tensors(), make(i))


def scaled(q, k, v, scale):
    return flex_attention(q, k, v, torch_mods.alibi, scale=scale)


def capped(q, k, v, cap):
    return flex_attention(q, k, v, softcap(cap))


def by_function(q, k, v, score_mod):
    return flex_attention(q, k, v, score_mod)


def capped_in_window(q, k, v, cap, size):
    return flex_attention(q, k, v, softcap(cap * 2 + 1), mask_mod=torch_mods.causal_window(size))


def biased_by_table(q, k, v, gain):
    table = torch.arange(60.0)
    return flex_attention(q, k, v, lambda score, b, h, i, j: score + (table * gain)[j], scale=gain / 2)


def powered(q, k, v, power):
    return flex_attention(q, k, v, lambda score, b, h, i, j: score.abs() ** power)


class Layer(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.cap, self.size, self.scale = number, int(number * 10), number / 10

    def forward(self, q, k, v):
        def score_mod(score, b, h, i, j):
            return score * self.cap

        def mask_mod(b, h, i, j):
            return i - j < self.size

        return flex_attention(q, k, v, score_mod, mask_mod=mask_mod, scale=self.scale)


IN_GRAPHS = {
    "scale": (lambda: scaled, lambda x: (x,)),
    "argument": (lambda: capped, lambda x: (x,)),
    "closure": (lambda: by_function, lambda x: (softcap(x),)),
    "two": (lambda: capped_in_window, lambda x: (x, int(x * 64))),
    "table": (lambda: biased_by_table, lambda x: (x,)),
}


@functools.cache
def makes_constants_of_products():
    """Whether PyTorch compiles a graph again for each value of a float that it computes with."""
    torch._dynamo.reset()
    counted = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    graph = torch.compile(lambda x, cap: x * (cap * 2 + 1), backend=counted)
    for cap in (0.5, 0.75, 1.25, 1.5):
        graph(torch.ones(3), cap)
    torch._dynamo.reset()
    return counted.frame_count > 2


@pytest.fixture
def counted():
    torch._dynamo.reset()
    yield torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic, most", [(None, 2), (True, 1)])
@pytest.mark.parametrize("name", IN_GRAPHS)
@torch.no_grad()
def test_numbers_in_graphs(compiled, counted, name, dynamic, most):
    """Dynamo makes an argument of a number at its second value, or at once where it is asked to. Of a float that is
    computed with before a mod captures it older versions of PyTorch make a constant, in any graph."""
    makes_constants = name == "two" and makes_constants_of_products()
    count = 4 if makes_constants else 100
    make, arguments = IN_GRAPHS[name]
    attend = torch.compile(make(), fullgraph=True, backend=counted, dynamic=dynamic)
    results = [attend(*tensors(), *arguments(0.5 + i / 64)) for i in range(count)]
    if not makes_constants:
        assert counted.frame_count <= most
        assert compiled() <= most
    for i in {0, 1, 2, 57, 99} & set(range(count)):
        expected = make()(*tensors(), *arguments(0.5 + i / 64))
        torch.testing.assert_close(results[i], expected, atol=1e-5, rtol=1e-5)


def read_by_layers(q, k, v, cap):
    return flex_attention(flex_attention(q, k, v, softcap(cap)), k, v, softcap(cap))


def read_by_both_mods(q, k, v, cap):
    return flex_attention(q, k, v, softcap(cap), mask_mod=lambda b, h, i, j: (i - j) * cap < 20)


def read_after_the_call(q, k, v, cap):
    return flex_attention(q, k, v, softcap(cap)) * cap


@pytest.mark.parametrize("dynamic, most", [(None, 2), (True, 1)])
@pytest.mark.parametrize("attend", [read_by_layers, read_by_both_mods, read_after_the_call])
def test_floats_that_several_graphs_read(counted, attend, dynamic, most):
    """Dynamo makes a float an argument where it is read first: in the graph of a mod, whose values no other graph
    sees."""
    in_graph = torch.compile(attend, fullgraph=True, backend=counted, dynamic=dynamic)
    for cap in (0.75, 1.5, 0.625):
        results = []
        for one in (in_graph, attend):
            given = [tensor.requires_grad_() for tensor in tensors()]
            out = one(*given, cap)
            results.append([out, *torch.autograd.grad(out.sin().sum(), given)])
        torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    assert counted.frame_count <= most


@pytest.mark.parametrize("dynamic, most", [(None, 2), (True, 1)])
@torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True)
@torch.no_grad()
def test_numbers_of_modules_in_graphs(compiled, counted, dynamic, most):
    layer = Layer(0.5)
    attend = torch.compile(layer, fullgraph=True, backend=counted, dynamic=dynamic)
    results = []
    for i in range(20):
        layer.__init__(0.5 + i / 10)
        results.append(attend(*tensors()))
    assert counted.frame_count <= most
    assert compiled() <= most
    for i in (0, 1, 7, 19):
        expected = Layer(0.5 + i / 10)(*tensors())
        torch.testing.assert_close(results[i], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("name", [*IN_GRAPHS, "power", "closure_power"])
def test_gradients_of_numbers_in_graphs(counted, name, dynamic):
    """Also if a number cannot be an argument, and if Dynamo must not make any."""
    others = {
        "power": (lambda: powered, lambda x: (x * 2,)),
        "closure_power": (lambda: by_function, lambda x: (lambda score, b, h, i, j: score.abs() ** (x * 2),)),
    }
    make, arguments = (IN_GRAPHS | others)[name]
    attend = torch.compile(make(), fullgraph=True, backend=counted, dynamic=dynamic)
    for number in (0.75, 1.5, 0.625):
        gradients = []
        for one in (attend, make()):
            given = [one.requires_grad_() for one in tensors()]
            out = one(*given, *arguments(number))
            gradients.append([out, *torch.autograd.grad(out.sin().sum(), given)])
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_scales(compiled):
    """Some scales are constants of their kernels; further ones are an argument of one kernel."""
    q, k, v = tensors()
    for i in range(100):
        scale = 0.1 + i / 64
        out = flex_attention(q, k, v, torch_mods.alibi, scale=scale)
        if i % 20 == 7:
            expected = flex_attention(q * scale, k, v, torch_mods.alibi, scale=1.0)
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    assert compiled() <= 11


@torch._dynamo.config.patch(capture_scalar_outputs=True)
@pytest.mark.parametrize("number", [torch.tensor(0.5), torch.tensor(2)], ids=["float", "integer"])
@torch.no_grad()
def test_numbers_that_a_graph_computes(counted, number):
    attend = torch.compile(lambda q, k, v, x: capped(q, k, v, x.item()), fullgraph=True, backend=counted)
    scale = torch.compile(lambda q, k, v, x: scaled(q, k, v, x.item()), fullgraph=True, backend=counted)
    by_tensor = torch.compile(scaled, fullgraph=True, backend=counted)
    for x in (number, number * 2):
        torch.testing.assert_close(attend(*tensors(), x), capped(*tensors(), x.item()), atol=1e-5, rtol=1e-5)
        expected = scaled(*tensors(), x.item())
        torch.testing.assert_close(scale(*tensors(), x), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(by_tensor(*tensors(), x), expected, atol=1e-5, rtol=1e-5)
    assert counted.frame_count == 3


def test_a_scale_with_a_gradient_is_refused():
    with pytest.raises(ValueError, match="multiply the query"):
        scaled(*tensors(), torch.tensor(0.5, requires_grad=True))
