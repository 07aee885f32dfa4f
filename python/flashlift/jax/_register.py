"""Flashlift's custom-call handler, made known to JAX."""

import functools

import jax

from flashlift._library import load

TARGET = "flashlift.attention"


@functools.cache
def register() -> None:
    """Registers the handler of `flashlift.attention` for the CPU.

    fuse() and attention() do this themselves; it is for modules that were fused elsewhere, such as by
    `flashlift fuse`.
    """
    library = load("flashlift_xla")
    stages = {
        "instantiate": jax.ffi.pycapsule(library.flashlift_xla_attention_instantiate),
        "execute": jax.ffi.pycapsule(library.flashlift_xla_attention_execute),
    }
    jax.ffi.register_ffi_target(TARGET, stages, platform="cpu", api_version=1)
