"""Integers of coordinates that 32 bits do not hold, in 64.

PyTorch's coordinates are int64 outside of compiled kernels; a program's are i32, which is faster. `q * 50000 + kv` is
past 32 bits where there are 50000 queries: with such sizes what leaves them, and what is computed of it, becomes i64.
"""

from flashlift.torch._program.bounds import Bounds
from flashlift.torch._program.graph import COMPARISONS, INT_LIMITS, Builder, Node

_GROWING = ("add", "sub", "mul", "shl")
_ALIKE = frozenset((*_GROWING, *"min max floor_div mod neg abs sign rem div and or xor not shr wrap".split()))
_LOW, _HIGH = INT_LIMITS["i32"]


def widened(result: Node, builder: Builder, bounds: Bounds) -> Node:
    """The same program, correct for problems of these sizes. Nothing is assumed about unknown sizes."""
    if None in (bounds.b, bounds.h, bounds.q, bounds.kv):
        return result
    new: dict[Node, Node] = {}
    pending = [result]
    while pending:  # not recursive, since unrolled programs are deeper than Python's stack
        node = pending[-1]
        missing = [arg for arg in node.args if arg not in new]
        if missing:
            pending.extend(missing)
            continue
        pending.pop()
        if node not in new:
            new[node] = _rewritten(node, tuple(new[arg] for arg in node.args), builder, bounds)
    return new[result]


def _rewritten(node: Node, args: tuple[Node, ...], builder: Builder, bounds: Bounds) -> Node:
    is_wide = any(arg.type != old.type for arg, old in zip(args, node.args, strict=True))
    if not is_wide and not _overflows(node, bounds):
        return node if args == node.args else builder.node(node.op, node.type, args, node.payload)
    if node.type == "i32" and node.op in _ALIKE and node.payload != "wraps":
        return builder.node(node.op, "i64", tuple(builder.convert(arg, "i64") for arg in args), node.payload)
    if node.op in COMPARISONS:
        return builder.node(node.op, "i1", tuple(builder.convert(arg, "i64") for arg in args))
    if node.op == "select":
        return builder.node("select", "i64", (args[0], *(builder.convert(arg, "i64") for arg in args[1:])))
    if node.op in ("to_f32", "to_i64", "to_i1"):
        return builder.convert(args[0], node.type)
    if node.op in ("load", "search"):
        return builder.node(node.op, node.type, args, node.payload)
    # Bitcasts and similar operations have 32 bits, and so do their uses.
    back = (builder.convert(arg, old.type) for arg, old in zip(args, node.args, strict=True))
    return builder.node(node.op, node.type, tuple(back), node.payload)


def _overflows(node: Node, bounds: Bounds) -> bool:
    """Whether coordinates and constants can give values beyond 32 bits; a captured tensor of int32 wraps as it does in
    PyTorch."""
    if node.type != "i32" or node.op not in _GROWING or node.payload == "wraps":
        return False
    of = [bounds.of(arg) for arg in node.args]
    if (_LOW, _HIGH) in of:
        return False
    low, high = bounds.of_operation(node.op, of) or (0, 0)
    return low < _LOW or high > _HIGH
