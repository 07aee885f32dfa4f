"""Mods found again: which tensors a Python function captures, and its trace, kept for functions of the same structure.

Two functions have the same structure if they have the same code and captured equal things: tensors of the same shape and
type, functions of the same structure. A function of the same structure gives the same program, whatever object it is and
whatever its tensors hold.

Numbers become part of the program at first: a compiler makes more of a window of 256 than of a window that a call brings.
A number that turns out to differ from call to call is then made an argument, so that the hundredth window compiles
nothing. Where a mod needs it as a number, to count a loop or to shape a tensor, it stays what it was.

A function whose numbers were met before gets the trace that it got then. torch.utils.checkpoint runs a forward pass again
in the backward pass, and it has to save the same tensors: those that the program reads.
"""

import contextvars
import enum
import functools
import inspect
import math
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch.nn.attention import flex_attention as _torch_flex

from flashlift.torch._trace import Trace, as_tensor, trace

_CAPACITY = 1024  # structures
_VARIANTS = 64  # traces of one structure that differ in numbers
_CHOICES = 4096  # numbers of one structure whose trace is remembered
_MAX_ITEMS = 1024  # of one captured list or dictionary

_EXACT = (bool, complex, str, bytes, type(None), torch.dtype, torch.device)
_WRAPPER = getattr(_torch_flex, "_MaskModWrapper", None)  # what PyTorch may put around the mask_mod of a BlockMask
_lock = threading.Lock()


class _Family:
    """The traces of functions that differ at most in their numbers."""

    def __init__(self) -> None:
        self.varying: frozenset[int] = frozenset()  # the places of numbers that are arguments
        self.fixed: frozenset[int] = frozenset()  # places of numbers that cannot be
        self.latest: tuple[Hashable, ...] | None = None
        self.traces: OrderedDict[Hashable, Trace] = OrderedDict()
        # By all numbers of a function: its trace, and which of its numbers are arguments of that.
        self.choices: OrderedDict[Hashable, tuple[Trace, frozenset[int]]] = OrderedDict()

    def choose(self, values: Hashable, found: Trace, varying: frozenset[int]) -> tuple[Trace, frozenset[int]]:
        """Remembers the trace for these numbers. Where another thread was first, its trace is the one."""
        chosen = self.choices.setdefault(values, (found, varying))
        self.choices.move_to_end(values)
        if len(self.choices) > _CHOICES:
            self.choices.popitem(last=False)
        return chosen


_families: OrderedDict[Hashable, _Family] = OrderedDict()
# Keys of mods that read tensors which a walk by names does not find, such as the weights of a module that they call.
_walked_wholly: OrderedDict[Hashable, None] = OrderedDict()


class Leaves(NamedTuple):
    """What one function captures, as far as its program reads it."""

    tensors: list[torch.Tensor]
    numbers: list[int | float] = []


def traced(mod: Callable, kind: str) -> tuple[Trace, Leaves]:
    """The trace of a mod, and the tensors and numbers that this very function captures."""
    walk, structure = _walked(mod)
    key = (kind, structure)
    if key in _walked_wholly:
        walk, structure = _walked(mod, wholly=True)
        return _traced(mod, kind, walk, ("wholly", kind, structure))
    found, leaves = _traced(mod, kind, walk, key)
    if not found.reads_unknown:
        return found, leaves
    with _lock:
        _families.pop(key, None)
        _walked_wholly[key] = None
        if len(_walked_wholly) > _CAPACITY:
            _walked_wholly.popitem(last=False)
    return traced(mod, kind)


def _walked(mod: Callable, wholly: bool = False) -> tuple["_Walk", Hashable]:
    """A walk, and the structure that it found. An object may be handed to any function that is met, so that what any of
    them names counts for all objects."""
    names: frozenset[str] = frozenset()
    while True:
        walk = _Walk(wholly, names)
        structure = walk.of(mod, frozenset())
        if walk.names_of_all is None or walk.met <= walk.names_of_all:
            return walk, structure
        names |= walk.met


