"""Attention that no kernel computes, unfused: in float64, and of heads that are deeper than kernels take.

float64 is what tests take as the truth, and what torch.autograd.gradcheck differentiates; kernels compute in float32,
and a float64 that is none would be worse than slow. The whole plane of scores is in memory here, as in PyTorch's own
flex_attention without torch.compile.
"""

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from flashlift.torch._internals import warn_once
from flashlift.torch._trace import IndexByTensors

_DEEPEST = 256  # supported by kernels


def is_unfused(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether Flashlift has no kernel for tensors like these."""
    return query.dtype == torch.float64 or query.size(-1) > _DEEPEST or value.size(-1) > _DEEPEST


def refuse_dropout(query: torch.Tensor, value: torch.Tensor) -> NoReturn:
    raise NotImplementedError(
        f"{query.dtype} of a depth of {query.size(-1)} and {value.size(-1)} is computed unfused, without dropout; use "
        f"float32, bfloat16 or float16 of a depth of up to {_DEEPEST}"
    )


def attend_unfused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable | None,
    mask_mod: Callable | None,
    scale: float | None,
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(out, lse, max_scores)"""
    if query.dtype != torch.float64:
        if not torch.compiler.is_dynamo_compiling():
            warn_once(
                "flashlift_depth",
                f"flashlift: heads of a depth of {max(query.size(-1), value.size(-1))} are computed unfused, with all "
                f"scores in memory; kernels take a depth of up to {_DEEPEST}",
            )
        query, key, value = (one.float() for one in (query, key, value))
    if query.size(0) != key.size(0):
        key, value = (one.expand(query.size(0), -1, -1, -1) for one in (key, value))
    groups = query.size(1) // key.size(1)
    key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    scores = query @ key.transpose(-1, -2) * (1.0 / math.sqrt(query.size(-1)) if scale is None else scale)
    indices = [torch.arange(size, device=query.device) for size in scores.shape]
    if not scores.numel():  # a mod has nothing to compute, and vmap cannot index a tensor by none
        score_mod = mask_mod = None
    if score_mod is not None:
        scores = _over_plane(score_mod, (0,), (scores, *indices)).to(scores.dtype)
    if mask_mod is not None:
        scores = torch.where(_over_plane(mask_mod, (), tuple(indices)), scores, -math.inf)
    maximum = scores.detach().amax(-1) if scores.size(-1) else scores.new_full(scores.shape[:-1], -math.inf)
    if sinks is not None:
        extra = sinks.to(scores.dtype).reshape(1, query.size(1), 1, -1)
        scores = torch.cat([scores, extra.expand(*scores.shape[:-1], -1)], -1)
    empty = torch.isneginf(scores).all(-1, keepdim=True)
    finite = torch.where(empty, 0.0, scores)  # no gradient through the softmax of an empty row
    weights = torch.where(empty, 0.0, torch.softmax(finite, -1))[..., : key.size(-2)]
    lse = torch.where(empty.squeeze(-1), -math.inf, torch.logsumexp(finite, -1))
    return weights @ value, lse, maximum


def _over_plane(mod: Callable, prefix: tuple, arguments: tuple) -> torch.Tensor:
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        mod = torch.vmap(mod, in_dims=prefix + dims)
    with _IndexInFloat32():
        return mod(*arguments)


class _IndexInFloat32(IndexByTensors):
    """The gradient of an element of 16 bits, which thousands of scores may read, would be summed in 16 bits."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is torch.Tensor.__getitem__ and args[0].dtype in (torch.bfloat16, torch.float16):
            return super().__torch_function__(func, types, (args[0].float(), args[1])).to(args[0].dtype)
        return super().__torch_function__(func, types, args, kwargs)
