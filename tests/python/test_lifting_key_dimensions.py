"""Gradients if the keys have several dimensions: attention over images, and biases of rows and columns that are
computed from queries (SAM, ViTDet). Compared with XLA's own results, and with wrong backward passes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_fused_gradients import run_both_ways, with_gradients

RNG = np.random.default_rng(23)
N = 4  # rows and columns alike, so that sizes tell nothing


def draw(*shape):
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


def over_an_image(q, k, v):
    p = jax.nn.softmax(jnp.einsum("bqd,bhwd->bqhw", q, k) / 4, axis=(-2, -1))
    return jnp.einsum("bqhw,bhwd->bqd", p, v)


def over_a_video(q, k, v):
    p = jax.nn.softmax(jnp.einsum("btxyhd,bsuvhd->bhtxysuv", q, k) / 4, axis=(-3, -2, -1))
    return jnp.einsum("bhtxysuv,bsuvhd->btxyhd", p, v)


def with_row_and_column_biases(q, k, v, rows, columns):
    """rows, columns: [query row, key row, depth] and the same for columns, as in SAM and ViTDet."""
    s = jnp.einsum("bqd,bkd->bqk", q, k) / 4
    squares = q.reshape(2, N, N, 16)
    of_rows = jnp.einsum("bhwd,hkd->bhwk", squares, rows)
    of_columns = jnp.einsum("bhwd,wkd->bhwk", squares, columns)
    s = s.reshape(2, N, N, N, N) + of_rows[..., :, None] + of_columns[..., None, :]
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(s.reshape(2, N * N, N * N), -1), v)


def by_tables(q, k, v, rows, columns):
    distance = jnp.arange(N)[:, None] - jnp.arange(N)[None] + N - 1
    return with_row_and_column_biases(q, k, v, rows[distance], columns[distance])


def sequences():
    return draw(2, N * N, 16), draw(2, N * N, 16), draw(2, N * N, 16)


CASES = {
    "image": (over_an_image, (draw(2, 8, 16), draw(2, N, N, 16), draw(2, N, N, 16))),
    "video": (over_a_video, (draw(2, 3, 2, 2, 3, 16), draw(2, 3, 2, 2, 3, 16), draw(2, 3, 2, 2, 3, 16))),
    "video of alike dimensions": (
        over_a_video,
        (draw(2, 2, 2, 2, 2, 16), draw(2, 2, 2, 2, 2, 16), draw(2, 2, 2, 2, 2, 16)),
    ),
    "biases by queries": (with_row_and_column_biases, (*sequences(), draw(N, N, 16), draw(N, N, 16))),
    "biases by tables": (by_tables, (*sequences(), draw(2 * N - 1, 16), draw(2 * N - 1, 16))),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    function, operands = CASES[name]
    report = run_both_ways(with_gradients(function, len(operands)), operands)
    assert [c.fused for c in report.candidates] == [True], report
    assert report.module.count('"flashlift.attention_backward"') == 1


def biased(q, k, v, rows, columns):
    """Biases that are arguments: [batch, query row, query column, key row or column]."""
    s = jnp.einsum("bqd,bkd->bqk", q, k) / 4
    s = s.reshape(2, N, N, N, N) + rows[..., :, None] + columns[..., None, :]
    return jax.nn.softmax(s.reshape(2, N * N, N * N), -1)


CHANGES = {
    "nothing": lambda d: d,
    "rows and columns swapped": lambda d: (*d[:3], d[4], d[3]),
    "rows of queries and keys swapped": lambda d: (*d[:3], d[3].swapaxes(1, 3), d[4]),
    "rows and columns of queries swapped": lambda d: (*d[:3], d[3].swapaxes(1, 2), d[4]),
    "keys' rows and columns swapped": lambda d: (
        d[0],
        d[1].reshape(2, N, N, 16).swapaxes(1, 2).reshape(2, N * N, 16),
        *d[2:],
    ),
    "values' rows and columns swapped": lambda d: (
        *d[:2],
        d[2].reshape(2, N, N, 16).swapaxes(1, 2).reshape(2, N * N, 16),
        *d[3:],
    ),
    "queries' rows reversed": lambda d: (d[0].reshape(2, N, N, 16)[:, ::-1].reshape(2, N * N, 16), *d[1:]),
    "twice the columns' bias": lambda d: (*d[:4], 2 * d[4]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_backward_passes_by_hand(name):
    """The right one is fused with the forward pass, although it recomputes the softmax; the others give XLA's results,
    fused or not."""

    @jax.custom_vjp
    def attention(q, k, v, rows, columns):
        return jnp.einsum("bqk,bkd->bqd", biased(q, k, v, rows, columns), v)

    def forward(*operands):
        return attention(*operands), operands

    def backward(operands, d_out):
        q, k, v, rows, columns = operands
        p = biased(*operands)
        d_p = jnp.einsum("bqd,bkd->bqk", d_out, v)
        d_s = p * (d_p - (p * d_p).sum(-1, keepdims=True))
        d_bias = d_s.reshape(2, N, N, N, N)
        return CHANGES[name](
            (
                jnp.einsum("bqk,bkd->bqd", d_s, k) / 4,
                jnp.einsum("bqk,bqd->bkd", d_s, q) / 4,
                jnp.einsum("bqk,bqd->bkd", p, d_out),
                d_bias.sum(-1),
                d_bias.sum(-2),
            )
        )

    attention.defvjp(forward, backward)
    operands = (*sequences(), draw(2, N, N, N), draw(2, N, N, N))
    report = run_both_ways(with_gradients(attention, 5), operands)
    if name == "nothing":
        assert [candidate.fused for candidate in report.candidates] == [True], report


def tied_rows(q, k, v):
    """Attention over the columns of an alignment, whose rows share the scores: the depth has two dimensions."""
    s = jnp.einsum("rihd,rjhd->hij", q, k) / 8
    return jnp.einsum("hij,rjhd->rihd", jax.nn.softmax(s, -1), v)


@pytest.mark.parametrize("depth", [N, 8])
@pytest.mark.parametrize("swaps", [False, True])
def test_gradients_with_two_dimensions_of_depth(depth, swaps):
    """The products of the scores and of their gradients have the dimensions of the depth in different orders."""
    function = (lambda q, k, v: tied_rows(q.transpose(3, 1, 2, 0), k.transpose(3, 1, 2, 0), v)) if swaps else tied_rows
    q, k, v = (draw(depth if swaps and i < 2 else N, 16, 2, N if swaps and i < 2 else depth) for i in range(3))
    report = run_both_ways(with_gradients(function, 3), (q, k, v))
    assert report.fused_count == 1 and len(report.candidates) == 1, report
