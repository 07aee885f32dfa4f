"""PyTorch: flex_attention with every score_mod, mask_mod and BlockMask that PyTorch's own function accepts.

from flashlift.torch import flex_attention

out = flex_attention(query, key, value, score_mod=score_mod, block_mask=block_mask)
out = flex_attention(query, key, value, mask_mod=lambda b, h, q, kv: q >= kv)    # needs no block mask
"""

import flashlift.torch._version  # noqa: F401, I001 - first, as it refuses versions that the rest does not know

from flashlift.torch._attention.flex_attention import flex_attention
from flashlift.torch._attention.sdpa import scaled_dot_product_attention
from flashlift.torch._trace import TraceError

__all__ = ["TraceError", "flex_attention", "scaled_dot_product_attention"]
