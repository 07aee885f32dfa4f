"""A mod as a program, and how the tensors that the program reads are made from those that the mod captures."""

import functools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_true

from flashlift.torch._internals import (
    are_transforms_active,
    count_of_modes,
    disable_modes,
    disable_transforms,
    tree_map_only,
)
from flashlift.torch._program import Bounds, Builder, Capture, Node, Reach, Reaches, print_program

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Slot:
    """A tensor or a number of the prelude: a captured one, or the result of an operation on captured ones, computed for
    each call."""

    number: int
    dtype: torch.dtype | None = None  # for a number, the type in which the program reads it


def hint_of(size: int | torch.SymInt) -> int:
    """The size in the first call, if a graph leaves it open: asking for its value would make it a constant."""
    hint = size.node.hint if isinstance(size, torch.SymInt) else size
    return int(size) if hint is None else hint


class Size(int):
    """The size of a dimension of a captured tensor. In the traced call it has this value; another call may have
    another."""

    source: "SizeOf"

    @staticmethod
    def of(size: int | torch.SymInt, source: "SizeOf") -> "Size":
        made = Size(hint_of(size))
        made.source = source
        return made


@dataclass(frozen=True)
class SizeOf:
    """The size of a dimension of a slot's tensor, as a number that the program reads."""

    number: int
    dim: int
    dtype: torch.dtype = torch.int32


Source = Slot | SizeOf | torch.Tensor  # a tensor that the mod creates itself


@dataclass
class Trace:
    """A mod as a program, and the operations that compute the tensors that the program reads from those that the mod
    captures."""

    kind: str
    result: Node
    builder: Builder
    captures: list[Capture]
    sources: list[Source]  # of the captured tensors
    # Operations on captured values: (function, arguments, keyword arguments, whether the result is a number). Their
    # results have the slots after those of the leaves.
    prelude: list[tuple[Callable, tuple, dict, bool]]
    # Whether captured tensors of other sizes may give another program.
    depends_on_sizes: bool = False
    # Whether sizes depend on the content of captured tensors, such as that of table[table > 0].
    has_open_sizes: bool = False
    # The name of a torch.autograd.Function in it whose backward function cannot be part of the program.
    autograd_function: str | None = None
    # Tensors that the mod reads and that are neither leaves nor created by it: they may differ in another function.
    unknown: list[torch.Tensor] = field(default_factory=list)
    # Indices that depend on coordinates and numbers only, with the sizes of the dimensions that they index.
    read_at: list[tuple[Node, SizeOf | int]] = field(default_factory=list)
    numbers_read_at: list[int] = field(default_factory=list)  # the captures that are numbers within these
    _in_range: set[tuple] = field(default_factory=set)  # sizes and numbers for which all of these are in range
    _texts: dict[tuple, tuple[str, list[Source]]] = field(default_factory=dict)
    _with_gradient: list[Source] | None = None

    @property
    def reads_unknown(self) -> bool:
        return bool(self.unknown)

    def program(self, bounds: Bounds) -> tuple[str, list[Source]]:
        """The program's text for these sizes, and the sources of the tensors that it reads."""
        key = (bounds.b, bounds.h, bounds.q, bounds.kv)
        found = self._texts.get(key)
        if found is None:
            text, used = print_program(self.kind, self.result, self.captures, self.builder, bounds)
            if len(self._texts) > 64:  # if there are many lengths, those in use are soon added again
                self._texts.clear()
            found = self._texts[key] = (text, [self.sources[i] for i in used])
        return found

    def gets_gradient(self, source: Source) -> bool:
        """Whether the result depends on a tensor's elements in a way that has a gradient. Without one, PyTorch's
        gradient is None, and an optimizer leaves the tensor as it is, where zeros would decay it."""
        if self._with_gradient is None:
            loads = self.builder.loads_with_gradient(self.result) if self.kind == "score_mod" else ()
            self._with_gradient = [self.sources[i] for i in loads]
        return any(source is one for one in self._with_gradient)

    def tensors(
        self,
        sources: Sequence[Source],
        leaves: Sequence[torch.Tensor],
        numbers: Sequence[int | float] = (),
        device: torch.device = CPU,
        sizes: Mapping[str, Any] | None = None,
    ) -> list[torch.Tensor]:
        """The tensors for `sources` if the mod captures `leaves` and, as arguments, `numbers`. Raises IndexError, as
        PyTorch does, if coordinates within `sizes` give an index that is out of range for the tensor that it reads."""
        slots: list[Any] = [*leaves, *numbers]
        in_mode = count_of_modes() > 0
        # While a graph is traced, it must create its constants itself, from tensors of any kind.
        created: dict[tuple[int, torch.device], torch.Tensor] = {}

        def created_anew(tensor: torch.Tensor, on: torch.device) -> torch.Tensor:
            key = (id(tensor), on)
            if key not in created:
                created[key] = torch.tensor(tensor.tolist(), dtype=tensor.dtype, device=on)
            return created[key]

        for function, args, kwargs, is_number in self.prelude:
            if is_number:
                numbers_now = (slots[one.number] if type(one) is Slot else one for one in args)
                slots.append(function(*(map(as_tensor, numbers_now) if in_mode else numbers_now)))
            else:
                if in_mode:
                    args, kwargs = tree_map_only(
                        torch.Tensor, lambda one: created_anew(one, one.device), (args, kwargs)
                    )
                args, kwargs = tree_map_only(Slot, lambda slot: slots[slot.number], (args, kwargs))
                slots.append(function(*args, **kwargs))
        if sizes is not None and self.read_at:
            self._check_indices(sizes, slots)
        found = []
        for one in sources:
            if type(one) is SizeOf:
                value = slots[one.number].shape[one.dim]
            else:
                value = slots[one.number] if type(one) is Slot else one
            if type(one) not in (Slot, SizeOf) and in_mode:
                value = created_anew(value, device)
            elif isinstance(value, torch.SymFloat):
                value = as_tensor(value).to(one.dtype).to(device)
            elif not isinstance(value, torch.Tensor) and (in_mode or isinstance(value, torch.SymInt)):
                value = torch.full((), value, dtype=one.dtype, device=device)
            elif not isinstance(value, torch.Tensor):
                value = _number_tensor(value or _zero(value), one.dtype, device)
            elif type(one) is SizeOf:  # a size is a tensor to torch.jit.trace
                value = value.to(one.dtype).to(device)
            elif type(one) is Slot and one.dtype is not None:
                value = value.to(one.dtype)
            elif value.device != device and (value.dim() == 0 or type(one) is not Slot):
                value = _moved(value, device)
            found.append(value)
        return found

    def suits(self, leaves: Sequence[torch.Tensor], numbers: Sequence[int | float]) -> bool:
        """Whether the program takes what Python computes from these numbers: no error, and no number beyond 64
        bits."""
        if not any(is_number for *_, is_number in self.prelude):
            return True
        slots = dict(enumerate(numbers, len(leaves)))
        first = len(leaves) + len(numbers)
        for place, (function, args, _, is_number) in enumerate(self.prelude, first):
            if not is_number:
                continue
            try:
                number = function(*(slots[one.number] if type(one) is Slot else one for one in args))
            except (ArithmeticError, ValueError):  # a division by zero, a shift by a negative number
                return False
            if not (-(2**63) <= number < 2**63 if isinstance(number, int) else math.isfinite(number)):
                return False
            slots[place] = number
        return True

    def _check_indices(self, sizes: Mapping[str, Any], slots: Sequence[Any]) -> None:
        numbers = {one: slots[cast(Slot, self.sources[one]).number] for one in self.numbers_read_at}
        lengths = [slots[of.number].shape[of.dim] if type(of) is SizeOf else of for _, of in self.read_at]
        key = (*sizes.values(), *numbers.values(), *lengths)
        is_known = all(type(one) is int for one in key)
        if is_known and key in self._in_range:
            return
        if any(type(one) is int and one == 0 for one in sizes.values()):
            return  # there are no coordinates
        reaches = Reaches({name: _plain(one) for name, one in sizes.items()}, numbers.__getitem__)
        for (index, _), size in zip(self.read_at, map(_plain, lengths), strict=True):
            reach = reaches.of(index)
            if reach is not None:
                self._check_index(index, reach, size, sizes)
        if is_known:
            if len(self._in_range) > 1024:
                self._in_range.clear()
            self._in_range.add(key)

    def _check_index(self, index: Node, reach: Reach, size: Any, sizes: Mapping[str, Any]) -> None:
        """A bound that no coordinates may reach is no error, unless all of the index lies beyond the tensor."""
        low, high = reach[:2]
        if _holds(-size <= (low if reach.low_is_met else high)) and _holds((high if reach.high_is_met else low) < size):
            return
        low, high, size = map(int, (low, high, size))
        coordinate = index.args[0] if index.op == "to_i64" else index
        name = coordinate.op if coordinate.op in sizes else f"an index from {low}"
        raise IndexError(
            f"{self.kind} reads a tensor at {name}, which goes to {high}, in a dimension of size {size}; expected "
            f"at least {max(-low, high + 1)}: pad the tensor, or clamp the index"
        )


