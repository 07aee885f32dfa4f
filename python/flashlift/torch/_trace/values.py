"""What a traced tensor stands for: a program value for each of its elements."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flashlift.torch._internals import disabled_torch_function
from flashlift.torch._program import Builder, Node
from flashlift.torch._trace.lines import TraceError, where

Index = tuple[Node, ...]


class StandIn(torch.Tensor):
    """A tensor that stands for values while a mod is traced. As a key, a tensor is equal to itself alone, so that a
    dict of numbers would answer each look-up with its default."""

    __torch_function__: Any = disabled_torch_function

    def __hash__(self) -> int:
        raise TraceError(
            "a dict, a set or functools.lru_cache looks a value up by its hash, but a mod's arguments are traced "
            f"scalars, which have none{where()}; index a tensor, such as torch.tensor(list(values.values()))[h], or "
            "compare with each number: (h == 0) | (h == 2)"
        )


def stand_in(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(StandIn)


@dataclass(frozen=True)
class Value:
    """A tensor of program values. Its elements are created when they are first read, so that a row of a captured table
    costs nothing until then."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    at: Callable[[Index], Node]

    @staticmethod
    def scalar(dtype: torch.dtype, node: Node) -> "Value":
        return Value(dtype, (), lambda _: node)

    @property
    def node(self) -> Node:
        """The value of a tensor without dimensions."""
        return self.at(())


def broadcast_index(value: Value, index: Index, builder: Builder) -> Index:
    """The index into `value` that corresponds to an index into a tensor that it is broadcast to."""
    tail = index[len(index) - len(value.shape) :]
    return tuple(builder.constant(0, "i64") if size == 1 else one for size, one in zip(value.shape, tail, strict=True))


def broadcast(value: Value, shape: tuple[int, ...], builder: Builder) -> Value:
    return Value(value.dtype, shape, lambda index: value.at(broadcast_index(value, index, builder)))


def reshaped(value: Value, shape: tuple[int, ...], builder: Builder) -> Value:
    """The same elements in row-major order under another shape."""
    if [size for size in shape if size != 1] == [size for size in value.shape if size != 1]:

        def move(index: Index) -> Node:  # only adds or removes dimensions of size 1: no arithmetic
            kept = iter([one for size, one in zip(shape, index, strict=True) if size != 1])
            return value.at(tuple(builder.constant(0, "i64") if size == 1 else next(kept) for size in value.shape))

        return Value(value.dtype, shape, move)

    def at(index: Index) -> Node:
        flat = builder.constant(0, "i64")
        for size, one in zip(shape, index, strict=True):
            scaled = builder.emit("mul", flat, builder.constant(size, "i64"))
            flat = builder.emit("add", scaled, builder.convert(one, "i64"))
        rest: list[Node] = []
        for size in reversed(value.shape):
            rest.append(builder.emit("mod", flat, builder.constant(size, "i64")))
            flat = builder.emit("floor_div", flat, builder.constant(size, "i64"))
        return value.at(tuple(reversed(rest)))

    return Value(value.dtype, shape, at)
