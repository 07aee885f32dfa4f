"""Compiled attentions, and running them on PyTorch tensors."""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from flashlift._attention import Attention
from flashlift._errors import FlashliftError
from flashlift._library import RunOptions, check, core
from flashlift.torch._internals import current_device, current_raw_stream, empty_on_cpu, empty_on_current_gpu
from flashlift.torch._program import DTYPE_NAMES
from flashlift.torch._run.call import Call
from flashlift.torch._run.objects import run_on_objects, takes_objects
from flashlift.torch._run.threads import options_of_cpu
from flashlift.torch._run.views import Views, taking_addresses
from flashlift.torch._run.workspace import workspace

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DEVICES = ("cpu", "cuda")

_ADDRESS, _OPTIONS = ctypes.c_void_p, ctypes.POINTER(RunOptions)
_run_forward = taking_addresses("flashlift_attention_run", _ADDRESS, _ADDRESS, _OPTIONS)
_run_backward = taking_addresses("flashlift_attention_run_backward", _ADDRESS, _ADDRESS, _OPTIONS)
_block_kinds = taking_addresses(
    "flashlift_block_kinds",
    *(ctypes.c_char_p, _ADDRESS, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int64, _ADDRESS),
)

# out, lse, row maxima and the rounding error of out; the last two are empty if not requested
Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@functools.lru_cache(maxsize=1024)
def compiled(
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int,
    dtype: torch.dtype,
    scale: float,
    words: str,
    device: torch.device,
) -> Attention:
    return Attention(
        f"attn b1 hq{q_heads} hkv{kv_heads} sq1 skv1 dqk{head_dim} dv{value_dim} {DTYPE_NAMES[dtype]} "
        f"scale={scale!r} lse {words}",
        str(device),
        lengths_known=False,
    )


class _Plan(NamedTuple):
    """What calls with inputs of the same shapes have in common."""

    attention: Attention
    rows: tuple[int, ...]  # of the queries
    dense_rows: tuple[int, ...]  # their strides
    out_shape: tuple[int, ...]
    out_dtype: torch.dtype


@functools.lru_cache(maxsize=1024)
def _plan(
    shapes: tuple[torch.Size, torch.Size, torch.Size],
    dtype: torch.dtype,
    device: torch.device,
    features: str,
    scale: float,
    *results: bool,
) -> _Plan:
    query, key, value = shapes
    call = Call(*shapes, (), None, None, features, scale, *results)  # type: ignore[arg-type]
    attention = compiled(query[1], key[1], query[3], value[3], dtype, scale, call.words, device)
    out_dtype = torch.float32 if call.f32_out else dtype
    rows = tuple(query[:3])
    return _Plan(attention, rows, dense_strides(rows), (*rows, value[3]), out_dtype)


def plan_for(call: Call) -> _Plan:
    query, key, value, _, _, _, *others = call
    return _plan((query.shape, key.shape, value.shape), query.dtype, query.device, *others)


def reads_residual(call: Call) -> bool:
    """Whether the backward pass that will run is faster with the output's residual."""
    query, key, value = call[:3]
    if not query.is_cuda:
        return False
    heads = query.shape[1], key.shape[1]
    if not all(type(one) is int for one in heads):
        heads = 1, 1  # a graph for any number of heads; the answer does not depend on it
    dims = int(query.shape[3]), int(value.shape[3])
    try:
        attention = compiled(*heads, *dims, query.dtype, call.scale, call.words, query.device)
        return _reads_residual(attention, _wanted(call.captures))
    except FlashliftError:
        return False  # the call itself reports the reason


@functools.lru_cache(maxsize=1024)
def _reads_residual(attention: Attention, wanted: tuple[bool, ...]) -> bool:
    return attention.reads_residual(_names(attention, wanted))


def _wanted(captures: Sequence[torch.Tensor]) -> tuple[bool, ...]:
    """Whether each captured tensor's gradient is requested."""
    return tuple([one.requires_grad and one.is_floating_point() for one in captures])


def _names(attention: Attention, wanted: tuple[bool, ...]) -> list[str]:
    return [name for name, one in zip(attention.captures, wanted, strict=True) if one]


def _options(device: torch.device) -> RunOptions | None:
    """On a CPU, torch's threads. On a GPU, its current stream: work that is queued there before and after stays in
    order."""
    if device.type == "cpu":
        return options_of_cpu()
    return RunOptions(ctypes.sizeof(RunOptions), None, current_raw_stream(device.index))


def _options_of_cpu(query: torch.Tensor) -> RunOptions | None:
    return None if query.is_cuda else options_of_cpu()


