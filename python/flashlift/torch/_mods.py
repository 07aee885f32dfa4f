"""Mods found again: which tensors a Python function captures, and its trace, kept for functions of the same structure.

Two functions have the same structure if they have the same code and captured equal things: the same numbers, tensors of
the same shape and type, functions of the same structure. A function of the same structure gives the same program, whatever
object it is and whatever its tensors hold.
"""

import functools
import inspect
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch

from flashlift.torch._trace import Trace, trace

_CAPACITY = 1024
_MAX_ITEMS = 1024  # of one captured list or dictionary

_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_cache: OrderedDict[Hashable, Trace] = OrderedDict()
_lock = threading.Lock()


def traced(mod: Callable, kind: str) -> tuple[Trace, list[torch.Tensor]]:
    """The trace of a mod, and the tensors that this very function captures."""
    walk = _Walk()
    key = (kind, walk.of(mod, frozenset()))
    with _lock:
        found = _cache.get(key)
        if found is not None:
            _cache.move_to_end(key)
            return found, walk.tensors
    made = trace(mod, kind, walk.tensors)
    with _lock:
        _cache[key] = made
        if len(_cache) > _CAPACITY:
            _cache.popitem(last=False)
    return made, walk.tensors


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


class _Walk:
    """One pass over all that a function captures. Of objects, only attributes that the function names are looked at."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._places: dict[int, int] = {}
        self._open: set[int] = set()

    def of(self, value: Any, names: frozenset[str]) -> Hashable:
        kind = type(value)
        if kind in _SCALARS:
            return (kind, repr(value)) if kind is float else (kind, value)
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
        return (tensor.dtype, tensor.shape)

    def _composite(self, value: Any, names: frozenset[str]) -> Hashable:
        kind = type(value)
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.MethodType:
            return (self._function(value.__func__), self.of(value.__self__, names | _names_in(value.__func__.__code__)))
        if kind is functools.partial:
            parts = (value.func, value.args, value.keywords)
            return ("partial", *(self.of(part, names) for part in parts))
        if kind in (tuple, list) and len(value) <= _MAX_ITEMS:
            return (kind, *(self.of(item, names) for item in value))
        if kind is dict and len(value) <= _MAX_ITEMS:
            return (dict, *((self.of(key, names), self.of(item, names)) for key, item in value.items()))
        if isinstance(value, (types.ModuleType, types.BuiltinFunctionType, type)) or not hasattr(value, "__dict__"):
            return _Identity(value)
        return self._object(value, names)

    def _function(self, function: types.FunctionType) -> Hashable:
        code = function.__code__
        if function.__module__ is not None and function.__module__.split(".")[0] == "torch" and not code.co_freevars:
            return code
        names = _names_in(code)
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(self.of(cell.cell_contents, names))
            except ValueError:  # not assigned yet
                cells.append("empty")
        globals_ = function.__globals__
        read = tuple(
            (name, self.of(globals_[name], names))
            for name in sorted(names)
            if name in globals_ and not isinstance(globals_[name], types.ModuleType)
        )
        defaults = function.__defaults__, function.__kwdefaults__
        return (code, *cells, read, *(None if one is None else self.of(one, names) for one in defaults))

    def _object(self, value: Any, names: frozenset[str]) -> Hashable:
        kind = type(value)
        call = getattr(kind, "__call__", None)  # noqa: B004: its code, not whether there is one
        parts: list[Hashable] = [kind]
        if isinstance(call, types.FunctionType) and not isinstance(value, torch.nn.Module):
            parts.append(self._function(call))
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
                    parts.append((name, self._function(member)))
                    pending |= _names_in(member.__code__) - seen
            elif isinstance(member, _SCALARS) and member is not None:
                parts.append((name, member))
        fields = dict(vars(value))
        if isinstance(value, torch.nn.Module):
            fields |= value._parameters | value._buffers | value._modules
        wanted = frozenset(seen)
        parts.extend((name, self.of(fields[name], wanted)) for name in sorted(wanted & fields.keys()))
        return tuple(parts)
