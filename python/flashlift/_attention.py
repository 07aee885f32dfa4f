"""Compiled attention on arrays: flashlift.compile and the objects that it returns."""

import ctypes
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flashlift._errors import InvalidArgumentError, counted
from flashlift._library import (
    Arguments,
    BackwardArguments,
    CompileOptions,
    DLDevice,
    DLTensor,
    ProblemInfo,
    RunOptions,
    c_text,
    check,
    core,
    whole_number,
)
from flashlift._problem import Problem
from flashlift._tensor import Tensor, numpy_type

_DEVICES = {"cpu": 1, "cuda": 2}

_POLICIES = {None: 0, "off": 1, "read": 2, "write": 3}


def parse_device(device: str) -> DLDevice:
    match = re.fullmatch(r"(cpu|cuda)(?::([0-9]{1,9}))?", device, re.ASCII) if isinstance(device, str) else None
    if match is None:
        raise InvalidArgumentError(f'device is "{device}"; expected "cpu", "cuda" or "cuda:N"')
    return DLDevice(_DEVICES[match[1]], int(match[2] or 0))


def parse_policy(name: str, policy: str | None) -> int:
    """The number of a FlashliftTuningPolicy."""
    if policy is not None and (not isinstance(policy, str) or policy not in _POLICIES):
        raise InvalidArgumentError(f'{name} is {policy!r}; expected "off", "read", "write" or None')
    return _POLICIES[policy]


