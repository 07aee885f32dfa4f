"""What a mod does that never becomes an ATen operation, or not the right one: seen as the functions that it calls."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from flashlift.torch._internals import no_subclasses, tree_map_only
from flashlift.torch._trace.dispatch import Dispatch
from flashlift.torch._trace.lines import TraceError, where
from flashlift.torch._trace.recording import Recording
from flashlift.torch._trace.transforms import Unwrapped


class IndexByTensors(TorchFunctionMode):
    """Traces table[b, q]: torch's own indexing would read the content of 0-dimensional index tensors."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is torch.Tensor.__getitem__:
            tensor, index = args
            if isinstance(index, list) and any(isinstance(one, torch.Tensor) for one in (*index, *_in_lists(index))):
                raise TraceError(
                    f"a list of tensors as an index{where()}, whose meaning depends on PyTorch's version; use "
                    "table[i, j] for an element, or table[torch.stack([i, j])] for two rows"
                )
            index = index if isinstance(index, tuple) else (index,)
            if any(isinstance(one, torch.Tensor) for one in (*index, *_in_lists(index))):
                return _index_by_tensors(tensor, index)
        return func(*args, **(kwargs or {}))


def _index_by_tensors(tensor: torch.Tensor, index: tuple) -> torch.Tensor:
    if any(isinstance(one, (bool, np.bool_)) for one in index):
        raise TraceError(f"True or False beside a tensor in an index{where()}; use None for a new dimension")
    index = tuple([_index_tensor(one) if isinstance(one, _LISTS) else one for one in index])
    consumed = sum(one is not None and one is not Ellipsis for one in index)
    if consumed > tensor.dim():
        raise IndexError(f"too many indices for tensor of dimension {tensor.dim()}{where()}")
    full = (slice(None),) * (tensor.dim() - consumed)
    at = next((i for i, one in enumerate(index) if one is Ellipsis), len(index))
    index = (*index[:at], *full, *index[at + 1 :])
    # First applies the parts that are not tensors, by torch's own indexing; then the tensors.
    by_others = tuple(slice(None) if isinstance(one, torch.Tensor) else one for one in index)
    if any(type(one) is not slice or one != slice(None) for one in by_others):
        tensor = tensor[by_others]
    stays = [one for one in index if isinstance(one, (torch.Tensor, slice)) or one is None]
    by_tensor = [one if isinstance(one, torch.Tensor) else None for one in stays]
    return torch.ops.aten.index.Tensor(tensor, by_tensor)


_LISTS = (list, tuple, range, np.ndarray)


def _index_tensor(given: Any) -> torch.Tensor:
    """A list of numbers and tensors, however deep, as one index tensor: as torch does, but without reading content."""
    if isinstance(given, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in (*given, *_in_lists(given))):
        return torch.stack([one if isinstance(one, torch.Tensor) else _index_tensor(one) for one in given])
    return torch.as_tensor(given)


# Functions that return a tensor's content without any ATen operation.
_READS_CONTENT = frozenset(
    getattr(torch.Tensor, name)
    for name in ("numpy", "tolist", "__array__", "__deepcopy__", "data_ptr", "untyped_storage", "storage", "__dlpack__")
)

# Functions that write a tensor's content as text.
_WRITES = frozenset((torch.Tensor.__repr__, torch.Tensor.__format__))

# Functions that read the tensors in a list of numbers without any ATen operation.
_TAKES_LISTS = frozenset(
    (
        torch.tensor,
        torch.as_tensor,
        torch.asarray,
        torch.sparse_coo_tensor,
        torch.Tensor.new_tensor,
        torch.Tensor.new,
    )
)

# Functions that make a tensor a Python number by an ATen operation, which torch.Tensor([x]) and torch.LongTensor([x])
# hide.
_MAKES_NUMBER = frozenset((torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.__index__))


_READS_NUMBER = _MAKES_NUMBER | {torch.Tensor.item, torch.Tensor.__bool__}

# With a number and a tensor as limits, these read the tensor's content.
_CLAMPS = frozenset((torch.clamp, torch.clip, torch.Tensor.clamp, torch.Tensor.clip))


