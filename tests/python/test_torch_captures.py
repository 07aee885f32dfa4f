"""Places where mods keep the numbers and functions that they read: a trace must not be reused after these change."""

import array
import collections
import contextvars
import ctypes
import dataclasses
import enum
import functools
import inspect
import logging
import operator
import os
import random
import sys
import types

import numpy as np
import pytest
import torch
import torch.nn.attention.flex_attention as theirs
from flashlift.torch import flex_attention
from flashlift.torch._mods import families, walk
from test_torch_flex import unfused


@dataclasses.dataclass
class Plain:
    a: float


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: float


@dataclasses.dataclass(slots=True)
class Slotted:
    a: float


Pair = collections.namedtuple("Pair", "a b")


class Property:
    def __init__(self, a):
        self._hidden = a

    @property
    def a(self):
        return self._hidden


class Delegate:
    def __init__(self, a):
        self.content = {"a": a}

    def __getattr__(self, name):
        return self.__dict__["content"][name]


class Strict:
    # Raises other errors than AttributeError for a field that is not set.
    __slots__ = ("a", "unset")

    def __init__(self, a):
        self.a = a

    def __getattr__(self, name):
        raise ValueError(name)


class Callable:
    def __init__(self, a):
        self.inner = types.SimpleNamespace(factor=a)

    def factor(self):
        return self.inner.factor

    def __call__(self, score, b, h, q, kv):
        return score * self.factor()


class Constants(enum.Enum):
    HALF = 0.5
    TWO = 2.0


def attribute(holder):
    return lambda score, b, h, q, kv: score * holder.a


def item(holder, key=0):
    return lambda score, b, h, q, kv: score * holder[key]


def total(holder):
    return lambda score, b, h, q, kv: score * sum(holder)


def by_getter(holder, get):
    return lambda score, b, h, q, kv: score * get(holder)


def by_call(function):
    return lambda score, b, h, q, kv: score * function()


def scheduler(rate):
    made = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD([torch.zeros(1)], 1.0), 1.0)
    made._last_lr = [rate]
    return made


HOLDERS = {
    "dataclass": lambda x: attribute(Plain(x)),
    "frozen": lambda x: attribute(Frozen(x)),
    "slots": lambda x: attribute(Slotted(x)),
    "namedtuple": lambda x: attribute(Pair(x, 1)),
    "namespace": lambda x: attribute(types.SimpleNamespace(a=x)),
    "property": lambda x: attribute(Property(x)),
    "getattr": lambda x: attribute(Delegate(x)),
    "class": lambda x: attribute(type("Local", (), {"a": x})),
    "instance": lambda x: attribute(type("Local", (), {"a": x})()),
    "object": Callable,
    "bound": lambda x: Callable(x).__call__,
    "ordered": lambda x: item(collections.OrderedDict(a=x), "a"),
    "default": lambda x: item(collections.defaultdict(float, a=x), "a"),
    "deque": lambda x: item(collections.deque([x])),
    "array": lambda x: item(np.array([x])),
    "set": lambda x: total({x}),
    "getter": lambda x: by_getter(Plain(x), operator.attrgetter("a")),
    "helper": lambda x: by_getter(Plain(x), lambda one: one.a),
    "nested_helper": lambda x: by_getter([Plain(x)], lambda many: [one.a for one in many][0]),
    "vars": lambda x: by_getter(Plain(x), lambda one: vars(one)["a"]),
    "cached": lambda x: by_call(functools.lru_cache(lambda: x)),
    "strict": lambda x: attribute(Strict(x)),
    "c": lambda x: by_getter(ctypes.c_float(x), lambda one: one.value),
    "c_array": lambda x: item((ctypes.c_double * 2)(x, 1)),
    "iterator": lambda x: by_call(lambda: next(iter([x]))),
    "method_of_torch": lambda x: by_getter(scheduler(x), lambda one: one.get_last_lr()[0]),
    "partial": lambda x: functools.partial(functools.partial(lambda s, b, h, i, j, *, a, c: s * a + c, a=x), c=x),
}


