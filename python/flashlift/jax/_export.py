"""jax.export of functions with attention."""

from jax import export

from flashlift.jax._register import BACKWARD_TARGET, TARGET, register


def export_checks() -> list[export.DisabledSafetyCheck]:
    """What `jax.export.export(function, disabled_checks=...)` is to be told for attention to be exported.

    The custom calls keep their meaning from version to version (docs/custom_call.md). A process that runs what was
    exported calls flashlift.jax.register() first.
    """
    register()
    return [export.DisabledSafetyCheck.custom_call(target) for target in (TARGET, BACKWARD_TARGET)]
