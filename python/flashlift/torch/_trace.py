"""Running a mod once over traced scalars, with PyTorch's own dispatch, and recording what it does as a program.

A mod is a Python function of 0-dimensional tensors. It is run under a TorchDispatchMode, which sees each ATen operation
with its final overload:

- an operation on traced values becomes nodes of the program (_operations.py);
- an operation on captured tensors alone is carried out as it is and recorded, to be done again for each call's tensors
  (through autograd, if they need gradients); its results are what the program reads.

make_fx would give the same operations as a graph, but not the Python line of each, and at a higher cost.
"""

import contextlib
import functools
import linecache
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from flashlift._errors import UnsupportedError
from flashlift.torch._program import Bounds, Builder, Capture, Node, print_program, type_of
from flashlift.torch._values import Value

_CPU = torch.device("cpu")
INPUTS = {"score_mod": ("score", "b", "h", "q", "kv"), "mask_mod": ("b", "h", "q", "kv")}


class TraceError(UnsupportedError):
    """A mod does what a score program cannot say. The message names the operation and the line."""


@dataclass(frozen=True)
class Slot:
    """A tensor or a number of the prelude: what is captured, or an operation on it gives, in a call."""

    number: int
    dtype: torch.dtype | None = None  # of a number, as the program reads it


class Size(int):
    """The size of a dimension of what is captured. It is that of the traced call; another call's may be another."""

    source: "SizeOf"


@dataclass(frozen=True)
class SizeOf:
    """The size of a dimension of a slot's tensor, as a number that the program reads."""

    number: int
    dim: int
    dtype: torch.dtype = torch.int32


Source = Slot | SizeOf | torch.Tensor  # a tensor: one that the mod makes itself


class Symbol:
    """A number that is an argument. Where torch asks, it is the number of the call that was traced."""

    node: Node


class _IntSymbol(int, Symbol):
    pass


class _FloatSymbol(float, Symbol):
    pass


@dataclass
class Trace:
    """A mod as a program, and how to get the tensors that the program reads from those that the mod captures."""

    kind: str
    result: Node
    builder: Builder
    captures: list[Capture]
    sources: list[Source]  # of each capture
    # Operations on what is captured: (function, arguments, keyword arguments, whether the result is a number), giving the
    # slots after the leaves'.
    prelude: list[tuple[Callable, tuple, dict, bool]]
    # Whether another program might come of captured tensors of other sizes, rather than the same one.
    depends_on_sizes: bool = False
    # The name of a torch.autograd.Function in it: its own backward function is no part of the program.
    autograd_function: str | None = None
    # Whether it holds tensors that are neither among the leaves nor made by the mod: another function's may be others.
    reads_unknown: bool = False
    _texts: dict[tuple, tuple[str, list[Source]]] = field(default_factory=dict)

    def program(self, bounds: Bounds) -> tuple[str, list[Source]]:
        """The program's text for these sizes, and the sources of the tensors that it reads."""
        key = (bounds.b, bounds.h, bounds.q, bounds.kv)
        found = self._texts.get(key)
        if found is None:
            text, used = print_program(self.kind, self.result, self.captures, self.builder, bounds)
            if len(self._texts) > 64:  # of many lengths, those in use come back soon enough
                self._texts.clear()
            found = self._texts[key] = (text, [self.sources[i] for i in used])
        return found

    def tensors(
        self,
        sources: Sequence[Source],
        leaves: Sequence[torch.Tensor],
        numbers: Sequence[int | float] = (),
        device: torch.device = _CPU,
    ) -> list[torch.Tensor]:
        """The tensors behind `sources` when the mod captures `leaves` and, as arguments, `numbers`."""
        slots: list[Any] = [*leaves, *numbers]
        in_mode = torch._C._len_torch_dispatch_stack() > 0
        for function, args, kwargs, is_number in self.prelude:
            if is_number:
                args, kwargs = tree_map_only(Slot, lambda slot: as_tensor(slots[slot.number]), (args, kwargs))
                result = function(*args, **kwargs)
                slots.append(result if in_mode else result.item())
            else:
                args, kwargs = tree_map_only(Slot, lambda slot: slots[slot.number], (args, kwargs))
                slots.append(function(*args, **kwargs))
        found = []
        for one in sources:
            if type(one) is SizeOf:
                value = slots[one.number].shape[one.dim]
            else:
                value = slots[one.number] if type(one) is Slot else one
            if type(one) not in (Slot, SizeOf) and in_mode:
                # A graph is being traced: it makes its constants itself, whatever tensors it is made of.
                value = torch.tensor(value.tolist(), dtype=value.dtype, device=device)
            elif isinstance(value, torch.SymFloat):
                value = as_tensor(value).to(one.dtype).to(device)
            elif not isinstance(value, torch.Tensor) and (in_mode or isinstance(value, torch.SymInt)):
                value = torch.full((), value, dtype=one.dtype, device=device)
            elif not isinstance(value, torch.Tensor):
                value = _number_tensor(value, one.dtype, device)
            elif type(one) is Slot and one.dtype is not None:
                value = value.to(one.dtype)
            elif value.device != device and (value.dim() == 0 or type(one) is not Slot):
                value = _moved(value, device)
            found.append(value)
        return found