def assert_right(score_mod):
    q, k, v = torch.randn(3, 1, 2, 20, 8)
    torch.testing.assert_close(flex_attention(q, k, v, score_mod), unfused(q, k, v, score_mod)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", HOLDERS)
@torch.no_grad()
def test_holders_of_a_number(name):
    for number in (0.5, 2.0, -1.25, 0.5):
        assert_right(HOLDERS[name](number))


@torch.no_grad()
def test_models_of_pydantic():
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    of_model = {"__annotations__": {"a": float}, "_hidden": pydantic.PrivateAttr(0.5), "twice": lambda self: 2 * self.a}
    inner = type("Inner", (pydantic.BaseModel,), {**of_model, "__module__": __name__})
    outer = type("Outer", (pydantic.BaseModel,), {"__annotations__": {"inner": inner}, "__module__": __name__})
    model = outer(inner=inner(a=0.5))
    for number in (0.5, 2.0, -1.25, 0.5):
        model.inner.a, model.inner._hidden = number, number + 1
        assert_right(lambda score, b, h, q, kv: score * model.inner.a + kv * model.inner._hidden + model.inner.twice())


class Ways:
    """Each class attribute leads to the next object by two ways."""

    def __init__(self, depth, a=None):
        self.a = a
        kind = type("Way", (Ways,), {"one": Ways(depth - 1), "other": None}) if depth else Ways
        if depth:
            kind.other = kind.one
        self.__class__ = kind

    def total(self):
        return self.a if self.a is not None else self.one.total() + self.other.total()


@torch.no_grad()
def test_what_many_ways_lead_to_is_visited_once():
    holder = Ways(40, 0.5)
    for number in (0.5, 2.0, 0.5):
        holder.a = number
        assert_right(lambda score, b, h, q, kv: score * holder.total())


class Part:
    def __init__(self, a):
        self.a = a


def read_a(score, part):
    return score * part.a


def read_b(score, part):
    return score * part.b


@torch.no_grad()
def test_a_second_call_walks_once(monkeypatch):
    walks = []

    class Counted(walk.Walk):
        def __init__(self, *given):
            walks.append(self)
            super().__init__(*given)

    monkeypatch.setattr(families, "Walk", Counted)
    part = Part(0.5)
    part.b = 1.5
    for reader, b in ((read_a, 1.5), (read_b, 1.5), (read_b, 2.5), (read_a, 0.25), (read_b, 0.25), (read_b, 0.5)):
        part.b = b
        walks.clear()
        assert_right(lambda score, b, h, q, kv, reader=reader: reader(score, part))
    assert len(walks) == 1


def test_a_mod_that_leads_to_very_much():
    owner = Part({i: [Part(i), Part(-i)] for i in range(700)})
    owner.bias, owner.factor = torch.nn.Parameter(torch.randn(20)), 0.5
    q, k, v = torch.randn(3, 1, 2, 20, 8)

    def mod(score, b, h, q, kv):
        return score * owner.a[3][0].a + owner.bias[kv] * owner.factor

    with pytest.raises(walk.TooLarge):
        walk.Walk().of(mod, frozenset())
    for number in (0.5, 2.0, -1.25):
        owner.a[3][0].a, owner.factor = number, number + 1
        out, expected = flex_attention(q, k, v, mod), unfused(q, k, v, mod)[0]
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        got, wanted = (torch.autograd.grad(one.square().sum(), owner.bias) for one in (out, expected))
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


class Vast:
    """Its method names a field that leads to very much, as those of a transformers configuration do."""

    kind = 0.5

    def __init__(self, inner=None):
        self.everything = {i: [Part(i), Part(-i)] for i in range(700)}
        self.inner, self.factor, self._hidden = inner, 0.5, 0.5
        self.bias = torch.nn.Parameter(torch.randn(20))

    def __len__(self):
        return len(self.everything)

    @property
    def computed(self):
        return self._hidden * 2

    @property
    def added(self):
        return self.bias + 1

    def method(self, score, b, h, q, kv):
        return score * self.inner.factor + (lambda: self.factor)()

    def __call__(self, score, b, h, q, kv):
        return score * self.inner.factor


class HeirOfVast(Vast):
    def method(self, score, b, h, q, kv):
        return super().method(score, b, h, q, kv) * self._hidden


VAST = Vast(HeirOfVast())
# A way to the number that changes, and whether the mod is traced once for each.
PATHS = {
    "path": (lambda s, b, h, q, kv: s * VAST.inner.factor, True),
    "inner_function": (lambda s, b, h, q, kv: (lambda: s * VAST.inner.factor)(), True),
    "property": (lambda s, b, h, q, kv: s * VAST.inner.computed, True),
    "class": (lambda s, b, h, q, kv: s * VAST.kind, True),
    "method": (VAST.method, True),
    "call": (VAST, True),
    "partial": (functools.partial(VAST.method), True),
    "tensor": (lambda s, b, h, q, kv: s * VAST.inner.factor + VAST.bias[kv] * VAST.bias.shape[0], True),
    "missing": (lambda s, b, h, q, kv: s * (VAST.inner.none.factor if h is None else VAST.inner.factor), True),
    "through": (lambda s, b, h, q, kv: attribute_of(s, VAST.inner.factor), True),
    "new_tensor": (lambda s, b, h, q, kv: s * VAST.factor + VAST.added[kv], False),
    "local": (lambda s, b, h, q, kv: [s * one.factor for one in [VAST.inner]][0], False),
    "super": (VAST.inner.method, False),
    "self": (lambda s, b, h, q, kv: attribute_of(s, VAST.method.__self__.factor), False),
}


def attribute_of(score, number):
    return score * number


def traces_of(monkeypatch):
    """A list that grows with each trace."""
    traces = []
    trace = families.trace
    monkeypatch.setattr(families, "trace", lambda *given, **rest: traces.append(given) or trace(*given, **rest))
    return traces


@pytest.mark.parametrize("name", PATHS)
def test_attributes_of_what_leads_to_very_much(name, monkeypatch):
    VAST.inner.inner = VAST
    mod, is_kept = PATHS[name]
    traces = traces_of(monkeypatch)
    for number in (0.5, 2.0, -1.25, 0.5, 2.0):
        VAST.factor, VAST.inner.factor, VAST.inner._hidden, VAST._hidden = number + 1, number, number, number
        Vast.kind = number
        VAST.bias = torch.nn.Parameter(torch.randn(20))
        assert_right(mod)
    assert (len(traces) == 3) == is_kept


class Restless(torch.nn.Linear):
    """All fields of such a module are visited, since torch's own functions may read them. One of them is a set."""

    def __init__(self):
        super().__init__(1, 1)
        self.kinds, self.factor = {1}, 0.5


RESTLESS, LOGGER = Restless(), logging.getLogger(__name__)


def logging_mod(score, b, h, q, kv):
    LOGGER.debug("traced")
    return score * RESTLESS.factor


@pytest.mark.parametrize("mod", [lambda s, b, h, q, kv: s * RESTLESS.factor, logging_mod], ids=["set", "logger"])
def test_what_changes_beside_the_paths_of_a_mod(mod, monkeypatch):
    traces = traces_of(monkeypatch)
    for number in (0.5, 2.0, -1.25, 0.5, 2.0):
        RESTLESS.factor = number
        assert_right(mod)
    assert len(traces) == 3


CONFIG_READERS = {
    "attribute": lambda config: config.sliding_window,
    "getattr": lambda config: getattr(config, "sliding_window", 3),
    "other_name": lambda config: [one.sliding_window for one in [config]][0],
    "method": lambda config: config.to_dict()["sliding_window"],
}


@pytest.mark.parametrize("name", CONFIG_READERS)
def test_configurations_of_transformers(name, monkeypatch):
    """They log, and compute what is read of them."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config, read = transformers.MistralConfig(), CONFIG_READERS[name]
    traces = traces_of(monkeypatch)
    for number in (4, 2, 7, 4, 2, 7, 4, 2):
        config.sliding_window = number
        assert_right(lambda score, b, h, q, kv: score * read(config))
    assert len(traces) <= 4  # one of them may fail: with the number as an argument


def test_caches_of_transformers():
    """Their methods read fields that the mod does not name."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    cache = transformers.DynamicCache()
    for _ in range(3):
        cache.update(*torch.randn(2, 1, 2, 3, 4), 0)
        assert_right(lambda score, b, h, q, kv: score * cache.get_seq_length())


UNSEEN = {
    "deque": lambda one: collections.deque([one]),
    "list": lambda one: [one] + [0] * walk.MAX_ITEMS,
}


@pytest.mark.parametrize("shape", [(), (20,)], ids=str)
@pytest.mark.parametrize("name", UNSEEN)
def test_tensors_where_no_walk_finds_them(name, shape):
    q, k, v = torch.randn(3, 1, 2, 20, 8)

    def attend(table, attend=flex_attention):
        hidden = UNSEEN[name](table)
        return attend(q, k, v, lambda score, b, h, i, j: score + (hidden[0] * 2).sum() * (score + j / 9))

    table = torch.randn(shape, requires_grad=True)
    for _ in range(3):
        out, expected = attend(table), attend(table, lambda *given: unfused(*given)[0])
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
        got, wanted = (torch.autograd.grad(one.square().sum(), table) for one in (out, expected))
        torch.testing.assert_close(got, wanted, atol=1e-3, rtol=1e-3)
    tables = torch.randn(3, *shape)
    torch.testing.assert_close(torch.vmap(attend)(tables), torch.stack([attend(one) for one in tables]))


def with_functions(functions):
    return lambda score, b, h, q, kv: functions[0](score)


def with_enum(constant):
    return lambda score, b, h, q, kv: score * constant.value


def with_list(tables):
    return lambda score, b, h, q, kv: score + sum(one[h] for one in tables)


def with_pair(first, second):
    return lambda score, b, h, q, kv: score * first[h] + second[h]


def by_what_is_known(table):
    return lambda score, b, h, q, kv: score * (len(table) + table.requires_grad) + table[h] / 3


@torch.no_grad()
def test_what_else_is_captured():
    for function in (torch.sin, torch.cos, torch.sin):
        assert_right(with_functions([function]))
    for constant in (*Constants, Constants.HALF):
        assert_right(with_enum(constant))
    for count in (1, 3, 2):
        assert_right(with_list([torch.randn(2) for _ in range(count)]))
    one, other = torch.randn(2, 2)
    for pair in ((one, one), (one, other), (other, other)):
        assert_right(with_pair(*pair))
    for table in (one, torch.randn(3), torch.tensor([1, 2]), torch.randn(2, requires_grad=True), one.half()):
        assert_right(by_what_is_known(table))


NUMBER = 0.5
NESTED = {"x": {"y": [0.5]}}
CONTEXT = contextvars.ContextVar("number", default=0.5)
STATE = types.SimpleNamespace(function=None)
SETTINGS = types.ModuleType("flashlift_test_settings")
sys.modules[SETTINGS.__name__] = SETTINGS


class Shared:
    number = 0.5

    @staticmethod
    def static(score, b, h, q, kv):
        return score * Shared.number

    @classmethod
    def of_class(cls, score, b, h, q, kv):
        return score * cls.number


class Derived(Shared):
    pass


class Meta(type):
    @property
    def computed(cls):
        return NUMBER

    def __getattr__(cls, name):
        return NUMBER

    def __len__(cls):
        return int(2 * NUMBER + 3)


class OfMeta(metaclass=Meta):
    pass


def imports(score, b, h, q, kv):
    import flashlift_test_settings

    return score * flashlift_test_settings.number


READERS = {
    "global": lambda s, b, h, q, kv: s * NUMBER,
    "nested": lambda s, b, h, q, kv: s * NESTED["x"]["y"][0],
    "class": lambda s, b, h, q, kv: s * Shared.number,
    "base": lambda s, b, h, q, kv: s * Derived.number,
    "metaclass": lambda s, b, h, q, kv: s * OfMeta.computed,
    "getattr_of_metaclass": lambda s, b, h, q, kv: s * OfMeta.unknown,
    "operator_of_metaclass": lambda s, b, h, q, kv: s * len(OfMeta),
    "static": Shared.static,
    "of_class": Derived.of_class,
    "context": lambda s, b, h, q, kv: s * CONTEXT.get(),
    "function": lambda s, b, h, q, kv: STATE.function(s),
    "module": lambda s, b, h, q, kv: s * SETTINGS.number,
    "imports": imports,
    "globals": lambda s, b, h, q, kv: s * globals()["NUMBER"],
    "eval": lambda s, b, h, q, kv: s * eval("NUMBER"),
    "modules": lambda s, b, h, q, kv: s * sys.modules[__name__].NUMBER,
    "frame": lambda s, b, h, q, kv: s * inspect.currentframe().f_globals["NUMBER"],
    "environ": lambda s, b, h, q, kv: s * float(os.environ["NUMBER"]),
    "getenv": lambda s, b, h, q, kv: s * float(os.getenv("NUMBER")),
}


@pytest.mark.parametrize("name", READERS)
@torch.no_grad()
def test_state_that_changes(name, monkeypatch):
    for number in (0.5, 2.0, -1.25, 0.5):
        monkeypatch.setitem(globals(), "NUMBER", number)
        monkeypatch.setitem(NESTED["x"], "y", [number])
        monkeypatch.setattr(Shared, "number", number)
        monkeypatch.setattr(SETTINGS, "number", number, raising=False)
        monkeypatch.setattr(STATE, "function", lambda score, factor=number: score * factor)
        monkeypatch.setenv("NUMBER", str(number))
        CONTEXT.set(number)
        assert_right(READERS[name])


@torch.no_grad()
def test_state_of_torch_that_changes(monkeypatch):
    table = torch.ones(2)

    def of_all(score, b, h, q, kv):
        has_gradient = table.grad is not None
        return score * (1 + has_gradient + 2 * torch.are_deterministic_algorithms_enabled() + table._version)

    for change in (
        lambda: None,
        lambda: table.mul_(2),
        lambda: setattr(table, "grad", torch.ones(2)),
        lambda: monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True),
    ):
        change()
        assert_right(of_all)