def _traced(mod: Callable, kind: str, walk: "_Walk", key: Hashable) -> tuple[Trace, Leaves]:
    # 0.0 and -0.0 are equal, and False == 0: zeros go by what they are written as.
    values = tuple([one or repr(one) for one in walk.numbers])
    with _lock:
        family = _families.get(key)
        if family is None:
            family = _families[key] = _Family()
            if len(_families) > _CAPACITY:
                _families.popitem(last=False)
        else:
            _families.move_to_end(key)
        varying = family.varying
        chosen = family.choices.get(values)
        found = chosen[0] if chosen else family.traces.get(_variant(values, varying))
        if found is not None:
            found, varying = family.choose(values, found, varying)
            return found, _leaves(walk, varying)
        if family.latest is not None and values:
            varying |= {i for i, one in enumerate(values) if one != family.latest[i]} - family.fixed
    made = None
    if varying:
        made = _trace_with_arguments(mod, kind, walk, varying)
        if made is None:
            with _lock:
                family.fixed |= varying
                family.varying = frozenset()
            varying = frozenset()
    made = made or trace(mod, kind, walk.tensors)
    if made.reads_unknown:  # tensors that nothing leads to are this call's alone
        return made, _leaves(walk, varying)
    with _lock:
        family.varying, family.latest = varying, values
        family.traces[_variant(values, varying)] = made
        if len(family.traces) > _VARIANTS:
            family.traces.popitem(last=False)
        made, varying = family.choose(values, made, varying)
    return made, _leaves(walk, varying)


def _variant(values: tuple[Hashable, ...], varying: frozenset[int]) -> Hashable:
    return (varying, *(one for i, one in enumerate(values) if i not in varying)) if varying else values


def _leaves(walk: "_Walk", varying: frozenset[int]) -> Leaves:
    return Leaves(walk.tensors, [walk.numbers[i] for i in sorted(varying)] if varying else [])


def _trace_with_arguments(mod: Callable, kind: str, walk: "_Walk", varying: frozenset[int]) -> Trace | None:
    """The trace of a copy of the mod in which some numbers are arguments, or None if it needs them as numbers."""
    with torch._C._DisableFuncTorch():
        numbers = {i: as_tensor(walk.numbers[i]) for i in sorted(varying)}
    try:
        copy = _Copy(numbers, walk).of(mod)
        return trace(copy, kind, walk.tensors, numbers=list(numbers.values()))
    except Exception:  # noqa: BLE001 - whatever the mod raised, it will tell with its own numbers if it is at fault
        return None


class _Identity:
    """Something that is only equal to itself, kept alive so that its identity is not used twice."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> frozenset[str]:
    """The names of globals and attributes that a function reads, those of functions inside it included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return frozenset(names)


def _globals_read(function: types.FunctionType) -> list[str]:
    """Those that _Copy copies too: modules are not among them."""
    globals_ = function.__globals__
    return [
        name
        for name in _sorted_names_in(function.__code__)
        if name in globals_ and not isinstance(globals_[name], types.ModuleType)
    ]


def _modules_read(function: types.FunctionType) -> list[types.ModuleType]:
    """Modules whose content may change: a program's own, imported inside the function or before it."""
    globals_ = function.__globals__
    names = _sorted_names_in(function.__code__)
    found = [globals_[name] if name in globals_ else sys.modules.get(name) for name in names]
    return [one for one in found if isinstance(one, types.ModuleType) and not _is_librarys(one.__name__)]


@functools.lru_cache(maxsize=4096)
def _is_librarys(module: str) -> bool:
    top = module.split(".", 1)[0]
    return top in sys.stdlib_module_names or top in ("torch", "numpy", "flashlift")


@functools.lru_cache(maxsize=4096)
def _sorted_names_in(code: types.CodeType) -> tuple[str, ...]:
    return tuple(sorted(_names_in(code)))


def _is_torchs_own(function: types.FunctionType) -> bool:
    module = function.__module__
    return module is not None and module.split(".", 1)[0] == "torch" and not function.__code__.co_freevars


