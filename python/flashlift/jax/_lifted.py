"""Calls as fused modules have them (docs/custom_call.md), which each device of several runs for what it holds."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from flashlift._problem import Problem
from flashlift.jax._arguments.seeds import seed_of_part
from flashlift.jax._call import INPUTS, captured_names, programs_of, resized_programs
from flashlift.jax._counting import counting
from flashlift.jax._letters import BATCHES, Letters, letters_of_captures
from flashlift.jax._partition import Axes
from flashlift.jax._register import BACKWARD_TARGET, TARGET
from flashlift.jax._varying import result_type

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Lifted:
    """A call whose tensors have one dimension for each letter, or for batches those of `batches`. Its operands: q, k,
    v, the captured tensors, the sinks, and the keep mask or dropout's seed; for a backward pass also the forward pass's
    results, and the gradients with respect to these."""

    problem: Problem
    captures: tuple[str, ...]
    gradients: tuple[int, ...] | None  # None for a forward pass
    batches: Shape
    dims: tuple[tuple[str, str], ...]  # by the names of operands and results
    further: tuple[str, ...]  # the letters of operands without such a name
    fixed: frozenset[str]
    counted: frozenset[str]
    result_dtypes: tuple[Any, ...]
    implementation: str | None

    def letters(self, operands: Sequence[Any]) -> Letters:
        dims = dict(self.dims)

        def of(name: str) -> str:
            head = "k" if name in ("k", "v", "d_k", "d_v") else "h"
            return self._spread("".join({"b": "b", "h": head}.get(letter, ".") for letter in dims[name]))

        names = _operand_names(self.problem, self.gradients, len(operands))
        further = map(self._spread, self.further)
        of_operands = tuple(of(name) if name else next(further) for name in names)
        of_results = tuple(
            of(name) if name else of_operands[i]
            for i, name in zip(self._gradient_operands, self._result_names, strict=True)
        )
        return Letters(of_operands, of_results, self.fixed, self.counted)

    def run(self, *operands: jax.Array) -> list[jax.Array]:
        return self.run_part(self.letters(operands), dict.fromkeys((*BATCHES, "h"), 1), {}, *operands)

    def run_part(
        self, letters: Letters, counts: Mapping[str, int], plan: Mapping[str, Axes], *parts: jax.Array
    ) -> list[jax.Array]:
        dims = dict(self.dims)
        batches = tuple(size // counts[letter] for letter, size in zip(BATCHES, self.batches, strict=False))
        operands = list(parts)
        for i, text in enumerate(self.further, len(INPUTS)):
            operands[i] = parts[i].reshape(_gathered(text, parts[i].shape, batches))
        gathered = [one.shape for one in operands]
        q_heads = self.problem.q_heads // counts["h"]
        kv_heads = parts[1].shape[self._text("k").index("h")] if "h" in dims["k"] else self.problem.kv_heads
        local = dataclasses.replace(self.problem, batch=math.prod(batches), q_heads=q_heads, kv_heads=kv_heads)
        shapes = {name: one.shape for name, one in zip(self.captures, operands[len(INPUTS) :], strict=False)}
        local, captures, gradients = resized_programs(local, shapes), self.captures, self.gradients
        end = len(INPUTS) + len(captures)
        wholes = dict(zip(BATCHES, self.batches, strict=False)) | {"h": self.problem.q_heads}
        sizes = {letter: size // counts[letter] for letter, size in wholes.items()}
        if _has_seed(local):
            at = end + ("sinks" in local.words)
            operands[at] = seed_of_part(operands[at], {one: plan.get(one) for one in "bh"}, sizes).words
        of_captures = dict(zip(captures, self.further, strict=False))
        added = counting(local, letters.counted, of_captures, plan, wholes, sizes)
        operands[end:end] = added.operands
        local, captures = added.problem, captures + added.captures
        gradients = gradients and tuple(i + (len(added.operands) if i >= end else 0) for i in gradients)
        attributes = {"problem": str(local)} | {f"{name}_dims": self._text(name) for name in dims}
        attributes |= {"captures": " ".join(captures)} if captures else {}
        attributes |= {} if gradients is None else {"gradients": " ".join(map(str, gradients))}
        attributes |= {"implementation": self.implementation} if self.implementation else {}
        of_results = [
            result_type(self._shape(name, local, batches) if name else gathered[i], dtype, parts)
            for i, name, dtype in zip(self._gradient_operands, self._result_names, self.result_dtypes, strict=True)
        ]
        target = TARGET if self.gradients is None else BACKWARD_TARGET
        results = jax.ffi.ffi_call(target, of_results)(*operands, **attributes)
        return [
            one if name else one.reshape(parts[i].shape)
            for i, name, one in zip(self._gradient_operands, self._result_names, results, strict=True)
        ]

    @property
    def _gradient_operands(self) -> tuple[int, ...]:
        """For each result of a backward pass, the operand with respect to which it is the gradient; for a forward pass,
        the first operand."""
        return (0,) * len(self._result_names) if self.gradients is None else self.gradients

    @property
    def _result_names(self) -> tuple[str, ...]:
        return _result_names(self.problem, self.gradients)

    def _text(self, name: str) -> str:
        return dict(self.dims)[name].replace("b", "b" * len(self.batches))

    def _spread(self, letters: str) -> str:
        return letters.replace("b", BATCHES[: len(self.batches)])

    def _shape(self, name: str, of: Problem, batches: Shape) -> Shape:
        is_key = name in ("d_k", "d_v")
        sizes = {
            "b": batches,
            "h": (of.kv_heads if is_key else of.q_heads,),
            "s": (of.kv_len if is_key else of.q_len,),
            "d": (of.value_dim if name in ("d_v", "out") else of.head_dim,),
        }
        return tuple(size for letter in dict(self.dims)[name] for size in sizes[letter])


def merge(
    target: str, attributes: Mapping[str, str], operands: Sequence[Any], results: Sequence[Any]
) -> tuple[Lifted, list[Shape]]:
    """A call as it stands in a module, where tensors may have several dimensions for a letter, and the shapes to which
    its operands must be reshaped. Dimensions of batches stay separate, since a mesh may split any of them."""
    problem = Problem.parse(attributes["problem"])
    gradients = tuple(map(int, attributes["gradients"].split())) if target == BACKWARD_TARGET else None
    captures = tuple(attributes["captures"].split()) if "captures" in attributes else captured_names(problem)
    names = (*_operand_names(problem, gradients, len(operands)), *_result_names(problem, gradients))
    dims: dict[str, str] = {}
    shapes: list[Shape] = []
    batches: Shape = ()
    for name, one in zip(names, (*operands, *results), strict=True):
        shapes.append(tuple(one.shape))
        if name:
            text = _dims_of(name, attributes)
            dims[name], shapes[-1] = _merged(text, one.shape)
            batches = batches or _sizes_of("b", text, one.shape)
    batches = batches if len(batches) <= len(BATCHES) else (problem.batch,)
    further, counted = _letters_of_further(problem, captures, tuple(shapes))
    fixed: frozenset[str] = frozenset()
    if problem.kv_heads > 1 and not ("h" in dims["k"] and "h" in dims["v"]):
        fixed = frozenset("h")  # all key-value heads are one, so that a part does not determine their number
    letters = iter(further)
    for i, name in enumerate(names[: len(operands)]):
        shapes[i] = _spread_out(dims[name] if name else next(letters), shapes[i], batches)
    dtypes, implementation = tuple(one.dtype for one in results), attributes.get("implementation")
    call = Lifted(
        problem, captures, gradients, batches or (1,), tuple(dims.items()), further, fixed, counted, dtypes,
        implementation,
    )  # fmt: skip
    return call, shapes[: len(operands)]


def _has_seed(problem: Problem) -> bool:
    return "dropout" in problem.words and "keep_mask" not in problem.words


def _of_forward(problem: Problem) -> tuple[str, ...]:
    return ("out", "lse") if "lse" in problem.words else ("out",)


def _operand_names(problem: Problem, gradients: tuple[int, ...] | None, count: int) -> tuple[str, ...]:
    """The names of the operands that have letters; "" for the others."""
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
    """Merges the dimensions of each letter. They are neighbours, except for those of size 1."""
    sizes: dict[str, int] = {}
    for letter, size in zip(dims, shape, strict=True):
        if letter != "1" and sizes.get(letter, 1) == 1:
            sizes.pop(letter, None)
            sizes[letter] = size
        elif letter != "1":
            sizes[letter] *= size
    return "".join(sizes), tuple(sizes.values())


def _sizes_of(letter: str, dims: str, shape: Sequence[int]) -> Shape:
    return tuple(size for one, size in zip(dims, shape, strict=True) if one == letter and size > 1)


def _spread_out(letters: str, shape: Shape, batches: Shape) -> Shape:
    """The shape with the batches' own dimensions in place of the merged one."""
    parts = (batches if letter == "b" and batches else (size,) for letter, size in zip(letters, shape, strict=True))
    return tuple(size for part in parts for size in part)


def _gathered(letters: str, shape: Sequence[int], batches: Shape) -> Shape:
    """The reverse of _spread_out."""
    sizes = iter(shape)
    return tuple(math.prod(next(sizes) for _ in batches) if letter == "b" else next(sizes) for letter in letters)


@functools.lru_cache(maxsize=256)
def _letters_of_further(
    problem: Problem, captures: tuple[str, ...], shapes: tuple[Shape, ...]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """The letters of the operands without dimension strings: the captured tensors, the sinks and the keep mask."""
    sizes = {"b": problem.batch, "h": problem.q_heads}
    letters, counted = letters_of_captures(programs_of(problem), captures, shapes[len(INPUTS) :], sizes)
    if "sinks" in problem.words:
        letters.append("h." if len(shapes[len(INPUTS) + len(letters)]) == 2 else ".")
    if "keep_mask" in problem.words:
        sizes_of_mask = shapes[len(INPUTS) + len(letters)]
        letters.append("".join("." if size == 1 else one for one, size in zip("bh..", sizes_of_mask, strict=True)))
    if _has_seed(problem):
        letters.append(".")
    return tuple(letters), frozenset(counted)