@torch.no_grad()
def test_numbers_that_are_drawn():
    """Each call draws its own, as where PyTorch runs the function."""
    random.seed(0)
    given = torch.randn(3, 1, 1, 8, 4)
    drawn = [flex_attention(*given, lambda s, b, h, q, kv: s * random.random()) for _ in range(3)]
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[1], drawn[2])


class Settings:
    def __init__(self):
        self._content = {"a": 0.5}

    def __getitem__(self, key):
        return self._content[key]

    def __len__(self):
        return round(4 * self._content["a"] + 8)

    def __rmul__(self, other):
        return other * self._content["a"]

    __mul__ = __rmul__


class Kept:
    __slots__ = ("a", "__private")

    def __init__(self):
        self.a = self.__private = 0.5

    def set(self, number):
        self.a = self.__private = number

    def __call__(self, score, b, h, q, kv):
        return score * self.a * self.__private


class Hidden(Kept):
    by_class = {"a": 0.5}

    def __call__(self, score, b, h, q, kv):
        return super().__call__(score, b, h, q, kv) * self.by_class["a"]


class Listed(enum.Enum):
    CONTENT = [0.5]


ARRAY = np.array([0.5])
SET = {0.5}
DEQUE = collections.deque([0.5])
LONG = [0.5] * 2000
BYTES = array.array("d", [0.5])
DICTIONARY = {"a": 0.5}
PROXY = types.MappingProxyType(DICTIONARY)
CHAIN = collections.ChainMap(DICTIONARY)
SETTINGS_OF_CLASS = Settings()
KEPT, HIDDEN = Kept(), Hidden()

