"""Registers Flashlift's custom-call handlers with JAX."""

import functools

import jax

from flashlift._library import load

TARGET = "flashlift.attention"
BACKWARD_TARGET = "flashlift.attention_backward"

# The handlers: the target's name, JAX's name of the platform, and the prefix of its symbols.
_HANDLERS = (
    (TARGET, "cpu", "flashlift_xla_attention"),
    (TARGET, "CUDA", "flashlift_xla_attention_cuda"),
    (BACKWARD_TARGET, "cpu", "flashlift_xla_attention_backward"),
    (BACKWARD_TARGET, "CUDA", "flashlift_xla_attention_backward_cuda"),
)


@functools.cache
def register() -> None:
    """Registers the handlers of `flashlift.attention` and of its backward pass, for CPUs and NVIDIA GPUs.

    fuse() and attention() call this themselves. Call it for modules that were fused elsewhere, for example by
    `flashlift fuse`.
    """
    library = load("flashlift_xla")
    for target, platform, symbol in _HANDLERS:
        stages = {
            stage: jax.ffi.pycapsule(getattr(library, f"{symbol}_{stage}")) for stage in ("instantiate", "execute")
        }
        jax.ffi.register_ffi_target(target, stages, platform=platform, api_version=1)
