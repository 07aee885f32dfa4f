"""What functions and objects are made of, as far as a mod can read it."""

import collections
import collections.abc
import contextlib
import ctypes
import dis
import functools
import itertools
import logging
import math
import operator
import sys
import types
from typing import Any

import numpy as np
import torch

from flashlift.torch._program import LARGEST_ARGUMENT

EXACT = (bool, complex, str, bytes, type(None), torch.dtype, torch.device)
# Libraries whose functions are not visited. They read only fields of objects, which are visited anyway; pydantic's lead
# to all that it knows of types, and those of transformers to all attention that it knows.
OF_FIELDS = ("torch", "pydantic", "transformers")
MAX_ITEMS = 1024  # of one captured list or dictionary
# Types without fields whose objects never change. Other types without fields, such as numpy arrays, sets and iterators,
# may have other contents in each call. So may objects of the types in CHANGING, even if a subclass adds fields.
# A logger does change, but no result depends on it, and it leads to all other loggers of the process.
UNCHANGING = (
    *(range, slice, frozenset, np.dtype, np.ufunc, operator.attrgetter, operator.itemgetter, operator.methodcaller),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
    *(torch.layout, torch.memory_format, torch.finfo, torch.iinfo),
    *(logging.Logger, logging.LoggerAdapter),
)
CHANGING = (np.ndarray, set, collections.deque, collections.abc.Iterator, *ctypes.Structure.__bases__)  # all of C
# Special methods that only create, copy and print objects.
_UNCALLED = frozenset(
    "__init__ __new__ __post_init__ __del__ __init_subclass__ __class_getitem__ __repr__ __str__ __dir__ __sizeof__ "
    "__setattr__ __delattr__ __getstate__ __setstate__ __reduce__ __reduce_ex__ __copy__ __deepcopy__".split()
)


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> frozenset[str]:
    """The names of globals and attributes that a function reads, including those that its inner functions read."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
    return frozenset(names)


@functools.lru_cache(maxsize=4096)
def paths_in(code: types.CodeType) -> dict[str, list[tuple[str, ...]]]:
    """What a function and its inner functions read of each variable: ("config", "window") for one.config.window, and an
    empty path for any other use of one."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for name, paths in paths_in(constant).items():
                found.setdefault(name, set()).update(paths)
    if "super" in code.co_names:  # which reads the first argument without an instruction
        found.setdefault(code.co_varnames[0] if code.co_varnames else "", set()).add(())
    instructions = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
    for place, one in enumerate(instructions):
        if one.opname in ("MAKE_CELL", "LOAD_CLOSURE") or not _has_variable(one):
            continue
        *others, last = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        for name in others:  # since Python 3.13, an instruction may have two variables
            found.setdefault(name, set()).add(())
        then = itertools.takewhile(_loads_attribute, instructions[place + 1 :] if "LOAD" in one.opname else ())
        found.setdefault(last, set()).add(tuple(attribute.argval for attribute in then))
    return {name: sorted(paths) for name, paths in found.items()}


def _has_variable(one: dis.Instruction) -> bool:
    return any(part in one.opname for part in ("_FAST", "DEREF", "GLOBAL", "_NAME"))


def _loads_attribute(one: dis.Instruction) -> bool:
    is_method = sys.version_info >= (3, 12) and one.arg is not None and one.arg & 1
    return one.opname == "LOAD_ATTR" and not is_method


def names_of_getter(value: Any) -> set[str]:
    """The names that an attrgetter or a methodcaller reads; none for other objects."""
    if not isinstance(value, (operator.attrgetter, operator.methodcaller)):
        return set()
    reduced: Any = value.__reduce__()
    maker, arguments = reduced
    arguments = maker.args if isinstance(maker, functools.partial) else arguments
    read = arguments if isinstance(value, operator.attrgetter) else arguments[:1]
    return {name for one in map(str, read) for name in one.split(".")}


# Names of functions that distinguish a tensor from a number, or look it up by its identity.
_DISTINGUISHING = frozenset(
    "isinstance issubclass type __class__ is_tensor hasattr getattr callable get hash id is_ is_not dispatch".split()
)


@functools.lru_cache(maxsize=4096)
def distinguishes_tensors(code: types.CodeType) -> bool:
    inner = any(distinguishes_tensors(one) for one in code.co_consts if isinstance(one, types.CodeType))
    if inner or not _DISTINGUISHING.isdisjoint(code.co_names) or _catches(code):
        return True
    instructions = list(dis.get_instructions(code))
    if any(one.opname == "CONTAINS_OP" or one.opname.startswith("MATCH") for one in instructions):
        return True
    before_identity = [one for one, then in itertools.pairwise(instructions) if then.opname == "IS_OP"]
    return not all(one.opname.startswith("LOAD_CONST") and one.argval is None for one in before_identity)


