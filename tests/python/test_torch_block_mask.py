"""BlockMasks with the semantics of PyTorch's compiled kernels: no key is kept outside of the listed blocks, all keys in
full ones, and those that mask_mod keeps in partial ones. The reference is a dense mask that is computed from the lists
one by one. PyTorch's compiled code for a CPU gives the same, but takes half a minute to compile, and without
torch.compile PyTorch does not read the lists.
"""

import functools
import random

import numpy as np
import pytest
import torch
import torch_mods
from flashlift.torch import flex_attention
from flashlift.torch._attention.block_mask import mask_mod_of
from flashlift.torch._internals import sliced_mask_mod_error
from test_torch_flex import plane, tensors, unfused
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, noop_mask
from torch.utils.flop_counter import FlopCounterMode


def dense(block_mask, mask_mod, sizes):
    """bool [batch, heads, q_len, kv_len]. mask_mod: the mask's mask_mod, which the mask itself may have lost."""
    batch, heads, q_len, kv_len = sizes
    q_block, kv_block = block_mask.BLOCK_SIZE
    keep = torch.zeros(sizes, dtype=torch.bool)
    own = torch.ones(sizes, dtype=torch.bool) if mask_mod is None else plane(mask_mod, None, sizes)
    pairs = [(block_mask.kv_num_blocks, block_mask.kv_indices, own)]
    if block_mask.full_kv_num_blocks is not None:
        pairs.append((block_mask.full_kv_num_blocks, block_mask.full_kv_indices, torch.ones_like(own)))
    for counts, indices, content in pairs:
        counts, indices = counts.expand(batch, heads, -1), indices.expand(batch, heads, -1, -1)
        for b in range(batch):
            for h in range(heads):
                for row in range(-(-q_len // q_block)):
                    for column in indices[b, h, row, : counts[b, h, row]].tolist():
                        block = (
                            slice(row * q_block, (row + 1) * q_block),
                            slice(column * kv_block, (column + 1) * kv_block),
                        )
                        keep[b, h][block] |= content[b, h][block]
    return keep


def reference(q, k, v, keep, score_mod=None):
    return unfused(q, k, v, score_mod, lambda b, h, i, j: keep[b, h, i, j])[0]


def gradients(attend, given):
    given = [one.detach().requires_grad_() for one in given]
    out = attend(*given)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape).cos()
    return [out, *torch.autograd.grad((out * weights).sum(), given)]


def check(found, given, keep, score_mod=None):
    """score_mod: a function of the captured tensors that follow q, k and v in the arguments."""

    def truth(q, k, v, *captured):
        return reference(q, k, v, keep, score_mod(*captured) if score_mod else None)

    for one, true in zip(found, gradients(truth, [one.double() for one in given]), strict=True):
        torch.testing.assert_close(one.double(), true, atol=2e-5, rtol=1e-4)


def assert_right(q, k, v, block_mask, mask_mod, attend=flex_attention):
    keep = dense(block_mask, mask_mod, (*q.shape[:3], k.shape[2]))
    check(gradients(lambda *given: attend(*given, block_mask=block_mask, enable_gqa=True), (q, k, v)), (q, k, v), keep)


def lists_of(kinds, generator=None):
    """(counts, indices) of partial blocks and of full ones, from a table of 1 and 2: in any order, with any numbers
    after the counted ones."""
    found = []
    for kind in (1, 2):
        listed = kinds == kind
        noise = torch.rand(listed.shape, generator=generator)
        indices = (listed + noise).argsort(dim=-1, descending=True).int()
        counts = listed.sum(-1).int()
        behind = torch.arange(kinds.shape[-1]) >= counts[..., None]
        found += [counts, torch.where(behind, torch.randint(-5, 99, indices.shape, generator=generator).int(), indices)]
    return found


def listed(kinds, block, mask_mod, lengths):
    return BlockMask.from_kv_blocks(
        *lists_of(kinds), BLOCK_SIZE=block, mask_mod=mask_mod, seq_lengths=lengths, compute_q_blocks=False
    )


def top_k_blocks(batch, heads, rows, columns, count):
    """The best blocks of each row, and its own, as block-sparse attentions choose them."""
    best = torch.rand(batch, heads, rows, columns).topk(count, dim=-1).indices
    kinds = torch.zeros(batch, heads, rows, columns, dtype=torch.int).scatter(-1, best, 1)
    return kinds | torch.eye(rows, columns, dtype=torch.int)


@pytest.mark.parametrize("block", [32, (16, 64)], ids=str)
@pytest.mark.parametrize("compute_q_blocks", [True, False])
def test_chosen_blocks_with_a_mask_inside(block, compute_q_blocks):
    q, k, v = tensors(torch.float32, (2, 4, 2, 192, 192, 32, 16))
    q_block, kv_block = (block, block) if isinstance(block, int) else block
    kinds = top_k_blocks(2, 4, 192 // q_block, 192 // kv_block, 2)
    lists = lists_of(kinds)[:2]
    if compute_q_blocks:  # PyTorch's own transposition takes no garbage
        lists = [kinds.sum(-1).int(), kinds.argsort(dim=-1, descending=True).int()]
    mask = BlockMask.from_kv_blocks(
        *lists, BLOCK_SIZE=block, mask_mod=torch_mods.causal, seq_lengths=(192, 192), compute_q_blocks=compute_q_blocks
    )
    assert_right(q, k, v, mask, torch_mods.causal)


def test_full_blocks_are_not_asked():
    q, k, v = tensors(torch.float32, (1, 2, 2, 70, 90, 16, 16))
    kinds = torch.tensor([[2, 1, 0], [0, 2, 1], [1, 1, 2]])[None, None]
    mask = listed(kinds, 32, torch_mods.causal, (70, 90))
    assert_right(q, k, v, mask, torch_mods.causal)
    only_full = listed(kinds.clamp(max=1) * 2, 32, torch_mods.causal, (70, 90))
    assert_right(q, k, v, only_full, torch_mods.causal)
    all_full = listed(torch.full_like(kinds, 2), 32, torch_mods.causal, (70, 90))
    assert torch.equal(flex_attention(q, k, v, block_mask=all_full), flex_attention(q, k, v))
    nothing = listed(kinds * 0, 32, torch_mods.causal, (70, 90))
    assert torch.equal(flex_attention(q, k, v, block_mask=nothing), torch.zeros_like(q))


def mask_of_documents():
    documents = torch.arange(128) // 40

    def mask_mod(b, h, i, j):
        return documents[i] == documents[j]

    return documents, mask_mod, create_block_mask(mask_mod, 1, 1, 128, 128, device="cpu", BLOCK_SIZE=32)


def test_what_changes_between_calls():
    q, k, v = tensors(torch.float32, (1, 2, 2, 128, 128, 16, 16))
    documents, mask_mod, mask = mask_of_documents()
    assert_right(q, k, v, mask, mask_mod)
    documents[:] = 0  # the lists are those of before, as they are in PyTorch
    assert_right(q, k, v, mask, mask_mod)
    mask.kv_num_blocks[:, :, 1] = 0
    assert_right(q, k, v, mask, mask_mod)
    mask.full_kv_indices.flip(-1)
    mask.mask_mod = torch_mods.causal
    assert_right(q, k, v, mask, torch_mods.causal)
    mask.kv_num_blocks = mask.kv_num_blocks * 0
    assert_right(q, k, v, mask, torch_mods.causal)
    with torch.inference_mode():  # such tensors count no changes
        mask = create_block_mask(torch_mods.causal, 1, 1, 128, 128, device="cpu", BLOCK_SIZE=32)
        for _ in range(2):
            keep = dense(mask, torch_mods.causal, (1, 2, 128, 128))
            torch.testing.assert_close(
                flex_attention(q, k, v, block_mask=mask), reference(q, k, v, keep), atol=1e-5, rtol=1e-5
            )
            mask.kv_num_blocks[:, :, 2] = 0
    assert_right(q, k, v, mask, torch_mods.causal)


def test_changes_that_pytorch_does_not_count():
    q, k, v = tensors(torch.float32, (1, 2, 2, 128, 128, 16, 16))
    documents, mask_mod, mask = mask_of_documents()
    assert_right(q, k, v, mask, mask_mod)
    documents.numpy()[:] = 0  # the lists are those of before, as they are in PyTorch
    assert_right(q, k, v, mask, mask_mod)
    mask.kv_num_blocks.numpy()[:, :, 1] = 0
    assert_right(q, k, v, mask, mask_mod)
    mask.full_kv_num_blocks.data.zero_()
    assert_right(q, k, v, mask, mask_mod)
    with FlopCounterMode(display=False):
        mask.kv_num_blocks.data[:, :, 2] = 0
        assert_right(q, k, v, mask, mask_mod)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_zeros_that_change_their_sign(dtype):
    q, k, v = tensors(torch.float32, (1, 2, 2, 128, 128, 16, 16))
    zeros = torch.zeros(2, dtype=dtype)

    def mask_mod(b, h, i, j):
        return (1 / zeros.real > 0)[h] & (i >= j)

    mask = create_block_mask(mask_mod, 1, 1, 128, 128, device="cpu", BLOCK_SIZE=32)
    assert_right(q, k, v, mask, mask_mod)
    zeros.neg_()
    assert_right(q, k, v, mask, mask_mod)


def test_changes_of_large_captured_tensors():
    q, k, v = tensors(torch.float32, (1, 2, 2, 640, 640, 16, 16))
    table = torch.ones(640, 640, dtype=torch.bool).tril()

    def mask_mod(b, h, i, j):
        return table[i, j]

    mask = create_block_mask(mask_mod, 1, 1, 640, 640, device="cpu", BLOCK_SIZE=64)
    assert_right(q, k, v, mask, mask_mod)
    table.numpy()[:, 100:] = False
    assert_right(q, k, v, mask, mask_mod)


@torch.no_grad()
def test_what_is_found_holds_with_nan(monkeypatch):
    q, k, v = tensors(torch.float32, (1, 2, 2, 128, 128, 16, 16))
    limits = torch.tensor([[torch.nan, 1.0]] * 200).T  # with gaps in memory

    def mask_mod(b, h, i, j):
        return (limits[1, i] > 0) & (limits[1, j] > 0) & (i >= j)

    mask = create_block_mask(mask_mod, 1, 1, 128, 128, device="cpu", BLOCK_SIZE=32)
    flex_attention(q, k, v, block_mask=mask)
    monkeypatch.setattr("flashlift.torch._attention.block_mask.block_kinds", None)
    assert mask_mod_of(mask, q, k)[0] is mask_mod


@pytest.mark.parametrize("convert", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, torch.Tensor.to_mkldnn])
def test_captured_tensors_that_are_not_dense(convert):
    q, k, v = tensors(torch.float32, (1, 2, 2, 128, 128, 16, 16))
    documents = convert((torch.arange(128.0) // 40).view(2, 64))

    def mask_mod(b, h, i, j):
        ids = documents.to_dense().reshape(-1)
        return (ids[i] == ids[j]) & (i >= j)

    mask = create_block_mask(mask_mod, 1, 1, 128, 128, device="cpu", BLOCK_SIZE=32)
    for _ in range(2):
        assert_right(q, k, v, mask, mask_mod)


WINDOW = 9


def window_that_changes(b, h, i, j):
    return (i - j).abs() < WINDOW


@torch.no_grad()
def test_numbers_that_change(monkeypatch):
    """The mask_mod reads a number that has changed since the lists were made."""
    q, k, v = tensors(torch.float32, (1, 1, 1, 128, 128, 16, 16))
    monkeypatch.setitem(globals(), "WINDOW", 9)
    mask = create_block_mask(window_that_changes, 1, 1, 128, 128, device="cpu", BLOCK_SIZE=16)
    for window in (9, 120, 9, 3):
        monkeypatch.setitem(globals(), "WINDOW", window)
        keep = dense(mask, window_that_changes, (1, 1, 128, 128))
        torch.testing.assert_close(
            flex_attention(q, k, v, block_mask=mask), reference(q, k, v, keep), atol=1e-5, rtol=1e-5
        )


def prefix(b, h, i, j):
    return (i >= j) | (j < 20)


DOCUMENTS = (torch.arange(160) // 37).repeat(2, 1)  # whole blocks, to which PyTorch 2.9 cuts a mask of 150


def documents(b, h, i, j):
    return (DOCUMENTS[b, i] == DOCUMENTS[b, j]) & (i >= j)


@pytest.mark.parametrize(
    "make", [lambda m: m, lambda m: m.to("cpu"), lambda m: m._adjust(100, 150)], ids=["made", "moved", "cut"]
)
@pytest.mark.parametrize(
    "mod",
    [torch_mods.causal, torch_mods.window(40), prefix, documents],
    ids=["causal", "window", "prefix", "documents"],
)
@torch.no_grad()
def test_lists_that_say_no_more_cost_nothing(mod, make):
    mask = make(create_block_mask(mod, 2, 2, 150, 150, device="cpu", BLOCK_SIZE=(32, 16)))
    q, k, v = tensors(torch.float32, (2, 2, 2, *mask.seq_lengths, 16, 16))
    assert mask_mod_of(mask, q, k)[0] is mod
    assert torch.equal(flex_attention(q, k, v, block_mask=mask), flex_attention(q, k, v, mask_mod=mod))


@torch.no_grad()
def test_lists_of_a_batch_that_others_differ_from():
    """create_block_mask without B calls mask_mod for batch 0 only; its lists apply to all batches."""
    q, k, v = tensors(torch.float32, (2, 2, 2, 128, 128, 16, 16))
    mod = lambda b, h, i, j: i + 50 * b + 20 * h >= j
    mask = create_block_mask(mod, None, None, 128, 128, device="cpu", BLOCK_SIZE=16)
    torch.testing.assert_close(
        flex_attention(q, k, v, block_mask=mask),
        reference(q, k, v, dense(mask, mod, (2, 2, 128, 128))),
        atol=1e-5,
        rtol=1e-5,
    )


@torch.no_grad()
def test_beside_another_mask_and_in_float64():
    q, k, v = tensors(torch.float32, (1, 2, 2, 96, 96, 16, 16))
    kinds = torch.tensor([[2, 1, 0], [0, 2, 1], [1, 1, 2]])[None, None]
    mask = listed(kinds, 32, torch_mods.causal, (96, 96))
    keep = dense(mask, torch_mods.causal, (1, 2, 96, 96))
    near = (torch.arange(96)[:, None] - torch.arange(96)).abs() < 30
    beside = flex_attention(q, k, v, block_mask=mask, mask_mod=lambda b, h, i, j: (i - j).abs() < 30)
    torch.testing.assert_close(beside, reference(q, k, v, keep & near), atol=1e-5, rtol=1e-5)
    doubles = [one.double() for one in (q, k, v)]
    torch.testing.assert_close(flex_attention(*doubles, block_mask=mask), reference(*doubles, keep))


def test_slices():
    q, k, v = tensors(torch.float32, (1, 2, 2, 64, 128, 16, 16))
    whole = create_block_mask(torch_mods.causal, 2, 4, 128, 128, device="cpu", BLOCK_SIZE=32)
    whole.kv_num_blocks[1, 2:, 2] = 0
    part = whole[1:, 2:, 2:]
    part.seq_lengths = (64, 128)
    if sliced_mask_mod_error is None:  # PyTorch 2.9 keeps all of a partial block
        assert_right(q, k, v, part, None)
    else:
        with pytest.raises(RuntimeError, match="sliced BlockMask"):
            flex_attention(q, k, v, block_mask=part)
    part.mask_mod = lambda b, h, i, j: i + 64 >= j
    assert_right(q, k, v, part, part.mask_mod)


@pytest.mark.parametrize("made_inside", [False, True])
def test_in_a_graph(made_inside):
    """The lists are arguments of the graph, or made in it: their content is unknown when it is compiled."""
    torch._dynamo.reset()
    q, k, v = tensors(torch.float32, (2, 4, 2, 96, 96, 16, 16))

    def attend(q, k, v, block_mask, enable_gqa):
        if made_inside:
            lists = (
                block_mask.kv_num_blocks,
                block_mask.kv_indices,
                block_mask.full_kv_num_blocks,
                block_mask.full_kv_indices,
            )
            block_mask = BlockMask.from_kv_blocks(
                *lists, BLOCK_SIZE=32, mask_mod=torch_mods.causal, seq_lengths=(96, 96), compute_q_blocks=False
            )
        return flex_attention(q, k, v, block_mask=block_mask, enable_gqa=enable_gqa)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    made = create_block_mask(torch_mods.causal, 1, 1, 96, 96, device="cpu", BLOCK_SIZE=32)
    assert_right(q, k, v, made, torch_mods.causal, compiled)
    for seed in range(2):
        kinds = torch.randint(3, (1, 1, 3, 3), generator=torch.Generator().manual_seed(seed))
        mask = listed(kinds, 32, torch_mods.causal, (96, 96))
        assert_right(q, k, v, mask, torch_mods.causal, compiled)


def offset_by(count):
    return lambda b, h, i, j: i + count >= j


POSITION = torch.zeros((), dtype=torch.long)


def after_position(b, h, i, j):
    return i + POSITION >= j


class Offset:
    def __init__(self, count):
        self.count = count

    def __call__(self, b, h, i, j):
        return i + self.count >= j


def filled(count):
    POSITION.numpy()[...] = count
    return after_position


STEPS = {
    "closure": offset_by,
    "default": lambda count: lambda b, h, i, j, count=count: i + count >= j,
    "partial": lambda count: functools.partial(lambda count, b, h, i, j: i + count >= j, count),
    "object": Offset,
    "tensor": lambda count: offset_by(torch.tensor(count)),
    "view": lambda count: offset_by(torch.arange(count, count + 2)[0]),
    "numpy": lambda count: offset_by(np.int64(count)),
    "in_place": filled,
}


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("inference", [False, True])
def test_another_block_mask_for_each_step(make, inference):
    """Lists and captured values were seen before, each alone and together; in some steps the lists are those of another
    position than the mask_mod's."""
    q, k, v = tensors(torch.float32, (1, 2, 2, 1, 96, 16, 16))
    for count, listed_count in [(40, 40), (41, 41), (40, 40), (80, 80), (40, 80), (80, 40), (40, 40), (40, 3), (3, 40)]:
        with torch.inference_mode(inference):
            mask = create_block_mask(offset_by(listed_count), 1, 1, 1, 96, device="cpu", BLOCK_SIZE=32)
            mask.mask_mod = make(count)
            keep = dense(mask, offset_by(count), (1, 2, 1, 96))
            out = flex_attention(q, k, v, block_mask=mask)
        torch.testing.assert_close(out, reference(q, k, v, keep), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_what_was_seen_before_is_not_read_again(monkeypatch):
    q, k, v = tensors(torch.float32, (1, 2, 2, 1, 640, 16, 16))
    starts = torch.arange(640) // 100

    def step(count):
        documents = starts.clone()
        mod = lambda b, h, i, j: (i + count >= j) & (documents[i + count] == documents[j])
        mask = create_block_mask(mod, 1, 1, 1, 640, device="cpu", BLOCK_SIZE=32)
        return mask_mod_of(mask, q, k)[0] is mod

    assert all(map(step, (500, 600, 520)))
    monkeypatch.setattr("flashlift.torch._attention.block_lists._read", None)
    monkeypatch.setattr("flashlift.torch._attention.block_mask.block_kinds", None)
    assert all(map(step, (500, 600, 520)))


def test_lists_of_the_same_bytes():
    """Another shape, or type, of the lists, or other lengths and blocks."""
    q, k, v = tensors(torch.float32, (1, 1, 1, 64, 64, 16, 16))

    def check(counts, indices, block=32, length=64):
        counts, indices = counts[None, None], indices[None, None]
        options = {"BLOCK_SIZE": block, "seq_lengths": (length, length), "compute_q_blocks": False}
        mask = BlockMask.from_kv_blocks(counts, indices, mask_mod=torch_mods.causal, **options)
        given = [one[:, :, :length] for one in (q, k, v)]
        keep = dense(mask, torch_mods.causal, (1, 1, length, length))
        out = flex_attention(*given, block_mask=mask)
        torch.testing.assert_close(out, reference(*given, keep), atol=1e-5, rtol=1e-5)

    counts, indices = torch.tensor([1, 2], dtype=torch.int32), torch.tensor([[0, 1], [1, 0]], dtype=torch.int32)
    check(counts, indices)
    check(counts, indices, (32, 16))
    check(counts, indices, 24, 48)
    both = torch.tensor([[0, 1], [0, 2]], dtype=torch.int16)
    check(torch.tensor([1], dtype=torch.int32), both.reshape(1, 4), (64, 16))
    check(torch.tensor([1], dtype=torch.int32), both.view(torch.int32).reshape(1, 2), (64, 16))
    check(torch.tensor([1, 0], dtype=torch.int16), both)


LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


@pytest.mark.parametrize(
    "words, change",
    [
        ("counts from 0 to 3", lambda mask: mask.kv_num_blocks.fill_(4)),
        ("counts from 0 to 3", lambda mask: mask.full_kv_num_blocks.fill_(-1)),
        ("not negative", lambda mask: mask.kv_indices.fill_(-1)),
        ("one count for each row", lambda mask: setattr(mask, "kv_num_blocks", mask.kv_num_blocks[..., :2])),
        (
            "2 rows of 32 queries",
            lambda mask: [setattr(mask, name, getattr(mask, name)[:, :, :2]) for name in LISTS],
        ),
    ],
)
def test_lists_that_are_none(words, change):
    q, k, v = tensors(torch.float32, (1, 2, 2, 96, 96, 16, 16))
    mask = create_block_mask(torch_mods.causal, 1, 1, 96, 96, device="cpu", BLOCK_SIZE=32)
    change(mask)
    with pytest.raises(ValueError, match=words):
        flex_attention(q, k, v, block_mask=mask)


class Drawn:
    """A random BlockMask, and its meaning."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        choose = self.random.choice
        kv_heads = choose([1, 1, 2])
        self.q_len, self.kv_len = self.random.randint(1, 150), self.random.randint(1, 150)
        self.shape = (choose([1, 2, 3]), kv_heads * choose([1, 2, 3]), kv_heads, self.q_len, self.kv_len, 16, 8)
        self.blocks = choose([16, 32, 128]), choose([16, 48, 64])
        self.mod = self.draw_mod()
        self.mask = choose([self.made_of_the_mod, self.made_of_lists, self.made_of_lists, self.changed])()

    def draw_mod(self):
        batch, heads = self.shape[:2]
        number = self.random.randint(1, 60)
        segments = torch.randint(3, (batch, max(self.q_len, self.kv_len)), generator=self.generator).sort()[0]
        table = torch.rand(heads, self.q_len, self.kv_len, generator=self.generator) > 0.3
        return self.random.choice(
            [
                None,
                torch_mods.causal,
                torch_mods.causal_window(number),
                lambda b, h, i, j: i + number * h >= j,
                lambda b, h, i, j: segments[b, i] == segments[b, j],
                lambda b, h, i, j: table[h, i, j],
                lambda b, h, i, j: (i * 7 + j * 3 + b) % 5 != 0,
            ]
        )

    def made_of_the_mod(self):
        batch = self.random.choice([None, self.shape[0]])
        heads = self.random.choice([None, self.shape[1]])
        mod = self.mod or noop_mask
        return create_block_mask(mod, batch, heads, self.q_len, self.kv_len, device="cpu", BLOCK_SIZE=self.blocks)

    def made_of_lists(self):
        rows, columns = -(-self.q_len // self.blocks[0]), -(-self.kv_len // self.blocks[1])
        shape = (self.random.choice([1, self.shape[0]]), self.random.choice([1, self.shape[1]]), rows, columns)
        kinds = torch.randint(3, shape, generator=self.generator)
        lists = lists_of(kinds, self.generator)
        if self.random.random() < 0.3:  # no full ones, and lists no wider than they have to be
            width = max(int(lists[0].max()), 1)
            lists = [lists[0], lists[1][..., :width]]
        options = {"mask_mod": self.mod, "seq_lengths": (self.q_len, self.kv_len), "compute_q_blocks": False}
        return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=self.blocks, **options)

    def changed(self):
        """Made of the mod, then some blocks taken away, made full, or cut off."""
        mask = self.made_of_the_mod()
        what = self.random.choice(["fewer", "all_full", "cut", "slice"])
        if what == "fewer":
            mask.kv_num_blocks //= 2
        elif what == "all_full":
            mask.full_kv_num_blocks, mask.full_kv_indices = mask.kv_num_blocks.clone(), mask.kv_indices.clone()
        elif what == "cut":
            mask.q_indices = None  # PyTorch cannot transpose all that it cuts
            self.q_len, self.kv_len = self.random.randint(1, self.q_len), self.random.randint(1, self.kv_len)
            mask = mask._adjust(self.q_len, self.kv_len)
        else:
            mask = mask[:, -1:]
            mask.mask_mod = self.mod or noop_mask
        return mask


@pytest.mark.parametrize("part", range(4))
def test_drawn(part):
    """With a bias that has a gradient, and sometimes with a mask_mod as well."""
    for seed in range(part, 44, 4):
        drawn = Drawn(seed)
        q, k, v = tensors(torch.float32, (*drawn.shape[:3], drawn.q_len, drawn.kv_len, *drawn.shape[5:]), seed)
        given = [q, k, v, torch.randn(drawn.shape[1], generator=drawn.generator)]
        beside = drawn.random.choice([None, None, torch_mods.window(50)])
        keep = dense(drawn.mask, drawn.mod, (*q.shape[:3], k.shape[2]))
        if beside is not None:
            keep &= plane(beside, None, keep.shape)

        def biased(bias):
            return lambda score, b, h, i, j: score + bias[h]

        def attend(q, k, v, bias):
            return flex_attention(q, k, v, biased(bias), drawn.mask, enable_gqa=True, mask_mod=beside)

        found = gradients(attend, given)
        if seed % 3 == 0:  # again, with what is known of the mask
            for one, other in zip(found, gradients(attend, given), strict=True):
                assert torch.equal(one, other), seed
        try:
            check(found, given, keep, biased)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_a_mask_mod_that_changes_its_arguments_in_place(compiles):
    def later(b, h, q, kv):
        q.add_(3)
        return q >= kv

    torch._dynamo.reset()
    block_mask = create_block_mask(lambda b, h, q, kv: q + 3 >= kv, None, None, 60, 60, device="cpu", BLOCK_SIZE=16)
    block_mask.mask_mod = later
    arguments = tensors(torch.float32, (1, 2, 2, 60, 60, 16, 16))
    attend = torch.compile(flex_attention, backend="aot_eager", fullgraph=True) if compiles else flex_attention
    out = attend(*arguments, block_mask=block_mask, mask_mod=torch_mods.causal)
    wanted = flex_attention(*arguments, mask_mod=torch_mods.causal)
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
