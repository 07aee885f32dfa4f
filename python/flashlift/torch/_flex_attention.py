"""flex_attention and scaled_dot_product_attention on Flashlift's kernels."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask

from flashlift.torch import _checks
from flashlift.torch._block_mask import mask_mod_of, mask_mod_of_sequences
from flashlift.torch._mods import Leaves, traced
from flashlift.torch._program import Bounds
from flashlift.torch._run.autograd import without_gradient
from flashlift.torch._run.call import Call
from flashlift.torch._run.dispatch import call_kernel
from flashlift.torch._trace import Trace
from flashlift.torch._unfused import attend_unfused

Mod = Callable[..., torch.Tensor]


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Mod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
    mask_mod: Mod | None = None,
    sinks: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    dropout_p: float = 0,  # not 0.0: under dynamic=True Dynamo makes an input of a float, finds it is none, and begins anew
    dropout_seed: int | torch.Tensor | None = None,
    deterministic: bool | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor] | tuple[torch.Tensor, AuxOutput]:
    """softmax(score_mod(scale q kᵀ) where mask_mod) v as one fused kernel, in PyTorch's signature and beyond it.

    query [batch, q_heads, q_len, depth], key [batch, kv_heads, kv_len, depth], value [batch, kv_heads, kv_len,
    value_depth]: float32, bfloat16 or float16, on the CPU or on one CUDA device, of any strides. float64 is computed
    unfused. Grouped heads need enable_gqa, as in PyTorch.
    score_mod(score, b, h, q_idx, kv_idx) and mask_mod(b, h, q_idx, kv_idx) are functions of 0-dimensional tensors; they
    are run once, traced, and compiled. What they capture may change with each call: only a new structure is traced.
    Where there is a mask, keys and values of a batch of 1 serve the queries of all.
    block_mask: a BlockMask of PyTorch's, as PyTorch compiles it: nothing is kept outside of its listed blocks, everything in
    full ones, and in partial ones what its mask_mod keeps. mask_mod gives a mask without any block mask, and is applied on
    top of one.
    sinks [q_heads] or [q_heads, n]: extra logits that take part in the softmax and have no value.
    cu_seqlens: sequences packed one after the other in a batch of 1, that do not see each other. Integers [sequences + 1]
    that begin with 0 and rise: where each begins, and the last ends. A pair of them where keys have other lengths than
    queries. Mods count positions in the whole, as they do without it.
    dropout_p leaves each key out of each row with this probability. dropout_seed, an integer of 64 bits or a tensor of
    one, says which; None draws it from torch's generator, so that torch.manual_seed and checkpointing have their way.
    deterministic: True refuses what may give other bits in each run: the gradients of captured tensors on CUDA, which are
    sums of atomic additions. False allows it; None does as torch.use_deterministic_algorithms says. All else always gives
    the same bits.
    kernel_options: PyTorch's. BACKEND may be AUTO, TRITON, FLASH or TRITON_DECODE, all meaning the best there is.
    return_aux: which of lse and max_scores to return too (natural logarithms, float32).

    A query with no key left gives 0, and an lse of -inf. The gradients by query, key, value, what score_mod captures and
    the sinks are computed, through out and lse alike (max_scores has none). Second derivatives are refused.
    Raises what PyTorch raises for misuse; UnsupportedError (a NotImplementedError) for a mod that cannot be compiled.
    """
    _checks.check_tensors(query, key, value, enable_gqa)
    _checks.check_batch(query, key, block_mask, mask_mod is not None)
    _checks.check_scale(scale)
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = _autocast(query, key, value)
    dtype = query.dtype
    if not dtype == key.dtype == value.dtype:
        query, key, value = _in_widest_type(query, key, value)
    if kernel_options:
        _checks.check_options(kernel_options)
    _checks.check_aux(return_lse, return_aux)
    trace_of_blocks = None
    if block_mask is not None:
        of_blocks, trace_of_blocks = mask_mod_of(block_mask, query, key)
        mask_mod = _both(of_blocks, mask_mod)
    if cu_seqlens is not None:
        mask_mod = _both(mask_mod_of_sequences(query, key, cu_seqlens), mask_mod)
    seed = _seed(dropout_p, dropout_seed)
    aux = return_aux or AuxRequest(lse=return_lse)
    if torch.compiler.is_dynamo_compiling():
        out, lse, max_scores = in_graph(
            query, key, value, score_mod, mask_mod, scale, sinks, aux.max_scores, dropout_p, seed, deterministic
        )
        max_scores = max_scores if aux.max_scores else None
    elif query.dtype == torch.float64:
        if dropout_p:
            raise NotImplementedError("float64 is computed unfused, without dropout; use float32")
        out, lse, max_scores = attend_unfused(query, key, value, score_mod, mask_mod, scale, sinks)
        max_scores = max_scores if aux.max_scores else None
    else:
        score_mod, scale = _with_scale(query, value, score_mod, scale)
        programs = [] if score_mod is None else [traced(score_mod, "score_mod")]
        if mask_mod is not None:
            is_of_blocks = trace_of_blocks is not None and mask_mod is of_blocks
            programs.append(trace_of_blocks if is_of_blocks else traced(mask_mod, "mask_mod"))
        out, lse, max_scores = attend(
            query, key, value, programs, scale, sinks, aux.max_scores, dropout_p, seed, deterministic
        )
    out = out.to(dtype)
    if return_aux is not None:
        return out, AuxOutput(lse=lse if aux.lse else None, max_scores=max_scores)
    return (out, lse) if return_lse else out


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    programs: list[tuple[Trace, Leaves]],
    scale: float | None,
    sinks: torch.Tensor | None,
    want_max: bool,
    dropout_p: float = 0.0,
    seed: torch.Tensor | None = None,
    deterministic: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Runs traced programs: (out, lse, max_scores or None)."""
    if query.size(0) != key.size(0):
        key, value = (one.expand(query.size(0), -1, -1, -1) for one in (key, value))
    bounds = Bounds(*(size if type(size) is int else None for size in (*query.shape[:3], key.shape[2])))
    features = []
    captures: list[torch.Tensor] = []
    for trace, leaves in programs:
        text, sources = trace.program(bounds)
        features.append(text)
        captures += trace.tensors(sources, *leaves, device=query.device)
    for one in captures:
        if one.device != query.device:
            raise RuntimeError(f"a mod captures a tensor on {one.device}, the query is on {query.device}")
    if torch.is_grad_enabled():
        _checks.check_deterministic(deterministic, query.device, captures)
    if sinks is not None:
        sinks = _sinks(sinks, query)
        features.insert(0, f"sinks={sinks.shape[1]}")
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else float(scale)
    words = " ".join([f"dropout={float(dropout_p)!r}", *features] if dropout_p else features)
    functions = [trace.autograd_function for trace, _ in programs if trace.autograd_function is not None]
    if functions and torch.is_grad_enabled():
        query, key, *captures = (without_gradient(one, functions[0]) for one in (query, key, *captures))
    in_one_pass = want_max and query.device.type == "cpu"
    call = Call(query, key, value, captures, sinks, seed, words, scale, in_one_pass)
    out, lse, maximum = call_kernel(call)
    if not want_max or in_one_pass:
        return out, lse, maximum if want_max else None
    # The sum of exponentials relative to the row's maximum is an attention over ones that is not normalised; what lse
    # is above its logarithm is the maximum. In float32, since probabilities are rounded to the type of the values.
    query, key = query.detach().float(), key.detach().float()
    ones = key.new_ones((1, 1, 1, 1)).expand(*key.shape[:3], 1)
    scores_only = " ".join(one for one in features if not one.startswith("sinks="))
    captures = [one.detach() for one in captures]
    sums, plain_lse, _ = call_kernel(Call(query, key, ones, captures, None, None, "unnormalized " + scores_only, scale))
    maximum = torch.where(plain_lse == -math.inf, plain_lse, plain_lse - sums.squeeze(-1).log())
    return out, lse, maximum


