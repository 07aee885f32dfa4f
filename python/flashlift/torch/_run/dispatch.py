"""Which way a call takes: through torch's dispatcher, or where that makes no difference past it."""

import functools
import math
from typing import Any

import torch

from flashlift.torch._internals import are_transforms_active, forward_mode_level
from flashlift.torch._run import operators  # noqa: F401 - registers torch.ops.flashlift
from flashlift.torch._run.autograd import Direct, InTransform, Recorded, no_forward_mode
from flashlift.torch._run.call import Call
from flashlift.torch._run.kernels import run
from flashlift.torch._run.modes import are_plain

HOPPER = 9  # the compute capability whose backward pass reads residuals, for rows of up to so many columns
WIDEST_FUSED = 128


def call_kernel(call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The operator, or where that makes no difference what it does: the way through torch's dispatcher, in Python,
    takes longer than a short attention. An infinite scale is refused before anything else sees it. The output has the
    type of the query: f32_out and want_residual, False in what is given, are for the ways below.

    Where gradients may be wanted, the operator's own output is float32 on a CPU, and on Hopper it comes with its
    residual. The backward pass takes each row's <d_out, out> from it, and what rounding to 16 bits does to that is an
    error that all keys of the row share: it can be larger than all other errors of d_q together.
    """
    if not math.isfinite(call.scale):
        raise ValueError(f"scale must be finite, got {call.scale}")
    given, query = call.tensors, call.query
    half = query.dtype != torch.float32
    more: dict[str, Any] = {
        "f32_out": half and query.device.type == "cpu",
        "want_residual": half and _reads_residual(call),
    }
    if are_transforms_active():
        results = InTransform.apply(*call._replace(**more).flat())
    elif are_plain(given):
        if not torch.is_grad_enabled() or not any([one.requires_grad for one in given]):  # noqa: C419 - quicker than a generator
            with Recorded("flashlift::attention"):
                return run(call)[:3]
        results = Direct.apply(*call._replace(**more).flat())
    elif forward_mode_level() >= 0 and any(map(_has_tangent, given)):
        no_forward_mode(None)
    else:
        if not torch.is_grad_enabled() or not any(one.requires_grad for one in given):
            more = {}
        results = torch.ops.flashlift.attention(*call._replace(captures=list(call.captures), **more))
    return results[0].to(query.dtype), *results[1:3]


def _reads_residual(call: Call) -> bool:
    """Whether the backward pass that will run is the one that is faster with the output's residual."""
    query, value = call.query, call.value
    widest = max(query.shape[-1], value.shape[-1])
    return query.device.type == "cuda" and widest <= WIDEST_FUSED and _capability(query.device)[0] == HOPPER


@functools.lru_cache(maxsize=64)
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _has_tangent(tensor: torch.Tensor) -> bool:
    return torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None
