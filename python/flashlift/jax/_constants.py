"""Large arrays that a function reads from outside, such as a model's weights, as arguments of the function.

As text in its module, they would take minutes and several times their memory.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

# Bytes of an array; larger ones become arguments. (Lifting reads the range of a constant's numbers up to 65,536 of
# them: a mask can then be proved beside it.)
_LARGEST_IN_MODULE = 1 << 18


def with_large_constants(name: str, closed: ClosedJaxpr) -> tuple[list[Any], Callable]:
    """The large arrays, and the function of these and of its arguments. Integers and booleans stay in the module, since
    they may say which keys are masked."""
    closed = _without_large_jits(closed)
    count = sum(map(_is_large, closed.consts))

    def function(*given: Any) -> list[Any]:
        large = iter(given[:count])
        constants = [next(large) if _is_large(one) else one for one in closed.consts]
        return jax.core.eval_jaxpr(closed.jaxpr, constants, *given[count:])

    function.__name__ = name
    return [one for one in closed.consts if _is_large(one)], function


def _is_large(constant: Any) -> bool:
    return jnp.issubdtype(constant.dtype, jnp.floating) and constant.nbytes > _LARGEST_IN_MODULE


def _jitted(equation: JaxprEqn) -> ClosedJaxpr | None:
    """The function of a call of jax.jit that holds large arrays and says nothing about shardings."""
    called = equation.params.get("jaxpr")
    if equation.primitive.name not in ("jit", "pjit") or not isinstance(called, ClosedJaxpr):
        return None
    settings = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
    is_free = all(type(one).__name__ == "UnspecifiedValue" for one in settings)
    return called if is_free and not called.effects and _holds_large(called) else None


def _holds_large(closed: ClosedJaxpr) -> bool:
    return any(map(_is_large, closed.consts)) or any(_jitted(one) is not None for one in closed.jaxpr.eqns)


def _without_large_jits(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The function with the equations of such calls in their places, since a call has its arrays for itself."""
    if not any(_jitted(one) is not None for one in closed.jaxpr.eqns):
        return closed
    equations: list[JaxprEqn] = []
    added: dict[int, tuple[Var, Any]] = {}  # by the array's id: calls of one function share an argument

    def copy(equation: JaxprEqn, names: dict[Var, Any]) -> None:
        operands = [_renamed(one, names) for one in equation.invars]
        called = _jitted(equation)
        if called is None:
            results = [names.setdefault(one, one) for one in equation.outvars]
            equations.append(equation.replace(invars=operands, outvars=results))
            return
        inner: dict[Var, Any] = dict(zip(called.jaxpr.invars, operands, strict=True))
        for var, one in zip(called.jaxpr.constvars, called.consts, strict=True):
            inner[var] = added.setdefault(id(one), (Var(var.aval), one))[0]
        for each in called.jaxpr.eqns:
            # A function that is called twice has the same variables in both calls.
            inner |= {one: Var(one.aval) for one in each.outvars}
            copy(each, inner)
        names |= zip(equation.outvars, [_renamed(one, inner) for one in called.jaxpr.outvars], strict=True)

    names: dict[Var, Any] = {}
    for equation in closed.jaxpr.eqns:
        copy(equation, names)
    jaxpr = closed.jaxpr.replace(
        constvars=[*closed.jaxpr.constvars, *(var for var, _ in added.values())],
        eqns=equations,
        outvars=[_renamed(one, names) for one in closed.jaxpr.outvars],
    )
    return ClosedJaxpr(jaxpr, [*closed.consts, *(one for _, one in added.values())])


def _renamed(atom: Any, names: dict[Var, Any]) -> Any:
    return atom if isinstance(atom, Literal) else names.get(atom, atom)
