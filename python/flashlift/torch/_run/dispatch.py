"""Which way a call takes: through torch's dispatcher, or where that makes no difference past it."""

import math

import torch

from flashlift.torch._run import operators  # noqa: F401 - registers torch.ops.flashlift
from flashlift.torch._run.autograd import Direct, InTransform, Recorded, no_forward_mode
from flashlift.torch._run.call import Call
from flashlift.torch._run.kernels import Results, run
from flashlift.torch._run.modes import are_plain


def call_kernel(call: Call) -> Results:
    """The operator, or where that makes no difference what it does: the way through torch's dispatcher, in Python,
    takes longer than a short attention. An infinite scale is refused before anything else sees it. The output has the
    type of the query: f32_out, False in what is given, is for the ways below.

    Where gradients may be wanted, the operator's own output is float32. The backward pass takes each row's
    <d_out, out> from it, and what rounding to 16 bits does to that is an error that all keys of the row share: it can
    be larger than all other errors of d_q together.
    """
    if not math.isfinite(call.scale):
        raise ValueError(f"scale must be finite, got {call.scale}")
    given, query = call.tensors, call.query
    rounds_output = query.device.type == "cpu" and query.dtype != torch.float32
    if torch._C._are_functorch_transforms_active():
        results = InTransform.apply(*call._replace(f32_out=rounds_output).flat())
    elif are_plain(given):
        if not torch.is_grad_enabled() or not any([one.requires_grad for one in given]):  # noqa: C419 - quicker than a generator
            with Recorded("flashlift::attention"):
                return run(call)
        results = Direct.apply(*call._replace(f32_out=rounds_output).flat())
    elif torch.autograd.forward_ad._current_level >= 0 and any(map(_has_tangent, given)):
        no_forward_mode(None)
    else:
        f32_out = rounds_output and torch.is_grad_enabled() and any(one.requires_grad for one in given)
        results = torch.ops.flashlift.attention(*call._replace(captures=list(call.captures), f32_out=f32_out))
    return results[0].to(query.dtype), *results[1:]


def _has_tangent(tensor: torch.Tensor) -> bool:
    return torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None
