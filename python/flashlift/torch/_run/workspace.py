"""Memory for what a call needs beside its tensors, from PyTorch's caching allocator."""

import contextlib
import threading
from collections.abc import Iterator

import torch

from flashlift._library import Allocate, RunOptions


class _Taken(threading.local):
    """The memory that this thread's call has allocated, and the error if an allocation failed."""

    memory: torch.Tensor | None = None
    failure: Exception | None = None


_taken = _Taken()


@Allocate
def allocate(device: int | None, size: int) -> int | None:
    """Allocates for a call of this thread. give_back() ends the call."""
    try:
        _taken.memory = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device or 0))
    except Exception as failure:  # no exception may leave a function that C calls
        _taken.failure = failure
        return None
    return _taken.memory.data_ptr()


def give_back() -> None:
    """Called after the call: PyTorch may give its memory to work that is queued later on the same stream. Raises the
    error of a failed allocation: torch.OutOfMemoryError."""
    failure = _taken.failure
    _taken.memory = _taken.failure = None
    if failure is not None:
        raise failure


@contextlib.contextmanager
def workspace(options: RunOptions | None, device: torch.device) -> Iterator[None]:
    """The one call in this block, with these options, allocates its memory from PyTorch if it runs on a GPU."""
    if device.type != "cuda" or options is None:
        yield
        return
    options.allocate, options.allocate_context = allocate, device.index
    try:
        yield
    finally:
        give_back()
