"""Tunes all attention that a JAX function runs."""

from collections.abc import Callable
from typing import Any

import jax

from flashlift._errors import InvalidArgumentError
from flashlift._tune import Tuned
from flashlift._tune import tune as tune_problem
from flashlift.jax._register import BACKWARD_TARGET, TARGET


def tune(
    function: Callable[..., Any],
    *args: Any,
    seconds: float = 2.0,
    policy: str | None = None,
    progress: bool | None = None,
    **kwargs: Any,
) -> list[Tuned]:
    """Measures the candidates for each of Flashlift's calls in a function, forward and backward, and stores the
    fastest. flashlift.tune explains seconds (for each call), policy and progress.

    function: any function, also a jitted, fused or differentiated one. It is traced with args and kwargs, which are
    arrays or jax.ShapeDtypeStructs, and is not run. Functions that JAX compiles after that use the results; functions
    that are already compiled do not change.
    """
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    device = "cuda" if jax.default_backend() in ("gpu", "cuda") else "cpu"
    found = []
    for problem, backward, layout in _calls(jitted.lower(*args, **kwargs).compiler_ir("stablehlo")):
        found.append(
            tune_problem(
                problem,
                device=device,
                backward=backward,
                layout=layout,
                seconds=seconds,
                policy=policy,
                progress=progress,
            )
        )
    if not found:
        raise InvalidArgumentError(
            "the function runs no attention of Flashlift's; expected a call of flashlift.jax, or what fuse() returns"
        )
    return found


def _calls(module: Any) -> dict[tuple[str, bool, str], None]:
    """For each call: the problem, whether it is a backward pass, and its layout. Each appears once, in order."""
    calls: dict[tuple[str, bool, str], None] = {}

    def visit(operation: Any) -> None:
        attributes = operation.attributes
        target = attributes["call_target_name"].value if "call_target_name" in attributes else ""
        if target in (TARGET, BACKWARD_TARGET) and "mhlo.backend_config" in attributes:
            config = attributes["mhlo.backend_config"]
            layout = "bshd" if "q_dims" in config and config["q_dims"].value.index("s") == 1 else "bhsd"
            calls[config["problem"].value, target == BACKWARD_TARGET, layout] = None
        for region in operation.regions:
            for block in region:
                for inner in block:
                    visit(inner.operation)

    visit(module.operation)
    return calls
