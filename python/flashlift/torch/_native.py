"""Compiled attentions for PyTorch tensors, and the operator torch.ops.flashlift.attention."""

import ctypes
import functools
import math
from collections.abc import Sequence

import torch

from flashlift._attention import Attention
from flashlift._errors import UnsupportedError
from flashlift._library import Arguments, DLDataType, DLDevice, DLTensor, check
from flashlift._tensor import CPU
from flashlift.torch._program import DTYPE_NAMES

_DL_TYPES = {
    torch.bool: (6, 8),
    torch.int8: (0, 8),
    torch.uint8: (1, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.uint32: (1, 32),
    torch.int64: (0, 64),
    torch.float16: (2, 16),
    torch.bfloat16: (4, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_ARRAYS = [ctypes.c_int64 * rank for rank in range(65)]
_CPU = DLDevice(CPU, 0)


def _view(tensor: torch.Tensor) -> DLTensor:
    array = _ARRAYS[tensor.dim()]
    code, bits = _DL_TYPES[tensor.dtype]
    return DLTensor(
        tensor.data_ptr(), _CPU, tensor.dim(), DLDataType(code, bits, 1), array(*tensor.shape), array(*tensor.stride()), 0
    )


@functools.lru_cache(maxsize=1024)
def _compiled(
    q_heads: int, kv_heads: int, head_dim: int, value_dim: int, dtype: torch.dtype, scale: float, features: str
) -> Attention:
    # Batch and lengths are those of a call: what stands here is never used.
    return Attention(
        f"attn b1 hq{q_heads} hkv{kv_heads} sq1 skv1 dqk{head_dim} dv{value_dim} {DTYPE_NAMES[dtype]} "
        f"scale={scale!r} lse {features}"
    )


def run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    captures: Sequence[torch.Tensor],
    sinks: torch.Tensor | None,
    features: str,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs an attention and returns (out, lse). features: the programs, in the words of the problem text."""
    attention = _compiled(
        query.shape[1], key.shape[1], query.shape[3], value.shape[3], query.dtype, scale, features
    )
    out, lse = empty_results(query, value)
    views = [_view(tensor) for tensor in captures]
    arguments = Arguments(
        struct_size=ctypes.sizeof(Arguments),
        q=ctypes.pointer(_view(query)),
        k=ctypes.pointer(_view(key)),
        v=ctypes.pointer(_view(value)),
        out=ctypes.pointer(_view(out)),
        lse=ctypes.pointer(_view(lse)),
        captures=(ctypes.POINTER(DLTensor) * len(views))(*map(ctypes.pointer, views)),
        capture_count=len(views),
    )
    if sinks is not None:
        arguments.sinks = ctypes.pointer(_view(sinks))
    library = attention._library
    check(library, library.flashlift_attention_run(attention._handle, arguments, None))
    return out, lse


def empty_results(query: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for the output, laid out [batch, length, heads, depth] if the query is, and for lse."""
    batch, heads, length, _ = query.shape
    depth = value.shape[3]
    if query.is_contiguous() or not query.transpose(1, 2).is_contiguous():
        out = query.new_empty((batch, heads, length, depth))
    else:
        out = query.new_empty((batch, length, heads, depth)).transpose(1, 2)
    return out, query.new_empty((batch, heads, length), dtype=torch.float32)


@torch.library.custom_op("flashlift::attention", mutates_args=(), device_types="cpu")
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    captures: Sequence[torch.Tensor],
    sinks: torch.Tensor | None,
    features: str,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    return run(query, key, value, captures, sinks, features, scale)


@attention.register_fake
def _(query, key, value, captures, sinks, features, scale):  # noqa: ANN001, ANN202
    return empty_results(query, value)


def _no_backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN202
    raise UnsupportedError(
        "flashlift: no CPU backward yet; call it under torch.no_grad(), detach its inputs, or use PyTorch's own "
        "attention where gradients are needed"
    )


attention.register_autograd(_no_backward)


def call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    captures: Sequence[torch.Tensor],
    sinks: torch.Tensor | None,
    features: str,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The operator, with a subnormal or infinite scale refused before anything else sees it."""
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    return attention(query, key, value, list(captures), sinks, features, scale)
