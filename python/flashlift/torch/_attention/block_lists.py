"""The lists of a BlockMask, as a table of which kind each block is.

A server makes a BlockMask for each step, mostly with lists that were seen before: what small lists mean is kept by
their content, and found again for another BlockMask.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask

from flashlift.torch._run.contents import Key, keys_of
from flashlift.torch._run.modes import outside_of_modes

PARTIAL, FULL = 1, 2
_KEPT = 256  # contents of small lists
_MAX_KEPT = 1 << 16  # blocks of one table: narrow lists may be those of a large one

Lists = Sequence[torch.Tensor]  # counts and indices of partial blocks, and those of full ones, if there are any


class Layout(NamedTuple):
    """What a BlockMask says beside its lists."""

    q_block: int
    kv_block: int
    q_len: int
    kv_len: int

    @property
    def rows(self) -> int:
        return -(-self.q_len // self.q_block)

    @property
    def columns(self) -> int:
        return -(-self.kv_len // self.kv_block)

    @staticmethod
    def of(block_mask: BlockMask) -> "Layout":
        return Layout(*block_mask.BLOCK_SIZE, *block_mask.seq_lengths)


class Blocks(NamedTuple):
    """The content of lists. The table belongs to no BlockMask: nothing may change it."""

    kinds: torch.Tensor  # as kinds_of() makes it, without rows beyond the queries
    skips: bool  # whether some blocks are not listed
    has_partial: bool
    has_full: bool


def lists_of(block_mask: BlockMask) -> Lists:
    partial = block_mask.kv_num_blocks, block_mask.kv_indices
    counts, indices = block_mask.full_kv_num_blocks, block_mask.full_kv_indices
    return partial if counts is None or indices is None else (*partial, counts, indices)


def read_lists(lists: Lists, layout: Layout) -> Blocks:
    """Reads lists that are readable. Raises ValueError for lists with which PyTorch's kernels would read memory out of
    bounds."""
    with outside_of_modes():
        keys = keys_of(lists) if lists[0].numel() * layout.columns <= _MAX_KEPT else None
        return _read(lists, layout) if keys is None else _read_small(keys, layout, lists[0].device)


@functools.lru_cache(maxsize=_KEPT)
def _read_small(keys: tuple[Key, ...], layout: Layout, device: torch.device) -> Blocks:
    blocks = _read([one.tensor() for one in keys], layout)
    return blocks._replace(kinds=blocks.kinds.to(device))


def _read(lists: Lists, layout: Layout) -> Blocks:
    for i, name in zip(range(0, len(lists), 2), ("kv", "full_kv"), strict=False):
        _check(name, lists[i], lists[i + 1])
    kinds = kinds_of(lists, layout)[:, :, : layout.rows]
    present = torch.stack([(kinds == kind).any() for kind in (0, PARTIAL, FULL)])
    return Blocks(kinds, *present.tolist())


def _check(name: str, counts: torch.Tensor, indices: torch.Tensor) -> None:
    if counts.shape != indices.shape[:-1]:
        raise ValueError(
            f"block_mask.{name}_num_blocks is {list(counts.shape)} and {name}_indices {list(indices.shape)}; "
            "expected one count for each row of indices"
        )
    in_list = torch.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
    is_wrong = [(counts < 0).any(), (counts > indices.shape[-1]).any(), (in_list & (indices < 0)).any()]
    if any(torch.stack(is_wrong).tolist()):
        raise ValueError(
            f"block_mask.{name}_num_blocks and {name}_indices are no lists of blocks: expected counts from 0 to "
            f"{indices.shape[-1]}, and that many indices that are not negative in each row"
        )


def kinds_of(lists: Lists, layout: Layout) -> torch.Tensor:
    """The kind of each block: uint8 [batch, heads, q blocks, kv blocks], 0 if it is not listed. BlockMask.to_dense
    takes the width of the lists as the number of blocks, but lists may be narrower, or wider after a cut."""
    kinds = _marked(lists[0], lists[1], layout.columns).to(torch.uint8)
    if len(lists) == 4:
        kinds = torch.where(_marked(lists[2], lists[3], layout.columns), FULL, kinds).to(torch.uint8)
    return kinds[(None,) * (4 - kinds.dim())]


def _marked(counts: torch.Tensor, indices: torch.Tensor, columns: int) -> torch.Tensor:
    counts_here = torch.arange(indices.size(-1), device=indices.device) < counts.unsqueeze(-1)
    is_block = counts_here & (indices >= 0) & (indices < columns)
    places = torch.where(is_block, indices, columns).long()  # others get a column that is cut off
    table = places.new_zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool)
    return table.scatter(-1, places, True)[..., :columns]