# In the problem's order, or by name.
Captures = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Gradients:
    """The result of `Attention.backward`."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    captures: dict[str, np.ndarray] = field(default_factory=dict)
    """Of the captured tensors that were asked for, in their logical shapes."""
    sinks: np.ndarray | None = None


class Attention:
    """An attention compiled for one class of problems. Immutable; any thread may call it.

    batch, q_len and kv_len of a call come from the arrays and may differ from the problem's.
    """

    def __init__(
        self,
        problem: str | Problem,
        device: str = "cpu",
        implementation: str | None = None,
        *,
        lengths_known: bool = True,
        tuning: str | None = None,
    ) -> None:
        """As compile(). lengths_known=False: b, sq and skv of the problem only fill their places; kernels for a GPU are
        compiled by the first calls, for lengths like theirs."""
        self._library = core()
        self._handle = ctypes.c_void_p()
        options = CompileOptions(
            ctypes.sizeof(CompileOptions),
            parse_device(device),
            c_text(implementation, "implementation") if implementation else None,
            not lengths_known,
            parse_policy("tuning", tuning),
        )
        check(
            self._library,
            self._library.flashlift_attention_compile(
                c_text(str(problem) if isinstance(problem, Problem) else problem, "problem"),
                options,
                ctypes.byref(self._handle),
            ),
        )
        self._info = ProblemInfo(ctypes.sizeof(ProblemInfo))
        check(self._library, self._library.flashlift_attention_info(self._handle, self._info))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.flashlift_attention_destroy(self._handle)

    def __repr__(self) -> str:
        return f"<flashlift.Attention {self.implementation}: {self.problem}>"

    @property
    def problem(self) -> str:
        """The problem in canonical text, with every named feature as its program."""
        return self._library.flashlift_attention_problem(self._handle).decode()

    @property
    def implementation(self) -> str:
        """The name of the chosen implementation."""
        return self._library.flashlift_attention_implementation(self._handle).decode()

    @property
    def considerations(self) -> list[str]:
        """Each implementation that was considered, and its answer."""
        return self._library.flashlift_attention_considerations(self._handle).decode().splitlines()

    @property
    def backward_considerations(self) -> list[str]:
        """The same for the backward pass. None is accepted if a backward call will fail."""
        return self._library.flashlift_attention_backward_considerations(self._handle).decode().splitlines()

    def workspace_bytes(self, threads: int) -> int:
        """Bytes of temporary memory that a call uses with that many threads, without inputs and outputs."""
        return self._library.flashlift_attention_workspace_bytes(self._handle, _thread_count(threads))

    def backward_workspace_bytes(self, threads: int) -> int:
        """The same for a backward call that computes the gradients of q, k and v."""
        return self._library.flashlift_attention_backward_workspace_bytes(self._handle, _thread_count(threads))

    @property
    def captures(self) -> list[str]:
        """The names of the captured tensors that a call must pass, in order."""
        name = self._library.flashlift_attention_capture_name
        return [name(self._handle, i).decode() for i in range(self._info.capture_count)]

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        captures: Captures = (),
        sinks: Any = None,
        page_table: Any = None,
        dropout_seed: int | None = None,
        dropout_words: Any = None,
        keep_mask: Any = None,
    ) -> Any:
        """Runs on arrays in logical order, whatever their strides, and returns a new numpy array.

        q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len,
        value_dim]; captures in the order of `self.captures`, or by name; sinks f32 [q_heads, sinks], or [sinks] for all
        heads.
        With pages, k and v are [pages, kv_heads, page_size, dim] and page_table is i32 [batch, pages of a sequence].
        Which keys dropout leaves out: dropout_seed, 64 bits, by default 0; or, as the problem says, dropout_words,
        uint32 [2], its low half first (or [4]: docs/problem.md), or keep_mask, bool [batch, q_heads, q_len, kv_len],
        sizes that or 1.
        Returns out [batch, q_heads, q_len, value_dim], or a tuple with lse, row_max and residual after it, as the
        problem asks.
        """
        _check_dimensions(q=q, v=v)
        out = np.empty((*q.shape[:3], v.shape[3]), numpy_type(self._info.out_dtype))
        lse = np.empty(q.shape[:3], np.float32) if self._info.want_lse else None
        row_max = np.empty(q.shape[:3], np.float32) if self._info.want_row_max else None
        residual = np.empty(out.shape, np.int8) if self._info.want_residual else None
        more = {"sinks": sinks, "lse": lse, "row_max": row_max, "page_table": page_table, "residual": residual}
        more |= {"dropout_words": dropout_words, "keep_mask": keep_mask}
        BoundAttention(self, q, k, v, out, self._in_order(captures), more, dropout_seed, writes=True)()
        results = tuple(one for one in (out, lse, row_max, residual) if one is not None)
        return results if len(results) > 1 else out

    def bind(
        self,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        *,
        captures: Captures = (),
        sinks: Any = None,
        lse: Any = None,
        row_max: Any = None,
        page_table: Any = None,
        dropout_seed: int | None = None,
        dropout_words: Any = None,
        keep_mask: Any = None,
        residual: Any = None,
    ) -> "BoundAttention":
        """Prepares a call that writes into `out` (and `lse`, `row_max`, `residual`). You can run it any number of
        times.

        residual is int8 and has out's shape and strides."""
        more = {"sinks": sinks, "lse": lse, "row_max": row_max, "page_table": page_table, "residual": residual}
        more |= {"dropout_words": dropout_words, "keep_mask": keep_mask}
        return BoundAttention(self, q, k, v, out, self._in_order(captures), more, dropout_seed, writes=True)

    def backward(
        self,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        d_out: Any,
        *,
        captures: Captures = (),
        sinks: Any = None,
        lse: Any = None,
        d_lse: Any = None,
        wanted: Sequence[str] = (),
        row_max: Any = None,
        dropout_seed: int | None = None,
        dropout_words: Any = None,
        keep_mask: Any = None,
        residual: Any = None,
    ) -> Gradients:
        """The gradients of a loss with respect to q, k, v, the sinks and the captured tensors in `wanted`, as numpy
        arrays.

        out, lse and residual are the results of the forward call; d_out and d_lse (None: zeros) are their gradients.
        """
        _check_dimensions(q=q, k=k, v=v)
        more = {"sinks": sinks, "lse": lse, "row_max": row_max, "residual": residual}
        more |= {"dropout_words": dropout_words, "keep_mask": keep_mask}
        captures = self._in_order(captures)
        forward = BoundAttention(self, q, k, v, out, captures, more, dropout_seed)
        shapes = {name: one.shape for name, one in zip(self.captures, captures, strict=True)}
        d_q, d_k, d_v = (np.empty(array.shape, numpy_type(self._info.dtype)) for array in (q, k, v))
        d_captures = {name: np.empty(shapes[name], np.float32) for name in self._known(wanted)}
        d_sinks = None if sinks is None else np.empty(sinks.shape, np.float32)
        written = {"d_q": d_q, "d_k": d_k, "d_v": d_v, "d_sinks": d_sinks}
        BoundBackward(forward, d_out, d_lse, written, d_captures)()
        return Gradients(d_q, d_k, d_v, d_captures, d_sinks)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            "an Attention is machine code of this process and cannot be pickled or copied; "
            "send its `problem` and compile that"
        )

    def prepare_backward(self, wanted: Sequence[str] = ()) -> None:
        """Generates the code that backward() needs; otherwise its first call does so. On a GPU this takes seconds;
        you can run it in its own thread during the first forward call. wanted: as in backward()."""
        flags = self._flags(wanted)
        check(
            self._library,
            self._library.flashlift_attention_prepare_backward(self._handle, flags, len(flags)),
        )

    def reads_residual(self, wanted: Sequence[str] = ()) -> bool:
        """Whether `residual` in the problem makes backward() faster. wanted: as in backward()."""
        flags = self._flags(wanted)
        reads = ctypes.c_int32()
        check(
            self._library,
            self._library.flashlift_attention_reads_residual(self._handle, flags, len(flags), ctypes.byref(reads)),
        )
        return bool(reads.value)

    def _flags(self, wanted: Sequence[str]) -> ctypes.Array:
        """For each captured tensor, whether it is named."""
        names = self._known(wanted)
        return (ctypes.c_int32 * len(self.captures))(*(name in names for name in self.captures))

    def bind_backward(
        self,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        d_out: Any,
        *,
        captures: Captures = (),
        sinks: Any = None,
        lse: Any = None,
        d_lse: Any = None,
        d_q: Any = None,
        d_k: Any = None,
        d_v: Any = None,
        d_captures: Mapping[str, Any] | None = None,
        d_sinks: Any = None,
        row_max: Any = None,
        dropout_seed: int | None = None,
        dropout_words: Any = None,
        keep_mask: Any = None,
        residual: Any = None,
    ) -> "BoundBackward":
        """Prepares a backward call that writes the gradients whose arrays you give. You can run it any number of
        times.

        d_q, d_k and d_v have the problem's element type. Gradients of captured tensors are float32 or of the tensor's
        own type, in its logical shape. Each may have any strides other than 0.
        """
        more = {"sinks": sinks, "lse": lse, "row_max": row_max, "residual": residual}
        more |= {"dropout_words": dropout_words, "keep_mask": keep_mask}
        forward = BoundAttention(self, q, k, v, out, self._in_order(captures), more, dropout_seed)
        gradients = {"d_q": d_q, "d_k": d_k, "d_v": d_v, "d_sinks": d_sinks}
        return BoundBackward(forward, d_out, d_lse, gradients, d_captures or {})

    def _seed(self, given: int | None) -> int:
        info = self._info
        if given is None:
            return 0
        if not info.dropout or info.keep_mask or info.dropout_words:
            has = "a keep_mask" if info.keep_mask else "dropout_words" if info.dropout_words else "no dropout"
            raise InvalidArgumentError(f"dropout_seed is {given!r}, but the problem has {has}; leave the seed out")
        return whole_number(given, "dropout_seed", 0, 2**64 - 1)

    def _known(self, names: Sequence[str]) -> Sequence[str]:
        if isinstance(names, str):
            raise InvalidArgumentError(f"wanted is {names!r}; expected a list of names, such as [{names!r}]")
        unknown = set(names) - set(self.captures)
        if unknown:
            raise InvalidArgumentError(f"no captured tensor is named {sorted(unknown)}; there are {self.captures}")
        return names

    def _in_order(self, captures: Captures) -> Sequence[Any]:
        if isinstance(captures, Mapping):
            if set(captures) != set(self.captures):
                raise InvalidArgumentError(f"captures are {sorted(captures)}; the problem names {self.captures}")
            return [captures[name] for name in self.captures]
        if not isinstance(captures, Collection) or isinstance(captures, str) or hasattr(captures, "__dlpack__"):
            raise InvalidArgumentError(f"captures is a {type(captures).__name__}; expected arrays by name, or a list")
        if len(captures) != len(self.captures):
            raise InvalidArgumentError(
                f"captures has {counted(len(captures), 'array')}; expected "
                f"{counted(len(self.captures), 'captured tensor')}: {self.captures}"
            )
        return captures


