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


def dropout_keeps(rate, seed, batch, heads, q_len, kv_len):
    """Which keys dropout keeps, bool [batch, heads, q_len, kv_len], as docs/problem.md defines it: Philox4x32-7."""
    b, h, q, kv = np.ogrid[:batch, :heads, :q_len, :kv_len]
    words = [(kv // 64 * 16 + kv % 16), q, h, b]
    words = [word.astype(np.uint64) for word in np.broadcast_arrays(*words)]
    low = np.uint64(0xFFFFFFFF)
    keys = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(7):
        first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [
            second >> np.uint64(32) ^ words[1] ^ keys[0],
            second & low,
            first >> np.uint64(32) ^ words[3] ^ keys[1],
            first & low,
        ]
        keys = [(key + np.uint64(step)) & low for key, step in zip(keys, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return np.choose(np.broadcast_to(kv // 16 % 4, words[0].shape), words) >= round(rate * 2.0**32)
