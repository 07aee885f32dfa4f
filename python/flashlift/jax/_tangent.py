"""The derivative of a fused function as an operation of JAX, which is linear in the tangents.

Reverse mode transposes it into the function's gradient, which is fused like any function. Forward mode runs it as plain
maths.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


@dataclass(frozen=True, eq=False)
class Tangent:
    """The derivative of a function with respect to some of its arguments."""

    name: str
    mesh: Any  # that was set where the function was called
    forward: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    """The tangents of the results. Of the arguments, and the tangents of some of these."""
    backward: Callable[[Sequence[Any], tuple[int, ...], Sequence[Any]], list[Any]]
    """Gradients. Of the arguments, of the places of the wanted gradients among the tangents, and of the gradients with
    respect to the results, None for zeros."""

    def __call__(
        self, arguments: Sequence[Any], tangents: Sequence[Any], results: Sequence[jax.core.ShapedArray]
    ) -> list[Any]:
        """The tangents of the results, which have these types."""
        return tangent_p.bind(*arguments, *tangents, of=self, count=len(arguments), results=tuple(results))

    def batched(self, of_arguments: Sequence[Any], of_tangents: Sequence[Any]) -> "Tangent":
        """Of a batch of calls: for each argument and each tangent the dimension that is mapped, or None."""

        def forward(arguments: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
            dims = list(of_arguments), list(of_tangents)
            return jax.vmap(self.forward, in_axes=dims)(list(arguments), list(tangents))

        def backward(arguments: Sequence[Any], wanted: tuple[int, ...], cotangents: Sequence[Any]) -> list[Any]:
            of_one = lambda given, some: self.backward(given, wanted, some)
            dims = [of_tangents[i] for i in wanted]
            gradients = jax.vmap(of_one, in_axes=(list(of_arguments), 0))(list(arguments), list(cotangents))
            return [
                one.sum(axis=0) if dim is None else jax.numpy.moveaxis(one, 0, dim)
                for one, dim in zip(gradients, dims, strict=True)
            ]

        return Tangent(self.name, self.mesh, forward, backward)


tangent_p = Primitive("flashlift_fused_tangent")
tangent_p.multiple_results = True


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _run(of: Tangent, count: int, results: tuple[jax.core.ShapedArray, ...], *operands: Any) -> list[Any]:
    return tangent_p.bind(*operands, of=of, count=count, results=results)


@tangent_p.def_impl
def _run_alone(*operands: Any, of: Tangent, count: int, results: tuple[jax.core.ShapedArray, ...]) -> list[Any]:
    with jax.disable_jit(False):  # with jit disabled, _run would call itself
        return _run(of, count, results, *operands)


@tangent_p.def_abstract_eval
def _results(*_: Any, of: Tangent, count: int, results: tuple[jax.core.ShapedArray, ...]) -> list[Any]:
    return list(results)


def _transpose(
    cotangents: Sequence[Any], *operands: Any, of: Tangent, count: int, results: tuple[jax.core.ShapedArray, ...]
) -> list[Any]:
    tangents = operands[count:]
    wanted = tuple(i for i, one in enumerate(tangents) if ad.is_undefined_primal(one))
    given = [None if isinstance(one, ad.Zero) else one for one in cotangents]
    gradients = dict(zip(wanted, of.backward(operands[:count], wanted, given), strict=True))
    return [None] * count + [gradients.get(i) for i in range(len(tangents))]


def _differentiate(
    primals: Sequence[Any], tangents: Sequence[Any], *, of: Tangent, count: int, results: tuple[Any, ...]
) -> tuple[list[Any], list[Any]]:
    own = of(primals[:count], primals[count:], results)
    if all(isinstance(one, ad.Zero) for one in tangents[:count]):
        return own, of(primals[:count], list(map(ad.instantiate_zeros, tangents[count:])), results)
    moved = [i for i, one in enumerate(tangents) if not isinstance(one, ad.Zero)]

    def of_moved(*some: Any) -> list[Any]:
        full = list(primals)
        for i, one in zip(moved, some, strict=True):
            full[i] = one
        return of.forward(full[:count], full[count:])

    _warn(of.name)
    return own, jax.jvp(of_moved, [primals[i] for i in moved], [tangents[i] for i in moved])[1]


def _batch(
    operands: Sequence[Any], dims: Sequence[Any], *, of: Tangent, count: int, results: tuple[Any, ...]
) -> tuple[list[Any], list[int]]:
    batched = of.batched(dims[:count], dims[count:])
    types = jax.make_jaxpr(batched.forward)(list(operands[:count]), list(operands[count:])).out_avals
    return batched(operands[:count], operands[count:], types), [0] * len(results)


@functools.cache
def _warn(name: str) -> None:
    warnings.warn(
        f"flashlift.jax computes forward-mode derivatives of {name} by plain maths, with all scores in memory",
        stacklevel=2,
    )


def _lower(context: Any, *operands: Any, of: Tangent, count: int, results: tuple[Any, ...]) -> Sequence[Any]:
    _warn(of.name)

    def forward(*given: Any) -> list[Any]:
        return of.forward(given[:count], given[count:])

    with jax.sharding.use_abstract_mesh(of.mesh):
        return mlir.lower_fun(forward, multiple_results=True)(context, *operands)


ad.primitive_jvps[tangent_p] = _differentiate
ad.primitive_transposes[tangent_p] = _transpose
batching.primitive_batchers[tangent_p] = _batch
mlir.register_lowering(tangent_p, _lower)