def in_graph(*args: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As attend(), where TorchDynamo compiles. Dynamo is imported late: it takes seconds."""
    from flashlift.torch._dynamo import flex_attention_in_graph

    return flex_attention_in_graph(*args)


_MAX_SCALES = 8  # that are constants of kernels for the same heads


@functools.lru_cache(maxsize=1024)
def _constant_scales(q_heads: int, depth: int, value_depth: int, dtype: torch.dtype) -> dict[float, None]:
    """Those that were met first, to be added to."""
    return {}


def _with_scale(
    query: torch.Tensor, value: torch.Tensor, score_mod: Mod | None, scale: float | None
) -> tuple[Mod | None, float | None]:
    """A score_mod and a scale that mean the same. A kernel makes most of a scale that is a constant, but where many are
    met, as of a temperature that falls with each step, they are numbers that a score_mod captures."""
    if scale is None or not math.isfinite(scale):
        return score_mod, scale
    scale = float(scale)
    constants = _constant_scales(query.size(1), query.size(-1), value.size(-1), query.dtype)
    if scale in constants or len(constants) < _MAX_SCALES:
        constants[scale] = None
        return score_mod, scale

    def over_scaled(
        score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor
    ) -> torch.Tensor:
        return score * scale if score_mod is None else score_mod(score * scale, b, h, q, kv)

    return over_scaled, 1.0


def _autocast(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """As PyTorch's: everything but float64 in the type that autocast asks for."""
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return [one.to(dtype) if one.is_floating_point() and one.dtype != torch.float64 else one for one in tensors]


def _in_widest_type(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Keys and values of another type than the query, such as a cache of 8 bits, in the type that holds all of them."""
    widest = functools.reduce(torch.promote_types, (one.dtype for one in tensors if one.dtype.itemsize > 1))
    return [one.to(widest) for one in tensors]


def _sinks(sinks: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    if sinks.dim() == 1:
        sinks = sinks.unsqueeze(1)
    if sinks.dim() != 2 or sinks.size(0) != query.size(1) or not sinks.dtype.is_floating_point:
        raise ValueError(
            f"sinks is {sinks.dtype} {list(sinks.shape)}; expected floating point of shape [{query.size(1)}] or "
            f"[{query.size(1)}, n]"
        )
    return sinks.to(torch.float32)


def _seed(dropout_p: float, seed: int | torch.Tensor | None) -> torch.Tensor | None:
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout probability has to be at least 0 and less than 1, but got {dropout_p}")
    if dropout_p == 0.0:
        return None
    if seed is None:  # on the CPU on any device: the host hands it to the kernel
        return torch.randint(2**63 - 1, (), dtype=torch.int64)
    if isinstance(seed, torch.Tensor):
        return seed
    return torch.full((), (seed + 2**63) % 2**64 - 2**63, dtype=torch.int64)


def _both(one: Mod | None, other: Mod | None) -> Mod | None:
    if one is None or other is None:
        return one if other is None else other

    def both(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return one(b, h, q, kv) & other(b, h, q, kv)

    return both