def run(call: Call) -> Results:
    return _run(plan_for(call), call)


def _run(plan: _Plan, call: Call) -> Results:
    empty, query = empty_like(call.query), call.query
    out_strides = dense_strides(plan.out_shape, query.stride())
    out = empty(plan.out_shape, out_strides, plan.out_dtype)
    lse = empty(plan.rows, plan.dense_rows, torch.float32)
    row_max = empty(plan.rows, plan.dense_rows, torch.float32) if call.want_max else empty(*_NOTHING, torch.float32)
    residual = empty(*((plan.out_shape, out_strides) if call.want_residual else _NOTHING), torch.int8)
    given = out, lse, row_max if call.want_max else None, residual if call.want_residual else None
    if takes_objects():
        run_on_objects(plan.attention, _options_of_cpu(query), call, given)
    else:
        views = Views()
        arguments = views.forward(call, *given)
        check(plan.attention._library, _run_forward(plan.attention._handle, arguments, _options(query.device)))
    return out, lse, row_max, residual


_NOTHING = (0,), (1,)  # sizes and strides
Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


def empty_like(tensor: torch.Tensor) -> Empty:
    """Returns memory on the tensor's device with these sizes and strides: faster than torch's documented functions, if
    torch has the function for that."""
    quick = empty_on_cpu if tensor.is_cpu else empty_on_current_gpu
    if quick is not None and (tensor.is_cpu or (tensor.is_cuda and current_device() == tensor.get_device())):
        return quick
    return lambda sizes, strides, dtype: tensor.new_empty_strided(sizes, strides, dtype=dtype)


