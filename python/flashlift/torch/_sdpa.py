"""scaled_dot_product_attention in PyTorch's signature."""

import torch

from flashlift.torch._flex_attention import flex_attention


def _causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    return q >= kv


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

    query, key, value: [..., heads, length, depth] with any number of leading dimensions. attn_mask: bool (True is kept)
    or floating point (added to the scores), broadcast to [..., heads, q_len, kv_len] without being copied. A query with
    no key left gives 0.
    Raises RuntimeError for attn_mask beside is_causal, as PyTorch does. Dropout draws its seed from torch's generator;
    which keys it leaves out is not what PyTorch's own leaves out.
    """
    if attn_mask is not None and is_causal:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
    lead = query.shape[:-3]
    given = query.dim()
    if given < 3:  # no heads
        query, key, value = (one.unsqueeze(0) for one in (query, key, value))
    batch = query.shape[:-3].numel()
    flat = [one.reshape(batch, *one.shape[-3:]) for one in (query, key, value)]
    score_mod = mask_mod = None
    if attn_mask is not None:
        full = (*query.shape[:-1], key.shape[-2])
        mask = attn_mask.expand(full).reshape(batch, *full[-3:])
        if mask.dtype == torch.bool:

            def mask_mod(b, h, q, kv):  # noqa: ANN001, ANN202
                return mask[b, h, q, kv]
        else:

            def score_mod(score, b, h, q, kv):  # noqa: ANN001, ANN202
                return score + mask[b, h, q, kv]
    elif is_causal:
        mask_mod = _causal
    out = flex_attention(*flat, score_mod, scale=scale, enable_gqa=enable_gqa, mask_mod=mask_mod, dropout_p=dropout_p)
    return out.squeeze(0).squeeze(0) if given < 3 else out.reshape(*lead, *out.shape[1:])