def _thread_count(threads: int) -> int:
    return whole_number(threads, "threads", 1, 2**31 - 1)


def _check_dimensions(**arrays: Any) -> None:
    for name, array in arrays.items():
        if len(getattr(array, "shape", ())) != 4:
            got = getattr(array, "shape", type(array).__name__)
            raise InvalidArgumentError(f"{name} is {got}; expected an array of 4 dimensions")


class BoundAttention:
    """A compiled attention bound to its arrays. Calling it runs it; it keeps the arrays alive."""

    def __init__(
        self,
        attention: Attention,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        captures: Sequence[Any],
        more: Mapping[str, Any],
        dropout_seed: int | None,
        writes: bool = False,
    ) -> None:
        self._attention = attention
        given = {"q": q, "k": k, "v": v, "out": out, **more}
        results = ("out", "lse", "row_max", "residual") if writes else ()  # a backward call reads them
        self._tensors = {
            name: Tensor(array, name, name in results) for name, array in given.items() if array is not None
        }
        self._captures = [Tensor(array, f"captures[{i}]") for i, array in enumerate(captures)]
        pointers = (ctypes.POINTER(DLTensor) * len(captures))(*(ctypes.pointer(one.dl) for one in self._captures))
        self._arguments = Arguments(
            struct_size=ctypes.sizeof(Arguments),
            captures=pointers,
            capture_count=len(captures),
            dropout_seed=attention._seed(dropout_seed),
            **{name: ctypes.pointer(one.dl) for name, one in self._tensors.items()},
        )

    def __call__(self, stream: int | None = None) -> None:
        """Runs; on a GPU on this CUstream (as an integer, None: the default stream), without waiting for it."""
        library = self._attention._library
        check(library, library.flashlift_attention_run(self._attention._handle, self._arguments, _options(stream)))