CHANGED = {
    "array": (lambda x: ARRAY.fill(x), lambda s, b, h, q, kv: s * ARRAY[0].item()),
    "tensor_of_array": (lambda x: ARRAY.fill(x), lambda s, b, h, q, kv: s * torch.tensor(ARRAY)[h * 0]),
    "method": (lambda x: ARRAY.fill(x), functools.partial(lambda s, b, h, q, kv, get: s * get(0), get=ARRAY.item)),
    "set": (lambda x: (SET.clear(), SET.add(x)), lambda s, b, h, q, kv: s * sum(SET)),
    "deque": (DEQUE.append, lambda s, b, h, q, kv: s * DEQUE[-1]),
    "long": (lambda x: LONG.insert(0, x), lambda s, b, h, q, kv: s * LONG[0]),
    "bytes": (lambda x: BYTES.insert(0, x), lambda s, b, h, q, kv: s * BYTES[0]),
    "proxy": (lambda x: DICTIONARY.update(a=x), lambda s, b, h, q, kv: s * PROXY["a"]),
    "chain": (lambda x: DICTIONARY.update(a=x), lambda s, b, h, q, kv: s * CHAIN["a"]),
    "get": (
        lambda x: DICTIONARY.update(a=x),
        functools.partial(lambda s, b, h, q, kv, get: s * get("a"), get=DICTIONARY.get),
    ),
    "key": (lambda x: SETTINGS_OF_CLASS._content.update(a=x), lambda s, b, h, q, kv: s * SETTINGS_OF_CLASS["a"]),
    "length": (lambda x: SETTINGS_OF_CLASS._content.update(a=x), lambda s, b, h, q, kv: s * len(SETTINGS_OF_CLASS)),
    "product": (lambda x: SETTINGS_OF_CLASS._content.update(a=x), lambda s, b, h, q, kv: SETTINGS_OF_CLASS * s),
    "slots": (KEPT.set, KEPT),
    "slots_of_base": (HIDDEN.set, HIDDEN),
    "by_class": (lambda x: Hidden.by_class.update(a=x), HIDDEN),
    "enum": (lambda x: Listed.CONTENT.value.insert(0, x), lambda s, b, h, q, kv: s * Listed.CONTENT.value[0]),
}


