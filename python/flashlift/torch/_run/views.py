"""DLPack views of tensors, as the C interface takes them."""

import ctypes
from collections.abc import Sequence

import torch

from flashlift._library import Arguments, DLTensor
from flashlift.torch._internals import to_dlpack
from flashlift.torch._run.call import Call

_POINTER = ctypes.POINTER(DLTensor)
_pointer_in = ctypes.PYFUNCTYPE(_POINTER, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


class Views:
    """Views of tensors, alive as long as this is. torch makes them faster than ctypes would."""

    def __init__(self) -> None:
        self._capsules: list[object] = []

    def of(self, tensor: torch.Tensor) -> "ctypes._Pointer[DLTensor]":
        capsule = to_dlpack(tensor.resolve_neg())  # DLPack forgets a lazy negation
        self._capsules.append(capsule)
        return _pointer_in(capsule, b"dltensor")

    def list_of(self, tensors: Sequence[torch.Tensor | None]) -> "ctypes.Array[ctypes._Pointer[DLTensor]]":
        return (_POINTER * len(tensors))(*[_POINTER() if one is None else self.of(one) for one in tensors])

    def forward(
        self,
        call: Call,
        out: torch.Tensor,
        lse: torch.Tensor,
        row_max: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
    ) -> Arguments:
        arguments = Arguments(
            struct_size=ctypes.sizeof(Arguments),
            q=self.of(call.query),
            k=self.of(call.key),
            v=self.of(call.value),
            out=self.of(out),
            lse=self.of(lse),
            captures=self.list_of(call.captures),
            capture_count=len(call.captures),
        )
        if call.sinks is not None:
            arguments.sinks = self.of(call.sinks)
        if call.seed is not None:
            arguments.dropout_seed = call.seed.item() % 2**64
        if row_max is not None:
            arguments.row_max = self.of(row_max)
        if residual is not None:
            arguments.residual = self.of(residual)
        return arguments
