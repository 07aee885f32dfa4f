"""A copy of a function in which tensors stand in the places of numbers."""

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from flashlift.torch._internals import MASK_MOD_WRAPPER
from flashlift.torch._mods.objects import (
    EXACT,
    MAX_ITEMS,
    fields_of,
    globals_read,
    has_dict,
    is_torchs_own,
    may_be_argument,
    slots_of,
)
from flashlift.torch._mods.walk import Walk


class Copy:
    """Copies functions and objects, with some of their numbers replaced. Numbers are counted in the walk's order. What
    refers back to itself is not copied: see Walk.is_cyclic."""

    def __init__(self, numbers: dict[int, torch.Tensor], walk: Walk) -> None:
        self._numbers = numbers
        self._fields = walk.fields
        self._next = 0

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind is int or kind is float:
            if not may_be_argument(value):
                return value
            self._next += 1
            return self._numbers.get(self._next - 1, value)
        if kind in EXACT or isinstance(value, torch.Tensor):
            return value
        return self._composite(value, kind)

    def _composite(self, value: Any, kind: type) -> Any:
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.MethodType:
            function = self._function(value.__func__)
            return types.MethodType(function, self.of(value.__self__))
        if kind is functools.partial:
            parts = (value.func, value.args, value.keywords)
            func, args, keywords = (self.of(part) for part in parts)
            copy = functools.partial(func, *args, **keywords)
            copy.__dict__.update(value.__dict__)
            return copy
        if kind in (tuple, list) and len(value) <= MAX_ITEMS:
            return kind([self.of(item) for item in value])
        if kind is dict and len(value) <= MAX_ITEMS:
            return {key: self.of(item) for key, item in value.items()}
        if kind is MASK_MOD_WRAPPER:
            return self.of(value.fn)
        if id(value) in self._fields and not isinstance(value, (int, float, str, bytes, tuple, list, dict)):
            return self._object(value)
        return value

    def _object(self, value: Any) -> Any:
        if not has_dict(value):
            return value
        copy = object.__new__(type(value))
        copy.__dict__.update(vars(value))
        for name, content in slots_of(value).items():
            object.__setattr__(copy, name, content)
        if isinstance(value, torch.nn.Module):
            copy.__dict__["_modules"] = dict(value._modules)
        fields = fields_of(value)
        for name in self._fields[id(value)]:
            replaced = self.of(fields[name])
            if isinstance(value, torch.nn.Module) and name in value._modules:
                copy._modules[name] = replaced
            elif name in vars(value):
                copy.__dict__[name] = replaced
        return copy

    def _function(self, function: types.FunctionType) -> Callable:
        code = function.__code__
        if is_torchs_own(function):
            return function
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(types.CellType(self.of(cell.cell_contents)))
            except ValueError:
                cells.append(cell)
        names = globals_read(function)
        globals_ = dict(function.__globals__) | {name: self.of(function.__globals__[name]) for name in names}
        defaults, keyword_defaults = (
            None if one is None else self.of(one) for one in (function.__defaults__, function.__kwdefaults__)
        )
        copy = types.FunctionType(code, globals_, function.__name__, defaults, tuple(cells) or None)
        copy.__kwdefaults__ = keyword_defaults
        copy.__dict__.update(function.__dict__)
        return copy
