"""Score programs being built: a small typed graph, and its text.

Types and operations are those of the text form; see docs/problem.md.
"""

import struct
from dataclasses import dataclass, field
from typing import Any

import torch

from flashlift._errors import UnsupportedError

# The program type that holds a torch type. Narrower types are rounded or wrapped after each operation, as torch does.
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

_INT_LIMITS = {"i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1)}
_INPUTS = ("score", "b", "h", "q", "kv", "q_len", "kv_len")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "is_finite")


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
    payload: Any = None  # constant: its value; load: the captured tensor's number


@dataclass
class Capture:
    """A tensor that a program reads."""

    dtype: torch.dtype
    rank: int


class Builder:
    """Makes nodes, each different one once, and drops operations that change nothing."""

    def __init__(self) -> None:
        self._nodes: dict[tuple, Node] = {}

    def node(self, op: str, type_: str, args: tuple[Node, ...] = (), payload: Any = None) -> Node:
        # Constants by their bits: 0.0 and -0.0 are equal, and NaN is not equal to itself.
        bits = struct.pack("<d", payload) if isinstance(payload, float) else payload
        key = (op, type_, tuple(map(id, args)), bits, type(payload))
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = Node(op, type_, args, payload)
        return found

    def input(self, name: str) -> Node:
        return self.node(name, "f32" if name == "score" else "i32")

    def constant(self, value: float, type_: str) -> Node:
        if type_ == "i1":
            return self.node("constant", "i1", payload=bool(value))
        if type_ == "f32":
            return self.node("constant", "f32", payload=float(value))
        low, high = _INT_LIMITS[type_]
        return self.node("constant", type_, payload=(int(value) - low) % (high - low + 1) + low)

    def emit(self, op: str, *args: Node) -> Node:
        type_ = "i1" if op in _COMPARISONS else args[-1].type
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
        """As torch converts: to the program's type, then rounded or wrapped to the torch type."""
        return self.narrow(self.convert(value, type_of(dtype)), dtype)

    def narrow(self, value: Node, dtype: torch.dtype) -> Node:
        if dtype == torch.bfloat16:
            return value if value.op == "round_bf16" else self.node("round_bf16", "f32", (value,))
        if dtype == torch.float16:
            return value if value.op == "round_f16" else self.node("round_f16", "f32", (value,))
        if dtype == torch.uint8:
            return self.emit("and", value, self.constant(255, "i32"))
        if dtype in (torch.int8, torch.int16):
            shift = self.constant(24 if dtype == torch.int8 else 16, "i32")
            return self.emit("shr", self.emit("shl", value, shift), shift)
        if dtype == torch.uint32:
            return self.emit("and", value, self.constant(0xFFFFFFFF, "i64"))
        return value


@dataclass
class Bounds:
    """What is known of the inputs: sizes of the problem, None where unknown."""

    b: int | None = None
    h: int | None = None
    q: int | None = None
    kv: int | None = None
    _known: dict[Node, tuple[float, float]] = field(default_factory=dict)

    def of(self, node: Node) -> tuple[float, float]:
        """The lowest and the highest value that an integer node can have, as far as is easily seen."""
        if node not in self._known:
            self._known[node] = self._compute(node)
        return self._known[node]

    def _compute(self, node: Node) -> tuple[float, float]:
        low, high = {"i1": (0, 1), "f32": (-float("inf"), float("inf"))}.get(node.type) or _INT_LIMITS[node.type]
        everything = (low, high)
        if node.op in ("b", "h", "q", "kv"):
            size = getattr(self, node.op)
            return (0, high if size is None else max(size - 1, 0))
        if node.op == "constant":
            return (node.payload, node.payload)
        if node.type == "f32" or node.op in ("load", "shl", "ushr", "rem", "div", "xor", "not"):
            return everything
        of = [self.of(arg) for arg in node.args]
        result = self._apply(node.op, of)
        if result is None or result[0] < low or result[1] > high:
            return everything
        return result

    def _apply(self, op: str, of: list[tuple[float, float]]) -> tuple[float, float] | None:
        if op == "add":
            return (of[0][0] + of[1][0], of[0][1] + of[1][1])
        if op == "sub":
            return (of[0][0] - of[1][1], of[0][1] - of[1][0])
        if op == "mul":
            products = [x * y for x in of[0] for y in of[1]]
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


def print_program(
    kind: str, result: Node, captures: list[Capture], builder: Builder, bounds: Bounds
) -> tuple[str, list[int]]:
    """The text of a program on one line, and which of the captures it reads, in the order of its parameters.

    kind is "score_mod" or "mask_mod". An index that may be negative counts from the end, as torch's indices do; where
    `bounds` shows that it is not, nothing is added.
    """
    lines: list[str] = []
    names: dict[Node, str] = {}
    used: list[int] = []

    def lower(node: Node) -> Node:
        if node.op != "wrap":
            return node
        index, size = node.args
        if bounds.of(index)[0] >= 0:
            return index
        zero = builder.constant(0, index.type)
        return builder.emit("select", builder.emit("lt", index, zero), builder.emit("add", index, size), index)

    def write(node: Node) -> str:
        args = [names[arg] for arg in map(lower, node.args)]
        if node.op == "constant":
            return _print_constant(node)
        if node.op in _INPUTS:
            return node.op
        if node.op == "load":
            if node.payload not in used:
                used.append(node.payload)
            text = f"load {kind[0]}{node.payload}[{', '.join(args)}]"
        else:
            text = f"{node.op} {', '.join(args)}"
        lines.append(f"%{len(lines)} = {text}")
        return f"%{len(lines) - 1}"

    pending = [lower(result)]
    while pending:  # a loop and not recursion: unrolled programs are deeper than Python's stack
        node = pending[-1]
        missing = [arg for arg in map(lower, node.args) if arg not in names]
        if missing:
            pending.extend(missing)
            continue
        pending.pop()
        if node not in names:
            names[node] = write(node)
    parameters = ", ".join(
        f"{kind[0]}{i}: {DTYPE_NAMES[captures[i].dtype]}[{', '.join('?' * captures[i].rank)}]" for i in used
    )
    body = "".join(line + "; " for line in lines)
    return f"{kind}({parameters}) {{ {body}return {names[lower(result)]} }}", used


def _print_constant(node: Node) -> str:
    if node.type == "i1":
        return "true" if node.payload else "false"
    if node.type == "i64":
        return f"{node.payload}:i64"
    if node.type == "i32":
        return str(node.payload)
    value = torch.tensor(node.payload, dtype=torch.float64, device="cpu").to(torch.float32)
    return f"0x{value.view(torch.int32).item() & 0xFFFFFFFF:08x}:f32"
