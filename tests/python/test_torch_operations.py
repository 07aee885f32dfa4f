"""Operations of score_mods, beside PyTorch's own for each pair of coordinates."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flashlift.torch import flex_attention
from flashlift.torch._trace import TraceError
from torch.nn.attention.flex_attention import AuxRequest

LENGTH = 6
TABLE = torch.randn(LENGTH, LENGTH, generator=torch.Generator().manual_seed(2))
CUBE = torch.randn(LENGTH, LENGTH, LENGTH, generator=torch.Generator().manual_seed(3))
HALVES = TABLE.bfloat16()
BYTES = torch.arange(36, dtype=torch.uint8).reshape(6, 6) * 7
BOOLEANS = TABLE > 0
FOUR = torch.tensor(4)


def scores_of(score_mod):
    """The scores, of queries and keys of zeros: the logarithms of the probabilities, which values of 1 show."""
    zeros = torch.zeros(1, 1, LENGTH, 8)
    values = torch.eye(LENGTH, 8).reshape(1, 1, LENGTH, 8)
    out, aux = flex_attention(zeros, zeros, values, score_mod, return_aux=AuxRequest(lse=True))
    return out[0, 0, :, :LENGTH].log() + aux.lse[0, 0, :, None]


def expected(score_mod):
    zero = torch.tensor(0)
    score = torch.tensor(0.0)
    return torch.tensor(
        [
            [float(score_mod(score, zero, zero, torch.tensor(i), torch.tensor(j))) for j in range(LENGTH)]
            for i in range(LENGTH)
        ]
    )


INDICES = {
    "list": lambda s, b, h, i, j: TABLE[[0, 1, 2], j].sum(),
    "lists and a coordinate": lambda s, b, h, i, j: CUBE[[0, 1, 2], [3, 4, 5], j][i % 3],
    "list of coordinates": lambda s, b, h, i, j: TABLE[[i, j], 0].sum(),
    "list of coordinates and numbers": lambda s, b, h, i, j: CUBE[[i, 2], :, [[j, 1]]].sum(),
    "array": lambda s, b, h, i, j: TABLE[np.array([5, 3, 1]), j].sum(),
    "number of numpy": lambda s, b, h, i, j: CUBE[np.int64(2), i, j],
    "range": lambda s, b, h, i, j: TABLE[range(3), j].sum(),
    "slice between": lambda s, b, h, i, j: CUBE[i, 1:4, j].sum(),
    "gather": lambda s, b, h, i, j: torch.gather(CUBE, 1, j.expand(2, 3, 6))[1, 2, i],
    "take_along_dim": lambda s, b, h, i, j: torch.take_along_dim(TABLE, i.reshape(1, 1), 0)[0, j],
}


@pytest.mark.parametrize("name", INDICES)
def test_indices(name):
    torch.testing.assert_close(scores_of(INDICES[name]), expected(INDICES[name]), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("index", [lambda i, j: [i, j], lambda i, j: [i, 2], lambda i, j: [[i, j], 1]])
def test_a_list_in_place_of_an_index_is_refused(index):
    """PyTorch takes it as a tuple, and has announced that it will take it as a tensor."""
    with pytest.raises(TraceError, match=r"a list of tensors as an index .*torch.stack\(\[i, j\]\)"):
        scores_of(lambda s, b, h, i, j: TABLE[index(i, j)].sum())


def test_true_beside_a_tensor_in_an_index_is_refused():
    with pytest.raises(TraceError, match="True or False beside a tensor in an index .*None for a new dimension"):
        scores_of(lambda s, b, h, i, j: CUBE[True, i, j].sum())


def test_an_endless_mod_is_refused_while_it_is_recorded():
    def mod(s, b, h, i, j):
        for step in itertools.count():
            s = s + step
        return s

    with pytest.raises(ValueError, match="a program has at most 4096 nodes, and this function records more"):
        scores_of(mod)


def accumulated(s, b, h, i, j):
    total = torch.zeros(())
    for part in range(3):
        total += TABLE[i, j] * part + s + i
    return total


def like_in_place(s, b, h, i, j):
    total, distance, factors = torch.zeros_like(s), torch.full_like(i, 2), torch.ones_like(TABLE)
    total += s
    distance *= j
    factors *= TABLE
    return total * 3 + distance + factors[i, j]


def table_in_place(s, b, h, i, j):
    table = TABLE * 2
    table += 1
    table.clamp_(min=0)
    return table[i, j]


def scalar_in_place(s, b, h, i, j):
    factor = TABLE[1, 2].exp()
    factor *= 0.5
    factor -= j
    return factor + s


def literal_in_place(s, b, h, i, j):
    literal = torch.tensor([1.0, 2.0, 3.0])
    literal *= TABLE[0, :3]
    return literal[i % 3] + j


OPERATIONS = {
    "sum in place": accumulated,
    "zeros_like in place": like_in_place,
    "table in place": table_in_place,
    "scalar in place": scalar_in_place,
    "literal in place": literal_in_place,
    "argmax of NaN": lambda s, b, h, i, j: torch.stack([s, torch.where(i > j, torch.nan, s), s + 1]).argmax() * 1.0,
    "max beside NaN": lambda s, b, h, i, j: torch.stack([s, torch.where(i > j, torch.nan, s), s + 1]).max(0)[1] * 0.5,
    "cosine of broadcast rows": lambda s, b, h, i, j: F.cosine_similarity(
        TABLE[i].reshape(1, 2, 3) + s, TABLE[j].reshape(2, 1, 3), dim=-2
    ).sum(),
    "softmax of a scalar": lambda s, b, h, i, j: (s + i).softmax(0) + torch.log_softmax(s + j, -1),
    "logsumexp of a scalar": lambda s, b, h, i, j: (s + i).logsumexp(0) + (s + j).logsumexp(-1, keepdim=True),
    "means of a scalar": lambda s, b, h, i, j: (s + i).mean(0) + (s + j).std(-1, correction=0) + (s - i).norm(dim=0),
    "transposed scalar": lambda s, b, h, i, j: (s + i).transpose(0, -1) + (s + j).t(),
    "filled by a scalar": lambda s, b, h, i, j: TABLE[i].masked_fill(BOOLEANS[j], s + 1).sum(),
    "limits of a number and a coordinate": lambda s, b, h, i, j: i.clamp(1, j) + (s + i).clamp(min=j, max=3.5),
    "limits of a number and a tensor": lambda s, b, h, i, j: torch.clip(i, 1.5, FOUR) + torch.clamp(j, min=FOUR, max=5),
    "roll": lambda s, b, h, i, j: torch.roll(TABLE[i] * (s + 1), 2)[j],
    "roll of two dimensions": lambda s, b, h, i, j: torch.roll(TABLE * (s + 1), (1, -2), (0, 1))[i, j],
    "product of bfloat16": lambda s, b, h, i, j: ((HALVES[i] + s.bfloat16()) @ HALVES[j]).float(),
    "product of bytes": lambda s, b, h, i, j: ((BYTES + (i * 0).to(torch.uint8)) @ BYTES[j])[i] / 64,
    "integers by a fraction": lambda s, b, h, i, j: torch.addmv(
        BYTES[0].long(), BYTES.long() + i, BYTES[j].long(), beta=1.5, alpha=0.5
    )[1].float(),
    "deviation of bfloat16": lambda s, b, h, i, j: (HALVES[i] * HALVES[j]).std().float(),
    "variance of bfloat16": lambda s, b, h, i, j: torch.var_mean(HALVES[i] * HALVES[j], correction=0)[0].float(),
    "largest boolean": lambda s, b, h, i, j: (BOOLEANS[i] & BOOLEANS[j]).amax() + BOOLEANS[i].amin(0) * 0.5,
    "limited boolean": lambda s, b, h, i, j: BOOLEANS[i, j].clamp(max=BOOLEANS[j, i]) * 1.0,
    "hypotenuse of two types": lambda s, b, h, i, j: torch.hypot(HALVES[i, j], TABLE[j, i]),
    "quotient by infinity": lambda s, b, h, i, j: (i - j) * 1.5 // math.inf + (i - 2.5) // ((j - 2.5) / 0.0),
    "large exponents": lambda s, b, h, i, j: ((i - 2).clamp(-1, 1) ** (j + 62)) * 1.0,
    "cumulated sum": lambda s, b, h, i, j: (
        torch.cumsum(HALVES[i] * (j + 1) / 4, 0)[4].float() + BYTES[i].cumsum(0)[j] / 64
    ),
    "cumulated product": lambda s, b, h, i, j: (TABLE[:, :3] + s + i).cumprod(-1)[j, 2],
    "no times a boolean": lambda s, b, h, i, j: torch.add(BOOLEANS[i, j], BOOLEANS[j, i], alpha=False) * 1.0,
}


def test_elements_keep_their_values_when_their_table_changes():
    """An element is a copy, as where PyTorch runs a mod for all coordinates at once; a view of a table is none."""

    def of_constants(s, b, h, i, j):
        table = torch.arange(LENGTH) * 1.0
        element = table[i]
        table += 2
        return element * 8 + table[j]

    def of_captures(s, b, h, i, j):
        table = TABLE[1] * 1.0
        element = table[i]
        table *= 3
        return element + table[j]

    def of_view(s, b, h, i, j):
        table = TABLE * 1.0
        row = table[0]
        table *= 3
        return row[i] + table[j, 1]

    places = torch.arange(LENGTH)
    torch.testing.assert_close(scores_of(of_constants), places[:, None] * 8.0 + places + 2, atol=5e-6, rtol=1e-5)
    torch.testing.assert_close(scores_of(of_captures), TABLE[1][:, None] + TABLE[1] * 3, atol=5e-6, rtol=1e-5)
    with pytest.raises(TraceError, match="changes a captured tensor, or one that depends on captured tensors"):
        scores_of(of_view)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name):
    torch.testing.assert_close(scores_of(OPERATIONS[name]), expected(OPERATIONS[name]), atol=5e-6, rtol=1e-5)
