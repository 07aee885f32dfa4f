"""Bounds of a program's integers, from the sizes of the problem."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashlift.torch._program.graph import INT_LIMITS, LARGEST_ARGUMENT, Node


def coordinates_of(node: Node) -> list[str] | None:
    """The coordinates that a node adds to each other and to numbers, if each occurs at most once, so that the node
    reaches its bounds. None for other nodes."""
    if node.op in ("b", "h", "q", "kv"):
        return [node.op]
    if node.op == "constant" or (node.op == "number" and node.type != "i1"):
        return []
    if node.op not in ("add", "sub", "to_i64") or node.type == "f32":
        return None
    parts = [coordinates_of(one) for one in node.args]
    found: list[str] = []
    for one in parts:
        if one is None or not set(found).isdisjoint(one):
            return None
        found += one
    return found


def reach_of(node: Node, sizes: Mapping[str, Any], number: Callable[[int], Any]) -> tuple[Any, Any]:
    """The lowest and the highest value that a sum of coordinates has, given their sizes as numbers or symbols, and the
    program's arguments by the index of their capture."""
    if node.op == "constant":
        return (node.payload, node.payload)
    if node.op == "number":
        return (number(node.payload),) * 2
    if node.op in sizes:
        return (0, sizes[node.op] - 1)
    reaches = [reach_of(arg, sizes, number) for arg in node.args]
    if node.op == "to_i64":
        return reaches[0]
    (low, high), (other_low, other_high) = reaches
    return (low + other_low, high + other_high) if node.op == "add" else (low - other_high, high - other_low)


@dataclass
class Bounds:
    """What is known about the inputs: the problem's sizes, None if unknown."""

    b: int | None = None
    h: int | None = None
    q: int | None = None
    kv: int | None = None
    _known: dict[Node, tuple[float, float]] = field(default_factory=dict)

    def of(self, node: Node) -> tuple[float, float]:
        """A lower and an upper bound of an integer node, as far as they are easy to find."""
        if node not in self._known:
            self._known[node] = self._compute(node)
        return self._known[node]

    def _compute(self, node: Node) -> tuple[float, float]:
        low, high = {"i1": (0, 1), "f32": (-float("inf"), float("inf"))}.get(node.type) or INT_LIMITS[node.type]
        everything = (low, high)
        if node.op in ("b", "h", "q", "kv"):
            size = getattr(self, node.op)
            return (0, high if size is None else max(size - 1, 0))
        if node.op == "constant":
            return (node.payload, node.payload)
        if node.op == "number" and node.type == "i32":
            return (-LARGEST_ARGUMENT, LARGEST_ARGUMENT)
        if node.type == "f32" or node.op in ("load", "number", "search", "ushr", "rem", "div", "xor", "not"):
            return everything
        of = [self.of(arg) for arg in node.args]
        result = self.of_operation(node.op, of)
        if result is None or result[0] < low or result[1] > high:
            return everything
        return result

    def of_operation(self, op: str, of: list[tuple[float, float]]) -> tuple[float, float] | None:
        """The bounds of an operation on integers within bounds, if they do not wrap around. None: unknown."""
        if op == "add":
            return (of[0][0] + of[1][0], of[0][1] + of[1][1])
        if op == "sub":
            return (of[0][0] - of[1][1], of[0][1] - of[1][0])
        if op == "mul":
            products = [x * y for x in of[0] for y in of[1]]
            return (min(products), max(products))
        if op == "shl" and of[1][0] >= 0:
            products = [x * 2 ** min(y, 64) for x in of[0] for y in of[1]]  # all bits are gone at 64
            return (min(products), max(products))
        if op in ("min", "max"):
            pick = min if op == "min" else max
            return (pick(of[0][0], of[1][0]), pick(of[0][1], of[1][1]))
        if op == "floor_div" and of[1][0] > 0:
            quotients = [x // y for x in of[0] for y in of[1]]
            return (min(quotients), max(quotients))
        if op == "mod" and of[1][0] > 0:
            return of[0] if of[0][0] >= 0 and of[0][1] < of[1][0] else (0, of[1][1] - 1)
        if op == "abs":
            return (0 if of[0][0] <= 0 <= of[0][1] else min(map(abs, of[0])), max(map(abs, of[0])))
        if op == "and" and (of[0][0] >= 0 or of[1][0] >= 0):
            return (0, min(high for low, high in of if low >= 0))
        if op == "select":
            return (min(of[1][0], of[2][0]), max(of[1][1], of[2][1]))
        if op in ("to_i32", "to_i64"):
            return of[0]
        return None
