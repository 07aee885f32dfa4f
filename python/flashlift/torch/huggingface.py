"""Hugging Face transformers: attn_implementation="lifted".

    import flashlift.torch.huggingface

    flashlift.torch.huggingface.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="lifted")

torch.compile(model, fullgraph=True) works with padding and static caches. If the model creates a DynamicCache itself,
use_cache=False is needed: torch 2.13's Dynamo loses the cache's attributes after the first layer, also with PyTorch's
own flex_attention.

Masks stay functions from transformers' own mask to the kernel: nothing of size N×N is created.

Only models that use transformers' AttentionInterface can run this. Others raise an error that names "eager", or fail in
transformers with KeyError: 'lifted' where they look up a class by this name, as Falcon, GPT-J, GPT-Neo and GIT do.
"""

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from flashlift._errors import UnsupportedError
from flashlift.torch._attention.flex_attention import flex_attention
from flashlift.torch._internals import warn_once
from flashlift.torch._run.modes import are_readable, makes_graph


def register(name: str = "lifted") -> None:
    """Registers the implementation with transformers under a name. May be called again.

    The default name is not "flashlift", because transformers treats every name with "flash" in it as one of its own
    FlashAttention implementations.
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "transformers":
            raise
        raise ImportError(
            f"transformers {importlib.metadata.version('transformers')} creates its masks itself; expected version "
            f"{_OLDEST} or later, whose masks are functions"
        ) from error

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)


_OLDEST = "4.53"

_IS_NO_TENSOR = (
    "this model computes with its masks itself, but here a mask is a function for transformers' AttentionInterface; "
    'expected attn_implementation="eager" for this model'
)


# What some models' sparse attention and sinks of each query are passed as.
_NOT_COMPUTED = ("sinks", "indices", "block_indices")
# Adds the model's mask to one of its own, unless it is a BlockMask, which it leaves out.
_DROPS_MASKS = "DogeAttention"


class Mask(BlockMask):
    """A mask_mod in the form in which transformers passes masks: generate() creates them outside of the model, reads
    their shape, and makes them contiguous. It has no lists of blocks."""

    def __init__(self, mask_mod: Callable, shape: tuple[int, int, int, int]) -> None:
        self.mask_mod = mask_mod
        self._shape = shape

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self._shape

    @property
    def ndim(self) -> int:
        return len(self._shape)

    def dim(self) -> int:
        return self.ndim

    def contiguous(self) -> "Mask":
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """torch.cat([self_mask, cross_mask], dim=-1), for models that attend to the keys of two layers at once."""
        masks, dim = (*args, *(kwargs or {}).values(), None)[:2]
        if func is torch.cat and dim in (-1, 3) and all(isinstance(one, Mask) for one in masks):
            return functools.reduce(_over_keys_of_both, masks)
        raise TypeError(_IS_NO_TENSOR)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'Mask' object has no attribute '{name}': {_IS_NO_TENSOR}")

    def _refuse(self, *args: object, **kwargs: object) -> Any:
        raise TypeError(_IS_NO_TENSOR)

    __getitem__ = to = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __and__ = __rand__ = __invert__ = _refuse

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"Mask(shape={self._shape}, mask_mod={self.mask_mod})"


def _over_keys_of_both(one: Mask, other: Mask) -> Mask:
    length, added = one.shape[-1], other.shape[-1]

    def mask_mod(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        is_kept = one.mask_mod(b, h, q, kv.clamp(max=length - 1))
        return torch.where(kv < length, is_kept, other.mask_mod(b, h, q, (kv - length).clamp(min=0)))

    return Mask(mask_mod, (*one.shape[:-1], length + added))


def attention_mask(
    *,
    batch_size: int,
    kv_length: int,
    q_length: int | None = None,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int | torch.Tensor = 0,
    mask_function: Callable | None = None,
    attention_mask: torch.Tensor | None = None,
    cache_position: torch.Tensor | None = None,
    **kwargs: Any,
) -> Mask:
    """Creates the mask that transformers requests.

    attention_mask: the padding mask [batch, tokens seen], True or 1 for a token. q_offset and kv_offset: the positions
    of the first query and the first key, as in decoding with a cache. cache_position: the positions of all queries, one
    after another, which older versions of transformers pass in place of q_length and q_offset.
    """
    from transformers.masking_utils import causal_mask_function

    if cache_position is not None:
        q_length, q_offset = cache_position.shape[0], cache_position[0]
    assert q_length is not None, "transformers passes one of both"
    # Not `or`, because torch 2.9 cannot convert a function to a boolean.
    positions: Callable = causal_mask_function if mask_function is None else mask_function
    # A static cache counts its tokens in place, before the layer that reads this mask runs.
    q_offset, kv_offset = (one.clone() if isinstance(one, torch.Tensor) else one for one in (q_offset, kv_offset))
    shape = (batch_size, 1, q_length, kv_length)
    if attention_mask is None or _keeps_all(attention_mask, kv_length + kv_offset):

        def mask_mod(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
            return positions(b, h, q + q_offset, kv + kv_offset)

        return Mask(mask_mod, shape)
    missing: Any = kv_length + kv_offset - attention_mask.shape[-1]  # a static cache is longer than what it holds
    keep = (torch.nn.functional.pad(attention_mask, (0, missing)) if missing > 0 else attention_mask).bool()

    def padded_mask_mod(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return positions(b, h, q + q_offset, kv + kv_offset) & keep[b, kv + kv_offset]

    return Mask(padded_mask_mod, shape)


def _keeps_all(attention_mask: torch.Tensor, length: int | torch.Tensor) -> bool:
    """Whether there is no padding. Inside a graph this is unknown, because the graph runs for other masks too."""
    if torch.compiler.is_compiling() or makes_graph() or not are_readable([attention_mask]):
        return False
    return bool(attention_mask.shape[-1] >= length) and bool(attention_mask.all())


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Mask | BlockMask | Callable | torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """One attention layer: input [batch, heads, length, depth], output [batch, length, heads, depth].

    softcap, s_aux (sinks) and position_bias come from models that have them. attention_mask: the result of
    attention_mask(), or of callers that create their own masks: a mask_mod, a BlockMask, or a tensor of bools or of
    numbers to add. cu_seq_lens_q and cu_seq_lens_k: packed sequences, as callers describe them to FlashAttention.
    """
    if kwargs.get("output_attentions"):
        warn_once(
            "flashlift_output_attentions",
            'flashlift: output_attentions=True gives no weights, which are never stored; use "eager" for them',
        )
    if type(module).__name__ == _DROPS_MASKS:
        raise UnsupportedError(
            f'{_DROPS_MASKS} leaves out masks that are functions; expected attn_implementation="eager" for this model'
        )
    for name in _NOT_COMPUTED:
        if kwargs.get(name) is not None:
            raise UnsupportedError(
                f"{type(module).__name__} passes {name}= to its attention, which this one does not compute; expected "
                'attn_implementation="eager" for this model'
            )
    mask_mod = block_mask = None
    if isinstance(attention_mask, Mask):
        mask_mod = attention_mask.mask_mod
    elif isinstance(attention_mask, BlockMask):
        block_mask = attention_mask
    elif callable(attention_mask) and not isinstance(attention_mask, torch.Tensor):
        mask_mod = attention_mask
    added = [] if position_bias is None else [position_bias]
    if isinstance(attention_mask, torch.Tensor):
        full = attention_mask.expand(query.shape[0], query.shape[1], query.shape[2], -1)
        if full.dtype == torch.bool:

            def mask_mod(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
                return full[b, h, q, kv]
        else:
            added.append(full)
    elif attention_mask is None:
        # Some modules for cross-attention do not say that they are not causal.
        causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        if causal and query.shape[2] > 1:

            def mask_mod(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
                return q >= kv

    score_mod = None
    if softcap is not None or added:
        full_biases = [one.expand(query.shape[0], query.shape[1], query.shape[2], -1) for one in added]

        def score_mod(
            score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor
        ) -> torch.Tensor:
            if softcap is not None:
                score = softcap * torch.tanh(score / softcap)
            for bias in full_biases:
                score = score + bias[b, h, q, kv]
            return score

    cu_seqlens = None if cu_seq_lens_q is None or cu_seq_lens_k is None else (cu_seq_lens_q, cu_seq_lens_k)
    out: Any = flex_attention(
        query,
        key,
        value,
        score_mod,
        block_mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
        mask_mod=mask_mod,
        sinks=s_aux,
        cu_seqlens=cu_seqlens,
        dropout_p=dropout,
    )
    return out.transpose(1, 2).contiguous(), None
