"""Autograd formulas for calls that do not go through the operators' own: torch.func's transforms, and plain calls."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flashlift._errors import UnsupportedError
from flashlift.torch._internals import RecordFunction, is_legacy_batched
from flashlift.torch._run.call import FLAT_CAPTURES, Call
from flashlift.torch._run.kernels import Results, by_capture, differentiate, run_for_backward
from flashlift.torch._run.modes import are_plain
from flashlift.torch._run.operators import no_second_derivative, save, wanted_of

# Adds a call to torch's profilers if it bypasses the dispatcher, which otherwise does this.
Recorded = RecordFunction


def no_forward_mode(ctx: Any, *tangents: Any) -> None:
    raise UnsupportedError(
        "flashlift: attention has no forward-mode derivative (jvp, jacfwd, hessian); use vjp, grad or jacrev, or "
        "unfused attention (inputs of float64 are computed unfused)"
    )


def _results_over(info: Any, in_dims: tuple, args: tuple, function: Callable) -> tuple[tuple, tuple]:
    """Implements vmap by a loop: the results of `function` for each slice, stacked. A program may read the batch index,
    so that a dimension cannot simply join the batch; and one attention already uses the whole machine."""
    slices = []
    for i in range(info.batch_size):
        here = [one.select(dim, i) if type(dim) is int else one for one, dim in zip(args, in_dims, strict=True)]
        slices.append(function(*here))
    stacked = tuple(None if one[0] is None else torch.stack(one) for one in zip(*slices, strict=True))
    return stacked, tuple(None if one is None else 0 for one in stacked)


def _by_input(
    gradients: Sequence[torch.Tensor],
    wanted: Sequence[int],
    captures: Sequence[torch.Tensor],
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients in the order of Call.flat()."""
    d_sinks = None if sinks is None else gradients[-1]
    others = (None,) * (FLAT_CAPTURES - 4)
    return *gradients[:3], d_sinks, *others, *by_capture(gradients, wanted, captures)


class InTransform(torch.autograd.Function):
    """Runs the operator under torch.func's transforms, which do not use an operator's own autograd formula."""

    @staticmethod
    def forward(*flat: Any) -> Results:
        call = Call.of_flat(*flat)
        return torch.ops.flashlift.attention(*call._replace(captures=list(call.captures)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Results) -> None:
        save(ctx, Call.of_flat(*inputs), output)

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor, grad_lse: torch.Tensor, *others: Any) -> tuple:
        saved = ctx.saved_tensors
        sinks, captures = saved[6], saved[8:]
        wanted = wanted_of(ctx.needs_input_grad[FLAT_CAPTURES:], captures)
        gradients = _Backward.apply(tuple(wanted), ctx.features, ctx.scale, grad_out, grad_lse, *saved)
        return _by_input(gradients, wanted, captures, sinks)

    jvp = staticmethod(no_forward_mode)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *args: Any) -> tuple[tuple, tuple]:
        return _results_over(info, in_dims, args, InTransform.apply)


class Direct(torch.autograd.Function):
    """Runs the kernels without the operators, if nothing else must see a call: with the operators, PyTorch imports
    TorchDynamo, which takes two seconds in a process's first training step."""

    @staticmethod
    def forward(ctx: Any, *flat: Any) -> Results:
        call = Call.of_flat(*flat)
        with Recorded("flashlift::attention"):
            results = run_for_backward(call)
        save(ctx, call, results)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None, *others: None) -> tuple:
        query, key, value, out, lse, residual, sinks, seed, *captures = saved = ctx.saved_tensors
        wanted = wanted_of(ctx.needs_input_grad[FLAT_CAPTURES:], captures)
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        if is_legacy_batched(grad_out) or (grad_lse is not None and is_legacy_batched(grad_lse)):
            raise UnsupportedError(
                "flashlift: attention has no batched gradients (is_grads_batched=True, or jacobian(vectorize=True)); "
                "expected torch.vmap of torch.autograd.grad, or torch.func.jacrev"
            )
        given = (grad_out, query, key, value, out, lse, residual, *captures)
        if torch.compiler.is_dynamo_compiling():  # compiled autograd; Dynamo gives _Backward's *given a context, too
            read = query, key, value, out, lse, residual, captures, sinks, seed
            backward = torch.ops.flashlift.attention_backward
            gradients = backward(grad_out, grad_lse, *read, wanted, ctx.features, ctx.scale)
        elif torch.is_grad_enabled() or not are_plain([one for one in (*given, grad_lse, sinks) if one is not None]):
            gradients = _Backward.apply(tuple(wanted), ctx.features, ctx.scale, grad_out, grad_lse, *saved)
        else:
            call = Call.of_backward(query, key, value, captures, sinks, seed, ctx.features, ctx.scale, out, residual)
            with Recorded("flashlift::attention_backward"):
                gradients = differentiate(grad_out, grad_lse, call, out, lse, residual, wanted)
        return _by_input(gradients, wanted, captures, sinks)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(*given: Any) -> tuple:
        wanted, features, scale, grad_out, grad_lse, *tensors, sinks, seed = given[:13]
        backward = torch.ops.flashlift.attention_backward
        return tuple(backward(grad_out, grad_lse, *tensors, list(given[13:]), sinks, seed, wanted, features, scale))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    backward = staticmethod(no_second_derivative)
    jvp = staticmethod(no_forward_mode)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *args: Any) -> tuple[tuple, tuple]:
        return _results_over(info, in_dims, args, _Backward.apply)


class _WithoutGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: torch.Tensor, name: str, *leaves: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        ctx.name = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        raise UnsupportedError(
            f"flashlift: score_mod calls a torch.autograd.Function ({ctx.name}) whose backward function cannot be part "
            "of a score program; expected one scalar result of traced scalars, and a backward function that multiplies "
            "its gradient by what plain operations compute. Call a function of captured tensors outside of the mod, "
            "write the gradient with plain operations and detach(), or run under torch.no_grad()"
        )


def without_gradient(tensor: torch.Tensor, name: str, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """The same tensor, whose gradient, and that of the tensors that the mod captures, is refused because the mod calls
    the torch.autograd.Function of this name."""
    if not tensor.is_floating_point() or not any(one.requires_grad for one in (tensor, *leaves)):
        return tensor
    return _WithoutGradient.apply(tensor, name, *leaves)
