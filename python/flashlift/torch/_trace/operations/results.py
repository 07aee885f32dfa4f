"""Operands and results. Result types and shapes are torch's own: each operation is also carried out on tensors without
content."""

from collections.abc import Callable
from typing import Any

import torch

from flashlift.torch._internals import tree_map_only
from flashlift.torch._program import Node, type_of
from flashlift.torch._trace.recording import Recording, Symbol
from flashlift.torch._trace.values import Index, Value, broadcast_index


def infer(func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    """The result's type and shape. For scalars, running the operation itself is fastest; for larger tensors, no memory
    is used."""
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    if any(isinstance(one, Symbol) for one in (*args, *kwargs.values())):
        func = func.overloadpacket  # the called overload has a tensor in place of the number
        args, kwargs = tree_map_only(
            Symbol, lambda one: float(one) if isinstance(one, float) else int(one), (args, kwargs)
        )
    if any(one.dim() for one in tensors):
        args, kwargs = tree_map_only(torch.Tensor, lambda one: one.to("meta"), (args, kwargs))
    return func(*args, **kwargs)


def operand(recording: Recording, given: Any, dtype: torch.dtype) -> Value:
    """An argument, a tensor or a number, converted to the type that an operation computes in."""
    type_ = type_of(dtype)
    if isinstance(given, torch.Tensor):
        value = recording.value_of(given)
        return Value(dtype, value.shape, lambda index: recording.builder.convert(value.at(index), type_))
    builder = recording.builder
    node = builder.convert(given.node, type_) if isinstance(given, Symbol) else builder.constant(given, type_)
    # A number wraps to a narrow integer type; it is not rounded to a floating-point one.
    return Value.scalar(dtype, node if dtype.is_floating_point else builder.narrow(node, dtype))


def made(recording: Recording, dtype: torch.dtype, shape: tuple[int, ...], at: Callable[[Index], Node]) -> torch.Tensor:
    """A traced tensor. A scalar's node is created at once, so that the program keeps the mod's order."""
    return recording.traced(Value(dtype, tuple(shape), at) if shape else Value.scalar(dtype, at(())))


def by_element(
    recording: Recording, like: torch.Tensor, operands: list[Value], compute: Callable[..., Node], dtype: torch.dtype
) -> torch.Tensor:
    builder = recording.builder

    def at(index: Index) -> Node:
        node = compute(builder, *(one.at(broadcast_index(one, index, builder)) for one in operands))
        return builder.narrow(node, dtype)

    return made(recording, dtype, like.shape, at)
