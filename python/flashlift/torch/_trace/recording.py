"""What is recorded while a mod runs: which tensor stands for which value, and what the program reads."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from flashlift.torch._internals import tree_map_only, warn_once
from flashlift.torch._program import LARGEST_ARGUMENT, Builder, Capture, Node, Reaches, type_of
from flashlift.torch._trace.lines import TraceError, where
from flashlift.torch._trace.record import CPU, Size, SizeOf, Slot, Source
from flashlift.torch._trace.values import Value, stand_in


def check_dense(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise TraceError(
            f"a mod reads a tensor of the layout {tensor.layout}{where()}; expected a dense one, such as its "
            "to_dense(), or torch.nested.to_padded_tensor of it"
        )


def flat(args: tuple, kwargs: dict) -> list[Any]:
    """The arguments of an operation, with those in lists."""
    found: list[Any] = []
    for one in (*args, *kwargs.values()):
        if isinstance(one, (list, tuple)):
            found.extend(one)
        else:
            found.append(one)
    return found


class Symbol:
    """A number that is an argument. If torch reads it, it has the value of the traced call."""

    node: Node


class _IntSymbol(int, Symbol):
    pass


class _FloatSymbol(float, Symbol):
    pass


@dataclass
class Sharing:
    """Traced tensors that have the same memory in PyTorch. They can be written if all are scalars that share their
    gradient, too."""

    tensors: list[torch.Tensor]
    are_written_alike: bool = True


class Recording:
    """What one trace has recorded. Traced tensors are ordinary tensors (filled with ones), recognised by their
    identity."""

    def __init__(
        self,
        leaves: Sequence[torch.Tensor],
        numbers: Sequence[torch.Tensor] = (),
        wrapped: Mapping[int, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        """wrapped: maps the identities of tensors to the tensors that they replace."""
        self.builder = Builder()
        self.captures: list[Capture] = []
        self.sources: list[Source] = []
        self.prelude: list[tuple[Callable, tuple, dict, bool]] = []
        self._values: dict[int, Value] = {}
        self._slots: dict[int, Slot] = {id(leaf): Slot(i) for i, leaf in reversed(list(enumerate(leaves)))}
        self._slot_count = self._leaf_count = len(leaves)
        self._numbers: dict[int, int | float] = {}  # of tensors that represent numbers
        for one in numbers:
            fits = one.is_floating_point() or abs(one.item()) <= LARGEST_ARGUMENT
            self._add_slot(one, torch.float32 if one.is_floating_point() else torch.int32 if fits else torch.int64)
        self.depends_on_sizes = False
        self.open_sizes: set[int] = set()  # identities of captured tensors whose sizes depend on content
        self.read_at: dict[tuple[Node, SizeOf | int], None] = {}
        self.numbers_read_at: list[int] = []  # captures that are numbers within these indices
        self._reaches = Reaches(dict.fromkeys(("b", "h", "q", "kv"), 1), self._number_of_index)
        self.unknown: list[torch.Tensor] = []  # that the mod reads
        self._made: set[int] = set()  # identities of tensors that the mod creates without operands
        self.own: set[int] = set()  # identities of tensors without views, that the mod computes from no traced values
        self._sharing: dict[int, Sharing] = {}  # by the identities of traced tensors
        self._wrapped = wrapped
        self._needs_gradient = any(one.requires_grad for one in leaves)
        self.autograd_function: str | None = None
        self._capture_of: dict[int, Value] = {}
        self._sizes: dict[int | SizeOf, Value] = {}
        self._alive: list[torch.Tensor] = [*leaves, *numbers]  # so that no identity is reused

    def traced(self, value: Value, requires_grad: bool = True) -> torch.Tensor:
        """A tensor that stands for a value. Floats require gradients, so that torch knows of the functions that the mod
        differentiates itself."""
        tensor = torch.ones((), dtype=value.dtype, device=CPU)
        if value.shape:
            tensor = tensor.expand(value.shape)
        tensor = stand_in(tensor)
        if requires_grad and tensor.is_floating_point():
            tensor.requires_grad_()
        self.bind(tensor, value)
        return tensor

    def bind(self, tensor: torch.Tensor, value: Value) -> None:
        self._values[id(tensor)] = value
        self._alive.append(tensor)

    def note_view(self, tensor: torch.Tensor, view: torch.Tensor, *, is_detached: bool) -> None:
        """Notes that two traced tensors have the same memory in PyTorch."""
        sharing = self._sharing.setdefault(id(tensor), Sharing([tensor]))
        sharing.tensors.append(view)
        are_scalars = not tensor.dim() and not view.dim()
        sharing.are_written_alike &= are_scalars and not is_detached and tensor.dtype == view.dtype
        self._sharing[id(view)] = sharing

    def write(self, tensor: torch.Tensor, node: Node) -> None:
        """Gives a traced scalar, and all that share its memory, another value."""
        sharing = self._sharing.get(id(tensor), Sharing([tensor]))
        if not sharing.are_written_alike:
            raise TraceError(
                f"an operation in place changes a tensor that shares its memory with another one{where()}; use an "
                "operation that returns a new tensor, or change a clone()"
            )
        if not torch.is_grad_enabled() and self.builder.follows(self.value_of(tensor).node):
            raise TraceError(
                f"an operation in place under torch.no_grad() changes a value, but not its gradient{where()}; use an "
                "operation that returns a new tensor"
            )
        for one in sharing.tensors:
            self.bind(one, Value.scalar(one.dtype, self.builder.cast(node, one.dtype)))

    def is_own(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self.own

    def make_traced(self, tensor: torch.Tensor) -> None:
        """Makes a scalar that the mod computes from no traced values one that it may change."""
        self.own.discard(id(tensor))
        if tensor.is_floating_point():
            tensor.requires_grad_()  # see traced()
        self.bind(tensor, Value.scalar(tensor.dtype, self.value_of(tensor).node))

    def keep_content(self, tensor: torch.Tensor) -> None:
        """Before a constant changes: copies those in its memory that the program has read, for what it has read."""
        memory = tensor.untyped_storage().data_ptr()
        for i, one in enumerate(self.sources):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() == memory:
                self.sources[i] = one.clone()
                self._capture_of.pop(id(one), None)

    def keep(self, tensor: torch.Tensor) -> None:
        """Keeps a constant alive as long as the trace depends on identities."""
        self._alive.append(tensor)
        self._made.add(id(tensor))

    def is_traced(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._values

    def is_number(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor stands for a number that the mod captures."""
        return id(tensor) in self._numbers

    def number_or_tensor(self, tensor: torch.Tensor) -> Any:
        """The number that a tensor stands for, or else the tensor."""
        return self._numbers.get(id(tensor), tensor)

    def is_captured(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._slots

    def is_open(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's content differs between calls: it is traced, or captured."""
        return id(tensor) not in self._made

    def is_leaf(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one that the mod captures, and not the result of an operation on such tensors."""
        slot = self._slots.get(id(tensor))
        return slot is not None and slot.number < self._leaf_count

    def captured_with(self, node: Any, number: int) -> torch.Tensor:
        """The captured tensor that is the result of this number of a node of autograd's graph."""
        captured = filter(self.is_captured, self._alive)
        return next(one for one in captured if one.grad_fn is node and one.output_nr == number)

    def linked(self) -> list[torch.Tensor]:
        """The traced tensors that have a node of autograd's graph."""
        return [one for one in self._alive if one.grad_fn is not None and self.is_traced(one)]

    def note_alias(self, tensor: torch.Tensor) -> None:
        """Notes another object for a traced tensor, as torch returns it for one that a backward function stored."""
        for one in self._alive:
            if self.is_traced(one) and one.data_ptr() == tensor.data_ptr() and one.shape == tensor.shape:
                return self.bind(tensor, self._values[id(one)])

    def is_unknown(self, tensor: torch.Tensor) -> bool:
        return not any(id(tensor) in known for known in (self._values, self._slots, self._made))

    def note_unknown(self, tensors: Iterable[torch.Tensor]) -> None:
        unknown = [one for one in tensors if self.is_unknown(one)]
        for one in unknown:
            self._check_memory(one)
        read = (self._wrapped.get(id(one), one) for one in unknown)
        self.unknown += [one for one in read if not any(one is known for known in self.unknown)]

    def _check_memory(self, tensor: torch.Tensor) -> None:
        """Refuses another object with the memory of a known tensor, which as_subclass() creates past all modes: one of
        a traced tensor has no content, and one of a captured tensor has lost its gradient. A new torch.nn.Parameter has
        none in PyTorch either."""
        if tensor.layout is not torch.strided or not tensor.numel() or type(tensor) is torch.nn.Parameter:
            return
        for one in self._alive:
            is_known = self.is_traced(one) or (self._needs_gradient and self.is_captured(one))
            if is_known and one.shape == tensor.shape and one.data_ptr() == tensor.data_ptr():
                raise TraceError(
                    f"as_subclass(), or an operation of a subclass, gives a result of the type {type(tensor).__name__} "
                    f"that the trace does not know{where()}; capture tensors as plain ones, by "
                    ".as_subclass(torch.Tensor) outside of the mod"
                )

    def value_of(self, tensor: torch.Tensor) -> Value:
        """The value that a tensor stands for: a traced tensor's own value; any other tensor is captured, or a
        constant."""
        found = self._values.get(id(tensor)) or self._capture_of.get(id(tensor))
        if found is not None:
            return found
        slot = self._slots.get(id(tensor))
        self.note_unknown([tensor])
        wrapped = self._wrapped.get(id(tensor))
        if slot is None and wrapped is None and tensor.dim() == 0:
            if self.is_unknown(tensor) and type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                raise TraceError(
                    f"a result has the type {type(tensor).__name__}, whose own operations the trace does not see"
                    f"{where()}; capture tensors as plain ones, by .as_subclass(torch.Tensor)"
                )
            node = self.builder.constant(tensor.item(), type_of(tensor.dtype))
            return Value.scalar(tensor.dtype, node)
        self._alive.append(tensor)
        value = self._capture(tensor, slot or (tensor if wrapped is None else wrapped))
        self._capture_of[id(tensor)] = value
        return value

    def _capture(self, tensor: torch.Tensor, source: Source) -> Value:
        check_dense(tensor)
        number = len(self.captures)
        dtype = source.dtype if isinstance(source, Slot) and source.dtype is not None else tensor.dtype
        self.captures.append(Capture(dtype, tensor.dim()))
        self.sources.append(source)
        type_ = type_of(dtype)
        if tensor.dtype == torch.float64 and not self.is_number(tensor):
            warn_once(
                "flashlift_float64_capture",
                "a mod captures a float64 tensor: programs compute in float32, and read it so. If differences of large "
                "numbers matter, such as times, subtract before the mod captures them, or capture integers",
            )
        shape: list[int] = list(tensor.shape)
        if isinstance(source, Slot):
            shape = [Size.of(size, SizeOf(source.number, dim)) for dim, size in enumerate(shape)]
        op = "number" if id(tensor) in self._numbers else "load"
        return Value(dtype, tuple(shape), lambda index: self.builder.node(op, type_, tuple(index), number))

    def size(self, size: int) -> Node:
        """The size of a dimension, as something that the program reads, so that another size does not need another
        program."""
        key = size.source if isinstance(size, Size) else size
        if key not in self._sizes:
            value = torch.tensor(size, dtype=torch.int32, device=CPU)
            self._sizes[key] = self._capture(value, key if isinstance(key, SizeOf) else value)
        return self._sizes[key].node

    def _number_of_index(self, capture: int) -> int:
        self.numbers_read_at.append(capture)
        return 1  # any: whether a reach is known does not depend on it

    def note_read(self, index: Node, size: int) -> None:
        """Notes an index, for each call's check against the size, if it depends on coordinates and numbers only."""
        if self._reaches.of(index) is not None:
            self.read_at[index, size.source if isinstance(size, Size) else size] = None

    def _add_slot(self, tensor: torch.Tensor, number_type: torch.dtype | None = None) -> None:
        self._slots[id(tensor)] = Slot(self._slot_count, number_type)
        self._slot_count += 1
        if number_type is not None:
            self._numbers[id(tensor)] = tensor.item()

    @staticmethod
    def _link(result: torch.Tensor, args: tuple, kwargs: dict) -> None:
        """Makes the result of an operation on captured tensors require a gradient as torch does, see traced()."""
        needs_gradient = any(isinstance(one, torch.Tensor) and one.requires_grad for one in flat(args, kwargs))
        if needs_gradient and torch.is_grad_enabled() and result.is_floating_point() and result.is_leaf:
            result.requires_grad_()

    def add_to_prelude(self, func: Callable, args: tuple, kwargs: dict, result: torch.Tensor, is_number: bool) -> None:
        """Records an operation on captured tensors, which runs again for each call."""
        recorded = tree_map_only(torch.Tensor, lambda one: self._slots.get(id(one), one), (args, kwargs))
        self.prelude.append((func, *recorded, is_number))
        number_type = None
        self._link(result, args, kwargs)
        if is_number:
            number_type = torch.float32 if result.is_floating_point() else torch.int64
            number_type = torch.bool if result.dtype == torch.bool else number_type
        self._add_slot(result, number_type)
        self._capture_of.pop(id(result), None)  # of a tensor that has changed
        self._alive.append(result)

    def add_parts_to_prelude(self, func: Callable, args: tuple, kwargs: dict, parts: Sequence[torch.Tensor]) -> None:
        """Records an operation with several results, such as torch.chunk."""
        recorded = tree_map_only(torch.Tensor, lambda one: self._slots.get(id(one), one), (args, kwargs))
        self.prelude.append((func, *recorded, False))
        whole = Slot(self._slot_count)
        self._slot_count += 1
        for i, one in enumerate(parts):
            self._link(one, args, kwargs)
            self.add_to_prelude(operator.getitem, (whole, i), {}, one, False)

    def with_symbols(self, given: Any) -> Any:
        """The arguments, with each tensor that stands for a number replaced by that number."""

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

    def detached(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same values, without a gradient."""
        if not tensor.is_floating_point() or not self.is_traced(tensor):
            return tensor
        value = self.value_of(tensor)

        def at(index: tuple[Node, ...]) -> Node:
            return self.builder.detached(value.at(index))

        return self.traced(Value(value.dtype, value.shape, at) if value.shape else Value.scalar(value.dtype, at(())))
