"""What torch does around a call: modes, transforms, graphs that are made, tensors that cannot be read."""

import contextlib
from collections.abc import Iterator, Sequence

import torch

from flashlift.torch._internals import (
    are_transforms_active,
    count_of_function_modes,
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
    if not count_of_modes() and not are_transforms_active() and not count_of_function_modes():
        with torch.inference_mode(False), torch.no_grad():  # the other contexts take longer than what is done in them
            yield
        return
    with (
        disable_modes(),
        disable_transforms(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield
