"""torch.func's transforms, left while a mod is traced."""

import contextlib

import torch

from flashlift.torch._internals import are_transforms_active, clear_transforms, disable_modes, is_wrapped_by_transform
from flashlift.torch._trace.record import CPU


class Unwrapped:
    """While a mod is traced, leaves torch.func's transforms, and replaces each tensor that they wrap by an ordinary
    tensor of the same shape: operations on the wrapped one would go to the transform, and give wrappers that the
    recording does not know."""

    def __init__(self) -> None:
        self.in_transform = are_transforms_active()
        self.wrapped: dict[int, torch.Tensor] = {}  # by the identities of the tensors that replace them
        self._in_place: dict[int, torch.Tensor] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.in_transform or not is_wrapped_by_transform(tensor):
            return tensor
        found = self._in_place.get(id(tensor))
        if found is None:
            with disable_modes():  # the transform was left, but would wrap this, too
                found = torch.zeros((), dtype=tensor.dtype, device=CPU).expand(tensor.shape)
            self._in_place[id(tensor)] = found
            self.wrapped[id(found)] = tensor
        return found

    def without_transforms(self) -> contextlib.AbstractContextManager:
        if not self.in_transform:
            return contextlib.nullcontext()
        return clear_transforms()
