"""What functions and objects are made of, as far as a mod can read it."""

import functools
import math
import sys
import types
from typing import Any

import torch

EXACT = (bool, complex, str, bytes, type(None), torch.dtype, torch.device)
MAX_ITEMS = 1024  # of one captured list or dictionary


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> frozenset[str]:
    """The names of globals and attributes that a function reads, those of functions inside it included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
    return frozenset(names)


def globals_read(function: types.FunctionType) -> list[str]:
    """Those that Copy copies too: modules are not among them."""
    globals_ = function.__globals__
    return [
        name
        for name in _sorted_names_in(function.__code__)
        if name in globals_ and not isinstance(globals_[name], types.ModuleType)
    ]


def modules_read(function: types.FunctionType) -> list[types.ModuleType]:
    """Modules whose content may change: a program's own, imported inside the function or before it."""
    globals_ = function.__globals__
    names = _sorted_names_in(function.__code__)
    found = [globals_[name] if name in globals_ else sys.modules.get(name) for name in names]
    return [one for one in found if isinstance(one, types.ModuleType) and not is_librarys(one.__name__)]


@functools.lru_cache(maxsize=4096)
def is_librarys(module: str) -> bool:
    top = module.split(".", 1)[0]
    return top in sys.stdlib_module_names or top in ("torch", "numpy", "flashlift")


@functools.lru_cache(maxsize=4096)
def _sorted_names_in(code: types.CodeType) -> tuple[str, ...]:
    return tuple(sorted(names_in(code)))


def is_torchs_own(function: types.FunctionType) -> bool:
    module = function.__module__
    return module is not None and module.split(".", 1)[0] == "torch" and not function.__code__.co_freevars


def slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def own_part_of(kind: type) -> type:
    """What a class of somebody's adds to torch.nn.Module, whose __getattr__ finds what fields_of lists."""
    has_own = not issubclass(kind, torch.nn.Module) or kind.__getattr__ is not torch.nn.Module.__getattr__
    return kind if has_own else object


def fields_of(value: Any) -> dict[str, Any]:
    fields = dict(vars(value))
    if isinstance(value, torch.nn.Module):
        fields |= value._parameters | value._buffers | value._modules
    return fields


def may_be_argument(value: int | float) -> bool:
    """Numbers that a program's 32 bits hold. Infinities stay in the program: they mean that something is masked."""
    return -(2**31) <= value < 2**31 if type(value) is int else math.isfinite(value)
