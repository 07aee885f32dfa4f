"""Arrays of any library as DLTensor structures, without copying."""

import ctypes
import functools
import sys
from typing import Any

import numpy as np

from flashlift._errors import InvalidArgumentError
from flashlift._library import DLDataType, DLDevice, DLTensor

CPU = 1
_CPU_DEVICE = DLDevice(CPU, 0)

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
_NAMES = {code: name for name, code in _TYPES.items()}


def numpy_type(dtype: DLDataType) -> np.dtype:
    """The numpy type of a DLPack element type."""
    name = _NAMES[dtype.code, dtype.bits]
    if name == "bfloat16":
        import ml_dtypes  # numpy has no bfloat16 of its own

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


# numpy computes a type's name anew each time, which takes longer than the rest of a call's preparation.
@functools.lru_cache(maxsize=64)
def _dlpack_type(dtype: np.dtype) -> DLDataType | None:
    """The DLPack element type of a numpy type, if it is one that tensors may have."""
    code = _TYPES.get(dtype.name)
    return None if code is None else DLDataType(*code, 1)


class _ManagedTensor(ctypes.Structure):
    """The beginning of DLPack's DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


def _is_masked(array: np.ndarray) -> bool:
    # numpy imports numpy.ma when it is first used. A call must import nothing: a fork() during an import leaves the
    # module locked in the child for ever.
    return isinstance(array, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


_READ_ONLY = 1

_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype = ctypes.c_char_p
_capsule_name.argtypes = [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _exported(array: Any) -> Any:
    try:
        return array.__dlpack__(max_version=(1, 0))
    except TypeError:  # a library from before DLPack had versions
        return array.__dlpack__()


def _read_only(name: str, what: str = "read-only") -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} is {what}; expected an array that may be written, such as a new one")


class Tensor:
    """A DLTensor together with the object that owns its memory."""

    _keep: tuple[Any, ...]

    def __init__(self, array: Any, name: str, is_written: bool = False) -> None:
        if isinstance(array, np.ndarray):
            self._from_numpy(array, name)
            if is_written and not array.flags.writeable:
                raise _read_only(name)
        elif hasattr(array, "__dlpack__"):
            self._from_dlpack(array, name, is_written)
        else:
            raise InvalidArgumentError(
                f"{name} is a {type(array).__name__}; expected a numpy array or one that supports DLPack (torch, JAX)"
            )

    def _from_numpy(self, array: np.ndarray, name: str) -> None:
        # Not through numpy's own DLPack, which supports neither bfloat16 nor read-only arrays.
        if _is_masked(array):
            raise InvalidArgumentError(
                f"{name} is a masked array, whose mask would be ignored; give its filled() form, and a mask= or a "
                "mask_mod in the problem"
            )
        dtype = _dlpack_type(array.dtype)
        if dtype is None:
            raise InvalidArgumentError(f"{name} has element type {array.dtype}; expected one of {', '.join(_TYPES)}")
        if not array.dtype.isnative:
            raise InvalidArgumentError(
                f"{name} has elements in the other byte order ({array.dtype.str}); give "
                f"{name}.astype({name}.dtype.newbyteorder('='))"
            )
        sizes = ctypes.c_int64 * array.ndim
        item = array.itemsize
        if any(stride % item for stride in array.strides):
            raise InvalidArgumentError(f"{name} has strides {array.strides}, no multiples of its element size")
        shape, strides = sizes(*array.shape), sizes(*[stride // item for stride in array.strides])
        self._keep = (array, shape, strides)
        self.dl = DLTensor(array.ctypes.data, _CPU_DEVICE, array.ndim, dtype, shape, strides, 0)

    def _from_dlpack(self, array: Any, name: str, is_written: bool) -> None:
        if getattr(array, "is_neg", bool)():  # torch's lazy negation, which its DLPack ignores
            if is_written:
                raise _read_only(name, "a negated view of another, which is read-only")
            array = array.resolve_neg()
        # JAX's arrays never change, but its DLPack does not mark them as read-only.
        if is_written and type(array).__module__.partition(".")[0] in ("jax", "jaxlib"):
            raise _read_only(name, "a JAX array, which is never written")
        # The capsule's destructor frees the exported data, so that it is kept as long as the structure is used.
        try:
            capsule = _exported(array)
        except BufferError as error:
            raise InvalidArgumentError(f"{name} cannot be read: {error}") from error
        self._keep = (array, capsule)
        kind = _capsule_name(capsule) if type(capsule).__name__ == "PyCapsule" else None
        if kind == b"dltensor_versioned":
            managed = _ManagedTensor.from_address(_capsule_pointer(capsule, kind))
            if managed.major != 1:
                raise InvalidArgumentError(
                    f"{name} has DLPack version {managed.major}.{managed.minor}; expected version 1"
                )
            if is_written and managed.flags & _READ_ONLY:
                raise _read_only(name)
            self.dl = managed.tensor
        elif kind == b"dltensor":
            self.dl = DLTensor.from_address(_capsule_pointer(capsule, kind))
        else:
            raise InvalidArgumentError(
                f"{name}.__dlpack__() gave {capsule!r}; expected a capsule named dltensor or dltensor_versioned"
            )
