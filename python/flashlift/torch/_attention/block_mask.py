"""PyTorch's BlockMask as a mask_mod.

What PyTorch's kernels do with a BlockMask: nothing is kept outside of the blocks that it lists; in a full block
everything is, without a question to its mask_mod; in a partial block what mask_mod keeps. The lists become a table of
which kind each block is, that the mask_mod made here reads. A block that is listed twice counts once, one that is both
partial and full is full, and one beyond the keys is none.

Where the lists are what create_block_mask makes of the mask_mod, they say nothing more, and the mask_mod alone is
faster: the kernels find blocks of their own size, and partial ones read no table. That is proved by intervals, once for
a BlockMask and what its mask_mod captures, and asked again where one of their tensors was changed in place.
"""

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.attention.flex_attention import BlockMask, noop_mask

from flashlift.torch._attention import checks
from flashlift.torch._internals import sliced_mask_mod_error
from flashlift.torch._mods import Leaves, traced
from flashlift.torch._program import Bounds
from flashlift.torch._run.contents import content_of, has_content
from flashlift.torch._run.kernels import block_kinds
from flashlift.torch._run.modes import are_readable, makes_graph, outside_of_modes
from flashlift.torch._trace import Trace

_NO_BLOCKS = 1 << 30  # PyTorch's block size for "no mask at all"
_PARTIAL, _FULL = 1, 2
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
    if block_mask.BLOCK_SIZE[0] >= _NO_BLOCKS and not sliced:
        checks.check_block_mask(query, key, block_mask)
        return own, None
    lists = _lists_of(block_mask)
    # While a graph is traced, decisions must not depend on the contents of tensors.
    known = None if torch.compiler.is_dynamo_compiling() or makes_graph() else _known(block_mask, lists)
    if sliced and (known is None or known.has_partial):
        raise RuntimeError(
            "Cannot use mask_mod from a sliced BlockMask: it has partial blocks, and slicing forgets the mask_mod that "
            "fills them. Assign block_mask.mask_mod, with its indices moved to the slice."
        )
    checks.check_block_mask(query, key, block_mask)
    if known is None:
        has_full = block_mask.full_kv_num_blocks is not None
        return _restricted(own, _kinds(block_mask), has_full, *block_mask.BLOCK_SIZE), None
    own = own if known.has_partial else None
    if own is None and not known.skips:
        return None, None
    if own is not None and query.dtype != torch.float64:
        found = traced(own, "mask_mod")
        if known.adds_nothing_to(found, query, block_mask):
            return own, found
    return _restricted(own, known.kinds, known.has_full, *block_mask.BLOCK_SIZE), None


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
        return (kind == _FULL) | ((kind == _PARTIAL) & own(b, h, q, kv))

    return full_or_own if has_full else listed_and_own


class _Snapshot:
    """A record of tensors, to check later whether they have changed. On a CPU it keeps their content, which NumPy and
    `.data` change without a trace; of tensors on a GPU, PyTorch's count of changes, unless they were made in inference
    mode, which counts none."""

    def __init__(self, tensors: Sequence[torch.Tensor | None]) -> None:
        self._tensors = [one for one in tensors if one is not None]
        self._states: list[Any] = [
            content_of(one) if one.is_cpu or one.is_inference() else one._version for one in self._tensors
        ]

    def holds(self, tensors: Sequence[torch.Tensor | None]) -> bool:
        given = [one for one in tensors if one is not None]
        if len(given) != len(self._tensors) or not all(map(operator.is_, given, self._tensors)):
            return False
        return all(map(_is_in_state, given, self._states))


def _is_in_state(tensor: torch.Tensor, state: Any) -> bool:
    return has_content(tensor, state) if isinstance(state, torch.Tensor) else tensor._version == state


def _is_comparable(tensor: torch.Tensor) -> bool:
    """Whether a snapshot of a captured tensor is possible, and takes little time."""
    is_dense = tensor.layout is torch.strided and not tensor.is_quantized
    return is_dense and (not tensor.is_cpu or tensor.numel() <= _MAX_COMPARED)


class _Verdict(NamedTuple):
    """Whether the lists add nothing to a mask_mod, given its captured values and the batch and heads of a call."""

    trace: Trace
    numbers: list[int | float]
    tensors: _Snapshot
    sizes: tuple[int, int]
    adds_nothing: bool


