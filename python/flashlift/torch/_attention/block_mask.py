"""PyTorch's BlockMask as a mask_mod.

What PyTorch's kernels do with a BlockMask: nothing is kept outside of the blocks that it lists; in a full block
everything is, without a question to its mask_mod; in a partial block what mask_mod keeps. The lists become a table of
which kind each block is, that the mask_mod made here reads. A block that is listed twice counts once, one that is both
partial and full is full, and one beyond the keys is none.

Where the lists are what create_block_mask makes of the mask_mod, they say nothing more, and the mask_mod alone is
faster: the kernels find blocks of their own size, and partial ones read no table. That is proved by intervals, once for
a BlockMask and what its mask_mod captures, and asked again where one of their tensors was changed in place.
"""

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, noop_mask

from flashlift.torch._attention import checks
from flashlift.torch._attention.block_lists import FULL, PARTIAL, Layout, Lists, kinds_of, lists_of, read_lists
from flashlift.torch._internals import sliced_mask_mod_error
from flashlift.torch._mods import Leaves, traced
from flashlift.torch._program import Bounds
from flashlift.torch._run.contents import Content, Key, content_of, has_content, keys_of
from flashlift.torch._run.kernels import block_kinds
from flashlift.torch._run.modes import are_readable, makes_graph, outside_of_modes
from flashlift.torch._trace import Trace

_NO_BLOCKS = 1 << 30  # PyTorch's block size for "no mask at all"
_MAX_PROVED = 1 << 24  # elements of captured tensors: intervals usually have no useful bounds of larger ones
_MAX_COMPARED = 1 << 18  # elements of captured tensors on a CPU, which take 15 to 150 µs of one core
_VERDICTS = 4  # of one BlockMask: batches, heads and captured tensors may differ between calls

Mod = Callable[..., torch.Tensor]
Traced = tuple[Trace, Leaves]


def mask_mod_of(block_mask: BlockMask, query: torch.Tensor, key: torch.Tensor) -> tuple[Mod | None, Traced | None]:
    """The mask_mod that is equal to a BlockMask, None if it keeps everything; and the trace, if it is known.

    Raises RuntimeError, as PyTorch does, for a sliced mask with partial blocks, whose content is lost; and ValueError
    for a mask of other lengths than the query and the key.
    """
    if not isinstance(block_mask, BlockMask):
        raise AttributeError(
            f"block_mask is {type(block_mask).__name__}, expected a BlockMask: a function goes into mask_mod=, or "
            "through create_block_mask; a tensor is read by a mask_mod"
        )
    own = None if block_mask.mask_mod is noop_mask else block_mask.mask_mod
    sliced = own is not None and own is sliced_mask_mod_error
    checks.check_block_mask_device(query, block_mask)
    if block_mask.BLOCK_SIZE[0] >= _NO_BLOCKS and not sliced:
        checks.check_block_mask(query, key, block_mask)
        return own, None
    lists, layout = lists_of(block_mask), Layout.of(block_mask)
    # While a graph is traced, decisions must not depend on the contents of tensors.
    known = None if torch.compiler.is_dynamo_compiling() or makes_graph() else _known(block_mask, lists, layout)
    if sliced and (known is None or known.blocks.has_partial):
        raise RuntimeError(
            "Cannot use mask_mod from a sliced BlockMask: it has partial blocks, and slicing forgets the mask_mod that "
            "fills them. Assign block_mask.mask_mod, with its indices moved to the slice."
        )
    checks.check_block_mask(query, key, block_mask)
    if known is None:
        return _restricted(own, kinds_of(lists, layout), len(lists) == 4, *layout[:2]), None
    kinds, skips, has_partial, has_full = known.blocks
    own = own if has_partial else None
    if own is None and not skips:
        return None, None
    if own is not None and query.dtype != torch.float64:
        found = traced(own, "mask_mod")
        if known.adds_nothing_to(found, query):
            return own, found
    return _restricted(own, kinds, has_full, *layout[:2]), None