def _mixes_limits(args: tuple, kwargs: dict) -> bool:
    limits = [one for one in (*args[1:], *kwargs.values()) if one is not None]
    return len({isinstance(one, torch.Tensor) for one in limits}) == 2


def _clamped(func: Any, input: torch.Tensor, min: Any, max: Any) -> torch.Tensor:
    return func(func(input, min=min), max=max)


def _is_tensor(given: Any) -> bool:
    return isinstance(given, torch.Tensor)


def _in_lists(given: Any) -> Iterable[torch.Tensor]:
    """The tensors in lists, however deep."""
    for one in given:
        if isinstance(one, (list, tuple)):
            yield from (inner for inner in one if isinstance(inner, torch.Tensor))
            yield from _in_lists(one)


class ModFunctions(IndexByTensors):
    """While a mod is traced, notes where a graph reads a number, and refuses what reads a tensor's content."""

    def __init__(self, recording: Recording, unwrapped: Unwrapped, dispatch: Dispatch) -> None:
        super().__init__()
        self._recording = recording
        self._unwrapped = unwrapped
        self._dispatch = dispatch

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if self._unwrapped.in_transform:
            args, kwargs = tree_map_only(torch.Tensor, self._unwrapped.of, (args, kwargs))
        if func is torch.Tensor.item and self._recording.is_number(args[0]):
            return args[0]  # still a tensor, so that its uses are seen
        if func in _READS_CONTENT and self._recording.is_open(args[0]):
            raise TraceError(
                f"Tensor.{func.__name__} reads the content of a tensor while the mod is traced{where()}; use tensor "
                "operations only"
            )
        if func in _CLAMPS and _mixes_limits(args, kwargs or {}):
            return _clamped(func, *args, **(kwargs or {}))
        if func in _WRITES and self._recording.is_number(args[0]):
            raise TraceError(f"the text of a number is not that of a tensor in its place{where()}")
        if func in _TAKES_LISTS and any(map(self._recording.is_number, filter(_is_tensor, args))):
            raise TraceError(f"{func.__name__}() needs a number that does not change from call to call{where()}")
        if func in _TAKES_LISTS and any(map(self._recording.is_open, _in_lists((*args, *(kwargs or {}).values())))):
            raise TraceError(
                f"{func.__name__}() of a list reads the content of the tensors in it while the mod is traced{where()}; "
                "use torch.stack"
            )
        if func in _READS_NUMBER and self._recording.is_traced(args[0]) and args[0].is_leaf and args[0].requires_grad:
            args[0].requires_grad_(False)  # of which torch would warn
            try:
                return self.__torch_function__(func, types, args, kwargs)
            finally:  # the mod may catch the error
                args[0].requires_grad_()
        if func in _MAKES_NUMBER and self._recording.is_open(args[0]):
            seen = self._dispatch.numbers_read
            try:
                number = super().__torch_function__(func, types, args, kwargs)
            except TraceError as error:
                if func is torch.Tensor.__index__ and self._recording.is_traced(args[0]):
                    raise TraceError(
                        "a list or a range takes a Python number, but a mod's arguments are traced scalars"
                        f"{where()}; index a tensor, such as torch.tensor(values)[h]"
                    ) from error
                raise
            if self._dispatch.numbers_read == seen:
                raise TraceError(
                    f"a tensor's constructor reads the content of another tensor while the mod is traced{where()}; use "
                    "torch.stack"
                )
            return number
        if types and all(map(_only_converts, types)):
            with no_subclasses():
                return super().__torch_function__(func, types, args, kwargs)
        return super().__torch_function__(func, types, args, kwargs)


def _only_converts(subclass: type) -> bool:
    """Whether a subclass of tensors does nothing but give results its own type. The recording would not know such a
    result, which is another object."""
    own: Any = getattr(subclass, "__torch_function__", None)
    of_tensors: Any = torch.Tensor.__torch_function__
    return getattr(own, "__func__", None) is of_tensors.__func__
