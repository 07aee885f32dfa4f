"""Arguments of the C interface, with DLPack views of tensors."""

import ctypes
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from flashlift._library import Arguments, BackwardArguments, core
from flashlift.torch._internals import to_dlpack
from flashlift.torch._run.call import Call

_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _cleared(structure: type[ctypes.Structure]) -> dict[str, int]:
    """The structure's fields, 64 bits each, in order."""
    assert ctypes.sizeof(structure) == 8 * len(structure._fields_)
    return {name: 0 for name, *_ in structure._fields_} | {"struct_size": ctypes.sizeof(structure)}


_FORWARD, _BACKWARD = _cleared(Arguments), _cleared(BackwardArguments)
_CAPTURES, _D_CAPTURES = list(_FORWARD).index("captures"), list(_BACKWARD).index("d_captures")


def taking_addresses(name: str, *arguments: type) -> Any:
    """The C function, with arguments of these types, which are addresses in place of pointers to structures."""
    function = core()[name]
    function.restype = ctypes.c_void_p
    function.argtypes = arguments
    return function


class Views:
    """Views of a call's arguments, valid as long as this object exists. torch makes views faster than ctypes would; and
    structures are written as numbers, since ctypes, which keeps the objects behind pointers alive, takes longer than a
    short kernel."""

    def __init__(self) -> None:
        self._kept: list[object] = []  # keeps capsules and memory of arguments alive

    def of(self, tensor: torch.Tensor) -> int:
        """The address of the tensor's view."""
        capsule = to_dlpack(tensor.resolve_neg())  # DLPack ignores a lazy negation
        self._kept.append(capsule)
        return _pointer_in(capsule, b"dltensor")

    def of_any(self, tensor: torch.Tensor | None) -> int:
        return 0 if tensor is None else self.of(tensor)

    def forward(
        self,
        call: Call,
        out: torch.Tensor,
        lse: torch.Tensor,
        row_max: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
    ) -> int:
        """The address of a forward call's arguments."""
        captures = [self.of(one) for one in call.captures]
        fields = _FORWARD | {
            "q": self.of(call.query),
            "k": self.of(call.key),
            "v": self.of(call.value),
            "out": self.of(out),
            "lse": self.of(lse),
            "row_max": self.of_any(row_max),
            "residual": self.of_any(residual),
            "sinks": self.of_any(call.sinks),
            "capture_count": len(captures),
            "dropout_seed": 0 if call.seed is None else int(call.seed.item()) % 2**64,
        }
        return self._address(fields, captures, _CAPTURES)

    def backward(
        self,
        forward: int,
        d_out: torch.Tensor,
        d_lse: torch.Tensor | None,
        d_inputs: Sequence[torch.Tensor],
        d_captures: Sequence[torch.Tensor | None],
        d_sinks: torch.Tensor | None,
    ) -> int:
        """The address of a backward call's arguments. `forward` is the address of its forward call's arguments."""
        fields = _BACKWARD | {
            "forward": forward,
            "d_out": self.of(d_out),
            "d_lse": self.of_any(d_lse),
            "d_q": self.of(d_inputs[0]),
            "d_k": self.of(d_inputs[1]),
            "d_v": self.of(d_inputs[2]),
            "d_sinks": self.of_any(d_sinks),
        }
        return self._address(fields, map(self.of_any, d_captures), _D_CAPTURES)

    def _address(self, fields: dict[str, int], captures: Iterable[int], pointer: int) -> int:
        """The address of a structure in memory, followed by the addresses that its field of this number points to."""
        memory = array("Q", [*fields.values(), *captures])
        self._kept.append(memory)
        address = memory.buffer_info()[0]
        memory[pointer] = address + 8 * len(fields)
        return address

    def all_of(self, tensors: Sequence[torch.Tensor]) -> int:
        """The address of the addresses of the tensors' views."""
        memory = array("Q", map(self.of, tensors))
        self._kept.append(memory)
        return memory.buffer_info()[0]