@functools.lru_cache(maxsize=4096)
def _number_tensor(value: int | float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A number as programs read it. Kept: making a tensor takes longer than finding one, and copying it to a GPU longer
    still."""
    with _disable_current_modes(), torch._C._DisableFuncTorch():
        return torch.tensor(value, dtype=dtype, device=device)


_copies: "weakref.WeakKeyDictionary[torch.Tensor, torch.Tensor]" = weakref.WeakKeyDictionary()


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A scalar, or a table that the mod makes itself, where the kernel can read it."""
    if tensor.requires_grad or tensor._version:
        return tensor.to(device)
    copy = _copies.get(tensor)
    if copy is None or copy.device != device:
        copy = _copies[tensor] = tensor.to(device)
    return copy


def as_tensor(number: int | float) -> torch.Tensor:
    """A number in Python's own precision."""
    if isinstance(number, torch.SymInt):
        return torch.full((), number, dtype=torch.int64, device=_CPU)
    if isinstance(number, torch.SymFloat):  # of a product AOTAutograd makes tensors; it would compile another torch.full anew
        return torch.ones((), dtype=torch.float64, device=_CPU) * number
    if isinstance(number, torch.Tensor):
        return number
    return torch.tensor(number, dtype=torch.float64 if type(number) is float else None, device=_CPU)


def _is_indexing(func: Any) -> bool:
    return func.overloadpacket in (torch.ops.aten.index, torch.ops.aten._unsafe_index)


class Tracer(TorchDispatchMode):
    """The state of one trace. Traced tensors are ordinary ones (filled with ones), known by their identity."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """True would have PyTorch wrap the dispatch, which imports TorchDynamo: two seconds in a process's first call.
        Dynamo leaves frames alone under a mode as it is."""
        return False

    def __init__(
        self,
        leaves: Sequence[torch.Tensor],
        numbers: Sequence[torch.Tensor] = (),
        wrapped: Mapping[int, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        """wrapped: by the identities of tensors, those in whose places they are."""
        super().__init__()
        self.builder = Builder()
        self.captures: list[Capture] = []
        self.sources: list[Source] = []
        self.prelude: list[tuple[Callable, tuple, dict, bool]] = []
        self._values: dict[int, Value] = {}
        self._slots: dict[int, Slot] = {id(leaf): Slot(i) for i, leaf in reversed(list(enumerate(leaves)))}
        self._slot_count = len(leaves)
        self._numbers: dict[int, int | float] = {}  # of the tensors that stand for numbers
        for one in numbers:
            self._add_slot(one, torch.float32 if one.is_floating_point() else torch.int32)
        self.depends_on_sizes = False
        self.reads_unknown = False
        self._made: set[int] = set()  # identities of the tensors that the mod makes of nothing
        self._wrapped = wrapped
        self.autograd_function: str | None = None
        self.has_gradient = True  # not while the mod runs under torch.no_grad()
        self._open: set[Any] = set()  # operations that are being taken apart
        self._capture_of: dict[int, Value] = {}
        self._sizes: dict[int | SizeOf, Value] = {}
        self._alive: list[torch.Tensor] = [*leaves, *numbers]  # so that no identity is used twice

    def traced(self, value: Value) -> torch.Tensor:
        """A tensor that stands for a value."""
        tensor = torch.ones((), dtype=value.dtype, device=_CPU)
        if value.shape:
            tensor = tensor.expand(value.shape)
        self.bind(tensor, value)
        return tensor

    def bind(self, tensor: torch.Tensor, value: Value) -> None:
        self._values[id(tensor)] = value
        self._alive.append(tensor)

    def keep(self, tensor: torch.Tensor) -> None:
        """Keeps a constant alive for as long as the trace goes by identities."""
        self._alive.append(tensor)
        self._made.add(id(tensor))

    def is_traced(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._values

    def is_number(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._numbers

    def is_open(self, tensor: torch.Tensor) -> bool:
        """Whether a call decides what is in it: it is traced, or captured."""
        return id(tensor) not in self._made

    def _is_unknown(self, tensor: torch.Tensor) -> bool:
        return not any(id(tensor) in known for known in (self._values, self._slots, self._made))

    def value_of(self, tensor: torch.Tensor) -> Value:
        """What a tensor stands for: a traced one its value; any other one is captured, or a constant."""
        found = self._values.get(id(tensor)) or self._capture_of.get(id(tensor))
        if found is not None:
            return found
        slot = self._slots.get(id(tensor))
        self.reads_unknown |= self._is_unknown(tensor)
        wrapped = self._wrapped.get(id(tensor))
        if slot is None and wrapped is None and tensor.dim() == 0:
            node = self.builder.constant(tensor.item(), type_of(tensor.dtype))
            return Value.scalar(tensor.dtype, node)
        self._alive.append(tensor)
        value = self._capture(tensor, slot or (tensor if wrapped is None else wrapped))
        self._capture_of[id(tensor)] = value
        return value

    def _capture(self, tensor: torch.Tensor, source: Source) -> Value:
        number = len(self.captures)
        dtype = source.dtype if isinstance(source, Slot) and source.dtype is not None else tensor.dtype
        self.captures.append(Capture(dtype, tensor.dim()))
        self.sources.append(source)
        type_ = type_of(dtype)
        shape: list[int] = list(tensor.shape)
        if isinstance(source, Slot):
            for dim, size in enumerate(shape):
                shape[dim] = Size(size)
                shape[dim].source = SizeOf(source.number, dim)
        return Value(dtype, tuple(shape), lambda index: self.builder.node("load", type_, tuple(index), number))

    def size(self, size: int) -> Node:
        """The size of a dimension, as something that the program reads: another size is no other program."""
        key = size.source if isinstance(size, Size) else size
        if key not in self._sizes:
            value = torch.tensor(size, dtype=torch.int32, device=_CPU)
            self._sizes[key] = self._capture(value, key if isinstance(key, SizeOf) else value)
        return self._sizes[key].node

    def _add_slot(self, tensor: torch.Tensor, number_type: torch.dtype | None = None) -> None:
        self._slots[id(tensor)] = Slot(self._slot_count, number_type)
        self._slot_count += 1
        if number_type is not None:
            self._numbers[id(tensor)] = tensor.item()

    def _with_symbols(self, given: Any) -> Any:
        """Arguments with each tensor that stands for a number as that number."""

        def symbol(tensor: torch.Tensor) -> Any:
            number = self._numbers.get(id(tensor))
            if number is None:
                return tensor
            if isinstance(number, bool):
                return tensor
            made = _FloatSymbol(number) if isinstance(number, float) else _IntSymbol(number)
            made.node = self.value_of(tensor).node
            return made

        return tree_map_only(torch.Tensor, symbol, given)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        from flashlift.torch._operations import translate  # they know each other

        kwargs = kwargs or {}
        tensors = [one for one in _flatten(args, kwargs) if isinstance(one, torch.Tensor)]
        if func is torch.ops.aten.lift_fresh.default:  # the tensor of a literal
            self.keep(args[0])
        if self.has_gradient and not torch.is_grad_enabled():
            self.autograd_function = self.autograd_function or _running_autograd_function()
        self.reads_unknown |= any(self._is_unknown(one) for one in tensors)
        if not any(id(one) in self._values for one in tensors):
            return self._run_now(func, args, kwargs, tensors)
        if any(id(one) in self._numbers for one in tensors):
            args, kwargs = self._with_symbols((args, kwargs))
        # Indexing is the same program for tables of any size; of all else it is not known.
        if not _is_indexing(func) and any(one.dim() for one in tensors):
            self.depends_on_sizes = True
        result = translate(self, func, args, kwargs)
        if result is NotImplemented:
            result = self._decompose(func, args, kwargs)
        if result is NotImplemented and torch.Tag.nondeterministic_seeded in func.tags:
            raise _random_numbers(func)
        if result is NotImplemented:
            raise TraceError(f"{func} has no counterpart in score programs{where()}")
        if not self.has_gradient and not func._schema.is_mutable:
            return tree_map_only(torch.Tensor, self.detached, result)
        return result

    def detached(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same values, without a gradient: a program differentiates no integers."""
        if not tensor.is_floating_point() or not self.is_traced(tensor):
            return tensor
        value = self.value_of(tensor)

        def at(index: tuple[Node, ...]) -> Node:
            node = value.at(index)
            if node.op in ("constant", "bitcast_f32"):
                return node
            return self.builder.node("bitcast_f32", "f32", (self.builder.node("bitcast_i32", "i32", (node,)),))

        return self.traced(Value(value.dtype, value.shape, at) if value.shape else Value.scalar(value.dtype, at(())))

    def _decompose(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """The operation by others, as PyTorch says that it is made of them; NotImplemented if it does not say so."""
        from torch._decomp import decomposition_table  # a large module that few mods need

        from flashlift.torch._composites import COMPOSITES

        if func in self._open:  # PyTorch's rules for what is elementary lead back to it
            return NotImplemented
        self._open.add(func)
        try:
            with self:
                own = COMPOSITES.get(func._schema.name)
                result = NotImplemented if own is None else own(*args, **kwargs)
                if result is NotImplemented:
                    result = func.decompose(*args, **kwargs)
                if result is NotImplemented and func in decomposition_table:
                    return decomposition_table[func](*args, **kwargs)
                composite = torch._C.DispatchKey.CompositeExplicitAutograd
                if (
                    result is NotImplemented
                    and func.namespace != "aten"
                    and func.has_kernel_for_dispatch_key(composite)
                ):
                    return func._op_dk(composite, *args, **kwargs)  # somebody's own operation, written in others
            return result
        finally:
            self._open.discard(func)

    def _run_now(self, func: Any, args: tuple, kwargs: dict, tensors: list[torch.Tensor]) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise _random_numbers(func)
        depends = [one for one in tensors if id(one) in self._slots]
        if depends and func._schema.is_mutable:
            raise TraceError(f"{func} changes a captured tensor{where()}")
        is_number = bool(depends) and all(id(one) in self._numbers for one in depends)
        if self._numbers and depends and not is_number:
            now, now_kwargs = tree_map_only(torch.Tensor, lambda one: self._numbers.get(id(one), one), (args, kwargs))
            if any(id(one) in self._numbers for one in depends):
                func = func.overloadpacket  # the overload that was called takes a tensor in place of a number
            result = func(*now, **now_kwargs)
        else:
            result = func(*args, **kwargs)
        self.depends_on_sizes |= any(one.dim() for one in depends)
        if not depends:
            for one in result if isinstance(result, (list, tuple)) else [result]:
                if isinstance(one, torch.Tensor):
                    self.keep(one)
            return result
        if not isinstance(result, torch.Tensor) or (is_number and result.dim()):
            raise TraceError(
                f"{func} reads a captured tensor's content while the mod is traced{where()}; use tensor operations only"
            )
        if id(result) in self._slots:  # an operation that gave its argument back
            return result
        recorded = tree_map_only(torch.Tensor, lambda one: self._slots.get(id(one), one), (args, kwargs))
        func = func if self.has_gradient else _without_gradient(func)
        self.prelude.append((func, *recorded, is_number))
        number_type = None
        if is_number:
            number_type = torch.float32 if result.is_floating_point() else torch.int64
            number_type = torch.bool if result.dtype == torch.bool else number_type
        self._add_slot(result, number_type)
        self._alive.append(result)
        return result


def _random_numbers(func: Any) -> TraceError:
    return TraceError(
        f"{func} draws random numbers, and a score program is a pure function{where()}; for dropout there is dropout_p="
    )


def _without_gradient(func: Callable) -> Callable:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return func(*args, **kwargs)

    return call


class IndexByTensors(TorchFunctionMode):
    """table[b, q]: torch's own indexing reads the content of 0-dimensional index tensors; this one does not."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is torch.Tensor.__getitem__:
            tensor, index = args
            index = index if isinstance(index, tuple) else (index,)
            if any(isinstance(one, torch.Tensor) for one in index):
                return _index_by_tensors(tensor, index)
        return func(*args, **(kwargs or {}))


class _Unwrapped:
    """While a mod is traced, torch.func's transforms are left, and what they wrapped has an ordinary tensor of the same
    shape in its place: operations on it would go to the transform, and give wrappers that nobody has seen."""

    def __init__(self) -> None:
        self.in_transform = torch._C._are_functorch_transforms_active()
        self.wrapped: dict[int, torch.Tensor] = {}  # by the identities of those in their places
        self._in_place: dict[int, torch.Tensor] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.in_transform or not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return tensor
        found = self._in_place.get(id(tensor))
        if found is None:
            with _disable_current_modes():  # a transform would wrap this too, but has been left
                found = torch.zeros((), dtype=tensor.dtype, device=_CPU).expand(tensor.shape)
            self._in_place[id(tensor)] = found
            self.wrapped[id(found)] = tensor
        return found

    def without_transforms(self) -> contextlib.AbstractContextManager:
        if not self.in_transform:
            return contextlib.nullcontext()
        from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

        return temporarily_clear_interpreter_stack()


# What gives a tensor's content without any ATen operation.
_READS_CONTENT = frozenset(
    getattr(torch.Tensor, name)
    for name in ("numpy", "tolist", "__array__", "data_ptr", "untyped_storage", "storage", "__dlpack__")
)


class _ModFunctions(IndexByTensors):
    """While a mod is traced: sees where it switches gradients off. Whether they are on does not tell, since
    torch.autograd.Function has them off in its forward function. And where a graph reads a number."""

    def __init__(self, tracer: Tracer, unwrapped: "_Unwrapped") -> None:
        super().__init__()
        self._tracer = tracer
        self._unwrapped = unwrapped

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if self._unwrapped.in_transform:
            args, kwargs = tree_map_only(torch.Tensor, self._unwrapped.of, (args, kwargs))
        if func is torch._C._set_grad_enabled:
            self._tracer.has_gradient = args[0]
        if func is torch.Tensor.item and self._tracer.is_number(args[0]):
            return args[0]  # a tensor still, so that it is seen where it goes
        if func in _READS_CONTENT and self._tracer.is_open(args[0]):
            raise TraceError(
                f"Tensor.{func.__name__} reads the content of a tensor while the mod is traced{where()}; use tensor "
                "operations only"
            )
        return super().__torch_function__(func, types, args, kwargs)


def _index_by_tensors(tensor: torch.Tensor, index: tuple) -> torch.Tensor:
    consumed = sum(one is not None and one is not Ellipsis for one in index)
    if consumed > tensor.dim():
        raise IndexError(f"too many indices for tensor of dimension {tensor.dim()}{where()}")
    full = (slice(None),) * (tensor.dim() - consumed)
    at = next((i for i, one in enumerate(index) if one is Ellipsis), len(index))
    index = (*index[:at], *full, *index[at + 1 :])
    # First what is no tensor, by torch's own indexing; then the tensors.
    by_others = tuple(slice(None) if isinstance(one, torch.Tensor) else one for one in index)
    if any(type(one) is not slice or one != slice(None) for one in by_others):
        tensor = tensor[by_others]
    by_tensor = [one if isinstance(one, torch.Tensor) else None for one in index if not isinstance(one, int)]
    return torch.ops.aten.index.Tensor(tensor, by_tensor)


def trace(
    mod: Callable,
    kind: str,
    leaves: Sequence[torch.Tensor],
    extra: Sequence[torch.Tensor] = (),
    numbers: Sequence[torch.Tensor] = (),
) -> Trace:
    """Runs `mod` over traced scalars.

    leaves: the tensors that it captures, as far as they are known; others that it reads become constants.
    extra: further arguments for it, after the scalars; they are leaves as well.
    numbers: tensors that it captures in place of numbers, which are arguments of the program.
    Raises TraceError for what a program cannot say.
    """
    # Gradients are on here, so that they are on again where a mod leaves torch.no_grad().
    unwrapped = _Unwrapped()
    with (
        _disable_current_modes(),
        unwrapped.without_transforms(),
        torch._C._AutoDispatchBelowAutograd(),
        torch.enable_grad(),
    ):
        tracer = Tracer([unwrapped.of(one) for one in (*leaves, *extra)], numbers, unwrapped.wrapped)
        scalars = []
        for name in INPUTS[kind]:
            dtype = torch.float32 if name == "score" else torch.int32
            scalars.append(tracer.traced(Value.scalar(dtype, tracer.builder.input(name))))
        with tracer, _ModFunctions(tracer, unwrapped):
            result = mod(*scalars, *extra)
        node = _result(tracer, unwrapped.of(result) if isinstance(result, torch.Tensor) else result, kind)
    return Trace(
        kind,
        node,
        tracer.builder,
        tracer.captures,
        tracer.sources,
        tracer.prelude,
        tracer.depends_on_sizes,
        tracer.autograd_function if kind == "score_mod" else None,
        tracer.reads_unknown,
    )


def _result(tracer: Tracer, result: Any, kind: str) -> Node:
    if isinstance(result, (bool, int, float)):
        result = torch.tensor(result, device=_CPU)
        tracer.keep(result)
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"{kind} must return a tensor, got {type(result).__name__}")
    if result.numel() != 1:
        raise RuntimeError(f"{kind} must return a scalar, got a tensor of shape {list(result.shape)}")
    value = tracer.value_of(result)
    node = value.at(tuple(tracer.builder.constant(0, "i64") for _ in value.shape))
    if kind == "mask_mod":
        if value.dtype != torch.bool:
            raise RuntimeError(f"mask_mod must return a boolean tensor, got {value.dtype}")
        return node
    return tracer.builder.convert(node, "f32")


def where() -> str:
    """The line of the mod that runs, as " at FILE:LINE: SOURCE"."""
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_filename
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] not in ("torch", "flashlift") and not name.startswith("<"):
            line = linecache.getline(name, frame.f_lineno).strip()
            return f" at {name}:{frame.f_lineno}" + (f": {line}" if line else "")
        frame = frame.f_back
    return ""


def _running_autograd_function() -> str | None:
    """The name of the torch.autograd.Function whose forward function runs, if any."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is torch.autograd.Function.apply.__func__.__code__:
            return frame.f_locals["cls"].__name__
        frame = frame.f_back
    return None


def _flatten(args: tuple, kwargs: dict) -> list[Any]:
    flat: list[Any] = []
    for one in (*args, *kwargs.values()):
        if isinstance(one, (list, tuple)):
            flat.extend(one)
        else:
            flat.append(one)
    return flat
