"""The values that a program's integers reach, from the sizes of a call.

A bound may lie beyond all values (see `Reach`). Only a bound that some coordinates reach shows that an index leaves a
tensor.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true

from flashlift.torch._program.graph import INT_LIMITS, Node


class Reach(NamedTuple):
    """An integer's lowest and highest value, as numbers or symbols."""

    low: Any
    high: Any
    low_is_met: bool = True  # some coordinates have this value; otherwise it is a bound
    high_is_met: bool = True
    is_smooth: bool = True  # from a coordinate to the next one it changes by at most 1, so that it skips nothing
    coordinates: frozenset[str] = frozenset()  # that it depends on

    def bound(self, low: Any, high: Any) -> "Reach":
        """Bounds that may lie beyond all values."""
        return Reach(low, high, False, False, False, self.coordinates)


class Reaches:
    """The reach of each node, given the coordinates' sizes and the program's arguments by the index of their
    capture."""

    def __init__(self, sizes: Mapping[str, Any], number: Callable[[int], Any]) -> None:
        self._sizes = sizes
        self._number = number
        self._known: dict[Node, Reach | None] = {}

    def of(self, node: Node) -> Reach | None:
        """None for a node that depends on more than coordinates and numbers, or is not an integer."""
        pending = [node]
        while pending:  # not recursive, since unrolled programs are deeper than Python's stack
            one = pending[-1]
            missing = [arg for arg in one.args if arg not in self._known] if one.type != "f32" else []
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            if one not in self._known:
                self._known[one] = self._of_node(one)
        return self._known[node]

    def _of_node(self, node: Node) -> Reach | None:
        if node.type == "f32" or node.payload == "wraps":
            return None
        if node.op in self._sizes:
            return Reach(0, self._sizes[node.op] - 1, coordinates=frozenset((node.op,)))
        if node.op == "constant":
            return Reach(int(node.payload), int(node.payload))
        if node.op == "number":
            number = self._number(node.payload)
            if isinstance(number, torch.Tensor):  # a graph computes it, and its value is not known yet
                return None
            return Reach(number, number) if not isinstance(number, (bool, torch.SymBool)) else Reach(0, 0).bound(0, 1)
        args = [self._known[arg] for arg in node.args]
        if node.type == "i1":
            used = (one.coordinates for one in args if one is not None)
            return None if None in args else Reach(0, 1, False, False, False, frozenset().union(*used))
        compute = _OPERATIONS.get(node.op)
        if compute is None or None in args:
            return None
        found = compute(*args)
        return found if found is not None and _fits(found, node) else None


def _fits(reach: Reach, node: Node) -> bool:
    """Whether nothing wraps around. Sums and products of i32 become i64 where they would (see `widened`)."""
    low, high = INT_LIMITS["i32" if node.op == "to_i32" else "i64"]
    if not _is_known(reach):
        return node.op != "to_i32" or node.args[0].type == "i1"
    return low <= reach.low and reach.high <= high


def _is_known(reach: Reach) -> bool:
    return type(reach.low) is int and type(reach.high) is int


def _joined(x: Reach, y: Reach, low: Any, high: Any, met: tuple[bool, bool], is_smooth: bool) -> Reach:
    """The reach of an operation on two others. If both depend on one coordinate, they do not reach their bounds at
    once."""
    coordinates = x.coordinates | y.coordinates
    if not x.coordinates.isdisjoint(y.coordinates):
        return Reach(low, high, False, False, False, coordinates)
    return Reach(low, high, *met, is_smooth, coordinates)


def _sum(x: Reach, y: Reach) -> Reach:
    met = x.low_is_met and y.low_is_met, x.high_is_met and y.high_is_met
    return _joined(x, y, x.low + y.low, x.high + y.high, met, x.is_smooth and y.is_smooth)


def _negative(x: Reach) -> Reach:
    return Reach(-x.high, -x.low, x.high_is_met, x.low_is_met, x.is_smooth, x.coordinates)


def _is_fixed(x: Reach) -> bool:
    return not x.coordinates and x.low_is_met


def _is_divisor(x: Reach) -> bool:
    """Whether it is one positive number. A number that a graph leaves open is then positive whenever the graph runs."""
    return _is_fixed(x) and guard_or_false(x.low > 0)


def _is_natural(x: Any) -> bool:
    return statically_known_true(x >= 0)


def _product(x: Reach, y: Reach) -> Reach:
    if _is_fixed(x):
        x, y = y, x
    if _is_fixed(y):
        factor, is_smooth = y.low, x.is_smooth and type(y.low) is int and abs(y.low) <= 1
        if _is_natural(factor):
            return Reach(x.low * factor, x.high * factor, *x[2:4], is_smooth, x.coordinates)
        if _is_natural(-factor):
            return Reach(x.high * factor, x.low * factor, *x[3:1:-1], is_smooth, x.coordinates)
    met = x.low_is_met and y.low_is_met, x.high_is_met and y.high_is_met
    if _is_natural(x.low) and _is_natural(y.low):
        return _joined(x, y, x.low * y.low, x.high * y.high, met, False)
    corners = [one * other for one in x[:2] for other in y[:2]]
    return _joined(x, y, _lowest(*corners), _highest(*corners), (all(met),) * 2, False)