@functools.lru_cache(maxsize=1024)
def dense_strides(sizes: tuple[int, ...], like: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """The strides of _empty_in_order_of() for a tensor with the strides `like`; without `like`, those of a contiguous
    tensor."""
    if like is not None and not like[0] >= like[1] >= like[2]:
        return _strides_in_order_of(like, sizes)
    strides, step = [1] * len(sizes), 1
    for i in range(len(sizes) - 1, -1, -1):
        strides[i] = step
        step *= max(sizes[i], 1)
    return tuple(strides)


def _strides_in_order_of(like: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    dense, step = [1, 1, 1, 1], shape[3]
    for i in sorted((2, 1, 0), key=like.__getitem__):
        dense[i] = step
        step *= shape[i]
    return tuple(dense)


def empty_results(call: Call) -> Results:
    """The operator's results without values: for graphs, of tensors whose sizes may be symbols."""
    query = call.query
    rows = query.shape[:3]
    dtype = torch.float32 if call.f32_out else query.dtype
    out = _empty_in_order_of(query, (*rows, call.value.shape[3]), dtype)
    lse = query.new_empty(rows, dtype=torch.float32)
    row_max = query.new_empty(rows if call.want_max else (0,), dtype=torch.float32)
    residual = torch.empty_like(out, dtype=torch.int8) if call.want_residual else out.new_empty(0, dtype=torch.int8)
    return out, lse, row_max, residual


def _empty_in_order_of(tensor: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Dense memory with the last dimension innermost, and the others in the order of the strides of `tensor`: the
    result for a transposed query can be transposed back without a copy, as PyTorch's can."""
    strides = tensor.stride()
    if strides[0] >= strides[1] >= strides[2]:
        return tensor.new_empty(shape, dtype=dtype)
    return tensor.new_empty_strided(shape, _strides_in_order_of(strides, shape), dtype=dtype)


def run_for_backward(call: Call) -> Results:
    """As run(), if the backward pass may read the output."""
    plan = plan_for(call)
    # Within compiled graphs, tensors do not show whether their gradient is needed, but the residual is requested if it
    # is.
    if call.query.is_cuda and (call.want_residual or any(one.requires_grad for one in call[:3])):
        _prepare_backward(plan.attention, _wanted(call.captures))
    results = _run(plan, call)
    if plan.out_dtype != call.query.dtype:
        _snap_rows_to(call.query.dtype, results[0])
    return results


@functools.lru_cache(maxsize=1024)
def _prepare_backward(attention: Attention, wanted: tuple[bool, ...]) -> None:
    """Once for each kernel: compiles the backward pass at the same time as the forward pass's kernel, which the call
    compiles now, and as what follows. A backward call that comes earlier waits for it. wanted: whether each captured
    tensor's gradient is requested."""

    def prepare() -> None:
        with contextlib.suppress(FlashliftError):  # the backward call reports the reason
            attention.prepare_backward(_names(attention, wanted))

    threading.Thread(target=prepare, name="flashlift: backward pass").start()


def _snap_rows_to(dtype: torch.dtype, out: torch.Tensor) -> None:
    """Replaces each row whose numbers are all numbers of 16 bits, up to a float32 sum's rounding, by these.

    For example, if all values are equal, the output becomes that value, and gradients that vanish then vanish exactly,
    as they do if the backward pass reads the output of 16 bits. Single numbers may be near one by chance.
    """
    for part in (out[..., :4], out):  # few rows, if any, pass the first test
        rounded = part.to(dtype).to(out.dtype)
        is_close = ((part - rounded).abs_() <= rounded.abs() * 2.0**-19).all(-1, keepdim=True)
        if not bool(is_close.any()):
            return
    torch.where(is_close, rounded, out, out=out)


def differentiate(
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
    call: Call,
    out: torch.Tensor,
    lse: torch.Tensor,
    residual: torch.Tensor,
    wanted: Sequence[int],
) -> list[torch.Tensor]:
    """The gradients by query, key, value, the captured tensors whose numbers are wanted, and the sinks, if any."""
    plan = plan_for(call)
    query, sinks = call.query, call.sinks
    empty = empty_like(query)
    shapes = [tuple(one.shape) for one in call[:3]]
    strides = [dense_strides(shape, one.stride()) for shape, one in zip(shapes, call[:3], strict=True)]
    gradients = [empty(shape, dense, query.dtype) for shape, dense in zip(shapes, strides, strict=True)]
    gradients += [one.new_empty(one.shape) for one in _further(call, wanted)]
    if grad_out.is_cuda and not _has_rows_to_copy(grad_out):
        grad_out = grad_out.contiguous()
    d_captures = by_capture(gradients, wanted, call.captures)
    d_sinks = None if sinks is None else gradients[-1]
    given = out, lse, None, residual if call.want_residual else None
    if takes_objects():
        d_inputs = grad_out, grad_lse, *gradients[:3], d_sinks
        run_on_objects(plan.attention, _options_of_cpu(query), call, given, d_inputs, d_captures)
        return gradients
    views, options = Views(), _options(query.device)
    arguments = views.backward(views.forward(call, *given), grad_out, grad_lse, gradients[:3], d_captures, d_sinks)
    with workspace(options, query.device):
        check(plan.attention._library, _run_backward(plan.attention._handle, arguments, options))
    return gradients


def _has_rows_to_copy(tensor: torch.Tensor) -> bool:
    """Whether a GPU can copy whole rows of the tensor, which the fastest kernels need. The gradient of a sum, one
    number in all its places, has no such rows."""
    a, b, c, innermost = tensor.stride()
    if innermost != 1 or not (a and b and c) or tensor.data_ptr() % 16:
        return False
    return (a | b | c) * tensor.element_size() % 16 == 0


def empty_gradients(call: Call, wanted: Sequence[int]) -> list[torch.Tensor]:
    """The operator's gradients without values: for graphs."""
    gradients = [_empty_in_order_of(one, one.shape, one.dtype) for one in call[:3]]
    return gradients + [one.new_empty(one.shape) for one in _further(call, wanted)]


def _further(call: Call, wanted: Sequence[int]) -> list[torch.Tensor]:
    """The tensors that get gradients besides query, key and value. The gradients are dense, even for a captured tensor
    that is expanded."""
    captures = [call.captures[i] for i in wanted]
    return captures if call.sinks is None else [*captures, call.sinks]


def by_capture(
    gradients: Sequence[torch.Tensor], wanted: Sequence[int], captures: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients of the captured tensors among the results of differentiate(), each at its tensor's position."""
    placed: list[torch.Tensor | None] = [None] * len(captures)
    for place, gradient in zip(wanted, gradients[3:], strict=False):
        placed[place] = gradient
    return placed


def block_kinds(
    program: str,
    captures: Sequence[torch.Tensor],
    sizes: tuple[int, int],
    lengths: tuple[int, int],
    blocks: tuple[int, int],
    shape: Sequence[int],
) -> torch.Tensor:
    """The blocks that a mask program keeps, found by intervals: uint8 [batch or 1, heads or 1, q blocks, kv blocks] on
    the CPU: 0 for nothing, 2 for everything, and 1 if unknown."""
    batch, heads = sizes
    problem = f"attn b{batch} hq{heads} hkv{heads} sq{lengths[0]} skv{lengths[1]} dqk8 dv8 f32 {program}"
    kinds = torch.empty(shape, dtype=torch.uint8, device="cpu")
    views = Views()
    check(core(), _block_kinds(problem.encode(), views.all_of(captures), len(captures), *blocks, views.of(kinds)))
    return kinds