@pytest.mark.parametrize("name", CHANGED)
@torch.no_grad()
def test_content_that_changes_in_place(name):
    change, score_mod = CHANGED[name]
    for number in (0.5, 2.0, -1.25, 0.5):
        change(number)
        assert_right(score_mod)


WIDE = torch.arange(97.0)
NARROW = torch.full((64,), 2**30, dtype=torch.int32)


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, i, j: torch.where((i * 100_000_000 + j) % 7 < 3, s, s - 2),
        lambda s, b, h, i, j: s + WIDE[(i * 60_000 * 60_000 + j) % 97] / 97,
        lambda s, b, h, i, j: s + WIDE[torch.maximum(-(i * 2**30), -(j // 8) - 80)] / 97,
        lambda s, b, h, i, j: s + ((i << 4) * 2**26 >> 28) * 0.01 + (i * 2**29 - j * 2**29).abs() / 2.0**34,
        lambda s, b, h, i, j: s + ((i << 30) + (1 << (j % 40)) + ((i + j) << j % 3)) / 2.0**40,
        lambda s, b, h, i, j: s + (i * 2**25 + j).to(torch.int8) * 0.01 + (i << 12).to(torch.int16) * 1e-4,
        lambda s, b, h, i, j: s + (j ** (2**33) % 1000 + j**65 % 100) / 1000,
        lambda s, b, h, i, j: s + torch.where(i > j, i * 2**30, j) // 2**28 * 0.01,
        lambda s, b, h, i, j: s + (torch.where(i < j, j, 2**40) + (i - j).masked_fill(i < j, -(2**40))) / 2.0**41,
        lambda s, b, h, i, j: s + ((i * 2**30).clamp(max=2**31) + (i - j).clamp(-(2**40), 2**33)) / 2.0**33,
        lambda s, b, h, i, j: s + (torch.full_like(i, 2**40) + torch.add(i, j, alpha=2**35)) / 2.0**41,
        lambda s, b, h, i, j: s + ((i * 2**28) ^ (j * 2**27)) / 2.0**34 + (i * 2**30).to(torch.int32) / 2.0**33,
        lambda s, b, h, i, j: s + (NARROW[i] * NARROW[j]) / 2.0**33 + (NARROW[i] + NARROW[j]) / 2.0**33,
    ],
    ids=[
        *("mod", "index", "from_the_end", "shifts", "left", "narrow", "powers", "where", "choices", "clamp"),
        *("filled", "bits", "captured"),
    ],
)
@torch.no_grad()
def test_coordinates_beyond_32_bits(mod):
    """PyTorch's coordinates have 64 bits in eager mode; integers that a mod captures keep their own type."""
    q, k, v = torch.randn(3, 1, 2, 64, 16, generator=torch.Generator().manual_seed(1)).unbind()
    torch.testing.assert_close(flex_attention(q, k, v, mod), theirs.flex_attention(q, k, v, mod), atol=2e-5, rtol=1e-4)


UNSIGNED = torch.tensor([0, 7, 255, 3, 9, 100, 200, 128], dtype=torch.uint8)
SIGNED = torch.tensor([0, -56, 127, 3, 9, -128, -1, 44], dtype=torch.int8)


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, i, j: s + (UNSIGNED[j % 8] == -1) + (SIGNED[j % 8] == 200) * 2 + (UNSIGNED[j % 8] > 300) * 3,
        lambda s, b, h, i, j: s + UNSIGNED[j % 8].clamp(-9, 9) * 0.1 + UNSIGNED[j % 8].clamp(min=-9) * 0.01,
        lambda s, b, h, i, j: s + (UNSIGNED[j % 8] // -4) * 0.1 + (SIGNED[j % 8] + 1000) * 0.01,
        lambda s, b, h, i, j: s + torch.where(i > j, UNSIGNED[j % 8], -1) * 0.01,
        lambda s, b, h, i, j: s + UNSIGNED[j % 8].masked_fill(i > j, -1) * 0.01,
    ],
    ids=["compared", "clamp", "arithmetic", "where", "masked_fill"],
)
@torch.no_grad()
def test_numbers_beyond_a_narrow_type(mod):
    """They wrap to the tensor's type."""
    q, k, v = torch.randn(3, 1, 2, 64, 16, generator=torch.Generator().manual_seed(1)).unbind()
    torch.testing.assert_close(flex_attention(q, k, v, mod), theirs.flex_attention(q, k, v, mod), atol=2e-5, rtol=1e-4)


