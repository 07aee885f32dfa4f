"""Misuse raises what PyTorch's flex_attention raises, of the same type."""

import reprlib
import types
import typing
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, FlexKernelOptions

from flashlift.torch._internals import warn_once
from flashlift.torch._run.kernels import DEVICES, DTYPES
from flashlift.torch._trace import ARGUMENTS

_BACKENDS = ("AUTO", "TRITON", "FLASH", "TRITON_DECODE")
_INTERNAL = ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX")
_NO_BLOCKS = 1 << 30
# The options of FlexKernelOptions (which lacks BACKEND in torch 2.9), and further ones of PyTorch's kernels.
_KNOWN_OPTIONS = frozenset(typing.get_type_hints(FlexKernelOptions)).union(
    "SPARSE_Q_BLOCK_SIZE SPARSE_KV_BLOCK_SIZE IS_DIVISIBLE SM_SCALE GQA_SHARED_HEADS HAS_FULL_BLOCKS QK_HEAD_DIM "
    "V_HEAD_DIM FLOAT32_PRECISION SPLIT_KV PARTITION_SIZE SAFE_N_BOUNDARY SKIP_MASK_SCORE num_consumer_groups "
    "num_buffers_warp_spec BACKEND".split()
)


def check_dense(**tensors: torch.Tensor) -> None:
    for name, one in tensors.items():
        if not isinstance(one, torch.Tensor):  # the type of error that PyTorch raises
            raise AttributeError(f"{name} is {type(one).__name__}; expected a torch.Tensor")
        if one.is_nested:
            raise NotImplementedError(
                "flex_attention does not support NestedTensor inputs; use dense ones, and a mask of document ids"
            )


def check_strided(**tensors: torch.Tensor) -> None:
    for name, one in tensors.items():
        if one.layout is not torch.strided:
            raise NotImplementedError(f"{name} is {one.layout}; expected a dense tensor, such as {name}.to_dense()")
        if type(one) is not torch.Tensor and hasattr(type(one), "to_local"):  # Dynamo finds it in the type only
            raise NotImplementedError(
                f"{name} is a {type(one).__name__}, split over devices; expected this device's own part, "
                f"{name}.to_local(), or a call within torch.distributed.tensor.experimental.local_map"
            )


