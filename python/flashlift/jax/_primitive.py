"""One attention as operations of JAX: what they give, how they are differentiated, batched and lowered.

Three operations. `attention_p` runs a call. `tangent_p` is its derivative, linear in the tangents: reverse mode only
ever transposes it, into `backward_p`, and forward mode runs it as plain maths. Derivatives of the latter two are plain
maths, too.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType

from flashlift._errors import UnsupportedError
from flashlift.jax._batch import fold, unfold
from flashlift.jax._call import Call
from flashlift.jax._jet import refuse_jet_of
from flashlift.jax._partition import Backward, Forward, Kind, is_split, needs_devices, run_partitioned
from flashlift.jax._plain import plain, plain_gradients, tangent_of_values
from flashlift.jax._sharding import (
    axes_of_batches,
    by_types,
    mesh_of_types,
    specs_of_results,
    with_first_dimension,
    without_dimension,
)
from flashlift.jax._varying import result_aval

attention_p = Primitive("flashlift_attention")
tangent_p = Primitive("flashlift_attention_tangent")
backward_p = Primitive("flashlift_attention_backward")

_VALUE = 2  # the place of the values among the operands


def attend(call: Call, *operands: jax.Array) -> list[jax.Array]:
    return list(attention_p.bind(*operands, call=call))


def _attend_for_gradient(call: Call, *operands: jax.Array) -> list[jax.Array]:
    """The output and lse, which the backward pass reads, with names for policies of jax.checkpoint."""
    results = attend(call.for_gradient(), *operands)
    return [checkpoint_name(one, name) for one, name in zip(results, ("flashlift_out", "flashlift_lse"), strict=True)]


# --- results ---


def _of_forward(*operands: Any, call: Call) -> list[Any]:
    specs = specs_of_results(call.layout, operands[0])
    results = call.result_shapes(operands)
    return [result_aval(shape, dtype, operands, spec) for (shape, dtype), spec in zip(results, specs, strict=False)]


def _of_tangent(*operands: Any, call: Call, wanted: tuple[int, ...]) -> list[Any]:
    out, lse = operands[-2 - len(wanted) : -len(wanted)]
    return [
        result_aval(out.shape, call.d_out_dtype(operands[0]), operands, out.sharding.spec),
        result_aval(lse.shape, lse.dtype, operands, lse.sharding.spec),
    ]


def _of_backward(*operands: Any, call: Call, wanted: tuple[int, ...]) -> list[Any]:
    of_wanted = (operands[i] for i in wanted)
    return [result_aval(one.shape, one.dtype, operands, one.sharding.spec) for one in of_wanted]


# --- derivatives ---


@functools.cache
def _warn_of_plain_maths(what: str) -> None:
    warnings.warn(f"flashlift.jax computes {what} of attention by plain maths, with all scores in memory", stacklevel=2)


def _plain_tangent(call: Call, wanted: tuple[int, ...], *operands: jax.Array) -> list[jax.Array]:
    own, tangents = operands[: -2 - len(wanted)], operands[-len(wanted) :]

    def of_wanted(*given: jax.Array) -> list[jax.Array]:
        full = list(own)
        for i, one in zip(wanted, given, strict=True):
            full[i] = one
        return plain(call, *full)

    given = list(tangents)
    apart = None
    if _VALUE in wanted:
        at = wanted.index(_VALUE)
        given[at], apart = tangent_of_values(call, own, given[at])
    d_out, d_lse = jax.jvp(of_wanted, [own[i] for i in wanted], given)[1]
    if apart is not None:
        d_out += apart.astype(d_out.dtype)
    return [d_out.astype(call.d_out_dtype(own[0])), d_lse]


def _differentiate(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> tuple[list[Any], list[Any]]:
    if "unnormalized" in call.problem.words:
        # The largest score of a row has a gradient, too, but no kernel reports which score it is.
        _warn_of_plain_maths("derivatives of unnormalized outputs")
        results = _of_forward(*map(jax.typeof, primals), call=call)
        return _by_plain_maths(functools.partial(plain, call), primals, tangents, results)
    wanted = tuple(i for i, one in enumerate(tangents) if not isinstance(one, ad.Zero))
    graded = call.for_gradient()
    out, lse = _attend_for_gradient(call, *primals)
    given = [tangents[i] for i in wanted]
    d_out, d_lse = tangent_p.bind(*primals, out, lse, *given, call=graded, wanted=wanted)
    dtype = call.out_dtype(primals[0])
    if not call.with_lse:
        return [out.astype(dtype)], [d_out.astype(dtype)]
    return [out.astype(dtype), lse], [d_out.astype(dtype), d_lse]


def _transpose(cotangents: Sequence[Any], *given: Any, call: Call, wanted: tuple[int, ...]) -> list[Any]:
    count = len(given) - len(wanted)
    asked = tuple(i for i, one in zip(wanted, given[count:], strict=True) if ad.is_undefined_primal(one))
    d_results = [ad.instantiate_zeros(one) for one in cotangents]
    gradients = backward_p.bind(*given[:count], *d_results, call=call, wanted=asked)
    by_operand = dict(zip(asked, gradients, strict=True))
    return [None] * count + [by_operand.get(i) for i in wanted]


def _transpose_in_values(cotangents: Sequence[Any], *operands: Any, call: Call) -> list[Any]:
    """For jax.linear_transpose: the output is linear in the values, and in nothing else."""
    unknown = [i for i, one in enumerate(operands) if ad.is_undefined_primal(one)]
    if unknown != [_VALUE]:
        raise UnsupportedError(
            "jax.linear_transpose was asked for with respect to more than the values of attention, the only operand in "
            "which it is linear; expected jax.vjp"
        )
    zeros = ad.instantiate_zeros(ad.Zero(operands[_VALUE].aval))
    own = [zeros if i == _VALUE else one for i, one in enumerate(operands)]
    # It is the gradient at any values.
    _, backward = jax.vjp(lambda v: attend(call, *own[:_VALUE], v, *own[_VALUE + 1 :])[0], zeros)
    gradient = backward(ad.instantiate_zeros(cotangents[0]))[0]
    return [gradient if i == _VALUE else None for i in range(len(operands))]


def _by_plain_maths(
    function: Callable[..., list[Any]], primals: Any, tangents: Any, results: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """jax.jvp with respect to the primals that have a tangent. results: the types of the function's results."""
    moved = [i for i, one in enumerate(tangents) if not isinstance(one, ad.Zero)]

    def run(*given: Any) -> list[Any]:
        own, directions = given[: len(primals)], given[len(primals) :]

        def of_moved(*some: Any) -> list[Any]:
            full = list(own)
            for i, one in zip(moved, some, strict=True):
                full[i] = one
            return function(*full)

        out, d_out = jax.jvp(of_moved, [own[i] for i in moved], list(directions))
        return [*out, *d_out]

    both = by_types(run, [*primals, *(tangents[i] for i in moved)], [*results, *results])
    return both[: len(results)], both[len(results) :]


