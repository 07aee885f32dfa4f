"""One group of attacks on the C interface, in a process of its own: c_calls.py BUILD GROUP. c_interface.py runs it.

Prints each attack's name before it, so that a crash tells which one it was. Ends with exit code 1 and what happened
where a call took what it must refuse, refused it without a word that helps, or wrote where it must not.
"""

import ctypes
import faulthandler
import json
import mmap
import os
import random
import sys
import threading
from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from pathlib import Path

INVALID, UNSUPPORTED, NOT_FOUND, INTERNAL, CANCELLED = 1, 2, 3, 4, 5
CALLERS = (INVALID, UNSUPPORTED)
LARGEST = 2**63 - 1


class Device(Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class Type(Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p), ("device", Device), ("ndim", c_int32), ("type", Type), ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    ]  # fmt: skip


class Sized(Structure):
    """A structure that begins with its size."""

    def __init__(self, **fields: object) -> None:
        super().__init__(ctypes.sizeof(self), **fields)


TensorPointer = POINTER(Tensor)


class CompileOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("device", Device), ("implementation", c_char_p), ("lengths_unknown", c_int32),
        ("tuning_policy", c_int32),
    ]  # fmt: skip


class PrecompileOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("architectures", POINTER(c_int32)), ("architecture_count", c_size_t),
        ("implementation", c_char_p), ("q_lens", POINTER(c_int64)), ("q_len_count", c_size_t), ("backward", c_int32),
        ("gradients", POINTER(c_char_p)), ("gradient_count", c_size_t),
    ]  # fmt: skip


OnProgress = ctypes.CFUNCTYPE(c_int32, c_void_p, c_double, c_int32)


class TuneOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("device", Device), ("backward", c_int32), ("heads_inside", c_int32),
        ("seconds", c_double), ("tuning_policy", c_int32), ("on_progress", OnProgress), ("context", c_void_p),
    ]  # fmt: skip


class ProblemInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        *[(name, c_int64) for name in ("batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim", "value_dim")],
        ("dtype", Type), ("out_dtype", Type), ("sinks", c_int64), ("want_lse", c_int32), ("capture_count", c_int32),
        ("page_size", c_int64), ("dropout", c_float), ("want_row_max", c_int32), ("want_residual", c_int32),
        ("keep_mask", c_int32),
    ]  # fmt: skip


class Arguments(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("q", TensorPointer), ("k", TensorPointer), ("v", TensorPointer),
        ("out", TensorPointer), ("captures", POINTER(TensorPointer)), ("capture_count", c_size_t),
        ("sinks", TensorPointer), ("lse", TensorPointer), ("row_max", TensorPointer), ("page_table", TensorPointer),
        ("dropout_seed", c_uint64), ("residual", TensorPointer), ("keep_mask", TensorPointer),
    ]  # fmt: skip


class BackwardArguments(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("forward", POINTER(Arguments)), ("d_out", TensorPointer), ("d_lse", TensorPointer),
        ("d_q", TensorPointer), ("d_k", TensorPointer), ("d_v", TensorPointer), ("d_captures", POINTER(TensorPointer)),
        ("d_sinks", TensorPointer),
    ]  # fmt: skip


Body = ctypes.CFUNCTYPE(None, c_void_p, c_int64)
ParallelFor = ctypes.CFUNCTYPE(None, c_void_p, c_int64, Body, c_void_p)


class Executor(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("context", c_void_p), ("concurrency", c_int32), ("parallel_for", ParallelFor),
    ]  # fmt: skip


class RunOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("executor", POINTER(Executor)), ("stream", c_void_p), ("cancelled", POINTER(c_int32)),
    ]  # fmt: skip


class Subject(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("name", c_char_p), ("got", TensorPointer), ("want", TensorPointer),
        ("eager", TensorPointer), ("magnitudes", TensorPointer), ("row_width", c_int64), ("samples", c_double),
        ("is_gradient", c_int32),
    ]  # fmt: skip


class Judgement(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("measures", c_double * 9), ("ok", c_int32), ("reason", ctypes.c_char * 256),
    ]  # fmt: skip


class FuseOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t), ("as_", c_int32), ("name", c_char_p), ("gradients", c_int32), ("emit", c_char_p),
        ("partitions", c_int64),
    ]  # fmt: skip


class Broken(Exception):
    """An attack that was not withstood."""


class Library:
    """libflashlift and libflashlift_stablehlo; functions that can fail give the error's code and message."""

    def __init__(self, build: Path) -> None:
        self.attention = ctypes.CDLL(str(build / "libflashlift.so"))
        self.stablehlo = ctypes.CDLL(str(build / "libflashlift_stablehlo.so"))

    def text(self, function: str, *arguments: object) -> bytes | None:
        return self._function(function, c_char_p)(*arguments)

    def number(self, function: str, *arguments: object) -> int:
        return self._function(function, c_int64)(*arguments)

    def call(self, function: str, *arguments: object) -> tuple[int, str]:
        """(0, "") for success."""
        error = self._function(function, c_void_p)(*arguments)
        if not error:
            return 0, ""
        code = self._function("flashlift_error_code", c_int32)(c_void_p(error))
        message = self.text("flashlift_error_message", c_void_p(error))
        self.free("flashlift_error_destroy", c_void_p(error))
        return code, message.decode()  # strict: messages are UTF-8

    def free(self, function: str, handle: object) -> None:
        self._function(function, None)(handle)

    def _function(self, name: str, result: object) -> Callable:
        inside = self.stablehlo if "fuse" in name else self.attention
        function = inside[name]
        function.restype = result
        return function


