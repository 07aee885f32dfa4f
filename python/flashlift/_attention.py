"""Compiled attention on arrays: flashlift.compile and what it returns."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flashlift._errors import InvalidArgumentError
from flashlift._library import Arguments, CompileOptions, DLDevice, DLTensor, ProblemInfo, RunOptions, check, core
from flashlift._tensor import Tensor, numpy_type

_DEVICES = {"cpu": 1, "cuda": 2}

# In the problem's order, or by name.
Captures = Sequence[Any] | Mapping[str, Any]


class Attention:
    """An attention compiled for one class of problems. Immutable; may be called from any thread.

    batch, q_len and kv_len of a call may differ from the problem's: they are taken from the arrays.
    """

    def __init__(self, problem: str, device: str = "cpu", implementation: str | None = None) -> None:
        self._library = core()
        self._handle = ctypes.c_void_p()
        kind, _, ordinal = device.partition(":")
        if kind not in _DEVICES or not (ordinal or "0").isdigit():
            raise InvalidArgumentError(f'device is "{device}"; expected "cpu", "cuda" or "cuda:N"')
        options = CompileOptions(
            ctypes.sizeof(CompileOptions),
            DLDevice(_DEVICES[kind], int(ordinal or 0)),
            implementation.encode() if implementation else None,
        )
        check(
            self._library,
            self._library.flashlift_attention_compile(problem.encode(), options, ctypes.byref(self._handle)),
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
        """The problem in canonical text, every named feature as the program it became."""
        return self._library.flashlift_attention_problem(self._handle).decode()

    @property
    def implementation(self) -> str:
        """The name of the implementation that was chosen."""
        return self._library.flashlift_attention_implementation(self._handle).decode()

    @property
    def considerations(self) -> list[str]:
        """Each implementation that was asked, and what it said."""
        return self._library.flashlift_attention_considerations(self._handle).decode().splitlines()

    def workspace_bytes(self, threads: int) -> int:
        """Bytes of temporary memory that a call uses besides inputs and outputs, with that many threads."""
        return self._library.flashlift_attention_workspace_bytes(self._handle, threads)

    @property
    def captures(self) -> list[str]:
        """The names of the captured tensors that a call must bring, in order."""
        name = self._library.flashlift_attention_capture_name
        return [name(self._handle, i).decode() for i in range(self._info.capture_count)]

    def __call__(self, q: Any, k: Any, v: Any, *, captures: Captures = (), sinks: Any = None) -> Any:
        """Runs on arrays in logical order, whatever their strides, and returns a new numpy array.

        q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len,
        value_dim]; captures in the order of `self.captures`, or by name; sinks f32 [q_heads, sinks].
        Returns out [batch, q_heads, q_len, value_dim], or (out, lse) if the problem asks for lse.
        """
        for name, array in (("q", q), ("v", v)):
            if len(getattr(array, "shape", ())) != 4:
                got = getattr(array, "shape", type(array).__name__)
                raise InvalidArgumentError(f"{name} is {got}; expected an array of 4 dimensions")
        out = np.empty((*q.shape[:3], v.shape[3]), numpy_type(self._info.out_dtype))
        lse = np.empty(q.shape[:3], np.float32) if self._info.want_lse else None
        self.bind(q, k, v, out, captures=captures, sinks=sinks, lse=lse)()
        return out if lse is None else (out, lse)

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
    ) -> "BoundAttention":
        """Prepares a call that writes into `out` (and `lse`), to be run any number of times."""
        if isinstance(captures, Mapping):
            if set(captures) != set(self.captures):
                raise InvalidArgumentError(f"captures are {sorted(captures)}; the problem names {self.captures}")
            captures = [captures[name] for name in self.captures]
        return BoundAttention(self, q, k, v, out, captures, sinks, lse)


class BoundAttention:
    """A compiled attention with its arrays. Calling it runs it; the arrays are kept alive."""

    def __init__(
        self, attention: Attention, q: Any, k: Any, v: Any, out: Any, captures: Sequence[Any], sinks: Any, lse: Any
    ) -> None:
        self._attention = attention
        given = {"q": q, "k": k, "v": v, "out": out, "sinks": sinks, "lse": lse}
        for name in ("out", "lse"):
            if isinstance(given[name], np.ndarray) and not given[name].flags.writeable:
                raise InvalidArgumentError(f"{name} is an array that must not be written")
        self._tensors = {name: Tensor(array, name) for name, array in given.items() if array is not None}
        self._captures = [Tensor(array, f"captures[{i}]") for i, array in enumerate(captures)]
        pointers = (ctypes.POINTER(DLTensor) * len(captures))(*(ctypes.pointer(one.dl) for one in self._captures))
        self._arguments = Arguments(
            struct_size=ctypes.sizeof(Arguments),
            captures=pointers,
            capture_count=len(captures),
            **{name: ctypes.pointer(one.dl) for name, one in self._tensors.items()},
        )

    def __call__(self, stream: int | None = None) -> None:
        """Runs; on a GPU on this CUstream (as an integer, None: the default stream), without waiting for it."""
        library = self._attention._library
        options = RunOptions(ctypes.sizeof(RunOptions), None, stream) if stream else None
        check(library, library.flashlift_attention_run(self._attention._handle, self._arguments, options))


def compile(problem: str, *, device: str = "cpu", implementation: str | None = None) -> Attention:
    """Compiles a problem given as one line of text, such as "attn b1 h8 s1024 d64 f32 causal".

    device: "cpu", "cuda" or "cuda:N". implementation: None for the first that accepts the problem, or a name: then
    that one is used, or its reason why not is raised.
    Raises InvalidArgumentError for a malformed problem, UnsupportedError if no implementation accepts it.
    """
    return Attention(problem, device, implementation)

