"""Compiled attentions, and running them on PyTorch tensors."""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Sequence

import torch

from flashlift._attention import Attention
from flashlift._errors import FlashliftError
from flashlift._library import RunOptions, check, core
from flashlift.torch._internals import current_raw_stream
from flashlift.torch._program import DTYPE_NAMES
from flashlift.torch._run.call import Call
from flashlift.torch._run.threads import options_of_cpu
from flashlift.torch._run.views import Views, taking_addresses
from flashlift.torch._run.workspace import workspace

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DEVICES = ("cpu", "cuda")

_run_forward = taking_addresses("flashlift_attention_run")
_run_backward = taking_addresses("flashlift_attention_run_backward")

# out, lse, row maxima and what rounding took from out; the last two are empty if not wanted
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


def _compiled_for(call: Call) -> Attention:
    query, key, value = call[:3]
    return compiled(
        query.shape[1], key.shape[1], query.shape[3], value.shape[3], query.dtype, call.scale, call.words, query.device
    )


def reads_residual(call: Call) -> bool:
    """Whether the backward pass that will run is the one that is faster with the output's residual."""
    query, key, value = call[:3]
    if not query.is_cuda:
        return False
    heads = query.shape[1], key.shape[1]
    if not all(type(one) is int for one in heads):
        heads = 1, 1  # a graph for any number of them; the answer is the same for all
    dims = int(query.shape[3]), int(value.shape[3])
    try:
        attention = compiled(*heads, *dims, query.dtype, call.scale, call.words, query.device)
        return _reads_residual(attention, _wanted(call.captures))
    except FlashliftError:
        return False  # whatever runs the call says why


@functools.lru_cache(maxsize=1024)
def _reads_residual(attention: Attention, wanted: tuple[bool, ...]) -> bool:
    return attention.reads_residual(_names(attention, wanted))


def _wanted(captures: Sequence[torch.Tensor]) -> tuple[bool, ...]:
    """Whether each captured tensor's gradient is."""
    return tuple(one.requires_grad and one.is_floating_point() for one in captures)


def _names(attention: Attention, wanted: tuple[bool, ...]) -> list[str]:
    return [name for name, one in zip(attention.captures, wanted, strict=True) if one]


def _options(device: torch.device) -> RunOptions | None:
    """On a CPU, torch's threads. On a GPU, its current stream: what is queued there before and after stays in order."""
    if device.type == "cpu":
        return options_of_cpu()
    return RunOptions(ctypes.sizeof(RunOptions), None, current_raw_stream(device.index))


def run(call: Call) -> Results:
    return _run(_compiled_for(call), call)


def _run(attention: Attention, call: Call) -> Results:
    out, lse, row_max, residual = empty_results(call)
    views = Views()
    arguments = views.forward(
        call, out, lse, row_max if call.want_max else None, residual if call.want_residual else None
    )
    check(attention._library, _run_forward(attention._handle, arguments, _options(call.query.device)))
    return out, lse, row_max, residual


def empty_results(call: Call) -> Results:
    """Memory for the output, whose dimensions lie in the order of the query's, and for the other results."""
    query = call.query
    rows = query.shape[:3]
    dtype = torch.float32 if call.f32_out else query.dtype
    out = _empty_in_order_of(query, (*rows, call.value.shape[3]), dtype)
    lse = query.new_empty(rows, dtype=torch.float32)
    row_max = query.new_empty(rows if call.want_max else (0,), dtype=torch.float32)
    return out, lse, row_max, torch.empty_like(out) if call.want_residual else out.new_empty(0)


