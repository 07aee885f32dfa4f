"""What is known of one attention's call beside its operands, and the custom calls that run it."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from flashlift._problem import Problem
from flashlift.jax._program import Program, parse, printed
from flashlift.jax._register import BACKWARD_TARGET, TARGET, register
from flashlift.jax._varying import result_type

INPUTS = ("q", "k", "v")
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def sizes_of(layout: str, q: Any, k: Any, v: Any) -> dict[str, Any]:
    of_q, of_k, of_v = (dict(zip(layout, array.shape, strict=True)) for array in (q, k, v))
    return {
        "batch": of_q["b"],
        "q_heads": of_q["h"],
        "kv_heads": of_k["h"],
        "q_len": of_q["s"],
        "kv_len": of_k["s"],
        "head_dim": of_q["d"],
        "value_dim": of_v["d"],
    }


@dataclasses.dataclass(frozen=True)
class Call:
    """One kind of call. Its operands: q, k, v, the captured tensors, the sinks, and dropout's seed."""

    problem: Problem  # with the sizes of the operands when the call was created; unknown sizes are 1
    layout: str
    capture_names: tuple[str, ...]  # in the order of the operands
    implementation: str | None = None

    @property
    def with_lse(self) -> bool:
        return "lse" in self.problem.words

    @property
    def sinks(self) -> int | None:
        """The position of the sinks among the operands."""
        return 3 + len(self.capture_names) if "sinks" in self.problem.words else None

    @property
    def seed(self) -> int | None:
        """The position of the seed among the operands."""
        return 3 + len(self.capture_names) + (self.sinks is not None) if "dropout" in self.problem.words else None

    def for_gradient(self) -> "Call":
        """The same call with results that make its backward pass fast: lse, and an output not rounded to 16 bits.

        The gradient with respect to the output keeps the type of the caller's output, if that is the inputs' type.
        """
        problem = self.problem
        asked = problem.words.get("out", problem.dtype)
        like_inputs = asked == problem.dtype or problem.words.get("d_out") == "inputs"
        words: dict[str, Any] = {"lse": True, "out": "f32", "d_out": "inputs" if like_inputs else False}
        return dataclasses.replace(self, problem=problem.with_words(**words))

    def out_dtype(self, q: jax.Array) -> jnp.dtype:
        asked = self.problem.words.get("out")
        return jnp.dtype(DTYPES[asked]) if asked else q.dtype

    def d_out_dtype(self, q: jax.Array) -> jnp.dtype:
        return q.dtype if self.problem.words.get("d_out") == "inputs" else self.out_dtype(q)

    def programs(self) -> tuple[Program, ...]:
        """The programs that change scores, including those of named features."""
        return programs_of(self.problem)

    def axes(self, array: Any) -> dict[str, Any]:
        """The sizes of q, k, v or out, by letter."""
        return dict(zip(self.layout, array.shape, strict=True))

    def attributes(self, operands: Sequence[Any]) -> dict[str, str]:
        # The operands of a part of a sharded call, or of a batch of calls, have other sizes.
        sizes = sizes_of(self.layout, *operands[:3])
        are_known = all(isinstance(size, int) for size in sizes.values())
        settled: dict[str, Any] = {name: size if isinstance(size, int) else 1 for name, size in sizes.items()}
        dims = {f"{name}_dims": self.layout for name in ("q", "k", "v", "out")}
        optional = {"lse_dims": "bhs"} if self.with_lse else {}
        optional |= {"captures": " ".join(self.capture_names)} if self.capture_names else {}
        optional |= {"implementation": self.implementation} if self.implementation else {}
        optional |= {} if are_known else {"lengths": "any"}
        captures = dict(zip(self.capture_names, (one.shape for one in operands[3:]), strict=False))
        problem = resized_programs(dataclasses.replace(self.problem, **settled), captures)
        return {"problem": str(problem)} | dims | optional

    def result_shapes(self, operands: Sequence[Any]) -> list[tuple[tuple[Any, ...], jnp.dtype]]:
        q = self.axes(operands[0])
        sizes = q | {"d": self.axes(operands[2])["d"]}
        out = tuple(sizes[letter] for letter in self.layout), self.out_dtype(operands[0])
        lse = tuple(q[letter] for letter in "bhs"), jnp.dtype("float32")
        return [out, lse] if self.with_lse else [out]

    def run(self, *operands: jax.Array) -> list[jax.Array]:
        register()
        shapes = [result_type(shape, dtype, operands) for shape, dtype in self.result_shapes(operands)]
        return list(jax.ffi.ffi_call(TARGET, shapes)(*operands, **self.attributes(operands)))

    def run_backward(self, wanted: tuple[int, ...], *operands: jax.Array) -> list[jax.Array]:
        """The gradients with respect to the wanted operands. operands: the call's operands, its results, and the
        gradients with respect to these."""
        register()
        shapes = [result_type(operands[i].shape, operands[i].dtype, operands) for i in wanted]
        call = jax.ffi.ffi_call(BACKWARD_TARGET, shapes)
        return list(call(*operands, gradients=" ".join(map(str, wanted)), **self.attributes(operands)))


@functools.lru_cache(maxsize=256)
def expanded(problem: Problem) -> Problem:
    """The problem with its named features as programs."""
    return problem.expanded()


def programs_of(problem: Problem) -> tuple[Program, ...]:
    """The programs that change scores, including those of named features."""
    whole = expanded(problem)
    return tuple(parse(text) for text in (whole.score_mod, whole.mask_mod) if text)


def resized_programs(problem: Problem, shapes: Mapping[str, Sequence[Any]]) -> Problem:
    """The problem, with programs whose captured tensors have these shapes."""
    for kind in ("score_mod", "mask_mod"):
        text = getattr(problem, kind)
        if text:
            changed: dict[str, Any] = {kind: printed(_resized(parse(text), shapes))}
            problem = dataclasses.replace(problem, **changed)
    return problem


def _resized(program: Program, shapes: Mapping[str, Sequence[Any]]) -> Program:
    """The program with the sizes of its captured tensors filled in; sizes that have a name stay."""

    def sizes(name: str, declared: Sequence[str]) -> tuple[str, ...]:
        if name not in shapes:  # the problem as a whole does not depend on it
            return tuple(declared)
        pairs = zip(declared, shapes[name], strict=True)
        return tuple(str(size) if one.isdigit() and isinstance(size, int) else one for one, size in pairs)

    captures = {name: (dtype, sizes(name, declared)) for name, (dtype, declared) in program.captures.items()}
    return dataclasses.replace(program, captures=captures)


def captured_names(problem: Problem) -> tuple[str, ...]:
    """The names of the tensors that the programs read, in the order of first use."""
    return tuple(dict.fromkeys(name for program in programs_of(problem) for name in program.captures))
