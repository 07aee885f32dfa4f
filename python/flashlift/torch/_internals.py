"""What flashlift.torch uses of PyTorch beside its documented interface, and what differs between its versions.

All of it stands here, but for what only Dynamo has, in _attention/dynamo.py: a new version of PyTorch is looked through
in two files. What is gone from one fails when flashlift.torch is imported, and not in some call.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import _temp_remove_pre_dispatch_torch_function_mode as _outside_of_export
from torch.nn.attention import flex_attention as _flex_attention
from torch.nn.attention.flex_attention import _warn_once as warn_once
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from flashlift.torch._version import VERSION

__all__ = [
    "BELOW_AUTOGRAD",
    "WITH_AUTOGRAD",
    "COMPOSITE",
    "DLPACK_EXCHANGE",
    "LIBRARY",
    "LIMITS_HAVE_GRADIENTS",
    "MASK_MOD_WRAPPER",
    "RecordFunction",
    "TorchDispatchMode",
    "are_transforms_active",
    "autocast_state",
    "calls_by_name",
    "clear_transforms",
    "count_of_function_modes",
    "count_of_modes",
    "current_device",
    "current_raw_stream",
    "decompositions",
    "differentiable",
    "empty_on_cpu",
    "empty_on_current_gpu",
    "disable_modes",
    "disable_transforms",
    "disabled_torch_function",
    "forward_mode_level",
    "has_autograd_kernel",
    "hides_open_sizes",
    "is_legacy_batched",
    "is_inductor_loaded",
    "is_making_graph",
    "is_seen_by_kernel_alone",
    "is_traced_by_jit",
    "is_wrapped_by_transform",
    "no_subclasses",
    "no_torch_functions",
    "output_count",
    "outside_of_jit",
    "outside_of_saved_tensors_hooks",
    "registered_backward",
    "sliced_mask_mod_error",
    "to_dlpack",
    "tree_map_only",
    "unsafe_index",
    "warn_once",
]

_C: Any = torch._C

LIBRARY: str = _C.__file__
COMPOSITE = _C.DispatchKey.CompositeExplicitAutograd
BELOW_AUTOGRAD = _C._AutoDispatchBelowADInplaceOrView
WITH_AUTOGRAD = functools.partial(_C._SetExcludeDispatchKeyGuard, _C.DispatchKey.AutogradFunctionality, False)
no_torch_functions = _C.DisableTorchFunction
no_subclasses = _C.DisableTorchFunctionSubclass
disabled_torch_function = _C._disabled_torch_function_impl
RecordFunction = _C._profiler._RecordFunctionFast

# Modes are on a stack and see each operation. A graph is traced by one of two modes, or by the older tracer of
# torch.jit.
count_of_modes = _C._len_torch_dispatch_stack
count_of_function_modes = _C._len_torch_function_stack
_get_tracing_state = _C._get_tracing_state
_get_dispatch_mode = _C._get_dispatch_mode
_GRAPH_MODES = (_C._TorchDispatchModeKey.PROXY, _C._TorchDispatchModeKey.FAKE)


@contextlib.contextmanager
def disable_modes() -> Iterator[None]:
    """torch.export has a mode for functions, too: what enables gradients or autocast here would be part of the exported
    model."""
    with _disable_current_modes(), _outside_of_export():
        yield


# torch.func's transforms, which wrap tensors.
are_transforms_active = _C._are_functorch_transforms_active
disable_transforms = _C._DisableFuncTorch
is_wrapped_by_transform = _C._functorch.is_functorch_wrapped_tensor
# Of the vmap before torch.func, by which torch.autograd.grad computes batched gradients; only the dispatcher sees it.
is_legacy_batched = _C._functorch.is_legacy_batchedtensor

# Take a device's number; only available if torch is built for GPUs.
current_raw_stream: Any = getattr(_C, "_cuda_getCurrentRawStream", None)
current_device: Any = getattr(_C, "_cuda_getDevice", None)
# Take tuples of sizes and strides, and a dtype. Compiled graphs call these functions, which take half the time of
# torch.empty_strided.
empty_on_current_gpu: Any = getattr(_C._dynamo.guards, "_empty_strided_cuda", None)
empty_on_cpu: Any = getattr(_C._dynamo.guards, "_empty_strided_cpu", None)

# DLPack's C exchange interface, available since 2.10.
DLPACK_EXCHANGE: Any = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)

to_dlpack = _C._to_dlpack
unsafe_index = torch.ops.aten._unsafe_index

# The wrapper that some versions of PyTorch put around the mask_mod of a BlockMask.
MASK_MOD_WRAPPER: Any = getattr(_flex_attention, "_MaskModWrapper", None)
# Before 2.14, a value that is equal to a limit of clamp, or to the other argument of fmax and fmin, has the whole
# gradient. Since then it has none if the limit is a number, and shares it with a limit that is a tensor.
LIMITS_HAVE_GRADIENTS = VERSION >= (2, 14)
# BlockMask.__getitem__ does not keep the mask_mod and puts this in its place. PyTorch 2.9 silently uses a mask_mod that
# keeps everything instead.
sliced_mask_mod_error: Any = _flex_attention._sliced_mask_mod_error if VERSION >= (2, 10) else None


def _bits(*names: str) -> int:
    bits = 0
    for name in names:
        bits |= _C.DispatchKeySet(getattr(_C.DispatchKey, name)).raw_repr()
    return bits


_PLAIN_KEYS = _bits(
    *("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView", "BackendSelect"),
    *("AutocastCPU", "AutocastCUDA"),
)


def is_seen_by_kernel_alone(keys: Any) -> bool:
    """Whether the dispatch keys of a call, from its tensors and from the thread, show that nothing stands between
    autograd and the kernel: no mode, transform, subclass, lazy negation or tracer."""
    return keys.raw_repr() & ~_PLAIN_KEYS == 0


def is_traced_by_jit() -> bool:
    return _get_tracing_state() is not None


@contextlib.contextmanager
def outside_of_jit() -> Iterator[None]:
    """Pauses torch.jit.trace, which would record each operation in this block."""
    state = _get_tracing_state()
    _C._set_tracing_state(None)
    try:
        yield
    finally:
        _C._set_tracing_state(state)


@contextlib.contextmanager
def outside_of_saved_tensors_hooks() -> Iterator[None]:
    """Pauses torch.autograd.graph.saved_tensors_hooks, which torch.utils.checkpoint and save_on_cpu use, too."""
    hooks = []
    while (top := _C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        _C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def is_making_graph() -> bool:
    return _get_tracing_state() is not None or any(map(_get_dispatch_mode, _GRAPH_MODES))


def hides_open_sizes() -> contextlib.AbstractContextManager:
    """A block of operations that Dynamo takes as one, so that it cannot know of sizes within that depend on content."""
    fake: Any = _get_dispatch_mode(_C._TorchDispatchModeKey.FAKE)
    if fake is None or fake.shape_env is None or _get_dispatch_mode(_C._TorchDispatchModeKey.PROXY) is not None:
        return contextlib.nullcontext()
    return fake.shape_env.ignore_fresh_unbacked_symbols()


def autocast_state() -> tuple | None:
    """What torch.autocast does now to operations on our devices; None if nothing."""
    if not _C._is_any_autocast_enabled():
        return None
    return tuple((torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in ("cpu", "cuda"))


def forward_mode_level() -> int:
    """The current level of forward-mode differentiation; below 0 if there is none."""
    return torch.autograd.forward_ad._current_level


def decompositions() -> Any:
    """PyTorch's decompositions of operations into others. Imported on demand: a large module, which few mods need."""
    from torch._decomp import decomposition_table

    return decomposition_table


