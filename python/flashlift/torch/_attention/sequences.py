"""Packed sequences as a mask_mod."""

from collections.abc import Callable

import torch

from flashlift.torch._run.modes import are_readable, makes_graph


def mask_mod_of_sequences(
    query: torch.Tensor, key: torch.Tensor, cu_seqlens: torch.Tensor | tuple[torch.Tensor, torch.Tensor]
) -> Callable:
    """Each query sees the keys of its own sequence. Positions after the last sequence see nothing and are not seen."""
    pair = cu_seqlens if isinstance(cu_seqlens, tuple) else (cu_seqlens, cu_seqlens)
    if len(pair) != 2:
        raise ValueError(f"cu_seqlens is a tuple of {len(pair)}; expected a tensor, or a pair for queries and keys")
    of_queries, of_keys = pair
    if query.size(0) != 1:
        raise ValueError(f"cu_seqlens packs sequences into a batch of 1, the query has {query.size(0)}")
    for one in (of_queries, of_keys):
        if not isinstance(one, torch.Tensor):
            raise TypeError(
                f"cu_seqlens is {type(one).__name__}; expected a torch.Tensor of integers, or a tuple of two"
            )
        if one.dim() != 1 or one.dtype not in (torch.int32, torch.int64) or one.shape != of_queries.shape:
            raise ValueError(
                f"cu_seqlens is {one.dtype} {list(one.shape)}; expected int32 or int64 of shape [sequences + 1], the "
                "same for queries and keys"
            )
        if one.device.type == "meta":
            raise ValueError(f"cu_seqlens is on meta, without content; expected it on {query.device}, as the query is")
    for one, length in ((of_queries, query.size(2)), (of_keys, key.size(2))):
        _check_values(one, length)
    q_sequence = _sequence_of_each(of_queries, query.size(2))
    kv_sequence = _sequence_of_each(of_keys, key.size(2))
    kv_sequence = torch.where(kv_sequence == of_keys.size(0), -1, kv_sequence)

    def same_sequence(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return q_sequence[q] == kv_sequence[kv]

    return same_sequence


def _check_values(cu_seqlens: torch.Tensor, length: int) -> None:
    """Checks values only if reading them is free: on a GPU the call would wait for all queued work."""
    if cu_seqlens.is_cuda or torch.compiler.is_dynamo_compiling() or makes_graph() or not are_readable([cu_seqlens]):
        return
    values = cu_seqlens.tolist()
    if values[:1] != [0] or values != sorted(values) or values[-1] > length:
        raise ValueError(
            f"cu_seqlens is {cu_seqlens.tolist()}; expected where each sequence begins and the last ends: 0 first, "
            f"none below the one before it, and at most {length} at the end"
        )


def _sequence_of_each(cu_seqlens: torch.Tensor, length: int) -> torch.Tensor:
    positions = torch.arange(length, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens.contiguous(), positions, right=True, out_int32=True)
