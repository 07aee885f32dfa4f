"""Compiled attentions for PyTorch tensors, and the operators torch.ops.flashlift.attention and attention_backward."""

import contextlib
import ctypes
import functools
import math
from collections.abc import Iterator, Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from flashlift._attention import Attention
from flashlift._errors import UnsupportedError
from flashlift._library import Arguments, BackwardArguments, DLTensor, RunOptions, check, core
from flashlift.torch._program import DTYPE_NAMES
from flashlift.torch._threads import options_of_cpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DEVICES = ("cpu", "cuda")

# What torch's profilers show of a call that goes past the dispatcher, which shows operators itself.
_Recorded = torch._C._profiler._RecordFunctionFast

_POINTER = ctypes.POINTER(DLTensor)
_pointer_in = ctypes.PYFUNCTYPE(_POINTER, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


class _Views:
    """DLPack views of tensors, alive as long as this is. torch makes them faster than ctypes would."""

    def __init__(self) -> None:
        self._capsules: list[object] = []

    def of(self, tensor: torch.Tensor) -> "ctypes._Pointer[DLTensor]":
        capsule = torch._C._to_dlpack(tensor.resolve_neg())  # DLPack forgets a lazy negation
        self._capsules.append(capsule)
        return _pointer_in(capsule, b"dltensor")

    def list_of(self, tensors: Sequence[torch.Tensor | None]) -> ctypes.Array:
        return (_POINTER * len(tensors))(*[_POINTER() if one is None else self.of(one) for one in tensors])

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        captures: Sequence[torch.Tensor],
        sinks: torch.Tensor | None,
        seed: torch.Tensor | None,
        out: torch.Tensor,
        lse: torch.Tensor,
        row_max: torch.Tensor | None = None,
    ) -> Arguments:
        arguments = Arguments(
            struct_size=ctypes.sizeof(Arguments),
            q=self.of(query),
            k=self.of(key),
            v=self.of(value),
            out=self.of(out),
            lse=self.of(lse),
            captures=self.list_of(captures),
            capture_count=len(captures),
        )
        if sinks is not None:
            arguments.sinks = self.of(sinks)
        if seed is not None:
            arguments.dropout_seed = seed.item() % 2**64
        if row_max is not None:
            arguments.row_max = self.of(row_max)
        return arguments


@functools.lru_cache(maxsize=1024)
def _compiled(
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int,
    dtype: torch.dtype,
    scale: float,
    features: str,
    device: torch.device,
) -> Attention:
    return Attention(
        f"attn b1 hq{q_heads} hkv{kv_heads} sq1 skv1 dqk{head_dim} dv{value_dim} {DTYPE_NAMES[dtype]} "
        f"scale={scale!r} lse {features}",
        str(device),
        lengths_known=False,
    )


def _compiled_for(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, features: str, scale: float
) -> Attention:
    return _compiled(
        query.shape[1], key.shape[1], query.shape[3], value.shape[3], query.dtype, scale, features, query.device
    )


def _options(device: torch.device) -> RunOptions | None:
    """On a CPU, torch's threads. On a GPU, its current stream: what is queued there before and after stays in order."""
    if device.type == "cpu":
        return options_of_cpu()
    return RunOptions(ctypes.sizeof(RunOptions), None, torch.cuda.current_stream(device).cuda_stream)


