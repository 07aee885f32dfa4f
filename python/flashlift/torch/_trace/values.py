"""What a traced tensor stands for: a program value for each of its elements."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from flashlift.torch._program import Builder, Node

Index = tuple[Node, ...]


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