def _lowest(*values: Any) -> Any:
    found = values[0]
    for one in values[1:]:
        found = torch.sym_min(found, one)
    return found


def _highest(*values: Any) -> Any:
    found = values[0]
    for one in values[1:]:
        found = torch.sym_max(found, one)
    return found


def _minimum(x: Reach, y: Reach) -> Reach:
    met = x.low_is_met and y.low_is_met, x.high_is_met and y.high_is_met
    return _joined(x, y, _lowest(x.low, y.low), _lowest(x.high, y.high), met, x.is_smooth and y.is_smooth)


def _maximum(x: Reach, y: Reach) -> Reach:
    return _negative(_minimum(_negative(x), _negative(y)))


def _absolute(x: Reach) -> Reach:
    if _is_natural(x.low):
        return x
    if _is_natural(-x.high):
        return _negative(x)
    high, high_is_met = _highest(-x.low, x.high), x.low_is_met and x.high_is_met
    low_is_met = high_is_met and x.is_smooth and _is_natural(-x.low) and _is_natural(x.high)  # 0 is one of its values
    return Reach(0, high, low_is_met, high_is_met, x.is_smooth, x.coordinates)


def _quotient(x: Reach, y: Reach) -> Reach | None:
    if not _is_divisor(y):
        return None
    return x._replace(low=x.low // y.low, high=x.high // y.low)


def _remainder(x: Reach, y: Reach) -> Reach | None:
    if not _is_divisor(y):
        return None
    size = y.low
    if not (_is_known(x) and type(size) is int):
        if type(x.low) is int and x.low == 0 and x.low_is_met and x.is_smooth:
            return Reach(0, _lowest(x.high, size - 1), True, x.high_is_met, False, x.coordinates)
        return x.bound(0, size - 1)
    if x.low // size == x.high // size:
        return x._replace(low=x.low % size, high=x.high % size)
    if x.is_smooth and x.low_is_met and x.high_is_met:  # it goes past a multiple of the size
        return Reach(0, size - 1, True, True, False, x.coordinates)
    return x.bound(0, size - 1)


def _truncated_quotient(x: Reach, y: Reach) -> Reach | None:
    if _is_natural(x.low):
        return _quotient(x, y)
    if not _is_divisor(y) or not all(_is_natural(one) or _is_natural(-one) for one in x[:2]):
        return None
    low, high = (one // y.low if _is_natural(one) else -(-one // y.low) for one in x[:2])
    return x._replace(low=low, high=high)


def _truncated_remainder(x: Reach, y: Reach) -> Reach | None:
    return _remainder(x, y) if _is_natural(x.low) else None


def _masked(x: Reach, y: Reach) -> Reach | None:
    """x & 7 is x % 8; any other number that is not negative is a bound."""
    if _is_fixed(x):
        x, y = y, x
    if not (_is_fixed(y) and type(y.low) is int and y.low >= 0):
        return None
    if y.low & (y.low + 1) == 0:
        return _remainder(x, Reach(y.low + 1, y.low + 1))
    return x.bound(0, y.low)


def _shifted(compute: Callable[[Reach, Reach], Reach | None]) -> Callable[[Reach, Reach], Reach | None]:
    """A shift as a product or a quotient."""

    def of(x: Reach, y: Reach) -> Reach | None:
        if not (_is_fixed(y) and type(y.low) is int and 0 <= y.low < 32):
            return None
        return compute(x, Reach(1 << y.low, 1 << y.low))

    return of


def _selected(condition: Reach, x: Reach, y: Reach) -> Reach:
    """A condition may exclude the bounds: it is how mods keep an index within a table."""
    return Reach(
        _lowest(x.low, y.low),
        _highest(x.high, y.high),
        False,
        False,
        False,
        condition.coordinates | x.coordinates | y.coordinates,
    )


_OPERATIONS: dict[str, Callable[..., Reach | None]] = {
    "add": _sum,
    "sub": lambda x, y: _sum(x, _negative(y)),
    "neg": _negative,
    "mul": _product,
    "min": _minimum,
    "max": _maximum,
    "abs": _absolute,
    "floor_div": _quotient,
    "mod": _remainder,
    "div": _truncated_quotient,
    "rem": _truncated_remainder,
    "and": _masked,
    "shl": _shifted(_product),
    "shr": _shifted(_quotient),
    "select": _selected,
    "to_i32": lambda x: x,
    "to_i64": lambda x: x,
}