def _plain(size: Any) -> Any:
    """To torch.jit.trace, sizes are tensors, and its graph has no conditions: indices stay clamped."""
    return int(size) if isinstance(size, torch.Tensor) else size


def _holds(condition: bool | torch.SymBool) -> bool:
    """Whether sizes are as expected. Those that a graph leaves open become a condition of the graph: it is compiled
    again for others."""
    return condition if type(condition) is bool else guard_or_true(condition)


def _zero(value: int | float) -> int | str:
    """A zero that is different from others as a key: 0.0 and -0.0 are equal."""
    return repr(value) if type(value) is float else int(value)


@functools.lru_cache(maxsize=4096)
def _number_tensor(given: int | float | str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A number in the form that programs read. Cached: making a tensor takes longer than finding one, and copying it to
    a GPU takes longer still."""
    value = float(given) if isinstance(given, str) else given  # see _zero()
    if not count_of_modes() and not are_transforms_active() and not torch.is_inference_mode_enabled():
        return torch.tensor(value, dtype=dtype, device=device)  # without the contexts, which take longer
    with disable_modes(), disable_transforms(), torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device=device)


_copies: "weakref.WeakKeyDictionary[torch.Tensor, torch.Tensor]" = weakref.WeakKeyDictionary()


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Moves a scalar, or a table that the mod creates itself, to the device where the kernel can read it."""
    if tensor.requires_grad or tensor.is_inference() or tensor._version:
        return tensor.to(device)
    copy = _copies.get(tensor)
    if copy is None or copy.device != device:
        with torch.inference_mode(False):
            copy = _copies[tensor] = tensor.to(device)
    return copy


def as_tensor(number: Any) -> torch.Tensor:
    """A number as a tensor, in Python's own precision."""
    if isinstance(number, torch.SymInt):
        return torch.full((), cast(int, number), dtype=torch.int64, device=CPU)
    if isinstance(
        number, torch.SymFloat
    ):  # AOTAutograd would make a product a tensor, and compile another torch.full for it
        return torch.ones((), dtype=torch.float64, device=CPU) * cast(float, number)
    if isinstance(number, torch.Tensor):
        return number
    return torch.tensor(number, dtype=torch.float64 if type(number) is float else None, device=CPU)