def _catches(code: types.CodeType) -> bool:
    """Whether a function may catch an exception, so that what a tensor refuses goes unnoticed."""
    names = [one.opname for one in dis.get_instructions(code)]
    handlers = names.count("PUSH_EXC_INFO") - names.count("WITH_EXCEPT_START")  # those of `with` raise it again
    if sys.version_info < (3, 11):
        handlers = names.count("SETUP_FINALLY")
    return handlers > 0 or "suppress" in code.co_names


def globals_read(function: types.FunctionType) -> list[str]:
    """The globals that a function reads, and that Copy copies: all except modules."""
    globals_ = function.__globals__
    return [
        name
        for name in _sorted_names_in(function.__code__)
        if name in globals_ and not isinstance(globals_[name], types.ModuleType)
    ]


def modules_read(function: types.FunctionType) -> list[tuple[str, types.ModuleType]]:
    """The names of modules, and modules, whose content may change: not a library's, and imported inside the function or
    before it."""
    globals_ = function.__globals__
    names = _sorted_names_in(function.__code__)
    found = [(name, globals_[name] if name in globals_ else sys.modules.get(name)) for name in names]
    return [(name, one) for name, one in found if isinstance(one, types.ModuleType) and not is_librarys(one.__name__)]


@functools.lru_cache(maxsize=4096)
def is_librarys(module: str) -> bool:
    top = module.split(".", 1)[0]
    return top in sys.stdlib_module_names or top in ("numpy", "flashlift", *OF_FIELDS)


@functools.lru_cache(maxsize=4096)
def _sorted_names_in(code: types.CodeType) -> tuple[str, ...]:
    return tuple(sorted(names_in(code)))


def is_of_fields(method: types.FunctionType) -> bool:
    """Whether a method is not visited, because it is of one of these libraries."""
    return (method.__module__ or "").split(".", 1)[0] in OF_FIELDS


def is_torchs_own(function: types.FunctionType) -> bool:
    """Whether a function is torch's or ours, and captures nothing."""
    module = function.__module__
    is_known = module is not None and module.split(".", 1)[0] in ("torch", "flashlift")
    return is_known and not function.__code__.co_freevars


def is_running(function: Any) -> bool:
    """Whether a function has called this one, directly or not."""
    frame: types.FrameType | None = sys._getframe()
    code = getattr(function, "__code__", None)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


@functools.lru_cache(maxsize=4096)
def operators_of(kind: type) -> frozenset[str]:
    """The functions of a class that Python calls without naming them: for one[key], 2 * one, len(one)."""
    special = {
        name
        for base in kind.__mro__
        for name, member in vars(base).items()
        if name.startswith("__") and name.endswith("__") and isinstance(member, types.FunctionType)
    }
    return frozenset(special - _UNCALLED)


def slots_of(value: Any) -> dict[str, Any]:
    """The fields of an object that are not in its __dict__."""
    places = {
        name: place
        for base in type(value).__mro__
        if "__slots__" in vars(base)
        for name, place in vars(base).items()
        if isinstance(place, types.MemberDescriptorType)
    }
    found = {}
    for name, place in places.items():
        with contextlib.suppress(AttributeError):  # is not set
            found[name] = place.__get__(value)
    return found


def has_dict(value: Any) -> bool:
    """Whether an object has a __dict__. Asks its type, since its own __getattr__ may raise any error."""
    return type(value).__dictoffset__ != 0


def own_part_of(kind: type) -> type:
    """What a user's class adds to torch.nn.Module. nn.Module's own __getattr__ finds the fields that fields_of
    lists."""
    has_own = not issubclass(kind, torch.nn.Module) or kind.__getattr__ is not torch.nn.Module.__getattr__
    return kind if has_own else object


@functools.lru_cache(maxsize=4096)
def extends_torchs_module(kind: type) -> bool:
    """Whether a class of modules inherits from one of torch's, whose functions, which a walk does not visit, read its
    fields: Sequential its children, LeakyReLU its slope."""
    bases = (base for base in kind.__mro__ if issubclass(base, torch.nn.Module) and base is not torch.nn.Module)
    return any(is_librarys(base.__module__) for base in bases)


# What torch.nn.Module keeps about itself.
_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}


def hooks_of(module: torch.nn.Module) -> list[Any]:
    """The hooks that run when a module is called, in their order."""
    of_all = torch.nn.modules.module
    return [
        *of_all._global_forward_pre_hooks.values(),
        *module._forward_pre_hooks.values(),
        None,
        *of_all._global_forward_hooks.values(),
        *module._forward_hooks.values(),
    ]


def fields_of(value: Any) -> dict[str, Any]:
    fields = (dict(value.__dict__) if has_dict(value) else {}) | slots_of(value)
    if isinstance(value, torch.nn.Module):
        own = {name: content for name, content in fields.items() if name not in _OF_MODULES}
        return own | value._parameters | value._buffers | value._modules
    return fields


def may_be_argument(value: int | float) -> bool:
    """Infinities stay constants of the program, because they mean that something is masked."""
    return abs(value) <= LARGEST_ARGUMENT if type(value) is int else math.isfinite(value)
