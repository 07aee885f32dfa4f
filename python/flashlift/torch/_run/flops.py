"""What torch.utils.flop_counter counts for the operators: as for PyTorch's own attention, every query with every key,
whatever a mask leaves out, and the backward pass with the scores computed again."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from flashlift.torch._run import operators  # noqa: F401 - registers the operators


def _pairs(query: Sequence[int], key: Sequence[int]) -> int:
    batch, heads, length, _ = query
    return batch * heads * length * key[2]


@register_flop_formula(torch.ops.flashlift.attention)
def _forward(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * _pairs(query, key) * (query[3] + value[3])


@register_flop_formula(torch.ops.flashlift.attention_backward)
def _backward(
    grad_out: Any, grad_lse: Any, query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    return 2 * _pairs(query, key) * (3 * query[3] + 2 * value[3])
