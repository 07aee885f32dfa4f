"""Flashlift in JAX.

    fused = flashlift.jax.fuse(model)            # finds the attention in a function and fuses it
    out = fused(params, tokens)
    print(fused.report)                          # what was found, and why the rest stays unfused

    out = flashlift.jax.attention(q, k, v, "causal softcap=30")      # one attention, with features as words
    out = flashlift.jax.flash_attention(q, k, v, causal=True, logits_soft_cap=30.0, softmax_aux=sinks)
    out = flashlift.jax.dot_product_attention(q, k, v, is_causal=True)      # the signature of jax.nn's function

It works on CPUs and NVIDIA GPUs. On other platforms a fused function runs unchanged, and its report says so.
"""

import flashlift.jax._version  # noqa: F401, I001 - first, as it refuses versions that the rest does not know

from flashlift.jax._adapters import equinox_attention_fn, flax_attention_fn, haiku_attention_fn
from flashlift.jax._attention import attention
from flashlift.jax._config import (
    AutotunePolicy,
    BwdParams,
    ConfigCache,
    ConfigSelectorChain,
    FlashAttentionConfig,
    FwdParams,
    Invocation,
    PersistentCache,
    Tuner,
    forward_autotune_only,
    overlay_cache,
    policy_override,
)
from flashlift.jax._dot_product_attention import dot_product_attention
from flashlift.jax._executor import Executor, FlashAttention, create_default_executor
from flashlift.jax._export import export_checks
from flashlift.jax._flash_attention import flash_attention
from flashlift.jax._fuse import FusedFunction, Report, fuse
from flashlift.jax._mask_info import MaskInfo, MaskSharding
from flashlift.jax._register import register
from flashlift.jax._tune import tune

__all__ = [
    "AutotunePolicy",
    "BwdParams",
    "ConfigCache",
    "ConfigSelectorChain",
    "Executor",
    "FlashAttention",
    "FlashAttentionConfig",
    "FusedFunction",
    "FwdParams",
    "Invocation",
    "MaskInfo",
    "MaskSharding",
    "PersistentCache",
    "Report",
    "Tuner",
    "attention",
    "create_default_executor",
    "dot_product_attention",
    "equinox_attention_fn",
    "export_checks",
    "flash_attention",
    "flax_attention_fn",
    "forward_autotune_only",
    "fuse",
    "haiku_attention_fn",
    "overlay_cache",
    "policy_override",
    "register",
    "tune",
]
