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
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from flashlift.jax._sharding import with_first_dimension, without_dimension


@dataclass(frozen=True, eq=False)
class Tangent:
    """The derivative of a function with respect to some of its arguments."""

    name: str
    mesh: Any  # that was set where the function was called
    wanted: tuple[int, ...]  # the arguments that have tangents
    forward: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    """The tangents of the results. Of the arguments, and the tangents of some of these."""
    backward: Callable[[Sequence[Any], tuple[int, ...], Sequence[Any]], list[Any]]
    """Gradients. Of the arguments, of the places of the wanted gradients among the tangents, and of the gradients with
    respect to the results, None for zeros."""
    of_batch: Callable[[tuple[bool, ...], Sequence[Any]], tuple["Tangent", list[bool]]]
    """The derivative of the function over a batch, and which of its tangents are mapped. Of which of the arguments are
    mapped, over their first dimension, and of the arguments."""

    def __call__(
        self, arguments: Sequence[Any], tangents: Sequence[Any], results: Sequence[jax.core.ShapedArray]
    ) -> list[Any]:
        """The tangents of the results, which have these types."""
        return tangent_p.bind(*arguments, *tangents, of=self, count=len(arguments), results=tuple(results))


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
) -> tuple[list[Any], list[int | None]]:
    """As the derivative of one function, that of the batch.

    A batch of derivatives would give a gradient of a shared argument for each call, to be summed: all of them would
    take memory, and a gradient that the function defines itself would be computed of each, where JAX computes it of the
    sum.
    """
    mapped = [(one, dim) for one, dim in zip(operands, dims, strict=True) if dim is not None]
    size = mapped[0][0].shape[mapped[0][1]]
    split = next((axes for one, dim in mapped if (axes := without_dimension(jax.typeof(one), dim)[1])), None)
    of_tangents = dict(zip(of.wanted, dims[count:], strict=True))
    batched = tuple(dim is not None or of_tangents.get(i) is not None for i, dim in enumerate(dims[:count]))

    def placed(one: Any, dim: int | None, is_batched: bool) -> Any:
        if dim is not None or not is_batched:
            return one if dim is None else jnp.moveaxis(one, dim, 0)
        repeated = jnp.broadcast_to(one, (size, *one.shape))
        return repeated if split is None else jax.reshard(repeated, with_batch(jax.typeof(one)).sharding)

    def with_batch(kind: jax.core.ShapedArray) -> jax.core.ShapedArray:
        return with_first_dimension(kind, size, split)

    of_operands = (*batched, *(batched[i] for i in of.wanted))
    moved = [placed(*each) for each in zip(operands, dims, of_operands, strict=True)]
    of_all, are_mapped = of.of_batch(batched, moved[:count])
    types = [with_batch(one) if is_mapped else one for one, is_mapped in zip(results, are_mapped, strict=True)]
    return of_all(moved[:count], moved[count:], types), [0 if is_mapped else None for is_mapped in are_mapped]


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
