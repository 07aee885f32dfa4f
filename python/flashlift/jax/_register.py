"""Flashlift's custom-call handler, made known to JAX."""

import functools

import jax

from flashlift._library import load

TARGET = "flashlift.attention"


# Where the handler runs: JAX's name of the platform, and what its symbols are called.
_PLATFORMS = {"cpu": "flashlift_xla_attention", "CUDA": "flashlift_xla_attention_cuda"}


@functools.cache
def register() -> None:
    """Registers the handler of `flashlift.attention` for the CPU and for NVIDIA GPUs.

    fuse() and attention() do this themselves; it is for modules that were fused elsewhere, such as by
    `flashlift fuse`.
    """
    library = load("flashlift_xla")
    for platform, symbol in _PLATFORMS.items():
        stages = {
            stage: jax.ffi.pycapsule(getattr(library, f"{symbol}_{stage}")) for stage in ("instantiate", "execute")
        }
        jax.ffi.register_ffi_target(TARGET, stages, platform=platform, api_version=1)
