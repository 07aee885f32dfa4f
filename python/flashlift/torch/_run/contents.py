"""Copies of tensors' contents, to see later whether a tensor has changed."""

import numpy as np
import torch

from flashlift.torch._internals import are_transforms_active, count_of_modes
from flashlift.torch._run.modes import outside_of_modes

_OF_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def content_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the content of an ordinary dense tensor, for has_content()."""
    with outside_of_modes():
        return _bits(tensor).clone()


def has_content(tensor: torch.Tensor, content: torch.Tensor) -> bool:
    """Whether an ordinary dense tensor has this content. Modes and transforms see nothing of it."""
    if not count_of_modes() and not are_transforms_active():
        return _are_equal(_bits(tensor), content)
    with outside_of_modes():
        return _are_equal(_bits(tensor), content)


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.numel() < 4096 or not one.is_cpu:
        return torch.equal(one, other)
    return np.array_equal(one.numpy(), other.numpy())  # a tenth of the time for a million elements


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """As integers, 0.0 and -0.0 are not equal, and a NaN is equal to itself."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point():
        tensor = tensor.resolve_neg().view(_OF_BITS[tensor.itemsize])
    return tensor
