"""PyTorch's BlockMask, and packed sequences, as a mask_mod.

A mask that PyTorch made from a mask_mod is that mask_mod: which blocks it touches is found again from the program, without
anything of size N×N. Masks that were put together or cut out of block lists have no mask_mod that says so; theirs is read
off the lists.
"""

import weakref
from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import BlockMask, _sliced_mask_mod_error, noop_mask

_NO_BLOCKS = 1 << 30  # PyTorch's block size for "no mask at all"

_tables: "weakref.WeakKeyDictionary[BlockMask, tuple]" = weakref.WeakKeyDictionary()


def mask_mod_of(block_mask: BlockMask) -> Callable | None:
    """The mask_mod that says what a BlockMask says; None if it keeps everything.

    Raises RuntimeError, as PyTorch does, for a sliced mask with partial blocks: their content is lost.
    """
    if not hasattr(block_mask, "mask_mod"):
        raise AttributeError(
            f"block_mask is {type(block_mask).__name__}, expected a BlockMask: a function goes into mask_mod=, or through "
            "create_block_mask; a tensor is read by a mask_mod"
        )
    mask_mod = block_mask.mask_mod
    sliced = mask_mod is _sliced_mask_mod_error
    if not sliced and mask_mod is not noop_mask and mask_mod is not None:
        return mask_mod
    if block_mask.BLOCK_SIZE[0] >= _NO_BLOCKS:
        return None
    if torch.compiler.is_dynamo_compiling():  # no content of a tensor decides what is compiled
        partial, listed = True, _listed(block_mask)
    else:
        partial, listed = _table(block_mask)
    if sliced and partial:
        raise RuntimeError(
            "Cannot use mask_mod from a sliced BlockMask: it has partial blocks, and slicing forgets the mask_mod that "
            "fills them. Assign block_mask.mask_mod, with its indices moved to the slice."
        )
    if listed is None:
        return None
    return _from_table(listed, *block_mask.BLOCK_SIZE)


def mask_mod_of_sequences(
    query: torch.Tensor, key: torch.Tensor, cu_seqlens: torch.Tensor | tuple[torch.Tensor, torch.Tensor]
) -> Callable:
    """Each query sees the keys of its own sequence. What lies behind the last one sees nothing and is not seen."""
    of_queries, of_keys = cu_seqlens if isinstance(cu_seqlens, tuple) else (cu_seqlens, cu_seqlens)
    if query.size(0) != 1:
        raise ValueError(f"cu_seqlens packs sequences into a batch of 1, the query has {query.size(0)}")
    for one in (of_queries, of_keys):
        if one.dim() != 1 or one.dtype not in (torch.int32, torch.int64) or one.shape != of_queries.shape:
            raise ValueError(
                f"cu_seqlens is {one.dtype} {list(one.shape)}; expected int32 or int64 of shape [sequences + 1], the same "
                "for queries and keys"
            )
    q_sequence = _sequence_of_each(of_queries, query.size(2))
    kv_sequence = _sequence_of_each(of_keys, key.size(2))
    kv_sequence = torch.where(kv_sequence == of_keys.size(0), -1, kv_sequence)

    def same_sequence(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return q_sequence[q] == kv_sequence[kv]

    return same_sequence


def _sequence_of_each(cu_seqlens: torch.Tensor, length: int) -> torch.Tensor:
    positions = torch.arange(length, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens.contiguous(), positions, right=True, out_int32=True)


def _from_table(listed: torch.Tensor, q_block: int, kv_block: int) -> Callable:
    """One indexing of a tensor that the mod captures as it is: a table of another size is then no other program."""
    by_batch, by_head = listed.shape[0] > 1, listed.shape[1] > 1
    listed = listed if by_head else listed[:, 0]
    listed = listed if by_batch else listed[0]

    def in_listed_block(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        block = (q // q_block, kv // kv_block)
        if by_batch:
            return listed[b, h, *block] if by_head else listed[b, *block]
        return listed[h, *block] if by_head else listed[block]

    return in_listed_block


def _table(block_mask: BlockMask) -> tuple[bool, torch.Tensor | None]:
    """Whether any block is partial, and which blocks are listed: bool [batch, heads, q blocks, kv blocks], or None if all.

    Kept with the mask, whose lists are taken not to change in place.
    """
    found = _tables.get(block_mask)
    key = (block_mask.kv_indices, block_mask.full_kv_indices)
    if found is not None and found[0][0] is key[0] and found[0][1] is key[1]:
        return found[1]
    partial = bool((block_mask.kv_num_blocks > 0).any())
    listed = _listed(block_mask)
    result = (partial, None if bool(listed.all()) else listed)
    _tables[block_mask] = (key, result)
    return result


def _listed(block_mask: BlockMask) -> torch.Tensor:
    """BlockMask.to_dense takes the width of the lists for the number of blocks, but lists may be narrower."""
    columns = -(-block_mask.seq_lengths[1] // block_mask.BLOCK_SIZE[1])
    listed = _from_lists(block_mask.kv_num_blocks, block_mask.kv_indices, columns)
    if block_mask.full_kv_num_blocks is not None:
        listed = listed | _from_lists(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, columns)
    return listed[(None,) * (4 - listed.dim())]


def _from_lists(counts: torch.Tensor, indices: torch.Tensor, columns: int) -> torch.Tensor:
    in_list = torch.arange(indices.size(-1), device=indices.device) < counts.unsqueeze(-1)
    places = torch.where(in_list, indices, columns).long()  # the rest goes into a column that is cut off
    table = places.new_zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool)
    return table.scatter(-1, places, True)[..., :columns]
