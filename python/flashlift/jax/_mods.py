"""score_mod and mask_mod as Python functions, traced by JAX into programs.

A function is traced once for scalars. What of it does not depend on the score or on a coordinate is computed before the
call, as part of what JAX differentiates; arrays that are read at a coordinate become captured tensors.
"""

import dataclasses
import functools
import inspect
import itertools
import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from flashlift._errors import InvalidArgumentError, UnsupportedError
from flashlift._library import core
from flashlift._recorded import check_recorded
from flashlift.jax import _narrow as narrow
from flashlift.jax._varying import vary_together

_INPUTS = {"score_mod": ("score", "b", "h", "q", "kv"), "mask_mod": ("b", "h", "q", "kv")}
_COORDINATES = {"b": "batch", "h": "heads", "q": "q_len", "kv": "kv_len"}
_DTYPES = {
    "float32": "f32", "bfloat16": "bf16", "float16": "f16", "int32": "i32", "int64": "i64", "bool": "bool",
    "int8": "i8", "uint8": "u8", "int16": "i16",
}  # fmt: skip
_VARIES = {"pvary", "pcast"}  # within shard_map
_SAME = {"broadcast_in_dim", "reshape", "squeeze", "copy", "copy_p", "expand_dims"} | _VARIES
_CALLS = {"pjit", "jit", "closed_call", "core_call", "remat", "remat2", "checkpoint"}
_CUSTOM = {"custom_jvp_call", "custom_vjp_call"}  # calls with a gradient of their own
# The errors of JAX if Python or numpy need the value of a traced number.
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_MAX_STEPS = 256  # of a loop, which is unrolled
# JAX's primitives that are operations with another name.
_OF_OTHER_NAMES = {
    "add_any": "add", "logistic": "sigmoid", "erf_inv": "erfinv", "shift_left": "shl", "shift_right_arithmetic": "shr",
    "shift_right_logical": "ushr",
}  # fmt: skip
_REDUCTIONS = {
    "reduce_sum": "add", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "mul", "reduce_and": "and",
    "reduce_or": "or",
}  # fmt: skip
_CONVERSIONS = {"bool": "to_i1", "int32": "to_i32", "int64": "to_i64"}
_ORDERED = {"lt", "le", "gt", "ge"}  # comparisons that programs do not have for i1
_OF_BOOLEANS = {"max": "or", "min": "and", "reduce_max": "or", "reduce_min": "and"}
_BITCASTS = {("float32", "int32"): "bitcast_i32", ("int32", "float32"): "bitcast_f32"}
_ROUNDINGS = {"bfloat16": "round_bf16", "float16": "round_f16"}


@functools.cache
def _operations() -> dict[str, str]:
    """The operations that correspond to JAX's primitives, by the primitives' names, from the table of operations."""
    kinds = ("arithmetic", "integer", "bits", "function", "comparison", "predicate")
    rows = json.loads(core().flashlift_operations())
    return {row["name"]: row["name"] for row in rows if row["kind"] in kinds} | _OF_OTHER_NAMES


@dataclasses.dataclass(frozen=True)
class Traced:
    text: str
    captures: dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class _Value:
    """A scalar of the program."""

    text: str


@dataclasses.dataclass(frozen=True)
class _Row:
    """A row of scalars."""

    items: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class _View:
    """Part of an array: for each dimension of the array an index or None, and for each dimension of the view the
    array's dimension."""

    array: Any
    indices: tuple[str | None, ...]
    dimensions: tuple[int | None, ...]


def trace_mods(
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    sizes: Mapping[str, Any],
    features: str = "",
) -> list[Traced]:
    """Traces the mods that were given. sizes: those of a problem; with jax.export, some may be unknown. features: other
    text of the problem, whose names are taken."""
    named = {"batch": sizes["batch"], "heads": sizes["q_heads"], "q_len": sizes["q_len"], "kv_len": sizes["kv_len"]}
    given = (("score_mod", score_mod), ("mask_mod", mask_mod))
    taken = frozenset(re.findall(r"\w+", features))
    return [_trace(kind, function, named, taken) for kind, function in given if function is not None]


