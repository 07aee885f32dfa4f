"""The C interface (flashlift.h, flashlift_stablehlo.h) through ctypes.

ctypes and not an extension module: the interface is small, calls are few and long, and so one wheel serves every
version of Python.
"""

import ctypes
import functools
import operator
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from flashlift._errors import BY_CODE, InternalError, InvalidArgumentError

_FOLDER = Path(__file__).parent / "lib"
_API_VERSION = 10


class DLDevice(Structure):
    _fields_ = [("device_type", c_int), ("device_id", c_int)]


class DLDataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", DLDevice),
        ("ndim", c_int),
        ("dtype", DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class CompileOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", DLDevice),
        ("implementation", c_char_p),
        ("lengths_unknown", c_int32),
        ("tuning_policy", c_int32),
    ]


TuneProgress = CFUNCTYPE(c_int32, c_void_p, c_double, c_int32)


class TuneOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", DLDevice),
        ("backward", c_int32),
        ("heads_inside", c_int32),
        ("seconds", c_double),
        ("tuning_policy", c_int32),
        ("on_progress", TuneProgress),
        ("context", c_void_p),
    ]


class Arguments(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q", POINTER(DLTensor)),
        ("k", POINTER(DLTensor)),
        ("v", POINTER(DLTensor)),
        ("out", POINTER(DLTensor)),
        ("captures", POINTER(POINTER(DLTensor))),
        ("capture_count", c_size_t),
        ("sinks", POINTER(DLTensor)),
        ("lse", POINTER(DLTensor)),
        ("row_max", POINTER(DLTensor)),
        ("page_table", POINTER(DLTensor)),
        ("dropout_seed", c_uint64),
        ("residual", POINTER(DLTensor)),
        ("keep_mask", POINTER(DLTensor)),
        ("dropout_words", POINTER(DLTensor)),
    ]


class BackwardArguments(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("forward", POINTER(Arguments)),
        ("d_out", POINTER(DLTensor)),
        ("d_lse", POINTER(DLTensor)),
        ("d_q", POINTER(DLTensor)),
        ("d_k", POINTER(DLTensor)),
        ("d_v", POINTER(DLTensor)),
        ("d_captures", POINTER(POINTER(DLTensor))),
        ("d_sinks", POINTER(DLTensor)),
    ]


class Executor(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("context", c_void_p),
        ("concurrency", c_int32),
        ("parallel_for", c_void_p),
    ]


Allocate = CFUNCTYPE(c_void_p, c_void_p, c_size_t)


class RunOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("executor", POINTER(Executor)),
        ("stream", c_void_p),
        ("cancelled", POINTER(c_int32)),
        ("allocate", Allocate),
        ("allocate_context", c_void_p),
    ]


class ProblemInfo(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        *((name, c_int64) for name in ("batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim")),
        ("dtype", DLDataType),
        ("out_dtype", DLDataType),
        ("sinks", c_int64),
        ("want_lse", c_int32),
        ("capture_count", c_int32),
        ("page_size", c_int64),
        ("dropout", c_float),
        ("want_row_max", c_int32),
        ("want_residual", c_int32),
        ("keep_mask", c_int32),
        ("dropout_words", c_int32),
    ]


class Subject(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("got", POINTER(DLTensor)),
        ("want", POINTER(DLTensor)),
        ("eager", POINTER(DLTensor)),
        ("magnitudes", POINTER(DLTensor)),
        ("row_width", c_int64),
        ("samples", c_double),
        ("is_gradient", c_int32),
    ]


class Measure(Structure):
    _fields_ = [("error", c_double), ("eager", c_double), ("limit", c_double)]


class Judgement(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("mean", Measure),
        ("largest", Measure),
        ("row", Measure),
        ("ok", c_int32),
        ("reason", c_char * 256),
    ]


class PrecompileOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("architectures", POINTER(c_int32)),
        ("architecture_count", c_size_t),
        ("implementation", c_char_p),
        ("q_lens", POINTER(c_int64)),
        ("q_len_count", c_size_t),
        ("backward", c_int32),
        ("gradients", POINTER(c_char_p)),
        ("gradient_count", c_size_t),
    ]


class FuseOptions(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("as_", c_int32),
        ("name", c_char_p),
        ("gradients", c_int32),
        ("emit", c_char_p),
    ]


