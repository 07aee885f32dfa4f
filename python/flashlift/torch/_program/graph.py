"""A score program being built: a small typed graph. Its types and operations are those of docs/problem.md."""

import struct
from dataclasses import dataclass
from typing import Any

import torch

from flashlift._errors import UnsupportedError
from flashlift._recorded import check_recorded

# The program type for a torch type. Results of narrower types are rounded or wrapped after each operation, as in torch.
_TYPES = {
    torch.bool: "i1",
    torch.uint8: "i32",
    torch.int8: "i32",
    torch.int16: "i32",
    torch.int32: "i32",
    torch.uint32: "i64",
    torch.int64: "i64",
    torch.float16: "f32",
    torch.bfloat16: "f32",
    torch.float32: "f32",
    torch.float64: "f32",
}

# The names of element types in programs.
DTYPE_NAMES = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.uint32: "u32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}

# The largest absolute value of an integer argument of a program, so that it is known whether its products with
# coordinates fit into 32 bits. If they may not fit, they are i64.
LARGEST_ARGUMENT = 2**24
INT_LIMITS = {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1)}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "is_finite")


def type_of(dtype: torch.dtype) -> str:
    if dtype not in _TYPES:
        raise UnsupportedError(
            f"values of type {dtype} are not supported; expected one of {', '.join(map(str, _TYPES))}"
        )
    return _TYPES[dtype]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One value. Equal nodes are one object, so that identity is equality."""

    op: str
    type: str
    args: tuple["Node", ...] = ()
    payload: Any = None  # constant: its value; load, search, number: the index of the captured tensor


@dataclass
class Capture:
    """A tensor that a program reads."""

    dtype: torch.dtype
    rank: int


class Builder:
    """Creates nodes, each different one once, and leaves out operations that change nothing."""

    def __init__(self) -> None:
        self._nodes: dict[tuple, Node] = {}
        self._followed: dict[Node, frozenset[str]] = {}

    def node(self, op: str, type_: str, args: tuple[Node, ...] = (), payload: Any = None) -> Node:
        # Compares constants by their bits, since 0.0 and -0.0 are equal, and NaN is not equal to itself.
        bits = struct.pack("<d", payload) if isinstance(payload, float) else payload
        key = (op, type_, tuple(map(id, args)), bits, type(payload))
        found = self._nodes.get(key)
        if found is None:
            check_recorded(len(self._nodes) + 1)
            found = self._nodes[key] = Node(op, type_, args, payload)
            is_source = op in ("score", "load") and type_ == "f32"
            followed = frozenset((op,)) if is_source else frozenset()
            if type_ == "f32" and not is_source:
                followed = followed.union(*(self._followed[one] for one in args))
            self._followed[found] = followed
        return found

    def follows(self, node: Node) -> frozenset[str]:
        """What a node passes a gradient to: "score", or "load" for captured tensors; numbers and coordinates get
        none."""
        return self._followed[node]

    def loads_with_gradient(self, node: Node) -> frozenset[int]:
        """The indices of the captured tensors to which a node passes a gradient."""
        found, seen, pending = set(), {node}, [node]
        while pending:  # not recursive, since unrolled programs are deeper than Python's stack
            one = pending.pop()
            if one.op == "load" and one.type == "f32":
                found.add(one.payload)
                continue
            new = [arg for arg in one.args if arg not in seen and "load" in self.follows(arg)]
            seen.update(new)
            pending.extend(new)
        return frozenset(found)

    def detached(self, node: Node) -> Node:
        """The same value, without a gradient: programs do not differentiate integers."""
        if not self.follows(node):
            return node
        return self.node("bitcast_f32", "f32", (self.node("bitcast_i32", "i32", (node,)),))

    def input(self, name: str) -> Node:
        return self.node(name, "f32" if name == "score" else "i32")

    def constant(self, value: float, type_: str) -> Node:
        if type_ == "i1":
            return self.node("constant", "i1", payload=bool(value))
        if type_ == "f32":
            return self.node("constant", "f32", payload=float(value))
        low, high = INT_LIMITS[type_]
        return self.node("constant", type_, payload=(int(value) - low) % (high - low + 1) + low)

    def emit(self, op: str, *args: Node) -> Node:
        type_ = "i1" if op in COMPARISONS else args[-1].type
        if op in ("and", "or") and type_ == "i1":
            for one, other in (args, args[::-1]):
                if one.op == "constant":
                    return other if one.payload == (op == "and") else one
        if op == "not" and args[0].op == "constant" and type_ == "i1":
            return self.constant(not args[0].payload, "i1")
        if op == "select" and args[0].op == "constant":
            return args[1] if args[0].payload else args[2]
        if op in ("shl", "shr") and type_ == "i32" and args[1].op == "constant" and args[1].payload == 0:
            return args[0]
        return self.node(op, type_, args)

    def convert(self, value: Node, type_: str) -> Node:
        if value.type == type_:
            return value
        if value.op == "constant" and not (value.type == "f32" and type_ in ("i32", "i64")):
            return self.constant(value.payload, type_)
        return self.node("to_" + type_, type_, (value,))

    def cast(self, value: Node, dtype: torch.dtype) -> Node:
        """Converts as torch does: to the program's type, then rounded or wrapped to the torch type."""
        return self.narrow(self.convert(value, type_of(dtype)), dtype)

    def narrow(self, value: Node, dtype: torch.dtype) -> Node:
        if dtype == torch.bfloat16:
            return value if value.op == "round_bf16" else self.node("round_bf16", "f32", (value,))
        if dtype == torch.float16:
            return value if value.op == "round_f16" else self.node("round_f16", "f32", (value,))
        if value.op == "constant" and dtype in (torch.uint8, torch.int8, torch.int16, torch.uint32):
            low, size = torch.iinfo(dtype).min, 2 ** torch.iinfo(dtype).bits
            return self.constant((value.payload - low) % size + low, value.type)
        if dtype == torch.uint8:
            return self.emit("and", value, self.constant(255, "i32"))
        if dtype in (torch.int8, torch.int16):
            shift = self.constant(24 if dtype == torch.int8 else 16, "i32")
            wrapped = self.node("shl", "i32", (value, shift), payload="wraps")  # never in 64 bits, see widened()
            return self.emit("shr", wrapped, shift)
        if dtype == torch.uint32:
            return self.emit("and", value, self.constant(0xFFFFFFFF, "i64"))
        return value
