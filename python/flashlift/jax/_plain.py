"""One attention in plain JAX, with all scores in memory: for derivatives that no kernel computes."""

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from flashlift._problem import Problem
from flashlift.jax._call import Call, expanded
from flashlift.jax._dropout import keeps
from flashlift.jax._program import evaluate, parse


def plain(call: Call, *operands: jax.Array) -> list[jax.Array]:
    """Computes the results of the call in plain JAX."""
    problem = expanded(call.problem)
    q, k, v = (_as_bhsd(call.layout, one) for one in operands[:3])
    k, v = (jnp.repeat(one, q.shape[1] // one.shape[1], axis=1) for one in (k, v))
    captures = dict(zip(call.capture_names, operands[3:], strict=False))
    kept, scores = _scores(problem, q, k, captures)
    sinks = None if call.sinks is None else operands[call.sinks]

    # A row without keys has no largest score; then 0 is subtracted.
    largest = jnp.max(jnp.where(kept, scores, -jnp.inf), axis=-1, keepdims=True, initial=-jnp.inf)
    if sinks is not None:
        of_heads = jnp.broadcast_to(jnp.max(sinks, axis=-1), (q.shape[1],))[None, :, None, None]
        largest = jnp.maximum(largest, of_heads)
    is_empty = largest == -jnp.inf
    largest = jnp.where(is_empty, 0, largest)
    if "unnormalized" not in problem.words:
        largest = jax.lax.stop_gradient(largest)
    weights = jnp.where(kept, jnp.exp(jnp.where(kept, scores - largest, 0)), 0)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if sinks is not None:
        shaped = sinks[None, :, None] if sinks.ndim == 2 else sinks[None, None, None]
        total += jnp.sum(jnp.exp(shaped - largest), axis=-1, keepdims=True)
    total = jnp.where(is_empty, 1, total)
    rows = problem.words.get("empty_rows", "zero")
    if rows == "uniform":
        kept |= is_empty
        weights = jnp.where(is_empty, 1, weights)
        total = jnp.where(is_empty, max(k.shape[2], 1), total)
    # lse and the row's sum are those without dropout.
    rate, used = problem.words.get("dropout", 0.0), _without_dropped(call, kept, operands)
    weights = jnp.where(used, weights / (1 - rate), 0)
    out = _product("bhqk,bhkd->bhqd", weights, _seen(used, 2, v)) + _infinities(used, v)
    out = jnp.where(used.any(axis=3)[..., None], out, 0)
    if "unnormalized" not in problem.words:
        out = out / total
    if rows == "nan":
        out = jnp.where(is_empty, jnp.nan, out)
    out = jnp.transpose(out, ["bhsd".index(letter) for letter in call.layout]).astype(call.out_dtype(operands[0]))
    lse = jnp.where(is_empty, -jnp.inf, jnp.log(total) + largest)[..., 0]
    return [out, lse] if call.with_lse else [out]


def _without_dropped(call: Call, kept: jax.Array, operands: Sequence[jax.Array]) -> jax.Array:
    """The pairs that are kept, without those that dropout drops."""
    if call.seed is None:
        return kept
    return kept & keeps(call.problem.words["dropout"], operands[call.seed], kept.shape)


_product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


def _scores(
    problem: Problem, q: jax.Array, k: jax.Array, captures: Mapping[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Which pairs of queries and keys are kept, and their scores, whose derivatives take nothing from other pairs."""
    shape = (*q.shape[:3], k.shape[2])
    inputs = {
        name: jax.lax.broadcasted_iota(jnp.int32, [n if i == axis else 1 for i in range(4)], axis)
        for axis, (name, n) in enumerate(zip(("b", "h", "q", "kv"), shape, strict=True))
    }
    inputs |= {"q_len": jnp.int32(shape[2]), "kv_len": jnp.int32(shape[3])}
    kept = jnp.ones(shape, bool)
    if problem.mask_mod:
        kept = jnp.broadcast_to(evaluate(parse(problem.mask_mod), inputs, captures), shape)
    # Scores mask pairs, too. Nothing of masked pairs may reach a derivative, so that these scores have none.
    exact, fixed = jax.lax.stop_gradient((_product("bhqd,bhkd->bhqk", q, k) * problem.words["scale"], captures))
    change = functools.partial(evaluate, parse(problem.score_mod)) if problem.score_mod else None
    kept &= (change(inputs | {"score": exact}, fixed) if change else exact) != -jnp.inf
    own_q, own_k = _seen(kept, 3, q), _seen(kept, 2, k)
    scores = _product("bhqd,bhkd->bhqk", own_q, own_k) * problem.words["scale"] + jnp.where(
        jnp.isfinite(exact), 0, exact
    )
    if change:
        scores = jnp.broadcast_to(change(inputs | {"score": jnp.where(kept, scores, 0)}, captures, kept), shape)
    return kept, scores


def _seen(kept: jax.Array, over: int, rows: jax.Array) -> jax.Array:
    """The rows that a pair keeps, with 0 for NaN and infinities, and 0 for the other rows: a product multiplies what is
    masked by 0, which gives NaN for these. over: the dimension of pairs that is not one of rows."""
    return jnp.where(kept.any(axis=over)[..., None], _finite(rows), 0)


@jax.custom_jvp
def _finite(x: jax.Array) -> jax.Array:
    """x with 0 for NaN and infinities, and the derivative of x."""
    return jnp.where(jnp.isfinite(x), x, 0)


_finite.defjvp(lambda values, tangents: (_finite(*values), tangents[0]))


def _infinities(kept: jax.Array, v: jax.Array) -> jax.Array:
    """NaN and infinities that a row of the result gets from the values that it keeps; otherwise 0."""
    # NaN counts as both infinities, whose sum it is.
    found = [(v == one) | jnp.isnan(v) for one in (jnp.inf, -jnp.inf)]
    counts = [_product("bhqk,bhkd->bhqd", kept.astype(jnp.float32), one.astype(jnp.float32)) for one in found]
    return jnp.where(counts[0] > 0, jnp.inf, 0) + jnp.where(counts[1] > 0, -jnp.inf, 0)


def tangent_of_values(call: Call, own: Sequence[jax.Array], d_v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A tangent of the values with 0 for NaN and infinities, and what these add to the tangent of the output.

    They reach only the rows that keep their keys. A derivative of _product could not do this: it would not be linear.
    """
    problem = expanded(call.problem)
    q, k, d_rows = (_as_bhsd(call.layout, one) for one in (*own[:2], d_v))
    k, d_rows = (jnp.repeat(one, q.shape[1] // one.shape[1], axis=1) for one in (k, d_rows))
    kept, _ = _scores(problem, q, k, dict(zip(call.capture_names, own[3:], strict=False)))
    if problem.words.get("empty_rows") == "uniform" and call.sinks is None:
        kept |= ~kept.any(axis=3, keepdims=True)
    kept = _without_dropped(call, kept, own)
    apart = _infinities(jax.lax.stop_gradient(kept), jax.lax.stop_gradient(d_rows))
    return _finite(d_v), jnp.transpose(apart, ["bhsd".index(letter) for letter in call.layout])


def plain_gradients(call: Call, wanted: Sequence[int], *operands: jax.Array) -> list[jax.Array]:
    """Computes the gradients of Call.run_backward in plain JAX. Recomputes the forward results that are among the
    operands."""
    results = 2 if call.with_lse else 1
    own, d_results = operands[: -2 * results], operands[-results:]

    def of_wanted(*given: jax.Array) -> list[jax.Array]:
        full = list(own)
        for i, one in zip(wanted, given, strict=True):
            full[i] = one
        return plain(call, *full)

    given, backward = jax.vjp(of_wanted, *(own[i] for i in wanted))
    return list(backward([one.astype(result.dtype) for one, result in zip(d_results, given, strict=True)]))


def _as_bhsd(layout: str, array: jax.Array) -> jax.Array:
    return jnp.transpose(array, [layout.index(letter) for letter in "bhsd"]).astype(jnp.float32)