class BoundBackward:
    """A backward call bound to its arrays. Calling it runs it; it keeps the arrays alive."""

    def __init__(
        self,
        forward: BoundAttention,
        d_out: Any,
        d_lse: Any,
        gradients: Mapping[str, Any],
        d_captures: Mapping[str, Any],
    ) -> None:
        self._forward = forward
        names = forward._attention.captures
        unknown = set(d_captures) - set(names)
        if unknown:
            raise InvalidArgumentError(f"d_captures names {sorted(unknown)}; the captured tensors are {names}")
        given = {"d_out": d_out, "d_lse": d_lse, **gradients}
        self._tensors = {
            name: Tensor(array, name, name in gradients) for name, array in given.items() if array is not None
        }
        self._captures = [
            None if d_captures.get(name) is None else Tensor(d_captures[name], f"the gradient of {name}", True)
            for name in names
        ]
        pointer = ctypes.POINTER(DLTensor)
        pointers = (pointer * len(names))(*(pointer() if one is None else pointer(one.dl) for one in self._captures))
        self._arguments = BackwardArguments(
            struct_size=ctypes.sizeof(BackwardArguments),
            forward=ctypes.pointer(forward._arguments),
            d_captures=pointers if d_captures else None,
            **{name: ctypes.pointer(one.dl) for name, one in self._tensors.items()},
        )

    def __call__(self, stream: int | None = None) -> None:
        """Runs; see BoundAttention."""
        attention = self._forward._attention
        library = attention._library
        check(
            library,
            library.flashlift_attention_run_backward(attention._handle, self._arguments, _options(stream)),
        )


def _options(stream: int | None) -> RunOptions | None:
    return RunOptions(ctypes.sizeof(RunOptions), None, stream) if stream else None


def compile(
    problem: str | Problem,
    *,
    device: str = "cpu",
    implementation: str | None = None,
    tuning: str | None = None,
) -> Attention:
    """Compiles a problem given as one line of text, such as "attn b1 h8 s1024 d64 f32 causal", or as a Problem.

    device: "cpu", "cuda" or "cuda:N".
    implementation: a name, or None for the first that accepts the problem. If the named one refuses, its reason is
    raised.
    tuning: "off" ignores the results of flashlift.tune; None: as FLASHLIFT_TUNING says.
    Raises InvalidArgumentError for a malformed problem, UnsupportedError if no implementation accepts it.
    """
    return Attention(problem, device, implementation, tuning=tuning)
