"""What a mod does that never becomes an ATen operation, or not the right one: seen as the functions that it calls."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from flashlift.torch._internals import set_grad_enabled, tree_map_only
from flashlift.torch._trace.lines import TraceError, where
from flashlift.torch._trace.recording import Recording
from flashlift.torch._trace.transforms import Unwrapped


class IndexByTensors(TorchFunctionMode):
    """Traces table[b, q]: torch's own indexing would read the content of 0-dimensional index tensors."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is torch.Tensor.__getitem__:
            tensor, index = args
            index = index if isinstance(index, tuple) else (index,)
            if any(isinstance(one, torch.Tensor) for one in index):
                return _index_by_tensors(tensor, index)
        return func(*args, **(kwargs or {}))


def _index_by_tensors(tensor: torch.Tensor, index: tuple) -> torch.Tensor:
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
    by_tensor = [one if isinstance(one, torch.Tensor) else None for one in index if not isinstance(one, int)]
    return torch.ops.aten.index.Tensor(tensor, by_tensor)


# Functions that return a tensor's content without any ATen operation.
_READS_CONTENT = frozenset(
    getattr(torch.Tensor, name)
    for name in ("numpy", "tolist", "__array__", "data_ptr", "untyped_storage", "storage", "__dlpack__")
)


class ModFunctions(IndexByTensors):
    """While a mod is traced, notes where it switches gradients off, and where a graph reads a number. Whether gradients
    are on is not enough: torch.autograd.Function switches them off in its forward function."""

    def __init__(self, recording: Recording, unwrapped: Unwrapped) -> None:
        super().__init__()
        self._recording = recording
        self._unwrapped = unwrapped

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if self._unwrapped.in_transform:
            args, kwargs = tree_map_only(torch.Tensor, self._unwrapped.of, (args, kwargs))
        if func is set_grad_enabled:
            self._recording.has_gradient = args[0]
        if func is torch.Tensor.item and self._recording.is_number(args[0]):
            return args[0]  # still a tensor, so that its uses are seen
        if func in _READS_CONTENT and self._recording.is_open(args[0]):
            raise TraceError(
                f"Tensor.{func.__name__} reads the content of a tensor while the mod is traced{where()}; use tensor "
                "operations only"
            )
        return super().__torch_function__(func, types, args, kwargs)
