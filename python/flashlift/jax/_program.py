"""Programs of problems in JAX: what they read, and what they compute."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from flashlift._errors import InternalError


@dataclasses.dataclass(frozen=True)
class Step:
    """One line of a program: a name for the result of an operation on operands, or for an element of a captured
    tensor."""

    name: str
    operation: str
    operands: tuple[str, ...]
    tensor: str | None


@dataclasses.dataclass(frozen=True)
class Program:
    kind: str
    captures: Mapping[str, tuple[str, tuple[str, ...]]]
    """Each captured tensor's element type and sizes, in the order of the text."""
    steps: tuple[Step, ...]
    result: str


_HEAD = re.compile(r"(score_mod|mask_mod)\((.*?)\)\s*\{(.*)\}\s*", re.DOTALL)
_CAPTURE = re.compile(r"(\w+):\s*(\w+)\[(.*?)\]")
_STEP = re.compile(r"(%\S+) = (\w+) ?(?:(\w+)\[(.*)\]|(.*))")


@functools.lru_cache(maxsize=256)
def parse(text: str) -> Program:
    """Reads a program as the library prints it."""
    head = _HEAD.fullmatch(text.strip())
    if head is None:
        raise InternalError(f"expected a program, got {text}")
    captures = {name: (dtype, _listed(sizes)) for name, dtype, sizes in _CAPTURE.findall(head[2])}
    steps: list[Step] = []
    for line in filter(None, (one.strip() for one in re.split(r"[;\n]", head[3]))):
        if line.startswith("return "):
            return Program(head[1], captures, tuple(steps), line.removeprefix("return "))
        step = _STEP.fullmatch(line)
        if step is None:
            raise InternalError(f"expected a step of a program, got {line}")
        name, operation, tensor, indices, operands = step.groups()
        steps.append(Step(name, operation, _listed(indices if tensor else operands), tensor))
    raise InternalError(f"expected a program that returns, got {text}")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for part in (one.strip() for one in text.split(",")) if part)


def printed(program: Program) -> str:
    captures = ", ".join(f"{name}: {dtype}[{','.join(sizes)}]" for name, (dtype, sizes) in program.captures.items())
    lines = [
        f"{step.name} = {step.operation} "
        + (f"{step.tensor}[{', '.join(step.operands)}]" if step.tensor else ", ".join(step.operands))
        for step in program.steps
    ]
    return f"{program.kind}({captures}) {{ {'; '.join([*lines, f'return {program.result}'])} }}"


