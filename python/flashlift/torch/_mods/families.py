"""Traces kept for functions of the same structure."""

import contextlib
import functools
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import torch

from flashlift.torch._internals import (
    autocast_state,
    disable_transforms,
    is_making_graph,
    is_wrapped_by_transform,
)
from flashlift.torch._mods.copy import Copy
from flashlift.torch._mods.walk import TooLarge, Walk
from flashlift.torch._trace import Trace, as_tensor, stand_in, trace

_CAPACITY = 1024  # structures
_VARIANTS = 64  # traces of one structure with different numbers
_CHOICES = 4096  # numbers of one structure with a cached trace

_lock = threading.Lock()


class _Family:
    """The traces of functions that differ at most in their numbers."""

    def __init__(self) -> None:
        self.varying: frozenset[int] = frozenset()  # positions of numbers that are arguments
        self.fixed: frozenset[int] = frozenset()  # positions of numbers that cannot be arguments
        self.latest: tuple[Hashable, ...] | None = None
        self.traces: OrderedDict[Hashable, Trace] = OrderedDict()
        # For all numbers of a function: its trace, and which of the numbers are the trace's arguments.
        self.choices: OrderedDict[Hashable, tuple[Trace, frozenset[int]]] = OrderedDict()

    def choose(self, values: Hashable, found: Trace, varying: frozenset[int]) -> tuple[Trace, frozenset[int]]:
        """Stores the trace for these numbers. If another thread stored one first, returns that one."""
        chosen = self.choices.setdefault(values, (found, varying))
        self.choices.move_to_end(values)
        if len(self.choices) > _CHOICES:
            self.choices.popitem(last=False)
        return chosen


_families: OrderedDict[Hashable, _Family] = OrderedDict()
# Keys of mods that read tensors which a walk by names does not find, such as the weights of a module that they call.
_walked_wholly: OrderedDict[Hashable, None] = OrderedDict()
_walked_by_paths: OrderedDict[Hashable, None] = OrderedDict()  # codes of mods that lead to very much
# By the codes of mods that lead to objects: with which names their latest walk began, and which it met.
_names: OrderedDict[Hashable, tuple[frozenset[str], set[str]]] = OrderedDict()


class Leaves(NamedTuple):
    """What one function captures, as far as its program reads it."""

    tensors: list[torch.Tensor]
    numbers: list[int | float] = []


def traced(mod: Callable, kind: str) -> tuple[Trace, Leaves]:
    """The trace of a mod, and the tensors and numbers that this function captures."""
    compiled = getattr(mod, "__dict__", {}).get("_torchdynamo_orig_callable")
    if compiled is not None:  # by torch.compile: Dynamo would trace what traces the mod
        mod = types.MethodType(compiled, mod.__self__) if isinstance(mod, types.MethodType) else compiled
    try:
        return _traced_by_walk(mod, kind)
    except TooLarge:  # traced in every call
        return _with_unknown(mod, kind, trace(mod, kind, []), Leaves([]))


def _with_unknown(mod: Callable, kind: str, found: Trace, leaves: Leaves) -> tuple[Trace, Leaves]:
    """The trace for this call alone, of a mod that reads tensors which no walk finds. What the mod computes from these
    is a constant of the given trace, without a gradient; where that matters, they become leaves of another one."""
    unknown = found.unknown
    if unknown and (is_making_graph() or any(one.requires_grad or is_wrapped_by_transform(one) for one in unknown)):
        leaves = Leaves([*leaves.tensors, *unknown])
        found = trace(mod, kind, leaves.tensors)
    return found, leaves


def _traced_by_walk(mod: Callable, kind: str) -> tuple[Trace, Leaves]:
    walk, structure = _walked_shortest(mod)
    dtypes = autocast_state(), torch.get_default_dtype()  # in which a mod's own operations compute
    key = (kind, structure, dtypes)
    try:
        walks_wholly = key in _walked_wholly
    except TypeError:  # sizes that a graph leaves open are not hashable
        walk, _ = _walked(mod, wholly=True)
        return trace(mod, kind, walk.tensors), _leaves(walk, frozenset())
    if walks_wholly:
        walk, structure = _walked(mod, wholly=True)
        found, leaves = _traced(mod, kind, walk, ("wholly", kind, structure, dtypes))
        return _with_unknown(mod, kind, found, leaves)
    found, leaves = _traced(mod, kind, walk, key)
    if not found.reads_unknown:
        return found, leaves
    with _lock:
        _families.pop(key, None)
        _walked_wholly[key] = None
        if len(_walked_wholly) > _CAPACITY:
            _walked_wholly.popitem(last=False)
    return _traced_by_walk(mod, kind)


def _walked_shortest(mod: Callable) -> tuple[Walk, Hashable]:
    """A walk by paths, if all that the functions of this mod lead to is too much, or may change without a trace."""
    if _walked_by_paths and _codes(mod) in _walked_by_paths:
        return _by_paths(mod)
    try:
        whole = _walked(mod)
    except TooLarge:
        _keep_to_paths(mod)
        return _by_paths(mod)
    if whole[0].changes:
        with contextlib.suppress(TooLarge):
            shorter = _by_paths(mod)
            if not shorter[0].changes:
                _keep_to_paths(mod)
                return shorter
    return whole


