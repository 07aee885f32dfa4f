"""Arrays of any library as DLTensor structures, without copying."""

import ctypes
from typing import Any

import numpy as np

from flashlift._errors import InvalidArgumentError
from flashlift._library import DLDataType, DLDevice, DLTensor

CPU = 1

# DLPack's element types by numpy's names; bfloat16 is ml_dtypes' name for its numpy type.
_TYPES = {
    "bool": (6, 8),
    "int8": (0, 8),
    "uint8": (1, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "uint32": (1, 32),
    "int64": (0, 64),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float32": (2, 32),
    "float64": (2, 64),
}


def numpy_type(dtype: DLDataType) -> np.dtype:
    """The numpy type of a DLPack element type."""
    name = next(name for name, code in _TYPES.items() if code == (dtype.code, dtype.bits))
    if name == "bfloat16":
        import ml_dtypes  # numpy has no bfloat16 of its own

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Tensor:
    """A DLTensor and whatever keeps its memory alive."""

    def __init__(self, array: Any, name: str) -> None:
        if isinstance(array, np.ndarray):
            self._from_numpy(array, name)
        elif hasattr(array, "__dlpack__"):
            self._from_dlpack(array)
        else:
            raise InvalidArgumentError(
                f"{name} is a {type(array).__name__}; expected a numpy array or one that speaks DLPack (torch, JAX)"
            )

    def _from_numpy(self, array: np.ndarray, name: str) -> None:
        # Not through numpy's own DLPack: that knows neither bfloat16 nor arrays that must not be written.
        code = _TYPES.get(array.dtype.name)
        if code is None:
            raise InvalidArgumentError(f"{name} has element type {array.dtype}; expected one of {', '.join(_TYPES)}")
        sizes = ctypes.c_int64 * array.ndim
        if any(stride % array.itemsize for stride in array.strides):
            raise InvalidArgumentError(f"{name} has strides {array.strides}, no multiples of its element size")
        self._keep = (
            array,
            sizes(*array.shape),
            sizes(*(stride // array.itemsize for stride in array.strides)),
        )
        self.dl = DLTensor(
            array.ctypes.data, DLDevice(CPU, 0), array.ndim, DLDataType(*code, 1), self._keep[1], self._keep[2], 0
        )

    def _from_dlpack(self, array: Any) -> None:
        # The capsule's own destructor frees what it exports, so it is kept for as long as the structure is used.
        capsule = array.__dlpack__()
        self._keep = (array, capsule)
        self.dl = DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
