"""Attention in float64, for tests to compare with."""

import numpy as np


def attention(q, k, v, *, scale=None, bias=None, mask=None):
    """softmax(scale q kᵀ + bias where mask) v on [batch, heads, length, depth], heads grouped; returns (out, lse)."""
    q, k, v = (np.asarray(array, np.float64) for array in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(array, group, axis=1) for array in (k, v))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bhkd->bhqd", weights / total, v), (top + np.log(total))[..., 0]