class Memory:
    """Bytes at the end of a page, between two pages that nobody may access."""

    def __init__(self, size: int) -> None:
        pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE + 2
        self.map = mmap.mmap(-1, pages * mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (start, start + (pages - 1) * mmap.PAGESIZE):
            if libc.mprotect(c_void_p(guard), c_size_t(mmap.PAGESIZE), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self.size = size
        self.address = start + (pages - 1) * mmap.PAGESIZE - size
        ctypes.memset(self.address, 0, size)

    def bytes(self) -> bytes:
        return ctypes.string_at(self.address, self.size)


TYPES = {"f32": (2, 32), "f64": (2, 64), "f16": (2, 16), "bf16": (4, 16), "i32": (0, 32), "u8": (1, 8), "bool": (6, 8)}


class Owned:
    """A tensor in memory of its own."""

    def __init__(self, dtype: str, *shape: int, values: bytes | None = None) -> None:
        code, bits = TYPES[dtype]
        self.dtype = dtype
        count = 1
        for size in shape:
            count *= size
        self.memory = Memory(count * bits // 8)
        if values:
            ctypes.memmove(
                self.memory.address,
                (values * (self.memory.size // len(values) + 1))[: self.memory.size],
                self.memory.size,
            )
        self.shape = (c_int64 * max(len(shape), 1))(*shape)
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        self.strides = (c_int64 * max(len(shape), 1))(*strides[: max(len(shape), 1)])
        self.tensor = Tensor(
            c_void_p(self.memory.address), Device(1, 0), len(shape), Type(code, bits, 1),
            ctypes.cast(self.shape, POINTER(c_int64)), ctypes.cast(self.strides, POINTER(c_int64)), 0,
        )  # fmt: skip

        self.tensor.memory = self.memory  # lives as long as pointers to the tensor do

    def pointer(self) -> object:
        return ctypes.pointer(self.tensor)


def f32(*numbers: float) -> bytes:
    return bytes((c_float * len(numbers))(*numbers))


class Attention:
    """One compiled attention and the tensors of a call."""

    # All arguments of a call except pages, which have a separate problem.
    SIZES = "attn b2 hq4 hkv2 sq6 skv9 dqk8 dv12"
    FULL = f"{SIZES} f32 sinks=2 lse row_max keep_mask bias=f32"
    PAGED = "attn b2 h4 sq6 skv16 d8 f32 page_size=4 lse"
    OUTPUTS = ("out", "lse", "row_max")

    def __init__(self, library: Library, problem: str = FULL, **options: object) -> None:
        self.library = library
        self.handle = c_void_p()
        code, message = library.call(
            "flashlift_attention_compile", problem.encode(), byref(CompileOptions(**options)), byref(self.handle)
        )
        if code:
            raise Broken(f"{problem}: {message}")
        numbers = f32(*[((7 * i) % 11 - 5) / 8 for i in range(97)])
        if problem == self.PAGED:
            self.tensors = {
                "q": Owned("f32", 2, 4, 6, 8, values=numbers), "k": Owned("f32", 8, 4, 4, 8, values=numbers),
                "v": Owned("f32", 8, 4, 4, 8, values=numbers), "out": Owned("f32", 2, 4, 6, 8), "lse": Owned("f32", 2, 4, 6),
                "page_table": Owned("i32", 2, 4, values=bytes((c_int32 * 8)(*range(8)))),
            }  # fmt: skip
        else:
            self.tensors = {
                "q": Owned("f32", 2, 4, 6, 8, values=numbers), "k": Owned("f32", 2, 2, 9, 8, values=numbers),
                "v": Owned("f32", 2, 2, 9, 12, values=numbers), "out": Owned("f32", 2, 4, 6, 12),
            }  # fmt: skip
            optional = {
                "bias": ("captures", Owned("f32", 2, 4, 6, 9, values=numbers)), "sinks": ("sinks", Owned("f32", 4, 2, values=numbers)),
                "lse": ("lse", Owned("f32", 2, 4, 6)), "row_max": ("row_max", Owned("f32", 2, 4, 6)),
                "keep_mask": ("keep_mask", Owned("bool", 2, 4, 6, 9, values=b"\1\1\0\1\1")),
            }  # fmt: skip
            self.tensors |= dict(brought for word, brought in optional.items() if f" {word}" in problem)
        self.expected = self.result()

    def arguments(self, **changed: object) -> Arguments:
        """`changed`: a pointer to another tensor for a name."""
        given = {name: changed.get(name, owned.pointer()) for name, owned in self.tensors.items()}
        if "captures" in given:
            self.captures = (TensorPointer * 1)(given.pop("captures"))
            given.update(captures=ctypes.cast(self.captures, POINTER(TensorPointer)), capture_count=1)
        return Arguments(**given, dropout_seed=1)

    def run(self, arguments: Arguments | None = None, options: RunOptions | None = None) -> tuple[int, str]:
        arguments = arguments or self.arguments()
        return self.library.call(
            "flashlift_attention_run", self.handle, byref(arguments), byref(options) if options else None
        )

    def result(self) -> bytes:
        code, message = self.run()
        if code:
            raise Broken(f"a right call gives: {message}")
        return self.tensors["out"].memory.bytes()

    def require_unharmed(self) -> None:
        """A correct call still gives its first result."""
        if self.result() != self.expected:
            raise Broken("a right call gives another result than before")


def require_refused(answer: tuple[int, str], *words: str, codes: tuple[int, ...] = CALLERS) -> None:
    code, message = answer
    if code not in codes:
        raise Broken(f"expected an error of code {codes}, got {code}: {message[:300]}")
    missing = [word for word in words if word not in message]
    if missing:
        raise Broken(f"the error does not say {missing}: {message[:300]}")


def require_answer(answer: tuple[int, str]) -> None:
    """The call succeeds, or reports an error in its arguments."""
    code, message = answer
    if code not in (0, *CALLERS) or (code != 0 and not message):
        raise Broken(f"expected success or an error about what was given, got {code}: {message[:300]}")


# ---- The attacks: groups of (name, what to do) ----

Group = Callable[[Library], list[tuple[str, Callable[[], None]]]]
GROUPS: dict[str, Group] = {}


def group(function: Group) -> Group:
    GROUPS[function.__name__] = function
    return function


def copy_of(owned: Owned) -> tuple[Tensor, list]:
    """A tensor with copies of sizes and strides, so that it may be changed."""
    tensor = Tensor.from_buffer_copy(owned.tensor)
    shape = (c_int64 * 64)(*owned.shape)
    strides = (c_int64 * 64)(*owned.strides)
    tensor.shape = ctypes.cast(shape, POINTER(c_int64))
    tensor.strides = ctypes.cast(strides, POINTER(c_int64))
    return tensor, [shape, strides]


def tensor_faults(rank: int) -> list[tuple[str, Callable[[Tensor], None]]]:
    """What can be wrong with a tensor, so that every call must refuse it."""

    def put(**fields: object) -> Callable[[Tensor], None]:
        return lambda tensor: [setattr(tensor, name, value) for name, value in fields.items()] and None

    def at(field: str, dimension: int, value: int) -> Callable[[Tensor], None]:
        return lambda tensor: getattr(tensor, field).__setitem__(dimension, value)

    def misalign(tensor: Tensor) -> None:
        tensor.byte_offset = 1

    faults = [
        ("no data", put(data=None)),
        ("no data, with an offset", put(data=None, byte_offset=64)),
        ("an offset beyond the address space", put(byte_offset=2**64 - 4096)),
        *[(f"{n} dimensions", put(ndim=n)) for n in (-(2**31), -1, rank - 1, rank + 1, 9, 64, 2**31 - 1) if n != rank],
        ("no shape", put(shape=None)),
        *[(f"device {d}", put(device=Device(*d))) for d in ((0, 0), (2, 0), (1, -1), (-1, 0), (2**31 - 1, 0), (13, 0))],
        *[(f"type {t}", put(type=Type(*t))) for t in ((2, 32, 0), (2, 32, 2), (2, 32, 65535), (2, 0, 1), (2, 31, 1), (2, 255, 1), (255, 32, 1), (3, 64, 1), (5, 64, 1), (0, 128, 1), (1, 64, 1), (0, 16, 1))],
    ]  # fmt: skip
    for dimension in range(rank):
        faults += [
            (f"size {n} of dimension {dimension}", at("shape", dimension, n))
            for n in (-1, -(2**63), 2**62, LARGEST, 2**32 + 1, 1000)
        ]
        faults += [(f"stride {n} of dimension {dimension}", at("strides", dimension, n)) for n in (-(2**63), LARGEST)]
        faults.append(
            (
                f"a stride beyond 64 bits in dimension {dimension}",
                lambda tensor, d=dimension: tensor.strides.__setitem__(
                    d, min(2**66 // max(tensor.type.bits, 8), LARGEST)
                ),
            )
        )
    return faults


def attack_tensors(library: Library, problem: str) -> list[tuple[str, Callable[[], None]]]:
    attention = Attention(library, problem)
    attacks = []
    for name, owned in attention.tensors.items():

        def run(change: Callable[[Tensor], None] | None, name: str = name, owned: Owned = owned) -> None:
            tensor, kept = copy_of(owned)
            pointer = None
            if change:
                change(tensor)
                pointer = ctypes.pointer(tensor)
            require_refused(attention.run(attention.arguments(**{name: pointer})))
            attention.require_unharmed()

        attacks.append((f"{name}: NULL", lambda run=run: run(None)))
        for fault, change in tensor_faults(owned.tensor.ndim):
            if (name, fault[:4], fault[-11:]) != ("page_table", "size", "dimension 1"):  # may be wider than needed
                attacks.append((f"{name}: {fault}", lambda run=run, change=change: run(change)))
        if owned.tensor.type.bits > 8:

            def misalign(tensor: Tensor) -> None:
                tensor.data = tensor.data - 1

            attacks.append((f"{name}: misaligned", lambda run=run, change=misalign: run(change)))
        if name in Attention.OUTPUTS:

            def overlap(tensor: Tensor) -> None:
                tensor.strides[0] = 0

            attacks.append((f"{name}: overlaps itself", lambda run=run, change=overlap: run(change)))
    return attacks


@group
def tensors(library: Library) -> list[tuple[str, Callable[[], None]]]:
    """Each tensor of a call, with each fault."""
    return attack_tensors(library, Attention.FULL)


@group
def paged_tensors(library: Library) -> list[tuple[str, Callable[[], None]]]:
    attention = Attention(library, Attention.PAGED)

    def pages(value: int) -> None:
        table = Owned("i32", 2, 4, values=bytes((c_int32 * 8)(*[value] * 8)))
        require_answer(attention.run(attention.arguments(page_table=table.pointer())))
        attention.require_unharmed()

    return [
        *attack_tensors(library, Attention.PAGED),
        *[(f"page {value}", lambda value=value: pages(value)) for value in (-1, 8, -(2**31), 2**31 - 1, 1000)],
    ]


@group
def backward_tensors(library: Library) -> list[tuple[str, Callable[[], None]]]:
    """Each tensor of a backward call, with each fault."""
    attention = Attention(library, f"{Attention.SIZES} f32 sinks=2 lse bias=f32")
    given = {
        "d_out": Owned("f32", 2, 4, 6, 12, values=f32(1, -0.5)), "d_lse": Owned("f32", 2, 4, 6, values=f32(0.25)),
        "d_q": Owned("f32", 2, 4, 6, 8), "d_k": Owned("f32", 2, 2, 9, 8), "d_v": Owned("f32", 2, 2, 9, 12),
        "d_sinks": Owned("f32", 4, 2), "d_captures": Owned("f32", 2, 4, 6, 9),
    }  # fmt: skip

    def call(**changed: object) -> tuple[int, str]:
        pointers = {name: changed.get(name, owned.pointer()) for name, owned in given.items()}
        d_captures = (TensorPointer * 1)(pointers.pop("d_captures"))
        forward = attention.arguments()
        arguments = BackwardArguments(
            forward=ctypes.pointer(forward), d_captures=ctypes.cast(d_captures, POINTER(TensorPointer)), **pointers
        )
        return library.call("flashlift_attention_run_backward", attention.handle, byref(arguments), None)

    def gradients() -> list[bytes]:
        answer = call()
        if answer[0]:
            raise Broken(f"a right call gives: {answer[1]}")
        return [owned.memory.bytes() for owned in given.values()]

    expected = gradients()

    def run(name: str, change: Callable[[Tensor], None]) -> None:
        tensor, kept = copy_of(given[name])
        change(tensor)
        require_refused(call(**{name: ctypes.pointer(tensor)}), *([name] if name != "d_captures" else []))
        if gradients() != expected:
            raise Broken("a right call gives other gradients than before")

    def all_null() -> None:
        require_answer(call(**dict.fromkeys(set(given) - {"d_out"})))

    attacks: list[tuple[str, Callable[[], None]]] = [
        ("d_out: NULL", lambda: require_refused(call(d_out=None), "d_out")),
        ("no gradient", all_null),
    ]
    for name, owned in given.items():
        for fault, change in tensor_faults(owned.tensor.ndim):
            attacks.append((f"{name}: {fault}", lambda name=name, change=change: run(name, change)))
    for name in ("d_q", "d_k", "d_v", "d_sinks", "d_captures"):
        for other in ("q", "k", "out", "lse"):

            def overlap(tensor: Tensor, other: str = other) -> None:
                tensor.data = attention.tensors[other].tensor.data

            attacks.append((f"{name} in {other}'s memory", lambda name=name, change=overlap: run(name, change)))
    return attacks


@group
def structures(library: Library) -> list[tuple[str, Callable[[], None]]]:
    """Structure sizes that do not exist, and sizes that end inside a field."""
    attention = Attention(library, f"{Attention.SIZES} f32")
    arguments = attention.arguments()
    backward = BackwardArguments(forward=ctypes.pointer(arguments), d_out=attention.tensors["out"].pointer())
    executor = Executor(
        concurrency=1, parallel_for=ParallelFor(lambda c, n, body, b: [body(b, i) for i in range(n)] and None)
    )
    options = RunOptions()
    with_executor = RunOptions(executor=ctypes.pointer(executor))
    one, double = Owned("f32", 1), Owned("f64", 1)
    subject = Subject(got=one.pointer(), want=double.pointer(), eager=one.pointer())
    judgement = Judgement()
    handle = c_void_p()
    module = b"func.func @f() { return }"
    info = ProblemInfo()
    calls: list[tuple[str, Sized, Callable[[], tuple[int, str]]]] = [
        ("FlashliftArguments", arguments, lambda: attention.run(arguments)),
        (
            "FlashliftBackwardArguments",
            backward,
            lambda: library.call("flashlift_attention_run_backward", attention.handle, byref(backward), None),
        ),
        ("FlashliftRunOptions", options, lambda: attention.run(None, options)),
        ("FlashliftExecutor", executor, lambda: attention.run(None, with_executor)),
        ("FlashliftCompileOptions", CompileOptions(), lambda: (0, "")),
        ("FlashliftProblemInfo", info, lambda: library.call("flashlift_attention_info", attention.handle, byref(info))),
        ("FlashliftSubject", subject, lambda: library.call("flashlift_judge", byref(subject), byref(judgement))),
        ("FlashliftJudgement", judgement, lambda: library.call("flashlift_judge", byref(subject), byref(judgement))),
    ]

    def compiled(options: Sized) -> tuple[int, str]:
        answer = library.call("flashlift_attention_compile", b"attn h1 s4 d8", byref(options), byref(handle))
        library.free("flashlift_attention_destroy", handle)
        return answer

    def fused(options: Sized) -> tuple[int, str]:
        answer = library.call("flashlift_stablehlo_fuse", module, c_size_t(len(module)), byref(options), byref(handle))
        library.free("flashlift_fused_destroy", handle)
        return answer

    for name, options_type, call in (
        ("FlashliftCompileOptions", CompileOptions, compiled),
        ("FlashliftFuseOptions", FuseOptions, fused),
        ("FlashliftTuneOptions", TuneOptions, lambda o: library.call("flashlift_tune", b"attn h1 s4", byref(o), None)),
        (
            "FlashliftPrecompileOptions",
            PrecompileOptions,
            lambda o: library.call("flashlift_precompile", b"attn h1 s4 d8", byref(o), None),
        ),
    ):
        given = options_type()
        calls.append((name, given, lambda call=call, given=given: call(given)))

    def never(name: str, structure: Sized, size: int, call: Callable[[], tuple[int, str]]) -> None:
        right = structure.struct_size
        structure.struct_size = size
        answer = call()
        structure.struct_size = right
        require_refused(answer, f"{name}::struct_size", codes=(INVALID,))

    def shorter(structure: Sized, size: int, call: Callable[[], tuple[int, str]]) -> None:
        right = structure.struct_size
        structure.struct_size = size
        answer = call()
        structure.struct_size = right
        if answer[0] != NOT_FOUND:  # of NVRTC or a GPU
            require_answer(answer)

    attacks = []
    for name, structure, call in calls:
        if name == "FlashliftCompileOptions" and call() == (0, "") and structure is calls[4][1]:
            continue
        real = ctypes.sizeof(structure)
        for size in (0, 1, 7, 4097, 2**32, 2**64 - 1, *[s for s in range(9, real) if s % 8]):
            attacks.append((f"{name} of {size}", lambda n=name, s=structure, z=size, c=call: never(n, s, z, c)))
        for size in range(8, real, 8):
            attacks.append((f"{name} of {size}", lambda s=structure, z=size, c=call: shorter(s, z, c)))
    return attacks


TEXTS: dict[str, bytes] = {
    "empty": b"", "a space": b" ", "no attn": b"h1 s4 d8", "attn alone": b"attn", "a letter": b"\xff",
    "invalid UTF-8": b"attn h1 s4 d8 \xff\xfe\xc0\x80", "half a letter": b"attn h1 s4 d8 \xe2\x82",
    "formats": b"attn h1 s4 d8 %s%n%p {} {0} {:{}}", "controls": bytes(range(1, 32)) + b"attn h1 s4 d8",
    "5 MB": b"attn h1 s4 d8 " + b"x" * 5_000_000, "5 MB of spaces": b"attn h1 s4 d8 " + b" " * 5_000_000,
    "twice": b"attn h1 s4 d8 causal causal", "a huge size": b"attn h1 s9223372036854775808 d8",
    "a negative size": b"attn h-1 s4 d8", "products of sizes": b"attn b2147483647 h2147483647 s2147483647 d256",
    "a program without end": b"attn h1 s4 d8 score_mod() {", "a program of braces": b"attn h1 s4 d8 score_mod() " + b"{" * 100_000,
    "a program that returns nothing": b"attn h1 s4 d8 score_mod() { }", "an unknown step": b"attn h1 s4 d8 score_mod() { %0 = frob score; return %0 }",
    "a step that reads itself": b"attn h1 s4 d8 score_mod() { %0 = add %0, score; return %0 }",
    "a capture of 2^63": b"attn h1 s4 d8 score_mod(t: f32[9223372036854775808]) { %0 = load t[q]; return %0 }",
    "a capture of -1": b"attn h1 s4 d8 score_mod(t: f32[-1]) { %0 = load t[q]; return %0 }",
    "a number of digits": b"attn h1 s4 d8 scale=" + b"9" * 100_000, "not a number": b"attn h1 s4 d8 scale=nan",
    "window": b"attn h1 s4 d8 window=-1", "pages": b"attn h1 s4 d8 page_size=0", "dropout": b"attn h1 s4 d8 dropout=1.5",
}  # fmt: skip


@group
def problem_texts(library: Library) -> list[tuple[str, Callable[[], None]]]:
    """Passes texts that are not problems to every function that reads problems."""
    handle = c_void_p()
    kinds = Owned("u8", 1, 1, 1, 1)
    takers = {
        "compile": lambda text: library.call("flashlift_attention_compile", text, None, byref(handle)),
        "expand": lambda text: library.call("flashlift_problem_expand", text, byref(handle)),
        "tune": lambda text: library.call("flashlift_tune", text, None, byref(handle)),
        "precompile": lambda text: library.call(
            "flashlift_precompile", text, byref(PrecompileOptions()), byref(handle)
        ),
        "block_kinds": lambda text: library.call(
            "flashlift_block_kinds", text, None, c_size_t(0), c_int64(4), c_int64(4), kinds.pointer()
        ),
    }

    def take(taker: str, text: bytes) -> None:
        handle.value = 1  # a call that fails must set it to NULL
        require_refused(takers[taker](text))
        if taker != "block_kinds" and handle.value is not None:
            raise Broken("a failed call leaves a handle")

    def read(text: bytes) -> None:
        handle.value = 1
        answer = library.call("flashlift_problem_read", text, byref(handle))
        require_answer(answer)
        if answer[0] == 0:
            json.loads(library.text("flashlift_problem_json", handle))
            library.free("flashlift_problem_destroy", handle)

    return [
        *[(f"{taker}: {name}", lambda t=taker, x=text: take(t, x)) for name, text in TEXTS.items() for taker in takers],
        *[(f"read: {name}", lambda x=text: read(x)) for name, text in TEXTS.items()],
    ]


NAMES: list[bytes] = [
    b" ", b"\xff", b"%n%s", b"{}", b"../../etc/passwd", b"cpu_avx2 ", b"CPU_AVX2", b"x" * 1_000_000, b"\n", b'"', b"\\",
    b"cuda", b"portable\xc0", b"vhlo=", b"vhlo=1", b"vhlo=1.9", b"vhlo=1.9.0.0", b"vhlo=99999999999999999999.0.0",
    b"vhlo=-1.9.0", b"vhlo=1.-9.0", b"vhlo=999.0.0", b"vhlo=0.0.0", b"text ", b"TEXT", b"bytecode=1", b"vhlo=1.9.0x",
]  # fmt: skip


@group
def options(library: Library) -> list[tuple[str, Callable[[], None]]]:
    """Options of all functions with values outside their ranges."""
    handle = c_void_p()
    problem = b"attn h1 s4 d8 bias=f32"
    module = b"func.func @f() { return }"

    def compile_with(**fields: object) -> tuple[int, str]:
        return library.call("flashlift_attention_compile", problem, byref(CompileOptions(**fields)), byref(handle))

    def fuse_with(**fields: object) -> tuple[int, str]:
        return library.call(
            "flashlift_stablehlo_fuse", module, c_size_t(len(module)), byref(FuseOptions(**fields)), byref(handle)
        )

    def tune_with(**fields: object) -> tuple[int, str]:
        return library.call("flashlift_tune", problem, byref(TuneOptions(**fields)), byref(handle))

    def precompile_with(**fields: object) -> tuple[int, str]:
        return library.call("flashlift_precompile", problem, byref(PrecompileOptions(**fields)), byref(handle))

    def name_of_module(name: bytes) -> None:
        wrong = b"func.func @f( { return }"
        require_refused(
            library.call(
                "flashlift_stablehlo_fuse", wrong, c_size_t(len(wrong)), byref(FuseOptions(name=name)), byref(handle)
            )
        )
        require_answer(fuse_with(name=name))
        json.loads(library.text("flashlift_fused_report", handle))
        library.free("flashlift_fused_destroy", handle)

    def ignored_result() -> None:
        for function in ("flashlift_tune", "flashlift_precompile"):
            require_refused(library.call(function, None, None, None))

    numbers = (c_int32 * 3)(90, -1, 2**31 - 1)
    lens = (c_int64 * 2)(-1, 0)
    names = (c_char_p * 2)(b"bias", None)
    unknown = (c_char_p * 1)(b"\xff")
    # If the GPU or NVRTC is missing, the error reports that first.
    gpu = (*CALLERS, NOT_FOUND)
    attacks: list[tuple[str, Callable[[], None]]] = [
        *[(f"device {d}", lambda d=d: require_refused(compile_with(device=Device(*d)), "device", codes=gpu)) for d in ((-1, 0), (3, 0), (2, -1), (2, 2**31 - 1), (2, -(2**31)), (2**31 - 1, 0))],
        *[(f"device {d}, tune", lambda d=d: require_refused(tune_with(device=Device(*d)), codes=gpu)) for d in ((-1, 0), (3, 0), (2, -1))],
        *[(f"policy {p}", lambda p=p: require_refused(compile_with(tuning_policy=p), "policy")) for p in (-1, 4, 2**31 - 1, -(2**31))],
        *[(f"policy {p}, tune", lambda p=p: require_refused(tune_with(tuning_policy=p), "policy")) for p in (-1, 4, 2**31 - 1)],
        *[(f"{s} seconds", lambda s=s: require_refused(tune_with(seconds=s, tuning_policy=1), "seconds")) for s in (-1, float("nan"), float("-inf"), -1e-300)],
        *[(f"as {a}", lambda a=a: require_refused(fuse_with(as_=a), "as is")) for a in (-1, 2, 2**31 - 1)],
        *[(f"{p} partitions", lambda p=p: require_refused(fuse_with(partitions=p), "partitions")) for p in (-1, -(2**63))],
        *[(f"{p} partitions", lambda p=p: require_answer(fuse_with(partitions=p))) for p in (1, LARGEST)],
        *[(f"implementation {n[:20]!r}", lambda n=n: require_refused(compile_with(implementation=n))) for n in NAMES],
        *[(f"emit {n[:20]!r}", lambda n=n: require_refused(fuse_with(emit=n))) for n in NAMES],
        *[(f"module's name {n[:20]!r}", lambda n=n: name_of_module(n)) for n in NAMES],
        ("no result wanted", ignored_result),
        ("no architecture", lambda: require_refused(precompile_with(), codes=gpu)),
        ("architectures that are none", lambda: require_refused(precompile_with(architectures=numbers, architecture_count=3), codes=gpu)),
        ("architectures NULL", lambda: require_refused(precompile_with(architecture_count=3), "architectures")),
        ("q_lens NULL", lambda: require_refused(precompile_with(architectures=numbers, architecture_count=1, q_len_count=2**63), "q_lens")),
        ("q_lens of -1", lambda: require_refused(precompile_with(architectures=numbers, architecture_count=1, q_lens=lens, q_len_count=2), codes=gpu)),
        ("gradients NULL", lambda: require_refused(precompile_with(architectures=numbers, architecture_count=1, gradient_count=1), "gradients")),
        ("a gradient NULL", lambda: require_refused(precompile_with(architectures=numbers, architecture_count=1, gradients=names, gradient_count=2), "gradients")),
        ("a gradient of nothing", lambda: require_refused(precompile_with(architectures=numbers, architecture_count=1, gradients=unknown, gradient_count=1, backward=1), codes=gpu)),
    ]  # fmt: skip
    return attacks


@group
def null(library: Library) -> list[tuple[str, Callable[[], None]]]:
    """NULL for each argument."""
    calls = {
        "flashlift_attention_compile": 3, "flashlift_problem_read": 2, "flashlift_problem_expand": 2,
        "flashlift_precompile": 3, "flashlift_tune": 3, "flashlift_attention_info": 2, "flashlift_attention_run": 3,
        "flashlift_attention_run_backward": 3, "flashlift_judge": 2, "flashlift_block_kinds": 6,
        "flashlift_stablehlo_fuse": 4,
    }  # fmt: skip
    frees = [f"flashlift_{name}_destroy" for name in ("error", "problem", "attention", "precompiled", "tuned", "fused")]
    tells = [
        "error_message", "problem_json", "attention_problem", "attention_implementation", "attention_considerations",
        "attention_backward_considerations", "precompiled_json", "tuned_json", "fused_report",
    ]  # fmt: skip
    attention = Attention(library)

    def captures_null() -> None:
        arguments = attention.arguments()
        arguments.captures = None
        require_refused(attention.run(arguments), "captures")

    def captures_many() -> None:
        arguments = attention.arguments()
        arguments.capture_count = 2**64 - 1
        require_refused(attention.run(arguments), "captured tensor")

    def names() -> None:
        for index in (-1, 1, 2**31 - 1, -(2**31)):
            if library.text("flashlift_attention_capture_name", attention.handle, c_int32(index)) is not None:
                raise Broken(f"captured tensor {index} has a name")

    def told(name: str) -> None:
        if library.text(f"flashlift_{name}", None) is None:
            raise Broken("NULL")

    def workspace() -> None:
        for function in ("flashlift_attention_workspace_bytes", "flashlift_attention_backward_workspace_bytes"):
            for threads in (0, -1, -(2**31)):
                if library.number(function, attention.handle, c_int32(threads)) != -1:
                    raise Broken(f"{function} of {threads} threads")
            if library.number(function, attention.handle, c_int32(2**31 - 1)) < 0:
                raise Broken(f"{function} of 2^31 - 1 threads is negative")

    return [
        *[(f, lambda f=f, n=n: require_refused(library.call(f, *[None] * n))) for f, n in calls.items()],
        *[(f, lambda f=f: library.free(f, None)) for f in frees],
        *[(name, lambda name=name: told(name)) for name in tells],
        ("captures", captures_null),
        ("2^64 - 1 captures", captures_many),
        ("names of captures that are none", names),
        ("workspaces", workspace),
    ]


@group
def block_kinds(library: Library) -> list[tuple[str, Callable[[], None]]]:
    problem = b"attn b2 h3 s16 d8 mask_mod(t: i32[16]) { %0 = load t[q]; %1 = le kv, %0; return %1 }"
    table = Owned("i32", 16, values=bytes((c_int32 * 16)(*range(16))))
    kinds = Owned("u8", 2, 3, 4, 4)

    def call(q_block: int = 4, kv_block: int = 4, capture: object = table, into: object = kinds) -> tuple[int, str]:
        captures = (TensorPointer * 1)(capture.pointer() if isinstance(capture, Owned) else ctypes.pointer(capture))
        to = into.pointer() if isinstance(into, Owned) else ctypes.pointer(into)
        return library.call(
            "flashlift_block_kinds", problem, captures, c_size_t(1), c_int64(q_block), c_int64(kv_block), to
        )

    if call()[0]:
        raise Broken(call()[1])

    def changed(owned: Owned, change: Callable[[Tensor], None], name: str) -> None:
        tensor, kept = copy_of(owned)
        change(tensor)
        require_refused(call(**{name: tensor}))

    return [
        *[(f"blocks of {n}", lambda n=n: require_refused(call(n, 4))) for n in (0, -1, -(2**63), LARGEST, 3)],
        *[(f"blocks of {n} keys", lambda n=n: require_refused(call(4, n))) for n in (0, -1, -(2**63), LARGEST, 3)],
        *[(f"kinds: {f}", lambda c=c: changed(kinds, c, "into")) for f, c in tensor_faults(4)],
        *[(f"the captured tensor: {f}", lambda c=c: changed(table, c, "capture")) for f, c in tensor_faults(1)],
    ]


@group
def judge(library: Library) -> list[tuple[str, Callable[[], None]]]:
    tensors = {
        "got": Owned("f32", 3, 4),
        "want": Owned("f64", 3, 4),
        "eager": Owned("f32", 3, 4),
        "magnitudes": Owned("f64", 3, 4),
    }

    def call(changed: dict[str, object] | None = None, **fields: object) -> tuple[int, str]:
        pointers = {name: owned.pointer() for name, owned in tensors.items()} | (changed or {})
        judgement = Judgement()
        return library.call("flashlift_judge", byref(Subject(**pointers, **fields)), byref(judgement))

    def fault(name: str, change: Callable[[Tensor], None]) -> None:
        tensor, kept = copy_of(tensors[name])
        change(tensor)
        require_refused(call({name: ctypes.pointer(tensor)}))

    if call()[0]:
        raise Broken(call()[1])
    return [
        *[(f"{n}: {f}", lambda n=n, c=c: fault(n, c)) for n in tensors for f, c in tensor_faults(2)],
        *[(f"{n}: NULL", lambda n=n: require_refused(call({n: None}), n)) for n in ("got", "want", "eager")],
        *[(f"rows of {w}", lambda w=w: require_answer(call(row_width=w))) for w in (-1, -(2**63), 5, 13, LARGEST)],
        *[
            (f"{s} samples", lambda s=s: require_answer(call(samples=s)))
            for s in (-1, float("nan"), float("inf"), 1e308)
        ],
        *[(f"name {n[:20]!r}", lambda n=n: require_answer(call(name=n))) for n in NAMES],
    ]


@group
def executors(library: Library) -> list[tuple[str, Callable[[], None]]]:
    """Thread pools of the caller with strange sizes and behaviour."""
    attention = Attention(library, f"{Attention.SIZES} f32")

    def lend(concurrency: int, parallel_for: Callable | None) -> tuple[int, str]:
        function = ParallelFor(parallel_for) if parallel_for else ParallelFor()
        executor = Executor(concurrency=concurrency, parallel_for=function)
        return attention.run(None, RunOptions(executor=ctypes.pointer(executor)))

    def in_order(context: object, count: int, body: Callable, body_context: int) -> None:
        for index in range(count):
            body(body_context, index)

    def backwards(context: object, count: int, body: Callable, body_context: int) -> None:
        for index in reversed(range(count)):
            body(body_context, index)

    def on_threads(context: object, count: int, body: Callable, body_context: int) -> None:
        threads = [threading.Thread(target=body, args=(body_context, index)) for index in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def nested(context: object, count: int, body: Callable, body_context: int) -> None:
        attention.run()
        in_order(context, count, body, body_context)

    def right(concurrency: int, parallel_for: Callable) -> None:
        ctypes.memset(attention.tensors["out"].memory.address, 255, attention.tensors["out"].memory.size)
        answer = lend(concurrency, parallel_for)
        if answer[0] or attention.tensors["out"].memory.bytes() != attention.expected:
            raise Broken(f"another result: {answer}")

    def cancelled() -> None:
        flag = c_int32(1)
        answer = attention.run(None, RunOptions(cancelled=ctypes.pointer(flag)))
        require_refused(answer, codes=(CANCELLED,))
        attention.require_unharmed()

    return [
        *[(f"{n} threads", lambda n=n: require_refused(lend(n, in_order), "concurrency")) for n in (0, -1, -(2**31))],
        ("no function", lambda: require_refused(lend(1, None), "parallel_for")),
        *[
            (f"{n} threads, {f.__name__}", lambda n=n, f=f: right(n, f))
            for n in (1, 2, 3, 1000, 2**31 - 1)
            for f in (in_order, backwards, on_threads, nested)
        ],
        ("cancelled", cancelled),
    ]  # fmt: skip


@group
def callbacks(library: Library) -> list[tuple[str, Callable[[], None]]]:
    """Callbacks of tuning that call the library again."""
    problem = b"attn h1 s8 d8"

    def tune(on_progress: Callable[[object, float, int], int]) -> tuple[int, str]:
        options = TuneOptions(seconds=0.01, tuning_policy=1, on_progress=OnProgress(on_progress))
        return library.call("flashlift_tune", problem, byref(options), None)

    def inside(context: object, done: float, left: int) -> int:
        if not 0 <= done <= 1 or left < 0:
            raise Broken(f"{done} done, {left} left")
        Attention(library)
        return 0

    def within(context: object, done: float, left: int) -> int:
        return 0 if tune(lambda *_: 1)[0] == CANCELLED else 1

    return [
        ("cancelled at once", lambda: require_refused(tune(lambda *_: 1), codes=(CANCELLED,))),
        ("cancelled by any number", lambda: require_refused(tune(lambda *_: -(2**31)), codes=(CANCELLED,))),
        ("compiles and runs", lambda: require_answer(tune(inside))),
        ("tunes", lambda: require_answer(tune(within))),
    ]


@group
def threads(library: Library) -> list[tuple[str, Callable[[], None]]]:
    """One attention on 16 threads, while other threads compile, fail and destroy theirs, and the process forks."""
    module = b"func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"

    def beside(count: int, body: Callable[[int], None]) -> None:
        faults: list[BaseException] = []

        def guarded(number: int) -> None:
            try:
                body(number)
            except BaseException as fault:
                faults.append(fault)

        workers = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if faults:
            raise faults[0]

    def one_handle() -> None:
        shared = Attention(library)

        def run(number: int) -> None:
            own = Attention.__new__(Attention)
            own.__dict__.update(shared.__dict__)
            own.tensors = {
                name: Owned(o.dtype, *o.shape[: o.tensor.ndim], values=o.memory.bytes())
                for name, o in shared.tensors.items()
            }  # fmt: skip
            for _ in range(20):
                own.require_unharmed()
                require_refused(own.run(own.arguments(q=None)), "q")

        beside(16, run)

    def everything() -> None:
        def run(number: int) -> None:
            for i in range(4):
                handle = c_void_p()
                text = f"attn h1 s{number + 1} d8 score_mod() {{ %0 = mul score, {i}.5; return %0 }}"
                if library.call("flashlift_attention_compile", text.encode(), None, byref(handle))[0]:
                    raise Broken(text)
                library.free("flashlift_attention_destroy", handle)
                require_refused(library.call("flashlift_attention_compile", b"attn \xff", None, byref(handle)))
                if library.call("flashlift_stablehlo_fuse", module, c_size_t(len(module)), None, byref(handle))[0]:
                    raise Broken("fuse")
                library.free("flashlift_fused_destroy", handle)

        beside(16, run)

    def forks() -> None:
        attention = Attention(library)
        ended = threading.Event()

        def run() -> None:
            while not ended.is_set():
                everything_once(library)

        workers = [threading.Thread(target=run) for _ in range(4)]
        for worker in workers:
            worker.start()
        try:
            for _ in range(8):
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        attention.require_unharmed()
                        everything_once(library)
                        code = 0
                    finally:
                        os._exit(code)
                if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
                    raise Broken("a child failed")
        finally:
            ended.set()
            for worker in workers:
                worker.join()

    return [("one handle", one_handle), ("everything", everything), ("forks", forks)]


def everything_once(library: Library) -> None:
    handle = c_void_p()
    text = f"attn h1 s4 d8 score_mod() {{ %0 = mul score, {random.random()}; return %0 }}"
    if library.call("flashlift_attention_compile", text.encode(), None, byref(handle))[0]:
        raise Broken(text)
    library.free("flashlift_attention_destroy", handle)


@group
def monkeys(library: Library) -> list[tuple[str, Callable[[], None]]]:
    """Calls with several faults at once, drawn at random."""
    attention = Attention(library)

    def call(seed: int) -> None:
        draw = random.Random(seed)
        kept = []
        changed: dict[str, object] = {}
        for name in draw.sample(list(attention.tensors), draw.randint(1, 4)):
            owned = attention.tensors[name]
            tensor, own = copy_of(owned)
            kept += [tensor, *own]
            for _, change in draw.sample(tensor_faults(owned.tensor.ndim), draw.randint(1, 3)):
                if tensor.shape and tensor.strides:
                    change(tensor)
            changed[name] = draw.choice([None, ctypes.pointer(tensor), ctypes.pointer(tensor)])
        require_refused(attention.run(attention.arguments(**changed)))
        attention.require_unharmed()

    return [(f"seed {seed}", lambda seed=seed: call(seed)) for seed in range(300)]


def main() -> int:
    faulthandler.enable()
    build, name = Path(sys.argv[1]), sys.argv[2]
    library = Library(build)
    attacks = GROUPS[name](library)
    faults = 0
    for attack, run in attacks:
        print(attack, flush=True)
        try:
            run()
        except Broken as fault:
            faults += 1
            print(f"error: {attack}: {fault}", file=sys.stderr, flush=True)
    print(f"{len(attacks)} attacks, {faults} broke through")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
