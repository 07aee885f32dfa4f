"""Which dimensions of a call's operands are batches and heads, and which of the two a program computes with."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from flashlift.jax._call import Call
from flashlift.jax._program import Program

Shapes = Sequence[tuple[Any, ...]]
BATCHES = "bcef"


@dataclasses.dataclass(frozen=True)
class Letters:
    """One letter for each dimension of each operand: b batch, h query head, k key-value head, . anything else. If
    batches have several dimensions, the others are c, e and f."""

    operands: tuple[str, ...]
    results: tuple[str, ...]
    fixed: frozenset[str]
    """Of b and h those that must be whole."""
    counted: frozenset[str]
    """Those that a program computes with, which a part of the whole has to be told."""

    def sizes(self, operands: Sequence[Any]) -> dict[str, Any]:
        """The numbers of batches, query heads and key-value heads; 1 if no operand has such a dimension."""
        found = dict.fromkeys([*BATCHES, "h", "k"], 1)
        for names, one in zip(self.operands, operands, strict=True):
            found |= {letter: size for letter, size in zip(names, one.shape, strict=True) if letter != "."}
        return found


def letters_of(call: Call, operands: Sequence[Any]) -> Letters:
    return _letters_of(call, tuple(tuple(one.shape) for one in operands))


@functools.lru_cache(maxsize=256)
def _letters_of(call: Call, shapes: Shapes) -> Letters:
    of_q = _only(call.layout, "bh")
    of_k = of_q.replace("h", "k")
    sizes = dict(zip(call.layout, shapes[0], strict=True))
    captures, counted = letters_of_captures(call.programs(), call.capture_names, shapes[3:], sizes)
    rest = []
    if call.sinks is not None:
        rest.append("h." if len(shapes[call.sinks]) == 2 else ".")
    if "dropout" in call.problem.words:
        rest.append(".")
    results = (of_q, "bh.") if call.with_lse else (of_q,)
    return Letters((of_q, of_k, of_k, *captures, *rest), results, frozenset(), frozenset(counted))


def letters_of_captures(
    programs: Sequence[Program], names: Sequence[str], shapes: Shapes, sizes: Mapping[str, Any]
) -> tuple[list[str], set[str]]:
    """The letters of captured tensors with these names and shapes, and which of b and h, with these sizes, the programs
    compute with."""
    indices: dict[str, list[set[str]]] = {name: [] for name in names}
    counted: set[str] = set()
    for program in programs:
        for step in program.steps:
            if step.operation != "load" or step.tensor is None:
                counted |= {"b", "h"} & set(step.operands)
                continue
            known = indices[step.tensor]
            known += [set() for _ in range(len(step.operands) - len(known))]
            for of_dimension, index in zip(known, step.operands, strict=True):
                of_dimension.add(index)
        counted |= {"b", "h"} & {program.result}
    letters = []
    for name, shape in zip(names, shapes, strict=False):
        text = ""
        for axis, (size, used) in enumerate(zip(shape, indices[name] or [set()] * len(shape), strict=True)):
            found = {"b", "h"} & used
            letter = next(iter(found)) if len(used) == 1 and found and size == sizes[next(iter(found))] else "."
            if letter in text:  # a split goes through one dimension: of t[b, b], the second one is whole
                letter = "."
            if letter == "." and size != 1:  # for a dimension of size 1, every index is clamped to 0
                counted |= found | _named(programs, name, axis)
            text += letter if size != 1 else "."
        letters.append(text)
    return letters, counted


def _named(programs: Sequence[Program], name: str, axis: int) -> set[str]:
    """Of b and h those that name the size of a captured tensor's dimension, which a part would take for its own."""
    declared = " ".join(one.captures[name][1][axis] for one in programs if name in one.captures)
    return {letter for letter, word in (("b", "batch"), ("h", "heads")) if word in declared}


def _only(layout: str, kept: str) -> str:
    return "".join(letter if letter in kept else "." for letter in layout)
