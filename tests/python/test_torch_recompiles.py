"""What compiles nothing: other tensors, other lengths, other numbers in the same mod."""

import collections
import enum
import functools

import pytest
import torch
import torch_mods
from flashlift.torch import _mods, _native, flex_attention
from test_torch_flex import assert_matches
from torch.nn.attention.flex_attention import create_block_mask, or_masks


@pytest.fixture
def compiled():
    """How many kernels were compiled since the test began."""
    _native._compiled.cache_clear()
    _mods._families.clear()
    return lambda: _native._compiled.cache_info().misses


def tensors(length=60):
    return torch.randn(3, 2, 4, length, 16, generator=torch.Generator().manual_seed(1))


def softcap(cap):
    return lambda score, b, h, q, kv: cap * torch.tanh(score / cap)


def first_keys(count):
    """A mod that needs its number as a number."""

    def mask(b, h, q, kv):
        kept = q >= kv
        for i in range(count):
            kept = kept | (kv == i)
        return kept

    return mask


def derived(window, factor, gain):
    """Numbers in arithmetic among themselves, with captured tensors, and with traced scalars."""
    table = torch.arange(60.0)

    def mod(score, b, h, q, kv):
        near = (window * 3 - 1) * (q % window) * 0.001
        return score * factor + (table * gain)[kv] - window // 2 * 0.01 + near

    return mod


def within(b, h, q, kv, *, distance):
    return (q - kv).abs() < distance


class Window:
    """A mask whose number is an attribute, of it or of what it holds."""

    def __init__(self, size, inner=None):
        self.size = size
        self.inner = inner

    def __call__(self, b, h, q, kv):
        near = (q - kv).abs() < self.size
        return near if self.inner is None else near | self.inner.mask(b, h, q, kv)

    def mask(self, b, h, q, kv):
        return q - kv > self.size * 2


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
        (lambda w: (Scaled(w / 8).score_mod, None), range(1, 9), 2),
        (lambda n: (None, first_keys(n)), range(1, 5), 4),
        (lambda p: (lambda score, b, h, q, kv: score.abs() ** p, None), [1, 2, 0.5, 1.5], 4),
    ],
    ids=[
        *("window", "nested", "softcap", "or_masks", "partial", "derived"),
        *("object", "method", "object_in_object", "module", "loop", "power"),
    ],
)
@torch.no_grad()
def test_numbers(compiled, make, values, most):
    for value in values:
        score_mod, mask_mod = make(value)
        assert_matches(*tensors(), score_mod, mask_mod)
    assert compiled() <= most


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
    """What it holds is not read by name."""

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
    """A tensor that comes from where nothing that the mod captures leads to."""
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