def check_tensors(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> None:
    tensors = {"query": query, "key": key, "value": value}
    check_dense(**tensors)
    check_strided(**tensors)
    if not query.device == key.device == value.device:
        raise ValueError(
            "Expected query, key, and value to have the same device type, but got "
            f"query.device: {query.device}, key.device: {key.device}, and value.device: {value.device} instead."
        )
    if not query.dim() == key.dim() == value.dim() == 4:
        _refuse_dimensions(query, key, value)
    # Read once: each size takes as long as a check.
    (_, q_heads, _, depth), (*kv_rows, key_depth), (*value_rows, value_depth) = query.shape, key.shape, value.shape
    kv_heads = kv_rows[1]
    if q_heads == 0 or kv_heads == 0 or value_rows[1] == 0 or depth == 0 or key_depth == 0 or value_depth == 0:
        raise ValueError(f"Expected at least one head, and a depth of at least 1, but got {_shapes(query, key, value)}")
    if depth != key_depth:
        _refuse_depths(depth, key_depth)
    check_device(query)
    if query.dtype not in (*DTYPES, torch.float64) or not (
        key.dtype.is_floating_point and value.dtype.is_floating_point
    ):
        raise NotImplementedError(
            f"query has dtype {query.dtype}, key {key.dtype}, value {value.dtype}; expected a query of float32, "
            "bfloat16 or float16 (or float64, computed unfused), and keys and values of the same type or "
            "another floating one"
        )
    if kv_rows != value_rows:
        raise ValueError(f"key and value differ in batch, heads or length: {list(key.shape)} and {list(value.shape)}")
    if not enable_gqa and q_heads != kv_heads:
        raise ValueError(
            f"Expect query and key/value to have the same number of heads but got Hq={q_heads} and "
            f"Hkv={kv_heads}. Try setting enable_gqa=True for GQA."
        )
    if q_heads % kv_heads != 0:
        raise ValueError(
            "Expect number of query heads to be a multiple of kv heads for GQA but got "
            f"Hq={q_heads} and Hkv={kv_heads}."
        )


def _shapes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> str:
    return f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"  # Dynamo lacks str.join


def _refuse_depths(depth: int, key_depth: int) -> NoReturn:
    raise ValueError(
        f"Expect query and key/value to have the same embedding dimension but got E={depth} and E={key_depth}."
    )


def _refuse_dimensions(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> NoReturn:
    shapes = _shapes(query, key, value)
    if query.dim() < 2 or key.dim() < 2 or value.dim() < 2:
        raise ValueError(f"Expected query, key, and value to all be  at least 2 dimensional, but got {shapes}")
    if query.size(-1) != key.size(-1):
        _refuse_depths(query.size(-1), key.size(-1))
    raise NotImplementedError(
        f"NYI: query, key, and value must be 4D tensors [batch, heads, length, depth], but got {shapes}: unsqueeze them"
    )


def check_mods(score_mod: Any, mask_mod: Any) -> None:
    for name, mod in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        if mod is not None and not callable(mod):
            raise TypeError(f"{name} is {type(mod).__name__}; expected a function of ({ARGUMENTS[name]})")


def check_batch(query: torch.Tensor, key: torch.Tensor, block_mask: BlockMask | None, has_mask_mod: bool) -> None:
    """As in PyTorch's, keys and values with a batch of 1 serve every query if there is a mask."""
    if query.size(0) == key.size(0):
        return
    if block_mask is None and not has_mask_mod:
        raise ValueError(
            "Expect query and key/value to have the same batch size, or non-none block_mask, but got "
            f"block_mask=None, Bq={query.size(0)}, and Bkv={key.size(0)}. Expand them, or give a mask_mod."
        )
    if block_mask is not None and block_mask.kv_num_blocks.size(0) != query.size(0):
        raise ValueError(
            "Expect query and key/value to have the same batch size, or block_mask and query to have the same batch "
            f"size, but got Bq={query.size(0)}, Bkv={key.size(0)}, B_block_mask={block_mask.kv_num_blocks.size(0)}."
        )
    if key.size(0) != 1:
        raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={query.size(0)} and Bkv={key.size(0)}")


def check_flags(**flags: bool | None) -> None:
    for name, one in flags.items():
        if torch.compiler.is_dynamo_compiling():
            is_flag = not isinstance(one, str)
        else:
            is_flag = one is None or isinstance(one, (int, np.bool_, torch.SymBool))
        if not is_flag:
            raise TypeError(f"{name} is {one!r}; expected True or False")


def is_number(value: Any) -> bool:
    """Whether a float can hold the value."""
    if isinstance(value, torch.Tensor):
        return not (value.dtype.is_complex or value.dtype == torch.bool)
    if isinstance(value, (bool, np.bool_, complex, str, bytes, bytearray)):
        return False
    if torch.compiler.is_dynamo_compiling() or isinstance(value, (torch.SymInt, torch.SymFloat)):
        return True  # a symbol: converting it to float would add a guard
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def check_scale(scale: float | torch.Tensor | None) -> None:
    if scale is not None and not is_number(scale):
        raise TypeError(f"scale is {reprlib.repr(scale)}; expected a number, or None for 1/sqrt(depth)")
    if isinstance(scale, torch.Tensor) and (scale.numel() != 1 or (scale.requires_grad and torch.is_grad_enabled())):
        raise ValueError(
            f"scale is a tensor of shape {list(scale.shape)}"
            f"{' that requires a gradient' if scale.requires_grad else ''}; "
            "expected a number: multiply the query by a tensor, or the score in a score_mod that captures it"
        )


def check_sinks(sinks: torch.Tensor, query: torch.Tensor) -> None:
    heads = query.size(1)
    if not isinstance(sinks, torch.Tensor):
        raise TypeError(f"sinks is {type(sinks).__name__}; expected a torch.Tensor of shape [{heads}]")
    fits = sinks.dim() in (1, 2) and sinks.size(0) == heads and sinks.size(-1) > 0
    if not fits or not sinks.dtype.is_floating_point:
        raise ValueError(
            f"sinks is {sinks.dtype} {list(sinks.shape)}; expected floating point of shape [{heads}], or [{heads}, n] "
            "for n of each head"
        )
    if sinks.device != query.device:
        raise ValueError(f"sinks is on {sinks.device}, the query on {query.device}; expected both on one device")


def _surely(condition: bool | torch.SymBool) -> bool:
    # Under Dynamo, booleans of unknown sizes have the type bool, too.
    plain = type(condition) is bool and not torch.compiler.is_dynamo_compiling()
    return bool(condition) if plain else guard_or_false(condition)


def check_device(query: torch.Tensor) -> None:
    if query.device.type not in DEVICES:
        raise ValueError(
            "FlexAttention is only supported on CUDA and CPU devices here. Found input tensors on "
            f"{query.device.type} device."
        )


def check_block_mask_device(query: torch.Tensor, block_mask: BlockMask) -> None:
    if query.device != block_mask.kv_num_blocks.device:
        raise RuntimeError(
            "Expect q/k/v and block_mask to be on the same device but got "
            f"{query.device} and {block_mask.kv_num_blocks.device}. Use block_mask.to('{query.device}')."
        )


def check_block_mask(query: torch.Tensor, key: torch.Tensor, block_mask: BlockMask) -> None:
    if block_mask.BLOCK_SIZE[0] >= _NO_BLOCKS and block_mask.BLOCK_SIZE[1] >= _NO_BLOCKS:
        return
    q_len, kv_len = block_mask.seq_lengths
    # Lengths of a compiled graph may be unknown until it runs; then the mask is assumed to fit.
    if _surely(query.size(2) != q_len) or _surely(key.size(2) != kv_len):
        smaller = query.size(2) > q_len or key.size(2) > kv_len
        raise ValueError(
            f"block_mask was created for block_mask.shape={block_mask.shape} but got q_len={query.size(2)} and "
            f"kv_len={key.size(2)}. As the block mask was created for a {'smaller' if smaller else 'larger'} length "
            "than you're using it for, you likely need to create a new block mask"
            + ("." if smaller else ", or 'adjust' it by block_mask._adjust(q_len, kv_len), which crops it.")
            + " flashlift also takes mask_mod= with no block mask, for any length."
        )
    rows, q_block = block_mask.kv_indices.shape[-2], block_mask.BLOCK_SIZE[0]
    if _surely(rows * q_block < q_len):
        raise ValueError(
            f"block_mask has {rows} rows of {q_block} queries each, and {q_len} queries; expected rows for all of them"
        )
    for i, name in ((0, "batch"), (1, "heads")):
        size = block_mask.kv_num_blocks.size(i) if block_mask.kv_num_blocks.dim() == 3 else 1
        # A mask may be for more sequences or heads, for example if one sequence of a batch is decoded alone.
        if _surely(size != 1) and _surely(size < query.size(i)):
            raise ValueError(
                f"block_mask has {name}={size}, the query {query.size(i)}; expected at least as many, or 1 for all"
            )


def check_options(kernel_options: Mapping[str, Any] | None) -> None:
    """Options tune PyTorch's kernels: they are read, and have no effect except that unsupported ones are refused."""
    if not isinstance(kernel_options, (Mapping, types.NoneType)):
        raise TypeError(f"kernel_options is {kernel_options!r}; expected a dictionary of options by their names")
    options = dict(kernel_options or {})
    if "BACKEND" in options and options.get("FORCE_USE_FLEX_ATTENTION", False):
        raise RuntimeError(
            "BACKEND cannot be combined with legacy FORCE_USE_FLEX_ATTENTION. BACKEND supersedes the legacy knob; "
            "please drop FORCE_USE_FLEX_ATTENTION and only specify the desired BACKEND."
        )
    if options.get("BACKEND", "AUTO") not in _BACKENDS:
        raise ValueError(f"Invalid BACKEND value '{options['BACKEND']}'. Must be one of {_BACKENDS}")
    for name in _INTERNAL:
        if name in options:
            raise AssertionError(f"{name} must not be in kernel_options")
    for name in options:
        if str(name).removeprefix("fwd_").removeprefix("bwd_") not in _KNOWN_OPTIONS:
            raise ValueError(f"kernel option {name} is not known; expected one of {', '.join(sorted(_KNOWN_OPTIONS))}")


def check_aux(return_lse: bool, return_aux: AuxRequest | None) -> None:
    if return_lse and return_aux is None and not torch.compiler.is_dynamo_compiling():
        warn_once(
            "deprecated_return_lse",
            "return_lse is deprecated in PyTorch. Please use return_aux=AuxRequest(lse=True) instead.",
            category=FutureWarning,
        )
    if not isinstance(return_aux, (AuxRequest, types.NoneType)):
        raise TypeError(f"return_aux is {return_aux!r}; expected an AuxRequest, such as AuxRequest(lse=True), or None")
    if return_lse and return_aux is not None:
        raise ValueError(
            "Cannot specify both return_lse and return_aux. return_lse is deprecated, please use "
            "return_aux=AuxRequest(lse=True) instead."
        )
