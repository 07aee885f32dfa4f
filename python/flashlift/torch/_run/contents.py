"""Copies of tensors' contents: to see later whether a tensor has changed, and to find again what was computed from the
same content."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from flashlift.torch._internals import are_transforms_active, count_of_modes
from flashlift.torch._run.modes import outside_of_modes

_OF_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MAX_KEYED = 1 << 15  # bytes of one key's tensors: hashing them takes 20 µs


class Key(NamedTuple):
    """An ordinary dense tensor, equal to those of the same shape, type and content."""

    shape: torch.Size
    dtype: torch.dtype
    data: bytes

    def tensor(self) -> torch.Tensor:
        """A new tensor on the CPU, equal to the one that the key was made of."""
        if not self.data:
            return torch.empty(self.shape, dtype=self.dtype, device="cpu")
        return torch.frombuffer(bytearray(self.data), dtype=self.dtype).reshape(self.shape)


Content = Key | torch.Tensor  # a key of a small tensor on the CPU: comparing it takes a fraction of torch.equal()


def keys_of(tensors: Sequence[torch.Tensor]) -> tuple[Key, ...] | None:
    """The keys of ordinary dense tensors; None if together they are too large for that. Waits for those on a GPU. Must
    be called outside of modes and transforms."""
    if sum([one.numel() * one.itemsize for one in tensors]) > _MAX_KEYED:
        return None
    return tuple([_key_of(one.cpu()) for one in tensors])


def content_of(tensor: torch.Tensor) -> Content:
    """A copy of the content of an ordinary dense tensor, for has_content()."""
    if _is_small(tensor) and not count_of_modes() and not are_transforms_active():
        return _key_of(tensor)  # without the contexts, which take longer
    with outside_of_modes():
        return _key_of(tensor) if _is_small(tensor) else _bits(tensor).clone()


def has_content(tensor: torch.Tensor, content: Content) -> bool:
    """Whether an ordinary dense tensor has this content. Modes and transforms see nothing of it."""
    if not count_of_modes() and not are_transforms_active():
        return _is_equal(tensor, content)
    with outside_of_modes():
        return _is_equal(tensor, content)


def _is_equal(tensor: torch.Tensor, content: Content) -> bool:
    if isinstance(content, Key):
        return _is_small(tensor) and _key_of(tensor) == content
    bits = _bits(tensor)
    if not bits.is_cpu:
        return torch.equal(bits, content)
    return np.array_equal(bits.numpy(), content.numpy())  # a tenth of torch's time for a million elements


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.numel() < 4096


def _key_of(tensor: torch.Tensor) -> Key:
    return Key(tensor.shape, tensor.dtype, _bits(tensor).numpy().tobytes())


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """As integers, 0.0 and -0.0 are not equal, and a NaN is equal to itself."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point():
        tensor = tensor.resolve_neg().view(_OF_BITS[tensor.itemsize])
    return tensor