class Leaf(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, score):
        return score * self.number


class Loop(torch.nn.Module):
    """Reads its children without their names."""

    def __init__(self, number, children):
        super().__init__()
        self.layers = torch.nn.Sequential(Leaf(number))
        self.get = children

    def forward(self, score):
        for one in self.get(self):
            score = one(score)
        return score


class OfGlobal(torch.nn.Module):
    def forward(self, score):
        return score * NUMBER


class Slope(torch.nn.LeakyReLU):
    def forward(self, score):
        return super().forward(score) * 2


def of_sequence(*modules):
    net = torch.nn.Sequential(*modules)
    return lambda s, b, h, q, kv: net(s)


def by_module(make):
    def made(x):
        one = make(x)
        return lambda s, b, h, q, kv: one(s)

    return made


def by_hook(register):
    def made(x):
        one = torch.nn.Identity()
        getattr(one, register)(lambda module, given, *out: (out or given)[0] * x)
        return lambda s, b, h, q, kv: one(s)

    return made


def by_list(x):
    layers = torch.nn.ModuleList([Leaf(1.5), Leaf(x)])
    return lambda s, b, h, q, kv: layers[1](layers[-2](s)) + len(layers)


def by_dictionary(x):
    layers = torch.nn.ModuleDict({"a": Leaf(x)})
    return lambda s, b, h, q, kv: layers["a"](s)


