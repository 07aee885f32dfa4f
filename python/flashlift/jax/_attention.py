"""One attention as a JAX operation, with its gradient."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from flashlift._errors import InvalidArgumentError, UnsupportedError
from flashlift._problem import Problem
from flashlift.jax._arguments import as_array, check_operands, check_sinks, seed_words
from flashlift.jax._register import BACKWARD_TARGET, TARGET, register
from flashlift.jax._sharding import result_type, vary_together

_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_DTYPES = {text: name for name, text in _TYPES.items()}


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    features: str = "",
    *,
    captures: Sequence[jax.Array] | Mapping[str, jax.Array] = (),
    sinks: jax.Array | None = None,
    dropout_seed: jax.Array | int | None = None,
    layout: str = "bshd",
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """softmax(score_mod(scale q kᵀ) where mask_mod) v as one fused kernel, and another one for its gradients.

    layout: how q, k, v and the result are laid out: one letter for each dimension, b batch, h heads, s length, d depth.
    features: what the problem has beyond its shapes, in the words of the problem text: "causal window=128 softcap=30",
    "score_mod(...) {...}". captures: the tensors that the programs read, by name, or in the order in which they are
    first named; sinks: [q_heads, n], or [n] for all heads; dropout_seed, with "dropout=..." in the features and on
    CPUs: a key of jax.random, its uint32 [2], or an integer. Without "scale=..." the scale is 1/sqrt(head_dim).
    Returns the result, or (result, lse[batch, q_heads, q_len]) if the features ask for "lse".

    Reverse-mode derivatives by q, k, v, floating-point captures and sinks, through both results, in O(length) memory;
    forward-mode and second derivatives are not supported.
    """
    register()
    if sorted(layout) != sorted("bhsd"):
        raise InvalidArgumentError(f'layout is "{layout}"; expected the letters b, h, s and d in some order')
    q, k, v = (as_array(name, array) for name, array in (("q", q), ("k", k), ("v", v)))
    check_operands(("q", "k", "v"), q, k, v, layout)
    names = " ".join(captures) if isinstance(captures, Mapping) else None
    tables = list(captures.values() if isinstance(captures, Mapping) else captures)
    if sinks is not None:
        sinks = check_sinks("sinks", as_array("sinks", sinks), q.shape[layout.index("h")])
    problem = Problem.parse(f"attn {features}", dtype=_TYPES[q.dtype.name], **_sizes(layout, q, k, v))
    call = _Call(problem if sinks is None else problem.with_words(sinks=sinks.shape[-1]), layout, names)
    has_seed = "dropout" in problem.words
    if has_seed != (dropout_seed is not None):
        expected = "expected a dropout_seed" if has_seed else "expected no dropout_seed"
        raise InvalidArgumentError(f'the features are "{features}": {expected}; dropout needs both or neither')
    optional = [] if sinks is None else [sinks]
    if dropout_seed is not None:
        optional.append(seed_words(dropout_seed))
    results = _attend_jitted(call, *vary_together([q, k, v, *map(jnp.asarray, tables), *optional]))
    return results if len(results) > 1 else results[0]


def _sizes(layout: str, q: jax.Array, k: jax.Array, v: jax.Array) -> dict[str, int]:
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
class _Call:
    """What is known of a call beside its operands: q, k, v, the captured tensors, the sinks, dropout's seed."""

    problem: Problem  # of the operands' sizes when the call was made
    layout: str
    capture_names: str | None  # in the order of the operands, if that is not the problem's own

    @property
    def with_lse(self) -> bool:
        return "lse" in self.problem.words

    def out_dtype(self, q: jax.Array) -> jnp.dtype:
        asked = self.problem.words.get("out")
        return jnp.dtype(_DTYPES[asked]) if asked else q.dtype

    def for_gradient(self) -> "_Call":
        """The same with what makes its backward pass fast: lse, and an output that is not rounded to 16 bits."""
        return dataclasses.replace(self, problem=self.problem.with_words(lse=True, out="f32"))

    def sizes(self, array: jax.Array) -> dict[str, int]:
        return dict(zip(self.layout, array.shape, strict=True))

    def attributes(self, operands: Sequence[jax.Array]) -> dict[str, str]:
        # A part of a sharded call has operands of other sizes.
        sizes: dict[str, Any] = {**_sizes(self.layout, *operands[:3])}
        problem = dataclasses.replace(self.problem, **sizes)
        dims = {f"{name}_dims": self.layout for name in ("q", "k", "v", "out")}
        lse_dims = {"lse_dims": "bhs"} if self.with_lse else {}
        names = {} if self.capture_names is None else {"captures": self.capture_names}
        return {"problem": str(problem)} | dims | lse_dims | names

    def results(self, operands: Sequence[jax.Array]) -> list[jax.ShapeDtypeStruct]:
        q = self.sizes(operands[0])
        sizes = q | {"d": self.sizes(operands[2])["d"]}
        out = result_type([sizes[letter] for letter in self.layout], self.out_dtype(operands[0]), operands)
        lse = result_type([q[letter] for letter in "bhs"], jnp.float32, operands)
        return [out, lse] if self.with_lse else [out]

    def run(self, operands: Sequence[jax.Array]) -> Sequence[jax.Array]:
        call = jax.ffi.ffi_call(TARGET, self.results(operands), vmap_method="sequential")
        return call(*operands, **self.attributes(operands))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: _Call, *operands: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(call.run(operands))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Residuals:
    operands: tuple[jax.Array, ...]
    results: tuple[jax.Array, ...]
    wanted: tuple[int, ...] = dataclasses.field(metadata={"static": True})  # the operands that have a gradient


def _attend_forward(call: _Call, *primals: CustomVJPPrimal) -> tuple[tuple[jax.Array, ...], _Residuals]:
    if "unnormalized" in call.problem.words:
        raise UnsupportedError(
            "an unnormalized output has no gradient; expected one that is divided: leave normalize_output=False out"
        )
    operands = tuple(primal.value for primal in primals)
    wanted = tuple(i for i, primal in enumerate(primals) if primal.perturbed)
    out, lse = call.for_gradient().run(operands)
    rounded = out.astype(call.out_dtype(operands[0]))
    return (rounded, lse) if call.with_lse else (rounded,), _Residuals(operands, (out, lse), wanted)


def _attend_backward(
    call: _Call, residuals: _Residuals, cotangents: Sequence[jax.Array | SymbolicZero]
) -> tuple[jax.Array | None, ...]:
    operands, wanted = residuals.operands, residuals.wanted
    given = [*cotangents, *([] if call.with_lse else [None])]
    d_results = [
        jnp.zeros(result.shape, result.dtype)
        if one is None or isinstance(one, SymbolicZero)
        else one.astype(result.dtype)
        for one, result in zip(given, residuals.results, strict=True)
    ]
    backward = jax.ffi.ffi_call(
        BACKWARD_TARGET,
        [result_type(operands[i].shape, operands[i].dtype, operands) for i in wanted],
        vmap_method="sequential",
    )
    gradients = backward(
        *operands,
        *residuals.results,
        *d_results,
        gradients=" ".join(map(str, wanted)),
        **call.for_gradient().attributes(operands),
    )
    by_operand = dict(zip(wanted, gradients, strict=True))
    return tuple(by_operand.get(i) for i in range(len(operands)))


_attend.defvjp(_attend_forward, _attend_backward, symbolic_zeros=True)

# Within an eager shard_map JAX takes no rule with symbolic zeros unless it is jitted.
_attend_jitted = jax.jit(_attend, static_argnums=0, inline=True)
