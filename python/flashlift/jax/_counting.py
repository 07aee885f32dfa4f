"""Programs that compute with the number of a batch or a head, for one device's part of the whole.

A part counts its own batches and heads from 0. Such a program reads where these begin in the whole from a tensor of its
own, but for where it reads a tensor of which the device has the same part.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from flashlift._problem import Problem
from flashlift.jax._call import expanded
from flashlift.jax._letters import BATCHES
from flashlift.jax._program import Program, Step, parse, printed

_FIRSTS = {"b": "first_batches_of_part", "h": "first_head_of_part"}


@dataclasses.dataclass(frozen=True)
class Counting:
    problem: Problem
    captures: tuple[str, ...]  # the new ones
    operands: list[jax.Array]  # their operands


def counting(
    whole: Problem,
    counted: frozenset[str],
    letters: Mapping[str, str],
    plan: Mapping[str, tuple[str, ...]],
    wholes: Mapping[str, int],
    parts: Mapping[str, int],
) -> Counting:
    """The problem of a part, whose programs compute with positions in the whole.

    counted: which of b and h the programs compute with; letters: those of the captured tensors; plan: the axes that
    split each letter; wholes, parts: the sizes of each letter.
    """
    split = {"b": any(plan.get(one) for one in BATCHES), "h": bool(plan.get("h"))}
    ours = [one for one in "bh" if one in counted and split[one]]
    batches = [one for one in BATCHES if wholes.get(one, 1) > 1]
    steps: list[Step] = []
    operands = []
    own: dict[str, str] = {}
    for one in ours:
        of = batches if one == "b" else ["h"]
        firsts = [jax.lax.axis_index(plan[letter]) * parts[letter] if plan.get(letter) else 0 for letter in of]
        operands.append(jnp.stack([jnp.asarray(first, jnp.int32) for first in firsts]))
        own[one] = f"%whole_{one}"
        steps += _steps(one, [(wholes[letter], parts[letter]) for letter in of])
    captures = tuple(_FIRSTS[one] for one in ours)
    if not ours:
        return Counting(whole, (), [])
    problem = expanded(whole)
    sizes = {name: ("i32", (str(one.shape[0]),)) for name, one in zip(captures, operands, strict=True)}
    texts = {kind: getattr(problem, kind) for kind in ("score_mod", "mask_mod")}
    changed: dict[str, Any] = {
        kind: printed(_counted(parse(text), steps, sizes, own, letters)) for kind, text in texts.items() if text
    }
    return Counting(dataclasses.replace(problem, **changed), captures, operands)


def _steps(one: str, sizes: Sequence[tuple[int, int]]) -> list[Step]:
    """The index in the whole; sizes: those of each dimension of the index, in the whole and in the part."""
    first = _FIRSTS[one]
    if len(sizes) == 1:
        return [
            Step(f"%first_{one}", "load", ("0",), first),
            Step(f"%whole_{one}", "add", (one, f"%first_{one}"), None),
        ]
    steps = []
    rest, stride, total = one, 1, "0"
    for at in range(len(sizes) - 1, -1, -1):
        whole, part = sizes[at]
        name = f"{one}{at}"
        last = at == 0
        steps += [
            Step(f"%own_{name}", "mod", (rest, str(part)), None),
            Step(f"%first_{name}", "load", (str(at),), first),
            Step(f"%at_{name}", "add", (f"%own_{name}", f"%first_{name}"), None),
            Step(f"%far_{name}", "mul", (f"%at_{name}", str(stride)), None),
            Step(f"%whole_{one}" if last else f"%sum_{name}", "add", (total, f"%far_{name}"), None),
        ]
        if not last:
            steps.append(Step(f"%rest_{name}", "floor_div", (rest, str(part)), None))
        rest, stride, total = f"%rest_{name}", stride * whole, f"%sum_{name}"
    return steps


def _counted(
    program: Program,
    steps: Sequence[Step],
    firsts: Mapping[str, tuple[str, tuple[str, ...]]],
    own: Mapping[str, str],
    letters: Mapping[str, str],
) -> Program:
    changed = list(steps)
    for step in program.steps:
        of_tensor = letters[step.tensor] if step.operation == "load" and step.tensor else ""
        operands = (one if of_tensor[i : i + 1] == one else own.get(one, one) for i, one in enumerate(step.operands))
        changed.append(dataclasses.replace(step, operands=tuple(operands)))
    captures = {
        # The named sizes are the part's, and this dimension is whole.
        name: (
            dtype,
            tuple("?" if letters[name][i] == "." and _is_of_part(one) else one for i, one in enumerate(sizes)),
        )
        for name, (dtype, sizes) in program.captures.items()
    }
    return Program(program.kind, {**captures, **firsts}, tuple(changed), own.get(program.result, program.result))


def _is_of_part(size: str) -> bool:
    return size in ("batch", "heads")
