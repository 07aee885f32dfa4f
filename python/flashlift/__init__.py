"""Flashlift: finds attention wherever it is written, and runs it as one fused kernel.

    attention = flashlift.compile("attn b1 h8 s1024 d64 f32 causal")
    out = attention(q, k, v)                     # numpy, torch or JAX arrays, [batch, heads, length, depth]

    fused = flashlift.jax.fuse(model)            # a JAX function with its attention found and fused
    result = flashlift.stablehlo.fuse(text)      # the same for a StableHLO module

Import `flashlift.jax` and `flashlift.stablehlo` separately: they load JAX and MLIR.
"""

from flashlift._attention import Attention, BoundAttention, BoundBackward, Gradients, compile
from flashlift._errors import (
    FlashliftError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)
from flashlift._library import version
from flashlift._precompile import PrecompiledKernel, precompile
from flashlift._problem import Problem
from flashlift._tune import TuneCandidate, Tuned, Tuning, tune

__all__ = [
    "Attention",
    "BoundAttention",
    "BoundBackward",
    "FlashliftError",
    "Gradients",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "PrecompiledKernel",
    "Problem",
    "TuneCandidate",
    "Tuned",
    "Tuning",
    "UnsupportedError",
    "compile",
    "precompile",
    "tune",
    "__version__",
]


def __getattr__(name: str) -> str:
    # Read from the library on demand, because loading it takes most of an import's time.
    if name == "__version__":
        return version()
    raise AttributeError(f"module 'flashlift' has no attribute {name!r}")
