"""scaled_dot_product_attention with PyTorch's signature."""

import math
from typing import Any

import torch

from flashlift.torch._attention import checks
from flashlift.torch._attention.flex_attention import flex_attention


def _causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    return q >= kv


def _causal_bias(attn_mask: Any, query: torch.Tensor, key: torch.Tensor, is_causal: bool) -> Any:
    """The mask_mod of a torch.nn.attention.bias.CausalBias, None for another mask. That module is not imported: it
    imports TorchDynamo, which takes seconds."""
    if type(attn_mask).__name__ != "CausalBias":
        return None
    if is_causal:
        raise ValueError("CausalBias should not be used with is_causal=True; expected one of both")
    if attn_mask.variant.name == "UPPER_LEFT":
        return _causal
    q_len, kv_len = query.size(-2), key.size(-2)
    if (attn_mask.seq_len_q, attn_mask.seq_len_kv) != (q_len, kv_len):
        raise RuntimeError(
            f"attn_mask is a CausalBias of {attn_mask.seq_len_q} queries and {attn_mask.seq_len_kv} keys; expected "
            f"{q_len} and {kv_len}"
        )
    offset = kv_len - q_len
    return lambda b, h, q, kv: q + offset >= kv


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention as one fused kernel.

    query, key, value: [..., length, depth] of one type; the dimensions before these may have any number and must
    broadcast. The last of them is the heads; with enable_gqa, keys and values may have fewer. attn_mask: bool (True
    keeps) or floating point (added to the scores), broadcast to [..., heads, q_len, kv_len] without a copy; or a
    causal_upper_left or causal_lower_right of torch.nn.attention.bias. With is_causal both apply, as in PyTorch's
    kernels that accept both. A query with no key left gives 0.
    Raises PyTorch's errors if none of PyTorch's kernels accepts the arguments. Dropout draws its seed from torch's
    generator, but drops other keys than PyTorch.
    """
    checks.check_flags(is_causal=is_causal, enable_gqa=enable_gqa)
    bias = _causal_bias(attn_mask, query, key, is_causal)
    attn_mask = attn_mask if bias is None else None
    _check(query, key, value, attn_mask)
    lead, kv_heads = _broadcast(query, key, value, enable_gqa)
    if enable_gqa and key.size(-3) != value.size(-3):
        key, value = (one.repeat_interleave(kv_heads // one.size(-3), -3) for one in (key, value))
    batch, heads = lead[:-1], lead[-1] if lead else 1
    score_mod, mask_mod = None, _causal if is_causal else bias
    if attn_mask is not None:
        score_mod, mask_mod = _mods_of(attn_mask, (*lead, query.size(-2), key.size(-2)), is_causal)
    drops_all = dropout_p == 1.0
    out: Any = flex_attention(
        _flattened(query, batch, heads),
        _flattened(key, batch, kv_heads),
        _flattened(value, batch, kv_heads),
        score_mod,
        scale=scale,
        enable_gqa=bool(heads != kv_heads),  # a tensor to torch.jit.trace
        mask_mod=mask_mod,
        dropout_p=0 if drops_all else dropout_p,
    )
    out = out if len(lead) == 2 else out.reshape(*lead, *out.shape[2:])
    return out * 0.0 if drops_all else out


def _mods_of(attn_mask: torch.Tensor, full: tuple[int, ...], is_causal: bool) -> tuple:
    """attn_mask, broadcast to `full`, as a score_mod or a mask_mod."""
    try:
        mask = attn_mask.expand(full)
    except RuntimeError as error:
        raise RuntimeError(f"attn_mask is {list(attn_mask.shape)}, which does not broadcast to {list(full)}") from error
    heads = full[-3] if len(full) > 2 else 1
    mask = mask.reshape(math.prod(full[:-3]), heads, *full[-2:])
    if mask.dtype == torch.bool:

        def mask_mod(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
            return mask[b, h, q, kv] & (q >= kv) if is_causal else mask[b, h, q, kv]

        return None, mask_mod

    def score_mod(
        score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor
    ) -> torch.Tensor:
        return score + mask[b, h, q, kv]

    return score_mod, _causal if is_causal else None


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None) -> None:
    """The checks that PyTorch makes before it chooses a kernel. Under autocast, all types become one."""
    checks.check_dense(query=query, key=key, value=value)
    checks.check_device(query)
    if attn_mask is not None and not isinstance(attn_mask, torch.Tensor):
        raise TypeError(f"attn_mask is {type(attn_mask).__name__}; expected a torch.Tensor, or None")
    if attn_mask is not None:
        checks.check_strided(attn_mask=attn_mask)
    has_one_type = torch.is_autocast_enabled(query.device.type)
    if not has_one_type and not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            f"Expected query, key, and value to have the same dtype, but got query.dtype: {query.dtype} "
            f"key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if any(one.dim() < 2 for one in (query, key, value)):
        raise RuntimeError(
            "Expected query, key, and value to all be at least 2 dimensional, but got query.dim: "
            f"{query.dim()} key.dim: {key.dim()} and value.dim: {value.dim()} instead."
        )
    if attn_mask is not None and not has_one_type and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{attn_mask.dtype} and query.dtype: {query.dtype} instead."
        )


def _broadcast(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> tuple[tuple[int, ...], int]:
    """Broadcasts the dimensions before the last two. Also returns the number of heads of the keys and values that the
    kernel gets."""
    of_query, of_key, of_value = (tuple(one.shape[:-2]) for one in (query, key, value))
    kv_heads = 1
    if enable_gqa:
        is_per_head = 0 not in (len(of_query), len(of_key), len(of_value)) and 0 not in (of_key[-1], of_value[-1])
        if not is_per_head or of_query[-1] % of_key[-1] or of_query[-1] % of_value[-1]:
            raise RuntimeError(
                "Number of heads in key and value must divide the number of heads in query, but got shapes "
                f"{list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
            )
        kv_heads = of_key[-1] if of_key[-1] == of_value[-1] else of_query[-1]
        of_key, of_value = (*of_key[:-1], 1), (*of_value[:-1], 1)
    try:
        # torch's function takes longer than all else in a call of a few keys.
        are_same = _is_known(of_query) and of_query == of_key == of_value
        lead = of_query if are_same else tuple(torch.broadcast_shapes(of_query, of_key, of_value))
    except RuntimeError as error:
        raise RuntimeError(
            "The dimensions of query, key and value before the last two do not broadcast together: "
            f"{list(query.shape)}, {list(key.shape)} and {list(value.shape)}; fewer heads need enable_gqa=True"
        ) from error
    shares_one_head = all(len(one) == 0 or one[-1] == 1 for one in (of_key, of_value))
    return lead, kv_heads if shares_one_head or len(lead) == 0 else lead[-1]


def _is_known(sizes: tuple[int, ...]) -> bool:
    return all(type(size) is int for size in sizes)


def _flattened(tensor: torch.Tensor, batch: tuple[int, ...], heads: int) -> torch.Tensor:
    if tensor.dim() == 4 and _is_known(tensor.shape[:2]) and tensor.shape[:2] == (*batch, heads):
        return tensor
    return tensor.expand(*batch, heads, *tensor.shape[-2:]).reshape(math.prod(batch), heads, *tensor.shape[-2:])
