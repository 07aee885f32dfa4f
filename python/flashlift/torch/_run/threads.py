"""torch's own threads, lent to the kernels, so that torch.set_num_threads() counts and no second pool competes for the
processors: threads of OpenMP spin for a while after each of torch's parallel regions."""

import ctypes
import functools

import torch

from flashlift._library import Executor, RunOptions, load
from flashlift.torch._internals import LIBRARY


@functools.cache
def _library() -> ctypes.CDLL:
    return load("flashlift_openmp")


@functools.cache
def _gomp_parallel() -> int | None:
    """The address of GOMP_parallel in the OpenMP runtime that torch uses; None if torch uses other threads."""
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    # torch resolves names in the same order: preloaded libraries come first.
    for library in (ctypes.CDLL(None), ctypes.CDLL(LIBRARY)):
        found = getattr(library, "GOMP_parallel", None)
        if found is not None:
            return ctypes.cast(found, ctypes.c_void_p).value
    return None


@functools.lru_cache(maxsize=64)
def _options(threads: int) -> RunOptions:
    executor = Executor(
        ctypes.sizeof(Executor),
        None if threads == 1 else _gomp_parallel(),
        threads,
        ctypes.cast(_library().flashlift_openmp_parallel_for, ctypes.c_void_p),
    )
    return RunOptions(ctypes.sizeof(RunOptions), ctypes.pointer(executor))


def options_of_cpu() -> RunOptions | None:
    """How a call on the CPU runs now: on torch's threads, as many as torch.get_num_threads() returns in this thread.

    None, for Flashlift's own pool, if torch runs on other threads than OpenMP's, and in a process that was forked:
    libgomp would wait for threads that do not exist there. A single thread is always the calling one.
    """
    threads = torch.get_num_threads()
    if threads > 1 and (_gomp_parallel() is None or _library().flashlift_openmp_is_forked()):
        return None
    return _options(threads)
