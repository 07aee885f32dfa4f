"""jax.experimental.jet, which has no rule for fused attention. Without these errors, it raises a KeyError, or reports a
leaked tracer."""

from collections.abc import Sequence
from typing import Any, NoReturn

from jax.extend.core import Primitive

from flashlift._errors import UnsupportedError

_RULES: dict[Primitive, Any] = {}
_TRACERS: tuple[type, ...] = ()
try:
    from jax.experimental import jet

    _RULES, _TRACERS = jet.jet_rules, (jet.JetTracer,)
except ImportError:
    pass


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError(
        "jax.experimental.jet was asked for the Taylor series of fused attention, and can only follow JAX's own "
        "operations; expected flashlift.jax.fuse around it, as in fuse(lambda x: jet(function, (x,), series)), with "
        "attention in jax.numpy, or jax.jvp of jax.jvp"
    )


def refuse_jet_of(*primitives: Primitive) -> None:
    for primitive in primitives:
        _RULES[primitive] = _refuse


def check_no_jet(arguments: Sequence[Any]) -> None:
    """For functions with custom derivatives, which jet does not ask for a rule."""
    if any(isinstance(one, _TRACERS) for one in arguments):
        _refuse()