def counted_from(kind: str, function: Callable[..., Any], first: Sequence[Any]) -> Callable[..., Any]:
    """The function for a part that starts at this batch and this head of the whole; None if the part starts where the
    whole does."""
    shifts = [(_INPUTS[kind].index(name), one) for name, one in zip("bh", first, strict=True) if one is not None]

    def run(*inputs: Any) -> Any:
        own = list(inputs)
        for at, shift in shifts:
            own[at] += shift
        return function(*own)

    return run if callable(function) else function


def capped_before(score_mod: Callable[..., Any], cap: float) -> Callable[..., Any]:
    """The function applied to capped scores."""
    if callable(score_mod):
        _check_takes("score_mod", score_mod)
    else:
        return score_mod  # it is refused when it is traced

    def run(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score_mod(cap * jnp.tanh(score / cap), b, h, q, kv)

    return run


def _trace(kind: str, function: Callable[..., Any], sizes: dict[str, Any], taken: Container[str]) -> Traced:
    """kind: score_mod or mask_mod. sizes: of batch, heads, q_len and kv_len."""
    inputs = _INPUTS[kind]
    scalars = [jax.ShapeDtypeStruct((), jnp.float32 if name == "score" else jnp.int32) for name in inputs]
    if not callable(function):
        raise InvalidArgumentError(f"{kind} is {function!r}; expected a function of ({', '.join(inputs)})")
    _check_takes(kind, function)
    closed = _jaxpr_of(kind, function, scalars)
    out = closed.out_avals
    if len(out) != 1 or out[0].shape != () or (out[0].dtype == jnp.bool_) != (kind == "mask_mod"):
        came = ", ".join(f"{one.dtype}{list(one.shape)}" for one in out) or "nothing"
        expected = "a bool" if kind == "mask_mod" else "the new score; what keeps or masks keys is a mask_mod"
        raise InvalidArgumentError(f"{kind} returns {came}; expected one scalar, {expected}")
    tracing = _Tracing(kind, sizes, taken)
    result = tracing.run(closed.jaxpr, closed.consts, [_Value(name) for name in inputs])[0]
    return tracing.finish(result, out[0].dtype)


def _jaxpr_of(kind: str, function: Callable[..., Any], scalars: Sequence[Any]) -> Any:
    try:
        return jax.make_jaxpr(function)(*scalars)
    except _NEEDS_VALUES as error:
        raise InvalidArgumentError(
            f"{kind} reads the value of a position or a score, which has none while the function is traced; "
            "expected jax.numpy: a table of numpy's as jnp.asarray(table)[h, kv], np.tanh as jnp.tanh, `if` as "
            "jnp.where, `and` as &"
        ) from error
    except Exception as error:
        if not _is_of_sharding(error):
            raise
        raise UnsupportedError(
            f"{kind} reads an array that a mesh of explicit axes splits, or that lies on another mesh than the call; "
            "expected a whole one: jax.reshard(array, jax.P()) before the function, or the array as an argument of the "
            "function that jax.shard_map runs"
        ) from error


def _is_of_sharding(error: Exception) -> bool:
    """Whether a primitive belongs to JAX's sharding. JAX has no public names for most of these."""
    text = str(error)
    return type(error).__name__ == "ShardingTypeError" or "out_sharding" in text or "Explicit" in text


def _check_takes(kind: str, function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some built-in functions have none
    try:
        signature.bind(*_INPUTS[kind])
    except TypeError as error:
        raise InvalidArgumentError(
            f"{kind} is a function of {signature}; expected one of ({', '.join(_INPUTS[kind])})"
        ) from error


class _Tracing:
    def __init__(self, kind: str, sizes: dict[str, Any], taken: Container[str]) -> None:
        self.kind = kind
        self.taken = taken
        self.sizes = sizes
        self.lines: list[tuple[str, str, tuple[str, ...]]] = []
        self.loads: dict[str, list[tuple[str, ...]]] = {}
        self.captures: dict[str, Any] = {}
        self.has_gradient = kind == "score_mod"

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values |= dict(zip(jaxpr.invars, arguments, strict=True))
        for equation in jaxpr.eqns:
            operands = [_literal(one) if isinstance(one, Literal) else values[one] for one in equation.invars]
            results = self._apply(equation, operands)
            values |= dict(zip(equation.outvars, results, strict=True))
        return [_literal(one) if isinstance(one, Literal) else values[one] for one in jaxpr.outvars]

    def finish(self, result: Any, dtype: Any) -> Traced:
        if jnp.issubdtype(dtype, jnp.integer):
            result = self._converted(result, dtype, np.dtype(np.float32))
        returned = self._text(result)
        used, kept = {returned}, []
        for name, line, operands in reversed(self.lines):
            if name in used:
                used |= set(operands)
                kept.append(f"{name} = {line}")
        read = [name for name in self.captures if any(f" {name}[" in line for line in kept)]
        declared = ", ".join(f"{name}: {_DTYPES[self.captures[name].dtype.name]}[{self._sizes(name)}]" for name in read)
        body = "; ".join([*reversed(kept), f"return {returned}"])
        return Traced(f"{self.kind}({declared}) {{ {body} }}", {name: self.captures[name] for name in read})

    def _sizes(self, name: str) -> str:
        """The sizes of a captured tensor in a problem. A dimension that is read only at one coordinate has that
        coordinate's size, in every part of the whole."""
        sizes = []
        for axis, size in enumerate(self.captures[name].shape):
            used = {indices[axis] for indices in self.loads[name]}
            named = _COORDINATES.get(next(iter(used))) if len(used) == 1 else None
            if named is not None and size == self.sizes[named]:
                sizes.append(named)
            else:
                sizes.append(str(size) if isinstance(size, int) else "?")  # "?": still unknown to jax.export
        return ",".join(sizes)

    def _emit(self, operation: str, *operands: str) -> _Value:
        return self._recorded(f"{operation} {', '.join(operands)}", operands)

    def _recorded(self, line: str, operands: tuple[str, ...]) -> _Value:
        check_recorded(len(self.lines) + 1)
        name = f"%{len(self.lines)}"
        self.lines.append((name, line, operands))
        return _Value(name)

    def _emitted(self, operation: str, *operands: str) -> str:
        return self._emit(operation, *operands).text

    def _text(self, value: Any) -> str:
        if isinstance(value, _Value):
            return value.text
        if isinstance(value, _View):
            raise UnsupportedError(f"{self.kind} reads a whole row of an array; expected scalars: index all dimensions")
        if isinstance(value, jax.core.Tracer):
            return self._load(jnp.reshape(value, (1,)), ("0",)).text
        return _constant(np.asarray(value))

    def _load(self, array: Any, indices: tuple[str, ...]) -> _Value:
        known = next((name for name, one in self.captures.items() if one is array), None)
        free = (f"{self.kind[0]}{i}" for i in itertools.count())
        name = known or next(one for one in free if one not in self.captures and one not in self.taken)
        if array.dtype.name not in _DTYPES:
            raise UnsupportedError(
                f"{self.kind} reads an array of {array.dtype}; expected {', '.join(_DTYPES)}: cast it"
            )
        self.captures[name] = array
        self.loads.setdefault(name, []).append(indices)
        return self._recorded(f"load {name}[{', '.join(indices)}]", indices)

    def _apply(self, equation: Any, operands: list[Any]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        if not any(isinstance(one, (_Value, _View, _Row)) for one in operands):
            return _bound(equation, operands)
        if name in _CALLS or name in _CUSTOM:
            inner = next(params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params)
            results = self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands)
            return self._with_own_gradient(equation, operands, results) if name in _CUSTOM else results
        if name == "call_hi_primitive":  # searchsorted and ldexp, since JAX 0.12
            if type(params["_prim"]).__name__ == "Ldexp":  # expands to unsigned integers
                of_exponent, of_result = equation.invars[1].aval.dtype, equation.outvars[0].aval.dtype
                scaled = self._scaled(self._text(operands[0]), self._text(operands[1]), of_exponent)
                return [self._settled(scaled, name, of_result)]
            inner = jax.make_jaxpr(params["_prim"].expand)(*(one.aval for one in equation.invars))
            return self.run(inner.jaxpr, inner.consts, operands)
        if name == "cond":
            return self._branches(params["branches"], operands[0], operands[1:])
        if name == "scan":
            return self._loop(params, operands)
        if name == "dynamic_slice":
            return [self._slice(operands[0], operands[1:], params["slice_sizes"])]
        if name == "gather":
            return [self._gathered(params, operands, equation.invars[0].aval)]
        if name == "stop_gradient":
            return [self._stopped(operands[0])]
        if name in _SAME:
            return [self._reshaped(operands[0], equation.outvars[0].aval.shape)]
        if name in ("stack", "concatenate") and equation.outvars[0].aval.ndim == 1:
            return [_Row(tuple(item for one in operands for item in _items(one)))]
        if any(isinstance(one, _Row) for one in operands):
            return [self._of_row(name, equation, operands)]
        if any(one.aval.size != 1 for one in equation.outvars):
            raise UnsupportedError(
                f"{self.kind} computes an array by {name} from the score or a coordinate; expected scalars only"
            )
        return [self._settled(self._scalar(name, equation, operands), name, equation.outvars[0].aval.dtype)]

    def _stopped(self, value: Any) -> Any:
        """The same number without a gradient: programs do not differentiate integers."""
        if not isinstance(value, _Value):
            raise UnsupportedError(f"{self.kind} stops the gradient of a row; expected a scalar, or the whole array")
        return self._emit("bitcast_f32", self._emit("bitcast_i32", value.text).text)

    def _with_own_gradient(self, equation: Any, operands: list[Any], results: list[Any]) -> list[Any]:
        """The results, with the slopes that jax.custom_jvp and jax.custom_vjp define. Those of jnp.logaddexp, and so of
        softplus, are the same without its definition, and then cost nothing."""
        if not self.has_gradient or equation.params["call_jaxpr"].jaxpr.debug_info.func_name == "logaddexp":
            return results
        floats = [i for i, one in enumerate(equation.invars) if jnp.issubdtype(one.aval.dtype, jnp.floating)]
        shapes = [jax.ShapeDtypeStruct(one.aval.shape, one.aval.dtype) for one in equation.invars]
        owned = []
        for at, result in enumerate(results):
            if not isinstance(result, _Value) or not jnp.issubdtype(equation.outvars[at].aval.dtype, jnp.floating):
                owned.append(result)
                continue
            slope_of = jax.grad(lambda *given, at=at: _bound(equation, given)[at], argnums=floats)
            closed = jax.make_jaxpr(slope_of)(*shapes)
            self.has_gradient = False  # of its slopes
            slopes = self.run(closed.jaxpr, closed.consts, operands)
            self.has_gradient = True
            total = self._stopped(result)
            for i, slope in zip(floats, slopes, strict=True):
                x = _Value(self._text(operands[i]))
                # x minus itself is 0 and has a slope. If x or its slope were infinite, it would be NaN.
                change = self._emit("sub", x.text, self._stopped(x).text)
                step = self._emit("mul", change.text, self._stopped(_Value(self._text(slope))).text)
                is_number = self._emit("is_finite", step.text)
                total = self._emit("add", total.text, self._emit("select", is_number.text, step.text, "0.0").text)
            owned.append(total)
        return owned

    def _branches(self, branches: Sequence[Any], index: Any, operands: list[Any]) -> list[Any]:
        """All branches, and a selection by an index."""
        results = [self.run(one.jaxpr, one.consts, operands) for one in branches]
        return [self._choice(index, cases) for cases in zip(*results, strict=True)]

    def _choice(self, index: Any, cases: Sequence[Any]) -> _Value:
        """The case with this number; the last one for any larger number."""
        text = self._text(cases[-1])
        for at in range(len(cases) - 2, -1, -1):
            is_it = self._emit("le", self._text(index), str(at))
            text = self._emit("select", is_it.text, self._text(cases[at]), text).text
        return _Value(text)

    def _loop(self, params: Mapping[str, Any], operands: list[Any]) -> list[Any]:
        """Unrolls a fori_loop or scan of scalars."""
        if "ft_in" in params:  # since JAX 0.12
            consts, carried, _ = (len(list(one)) for one in params["ft_in"].unpack())
        else:
            consts, carried = params["num_consts"], params["num_carry"]
        fixed, carry, rows = operands[:consts], operands[consts : consts + carried], operands[consts + carried :]
        if rows or len(params["jaxpr"].jaxpr.outvars) != carried or params["length"] > _MAX_STEPS:
            raise UnsupportedError(
                f"{self.kind} has a loop of {params['length']} steps{' over arrays' if rows else ''}; expected a "
                f"fori_loop or scan of scalars, of {_MAX_STEPS} steps at most"
            )
        for _ in range(params["length"]):
            carry = self.run(params["jaxpr"].jaxpr, params["jaxpr"].consts, [*fixed, *carry])
        return carry

    def _of_row(self, name: str, equation: Any, operands: list[Any]) -> Any:
        row = operands[0]
        if name == "convert_element_type":
            types = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
            return _Row(tuple(self._converted(one, *types) for one in row.items))
        texts = [self._text(one) for one in getattr(row, "items", ())]
        if name == "argmax" and equation.invars[0].aval.dtype == jnp.bool_:  # the index of the first that is true
            numbers = [_constant(one) for one in np.arange(len(texts), dtype=equation.outvars[0].aval.dtype)]
            first = numbers[0]
            for text, number in reversed([*zip(texts, numbers, strict=True)]):
                first = self._emitted("select", text, number, first)
            return _Value(first)
        if name in _REDUCTIONS and texts:
            is_bool = equation.invars[0].aval.dtype == jnp.bool_
            operation = (is_bool and _OF_BOOLEANS.get(name)) or _REDUCTIONS[name]
            reduced = functools.reduce(lambda x, y: self._emitted(operation, x, y), texts)
            return self._settled(_Value(reduced), name, equation.outvars[0].aval.dtype)
        raise UnsupportedError(
            f"{self.kind} computes an array by {name} from the score or a coordinate; expected scalars only"
        )

    def _scalar(self, name: str, equation: Any, operands: list[Any]) -> Any:
        if name == "convert_element_type":
            to = equation.outvars[0].aval
            # With 64 bits, JAX converts a coordinate that is combined with a Python number to a weak float64, which
            # becomes float32 when it is combined with the score.
            is_weak = to.weak_type and to.dtype == jnp.float64
            return self._converted(
                operands[0], equation.invars[0].aval.dtype, np.dtype(np.float32) if is_weak else to.dtype
            )
        if name in ("lt", "ge") and getattr(operands[0], "text", "") in _COORDINATES and _is_zero(operands[1]):
            return np.asarray(name == "ge")  # JAX tests of every index whether it counts from the end
        if name == "select_n":
            chosen = operands[0]
            if not isinstance(chosen, (_Value, jax.core.Tracer)):
                return operands[1 + int(chosen)]
            if equation.invars[0].aval.dtype == jnp.bool_:
                return self._emit("select", *map(self._text, (chosen, operands[2], operands[1])))
            return self._choice(chosen, operands[1:])
        if name == "bitcast_convert_type":
            of_types = _BITCASTS.get((equation.invars[0].aval.dtype.name, equation.outvars[0].aval.dtype.name))
            if of_types is not None:
                return self._emit(of_types, self._text(operands[0]))
        if name == "square":
            return self._emit("mul", *[self._text(operands[0])] * 2)
        if name == "integer_pow":
            return self._power(self._text(operands[0]), equation.params["y"], equation.outvars[0].aval.dtype)
        if name == "polynomial":  # of a number and its coefficients, from the constant one; since JAX 0.12
            x, *coefficients = map(self._text, operands)
            return _Value(
                functools.reduce(
                    lambda value, each: self._emitted("add", self._emitted("mul", value, x), each),
                    reversed(coefficients[:-1]),
                    coefficients[-1],
                )
            )
        if name == "clamp":
            return self._emit(
                "min", self._emit("max", self._text(operands[1]), self._text(operands[0])).text, self._text(operands[2])
            )
        if name == "round" and int(equation.params["rounding_method"]) == 1:
            return self._emit("round_even", self._text(operands[0]))
        if name == "tan":
            return self._emit("div", *(self._emit(one, self._text(operands[0])).text for one in ("sin", "cos")))
        if name in ("sinh", "cosh"):
            x = self._text(operands[0])
            exponential, joins = (
                ("expm1", "sub") if name == "sinh" else ("exp", "add")
            )  # by exp, sinh loses precision near 0
            grown, shrunk = (self._emit(exponential, one).text for one in (x, self._emit("neg", x).text))
            return self._emit("mul", self._emit(joins, grown, shrunk).text, "0.5")
        if name in ("lt_to", "le_to") and jnp.issubdtype(equation.invars[0].aval.dtype, jnp.integer):
            name = name.removesuffix("_to")  # total order of floats with NaN, which integers do not need
        if name == "erfc":
            return self._emit("sub", "1.0", self._emit("erf", self._text(operands[0])).text)
        if name == "atan":
            return self._emit("atan2", self._text(operands[0]), "1.0")
        if name == "pow":
            types = [(one.aval.dtype, equation.outvars[0].aval.dtype) for one in equation.invars]
            operands = [self._converted(one, *pair) for one, pair in zip(operands, types, strict=True)]
        if equation.invars[0].aval.dtype == jnp.bool_:
            name = _OF_BOOLEANS.get(name, name)
        if name in _operations():
            texts = [self._text(one) for one in operands]
            if equation.invars[0].aval.dtype == jnp.bool_ and name in _ORDERED:
                texts = [self._emitted("to_i32", one) for one in texts]
            if narrow.is_narrow(equation.invars[0].aval.dtype):
                texts[0] = narrow.before(self._emitted, name, texts[0], equation.invars[0].aval.dtype)
            return self._emit(_operations()[name], *texts)
        raise UnsupportedError(
            f"{self.kind} computes {name} of the score or a coordinate, which programs do not have; expected "
            "operations of docs/problem.md: compute it before the call, or write it with others"
        )

    def _gathered(self, params: Mapping[str, Any], operands: Sequence[Any], aval: Any) -> Any:
        """jnp.take, and array.at[index].get, with one scalar index into one dimension."""
        array, index = operands
        numbers, sizes = params["dimension_numbers"], tuple(params["slice_sizes"])
        axis = numbers.start_index_map[0] if len(numbers.start_index_map) == 1 else -1
        whole = tuple(1 if i == axis else size for i, size in enumerate(aval.shape))
        if axis < 0 or sizes != whole or numbers.collapsed_slice_dims != (axis,) or not isinstance(index, _Value):
            raise UnsupportedError(
                f"{self.kind} reads an array by a gather; expected each index to be a scalar, such as table[h, kv]"
            )
        found = self._slice(array, [index if i == axis else np.int32(0) for i in range(len(sizes))], sizes)
        if "FILL_OR_DROP" not in str(params["mode"]):
            return self._reshaped(found, tuple(size for i, size in enumerate(sizes) if i != axis))
        if not isinstance(found, _Value):
            raise UnsupportedError(
                f'{self.kind} fills rows that it reads out of bounds; expected mode="clip", or an index in brackets'
            )
        beyond = self._emit("ge", index.text, str(aval.shape[axis])).text
        outside = self._emit("or", self._emit("lt", index.text, "0").text, beyond).text
        return self._emit("select", outside, _constant(_filling(aval.dtype, params["fill_value"])), found.text)

    def _scaled(self, number: str, exponent: str, dtype: Any) -> _Value:
        """number * 2^exponent, by powers of 2 that are normal floats."""
        range_ = jnp.iinfo(dtype)
        low, high = (_constant(np.asarray(one, dtype)) for one in (max(-400, range_.min), min(400, range_.max)))
        near = self._emitted("min", self._emitted("max", exponent, low), high)
        left = self._text(self._converted(_Value(near), np.dtype(dtype), np.dtype(np.int32)))
        for _ in range(3):
            step = self._emitted("min", self._emitted("max", left, "-126"), "127")
            left = self._emitted("sub", left, step)
            bits = self._emitted("mul", self._emitted("add", step, "127"), str(1 << 23))
            number = self._emitted("mul", number, self._emitted("bitcast_f32", bits))
        return _Value(number)

    def _power(self, base: str, exponent: int, dtype: Any) -> _Value:
        if exponent == 0:
            return _Value(_constant(np.ones((), dtype)))
        power = base
        for _ in range(abs(exponent) - 1):
            power = self._emit("mul", power, base).text
        return self._emit("div", "1.0", power) if exponent < 0 else _Value(power)

    def _converted(self, value: Any, from_: Any, to: Any) -> Any:
        if not isinstance(value, _Value):
            return _cast(value, to) if isinstance(value, np.ndarray) else jnp.asarray(value).astype(to)
        if from_.name == "float64":  # a weak float64, see above
            from_ = np.dtype(np.float32)
        if from_ == to:
            return value
        is_float = jnp.issubdtype(from_, jnp.floating)
        if to.name in ("float32", *_ROUNDINGS):
            number = value if is_float else self._emit("to_f32", value.text)
            return self._emit(_ROUNDINGS[to.name], number.text) if to.name in _ROUNDINGS else number
        if narrow.is_narrow(to):
            is_i32 = from_ == jnp.int32 or narrow.is_narrow(from_)
            bits = value.text if is_i32 else self._emitted("to_i32", value.text)
            if is_float:
                return _Value(narrow.clamped(self._emitted, bits, to))
            return _Value(bits if np.can_cast(from_, to) else narrow.wrapped(self._emitted, bits, to))
        if to.name not in _CONVERSIONS:
            raise UnsupportedError(
                f"{self.kind} converts to {to}; expected float32, bfloat16, float16, bool, int32, int64 or integers of "
                "8 or 16 bits"
            )
        return self._emit(_CONVERSIONS[to.name], value.text)

    def _settled(self, value: Any, name: str, dtype: Any) -> Any:
        """The result of JAX's primitive of this name as its type holds it: programs compute with 32 bits at least."""
        if not isinstance(value, _Value) or name in ("select_n", "convert_element_type"):
            return value
        if dtype.name in _ROUNDINGS:
            return self._emit(_ROUNDINGS[dtype.name], value.text)
        return _Value(narrow.after(self._emitted, name, value.text, dtype)) if narrow.is_narrow(dtype) else value

    def _reshaped(self, value: Any, shape: tuple[int, ...]) -> Any:
        if not isinstance(value, _View):
            return value
        left = [one for one, index in enumerate(value.indices) if index is None]
        wide = [size for size in shape if size != 1]
        if wide != [value.array.shape[one] for one in left if value.array.shape[one] != 1]:
            raise UnsupportedError(f"{self.kind} reshapes a row of an array; expected scalars: index all dimensions")
        rest = iter([one for one in left if value.array.shape[one] != 1])
        return dataclasses.replace(value, dimensions=tuple(None if size == 1 else next(rest) for size in shape))

    def _slice(self, operand: Any, starts: Sequence[Any], sizes: tuple[int, ...]) -> Any:
        if isinstance(operand, _Value):
            return operand
        if not isinstance(operand, _View):
            operand = _View(operand, (None,) * operand.ndim, tuple(range(operand.ndim)))
        indices = list(operand.indices)
        dimensions = list(operand.dimensions)
        for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            dimension = operand.dimensions[axis]
            if dimension is None or size == operand.array.shape[dimension] != 1:
                continue
            if size != 1:
                raise UnsupportedError(f"{self.kind} reads {size} elements at a coordinate; expected one at a time")
            indices[dimension] = self._text(start)
            dimensions[axis] = None
        for dimension, size in enumerate(operand.array.shape):
            if indices[dimension] is None and size == 1:
                indices[dimension] = "0"
        if all(one is not None for one in indices):
            return self._load(operand.array, tuple(str(one) for one in indices))
        return _View(operand.array, tuple(indices), tuple(dimensions))


def _bound(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The result of an operation on arrays alone, computed by JAX, with its gradient."""
    found = equation.primitive.get_bind_params(equation.params)
    functions, params = found if isinstance(found, tuple) else ((), found)
    # Operations on the function's own numbers are evaluated. A size that is still unknown to jax.export has no
    # operands.
    if operands and all(isinstance(one, np.ndarray) for one in operands):
        if equation.primitive.name in _VARIES:
            return list(operands)
        if equation.primitive.name == "convert_element_type":  # JAX 0.12 traces it within shard_map nevertheless
            return [_cast(operands[0], params["new_dtype"])]
        with jax.core.eval_context():  # jax.ensure_compile_time_eval would keep eager shard_map's tracers
            results = equation.primitive.bind(*functions, *operands, **params)
        results = jax.tree.map(lambda one: one if _is_key(one) else np.asarray(one), results)
    else:
        results = equation.primitive.bind(*functions, *vary_together(operands), **params)
    return list(results) if equation.primitive.multiple_results else [results]


def _cast(number: np.ndarray, dtype: Any) -> np.ndarray:
    if jnp.issubdtype(number.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer):
        # Beyond the integers' range numpy gives any number, and JAX the nearest.
        limits = jnp.iinfo(dtype)
        number = np.clip(np.nan_to_num(number.astype(np.longdouble), nan=0.0), limits.min, limits.max)
    with np.errstate(over="ignore"):  # infinite in a smaller float
        return number.astype(dtype)


def _is_key(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def _literal(one: Any) -> np.ndarray:
    return np.asarray(one.val, one.aval.dtype)


def _items(value: Any) -> tuple[Any, ...]:
    return value.items if isinstance(value, _Row) else (value,)


def _is_zero(value: Any) -> bool:
    return not isinstance(value, (_Value, _View, jax.core.Tracer)) and bool(np.all(np.asarray(value) == 0))


def _filling(dtype: Any, given: Any) -> np.ndarray:
    """What JAX gives for an element out of bounds, of the program's type."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(np.nan if given is None else given, np.float32)
    if given is None:
        signed = jnp.issubdtype(dtype, jnp.signedinteger)
        given = dtype == jnp.bool_ or (jnp.iinfo(dtype).min if signed else jnp.iinfo(dtype).max)
    return np.asarray(given).astype(dtype)


def _constant(value: np.ndarray) -> str:
    one = value.reshape(()).item()
    if value.dtype == np.bool_:
        return "true" if one else "false"
    if np.issubdtype(value.dtype, np.integer):
        return f"{one}:i64" if value.dtype.itemsize == 8 else str(one)
    return f"0x{np.float32(one).view(np.uint32):08x}:f32"
