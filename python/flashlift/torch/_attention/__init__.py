"""Attention as PyTorch's users call it: flex_attention and sdpa, what they refuse (checks), masks made into mask_mods
(block_mask, sequences), the call itself (request, attend, unfused), and torch.compile (dynamo)."""