def run(
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Runs an attention and returns (out, lse, row maxima, which are empty if not wanted).

    features: the programs, in the words of the problem text. f32_out: out is float32 whatever the query is.
    """
    features = _with_results(features, want_max, f32_out)
    attention = _compiled_for(query, key, value, features, scale)
    out, lse, row_max = empty_results(query, value, want_max, f32_out)
    views = _Views()
    arguments = views.forward(query, key, value, captures, sinks, seed, out, lse, row_max if want_max else None)
    library = attention._library
    check(library, library.flashlift_attention_run(attention._handle, arguments, _options(query.device)))
    return out, lse, row_max


def _with_results(features: str, want_max: bool, f32_out: bool) -> str:
    if want_max:
        features = "row_max " + features
    return "out=f32 " + features if f32_out else features


def empty_results(
    query: torch.Tensor, value: torch.Tensor, want_max: bool, f32_out: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Memory for the output, whose dimensions lie in the order of the query's, for lse and for row maxima."""
    rows = query.shape[:3]
    out = _empty_in_order_of(query, (*rows, value.shape[3]), torch.float32 if f32_out else query.dtype)
    lse = query.new_empty(rows, dtype=torch.float32)
    return out, lse, query.new_empty(rows if want_max else (0,), dtype=torch.float32)


def _empty_in_order_of(tensor: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Dense memory with the last dimension innermost, and the others in the order of the strides of `tensor`: what a
    transposed query gives can be transposed back without a copy, as PyTorch's can."""
    strides = tensor.stride()[:3]
    order = sorted(range(3), key=lambda i: strides[i], reverse=True)
    if order == [0, 1, 2]:
        return tensor.new_empty(shape, dtype=dtype)
    memory = tensor.new_empty([shape[i] for i in (*order, 3)], dtype=dtype)
    return memory.permute([order.index(i) for i in range(3)] + [3])


def run_for_backward(
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As run(), where the backward pass may read the output."""
    results = run(query, key, value, captures, sinks, seed, features, scale, want_max, f32_out)
    if results[0].dtype != query.dtype:
        _settle(results[0], query.dtype)
    return results


def _settle(out: torch.Tensor, dtype: torch.dtype) -> None:
    """Rows of which every number is one of 16 bits, but for the rounding of a float32 sum, become these numbers.

    Where all values are equal, say, the output is theirs, and gradients that vanish then vanish exactly, as they do where
    the output of 16 bits is what the backward pass reads. That single numbers are near one happens by chance.
    """
    for part in (out[..., :4], out):  # few rows pass the first test, if any
        rounded = part.to(dtype).to(out.dtype)
        is_close = ((part - rounded).abs_() <= rounded.abs() * 2.0**-19).all(-1, keepdim=True)
        if not bool(is_close.any()):
            return
    torch.where(is_close, rounded, out, out=out)


attention = torch.library.custom_op("flashlift::attention", run_for_backward, mutates_args=(), device_types=DEVICES)


@attention.register_fake
def _(query, key, value, captures, sinks, seed, features, scale, want_max, f32_out):  # noqa: ANN001, ANN202
    return empty_results(query, value, want_max, f32_out)


def differentiate(
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    captures: Sequence[torch.Tensor],
    sinks: torch.Tensor | None,
    seed: torch.Tensor | None,
    wanted: Sequence[int],
    features: str,
    scale: float,
) -> list[torch.Tensor]:
    """The gradients by query, key, value, the captured tensors whose numbers are wanted, and the sinks, if any."""
    features = _with_results(features, False, out.dtype != query.dtype)
    attention = _compiled_for(query, key, value, features, scale)
    gradients = _empty_gradients(query, key, value, captures, sinks, wanted)
    views = _Views()
    forward = views.forward(query, key, value, captures, sinks, seed, out, lse)
    arguments = BackwardArguments(
        struct_size=ctypes.sizeof(BackwardArguments),
        forward=ctypes.pointer(forward),
        d_out=views.of(grad_out),
        d_q=views.of(gradients[0]),
        d_k=views.of(gradients[1]),
        d_v=views.of(gradients[2]),
        d_captures=views.list_of(_by_capture(gradients, wanted, captures)),
    )
    if grad_lse is not None:
        arguments.d_lse = views.of(grad_lse)
    if sinks is not None:
        arguments.d_sinks = views.of(gradients[-1])
    library = attention._library
    check(library, library.flashlift_attention_run_backward(attention._handle, arguments, _options(query.device)))
    return gradients


attention_backward = torch.library.custom_op(
    "flashlift::attention_backward", differentiate, mutates_args=(), device_types=DEVICES
)


def _empty_gradients(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    captures: Sequence[torch.Tensor],
    sinks: torch.Tensor | None,
    wanted: Sequence[int],
) -> list[torch.Tensor]:
    """Each of its tensor's own shape and type, dense: a captured tensor may be expanded, its gradient must not be."""
    like = [*(captures[i] for i in wanted), *([] if sinks is None else [sinks])]
    return [
        *(_empty_in_order_of(one, one.shape, one.dtype) for one in (query, key, value)),
        *(one.new_empty(one.shape) for one in like),
    ]


def _wanted(needed: Sequence[bool], captures: Sequence[torch.Tensor]) -> list[int]:
    """The numbers of the captured tensors whose gradients are asked for, and exist."""
    return [i for i, (asked, one) in enumerate(zip(needed, captures, strict=True)) if asked and one.is_floating_point()]


def _by_capture(
    gradients: Sequence[torch.Tensor], wanted: Sequence[int], captures: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Of what differentiate() gives, those of the captured tensors, each in its tensor's place."""
    placed: list[torch.Tensor | None] = [None] * len(captures)
    for place, gradient in zip(wanted, gradients[3:], strict=False):
        placed[place] = gradient
    return placed


def _by_input(
    gradients: Sequence[torch.Tensor],
    wanted: Sequence[int],
    captures: Sequence[torch.Tensor],
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients in the order of the inputs of _Attention and _Direct."""
    d_sinks = None if sinks is None else gradients[-1]
    return *gradients[:3], d_sinks, None, None, None, None, None, *_by_capture(gradients, wanted, captures)


@attention_backward.register_fake
def _(grad_out, grad_lse, query, key, value, out, lse, captures, sinks, seed, wanted, features, scale):  # noqa: ANN001, ANN202
    return _empty_gradients(query, key, value, captures, sinks, wanted)


def _save(ctx, inputs, output):  # noqa: ANN001, ANN202
    query, key, value, captures, sinks, seed, ctx.features, ctx.scale, _, _ = inputs
    ctx.save_for_backward(query, key, value, *output[:2], sinks, seed, *captures)
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_out, grad_lse, grad_max):  # noqa: ANN001, ANN202
    query, key, value, out, lse, sinks, seed, *captures = ctx.saved_tensors
    needed = ctx.needs_input_grad
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    by_capture = needed[3] if isinstance(needed[3], (list, tuple)) else [needed[3]] * len(captures)
    wanted = _wanted(by_capture, captures)
    gradients = torch.ops.flashlift.attention_backward(
        grad_out, grad_lse, query, key, value, out, lse, captures, sinks, seed, wanted, ctx.features, ctx.scale
    )
    d_captures = _by_capture(gradients, wanted, captures)
    return *gradients[:3], d_captures, None if sinks is None else gradients[-1], None, None, None, None, None


attention.register_autograd(_backward, setup_context=_save)


def _no_second_derivative(ctx, *grads):  # noqa: ANN001, ANN002, ANN202
    raise UnsupportedError(
        "flashlift: attention has no second derivative; do without create_graph=True, or use unfused attention (inputs "
        "of float64 are computed unfused)"
    )


attention_backward.register_autograd(_no_second_derivative)


def _no_forward_mode(ctx, *tangents):  # noqa: ANN001, ANN002, ANN202
    raise UnsupportedError(
        "flashlift: attention has no forward-mode derivative (jvp, jacfwd, hessian); use vjp, grad or jacrev, or unfused "
        "attention (inputs of float64 are computed unfused)"
    )


def _has_tangent(tensor: torch.Tensor) -> bool:
    return torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None


def _results_over(info, in_dims, args, function):  # noqa: ANN001, ANN202
    """vmap by a loop: the results of `function` for each slice, stacked. A program may read the batch index, so that a
    dimension cannot simply join the batch; and one attention is work enough for the machine."""
    slices = []
    for i in range(info.batch_size):
        here = [one.select(dim, i) if type(dim) is int else one for one, dim in zip(args, in_dims, strict=True)]
        slices.append(function(*here))
    stacked = tuple(None if one[0] is None else torch.stack(one) for one in zip(*slices, strict=True))
    return stacked, tuple(None if one is None else 0 for one in stacked)


class _Attention(torch.autograd.Function):
    """The same operator for torch.func's transforms, which do not go through an operator's own autograd formula."""

    @staticmethod
    def forward(query, key, value, sinks, seed, features, scale, want_max, f32_out, *captures):  # noqa: ANN001, ANN002, ANN205
        operator = torch.ops.flashlift.attention
        return operator(query, key, value, list(captures), sinks, seed, features, scale, want_max, f32_out)

    @staticmethod
    def setup_context(ctx, inputs, output):  # noqa: ANN001, ANN205
        query, key, value, sinks, seed, ctx.features, ctx.scale, _, _, *captures = inputs
        ctx.save_for_backward(query, key, value, *output[:2], sinks, seed, *captures)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx, grad_out, grad_lse, grad_max):  # noqa: ANN001, ANN205
        saved = ctx.saved_tensors
        sinks, captures = saved[5], saved[7:]
        wanted = _wanted(ctx.needs_input_grad[9:], captures)
        gradients = _AttentionBackward.apply(tuple(wanted), ctx.features, ctx.scale, grad_out, grad_lse, *saved)
        return _by_input(gradients, wanted, captures, sinks)

    jvp = staticmethod(_no_forward_mode)

    @staticmethod
    def vmap(info, in_dims, *args):  # noqa: ANN001, ANN002, ANN205
        return _results_over(info, in_dims, args, _Attention.apply)


class _Direct(torch.autograd.Function):
    """Without the operators, where nothing else has to see a call: through them PyTorch imports TorchDynamo, which takes
    two seconds of a process's first training step."""

    @staticmethod
    def forward(ctx, query, key, value, sinks, seed, features, scale, want_max, f32_out, *captures):  # noqa: ANN001, ANN002, ANN205
        with _Recorded("flashlift::attention"):
            results = run_for_backward(query, key, value, captures, sinks, seed, features, scale, want_max, f32_out)
        ctx.features, ctx.scale = features, scale
        ctx.save_for_backward(query, key, value, *results[:2], sinks, seed, *captures)
        ctx.mark_non_differentiable(results[2])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, grad_out, grad_lse, grad_max):  # noqa: ANN001, ANN205
        query, key, value, out, lse, sinks, seed, *captures = ctx.saved_tensors
        wanted = _wanted(ctx.needs_input_grad[9:], captures)
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        given = (grad_out, query, key, value, out, lse, *captures)
        if torch.is_grad_enabled() or not _are_plain([one for one in (*given, grad_lse, sinks) if one is not None]):
            read = query, key, value, out, lse, sinks, seed, *captures
            gradients = _AttentionBackward.apply(tuple(wanted), ctx.features, ctx.scale, grad_out, grad_lse, *read)
        else:
            read = query, key, value, out, lse, captures, sinks, seed
            with _Recorded("flashlift::attention_backward"):
                gradients = differentiate(grad_out, grad_lse, *read, wanted, ctx.features, ctx.scale)
        return _by_input(gradients, wanted, captures, sinks)


class _AttentionBackward(torch.autograd.Function):
    @staticmethod
    def forward(wanted, features, scale, grad_out, grad_lse, query, key, value, out, lse, sinks, seed, *captures):  # noqa: ANN001, ANN002, ANN205
        backward = torch.ops.flashlift.attention_backward
        read = query, key, value, out, lse, list(captures), sinks, seed
        return tuple(backward(grad_out, grad_lse, *read, wanted, features, scale))

    @staticmethod
    def setup_context(ctx, inputs, output):  # noqa: ANN001, ANN205
        pass

    backward = staticmethod(_no_second_derivative)
    jvp = staticmethod(_no_forward_mode)

    @staticmethod
    def vmap(info, in_dims, *args):  # noqa: ANN001, ANN002, ANN205
        return _results_over(info, in_dims, args, _AttentionBackward.apply)


class _WithoutGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tensor, name):  # noqa: ANN001, ANN205
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx, inputs, output):  # noqa: ANN001, ANN205
        ctx.name = inputs[1]

    @staticmethod
    def backward(ctx, gradient):  # noqa: ANN001, ANN205
        raise UnsupportedError(
            f"flashlift: score_mod calls a torch.autograd.Function ({ctx.name}), and a score program has no place for its "
            "backward function; write the gradient with plain operations and detach(), or run under torch.no_grad()"
        )


def without_gradient(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The tensor, through which a gradient is refused: the mod calls the torch.autograd.Function of this name."""
    return _WithoutGradient.apply(tensor, name) if tensor.requires_grad else tensor


def _are_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether nothing but the kernel, and autograd, has to see a call: no transform, no mode, no subclass."""
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:
        return False
    if torch.compiler.is_compiling() or torch.autograd.forward_ad._current_level >= 0:
        return False
    return all([_is_plain_tensor(one) for one in tensors])


def _is_plain_tensor(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter


_GRAPH_MODES = (torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE)


def makes_graph() -> bool:
    """Whether what is called now becomes part of a graph, that other tensors will be given to."""
    return torch._C._get_tracing_state() is not None or any(map(torch._C._get_dispatch_mode, _GRAPH_MODES))


def are_readable(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether the content of tensors can be read now: they are not wrapped by a transform, and no CUDA graph is captured,
    which could not wait for them. Of tensors made in inference mode on a GPU it would have to be read in each call."""
    for one in tensors:
        if one is None:
            continue
        if not _is_plain_tensor(one) or torch._C._functorch.is_functorch_wrapped_tensor(one):
            return False
        if one.is_cuda and (one.is_inference() or torch.cuda.is_current_stream_capturing()):
            return False
    return True


@contextlib.contextmanager
def outside_of_modes() -> Iterator[None]:
    """What is computed here is kept for other calls: ordinary tensors, whichever modes and transforms this call runs in."""
    with (
        _disable_current_modes(),
        torch._C._DisableFuncTorch(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield


def block_kinds(
    program: str,
    captures: Sequence[torch.Tensor],
    sizes: tuple[int, int],
    lengths: tuple[int, int],
    blocks: tuple[int, int],
    shape: Sequence[int],
) -> torch.Tensor:
    """Which blocks a mask program keeps, by intervals: uint8 [batch or 1, heads or 1, q blocks, kv blocks] on the CPU of 0 for
    nothing, 2 for everything, and 1 for what may be either."""
    batch, heads = sizes
    problem = f"attn b{batch} hq{heads} hkv{heads} sq{lengths[0]} skv{lengths[1]} dqk8 dv8 f32 {program}"
    kinds = torch.empty(shape, dtype=torch.uint8, device="cpu")
    views = _Views()
    library = core()
    check(
        library,
        library.flashlift_block_kinds(
            problem.encode(), views.list_of(captures), len(captures), *blocks, views.of(kinds)
        ),
    )
    return kinds


def call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    captures: Sequence[torch.Tensor],
    sinks: torch.Tensor | None,
    seed: torch.Tensor | None,
    features: str,
    scale: float,
    want_max: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The operator, or where that makes no difference what it does: the way through torch's dispatcher, in Python,
    takes longer than a short attention. An infinite scale is refused before anything else sees it.

    Where gradients may be wanted, the operator's own output is float32. The backward pass takes each row's
    <d_out, out> from it, and what rounding to 16 bits does to that is an error that all keys of the row share: it can
    be larger than all other errors of d_q together.
    """
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    given = (query, key, value, *captures) if sinks is None else (query, key, value, sinks, *captures)
    has_backward = query.device.type == "cpu" and query.dtype != torch.float32
    if torch._C._are_functorch_transforms_active():
        results = _Attention.apply(query, key, value, sinks, seed, features, scale, want_max, has_backward, *captures)
    elif _are_plain(given):
        if not torch.is_grad_enabled() or not any([one.requires_grad for one in given]):
            with _Recorded("flashlift::attention"):
                return run(query, key, value, captures, sinks, seed, features, scale, want_max, False)
        results = _Direct.apply(query, key, value, sinks, seed, features, scale, want_max, has_backward, *captures)
    elif torch.autograd.forward_ad._current_level >= 0 and any(map(_has_tangent, given)):
        _no_forward_mode(None)
    else:
        f32_out = has_backward and torch.is_grad_enabled() and any(one.requires_grad for one in given)
        results = torch.ops.flashlift.attention(
            query, key, value, list(captures), sinks, seed, features, scale, want_max, f32_out
        )
    return results[0].to(query.dtype), *results[1:]
