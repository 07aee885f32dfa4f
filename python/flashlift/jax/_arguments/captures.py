"""Captured tensors of a call: which ones its programs read, and whether they have the declared types and sizes."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from flashlift._errors import InvalidArgumentError, counted
from flashlift._library import core
from flashlift._problem import Problem
from flashlift.jax._arguments.values import as_array, described, short
from flashlift.jax._call import captured_names, programs_of
from flashlift.jax._program import Program, parse

_DTYPES = {
    "f32": "float32", "bf16": "bfloat16", "f16": "float16", "bool": "bool", "i8": "int8", "u8": "uint8", "i16": "int16",
    "i32": "int32", "u32": "uint32", "i64": "int64",
}  # fmt: skip
_NAMED = {"batch": "batch", "heads": "q_heads", "q_len": "q_len", "kv_len": "kv_len"}  # sizes of a call

# Element type and sizes as a program writes them.
Declaration = tuple[str, tuple[str, ...]]


def captured_tensors(
    problem: Problem, given: Any, traced: Mapping[str, jax.Array], sizes: Mapping[str, Any]
) -> dict[str, jax.Array]:
    """The tensors that the problem reads: of the given ones, by name or in order, and of those that Python functions
    read. sizes: the call's; those that jax.export does not know yet are not compared.

    With the problem's other conditions, a tensor that its text declares may have no effect. It may be given, too.
    """
    declared = _declared(problem)
    expected = captured_names(problem)
    own = [name for name in declared if name not in traced]
    read = [name for name in expected if name not in traced]
    if isinstance(given, Mapping):
        named = dict(given)
        came = ", ".join(map(str, named)) or "none"
        fits = set(read) <= set(named) <= set(own)
    elif isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        order = read if len(given) == len(read) else own
        named = dict(zip(order, given, strict=False))
        came = counted(len(given), "tensor")
        fits = len(given) == len(order)
    else:
        raise InvalidArgumentError(f"captures is {short(given)}; expected arrays by name, or a list of arrays")
    if not fits:
        raise InvalidArgumentError(
            f"captures are {came}; the features read {', '.join(own) or 'none'}: expected each of them once"
        )
    arrays = {name: as_array(f"the captured tensor {name}", one) for name, one in named.items()}
    same: list[int] = []
    for name, array in arrays.items():
        if declared[name] is not None:
            _check(name, array, declared[name], sizes, same)
    return {name: one for name, one in [*arrays.items(), *traced.items()] if name in expected}


def _declared(problem: Problem) -> dict[str, Any]:
    """What the problem's text declares: for each tensor its declaration, or None where only its name is known. In the
    order in which the programs read them."""
    alone = dataclasses.replace(problem, score_mod=None, mask_mod=None)
    found: dict[str, Any] = {}
    for kind in ("score_mod", "mask_mod"):
        text = getattr(problem, kind)
        programs = [one for one in programs_of(alone) if one.kind == kind]
        for program in [*programs, *([parse(text)] if text else [])]:
            found |= {name: program.captures[name] for name in _in_order(program)}
    of_words = json.loads(core().flashlift_problem_words())
    names = [re.split(r"\W", text)[0] for one in of_words if one["name"] in problem.words for text in one["captures"]]
    return dict.fromkeys(names) | found if set(names) - set(found) else found


def _in_order(program: Program) -> dict[str, None]:
    return dict.fromkeys([*(step.tensor for step in program.steps if step.tensor), *program.captures])


def _check(name: str, array: jax.Array, declared: Declaration, sizes: Mapping[str, Any], same: list[int]) -> None:
    """same: the size n of the tensors before this one, if one has it."""
    dtype, words = declared
    fits = array.dtype.name == _DTYPES.get(dtype) and array.ndim == len(words)
    expected = []
    for i, word in enumerate(words):
        size = array.shape[i] if i < array.ndim else None
        allowed = _allowed(word, sizes, same)
        if allowed is not None and isinstance(size, int) and all(isinstance(one, int) for one in allowed):
            fits &= size in allowed
        if word == "n" and isinstance(size, int):
            same.append(size)
        numbers = " or ".join(map(str, allowed or ["any"]))
        expected.append(numbers if word.isdigit() or word == "?" else f"{numbers} ({word.removeprefix('1|')})")
    if not fits:
        raise InvalidArgumentError(
            f"the captured tensor {name} is {described(array)}; expected {_DTYPES.get(dtype, dtype)} "
            f"[{', '.join(expected)}]"
        )


def _allowed(word: str, sizes: Mapping[str, Any], same: Sequence[int]) -> list[Any] | None:
    """The sizes that a program's word allows; None for any."""
    if word.isdigit():
        return [int(word)]
    if word.startswith("1|"):
        return [1, *(_allowed(word.removeprefix("1|"), sizes, same) or [])]
    if word == "n":
        return list(same[:1]) or None
    return [sizes[_NAMED[word]]] if word in _NAMED else None
