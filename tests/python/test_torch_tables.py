"""Mods that read tables at indices computed from coordinates: those that leave the table are refused."""

import re

import pytest
import torch
from flashlift.torch import flex_attention

LENGTH, SIZE = 20, 12
ROW, COLUMN = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)

COMPUTED = {
    "distance": lambda i, j, w: (i - j).abs(),
    "multiple": lambda i, j, w: i * 2,
    "sum": lambda i, j, w: i // 3 + 2 * (j % 7) + w,
    "clamped": lambda i, j, w: (i - j).clamp(-w, w) + w + 2,
    "remainder": lambda i, j, w: (i + j) % 15,
    "bits": lambda i, j, w: (i & 15) + (j >> 3),
    "smaller": lambda i, j, w: torch.minimum(i, j),
    "larger": lambda i, j, w: torch.maximum(i // 2, j // 4) + w,
    "product": lambda i, j, w: (i // 6) * (j // 5 + 1),
    "negative": lambda i, j, w: -i - 1,
    "truncated": lambda i, j, w: torch.div(i - j, 2, rounding_mode="trunc") + 9,
    "narrow": lambda i, j, w: i.to(torch.uint8).int() + 1,
}


@pytest.fixture(autouse=True)
def _few_graphs():
    torch._dynamo.reset()


def tensors():
    torch.manual_seed(0)
    return [torch.randn(1, 2, LENGTH, 16, requires_grad=True) for _ in range(3)]


def expected(q, k, v, bias):
    return torch.softmax(q @ k.mT / 4 + bias, -1) @ v


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("name", COMPUTED)
def test_an_index_that_leaves_a_table(name, compiles):
    """As PyTorch raises, for the smallest table that is too small; the next larger one gives its results."""
    index, w = COMPUTED[name], 5
    at = index(ROW, COLUMN, w)
    size = max(-int(at.min()), int(at.max()) + 1)
    q, k, v = tensors()

    def attend(q, k, v, table):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + table[index(i, j, w)])

    run = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=True) if compiles else attend
    table = torch.randn(size, requires_grad=True)
    inputs = q, k, v, table
    out, want = run(*inputs), expected(q, k, v, table[at])
    torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-4)
    for one, other in zip(*(torch.autograd.grad(one.square().sum(), inputs) for one in (out, want)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    with pytest.raises(
        Exception, match=rf"an index from .* in a dimension of size {size - 1}; expected at least {size}"
    ):
        run(q, k, v, torch.randn(size - 1))
    torch.testing.assert_close(run(*inputs), out)


@pytest.mark.parametrize("size", [4, 9])
def test_a_guard_keeps_an_index_in_a_table(size):
    """The bounds of these indices are outside of the table, the indices are not."""
    q, k, v = tensors()
    table = torch.randn(size)
    for index in (
        lambda i, j: torch.where(i < size, i, 0),
        lambda i, j: torch.where(i - j >= 0, i - j, size - 1).clamp(max=size - 1),
        lambda i, j: (i - i // size * size) % size,
        lambda i, j: i - i // 3 * 3,
        lambda i, j: (i >= j) * (size - 1),
        lambda i, j: 3 - (2 * i - 41).abs().clamp(max=3),
    ):
        out = flex_attention(q, k, v, lambda s, b, h, i, j, index=index: s + table[index(i, j)])
        want = expected(q, k, v, table[index(ROW, COLUMN)])
        torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-4)


def test_an_index_wholly_beyond_a_table():
    """Even a loose bound shows it."""
    q, k, v = tensors()
    table = torch.randn(SIZE)
    for index in (lambda i, j: torch.where(i < j, i, j) + SIZE, lambda i, j: -13 - (i - i // 3 * 3).abs()):
        with pytest.raises(IndexError, match="score_mod reads a tensor at an index from"):
            flex_attention(q, k, v, lambda s, b, h, i, j, index=index: s + table[index(i, j)])


def test_other_lengths_and_numbers_are_checked_anew():
    table = torch.zeros(16)

    def attend(length, w):
        q = torch.ones(1, 1, length, 8)
        return flex_attention(q, q, q, lambda s, b, h, i, j: s + table[(i - j).abs() // w])

    for _ in range(2):
        for length, w in ((16, 1), (32, 2), (48, 3)):
            attend(length, w)
            with pytest.raises(IndexError, match=f"from 0, which goes to {16}, in a dimension of size 16"):
                attend(length + 1, w)


def test_masks_read_tables_of_heads_in_range():
    q, k, v = tensors()
    table = torch.ones(4, SIZE, dtype=torch.bool)
    mask = lambda b, h, i, j: table[h * 3, j // 2 + 2]
    torch.testing.assert_close(flex_attention(q, k, v, mask_mod=mask), expected(q, k, v, 0))
    for one in (table[:3], table[:, :11]):
        with pytest.raises(IndexError, match="mask_mod reads a tensor at an index from"):
            flex_attention(q, k, v, mask_mod=lambda b, h, i, j, one=one: one[h * 3, j // 2 + 2])


def test_other_functions_that_read_a_table():
    q, k, v = tensors()
    table = torch.randn(SIZE)
    for read in (
        lambda at: torch.take(table, at),
        lambda at: torch.index_select(table, 0, at.reshape(1))[0],
        lambda at: torch.gather(table, 0, at.reshape(1))[0],
        lambda at: torch.nn.functional.embedding(at, table[:, None])[..., 0],
    ):
        with pytest.raises(IndexError, match=re.escape("from 0, which goes to 12, in a dimension of size 12")):
            flex_attention(q, k, v, lambda s, b, h, i, j, read=read: s + read((i + j) % 13))


def test_an_index_of_captured_integers_is_clamped():
    """Their content would have to be read for each call."""
    q, k, v = tensors()
    table, order = torch.randn(SIZE), torch.arange(LENGTH)
    out = flex_attention(q, k, v, lambda s, b, h, i, j: s + table[order[j]])
    torch.testing.assert_close(out, expected(q, k, v, table[order.clamp(max=SIZE - 1)]), atol=1e-5, rtol=1e-4)