def _restricted(own: Mod | None, kinds: torch.Tensor, has_full: bool, q_block: int, kv_block: int) -> Mod:
    """Keeps what a table of the blocks' kinds keeps, and in partial blocks what `own` keeps. The table is indexed once,
    and captured as it is, so that a table of another size does not need another program."""
    by_batch, by_head = kinds.shape[0] > 1, kinds.shape[1] > 1
    kinds = kinds if by_head else kinds[:, 0]
    kinds = kinds if by_batch else kinds[0]

    def kind_of(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        block = (q // q_block, kv // kv_block)
        if by_batch:
            return kinds[(b, h) + block] if by_head else kinds[(b,) + block]
        return kinds[(h,) + block] if by_head else kinds[block]

    def listed(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return kind_of(b, h, q, kv) != 0

    if own is None:
        return listed

    def listed_and_own(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (kind_of(b, h, q, kv) != 0) & own(b, h, q, kv)

    def full_or_own(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        kind = kind_of(b, h, q, kv)
        return (kind == FULL) | ((kind == PARTIAL) & own(b, h, q, kv))

    return full_or_own if has_full else listed_and_own


class _Snapshot:
    """A record of tensors, to check later whether they have changed. On a CPU it keeps their content, which NumPy and
    `.data` change without a trace; of tensors on a GPU, PyTorch's count of changes, unless they were made in inference
    mode, which counts none."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._states: list[Content | int] = [
            content_of(one) if one.is_cpu or one.is_inference() else one._version for one in tensors
        ]

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        if len(tensors) != len(self._tensors) or not all(map(operator.is_, tensors, self._tensors)):
            return False
        return all(map(_is_in_state, tensors, self._states))


def _is_in_state(tensor: torch.Tensor, state: Content | int) -> bool:
    return tensor._version == state if isinstance(state, int) else has_content(tensor, state)


def _is_comparable(tensor: torch.Tensor) -> bool:
    """Whether a snapshot of a captured tensor is possible, and takes little time."""
    is_dense = tensor.layout is torch.strided and not tensor.is_quantized
    return is_dense and (not tensor.is_cpu or tensor.numel() <= _MAX_COMPARED)


class _Verdict(NamedTuple):
    """Whether the lists add nothing to a mask_mod, given its captured values and the batch and heads of a call."""

    trace: Trace
    numbers: list[int | float | str]
    tensors: _Snapshot
    sizes: tuple[int, int]
    adds_nothing: bool


class _Known:
    """What is known of a BlockMask."""

    def __init__(self, lists: Lists, layout: Layout) -> None:
        self.lists, self.layout = _Snapshot(lists), layout
        self.blocks = read_lists(lists, layout)
        self._verdicts: list[_Verdict] = []

    def adds_nothing_to(self, found: Traced, query: torch.Tensor) -> bool:
        """Whether the mask stays the same without the lists. False if the mask_mod may read tensors that cannot be
        checked for changes."""
        if not self.blocks.skips and not self.blocks.has_full:
            return True
        trace, leaves = found
        sizes = (query.shape[0], query.shape[1])
        numbers = [one or repr(one) for one in leaves.numbers]  # 0.0 and -0.0 are equal
        for one in self._verdicts:
            is_of_call = one.trace is trace and one.sizes == sizes and one.numbers == numbers
            if is_of_call and one.tensors.holds(leaves.tensors):
                return one.adds_nothing
        if trace.reads_unknown or not are_readable(leaves.tensors) or not all(map(_is_comparable, leaves.tensors)):
            return False
        adds_nothing = _is_proved(self.blocks.kinds, found, sizes, self.layout)
        verdict = _Verdict(trace, numbers, _Snapshot(leaves.tensors), sizes, adds_nothing)
        self._verdicts = [verdict, *self._verdicts[: _VERDICTS - 1]]
        return adds_nothing


_all_known: "weakref.WeakKeyDictionary[BlockMask, _Known]" = weakref.WeakKeyDictionary()


def _known(block_mask: BlockMask, lists: Lists, layout: Layout) -> _Known | None:
    """What is known of the mask, stored with it. None if the lists cannot be read now."""
    found = _all_known.get(block_mask)
    if found is not None and found.layout == layout and found.lists.holds(lists):
        return found
    if not are_readable(lists):
        return None
    found = _all_known[block_mask] = _Known(lists, layout)
    return found


def _is_proved(kinds: torch.Tensor, found: Traced, sizes: tuple[int, int], layout: Layout) -> bool:
    """Whether it is proved that a mask_mod keeps nothing of the blocks that are not listed, and all of the full
    ones."""
    trace, leaves = found
    text, sources = trace.program(Bounds(*sizes, layout.q_len, layout.kv_len))
    with outside_of_modes():
        captures = trace.tensors(sources, *leaves, device=kinds.device)
        if sum([one.numel() for one in captures]) > _MAX_PROVED:
            return False
        keys = keys_of((kinds, *captures))
        if keys is None:
            return _is_proved_for(text, [one.cpu() for one in captures], sizes, layout, kinds.cpu())
        return _is_proved_for_small(text, keys, sizes, layout)


@functools.lru_cache(maxsize=256)
def _is_proved_for_small(text: str, keys: tuple[Key, ...], sizes: tuple[int, int], layout: Layout) -> bool:
    """By content, so that it is found again for another BlockMask whose mask_mod captures equal values."""
    kinds, *captures = [one.tensor() for one in keys]
    return _is_proved_for(text, captures, sizes, layout, kinds)


def _is_proved_for(
    text: str, captures: Sequence[torch.Tensor], sizes: tuple[int, int], layout: Layout, kinds: torch.Tensor
) -> bool:
    kinds = kinds[: sizes[0], : sizes[1]]
    lengths, blocks = (layout.q_len, layout.kv_len), (layout.q_block, layout.kv_block)
    proved = block_kinds(text, captures, sizes, lengths, blocks, kinds.shape)
    return bool(((kinds == PARTIAL) | (kinds == proved)).all())
