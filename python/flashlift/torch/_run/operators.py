"""The operators torch.ops.flashlift.attention and attention_backward, and their gradient."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flashlift._errors import UnsupportedError
from flashlift.torch._internals import (
    differentiable,
    forward_mode_level,
    is_seen_by_kernel_alone,
)
from flashlift.torch._run.call import Call
from flashlift.torch._run.kernels import (
    DEVICES,
    Results,
    by_capture,
    differentiate,
    empty_gradients,
    empty_results,
    run_for_backward,
)
from flashlift.torch._run.modes import are_plain


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    captures: Sequence[torch.Tensor],
    sinks: torch.Tensor | None,
    seed: torch.Tensor | None,
    features: str,
    scale: float,
    want_max: bool,
    f32_out: bool,
    want_residual: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    others = sinks, seed, features, scale, want_max, f32_out, want_residual
    return run_for_backward(Call(query, key, value, captures or (), *others))  # AOTInductor passes None for no tensors


_LIBRARY = torch.library.Library("flashlift", "FRAGMENT")


def _register(name: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Does not use torch.library.custom_op: its wrapper, and its check whether results share memory with arguments,
    take a quarter of a short call. Our results never share memory."""
    torch.library.define(name, torch.library.infer_schema(kernel, mutates_args=()), tags=torch.Tag.pt2_compliant_tag)
    for device in DEVICES:
        torch.library.impl(name, device, kernel)
    torch.library.register_fake(name, fake)


def _register_autograd(name: str, kernel: Callable[..., Any], backward: Any, setup_context: Any = None) -> None:
    """Like torch.library.register_autograd; but a call that nothing else must see, such as a compiled graph's, calls
    the kernel at once: another pass through the dispatcher, in Python, takes as long as the kernel's own Python."""
    through_dispatcher = differentiable(getattr(torch.ops.flashlift, name).default, backward, setup_context)

    def call(keys: Any, *given: Any) -> Any:
        if not torch.is_grad_enabled() and is_seen_by_kernel_alone(keys) and forward_mode_level() < 0:
            return kernel(*given)
        tensors = [one for one in given if isinstance(one, torch.Tensor)]
        tensors += [one for some in given if type(some) is list for one in some if isinstance(one, torch.Tensor)]
        if (
            (torch.is_grad_enabled() and any([one.requires_grad for one in tensors]))  # noqa: C419 - quicker than a generator
            or not are_plain(tensors)
            or tensors[0].device.type not in DEVICES
        ):
            return through_dispatcher(keys, *given)
        return kernel(*given)

    _LIBRARY.impl(name, call, "Autograd", with_keyset=True)


_register("flashlift::attention", _attention, lambda *given: empty_results(Call(*given)))


def _attention_backward(
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    residual: torch.Tensor,
    captures: Sequence[torch.Tensor],
    sinks: torch.Tensor | None,
    seed: torch.Tensor | None,
    wanted: Sequence[int],
    features: str,
    scale: float,
) -> list[torch.Tensor]:
    """The gradients with respect to query, key, value, the captured tensors whose numbers are wanted, and the sinks, if
    any."""
    captures = captures or ()  # AOTInductor passes None for no tensors
    call = Call.of_backward(query, key, value, captures, sinks, seed, features, scale, out, residual)
    return differentiate(grad_out, grad_lse, call, out, lse, residual, wanted)


def _fake_backward(grad_out: torch.Tensor, grad_lse: torch.Tensor | None, *given: Any) -> list[torch.Tensor]:
    query, key, value, out, _, residual, captures, sinks, seed, wanted, features, scale = given
    call = Call.of_backward(query, key, value, captures, sinks, seed, features, scale, out, residual)
    return empty_gradients(call, wanted)


_register("flashlift::attention_backward", _attention_backward, _fake_backward)


def wanted_of(needed: Sequence[bool], captures: Sequence[torch.Tensor]) -> list[int]:
    """The numbers of the captured tensors whose gradients are requested and exist."""
    return [i for i, (asked, one) in enumerate(zip(needed, captures, strict=True)) if asked and one.is_floating_point()]


def save(ctx: Any, call: Call, output: Results) -> None:
    """Keeps what the backward pass reads: query, key, value, out, lse, residual, sinks, seed and the captures."""
    ctx.features, ctx.scale = call.features, call.scale
    ctx.save_for_backward(*call[:3], *output[:2], output[3], call.sinks, call.seed, *call.captures)
    ctx.mark_non_differentiable(*output[2:])


def _setup_context(ctx: Any, inputs: tuple, output: Results) -> None:
    save(ctx, Call(*inputs), output)
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None, grad_max: None, grad_residual: None
) -> tuple:
    query, key, value, out, lse, residual, sinks, seed, *captures = ctx.saved_tensors
    needed = ctx.needs_input_grad[3]
    wanted = wanted_of(needed if isinstance(needed, (list, tuple)) else [needed] * len(captures), captures)
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    read = query, key, value, out, lse, residual, captures, sinks, seed
    gradients = torch.ops.flashlift.attention_backward(grad_out, grad_lse, *read, wanted, ctx.features, ctx.scale)
    d_sinks = None if sinks is None else gradients[-1]
    return *gradients[:3], by_capture(gradients, wanted, captures), d_sinks, None, None, None, None, None, None


_register_autograd("attention", _attention, _backward, _setup_context)


def no_second_derivative(ctx: Any, *grads: Any) -> None:
    raise UnsupportedError(
        "flashlift: attention has no second derivative; do without create_graph=True, or use unfused attention (inputs "
        "of float64 are computed unfused)"
    )


_register_autograd("attention_backward", _attention_backward, no_second_derivative)
