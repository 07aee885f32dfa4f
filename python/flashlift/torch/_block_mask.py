"""PyTorch's BlockMask as a mask_mod.

A mask that PyTorch made from a mask_mod is that mask_mod: which blocks it touches is found again from the program, without
anything of size N×N. Masks that were put together or cut out of block lists have no mask_mod that says so; theirs is read
off the lists.
"""

import weakref
from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import BlockMask, noop_mask

_SLICED = "_sliced_mask_mod_error"  # what PyTorch puts in place of the mask_mod of a sliced mask
_NO_BLOCKS = 1 << 30  # PyTorch's block size for "no mask at all"

_tables: "weakref.WeakKeyDictionary[BlockMask, tuple]" = weakref.WeakKeyDictionary()


def mask_mod_of(block_mask: BlockMask) -> Callable | None:
    """The mask_mod that says what a BlockMask says; None if it keeps everything.

    Raises RuntimeError, as PyTorch does, for a sliced mask with partial blocks: their content is lost.
    """
    mask_mod = block_mask.mask_mod
    sliced = getattr(mask_mod, "__name__", "") == _SLICED
    if not sliced and mask_mod is not noop_mask and mask_mod is not None:
        return mask_mod
    if block_mask.BLOCK_SIZE[0] >= _NO_BLOCKS:
        return None
    partial, listed = _table(block_mask)
    if sliced and partial:
        raise RuntimeError(
            "Cannot use mask_mod from a sliced BlockMask: it has partial blocks, and slicing forgets the mask_mod that "
            "fills them. Assign block_mask.mask_mod, with its indices moved to the slice."
        )
    if listed is None:
        return None
    return _from_table(listed, *block_mask.BLOCK_SIZE)


def _from_table(listed: torch.Tensor, q_block: int, kv_block: int) -> Callable:
    by_batch, by_head = listed.shape[0] > 1, listed.shape[1] > 1

    def in_listed_block(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        table = listed[b] if by_batch else listed[0]
        table = table[h] if by_head else table[0]
        return table[q // q_block, kv // kv_block]

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
    listed = block_mask.to_dense() != 0
    while listed.dim() < 4:
        listed = listed.unsqueeze(0)
    result = (partial, None if bool(listed.all()) else listed)
    _tables[block_mask] = (key, result)
    return result
