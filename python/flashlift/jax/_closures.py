"""Functions that hold other arrays than they were made with."""

import copy
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np


def with_arrays(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function with the arrays that it reads changed: those of its closure, its defaults, its globals, what
    functools.partial gave it and its object's attributes, and the same of the functions among these."""
    return _Changing(change).of(function)


class _Changing:
    def __init__(self, change: Callable[[Any], Any]) -> None:
        self._change = change
        self._known: dict[int, Any] = {}  # by id: functions may call themselves

    def of(self, value: Any) -> Any:
        if isinstance(value, (np.ndarray, jax.Array)):
            return self._change(value)
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(self.of(one) for one in value)
        if type(value) is dict:
            return {name: self.of(one) for name, one in value.items()}
        if isinstance(value, functools.partial):
            return functools.partial(self.of(value.func), *self.of(value.args), **self.of(value.keywords))
        if isinstance(value, types.MethodType):
            return types.MethodType(self.of(value.__func__), self._of_object(value.__self__))
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        return self._of_object(value) if callable(value) or dataclasses.is_dataclass(value) else value

    def _of_object(self, value: Any) -> Any:
        attributes = getattr(value, "__dict__", None)
        if isinstance(value, (type, types.ModuleType)) or not isinstance(attributes, dict):
            return value
        changed = {name: self.of(one) for name, one in attributes.items() if not callable(one)}
        if all(one is attributes[name] for name, one in changed.items()):
            return value
        new = copy.copy(value)
        new.__dict__.update(changed)  # of frozen ones, too
        return new

    def _of_function(self, function: types.FunctionType) -> types.FunctionType:
        if id(function) in self._known or (function.__module__ or "").split(".")[0] in ("jax", "numpy"):
            return self._known.get(id(function), function)
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        own = dict(function.__globals__)
        code = function.__code__
        new = types.FunctionType(code, own, function.__name__, self.of(function.__defaults__), cells or None)
        self._known[id(function)] = new
        new.__kwdefaults__ = self.of(function.__kwdefaults__)
        new.__dict__.update(function.__dict__)
        for name in _names(code):
            if name in own:
                own[name] = self.of(own[name])
        for cell, old in zip(cells, function.__closure__ or (), strict=True):
            try:
                cell.cell_contents = self.of(old.cell_contents)
            except ValueError:
                continue  # a variable that is assigned later
        return new


def _names(code: types.CodeType) -> Iterator[str]:
    """What the code, and the code of functions within it, may read of globals."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _names(one)