def by_order(x):
    """The same children in another order."""
    parts = [("twice", Leaf(2.0)), ("square", by_name(torch.square))]
    return of_sequence(collections.OrderedDict(parts if x > 0 else parts[::-1]))


def by_name(function):
    one = Leaf(1.0)
    one.forward = function
    return one


MODULES = {
    "sequential": lambda x: of_sequence(torch.nn.LeakyReLU(x)),
    "subclass": lambda x: of_sequence(Slope(x)),
    "nested": lambda x: of_sequence(torch.nn.Sequential(Leaf(x))),
    "list": by_list,
    "dict": by_dictionary,
    "order": by_order,
    "children": by_module(lambda x: Loop(x, lambda one: one.children())),
    "named_children": by_module(lambda x: Loop(x, lambda one: [module for _, module in one.named_children()])),
    "submodule": by_module(lambda x: Loop(x, lambda one: [one.get_submodule("layers.0")])),
    "own_modules": by_module(lambda x: Loop(x, lambda one: one._modules.values())),
    "forward": by_module(lambda x: by_name(lambda score: score * x)),
    "hook": by_hook("register_forward_hook"),
    "pre_hook": by_hook("register_forward_pre_hook"),
}


@pytest.mark.parametrize("name", MODULES)
@torch.no_grad()
def test_modules_that_a_mod_calls(name):
    for number in (0.5, 2.0, -1.25, 0.25, 0.5):
        assert_right(MODULES[name](number))


