"""Judges whether a result is right. Flashlift's own tests and benchmarks use this; it accepts results of any
attention.

    judgement = flashlift.testing.judge(out, want, eager)     # want in float64; eager is unfused maths in out's type
    assert judgement.ok, judgement.reason
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashlift import _library
from flashlift._errors import InvalidArgumentError
from flashlift._tensor import Tensor

__all__ = ["Judgement", "Measure", "judge"]


@dataclass(frozen=True)
class Measure:
    """An error, the same error of unfused maths, and the limit."""

    error: float
    eager: float
    limit: float

    @property
    def ratio(self) -> float:
        return self.error / self.limit if self.limit > 0 else float("inf") if self.error > 0 else 0.0


@dataclass(frozen=True)
class Judgement:
    """The result of `judge`. docs/design.md has the limits."""

    mean: Measure
    """The mean error of all elements."""
    largest: Measure
    """The largest error of all elements."""
    row: Measure
    """The mean error of the row that is nearest to its limit, or the furthest beyond."""
    ok: bool
    reason: str
    """Why the result is wrong, with the place."""

    @property
    def ratio(self) -> float:
        """How near the result came to a limit: above 1 it is wrong."""
        return max(self.mean.ratio, self.largest.ratio, self.row.ratio)


def judge(
    got: Any,
    want: Any,
    eager: Any,
    *,
    name: str = "out",
    magnitudes: Any = None,
    row_width: int | None = None,
    samples: float | None = None,
    is_gradient: bool = False,
) -> Judgement:
    """Compares a result with its float64 reference. The limits come from the errors of unfused maths in the result's
    type.

    The arrays are in CPU memory: numpy's, or any that support DLPack (torch, JAX).
    row_width: the number of elements that share their errors (by default the last dimension).
    samples: the number of independent errors (by default the rows).
    magnitudes: the sums of the absolute values of each element's terms, for gradients, whose terms may cancel.
    """
    for key, array in {"got": got, "want": want, "eager": eager}.items():
        if not hasattr(array, "shape"):
            raise InvalidArgumentError(
                f"{key} is a {type(array).__name__}; expected a numpy array or one that supports DLPack (torch, JAX)"
            )
    shape = tuple(got.shape)
    arrays = {"got": got, "want": _dense(want, np.float64), "eager": _dense(eager, np.float32)}
    if magnitudes is not None:
        arrays["magnitudes"] = _dense(magnitudes, np.float64)
    for key, array in arrays.items():
        if tuple(array.shape) != shape:
            raise InvalidArgumentError(
                f"{key} has shape {list(array.shape)}; expected {list(shape)}, as the result has"
            )
    kept = {key: Tensor(array, key) for key, array in arrays.items()}
    subject = _library.Subject(
        struct_size=ctypes.sizeof(_library.Subject),
        name=name.encode(),
        row_width=row_width if row_width is not None else shape[-1] if shape else 1,
        samples=samples or 0,
        is_gradient=is_gradient,
        **{key: ctypes.pointer(tensor.dl) for key, tensor in kept.items()},
    )
    found = _library.Judgement(struct_size=ctypes.sizeof(_library.Judgement))
    library = _library.core()
    _library.check(library, library.flashlift_judge(ctypes.byref(subject), ctypes.byref(found)))
    mean, largest, row = (Measure(one.error, one.eager, one.limit) for one in (found.mean, found.largest, found.row))
    return Judgement(mean, largest, row, bool(found.ok), found.reason.decode(errors="replace"))


def _dense(array: Any, dtype: type) -> np.ndarray:
    if hasattr(array, "detach"):  # torch: numpy has no bfloat16
        array = array.detach().double()
    return np.asarray(array).astype(dtype, copy=False)