def clear_transforms() -> Any:
    """A context in which none of torch.func's transforms is active."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()


def differentiable(operator: Any, backward: Any, setup_context: Any = None) -> Any:
    """The function that torch.library.register_autograd registers for the operator; its first argument is a set of
    dispatch keys."""
    from torch._library.autograd import Info, make_autograd_impl

    return make_autograd_impl(operator, Info(backward, setup_context))


def has_autograd_kernel(operator: Any) -> bool:
    return _C._dispatch_has_kernel_for_dispatch_key(operator.name(), "Autograd")


def registered_backward(operator: Any) -> bool:
    """Whether an operator with a kernel for autograd has a backward function: torch.library.custom_op always registers
    such a kernel."""
    from torch._library.custom_ops import OPDEFS

    found = OPDEFS.get(operator._schema.name)
    return found is None or found._backward_fn is not None


def output_count(node: Any) -> int:
    """How many results a node of autograd's graph has."""
    return len(node._input_metadata)


def is_inductor_loaded() -> bool:
    return "torch._inductor.lowering" in sys.modules


def calls_by_name(operator: Any, name: str) -> None:
    """Makes graphs that Inductor generates from now on, in Python, call the function of this name instead of the
    operator."""
    from torch._inductor import lowering
    from torch._inductor.virtualized import V
    from torch._library.utils import get_layout_constraint_tag
    from torch.utils._pytree import tree_leaves

    # Like Inductor's own handling of an unknown operator.
    lowering.make_fallback(operator, lowering.tag_to_layout_constraint(get_layout_constraint_tag(operator)), warn=False)
    fallback = lowering.lowerings[operator]

    @functools.wraps(fallback)
    def lower(*args: Any, **kwargs: Any) -> Any:
        results = fallback(*args, **kwargs)
        if not V.graph.cpp_wrapper and not V.graph.fx_wrapper:
            for one in tree_leaves(results):
                part = one.data.data
                (kernel,) = part.inputs
                kernel.python_kernel_name = name
                V.graph.unaligned_buffers.discard(part.get_name())  # it has memory of its own
        return results

    lowering.lowerings[operator] = lower
