"""Which way a call takes: through torch's dispatcher, or where that makes no difference past it."""

import torch

from flashlift.torch._internals import are_transforms_active, forward_mode_level
from flashlift.torch._run import flops, graphs, operators  # noqa: F401 - register what torch.ops.flashlift has
from flashlift.torch._run.autograd import Direct, InTransform, Recorded, no_forward_mode
from flashlift.torch._run.call import Call
from flashlift.torch._run.kernels import reads_residual, run
from flashlift.torch._run.modes import are_plain

LARGEST_SCALE = torch.finfo(torch.float32).max


def call_kernel(call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Calls the operator, or directly what it does if that makes no difference: torch's dispatcher, in Python, takes
    longer than a short attention. An infinite scale is refused before anything else sees it. The output has the type of
    the query: f32_out and want_residual, False in the given call, are set by the functions that this calls."""
    if not abs(call.scale) <= LARGEST_SCALE:
        raise ValueError(f"scale must be finite in float32, got {call.scale}")
    given, query = call.tensors, call.query
    if are_transforms_active():
        results = InTransform.apply(*for_gradients(call).flat())
    elif are_plain(given):
        if not torch.is_grad_enabled() or not any([one.requires_grad for one in given]):  # noqa: C419 - quicker than a generator
            with Recorded("flashlift::attention"):
                return run(call)[:3]
        results = Direct.apply(*for_gradients(call).flat())
    elif forward_mode_level() >= 0 and any(map(_has_tangent, given)):
        no_forward_mode(None)
    else:
        if torch.is_grad_enabled() and any(one.requires_grad for one in given):
            call = for_gradients(call)
        results = torch.ops.flashlift.attention(*call._replace(captures=list(call.captures)))
    return results[0].to(query.dtype), *results[1:3]


def for_gradients(call: Call) -> Call:
    """The call whose backward pass is exact and fast: the operator's own output is float32 on a CPU; on a GPU it comes
    with its residual if a backward kernel reads that. The backward pass computes each row's <d_out, out> from it. If it
    were rounded to 16 bits, all keys of the row would share one error, which can be larger than all other errors of d_q
    together."""
    if call.query.dtype == torch.float32:
        return call
    return call._replace(f32_out=call.query.device.type == "cpu", want_residual=reads_residual(call))


def _has_tangent(tensor: torch.Tensor) -> bool:
    return torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None
