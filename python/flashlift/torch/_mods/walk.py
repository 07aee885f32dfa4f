"""One pass over all that a function captures: its tensors, its numbers, and its structure."""

import contextvars
import enum
import functools
import inspect
import types
from collections.abc import Callable, Hashable
from typing import Any, cast

import numpy as np
import torch

from flashlift.torch._internals import MASK_MOD_WRAPPER
from flashlift.torch._mods.objects import (
    CHANGING,
    EXACT,
    MAX_ITEMS,
    UNCHANGING,
    distinguishes_tensors,
    extends_torchs_module,
    fields_of,
    globals_read,
    has_dict,
    hooks_of,
    is_librarys,
    is_of_fields,
    is_running,
    is_torchs_own,
    may_be_argument,
    modules_read,
    names_in,
    names_of_getter,
    operators_of,
    own_part_of,
    paths_in,
    slots_of,
)
from flashlift.torch._trace import TraceError


class _Identity:
    """Equal only to the same object, which it keeps alive so that the identity is not reused."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value


_LARGEST = 1000  # functions and objects of one walk: some 50 ms


class TooLarge(Exception):
    """A function leads to more than a walk visits, for example to a model whose library's functions it names."""


class Walk:
    """One pass over all that a function captures. Of an object, it visits only attributes that a function names, unless
    the object is needed as a whole. By paths, it visits only what stands at the end of one.config.window if a function
    uses a variable in no other way. That is less, but Copy does not know of it: no numbers become arguments."""

    def __init__(self, wholly: bool = False, names: frozenset[str] = frozenset(), by_paths: bool = False) -> None:
        # Whether a function may behave differently if a number is replaced by a tensor.
        self.distinguishes_tensors = False
        # Whether something that Copy copies refers back to itself: the copy would refer back to the original.
        self.is_cyclic = False
        self.changes = False  # whether another call may find other values
        self.met: set[str] = set()  # names in the functions that were visited
        # The names that were looked up in every object so far; None without objects.
        self.names_of_all: frozenset[str] | None = None
        self._names = names
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[int | float] = []  # numbers that may become arguments
        self.fields: dict[int, list[str]] = {}  # by the identity of each object: the attributes that were looked up
        self._wholly = wholly
        self._by_paths = by_paths
        self._places: dict[int, int] = {}
        self._visited: dict[tuple[int, frozenset[str] | None], tuple[int, Any]] = {}
        # What is being visited, by its identity: its depth, and whether its numbers may become arguments.
        self._open: dict[int, tuple[int, bool]] = {}
        self._in_fixed = int(by_paths)
        self._left = _LARGEST

    @property
    def is_complete(self) -> bool:
        """Whether all names that functions use were looked up in every object."""
        return self.names_of_all is None or self.met <= self.names_of_all

    def of(self, value: Any, names: frozenset[str]) -> Hashable:
        kind = type(value)
        if kind is int or kind is float:
            if self._in_fixed or not may_be_argument(value):
                return (kind, repr(value))
            self.numbers.append(value)
            return cast(Hashable, kind)
        if kind in EXACT:
            return (kind, repr(value) if kind is complex else value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, names)
        found = self._open.get(id(value))
        if found is not None:  # a function that calls itself, or an object that leads back to its owner
            depth, is_copied = found
            self.is_cyclic |= is_copied
            return ("again", depth)
        if self._in_fixed:
            seen = self._seen(value, names)
            if seen is not None:
                return seen
        self._left -= 1
        if self._left < 0:
            raise TooLarge
        self._open[id(value)] = (len(self._open), not self._in_fixed)
        try:
            return self._composite(value, names)
        finally:
            del self._open[id(value)]

    def _seen(self, value: Any, names: frozenset[str] | None) -> Hashable:
        """Whether something without arguments was visited before, for these names. Without this, objects and functions
        that many ways lead to, such as a library's, would be visited once for each way."""
        found = self._visited.get((id(value), names))
        if found is None:
            self._visited[id(value), names] = (len(self._visited), value)  # kept alive
            return None
        return ("seen", found[0])

    def _tensor(self, tensor: torch.Tensor, names: frozenset[str]) -> Hashable:
        place = self._places.get(id(tensor))
        if place is not None:
            return place
        self._places[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        attributes = self._attributes(tensor, names)
        return (type(tensor), tensor.dtype, tensor.shape, tensor.requires_grad, tensor.is_inference(), *attributes)

    def layouts(self) -> Hashable:
        """How the tensors lie in memory, if a function may ask for it."""
        if self.met.isdisjoint(_OF_LAYOUT):
            return None
        return tuple((one.stride(), one.storage_offset()) for one in self.tensors)

    def _composite(self, value: Any, names: frozenset[str]) -> Hashable:
        kind = type(value)
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.MethodType:
            code = value.__func__.__code__
            first = code.co_varnames[0] if code.co_argcount else None
            return (self._function(value.__func__), self._variable(first, value.__self__, code, names | names_in(code)))
        if kind is functools.partial:
            parts = (value.func, value.args, value.keywords)
            return ("partial", *(self.of(part, names) for part in parts), *self._attributes(value, names))
        if kind in (tuple, list) and len(value) <= MAX_ITEMS:
            return (kind, *(self.of(item, names) for item in value))
        if kind is dict and len(value) <= MAX_ITEMS:
            return (dict, *((self._fixed(key, names), self.of(item, names)) for key, item in value.items()))
        if kind is MASK_MOD_WRAPPER:
            return self.of(value.fn, names)
        if isinstance(value, enum.Enum):
            return (_Identity(value), self._fixed(value.value, names))
        if isinstance(value, (int, float, str, bytes, np.generic)):
            return (kind, repr(value))
        self.distinguishes_tensors |= hasattr(kind, "__missing__")  # a dictionary that has every key
        if isinstance(value, (tuple, list, dict)) and len(value) <= MAX_ITEMS:
            items = value.items() if isinstance(value, dict) else value
            return (kind, *(self._fixed(item, names) for item in items))
        if isinstance(value, type):
            return self._fixed(value, names, lambda one: self._class(one, names))
        if isinstance(value, types.ModuleType) and not is_librarys(value.__name__):
            return self._fixed(value, names, lambda one: self._module(one, names))
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):  # a method, such as table.get
            is_bound = not isinstance(value.__self__, (type, types.ModuleType, types.NoneType))
            return (value.__name__, self._fixed(value.__self__, names)) if is_bound else _Identity(value)
        if isinstance(value, (types.ModuleType, *UNCHANGING)):
            self.met |= names_of_getter(value)
            return _Identity(value)
        if kind is contextvars.ContextVar:
            try:
                return self._fixed(value.get(), names)
            except LookupError:
                return None
        if isinstance(value, torch.jit.ScriptModule):
            raise TraceError(
                f"a mod captures a module that torch.jit.script returned ({value.original_name}), whose operations the "
                "trace does not see; capture the module itself"
            )
        has_fields = has_dict(value) or any("__slots__" in vars(base) for base in kind.__mro__)
        if has_fields and not isinstance(value, CHANGING):
            return self._object(value, names)
        self.changes = True
        return None

    def _fixed(self, value: Any, names: frozenset[str], visit: Callable | None = None) -> Hashable:
        """Visits something that Copy does not copy, so that its numbers cannot become arguments."""
        self._in_fixed += 1
        try:
            return visit(value) if visit else self.of(value, names)
        finally:
            self._in_fixed -= 1

    def _function(self, function: types.FunctionType) -> Hashable:
        code = function.__code__
        if is_torchs_own(function):
            return code
        if self._in_fixed:
            seen = self._seen(function, None)
            if seen is not None:
                return seen
        names = names_in(code)
        if self._by_paths and "__self__" in names:  # a way to an object beside those of paths_in
            raise TooLarge
        self.met |= names
        self.distinguishes_tensors |= distinguishes_tensors(code)
        cells: list[Hashable] = []
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                cells.append("empty")
            else:
                cells.append(self._variable(name, content, code, names))
        globals_ = function.__globals__
        read: list[Hashable] = [
            (name, self._variable(name, globals_[name], code, names)) for name in globals_read(function)
        ]
        read += [self._variable(name, one, code, names) for name, one in modules_read(function)]
        self.changes |= not names.isdisjoint(_UNSEEN) or names >= {"sys", "modules"}
        defaults = function.__defaults__, function.__kwdefaults__
        read += [None if one is None else self.of(one, names) for one in defaults]
        read += self._attributes(function, names)
        return (code, *cells, tuple(read))

    def _variable(self, name: str | None, value: Any, code: types.CodeType, names: frozenset[str]) -> Hashable:
        """Visits what a function, and those in it, read of a variable."""
        if not self._by_paths or name is None:
            return self.of(value, names)
        return tuple([self._end(path, value, names) for path in paths_in(code).get(name, ())])

    def _end(self, path: tuple[str, ...], value: Any, names: frozenset[str]) -> Hashable:
        """Visits what stands at the end of a path, or the first tensor on it."""
        for name in path:
            if isinstance(value, torch.Tensor):
                break
            member = next((vars(base)[name] for base in type(value).__mro__ if name in vars(base)), None)
            if isinstance(member, property):
                self.of(member.fget, names)  # which may read what changes without a trace
            try:
                value = getattr(value, name)
            except AttributeError:
                return "missing"
            except Exception as error:
                raise TooLarge from error
        return self.of(value, names)

    def _attributes(self, value: Any, names: frozenset[str]) -> list[Hashable]:
        """What was stored on something that has other content: on a function, a partial or a tensor."""
        if not value.__dict__:
            return []
        wanted = self._names_for_object(names)
        return [(name, self._fixed(vars(value)[name], wanted)) for name in sorted(wanted & vars(value).keys())]

    def _names_for_object(self, names: frozenset[str]) -> frozenset[str]:
        names |= self._names
        self.names_of_all = names if self.names_of_all is None else self.names_of_all & names
        return names

    def _module(self, module: types.ModuleType, names: frozenset[str]) -> Hashable:
        names = self._names_for_object(names)
        content = vars(module)
        return (module.__name__, *((name, self.of(content[name], names)) for name in sorted(names & content.keys())))

    def _class(self, value: type, names: frozenset[str]) -> Hashable:
        """Visits the attributes that functions read of a class itself; its methods are visited with its instances."""
        if is_librarys(value.__module__):
            return _Identity(value)
        parts: list[Hashable] = [_Identity(value)]
        names = self._names_for_object(names)
        for name in sorted(names):
            member = inspect.getattr_static(value, name, None)
            member = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            if member is not None and not inspect.isdatadescriptor(member):
                parts.append((name, self.of(member, names)))
        meta = type(value)
        own = {name for base in inspect.getmro(meta) if not is_librarys(base.__module__) for name in vars(base)}
        self.changes |= not own.isdisjoint(names | operators_of(meta))  # it computes what is read
        return tuple(parts)

    def _object(self, value: Any, names: frozenset[str]) -> Hashable:
        kind = type(value)
        parts: list[Hashable] = [cast(Hashable, kind)]
        is_module = isinstance(value, torch.nn.Module)
        calls: list[Any] = [getattr(kind, "__call__", None)]  # noqa: B004 - its code, not whether there is one
        if is_module:
            parts += [self._fixed(one, names) for one in hooks_of(value)]
            # If the module calls the attention, the mod does not call the module.
            calls = [] if is_running(kind.forward) else [*calls, kind.forward]
        calls = [one for one in calls if isinstance(one, types.FunctionType) and not is_of_fields(one)]
        names = self._names_for_object(names.union(*(names_in(one.__code__) for one in calls)))
        parts += [self._fixed(one, names, self._function) for one in calls]
        # Methods, properties and operators may name further attributes.
        seen: set[str] = set()
        pending = set(names | operators_of(cast(Hashable, kind)))
        while pending:
            seen |= pending
            named: set[str] = set()
            for base in kind.__mro__:  # all of them, since super() finds hidden ones
                members = vars(base)
                for name in sorted(pending & members.keys()):
                    self._member(members[name], name, names, parts, named, is_module)
            pending = named - seen
        fields = fields_of(value)
        wanted = frozenset((*seen, "__wrapped__", "forward"))  # the function of functools.lru_cache; that of a module
        by_any_name = self._wholly or seen & _REFLECTION or hasattr(own_part_of(kind), "__getattr__")
        by_any_name = by_any_name or (
            is_module and (extends_torchs_module(cast(Hashable, kind)) or seen & _REFLECTION_ON_MODULES)
        )
        in_slots = slots_of(value).keys()
        read = list(fields) if by_any_name else sorted(wanted & fields.keys())  # containers may be read in their order
        self.fields[id(value)] = [name for name in read if name not in in_slots]
        parts.extend((name, self.of(fields[name], wanted)) for name in self.fields[id(value)])
        parts.extend((name, self._fixed(fields[name], wanted)) for name in read if name in in_slots)
        return tuple(parts)

    def _member(
        self, member: Any, name: str, names: frozenset[str], parts: list[Hashable], named: set[str], is_module: bool
    ) -> None:
        """Visits the class attribute of a name that functions read of an instance, and the names that it uses."""
        member = member.fget if isinstance(member, property) else member
        member = member.func if isinstance(member, functools.cached_property) else member
        member = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if member is None or isinstance(member, UNCHANGING):
            return
        if not isinstance(member, types.FunctionType):
            parts.append((name, self._fixed(member, names)))
        elif not is_of_fields(member):
            parts.append((name, self._fixed(member, names, self._function)))
            named |= names_in(member.__code__)
        elif not is_module:
            named.add("__dict__")  # it may read any field


# A walk cannot see what a function reads by these names.
_UNSEEN = frozenset(
    "globals locals eval exec import_module environ getenv random currentframe _getframe f_globals f_locals "
    "are_deterministic_algorithms_enabled get_num_threads _version grad".split()
)
_OF_LAYOUT = frozenset(("stride", "is_contiguous", "storage_offset"))
_REFLECTION = frozenset(("getattr", "vars", "__dict__", "__getattribute__", "attrgetter", "methodcaller"))
_REFLECTION_ON_MODULES = frozenset(
    "children named_children modules named_modules parameters named_parameters buffers named_buffers state_dict "
    "get_submodule get_parameter get_buffer _modules _parameters _buffers".split()
)
