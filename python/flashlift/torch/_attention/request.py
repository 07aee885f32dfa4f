"""What flex_attention was asked for, checked and in one type, but for its mods."""

from typing import NamedTuple

import torch


class Request(NamedTuple):
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float | None
    sinks: torch.Tensor | None
    want_max: bool
    dropout_p: float
    seed: torch.Tensor | None
    deterministic: bool
