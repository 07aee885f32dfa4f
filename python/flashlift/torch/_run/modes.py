"""What torch does around a call: modes, transforms, graphs that are made, tensors that cannot be read."""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from flashlift.torch._internals import (
    are_transforms_active,
    count_of_modes,
    disable_modes,
    disable_transforms,
    forward_mode_level,
    is_making_graph,
    is_traced_by_jit,
    is_wrapped_by_transform,
)


def are_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether only the kernel and autograd must see a call: no transform, no mode, no subclass, and no lazy negation,
    which the kernel does not handle."""
    if count_of_modes() or are_transforms_active() or is_traced_by_jit():
        return False
    if torch.compiler.is_compiling() or forward_mode_level() >= 0:
        return False
    return all([_is_plain_tensor(one) and not one.is_neg() for one in tensors])  # noqa: C419 - quicker than a generator


def _is_plain_tensor(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter


def makes_graph() -> bool:
    """Whether a call now becomes part of a graph that will later run on other tensors."""
    return is_making_graph()


def are_readable(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether the content of tensors can be read now: no transform wraps them, and no CUDA graph is being captured,
    which could not wait for them. Tensors made in inference mode on a GPU would have to be read in each call, so they
    count as not readable."""
    for one in tensors:
        if one is None:
            continue
        if not _is_plain_tensor(one) or is_wrapped_by_transform(one):
            return False
        if one.is_cuda and (one.is_inference() or torch.cuda.is_current_stream_capturing()):
            return False
    return True


@contextlib.contextmanager
def outside_of_modes() -> Iterator[None]:
    """For results that are kept for other calls: makes ordinary tensors, whichever modes and transforms this call runs
    in."""
    with (
        disable_modes(),
        disable_transforms(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield


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
