"""Bounds of a program's integers, from the sizes of the problem."""

from dataclasses import dataclass, field

from flashlift.torch._program.graph import INT_LIMITS, LARGEST_ARGUMENT, Node


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
