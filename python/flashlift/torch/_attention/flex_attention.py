"""flex_attention with PyTorch's signature and more arguments."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask

from flashlift.torch._attention import checks
from flashlift.torch._attention.attend import attend
from flashlift.torch._attention.block_mask import mask_mod_of
from flashlift.torch._attention.request import Request
from flashlift.torch._attention.sequences import mask_mod_of_sequences
from flashlift.torch._attention.unfused import attend_unfused, is_unfused, refuse_dropout
from flashlift.torch._mods import traced
from flashlift.torch._run.dispatch import LARGEST_SCALE

Mod = Callable[..., torch.Tensor]


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Mod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
    mask_mod: Mod | None = None,
    sinks: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    dropout_p: float | None = None,
    dropout_seed: int | torch.Tensor | None = None,
    deterministic: bool | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, AuxOutput]:
    """softmax(score_mod(scale q kᵀ) where mask_mod) v as one fused kernel, with PyTorch's signature and more
    arguments.

    query [batch, q_heads, q_len, depth], key [batch, kv_heads, kv_len, depth], value [batch, kv_heads, kv_len,
    value_depth]: float32, bfloat16 or float16, on the CPU or on one CUDA device, with any strides. float64, and depths
    above 256, are computed unfused. Grouped heads need enable_gqa, as in PyTorch.
    score_mod(score, b, h, q_idx, kv_idx) and mask_mod(b, h, q_idx, kv_idx) are functions of 0-dimensional tensors. They
    run once, are traced and compiled. Captured tensors may change with each call; only a new structure is traced again.
    If there is a mask, keys and values with a batch of 1 serve all queries.
    block_mask: PyTorch's BlockMask, with the semantics that it has when PyTorch compiles it: blocks that are not listed
    keep nothing, full blocks keep everything, and partial blocks keep what the mask_mod keeps. mask_mod: a mask that
    needs no block mask; with a block mask, both apply.
    sinks [q_heads] or [q_heads, n]: extra logits that take part in the softmax and have no value.
    cu_seqlens: sequences packed one after the other in a batch of 1, which do not see each other. Integers [sequences +
    1] in ascending order, from 0: the start of each sequence, and the end of the last. Pass a pair if keys have other
    lengths than queries. Mods receive positions in the whole packed sequence, as without cu_seqlens.
    dropout_p drops each key of each row with this probability; None and 0.0 drop none. dropout_seed, an integer of 64
    bits or a tensor of one, determines which. None draws it from torch's generator, so that torch.manual_seed and
    checkpointing work. With dropout_p=0.0, as in evaluation, a seed has no effect; without dropout_p it is an error.
    deterministic: every result, gradients of captured tensors included, has the same bits in every run, unless this is
    False: the gradient of the query may then have other bits, and a Hopper GPU computes the gradients of long
    sequences faster, up to a depth of 192. torch.use_deterministic_algorithms(True) overrides False.
    kernel_options: PyTorch's. BACKEND may be AUTO, TRITON, FLASH or TRITON_DECODE; all of them select the best kernel.
    return_aux: whether to also return lse and max_scores (natural logarithms, float32).

    A query with no key left gives 0, and an lse of -inf. It has gradients with respect to query, key, value, captured
    tensors of score_mod and sinks, through out and lse (max_scores has none). Second derivatives are refused.
    Raises PyTorch's errors for misuse; UnsupportedError (a NotImplementedError) for a mod that cannot be compiled.
    """
    checks.check_flags(enable_gqa=enable_gqa, return_lse=return_lse, deterministic=deterministic)
    checks.check_tensors(query, key, value, enable_gqa)
    checks.check_mods(score_mod, mask_mod)
    checks.check_batch(query, key, block_mask, mask_mod is not None)
    checks.check_scale(scale)
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = _autocast(query, key, value)
    dtype = query.dtype
    if not dtype == key.dtype == value.dtype:
        query, key, value = _in_widest_type(query, key, value)
    if kernel_options:
        checks.check_options(kernel_options)
    if sinks is not None:
        checks.check_sinks(sinks, query)
    checks.check_aux(return_lse, return_aux)
    of_blocks = trace_of_blocks = None
    if block_mask is not None:
        of_blocks, trace_of_blocks = mask_mod_of(block_mask, query, key)
        mask_mod = _both(of_blocks, mask_mod)
    if cu_seqlens is not None:
        mask_mod = _both(mask_mod_of_sequences(query, key, cu_seqlens), mask_mod)
    dropout_p, seed = _dropout(dropout_p, dropout_seed)
    aux = return_aux or AuxRequest(lse=return_lse)
    in_order = deterministic is None or bool(deterministic) or torch.are_deterministic_algorithms_enabled()
    max_scores: torch.Tensor | None
    if torch.compiler.is_dynamo_compiling():
        # Imported late: it imports TorchDynamo, which takes seconds.
        from flashlift.torch._attention.dynamo import flex_attention_in_graph

        request = Request(query, key, value, scale, sinks, aux.max_scores, dropout_p, seed, in_order)
        out, lse, max_scores = flex_attention_in_graph(request, score_mod, mask_mod)
        max_scores = max_scores if aux.max_scores else None
    elif is_unfused(query, value):
        if dropout_p:
            refuse_dropout(query, value)
        out, lse, max_scores = attend_unfused(query, key, value, score_mod, mask_mod, scale, sinks)
        max_scores = max_scores if aux.max_scores else None
    else:
        score_mod, scale = _with_scale(query, value, score_mod, scale)
        programs = [] if score_mod is None else [traced(score_mod, "score_mod")]
        if mask_mod is not None:
            known = trace_of_blocks if mask_mod is of_blocks else None
            programs.append(known or traced(mask_mod, "mask_mod"))
        request = Request(query, key, value, scale, sinks, aux.max_scores, dropout_p, seed, in_order)
        out, lse, max_scores = attend(request, programs)
    out = out.to(dtype)
    if return_aux is not None:
        return out, AuxOutput(lse=lse if aux.lse else None, max_scores=max_scores)
    return (out, lse) if return_lse else out


_MAX_SCALES = 8  # as constants of kernels for the same heads


@functools.lru_cache(maxsize=1024)
def _constant_scales(q_heads: int, depth: int, value_depth: int, dtype: torch.dtype) -> dict[float, None]:
    """The set of scales that were seen first. Callers add to it."""
    return {}


def _with_scale(
    query: torch.Tensor, value: torch.Tensor, score_mod: Mod | None, scale: float | None
) -> tuple[Mod | None, float | None]:
    """A score_mod and a scale with the same meaning. Kernels are fastest if the scale is a constant. But if many scales
    occur, such as a temperature that falls with each step, further ones become numbers that a score_mod captures."""
    if scale is None or not abs(scale) <= LARGEST_SCALE:  # call_kernel() refuses the latter
        return score_mod, scale
    scale = float(scale)
    constants = _constant_scales(query.size(1), query.size(-1), value.size(-1), query.dtype)
    if scale in constants or len(constants) < _MAX_SCALES:
        constants[scale] = None
        return score_mod, scale

    def over_scaled(
        score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor
    ) -> torch.Tensor:
        return score * scale if score_mod is None else score_mod(score * scale, b, h, q, kv)

    return over_scaled, 1.0


def _autocast(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """As PyTorch does: converts everything but float64 to autocast's type."""
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return [one.to(dtype) if one.is_floating_point() and one.dtype != torch.float64 else one for one in tensors]


