"""Compiling a GPU's kernels in advance."""

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass

from flashlift._errors import InvalidArgumentError
from flashlift._library import PrecompileOptions, c_text, check, core
from flashlift._problem import Problem


@dataclass(frozen=True)
class PrecompiledKernel:
    """One kernel in the cache on disk. architecture: its compute capability times ten; cached: whether it was
    already there."""

    architecture: int
    implementation: str
    kernel: str
    cached: bool
    seconds: float


def precompile(
    problem: str | Problem,
    *,
    architectures: Sequence[int],
    q_lens: Sequence[int] = (),
    backward: bool = False,
    gradients: Sequence[str] = (),
    implementation: str | None = None,
) -> list[PrecompiledKernel]:
    """Compiles the kernels that calls of a problem run on GPUs, into the cache on disk. This needs NVRTC, but no
    GPU.

    Calls find the kernels on a machine with the cache's folder (FLASHLIFT_CACHE_DIR) and the same versions of Flashlift
    and NVRTC.
    architectures: compute capabilities times ten, such as 80, 86, 89 or 90.
    q_lens: the numbers of queries of the calls; by default the problem's.
    backward: compile the backward pass, too; gradients: the captured tensors whose gradients it computes.
    Raises InvalidArgumentError for a malformed problem or an architecture that NVRTC does not support, NotFoundError
    without NVRTC, UnsupportedError if no implementation accepts the problem.
    """
    library = core()
    for name, given in (("architectures", architectures), ("q_lens", q_lens), ("gradients", gradients)):
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise InvalidArgumentError(f"{name} is {given!r}; expected a list")
    names = [c_text(name, "a name in gradients") for name in gradients]
    options = PrecompileOptions(
        ctypes.sizeof(PrecompileOptions),
        (ctypes.c_int32 * len(architectures))(*_integers("architectures", architectures)),
        len(architectures),
        None if implementation is None else c_text(implementation, "implementation"),
        (ctypes.c_int64 * len(q_lens))(*_integers("q_lens", q_lens)),
        len(q_lens),
        int(backward),
        (ctypes.c_char_p * len(names))(*names),
        len(names),
    )
    handle = ctypes.c_void_p()
    text = c_text(str(problem) if isinstance(problem, Problem) else problem, "problem")
    check(library, library.flashlift_precompile(text, options, ctypes.byref(handle)))
    try:
        return [PrecompiledKernel(**kernel) for kernel in json.loads(library.flashlift_precompiled_json(handle))]
    finally:
        library.flashlift_precompiled_destroy(handle)


def _integers(name: str, values: Sequence[int]) -> Sequence[int]:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
            raise InvalidArgumentError(f"{name} has {value!r}; expected whole numbers such as 90")
    return values