def _differentiate_tangent(primals: Any, tangents: Any, *, call: Call, wanted: tuple[int, ...]) -> Any:
    _warn_of_plain_maths("forward-mode derivatives")
    results = _of_tangent(*map(jax.typeof, primals), call=call, wanted=wanted)
    return _by_plain_maths(functools.partial(_plain_tangent, call, wanted), primals, tangents, results)


def _differentiate_backward(primals: Any, tangents: Any, *, call: Call, wanted: tuple[int, ...]) -> Any:
    _warn_of_plain_maths("second derivatives")
    results = _of_backward(*map(jax.typeof, primals), call=call, wanted=wanted)
    return _by_plain_maths(functools.partial(plain_gradients, call, wanted), primals, tangents, results)


# --- batches ---


def _one_by_one(primitive: Primitive, operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    mapped = [jnp.moveaxis(one, dim, 0) for one, dim in zip(operands, dims, strict=True) if dim is not None]

    def run(parts: Sequence[Any]) -> Any:
        rest = iter(parts)
        return primitive.bind(
            *(one if dim is None else next(rest) for one, dim in zip(operands, dims, strict=True)), **params
        )

    results = jax.lax.map(run, mapped)
    return results, [0] * len(results)


def _size(operands: Sequence[Any], dims: Sequence[Any]) -> int:
    return next(one.shape[dim] for one, dim in zip(operands, dims, strict=True) if dim is not None)


def _batch_forward(operands: Sequence[Any], dims: Sequence[Any], *, call: Call) -> tuple[Any, Any]:
    folded = fold(call, operands, dims, _size(operands, dims))
    if folded is None:
        return _one_by_one(attention_p, operands, dims, call=call)
    results = attention_p.bind(*folded.operands, call=folded.call)
    places = [call.layout.index("b"), 0][: len(results)]
    return [unfold(one, at, folded) for one, at in zip(results, places, strict=True)], places


def _batch_tangent(operands: Any, dims: Any, *, call: Call, wanted: tuple[int, ...]) -> tuple[Any, Any]:
    run = jax.vmap(functools.partial(_plain_tangent, call, wanted), in_axes=tuple(dims))
    results = run(*operands)
    return results, [0] * len(results)


def _batch_backward(operands: Any, dims: Any, *, call: Call, wanted: tuple[int, ...]) -> tuple[Any, Any]:
    size = _size(operands, dims)
    own, results = operands[:-4], operands[-4:]
    folded = fold(call, own, dims[:-4], size, wanted)
    if folded is None:
        return _one_by_one(backward_p, operands, dims, call=call, wanted=wanted)
    places = [call.layout.index("b"), 0] * 2
    more = [_fold_result(one, dim, at, size) for one, dim, at in zip(results, dims[-4:], places, strict=True)]
    gradients = backward_p.bind(*folded.operands, *more, call=folded.call, wanted=wanted)
    unfolded, out_dims = [], []
    for i, gradient in zip(wanted, gradients, strict=True):
        at = folded.of_gradients[i]
        one = gradient if at is None else unfold(gradient, at, folded)
        shape = own[i].shape if dims[i] is None else own[i].shape[: dims[i]] + own[i].shape[dims[i] + 1 :]
        if at is not None and shape[at] == 1:  # was broadcast over the batches of one call
            one = one.sum(axis=at + 1, keepdims=True)
        unfolded.append(one)
        out_dims.append(at or 0)
    return unfolded, out_dims


def _fold_result(array: Any, dim: int | None, at: int, size: int) -> Any:
    if dim is None:
        array = jnp.broadcast_to(jnp.expand_dims(array, at), (*array.shape[:at], size, *array.shape[at:]))
    else:
        array = jnp.moveaxis(array, dim, at)
    return array.reshape((*array.shape[:at], size * array.shape[at + 1], *array.shape[at + 2 :]))


# --- lowering ---


def _lower(kind_of: Callable[..., Kind]) -> Callable[..., Any]:
    def rule(context: Any, *values: Any, **params: Any) -> Any:
        platforms = set(context.platforms or context.module_context.platforms)
        if not platforms <= {"cpu", "cuda"}:
            raise UnsupportedError(
                f"attention is compiled for {', '.join(sorted(platforms))}, and Flashlift's handlers are for cpu and "
                "cuda; expected one of these, or both"
            )
        kind = kind_of(**params)
        return _lower_by_types(
            functools.partial(run_partitioned, kind) if is_split(context) else kind.run, context, *values
        )

    return rule


def _lower_by_types(run: Callable[..., Any], context: Any, *values: Any) -> Any:
    def of_all(*operands: Any) -> list[Any]:
        return by_types(run, operands, context.avals_out)

    return mlir.lower_fun(of_all, multiple_results=True)(context, *values)


def _batched_by_types(
    primitive: Primitive, rule: Callable[..., Any], abstract: Callable[..., list[Any]]
) -> Callable[..., Any]:
    """The rule, where a mesh of explicit axes may split the operands, also by the mapped dimension."""

    def run_all(dims: tuple[Any, ...], params: tuple[Any, ...], results: tuple[Any, ...], *operands: Any) -> list[Any]:
        def of_all(*given: Any) -> list[Any]:
            found, places = rule(given, dims, **dict(params))
            return [jnp.moveaxis(one, dim, 0) for one, dim in zip(found, places, strict=True)]

        return by_types(of_all, operands, results)

    # JAX before 0.10 moves no concrete arrays between types within vmap. From 0.11 on, jit has no eager gradient of
    # functions that do.
    if jax.__version_info__ < (0, 10):
        run_all = jax.jit(run_all, static_argnums=(0, 1, 2), inline=True)

    def run(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        mesh = mesh_of_types(operands)
        if mesh is None:
            return rule(operands, dims, **params)
        pairs = [without_dimension(jax.typeof(one), dim) for one, dim in zip(operands, dims, strict=True)]
        split = next((axes for _, axes in pairs if axes), None)
        # Within a shard_map over other axes, JAX cannot differentiate what XLA splits. There the rule's own operations
        # keep the types, which they can unless batches are split within each call.
        is_typed = AxisType.Manual in mesh.axis_types and primitive is not tangent_p
        is_typed = is_typed and (split is None or None not in dims[:3])
        if is_typed and not axes_of_batches(params["call"].layout, pairs[0][0]):
            return rule(operands, dims, **params)
        of_one = abstract(*(one for one, _ in pairs), **params)
        results = tuple(with_first_dimension(one, _size(operands, dims), split) for one in of_one)
        return run_all(tuple(dims), tuple(params.items()), results, *operands), [0] * len(results)

    return run


def _define(primitive: Primitive, abstract: Any, jvp: Any, batch: Any, lowering: Any) -> None:
    primitive.multiple_results = True

    @functools.partial(jax.jit, static_argnums=0)
    def run(params: tuple[tuple[str, Any], ...], *operands: Any) -> Any:
        return primitive.bind(*operands, **dict(params))

    def run_alone(*operands: Any, **params: Any) -> Any:
        with jax.disable_jit(False):  # with jit disabled, run would call itself
            return run(tuple(params.items()), *operands)

    primitive.def_impl(run_alone)
    primitive.def_abstract_eval(abstract)
    ad.primitive_jvps[primitive] = jvp
    batching.primitive_batchers[primitive] = _batched_by_types(primitive, batch, abstract)
    mlir.register_lowering(primitive, lowering)


def _lower_tangent(context: Any, *values: Any, call: Call, wanted: tuple[int, ...]) -> Any:
    _warn_of_plain_maths("forward-mode derivatives")
    return _lower_by_types(functools.partial(_plain_tangent, call, wanted), context, *values)


_define(attention_p, _of_forward, _differentiate, _batch_forward, _lower(lambda call: Forward(call)))
_define(tangent_p, _of_tangent, _differentiate_tangent, _batch_tangent, _lower_tangent)
_define(
    backward_p,
    _of_backward,
    _differentiate_backward,
    _batch_backward,
    _lower(lambda call, wanted: Backward(call, wanted)),
)
ad.primitive_transposes[tangent_p] = _transpose
ad.primitive_transposes[attention_p] = _transpose_in_values

needs_devices(attention_p, backward_p)
refuse_jet_of(attention_p, tangent_p, backward_p)
