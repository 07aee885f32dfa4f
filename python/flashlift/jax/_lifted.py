"""Calls as fused modules have them (docs/custom_call.md), which each device of several runs for what it holds."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from flashlift._problem import Problem
from flashlift.jax._call import captured_names, programs_of, resized_programs
from flashlift.jax._letters import Letters, letters_of_captures
from flashlift.jax._partition import Axes
from flashlift.jax._register import BACKWARD_TARGET, TARGET
from flashlift.jax._varying import result_type

Shape = tuple[int, ...]
INPUTS = ("q", "k", "v")


@dataclasses.dataclass(frozen=True)
class Lifted:
    """A call of whose tensors each has one dimension for a letter. Its operands: q, k, v, the captured tensors, the
    sinks, the keep mask; of a backward pass also the forward pass's results, and the gradients by these."""

    problem: Problem
    captures: tuple[str, ...]
    gradients: tuple[int, ...] | None  # None: a forward pass
    dims: tuple[tuple[str, str], ...]  # by the names of operands and results
    result_dtypes: tuple[Any, ...]

    def letters(self, operands: Sequence[Any]) -> Letters:
        return _letters_of(self, tuple(tuple(one.shape) for one in operands))

    def run(self, *operands: jax.Array) -> list[jax.Array]:
        return self.run_part({"b": 1, "h": 1}, {}, *operands)

    def run_part(self, counts: Mapping[str, int], _: Mapping[str, Axes], *parts: jax.Array) -> list[jax.Array]:
        dims = dict(self.dims)
        kv_heads = dict(zip(dims["k"], parts[1].shape, strict=True)).get("h", self.problem.kv_heads)
        batch, q_heads = self.problem.batch // counts["b"], self.problem.q_heads // counts["h"]
        local = dataclasses.replace(self.problem, batch=batch, q_heads=q_heads, kv_heads=kv_heads)
        shapes = {name: one.shape for name, one in zip(self.captures, parts[3:], strict=False)}
        attributes = {"problem": str(resized_programs(local, shapes))}
        attributes |= {f"{name}_dims": text for name, text in self.dims}
        attributes |= {"captures": " ".join(self.captures)} if self.captures else {}
        attributes |= {} if self.gradients is None else {"gradients": " ".join(map(str, self.gradients))}
        shapes_of_results = [
            self._shape(name, local) if name else parts[i].shape
            for i, name in zip(self.gradient_operands, self.result_names, strict=True)
        ]
        results = [
            result_type(shape, dtype, parts) for shape, dtype in zip(shapes_of_results, self.result_dtypes, strict=True)
        ]
        target = TARGET if self.gradients is None else BACKWARD_TARGET
        return list(jax.ffi.ffi_call(target, results)(*parts, **attributes))

    @property
    def gradient_operands(self) -> tuple[int, ...]:
        """The operand that each result is a gradient by; of a forward pass the first."""
        return (0,) * len(self.result_names) if self.gradients is None else self.gradients

    @property
    def result_names(self) -> tuple[str, ...]:
        return _result_names(self.problem, self.gradients)

    def _shape(self, name: str, of: Problem) -> Shape:
        is_key = name in ("d_k", "d_v")
        sizes = {
            "b": of.batch,
            "h": of.kv_heads if is_key else of.q_heads,
            "s": of.kv_len if is_key else of.q_len,
            "d": of.value_dim if name in ("d_v", "out") else of.head_dim,
        }
        return tuple(sizes[letter] for letter in dict(self.dims)[name])


def merge(
    target: str, attributes: Mapping[str, str], operands: Sequence[Any], results: Sequence[Any]
) -> tuple[Lifted, list[Shape]]:
    """A call as a module has it, whose tensors may have several dimensions for a letter, and the shapes that its operands
    are to have instead."""
    problem = Problem.parse(attributes["problem"])
    gradients = tuple(map(int, attributes["gradients"].split())) if target == BACKWARD_TARGET else None
    captures = tuple(attributes["captures"].split()) if "captures" in attributes else captured_names(problem)
    names = (*_operand_names(problem, gradients, len(operands)), *_result_names(problem, gradients))
    dims: dict[str, str] = {}
    shapes: list[Shape] = []
    for name, one in zip(names, (*operands, *results), strict=True):
        shapes.append(tuple(one.shape))
        if name:
            dims[name], shapes[-1] = _merged(_dims_of(name, attributes), one.shape)
    call = Lifted(problem, captures, gradients, tuple(dims.items()), tuple(one.dtype for one in results))
    return call, shapes[: len(operands)]


def _of_forward(problem: Problem) -> tuple[str, ...]:
    return ("out", "lse") if "lse" in problem.words else ("out",)


def _operand_names(problem: Problem, gradients: tuple[int, ...] | None, count: int) -> tuple[str, ...]:
    """Of those operands that have letters; "" for the others."""
    results = () if gradients is None else _of_forward(problem)
    last = (*results, *(f"d_{name}" for name in results))
    return (*INPUTS, *[""] * (count - len(INPUTS) - len(last)), *last)


def _result_names(problem: Problem, gradients: tuple[int, ...] | None) -> tuple[str, ...]:
    if gradients is None:
        return _of_forward(problem)
    return tuple(f"d_{INPUTS[i]}" if i < len(INPUTS) else "" for i in gradients)


def _dims_of(name: str, attributes: Mapping[str, str]) -> str:
    return attributes.get(f"{name}_dims") or attributes[f"{name.removeprefix('d_')}_dims"]


def _merged(dims: str, shape: Sequence[int]) -> tuple[str, Shape]:
    """One dimension for all that share a letter: these stand beside each other, but for those of size 1."""
    sizes: dict[str, int] = {}
    for letter, size in zip(dims, shape, strict=True):
        if letter != "1" and sizes.get(letter, 1) == 1:
            sizes.pop(letter, None)
            sizes[letter] = size
        elif letter != "1":
            sizes[letter] *= size
    return "".join(sizes), tuple(sizes.values())


@functools.lru_cache(maxsize=256)
def _letters_of(call: Lifted, shapes: tuple[Shape, ...]) -> Letters:
    problem, dims = call.problem, dict(call.dims)
    sizes = {"b": problem.batch, "h": problem.q_heads}
    captures, fixed = letters_of_captures(programs_of(problem), call.captures, shapes[3:], sizes)
    further = list(captures)  # of those without letters
    if "sinks" in problem.words:
        further.append("h." if len(shapes[3 + len(further)]) == 2 else ".")
    if "keep_mask" in problem.words:
        sizes_of_mask = shapes[3 + len(further)]
        further.append("".join("." if size == 1 else one for one, size in zip("bh..", sizes_of_mask, strict=True)))

    def of(name: str) -> str:
        head = "k" if name in ("k", "v", "d_k", "d_v") else "h"
        return "".join({"b": "b", "h": head}.get(letter, ".") for letter in dims[name])

    if problem.kv_heads > 1 and not ("h" in dims["k"] and "h" in dims["v"]):
        fixed.add("h")  # all key-value heads are one, of which no part says how many it stands for
    names = _operand_names(problem, call.gradients, len(shapes))
    operands = tuple(of(name) if name else further[i - len(INPUTS)] for i, name in enumerate(names))
    results = tuple(
        of(name) if name else operands[i] for i, name in zip(call.gradient_operands, call.result_names, strict=True)
    )
    return Letters(operands, results, frozenset(fixed))
