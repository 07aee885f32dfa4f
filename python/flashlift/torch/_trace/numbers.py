"""Arithmetic of numbers that are arguments of a program. The mod wrote it for Python's numbers, so that it follows
Python and not torch: 7 / 2 is a double, True + True is 2, and ~True is -2."""

import operator
from collections.abc import Callable
from typing import Any

import torch

from flashlift.torch._trace.record import as_tensor

_Operator = Callable[..., Any]
_BITWISE: dict[str, _Operator] = {"bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor}
_COMPARISONS: dict[str, _Operator] = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_QUOTIENTS: dict[str, _Operator] = {"div": operator.truediv, "reciprocal": lambda x: 1 / x}

# What a tensor's operators call, and Python's operator for each.
_OPERATORS: dict[str, _Operator] = {
    "add": operator.add,
    "sub": operator.sub,
    "rsub": lambda x, y: y - x,
    "mul": operator.mul,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "neg": operator.neg,
    "abs": operator.abs,
    "bitwise_not": operator.invert,
    "__lshift__": operator.lshift,
    "__rshift__": operator.rshift,
    "bitwise_left_shift": operator.lshift,
    "bitwise_right_shift": operator.rshift,
    **_QUOTIENTS,
    **_BITWISE,
    **_COMPARISONS,
}


class NumberOperation:
    """One operation: on Python's numbers, or on the tensors that stand for them in a trace or a graph."""

    def __init__(self, name: str, function: Callable[..., torch.Tensor]) -> None:
        self._name = name
        self._function = function

    @staticmethod
    def of(func: Any, kwargs: dict) -> "NumberOperation | None":
        """None for what is no operator of Python's."""
        name = func._schema.name.removeprefix("aten::")
        return NumberOperation(name, func.overloadpacket) if name in _OPERATORS and not kwargs else None

    def __call__(self, *numbers: Any) -> Any:
        if not any(isinstance(one, torch.Tensor) for one in numbers):
            return _OPERATORS[self._name](*numbers)
        tensors = [as_tensor(one) for one in numbers]
        stay_booleans = self._name in _BITWISE and all(one.dtype == torch.bool for one in tensors)
        if self._name not in _COMPARISONS and not stay_booleans:
            is_fraction = self._name in _QUOTIENTS or any(one.is_floating_point() for one in tensors)
            tensors = [one.to(torch.float64 if is_fraction else torch.int64) for one in tensors]
        return self._function(*tensors)
