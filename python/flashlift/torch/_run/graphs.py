"""What graphs that Inductor compiled call: functions in C, which neither go through torch's dispatcher nor run any
Python of ours where a call is like one before. Between a graph's other calls our Python is never in the processor's
caches, and took longer than all else that the host does for a call."""

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flashlift._library import check, core, load
from flashlift.torch._internals import (
    RecordFunction,
    calls_by_name,
    empty_on_cpu,
    empty_on_current_gpu,
    is_inductor_loaded,
)
from flashlift.torch._run.call import Call
from flashlift.torch._run.kernels import Results, dense_strides, differentiate, plan_for, run_for_backward
from flashlift.torch._run.objects import addresses_of_functions, takes_objects
from flashlift.torch._run.threads import options_of_cpu
from flashlift.torch._run.workspace import give_back

_POINTER = ctypes.c_void_p
_MOST_RESULTS = 4
_MOST_RECORDS = 1024
_FASTCALL = 0x80  # METH_FASTCALL


class _Python(ctypes.Structure):
    """FlashliftTorchPython."""

    _fields_ = [
        (name, _POINTER)
        for name in (
            *("functions", "increase", "decrease", "clear_error", "item_of_dict", "size_of_list", "item_of_list"),
            *("to_address", "from_address", "to_double", "call", "new_tuple", "set_item", "attribute"),
            *("none", "yes", "profiler", "is_profiling", "empty_on_cpu", "empty_on_gpu", "options_of_cpu", "finish"),
            *("forward_records", "backward_records", "forward", "backward"),
        )
    ]


_API = (
    *("Py_IncRef", "Py_DecRef", "PyErr_Clear", "PyDict_GetItem", "PyList_Size", "PyList_GetItem", "PyLong_AsVoidPtr"),
    *("PyLong_FromVoidPtr", "PyFloat_AsDouble", "PyObject_CallObject", "PyTuple_New", "PyTuple_SetItem"),
    "PyObject_GetAttr",
)


class _Record(ctypes.Structure):
    """FlashliftTorchRecord."""

    _fields_ = [
        ("next", _POINTER),
        ("owner", _POINTER),
        ("attention", _POINTER),
        ("scale", ctypes.c_double),
        ("want_max", ctypes.c_uint64),
        ("want_residual", ctypes.c_uint64),
        ("results", _POINTER * _MOST_RESULTS),
        ("device", ctypes.c_int32 * 2),
        ("dtype", ctypes.c_uint32),
        ("sizes", ctypes.c_int64 * 12),
        ("strides", ctypes.c_int64 * 12),
    ]

    kept: tuple  # keeps alive what it points to


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", _POINTER),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    ]


class _Records:
    """The records of the calls in one direction so far."""

    def __init__(self) -> None:
        self.first: dict[str, int] = {}  # by features, the address of the newest record
        self._known: dict[tuple, _Record] = {}

    def add(
        self,
        call: Call,
        attention: Any,
        results: Sequence[tuple],
    ) -> None:
        query, key, value = call[:3]
        flags = call.scale, call.want_max, call.want_residual
        about = (call.features, query.dtype, query.device, *flags, *[(one.shape, one.stride()) for one in call[:3]])
        if about in self._known:
            return
        if len(self._known) >= _MOST_RECORDS:
            self.first.clear()
            self._known.clear()
        record = _Record(None, None, attention._handle.value, *flags)
        record.owner = id(record)
        for i, one in enumerate(results):
            record.results[i] = id(one)
        record.kept = attention, results
        c = _c()
        assert c is not None
        if c[0].flashlift_torch_fill_record(ctypes.addressof(record), id(query), id(key), id(value)) == 0:
            record.next = self.first.get(call.features)
            self._known[about] = record
            self.first[call.features] = ctypes.addressof(record)


_forward_records, _backward_records = _Records(), _Records()