def _empty_in_order_of(tensor: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Dense memory with the last dimension innermost, and the others in the order of the strides of `tensor`: what a
    transposed query gives can be transposed back without a copy, as PyTorch's can."""
    strides = tensor.stride()
    if strides[0] >= strides[1] >= strides[2]:
        return tensor.new_empty(shape, dtype=dtype)
    dense, step = [1, 1, 1, 1], shape[3]
    for i in sorted((2, 1, 0), key=strides.__getitem__):
        dense[i] = step
        step *= shape[i]
    return tensor.new_empty_strided(shape, dense, dtype=dtype)


def run_for_backward(call: Call) -> Results:
    """As run(), where the backward pass may read the output."""
    attention = _compiled_for(call)
    # Within compiled graphs no tensor says that its gradient is wanted, but the residual is asked for.
    if call.query.is_cuda and (call.want_residual or any(one.requires_grad for one in call[:3])):
        _prepare_backward(attention, _wanted(call.captures))
    results = _run(attention, call)
    if results[0].dtype != call.query.dtype:
        _snap_rows_to(call.query.dtype, results[0])
    return results


@functools.lru_cache(maxsize=1024)
def _prepare_backward(attention: Attention, wanted: tuple[bool, ...]) -> None:
    """Once for each: compiles the backward pass beside the forward pass's kernel, which the call compiles now, and
    beside what follows. A backward call that comes meanwhile waits for it. wanted: whether each captured tensor's."""

    def prepare() -> None:
        with contextlib.suppress(FlashliftError):  # the backward call says why
            attention.prepare_backward(_names(attention, wanted))

    threading.Thread(target=prepare, name="flashlift: backward pass").start()


def _snap_rows_to(dtype: torch.dtype, out: torch.Tensor) -> None:
    """Rows of which every number is one of 16 bits, but for the rounding of a float32 sum, become these numbers.

    Where all values are equal, say, the output is theirs, and gradients that vanish then vanish exactly, as they do
    where the output of 16 bits is what the backward pass reads. That single numbers are near one happens by chance.
    """
    for part in (out[..., :4], out):  # few rows pass the first test, if any
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
    attention = _compiled_for(call)
    gradients = empty_gradients(call, wanted)
    if grad_out.is_cuda and not _has_rows_to_copy(grad_out):
        grad_out = grad_out.contiguous()
    views = Views()
    arguments = views.backward(
        views.forward(call, out, lse, residual=residual if call.want_residual else None),
        grad_out,
        grad_lse,
        gradients[:3],
        by_capture(gradients, wanted, call.captures),
        None if call.sinks is None else gradients[-1],
    )
    options = _options(call.query.device)
    with workspace(options, call.query.device):
        check(attention._library, _run_backward(attention._handle, arguments, options))
    return gradients


def _has_rows_to_copy(tensor: torch.Tensor) -> bool:
    """Whether a GPU can copy whole rows of it, which the fastest kernels need. A sum's gradient, one number in all its
    places, has none."""
    *strides, innermost = tensor.stride()
    size = tensor.element_size()
    return innermost == 1 and tensor.data_ptr() % 16 == 0 and all(one and one * size % 16 == 0 for one in strides)


def empty_gradients(call: Call, wanted: Sequence[int]) -> list[torch.Tensor]:
    """Each of its tensor's own shape and type, dense: a captured tensor may be expanded, its gradient must not be."""
    like = [*(call.captures[i] for i in wanted), *([] if call.sinks is None else [call.sinks])]
    return [
        *(_empty_in_order_of(one, one.shape, one.dtype) for one in call[:3]),
        *(one.new_empty(one.shape) for one in like),
    ]


def by_capture(
    gradients: Sequence[torch.Tensor], wanted: Sequence[int], captures: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Of what differentiate() gives, those of the captured tensors, each in its tensor's place."""
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
    """Which blocks a mask program keeps, by intervals: uint8 [batch or 1, heads or 1, q blocks, kv blocks] on the CPU
    of 0 for nothing, 2 for everything, and 1 for what may be either."""
    batch, heads = sizes
    problem = f"attn b{batch} hq{heads} hkv{heads} sq{lengths[0]} skv{lengths[1]} dqk8 dv8 f32 {program}"
    kinds = torch.empty(shape, dtype=torch.uint8, device="cpu")
    views = Views()
    library = core()
    tables = views.pointers(captures)
    check(
        library,
        library.flashlift_block_kinds(problem.encode(), tables, len(captures), *blocks, views.pointer(kinds)),
    )
    return kinds
