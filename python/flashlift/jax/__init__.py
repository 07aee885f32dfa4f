"""Flashlift in JAX.

    fused = flashlift.jax.fuse(model)            # found in what the function does, and fused
    out = fused(params, tokens)
    print(fused.report)                          # what was found, and why the rest was left alone

    out = flashlift.jax.attention(q, k, v, "causal softcap=30")      # asked for by name
    out = flashlift.jax.flash_attention(q, k, v, causal=True, logits_soft_cap=30.0, softmax_aux=sinks)
    out = flashlift.jax.dot_product_attention(q, k, v, is_causal=True)      # jax.nn's, by its own signature

On CPUs and NVIDIA GPUs; elsewhere a fused function runs as it was, and says so.
"""

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
