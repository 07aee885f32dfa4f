"""A score program as text, in the words of docs/problem.md."""

import ctypes

from flashlift.torch._program.bounds import Bounds
from flashlift.torch._program.graph import DTYPE_NAMES, Builder, Capture, Node
from flashlift.torch._program.wide import widened

_INPUTS = ("score", "b", "h", "q", "kv", "q_len", "kv_len")


def print_program(
    kind: str, result: Node, captures: list[Capture], builder: Builder, bounds: Bounds
) -> tuple[str, list[int]]:
    """The text of a program on one line, and the captures that it reads, in the order of its parameters.

    kind is "score_mod" or "mask_mod". An index that may be negative counts from the end, as torch's indices do; if
    `bounds` proves that it is not negative, no code is added for that.
    """
    result = widened(result, builder, bounds)
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
        if node.op in ("load", "number", "search"):
            if node.payload not in used:
                used.append(node.payload)
            operation = "load" if node.op == "number" else node.op
            text = f"{operation} {kind[0]}{node.payload}[{', '.join(args)}]"
        else:
            text = f"{node.op} {', '.join(args)}"
        lines.append(f"%{len(lines)} = {text}")
        return f"%{len(lines) - 1}"

    pending = [lower(result)]
    while pending:  # not recursive, since unrolled programs are deeper than Python's stack
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
    bits = ctypes.c_uint32.from_buffer(ctypes.c_float(node.payload)).value
    return f"0x{bits:08x}:f32"
