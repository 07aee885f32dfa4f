"""jax.export of functions with attention."""

from jax import export

from flashlift.jax._register import BACKWARD_TARGET, TARGET, register


def export_checks() -> list[export.DisabledSafetyCheck]:
    """The value of `disabled_checks` for `jax.export.export(function, disabled_checks=...)` of a function with
    attention.

    The custom calls keep their meaning in later versions (docs/custom_call.md). A process that runs an exported
    function must call flashlift.jax.register() first.
    """
    register()
    return [export.DisabledSafetyCheck.custom_call(target) for target in (TARGET, BACKWARD_TARGET)]