def _in_widest_type(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """If keys and values have another type than the query, such as a cache of 8 bits, converts all to the type that
    holds all of them."""
    widest = functools.reduce(torch.promote_types, (one.dtype for one in tensors if one.dtype.itemsize > 1))
    return [one.to(widest) for one in tensors]


def _dropout(dropout_p: float | None, seed: int | torch.Tensor | None) -> tuple[float, torch.Tensor | None]:
    """The probability, and the seed as a tensor if that is not 0."""
    if dropout_p is None:
        if seed is not None:
            raise ValueError(
                "dropout_seed was given without dropout_p, so that nothing is dropped; expected both, or dropout_p=0.0 "
                "to drop nothing in this call"
            )
        return 0, None  # not 0.0, which Dynamo makes an input of under dynamic=True
    if not checks.is_number(dropout_p) or (isinstance(dropout_p, torch.Tensor) and dropout_p.numel() != 1):
        raise TypeError(f"dropout_p is {dropout_p!r}; expected a probability")
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout probability has to be at least 0 and less than 1, but got {dropout_p}")
    return (0, None) if dropout_p == 0.0 else (dropout_p, _seed(seed))


def _seed(seed: int | torch.Tensor | None) -> torch.Tensor:
    if seed is None:  # on the CPU for any device, since the host passes it to the kernel
        return torch.randint(2**63 - 1, (), dtype=torch.int64)
    if isinstance(seed, np.ndarray) and torch.compiler.is_dynamo_compiling():
        seed = torch.as_tensor(seed)  # Dynamo makes arrays of NumPy's numbers
    if isinstance(seed, torch.Tensor):
        if seed.numel() != 1 or seed.dtype.is_floating_point or seed.dtype.is_complex or seed.dtype == torch.bool:
            raise ValueError(f"dropout_seed is {seed.dtype} {list(seed.shape)}; expected one integer")
        return seed
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer, torch.SymInt)):
        raise TypeError(f"dropout_seed is {seed!r}; expected an integer of 64 bits, or a tensor of one")
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"dropout_seed is {seed}; expected an integer of 64 bits")
    return torch.full((), (int(seed) + 2**63) % 2**64 - 2**63, dtype=torch.int64)


def _both(one: Mod | None, other: Mod | None) -> Mod | None:
    if one is None or other is None:
        return one if other is None else other

    def both(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        copies = [index.clone() for index in (b, h, q, kv)]  # which it may change in place
        return one(*copies) & other(b, h, q, kv)

    return both
