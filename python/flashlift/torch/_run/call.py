"""What one call of an attention is given."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class Call(NamedTuple):
    """The operator's arguments, in its order."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    captures: Sequence[torch.Tensor]
    sinks: torch.Tensor | None
    seed: torch.Tensor | None
    features: str  # the programs, as words of the problem text
    scale: float
    want_max: bool = False  # whether to compute row maxima
    f32_out: bool = False  # whether the output is float32 for any type of the query
    want_residual: bool = False  # whether to keep the rounding error of the output for the backward pass

    def flat(self) -> tuple[Any, ...]:
        """The arguments with the captured tensors last, each as a separate argument: autograd does not look into
        lists."""
        return (*self[:3], *self[4:], *self.captures)

    @staticmethod
    def of_flat(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> "Call":
        others, captures = rest[: FLAT_CAPTURES - 3], rest[FLAT_CAPTURES - 3 :]
        return Call._make((query, key, value, captures, *others))

    @staticmethod
    def of_backward(*given: Any) -> "Call":
        """The call whose gradients are computed, from all arguments but the last three, the output and its residual."""
        *arguments, out, residual = given
        return Call._make((*arguments, False, out.dtype != arguments[0].dtype, residual.dim() == out.dim()))

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors for which a gradient may be requested."""
        inputs = self[:3] if self.sinks is None else (*self[:3], self.sinks)
        return (*inputs, *self.captures)

    @property
    def words(self) -> str:
        """The features, with the requested results."""
        words = "row_max " + self.features if self.want_max else self.features
        words = "residual " + words if self.want_residual else words
        return "out=f32 " + words if self.f32_out else words


FLAT_CAPTURES = len(Call._fields) - 1  # index of the first captured tensor in flat()