class _Walk:
    """One pass over all that a function captures. Of objects, only attributes that a function names are looked at,
    unless it goes wholly."""

    def __init__(self, wholly: bool = False, names: frozenset[str] = frozenset()) -> None:
        self.met: set[str] = set()  # what the functions name that were met
        # Those that every object was looked at for; None without objects.
        self.names_of_all: frozenset[str] | None = None
        self._names = names
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[int | float] = []  # those that may become arguments
        self.fields: dict[int, list[str]] = {}  # of each object, by its identity: the attributes that were looked at
        self._wholly = wholly
        self._places: dict[int, int] = {}
        self._open: set[int] = set()
        self._in_fixed = 0

    def of(self, value: Any, names: frozenset[str]) -> Hashable:
        kind = type(value)
        if kind is int or kind is float:
            if self._in_fixed or not _may_be_argument(value):
                return (kind, repr(value))
            self.numbers.append(value)
            return kind
        if kind in _EXACT:
            return (kind, value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if id(value) in self._open:  # a function that refers to itself
            return "again"
        self._open.add(id(value))
        try:
            return self._composite(value, names)
        finally:
            self._open.discard(id(value))

    def _tensor(self, tensor: torch.Tensor) -> Hashable:
        place = self._places.get(id(tensor))
        if place is not None:
            return place
        self._places[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        return (tensor.dtype, tensor.shape, tensor.requires_grad)

    def _composite(self, value: Any, names: frozenset[str]) -> Hashable:
        kind = type(value)
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.MethodType:
            names = names | _names_in(value.__func__.__code__)
            return (self._function(value.__func__), self.of(value.__self__, names))
        if kind is functools.partial:
            parts = (value.func, value.args, value.keywords)
            return ("partial", *(self.of(part, names) for part in parts))
        if kind in (tuple, list) and len(value) <= _MAX_ITEMS:
            return (kind, *(self.of(item, names) for item in value))
        if kind is dict and len(value) <= _MAX_ITEMS:
            return (dict, *((self._fixed(key, names), self.of(item, names)) for key, item in value.items()))
        if kind is _WRAPPER:
            return self.of(value.fn, names)
        if isinstance(value, enum.Enum):
            return _Identity(value)
        if isinstance(value, (int, float, str, bytes)):
            return (kind, repr(value))
        if isinstance(value, (tuple, list, dict)) and len(value) <= _MAX_ITEMS:
            items = value.items() if isinstance(value, dict) else value
            return (kind, *(self._fixed(item, names) for item in items))
        if isinstance(value, type):
            return self._fixed(value, names, lambda one: self._class(one, names))
        if isinstance(value, types.ModuleType) and not _is_librarys(value.__name__):
            return self._fixed(value, names, lambda one: self._module(one, names))
        if isinstance(value, (types.ModuleType, types.BuiltinFunctionType)):
            return _Identity(value)
        if kind is contextvars.ContextVar:
            return self._fixed(value.get(None), names)
        if hasattr(value, "__dict__"):
            return self._object(value, names)
        slots = [name for base in kind.__mro__ for name in _slots_of(base) if hasattr(value, name)]
        if not slots:
            return _Identity(value)
        return (kind, *(self._fixed(getattr(value, name), names) for name in slots))

    def _fixed(self, value: Any, names: frozenset[str], visit: Callable | None = None) -> Hashable:
        """Of something that _Copy does not copy, so that its numbers cannot be arguments."""
        self._in_fixed += 1
        try:
            return visit(value) if visit else self.of(value, names)
        finally:
            self._in_fixed -= 1

    def _function(self, function: types.FunctionType) -> Hashable:
        code = function.__code__
        if _is_torchs_own(function):
            return code
        names = _names_in(code)
        self.met |= names
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(self.of(cell.cell_contents, names))
            except ValueError:  # not assigned yet
                cells.append("empty")
        globals_ = function.__globals__
        read = tuple([(name, self.of(globals_[name], names)) for name in _globals_read(function)])
        read += tuple([self.of(one, names) for one in _modules_read(function)])
        if not names.isdisjoint(_UNSEEN):
            read += (_Identity(object()),)
        defaults = function.__defaults__, function.__kwdefaults__
        return (code, *cells, read, *(None if one is None else self.of(one, names) for one in defaults))

    def _names_for_object(self, names: frozenset[str]) -> frozenset[str]:
        names |= self._names
        self.names_of_all = names if self.names_of_all is None else self.names_of_all & names
        return names

    def _module(self, module: types.ModuleType, names: frozenset[str]) -> Hashable:
        names = self._names_for_object(names)
        content = vars(module)
        return (module.__name__, *((name, self.of(content[name], names)) for name in sorted(names & content.keys())))

    def _class(self, value: type, names: frozenset[str]) -> Hashable:
        """What is read of a class itself; the methods of its instances are looked at with them."""
        if _is_librarys(value.__module__) or issubclass(value, enum.Enum):
            return _Identity(value)
        parts: list[Hashable] = [_Identity(value)]
        for name in sorted(self._names_for_object(names)):
            member = inspect.getattr_static(value, name, None)
            member = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            if member is not None and not inspect.isdatadescriptor(member):
                parts.append((name, self.of(member, names)))
        return tuple(parts)

    def _object(self, value: Any, names: frozenset[str]) -> Hashable:
        names = self._names_for_object(names)
        kind = type(value)
        call = getattr(kind, "__call__", None)  # noqa: B004 - its code, not whether there is one
        parts: list[Hashable] = [kind]
        if isinstance(call, types.FunctionType) and not isinstance(value, torch.nn.Module):
            parts.append(self._fixed(call, names, self._function))
            names = names | _names_in(call.__code__)
        if isinstance(value, torch.nn.Module):
            names = names | _names_in(kind.forward.__code__) if isinstance(kind.forward, types.FunctionType) else names
        # Methods and properties that are named may name further attributes.
        seen: set[str] = set()
        pending = set(names)
        while pending:
            name = pending.pop()
            seen.add(name)
            member = inspect.getattr_static(kind, name, None)
            member = member.fget if isinstance(member, property) else member
            member = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            if isinstance(member, types.FunctionType):
                module = member.__module__ or ""
                if module.split(".")[0] != "torch":
                    parts.append((name, self._fixed(member, names, self._function)))
                    pending |= _names_in(member.__code__) - seen
            elif isinstance(member, (int, float, *_EXACT)) and member is not None:
                parts.append((name, type(member), repr(member)))
        fields = _fields_of(value)
        wanted = frozenset((*seen, "__wrapped__"))  # that of functools.lru_cache
        by_any_name = self._wholly or seen & _REFLECTION or hasattr(_own(kind), "__getattr__")
        self.fields[id(value)] = sorted(fields.keys() if by_any_name else wanted & fields.keys())
        parts.extend((name, self.of(fields[name], wanted)) for name in self.fields[id(value)])
        return tuple(parts)


_UNSEEN = frozenset(("globals", "locals", "eval", "exec", "import_module"))  # what a function reads by these
_REFLECTION = frozenset(("getattr", "vars", "__dict__", "__getattribute__", "attrgetter"))


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _own(kind: type) -> type:
    """What a class of somebody's adds to torch.nn.Module, whose __getattr__ finds what _fields_of lists."""
    has_own = not issubclass(kind, torch.nn.Module) or kind.__getattr__ is not torch.nn.Module.__getattr__
    return kind if has_own else object


def _fields_of(value: Any) -> dict[str, Any]:
    fields = dict(vars(value))
    if isinstance(value, torch.nn.Module):
        fields |= value._parameters | value._buffers | value._modules
    return fields


def _may_be_argument(value: int | float) -> bool:
    """Numbers that a program's 32 bits hold. Infinities stay in the program: they mean that something is masked."""
    return -(2**31) <= value < 2**31 if type(value) is int else math.isfinite(value)


class _Copy:
    """Functions and objects with some of their numbers replaced, which are counted as the walk met them."""

    def __init__(self, numbers: dict[int, torch.Tensor], walk: _Walk) -> None:
        self._numbers = numbers
        self._fields = walk.fields
        self._next = 0
        self._open: set[int] = set()

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind is int or kind is float:
            if not _may_be_argument(value):
                return value
            self._next += 1
            return self._numbers.get(self._next - 1, value)
        if kind in _EXACT or isinstance(value, torch.Tensor) or id(value) in self._open:
            return value
        self._open.add(id(value))
        try:
            return self._composite(value, kind)
        finally:
            self._open.discard(id(value))

    def _composite(self, value: Any, kind: type) -> Any:
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.MethodType:
            function = self._function(value.__func__)
            return types.MethodType(function, self.of(value.__self__))
        if kind is functools.partial:
            parts = (value.func, value.args, value.keywords)
            func, args, keywords = (self.of(part) for part in parts)
            return functools.partial(func, *args, **keywords)
        if kind in (tuple, list) and len(value) <= _MAX_ITEMS:
            return kind([self.of(item) for item in value])
        if kind is dict and len(value) <= _MAX_ITEMS:
            return {key: self.of(item) for key, item in value.items()}
        if kind is _WRAPPER:
            return self.of(value.fn)
        if id(value) in self._fields and not isinstance(value, (int, float, str, bytes, tuple, list, dict)):
            return self._object(value)
        return value

    def _object(self, value: Any) -> Any:
        copy = object.__new__(type(value))
        copy.__dict__.update(vars(value))
        if isinstance(value, torch.nn.Module):
            copy.__dict__["_modules"] = dict(value._modules)
        fields = _fields_of(value)
        for name in self._fields[id(value)]:
            replaced = self.of(fields[name])
            if isinstance(value, torch.nn.Module) and name in value._modules:
                copy._modules[name] = replaced
            elif name in vars(value):
                copy.__dict__[name] = replaced
        return copy

    def _function(self, function: types.FunctionType) -> Callable:
        code = function.__code__
        if _is_torchs_own(function):
            return function
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(types.CellType(self.of(cell.cell_contents)))
            except ValueError:
                cells.append(cell)
        names = _globals_read(function)
        globals_ = dict(function.__globals__) | {name: self.of(function.__globals__[name]) for name in names}
        defaults, keyword_defaults = (
            None if one is None else self.of(one) for one in (function.__defaults__, function.__kwdefaults__)
        )
        copy = types.FunctionType(code, globals_, function.__name__, defaults, tuple(cells) or None)
        copy.__kwdefaults__ = keyword_defaults
        return copy