class _Known:
    """The content of a BlockMask's lists."""

    def __init__(self, block_mask: BlockMask, lists: Sequence[torch.Tensor | None]) -> None:
        self.layout = _layout(block_mask)
        with outside_of_modes():
            self.lists = _Snapshot(lists)
            _check_lists(block_mask)
            rows = -(-block_mask.seq_lengths[0] // block_mask.BLOCK_SIZE[0])
            self.kinds = _kinds(block_mask)[:, :, :rows]
            present = torch.stack([(self.kinds == kind).any() for kind in (0, _PARTIAL, _FULL)])
            self.skips, self.has_partial, self.has_full = present.tolist()
        self._verdicts: list[_Verdict] = []

    def adds_nothing_to(self, found: Traced, query: torch.Tensor, block_mask: BlockMask) -> bool:
        """Whether the mask stays the same without the lists. False if the mask_mod may read tensors that cannot be
        checked for changes."""
        if not self.skips and not self.has_full:
            return True
        trace, leaves = found
        sizes = (query.shape[0], query.shape[1])
        for one in self._verdicts:
            is_of_call = one.trace is trace and one.sizes == sizes and one.numbers == leaves.numbers
            if is_of_call and one.tensors.holds(leaves.tensors):
                return one.adds_nothing
        if trace.reads_unknown or not are_readable(leaves.tensors) or not all(map(_is_comparable, leaves.tensors)):
            return False
        adds_nothing = _is_proved(self.kinds, found, sizes, block_mask)
        verdict = _Verdict(trace, leaves.numbers, _Snapshot(leaves.tensors), sizes, adds_nothing)
        self._verdicts = [verdict, *self._verdicts[: _VERDICTS - 1]]
        return adds_nothing


_all_known: "weakref.WeakKeyDictionary[BlockMask, _Known]" = weakref.WeakKeyDictionary()


def _known(block_mask: BlockMask, lists: Sequence[torch.Tensor | None]) -> _Known | None:
    """The content of the mask's lists, stored with the mask. None if the lists cannot be read now."""
    found = _all_known.get(block_mask)
    if found is not None and found.lists.holds(lists) and found.layout == _layout(block_mask):
        return found
    if not are_readable(lists):
        return None
    found = _all_known[block_mask] = _Known(block_mask, lists)
    return found


def _layout(block_mask: BlockMask) -> tuple:
    return (*block_mask.BLOCK_SIZE, *block_mask.seq_lengths)


def _is_proved(kinds: torch.Tensor, found: Traced, sizes: tuple[int, int], block_mask: BlockMask) -> bool:
    """Whether it is proved that a mask_mod keeps nothing of the blocks that are not listed, and all of the full
    ones."""
    trace, leaves = found
    lengths = block_mask.seq_lengths
    text, sources = trace.program(Bounds(*sizes, *lengths))
    with outside_of_modes():
        captures = trace.tensors(sources, *leaves, device=kinds.device)
        if sum(one.numel() for one in captures) > _MAX_PROVED:
            return False
        kinds = kinds[: sizes[0], : sizes[1]].cpu()
        captures = [one.cpu() for one in captures]
        proved = block_kinds(text, captures, sizes, lengths, block_mask.BLOCK_SIZE, kinds.shape)
        return bool(((kinds == _PARTIAL) | (kinds == proved)).all())


def _lists_of(block_mask: BlockMask) -> list[torch.Tensor | None]:
    return [
        block_mask.kv_num_blocks,
        block_mask.kv_indices,
        block_mask.full_kv_num_blocks,
        block_mask.full_kv_indices,
    ]


def _check_lists(block_mask: BlockMask) -> None:
    """Refuses lists with which PyTorch's kernels would read memory out of bounds."""
    for name, counts, indices in (
        ("kv", block_mask.kv_num_blocks, block_mask.kv_indices),
        ("full_kv", block_mask.full_kv_num_blocks, block_mask.full_kv_indices),
    ):
        if counts is None or indices is None:
            continue
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


def _kinds(block_mask: BlockMask) -> torch.Tensor:
    """The kind of each block: uint8 [batch, heads, q blocks, kv blocks], 0 if it is not listed. BlockMask.to_dense
    takes the width of the lists as the number of blocks, but lists may be narrower, or wider after a cut."""
    columns = -(-block_mask.seq_lengths[1] // block_mask.BLOCK_SIZE[1])
    kinds = _marked(block_mask.kv_num_blocks, block_mask.kv_indices, columns).to(torch.uint8)
    if block_mask.full_kv_num_blocks is not None and block_mask.full_kv_indices is not None:
        full = _marked(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, columns)
        kinds = torch.where(full, _FULL, kinds).to(torch.uint8)
    return kinds[(None,) * (4 - kinds.dim())]


def _marked(counts: torch.Tensor, indices: torch.Tensor, columns: int) -> torch.Tensor:
    counts_here = torch.arange(indices.size(-1), device=indices.device) < counts.unsqueeze(-1)
    is_block = counts_here & (indices >= 0) & (indices < columns)
    places = torch.where(is_block, indices, columns).long()  # others get a column that is cut off
    table = places.new_zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool)
    return table.scatter(-1, places, True)[..., :columns]