# name: (result, arguments)
_ERRORS = {
    "flashlift_error_message": (c_char_p, [c_void_p]),
    "flashlift_error_code": (c_int, [c_void_p]),
    "flashlift_error_destroy": (None, [c_void_p]),
}
_CORE = _ERRORS | {
    "flashlift_api_version": (c_int32, []),
    "flashlift_version": (c_char_p, []),
    "flashlift_operations": (c_char_p, []),
    "flashlift_problem_words": (c_char_p, []),
    "flashlift_problem_read": (c_void_p, [c_char_p, POINTER(c_void_p)]),
    "flashlift_problem_expand": (c_void_p, [c_char_p, POINTER(c_void_p)]),
    "flashlift_problem_destroy": (None, [c_void_p]),
    "flashlift_problem_json": (c_char_p, [c_void_p]),
    "flashlift_attention_compile": (c_void_p, [c_char_p, POINTER(CompileOptions), POINTER(c_void_p)]),
    "flashlift_attention_destroy": (None, [c_void_p]),
    "flashlift_attention_problem": (c_char_p, [c_void_p]),
    "flashlift_attention_info": (c_void_p, [c_void_p, POINTER(ProblemInfo)]),
    "flashlift_attention_capture_name": (c_char_p, [c_void_p, c_int32]),
    "flashlift_attention_implementation": (c_char_p, [c_void_p]),
    "flashlift_attention_considerations": (c_char_p, [c_void_p]),
    "flashlift_attention_backward_considerations": (c_char_p, [c_void_p]),
    "flashlift_attention_workspace_bytes": (c_int64, [c_void_p, c_int32]),
    "flashlift_attention_backward_workspace_bytes": (c_int64, [c_void_p, c_int32]),
    "flashlift_block_kinds": (
        c_void_p,
        [c_char_p, POINTER(POINTER(DLTensor)), c_size_t, c_int64, c_int64, POINTER(DLTensor)],
    ),
    "flashlift_attention_run": (c_void_p, [c_void_p, POINTER(Arguments), POINTER(RunOptions)]),
    "flashlift_attention_prepare_backward": (c_void_p, [c_void_p, POINTER(c_int32), c_size_t]),
    "flashlift_attention_reads_residual": (c_void_p, [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_int32)]),
    "flashlift_attention_run_backward": (c_void_p, [c_void_p, POINTER(BackwardArguments), POINTER(RunOptions)]),
    "flashlift_precompile": (c_void_p, [c_char_p, POINTER(PrecompileOptions), POINTER(c_void_p)]),
    "flashlift_precompiled_destroy": (None, [c_void_p]),
    "flashlift_precompiled_json": (c_char_p, [c_void_p]),
    "flashlift_tune": (c_void_p, [c_char_p, POINTER(TuneOptions), POINTER(c_void_p)]),
    "flashlift_tuned_destroy": (None, [c_void_p]),
    "flashlift_tuned_json": (c_char_p, [c_void_p]),
    "flashlift_judge": (c_void_p, [POINTER(Subject), POINTER(Judgement)]),
}
_STABLEHLO = _ERRORS | {
    "flashlift_stablehlo_fuse": (c_void_p, [c_char_p, c_size_t, POINTER(FuseOptions), POINTER(c_void_p)]),
    "flashlift_fused_destroy": (None, [c_void_p]),
    "flashlift_fused_module": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "flashlift_fused_count": (c_size_t, [c_void_p]),
    "flashlift_fused_report": (c_char_p, [c_void_p]),
}


def load(name: str) -> ctypes.CDLL:
    """Loads one of the package's shared libraries."""
    path = _FOLDER / ("libflashlift.so.0" if name == "flashlift" else f"lib{name}.so")
    if not path.exists():
        raise ImportError(
            f"{path} is missing: this package was installed without that part of Flashlift. "
            "Build it with `make`, or `pip install .` with the part's option switched on."
        )
    return ctypes.CDLL(str(path))


def _declare(library: ctypes.CDLL, functions: dict) -> ctypes.CDLL:
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


@functools.cache
def core() -> ctypes.CDLL:
    library = load("flashlift")
    if library.flashlift_api_version() < _API_VERSION:  # it may lack functions that are declared next
        raise ImportError(
            f"{library._name} has API version {library.flashlift_api_version()}, this package needs {_API_VERSION}: "
            "its files are of several versions of Flashlift; install it again"
        )
    return _declare(library, _CORE)


@functools.cache
def stablehlo() -> ctypes.CDLL:
    return _declare(load("flashlift_stablehlo"), _STABLEHLO)


def c_text(text: str, name: str) -> bytes:
    """The bytes of a text for C, where the first zero byte ends a text."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{name} is a {type(text).__name__}; expected a str")
    if "\0" in text:
        raise InvalidArgumentError(f"{name} has a zero character at position {text.index(chr(0))}; expected text")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{name} is not a text that UTF-8 can represent: {error}") from None


def whole_number(value: Any, name: str, least: int, most: int) -> int:
    """Checks a number for C, which would silently keep only its lowest bits."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InvalidArgumentError(f"{name} is {value!r}; expected a whole number")
    if not least <= number <= most:
        raise InvalidArgumentError(f"{name} is {number}; expected a whole number from {least} to {most}")
    return number


def check(library: ctypes.CDLL, error: int | None) -> None:
    """Turns a FlashliftError* that a C function returned into an exception, and raises it."""
    if error:
        message = library.flashlift_error_message(error).decode(errors="replace")
        kind = BY_CODE.get(library.flashlift_error_code(error), InternalError)
        library.flashlift_error_destroy(error)
        raise kind(message)


def version() -> str:
    return core().flashlift_version().decode()