def attention(*given: Any) -> Results:
    """The operator's kernel. Stores a record of the call."""
    call = Call(*given)
    with RecordFunction("flashlift::attention"):
        results = run_for_backward(call)
    plan = plan_for(call)
    if _c() is not None and call.seed is None and plan.out_dtype == call.query.dtype:
        made = [(tuple(one.shape), one.stride(), one.dtype) for one in results]
        _forward_records.add(call, plan.attention, made)
    return results


def attention_backward(grad_out: torch.Tensor, grad_lse: torch.Tensor | None, *given: Any) -> list[torch.Tensor]:
    """The operator's kernel. Stores a record of the call."""
    query, key, value, out, lse, residual, captures, sinks, seed, wanted, features, scale = given
    call = Call.of_backward(query, key, value, captures, sinks, seed, features, scale, out, residual)
    with RecordFunction("flashlift::attention_backward"):
        gradients = differentiate(grad_out, grad_lse, call, out, lse, residual, wanted)
    if _c() is not None and seed is None and sinks is None and not wanted and out.dtype == query.dtype:
        made = [(tuple(one.shape), dense_strides(tuple(one.shape), one.stride()), one.dtype) for one in call[:3]]
        _backward_records.add(call, plan_for(call).attention, made)
    return gradients


def _finish(error: int) -> None:
    give_back()
    check(core(), error)


def _options_of_cpu() -> int:
    options = options_of_cpu()
    return 0 if options is None else ctypes.addressof(options)


@functools.cache
def _c() -> tuple[Any, ...] | None:
    """The library, the two functions, and the objects that must stay alive; None if this torch or this Python lacks
    what they need."""
    is_locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    if not takes_objects() or not is_locked or empty_on_cpu is None:
        return None
    library = ctypes.PyDLL(load("flashlift_torch")._name)  # called with the interpreter's lock held
    functions = addresses_of_functions()
    empty_on_gpu = empty_on_cpu if empty_on_current_gpu is None else empty_on_current_gpu
    objects = (
        *(None, True, torch.autograd.profiler, "_is_profiler_enabled", empty_on_cpu, empty_on_gpu),
        *(_options_of_cpu, _finish, _forward_records.first, _backward_records.first, attention, attention_backward),
    )
    api = [ctypes.cast(getattr(ctypes.pythonapi, name), _POINTER).value for name in _API]
    given = _Python(functions, *api, *map(id, objects))
    library.flashlift_torch_begin.argtypes = [_POINTER]
    library.flashlift_torch_begin(ctypes.addressof(given))
    library.flashlift_torch_fill_record.argtypes = [_POINTER] * 4
    make = ctypes.PYFUNCTYPE(ctypes.py_object, _POINTER, _POINTER, _POINTER)(("PyCFunction_NewEx", ctypes.pythonapi))
    methods = [
        _Method(name, ctypes.cast(library["flashlift_torch_" + name.decode()], _POINTER), _FASTCALL, None)
        for name in (b"attention", b"attention_backward")
    ]
    return library, [make(ctypes.addressof(one), None, None) for one in methods], methods, given, objects


def _function(i: int, in_python: Callable[..., Any]) -> Callable[..., Any]:
    """The function that graphs call; the first call replaces it by the function in C."""

    def first(*given: Any) -> Any:
        c = _c()
        function = in_python if c is None else c[1][i]
        setattr(torch.ops.flashlift, _NAMES[i], function)
        return function(*given)

    return first


_NAMES = "attention_in_graph", "attention_backward_in_graph"
_IN_PYTHON: tuple[Callable[..., Any], ...] = attention, attention_backward
for _i, _one in enumerate(_IN_PYTHON):
    setattr(torch.ops.flashlift, _NAMES[_i], _function(_i, _one))


@functools.cache
def _call_by_names() -> None:
    for operator, name in zip(("attention", "attention_backward"), _NAMES, strict=True):
        calls_by_name(getattr(torch.ops.flashlift, operator).default, f"torch.ops.flashlift.{name}")


def prepare_inductor() -> None:
    """Makes graphs that Inductor generates from now on call these functions instead of the operators."""
    if is_inductor_loaded():
        _call_by_names()