def test_what_changes_in_a_module(monkeypatch):
    q, k, v = torch.randn(3, 1, 2, 20, 8)
    module, dropout = OfGlobal(), torch.nn.Sequential(torch.nn.Dropout(0.5)).eval()
    for number in (0.5, 2.0, -1.25):
        monkeypatch.setitem(globals(), "NUMBER", number)
        assert_right(lambda s, b, h, i, j: module(s))
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, given, out: out * 3)
    try:
        assert_right(lambda s, b, h, i, j: module(s))
    finally:
        hook.remove()
    assert_right(lambda s, b, h, i, j: module(s))
    flex_attention(q, k, v, lambda s, b, h, i, j: dropout(s))
    dropout.train()
    with pytest.raises(NotImplementedError, match="draws random numbers"):
        flex_attention(q, k, v, lambda s, b, h, i, j: dropout(s))


class Node:
    pass


def with_parent(x):
    parent = Node()
    parent.number, parent.child = x, Node()
    parent.child.parent = parent
    return lambda s, b, h, q, kv: s * parent.child.parent.number


def with_itself(x, is_own=True):
    """Two ways back that lead to other objects."""
    parent, parent.number = (one := Node()), x
    parent.child = Node()
    parent.child.number = 7.0
    parent.child.back = parent.child if is_own else one
    return lambda s, b, h, q, kv: s * parent.child.back.number


def with_recursion(x):
    def power(score, count):
        return score if count == 0 else power(score * x, count - 1)

    return lambda s, b, h, q, kv: power(s, 3)


class Configured:
    def __init__(self, number):
        self.number = number

    def factor(self):
        return CONFIGURED.number

    def score_mod(self, score, b, h, q, kv):
        return score * self.factor()


CONFIGURED = Configured(0.5)


def with_global(x):
    CONFIGURED.number = x
    return CONFIGURED.score_mod


@pytest.mark.parametrize("make", [with_parent, with_recursion, with_global])
@torch.no_grad()
def test_what_refers_back_to_itself(make):
    for number in (0.5, 2.0, -1.25, 0.25, 3.0):
        assert_right(make(number))


@torch.no_grad()
def test_where_a_way_back_leads():
    for is_own in (True, False, True):
        assert_right(with_itself(2.0, is_own))


def with_size(score, b, h, q, kv):
    return score * with_size.size


PARTIAL = functools.partial(lambda s, b, h, q, kv: s * PARTIAL.number)
GETTER, CALLER = operator.attrgetter("x.number"), operator.methodcaller("factor")
HOLDER = types.SimpleNamespace(x=Configured(0.5))
DEFAULT = [contextvars.ContextVar("default", default=number) for number in (0.5, 2.0)]


@torch.no_grad()
def test_numbers_in_unusual_places():
    for number in (0.5, 2.0, -1.25, 0.25):
        with_size.size = PARTIAL.number = HOLDER.x.number = CONFIGURED.number = number
        assert_right(with_size)
        assert_right(PARTIAL)
        assert_right(lambda s, b, h, q, kv: with_size(s, b, h, q, kv))
        assert_right(lambda s, b, h, q, kv: s * GETTER(HOLDER))
        assert_right(lambda s, b, h, q, kv: s * CALLER(CONFIGURED))
    for variable in DEFAULT:
        assert_right(lambda s, b, h, q, kv, variable=variable: s * variable.get())


@torch.no_grad()
def test_what_else_is_known_of_a_tensor():
    square = torch.randn(3, 3)
    for table in (square, square.T, square.clone(), square[1:]):
        assert_right(lambda s, b, h, q, kv, table=table: s * (table.stride(0) + table.is_contiguous()))
        assert_right(lambda s, b, h, q, kv, table=table: s * (table.storage_offset() + 2))
    for table in (square, torch.nn.Parameter(square, requires_grad=False)):
        assert_right(lambda s, b, h, q, kv, table=table: s * (2 if isinstance(table, torch.nn.Parameter) else 3))
    for number in (0.5, 2.0, -1.25):
        square.number = number
        assert_right(lambda s, b, h, q, kv: s * square.number + square[0, 0])