def _keep_to_paths(mod: Callable) -> None:
    with _lock:
        _walked_by_paths[_codes(mod)] = None
        if len(_walked_by_paths) > _CAPACITY:
            _walked_by_paths.popitem(last=False)


def _by_paths(mod: Callable) -> tuple[Walk, Hashable]:
    call = getattr(type(mod), "__call__", None)  # noqa: B004 - its code, not whether there is one
    if isinstance(call, types.FunctionType) and not isinstance(mod, torch.nn.Module):
        mod = types.MethodType(call, mod)
    return _walked(mod, by_paths=True)


def _content(cell: types.CellType) -> Any:
    with contextlib.suppress(ValueError):  # not assigned yet
        return cell.cell_contents
    return None


def _codes(value: Any, depth: int = 4) -> Hashable:
    """The codes of a function and of those in its closure: a function that joins others alone says little."""
    value = value.func if isinstance(value, functools.partial) else value
    value = value.__func__ if isinstance(value, types.MethodType) else value
    inner: Iterable[Any] = value if isinstance(value, tuple) else ()
    own: Any = type(value)
    if isinstance(value, types.FunctionType):
        own, inner = value.__code__, (_content(cell) for cell in value.__closure__ or ())
    return (own, *(_codes(one, depth - 1) for one in inner)) if depth else None


def _walked(mod: Callable, wholly: bool = False, by_paths: bool = False) -> tuple[Walk, Hashable]:
    """A walk, and the structure that it found. Any object may be passed to any function of the mod, so that the names
    in any function apply to all objects. If a walk begins with the names of the latest one, and meets the same ones, no
    other follows."""
    key = (_codes(mod), wholly, by_paths)
    known = _names.get(key)
    if known is not None:
        walk = Walk(wholly, known[0], by_paths)
        structure = walk.of(mod, frozenset())
        if walk.met == known[1] and walk.is_complete:
            return walk, (structure, walk.layouts())
    names: frozenset[str] = frozenset()
    while True:
        walk = Walk(wholly, names, by_paths)
        structure = walk.of(mod, frozenset())
        if walk.is_complete:
            break
        names |= walk.met
    if names:
        with _lock:
            _names[key] = names, walk.met
            if len(_names) > _CAPACITY:
                _names.popitem(last=False)
    return walk, (structure, walk.layouts())


def _traced(mod: Callable, kind: str, walk: Walk, key: Hashable) -> tuple[Trace, Leaves]:
    if walk.changes:
        return trace(mod, kind, walk.tensors), _leaves(walk, frozenset())
    # 0.0 and -0.0 are equal, and so are False and 0: zeros are therefore compared by their text.
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
        if chosen is not None:
            family.choices.move_to_end(values)
            return chosen[0], _leaves(walk, chosen[1])
        found = family.traces.get(_variant(values, varying))
    suits = found is not None and found.suits(*_leaves(walk, varying))
    with _lock:
        if found is not None and suits:
            found, varying = family.choose(values, found, varying)
            return found, _leaves(walk, varying)
        if found is not None:
            varying = frozenset()
        elif family.latest is not None and values and not (walk.distinguishes_tensors or walk.is_cyclic):
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
    # Tensors that the walk did not find, and sizes that depend on content, belong to this call only.
    if made.reads_unknown or made.has_open_sizes:
        return made, _leaves(walk, varying)
    with _lock:
        if found is None:  # otherwise other numbers may still be arguments
            family.varying, family.latest = varying, values
        family.traces[_variant(values, varying)] = made
        if len(family.traces) > _VARIANTS:
            family.traces.popitem(last=False)
        made, varying = family.choose(values, made, varying)
    return made, _leaves(walk, varying)


def _variant(values: tuple[Hashable, ...], varying: frozenset[int]) -> Hashable:
    return (varying, *(one for i, one in enumerate(values) if i not in varying)) if varying else values


def _leaves(walk: Walk, varying: frozenset[int]) -> Leaves:
    return Leaves(walk.tensors, [walk.numbers[i] for i in sorted(varying)] if varying else [])


def _trace_with_arguments(mod: Callable, kind: str, walk: Walk, varying: frozenset[int]) -> Trace | None:
    """The trace of a copy of the mod in which some numbers are arguments, or None if the mod needs their values."""
    with disable_transforms(), torch.inference_mode(False):
        numbers = {i: stand_in(as_tensor(walk.numbers[i])) for i in sorted(varying)}
    try:
        copy = Copy(numbers, walk).of(mod)
        made = trace(copy, kind, walk.tensors, numbers=list(numbers.values()))
        return made if made.suits(*_leaves(walk, varying)) else None
    except Exception:  # if the mod itself is at fault, it will raise again with its own numbers
        return None
