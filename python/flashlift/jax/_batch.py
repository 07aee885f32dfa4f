"""Batches of calls as one call with a larger batch."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from flashlift.jax._call import Call, expanded
from flashlift.jax._letters import Letters, letters_of
from flashlift.jax._program import Program, Step, parse, printed

# The mapped dimension, or None for an operand that all calls share.
Dims = Sequence[int | None]


@dataclasses.dataclass(frozen=True)
class Folded:
    call: Call
    operands: list[jax.Array]
    size: int  # of the mapped dimension
    batch: int  # of each call
    of_gradients: tuple[int | None, ...]
    """Where a gradient by each operand has the mapped dimension, folded into its own one; None in front."""


def fold(call: Call, operands: Sequence[jax.Array], dims: Dims, size: int, wanted: Sequence[int] = ()) -> Folded | None:
    """One call that computes all mapped calls, or None if none exists. wanted: the operands whose gradients must be
    separate for each call."""
    shared = {"dropout" in call.problem.words, any(dims[i] is not None for i in _sinks(call))}
    if True in shared or set(_sinks(call)) & set(wanted):
        return None
    one = [
        array if dim is None else jax.ShapeDtypeStruct(_without(array.shape, dim), array.dtype)
        for array, dim in zip(operands, dims, strict=True)
    ]
    letters = letters_of(call, one)
    at = call.layout.index("b")
    folded = [_folded(array, dim, at, size) for array, dim in zip(operands[:3], dims, strict=False)]
    positions: list[int | None] = [at] * 3
    batch = one[0].shape[at]
    captures = range(3, 3 + len(call.capture_names))
    mapped = {i for i in captures if dims[i] is not None or i in wanted}
    places = {i: _places_of_batches(call, letters, i) for i in captures}
    rewritten = "b" in letters.counted or "cu_seqlens" in call.problem.words
    rewritten |= any(len(found) > 1 or (i in mapped and not found) for i, found in places.items())
    new = call
    if rewritten:
        if not (isinstance(size, int) and isinstance(batch, int)):
            return None  # programs divide by numbers only
        names = {call.capture_names[i - 3]: i in mapped for i in captures}
        sizes = {call.capture_names[i - 3]: one[i].shape for i in captures}
        rewriting = _rewritten(call, names, sizes, size, batch)
        if rewriting is None:
            return None
        new = rewriting
    for i in captures:
        array, dim = operands[i], dims[i]
        if i in mapped and rewritten:
            folded.append(_in_front(array, dim, size))
            positions.append(None)
        elif i in mapped:
            place = places[i][0]
            folded.append(_folded(_spread(_in_front(array, dim, size), 1 + place, batch), 0, place, size))
            positions.append(place)
        elif places[i] and not rewritten and ("b" in letters.operands[i] or not _broadcasts(call, i)):
            folded.append(_folded(array, None, places[i][0], size))
            positions.append(places[i][0])
        else:
            folded.append(array)
            positions.append(None)
    folded += operands[3 + len(call.capture_names) :]
    return Folded(new, folded, size, batch, tuple(positions))


def unfold(array: jax.Array, at: int, folded: Folded) -> jax.Array:
    """Moves the mapped dimension out of the one that it was folded into, to the front."""
    return array.reshape((*array.shape[:at], folded.size, folded.batch, *array.shape[at + 1 :]))


def _sinks(call: Call) -> tuple[int, ...]:
    return () if call.sinks is None else (call.sinks,)


def _places_of_batches(call: Call, letters: Letters, operand: int) -> list[int]:
    """The dimensions of a captured tensor that stand for batches, even if their size is 1."""
    declared = _declared(call, operand)
    return [
        axis
        for axis, letter in enumerate(letters.operands[operand])
        if letter == "b" or (declared and all("batch" in sizes[axis] for sizes in declared))
    ]


def _broadcasts(call: Call, operand: int) -> bool:
    """Whether one batch of a captured tensor may serve all batches of a call."""
    return any(size == "1|batch" for sizes in _declared(call, operand) for size in sizes)


def _declared(call: Call, operand: int) -> list[tuple[str, ...]]:
    name = call.capture_names[operand - 3]
    return [program.captures[name][1] for program in call.programs() if name in program.captures]


def _rewritten(
    call: Call, is_mapped: Mapping[str, bool], shapes: Mapping[str, tuple[int, ...]], size: int, batch: int
) -> Call | None:
    """The call with programs that compute the index of their own call, and its batch, from the batch index of the
    combined call."""
    problem = expanded(call.problem)
    texts: dict[str, Any] = {}
    for field in ("score_mod", "mask_mod"):
        text = getattr(problem, field)
        program = None if text is None else _rewrite(parse(text), is_mapped, shapes, size, batch)
        if text is not None and program is None:
            return None
        texts[field] = program and printed(program)
    return dataclasses.replace(call, problem=dataclasses.replace(problem, **texts))


def _rewrite(
    program: Program, is_mapped: Mapping[str, bool], shapes: Mapping[str, tuple[int, ...]], size: int, batch: int
) -> Program | None:
    if any(step.operation == "search" and is_mapped[step.tensor or ""] for step in program.steps):
        return None  # it would become a tensor of one dimension
    own = {"b": "%batch"}
    steps = [Step("%call", "floor_div", ("b", str(batch)), None), Step("%batch", "mod", ("b", str(batch)), None)]
    for step in program.steps:
        operands = tuple(own.get(one, one) for one in step.operands)
        if step.operation == "load" and is_mapped[step.tensor or ""]:
            operands = ("%call", *operands)
        steps.append(dataclasses.replace(step, operands=operands))
    captures = {}
    for name, (dtype, sizes) in program.captures.items():
        # Named sizes would refer to the batch of all calls together.
        declared = tuple(map(str, shapes[name])) if any("batch" in one for one in sizes) else sizes
        captures[name] = dtype, ((str(size),) if is_mapped[name] else ()) + declared
    result = own.get(program.result, program.result)
    return Program(program.kind, captures, tuple(steps), result)


def _without(shape: tuple[Any, ...], dim: int) -> tuple[Any, ...]:
    return shape[:dim] + shape[dim + 1 :]


def _in_front(array: jax.Array, dim: int | None, size: int) -> jax.Array:
    return jnp.broadcast_to(array[None], (size, *array.shape)) if dim is None else jnp.moveaxis(array, dim, 0)


def _spread(array: jax.Array, axis: int, size: int) -> jax.Array:
    """Repeats a dimension of size 1."""
    return jnp.broadcast_to(array, (*array.shape[:axis], size, *array.shape[axis + 1 :]))


def _folded(array: jax.Array, dim: int | None, at: int, size: int) -> jax.Array:
    """Folds the mapped dimension into the one that is at position `at` without it."""
    if dim is None:
        array = jnp.expand_dims(array, at)
        array = jnp.broadcast_to(array, (*array.shape[:at], size, *array.shape[at + 1 :]))
    else:
        array = jnp.moveaxis(array, dim, at)
    return array.reshape((*array.shape[:at], size * array.shape[at + 1], *array.shape[at + 2 :]))
