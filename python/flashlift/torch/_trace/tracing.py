"""Running a mod once over traced scalars, with PyTorch's own dispatch, and recording what it does as a program.

A mod is a Python function of 0-dimensional tensors. It is run under a TorchDispatchMode, which sees each ATen operation
with its final overload:

- an operation on traced values becomes nodes of the program (operations);
- an operation on captured tensors alone is carried out as it is and recorded, to be done again for each call's tensors
  (through autograd, if they need gradients); its results are what the program reads.

make_fx would give the same operations as a graph, but not the Python line of each, and at a higher cost.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from flashlift.torch._internals import BELOW_AUTOGRAD, disable_modes, outside_of_jit, outside_of_saved_tensors_hooks
from flashlift.torch._program import Node
from flashlift.torch._trace.dispatch import Dispatch
from flashlift.torch._trace.functions import ModFunctions
from flashlift.torch._trace.lines import TraceError
from flashlift.torch._trace.record import CPU, Trace
from flashlift.torch._trace.recording import Recording
from flashlift.torch._trace.transforms import Unwrapped
from flashlift.torch._trace.values import Value

INPUTS = {"score_mod": ("score", "b", "h", "q", "kv"), "mask_mod": ("b", "h", "q", "kv")}
ARGUMENTS = {"score_mod": "score, b, h, q_idx, kv_idx", "mask_mod": "b, h, q_idx, kv_idx"}


def trace(
    mod: Callable,
    kind: str,
    leaves: Sequence[torch.Tensor],
    extra: Sequence[torch.Tensor] = (),
    numbers: Sequence[torch.Tensor] = (),
    *,
    content_is_known: bool = True,
) -> Trace:
    """Runs `mod` over traced scalars.

    leaves: the tensors that it captures, as far as they are known; other tensors that it reads become constants.
    extra: further arguments for it, after the scalars; they are leaves as well.
    numbers: tensors that replace numbers that it captures; they become arguments of the program.
    content_is_known: whether `leaves` and `extra` have the content of the call that the program is for.
    Raises TraceError for what a program cannot express.
    """
    try:
        return _trace(mod, kind, leaves, extra, numbers, content_is_known)
    except RuntimeError:
        if not any(one.is_inference() for one in (*leaves, *extra)):
            raise
    # A torch.autograd.Function in the mod cannot store inference tensors for its backward function.
    found = _trace(mod, kind, leaves, extra, numbers, content_is_known, is_differentiable=False)
    found.autograd_function = found.autograd_function or "of tensors made in inference mode"
    return found


def _trace(
    mod: Callable,
    kind: str,
    leaves: Sequence[torch.Tensor],
    extra: Sequence[torch.Tensor],
    numbers: Sequence[torch.Tensor],
    content_is_known: bool,
    is_differentiable: bool = True,
) -> Trace:
    # Gradients are enabled here, so that they are enabled again where a mod leaves torch.no_grad(). The trace keeps
    # tensors that the mod creates, which must not be inference tensors: later calls may train.
    unwrapped = Unwrapped()
    with (
        disable_modes(),
        outside_of_jit(),
        outside_of_saved_tensors_hooks(),
        unwrapped.without_transforms(),
        _without_autocast_cache(),
        torch.inference_mode(False),
        BELOW_AUTOGRAD(),
        torch.set_grad_enabled(is_differentiable),
    ):
        recording = Recording([unwrapped.of(one) for one in (*leaves, *extra)], numbers, unwrapped.wrapped)
        scalars = []
        for name in INPUTS[kind]:
            dtype = torch.float32 if name == "score" else torch.int32
            scalars.append(recording.traced(Value.scalar(dtype, recording.builder.input(name))))
        dispatch = Dispatch(recording, content_is_known)
        with dispatch, ModFunctions(recording, unwrapped, dispatch):
            try:
                result = mod(*scalars, *extra)
            except TypeError as error:
                if _takes(mod, (*scalars, *extra)):
                    raise
                other = "mask_mod" if kind == "score_mod" else "score_mod"
                raise TypeError(
                    f"{error}; expected a {kind}({ARGUMENTS[kind]}), and a function of ({ARGUMENTS[other]}) as {other}"
                ) from error
            except NotImplementedError as error:
                if "HigherOrderOperator" not in str(error):
                    raise
                raise TraceError(
                    f"{kind} calls a higher-order operator of PyTorch's, such as torch.cond, which has no counterpart "
                    "in score programs; expected plain operations, such as torch.where"
                ) from error
            if isinstance(result, torch.Tensor):
                result = unwrapped.of(result)
                dispatch.note_result(result)
        node = _result(recording, result, kind)
    return Trace(
        kind,
        node,
        recording.builder,
        recording.captures,
        recording.sources,
        recording.prelude,
        recording.depends_on_sizes,
        bool(recording.open_sizes),
        recording.autograd_function if kind == "score_mod" else None,
        recording.unknown,
        list(recording.read_at),
        recording.numbers_read_at,
    )


def _takes(mod: Callable, arguments: tuple) -> bool:
    """Whether a mod can be called with these arguments, as far as this is known."""
    try:
        signature = inspect.signature(mod)
    except (TypeError, ValueError):  # of a function of C
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


@contextlib.contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Autocast keeps the converted weights. Those from a trace have no gradient, so that none may leave it; and a trace
    must see every conversion."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was_enabled)


def _result(recording: Recording, result: Any, kind: str) -> Node:
    if isinstance(result, np.generic):
        result = result.item()
    if isinstance(result, (bool, int, float)):
        result = torch.tensor(result, device=CPU)
        recording.keep(result)
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"{kind} must return a tensor, got {type(result).__name__}")
    if result.numel() != 1:
        raise RuntimeError(f"{kind} must return a scalar, got a tensor of shape {list(result.shape)}")
    value = recording.value_of(result)
    node = value.at(tuple(recording.builder.constant(0, "i64") for _ in value.shape))
    if kind == "mask_mod":
        if value.dtype != torch.bool:
            raise RuntimeError(f"mask_mod must return a boolean tensor, got {value.dtype}")
        return node
    if value.dtype == torch.bool:
        raise RuntimeError(
            "score_mod must return a score, got a boolean tensor; a function that keeps keys is a mask_mod"
        )
    return recording.builder.convert(node, "f32")
