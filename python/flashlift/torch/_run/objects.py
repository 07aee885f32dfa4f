"""Calls of the C interface with torch's tensors as they are: their views are made in C, by DLPack's exchange interface.
A view made by Python, and read by ctypes, takes longer than the launch of a kernel."""

import ctypes
import functools
from array import array
from collections.abc import Callable, Sequence

import torch

from flashlift._attention import Attention
from flashlift._library import RunOptions, check, core, load
from flashlift.torch._internals import DLPACK_EXCHANGE
from flashlift.torch._run.call import Call
from flashlift.torch._run.workspace import allocate, give_back

_MAJOR_VERSION = 1  # of the exchange interface that the library uses
_NONE = (None,) * 6


class _Functions(ctypes.Structure):
    """FlashliftTorchFunctions."""

    _fields_ = [
        (name, ctypes.c_void_p) for name in ("exchange", "release_lock", "take_lock", "allocate", "run", "run_backward")
    ]


def _address(function: object) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]


@functools.cache
def _exchange() -> int:
    """The address of torch's exchange interface; 0 if it has none that the library supports."""
    if DLPACK_EXCHANGE is None:
        return 0
    pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    address = pointer_in(DLPACK_EXCHANGE, b"dlpack_exchange_api")
    return address if ctypes.c_uint32.from_address(address).value == _MAJOR_VERSION else 0


def takes_objects() -> bool:
    """Whether run_on_objects() can be called."""
    return _exchange() != 0


@functools.cache
def _functions() -> _Functions:
    python = ctypes.pythonapi
    return _Functions(
        _exchange(),
        _address(python.PyEval_SaveThread),
        _address(python.PyEval_RestoreThread),
        _address(allocate),
        _address(core().flashlift_attention_run),
        _address(core().flashlift_attention_run_backward),
    )


def addresses_of_functions() -> int:
    """The address of a FlashliftTorchFunctions that stays valid."""
    return ctypes.addressof(_functions())


@functools.cache
def _library() -> tuple[Callable[[int], int | None], int]:
    """The function, and the first arguments of each call."""
    # Called with the interpreter's lock held, which the function releases itself.
    run = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("flashlift_torch_run", load("flashlift_torch")))
    return run, addresses_of_functions()


def run_on_objects(
    attention: Attention,
    options: RunOptions | None,
    call: Call,
    results: Sequence[torch.Tensor | None],
    gradients: Sequence[torch.Tensor | None] = _NONE,
    d_captures: Sequence[torch.Tensor | None] = (),
) -> None:
    """results: out, lse, row maxima and the residual. gradients: for a backward call, those of out and lse, then those
    with respect to query, key, value and the sinks. options: for a call on the CPU. No tensor may be a lazy negation,
    which DLPack cannot express."""
    function, functions = _library()
    query, key, value, captures, sinks, seed, *_ = call
    words = array(
        "Q",
        [
            functions,
            attention._handle.value or 0,
            0 if options is None else ctypes.addressof(options),
            0 if seed is None else int(seed.item()) % 2**64,
            id(query),
            id(key),
            id(value),
            *[0 if one is None else id(one) for one in (*results, sinks, *gradients)],
            len(captures),
            *[id(one) for one in captures],
            *[0 if one is None else id(one) for one in d_captures],
        ],
    )
    error = function(words.buffer_info()[0])
    give_back()
    check(attention._library, error)