def _divide(x: jax.Array, y: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x / y
    return jnp.where(y == 0, -1, jax.lax.div(x, jnp.where(y == 0, 1, y)))


def _remainder(x: jax.Array, y: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jax.lax.rem(x, y)
    return jnp.where(y == 0, x, jax.lax.rem(x, jnp.where(y == 0, 1, y)))


def _shifted(shift: Callable[..., jax.Array], fill: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    def run(x: jax.Array, y: jax.Array) -> jax.Array:
        bits = 8 * x.dtype.itemsize
        return jnp.where((y < 0) | (y >= bits), fill(x), shift(x, jnp.clip(y, 0, bits - 1)))

    return run


def _rounded(dtype: Any) -> Callable[[jax.Array], jax.Array]:
    return lambda x: x.astype(dtype).astype(jnp.float32)


# Operations that are not a function of jax.numpy or jax.lax with the same name.
_OPERATIONS: dict[str, Callable[..., jax.Array]] = {
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": _divide,
    "rem": _remainder,
    "floor_div": lambda x, y: jnp.where(y == 0, -1, jnp.floor_divide(x, jnp.where(y == 0, 1, y))),
    "mod": lambda x, y: jnp.where(y == 0, x, jnp.mod(x, jnp.where(y == 0, 1, y))),
    "min": jnp.minimum,
    "max": jnp.maximum,
    "neg": jnp.negative,
    "round_even": jnp.round,
    "sigmoid": jax.nn.sigmoid,
    "erfinv": jax.lax.erf_inv,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
    "is_finite": jnp.isfinite,
    "select": jnp.where,
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
    "not": jnp.bitwise_not,
    "shl": _shifted(jnp.left_shift, jnp.zeros_like),
    "shr": _shifted(jnp.right_shift, lambda x: jnp.where(x < 0, -1, 0).astype(x.dtype)),
    "ushr": _shifted(jax.lax.shift_right_logical, jnp.zeros_like),
    "to_i1": lambda x: x != 0,
    "to_i32": lambda x: x.astype(jnp.int32),
    "to_i64": lambda x: x.astype(jnp.int64),
    "to_f32": lambda x: x.astype(jnp.float32),
    "bitcast_i32": lambda x: jax.lax.bitcast_convert_type(x, jnp.int32),
    "bitcast_f32": lambda x: jax.lax.bitcast_convert_type(x, jnp.float32),
    "round_bf16": _rounded(jnp.bfloat16),
    "round_f16": _rounded(jnp.float16),
}


def _function(operation: str) -> Callable[..., jax.Array]:
    function = _OPERATIONS.get(operation) or getattr(jnp, operation, None) or getattr(jax.lax, operation, None)
    if function is None:
        raise InternalError(f"neither jax.numpy nor jax.lax has a function {operation}; expected one in {__name__}")
    return function


def evaluate(
    program: Program,
    inputs: Mapping[str, jax.Array],
    captures: Mapping[str, jax.Array],
    kept: jax.Array | None = None,
) -> jax.Array:
    """The program's result for inputs that broadcast: the coordinates, the lengths, and, in a score_mod, the score.
    Elements of captured tensors have a derivative only where they are kept."""
    values = dict(inputs)
    # An empty tensor reads as one 0.
    captures = {name: one if one.size else jnp.zeros((1,) * one.ndim, one.dtype) for name, one in captures.items()}

    def value(text: str) -> jax.Array:
        return values[text] if text in values else _constant(text)

    for step in program.steps:
        operands = [value(one) for one in step.operands]
        if step.operation == "load":
            element = _loaded(captures[step.tensor or ""], operands)
            if kept is not None and jnp.issubdtype(element.dtype, jnp.floating):
                element = jnp.where(kept, element, 0)
            values[step.name] = element
        elif step.operation == "search":
            values[step.name] = _searched(captures[step.tensor or ""], operands[0])
        else:
            values[step.name] = _function(step.operation)(*operands)
    return value(program.result)


def _constant(text: str) -> jax.Array:
    if text in ("true", "false"):
        return jnp.asarray(text == "true")
    number, _, kind = text.partition(":")
    if number.startswith("0x"):
        return jax.lax.bitcast_convert_type(jnp.uint32(int(number, 16)), jnp.float32)
    if kind == "i64":
        return jnp.asarray(int(number), jnp.int64)
    if re.fullmatch(r"-?\d+", number):
        return jnp.int32(int(number))
    return jnp.float32(float(number))


def _loaded(tensor: jax.Array, indices: Sequence[jax.Array]) -> jax.Array:
    clamped = tuple(jnp.clip(index, 0, size - 1) for index, size in zip(indices, tensor.shape, strict=True))
    is_float = jnp.issubdtype(tensor.dtype, jnp.floating)
    if is_float:
        tensor = tensor.astype(jnp.float32)  # before it is indexed: the gradient of an element is a sum of many terms
    element = tensor[clamped] if clamped else tensor
    if is_float or tensor.dtype == jnp.bool_ or tensor.dtype.itemsize == 8:
        return element
    return element.astype(jnp.int32)


def _searched(tensor: jax.Array, x: jax.Array) -> jax.Array:
    size = tensor.shape[0]
    found = jnp.zeros(x.shape, jnp.int32)
    step = 1 << (size.bit_length() - 1)
    while step:
        further = found + step
        at = tensor[jnp.clip(further - 1, 0, size - 1)]
        found = jnp.where((further <= size) & (at <= x), further, found)
        step //= 2
    return found
