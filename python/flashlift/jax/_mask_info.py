"""What a mask is made of, as ejkernel's MaskInfo has it, without the mask.

Conditions are kept as they were given: nothing of the size of q_len times kv_len exists before `attention_mask` asks
for it, and flash_attention never does.
"""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from flashlift._errors import InvalidArgumentError
from flashlift.jax._arguments import as_array, described, short

AxisName = str | tuple[str, ...] | None
Keep = Callable[[Any, Any, Any, Any], Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Rule:
    """One condition: its kind, its numbers, and its arrays, whose first dimension is the batch."""

    kind: str = dataclasses.field(metadata={"static": True})  # "union": what it keeps is kept besides what others keep
    numbers: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    arrays: tuple[jax.Array, ...] = ()

    def keep(self, b: Any, h: Any, q: Any, kv: Any) -> Any:
        offset = self.arrays[0][b] if self.kind in ("causal", "window", "chunk") and self.arrays else 0
        if self.kind == "causal":
            return kv <= q + self.numbers[0] + offset
        if self.kind == "window":
            left, right, shift = self.numbers
            at = q + shift + offset
            return (kv >= at - left) & (kv <= at + right)
        if self.kind == "chunk":
            size, shift = self.numbers
            return (q // size == kv // size) & (kv <= q + shift + offset)
        if self.kind == "lengths":
            return kv < self.arrays[0][b]
        if self.kind == "mask":
            mask = self.arrays[0]
            return mask[b if mask.shape[0] > 1 else 0, h if mask.shape[1] > 1 else 0, q, kv]
        if self.kind == "segments":
            of_q, of_kv = self.arrays[0][b, q], self.arrays[1][b, kv]
            return (of_q == of_kv) & (of_q >= 0)
        of_q, of_kv = self.arrays[0][b, q], self.arrays[1][b, kv]  # token types
        return (of_q == of_kv) & (of_q != 0 if self.numbers[0] else True) & (of_kv != 0 if self.numbers[1] else True)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskInfo:
    """Which keys a query sees: a mask, segment ids, and conditions on positions, all of which hold together.

    Make one by from_segments, from_attention_mask or from_cu_seqlens, and add conditions by apply_*. Each apply_*
    gives a new object. The four axis names are ejkernel's: of the mesh's axes that flash_attention(mesh=...) splits by.
    """

    mask: jax.Array | None = None
    q_segment_ids: jax.Array | None = None
    kv_segment_ids: jax.Array | None = None
    q_positions: jax.Array | None = None
    kv_positions: jax.Array | None = None
    rules: tuple[_Rule, ...] = ()
    batch_axis_name: AxisName = dataclasses.field(default=("dp", "fsdp"), metadata={"static": True})
    qheads_axis_name: AxisName = dataclasses.field(default="tp", metadata={"static": True})
    kvheads_axis_name: AxisName = dataclasses.field(default="tp", metadata={"static": True})
    sequence_axis_name: AxisName = dataclasses.field(default="sp", metadata={"static": True})

    @classmethod
    def from_segments(
        cls,
        q_segment_ids: ArrayLike,
        kv_segment_ids: ArrayLike | None = None,
        q_positions: jax.Array | None = None,
        kv_positions: jax.Array | None = None,
        *,
        is_attn_mask: bool = False,
        **axis_names: Any,
    ) -> "MaskInfo":
        """Integers [batch, length]; negative ones are padding. is_attn_mask: 0 is padding, all else one segment."""
        of_q = _ids("q_segment_ids", q_segment_ids)
        of_kv = of_q if kv_segment_ids is None else _ids("kv_segment_ids", kv_segment_ids)
        if is_attn_mask:
            of_q, of_kv = (jnp.where(one != 0, 0, -1).astype(jnp.int32) for one in (of_q, of_kv))
        return cls(
            q_segment_ids=of_q,
            kv_segment_ids=of_kv,
            q_positions=q_positions,
            kv_positions=kv_positions,
            **axis_names,
        )

    @classmethod
    def from_attention_mask(
        cls, attention_mask: ArrayLike, *, mask_is_valid: bool = True, **axis_names: Any
    ) -> "MaskInfo":
        """Booleans or integers: [batch, length] is padding of queries and keys; [batch, q_len, kv_len] and [batch,
        heads or 1, q_len, kv_len] are masks. mask_is_valid=False: 0 is what is kept."""
        mask = as_array("attention_mask", attention_mask)
        if jnp.issubdtype(mask.dtype, jnp.floating) or mask.ndim not in (2, 3, 4):
            raise InvalidArgumentError(
                f"attention_mask is {described(mask)}; expected booleans or integers in two to four dimensions"
            )
        kept = (mask != 0) == mask_is_valid
        if kept.ndim == 2:
            return cls.from_segments(jnp.where(kept, 0, -1), **axis_names)
        return cls(mask=kept[:, None] if kept.ndim == 3 else kept, **axis_names)

    @classmethod
    def from_cu_seqlens(
        cls,
        cu_seqlens_q: ArrayLike,
        *,
        max_q_len: int,
        cu_seqlens_kv: ArrayLike | None = None,
        max_kv_len: int | None = None,
        **axis_names: Any,
    ) -> "MaskInfo":
        """Where each batch's sequence begins and ends, one after the other: [start, end, start, end, ...]."""

        def ids(name: str, bounds: ArrayLike, length: int) -> jax.Array:
            array = as_array(name, bounds)
            if array.ndim != 1 or array.size % 2 or not jnp.issubdtype(array.dtype, jnp.integer):
                raise InvalidArgumentError(f"{name} is {described(array)}; expected int32 [2 * batch]: starts and ends")
            start, end = array.reshape(-1, 2).T[..., None]
            at = jnp.arange(length)
            return jnp.where((at >= start) & (at < end), 0, -1).astype(jnp.int32)

        of_q = ids("cu_seqlens_q", cu_seqlens_q, max_q_len)
        if cu_seqlens_kv is None and max_kv_len in (None, max_q_len):
            return cls.from_segments(of_q, **axis_names)
        of_kv = ids("cu_seqlens_kv", cu_seqlens_q if cu_seqlens_kv is None else cu_seqlens_kv, max_kv_len or max_q_len)
        return cls.from_segments(of_q, of_kv, **axis_names)

    def apply_causal(self, offset: int | jax.Array = 0) -> "MaskInfo":
        """Keeps keys up to the query's position plus an offset, a number or int32 [batch]."""
        number, arrays = _offset(offset)
        return self._with(_Rule("causal", (number,), arrays))

    def apply_sliding_window(
        self, sliding_window: int | tuple[int, int], *, offset: int | jax.Array = 0, mode: str | None = None
    ) -> "MaskInfo":
        """Keeps so many positions to the left and to the right of the query's plus an offset; one number is both."""
        if mode not in (None, "default"):
            raise InvalidArgumentError(
                f'mode is "{mode}"; expected None or "default": slice key and value before the call, and give an offset'
            )
        sides = sliding_window if isinstance(sliding_window, (tuple, list)) else (sliding_window,) * 2
        left, right = (_whole("sliding_window", one) for one in sides)
        number, arrays = _offset(offset)
        return self._with(_Rule("window", (left, right, number), arrays))

    def apply_chunked(self, chunk_size: int, offset: int = 0) -> "MaskInfo":
        """Keeps keys of the query's own chunk, up to its position plus an offset."""
        size = _whole("chunk_size", chunk_size)
        if size == 0:
            raise InvalidArgumentError("chunk_size is 0; expected at least 1")
        return self._with(_Rule("chunk", (size, operator.index(offset))))

    def apply_kv_lengths(self, kv_lengths: ArrayLike) -> "MaskInfo":
        """Keeps the first kv_lengths[batch] keys."""
        return self._with(_Rule("lengths", (), (as_array("kv_lengths", kv_lengths).astype(jnp.int32).reshape(-1),)))

    def apply_token_type_ids(
        self, token_type_ids: Any, *, combine: str = "union", zero_policy: str = "q"
    ) -> "MaskInfo":
        """Keys of the query's own type: one array [batch, length], or one for queries and one for keys. They are kept
        besides what was kept until now ("union"), or of what was kept those alone ("intersect"), or all else is
        forgotten ("replace"). Type 0 sees nothing by its type ("q"), is not seen ("kv"), both, or is a type like others
        ("none")."""
        if combine not in ("union", "intersect", "replace") or zero_policy not in ("q", "kv", "both", "none"):
            raise InvalidArgumentError(
                f'combine is "{combine}" and zero_policy "{zero_policy}"; expected union, intersect or replace, and q, '
                "kv, both or none"
            )
        pair = token_type_ids if isinstance(token_type_ids, (tuple, list)) else (token_type_ids, token_type_ids)
        arrays = tuple(_ids("token_type_ids", one) for one in pair)
        zeros = int(zero_policy in ("q", "both")), int(zero_policy in ("kv", "both"))
        if combine == "intersect":
            return self._with(_Rule("types", zeros, arrays))
        before = self._as_rules() if combine == "union" else ()
        if combine == "union" and not before:
            raise InvalidArgumentError(
                'combine is "union", and nothing is masked yet, so that all would be kept; expected "replace", or '
                "conditions before"
            )
        kind = "union" if combine == "union" else "types"
        alone = dataclasses.replace(self, mask=None, q_segment_ids=None, kv_segment_ids=None)
        return dataclasses.replace(alone, rules=(*before, _Rule(kind, zeros, arrays)))

    def _as_rules(self) -> tuple[_Rule, ...]:
        """All of it as conditions, in which a mask and segment ids stand as they are."""
        first = []
        if self.mask is not None:
            first.append(_Rule("mask", (), (self.mask,)))
        if self.q_segment_ids is not None and self.kv_segment_ids is not None:
            first.append(_Rule("segments", (), (self.q_segment_ids, self.kv_segment_ids)))
        return (*first, *self.rules)

    def replace(self, **fields: Any) -> "MaskInfo":
        """The same with other fields; attention_mask is the mask."""
        if "attention_mask" in fields:
            fields["mask"] = fields.pop("attention_mask")
        return dataclasses.replace(self, **fields)

    def _with(self, rule: _Rule) -> "MaskInfo":
        return dataclasses.replace(self, rules=(*self.rules, rule))

    @property
    def batch_size(self) -> int | None:
        return self._size(0, 0)

    @property
    def q_len(self) -> int | None:
        return self._size(1, 2)

    @property
    def kv_len(self) -> int | None:
        if self.kv_segment_ids is not None:
            return int(self.kv_segment_ids.shape[1])
        if self.mask is not None:
            return int(self.mask.shape[3])
        types = self._types()
        return None if types is None else int(types[1].shape[1])

    @property
    def shape(self) -> tuple[int | None, int | None, int | None]:
        return self.batch_size, self.q_len, self.kv_len

    def _size(self, of_ids: int, of_mask: int) -> int | None:
        if self.q_segment_ids is not None:
            return int(self.q_segment_ids.shape[of_ids])
        if self.mask is not None:
            return int(self.mask.shape[of_mask])
        types = self._types()
        return None if types is None else int(types[0].shape[of_ids])

    def _types(self) -> tuple[jax.Array, ...] | None:
        """Arrays that tell the lengths where neither a mask nor segment ids do."""
        return next((rule.arrays for rule in self.rules if rule.kind in ("types", "union")), None)

    @property
    def is_self_attention(self) -> bool:
        return self.kv_segment_ids is None or self.kv_segment_ids is self.q_segment_ids

    def get_or_compute_segment_ids(self, per_head: bool = False) -> tuple[jax.Array | None, jax.Array | None]:
        if per_head:
            raise InvalidArgumentError("per_head is True; expected False: segments are the same for all heads")
        return self.q_segment_ids, self.kv_segment_ids

    @property
    def attention_mask(self) -> jax.Array:
        """All of it as booleans [batch, heads or 1, q_len, kv_len], in memory."""
        return self.get_or_compute_attention_mask()

    def get_or_compute_attention_mask(self, dtype: DTypeLike = jnp.bool_) -> jax.Array:
        if self.q_len is None or self.kv_len is None:
            raise InvalidArgumentError(
                "neither a mask nor segment ids came, so that the lengths are unknown; expected one of them"
            )
        plane = (self.batch_size or 1, 1, self.q_len, self.kv_len)
        b, h, q, kv = (jax.lax.broadcasted_iota(jnp.int32, plane, axis) for axis in range(4))
        kept = jnp.ones(plane, bool) if self.mask is None else self.mask
        if self.q_segment_ids is not None and self.kv_segment_ids is not None:
            of_q, of_kv = self.q_segment_ids[:, None, :, None], self.kv_segment_ids[:, None, None, :]
            kept &= (of_q == of_kv) & (of_q >= 0)
        keep = self.mask_mod
        return (kept if keep is None else kept & keep(b, h, q, kv)).astype(dtype)

    @property
    def bias(self) -> jax.Array:
        """The mask to add to scores: 0 and the lowest float32, in memory."""
        return jnp.where(self.attention_mask, 0.0, jnp.finfo(jnp.float32).min)

    def materialize_attention_mask(self, dtype: DTypeLike = jnp.bool_) -> "MaskInfo":
        return dataclasses.replace(self, mask=self.get_or_compute_attention_mask(dtype), rules=())

    @property
    def mask_mod(self) -> Keep | None:
        """The conditions on positions as a function of (b, h, q, kv), or None."""
        if not self.rules:
            return None

        def keep(b: Any, h: Any, q: Any, kv: Any) -> Any:
            kept = self.rules[0].keep(b, h, q, kv)
            for rule in self.rules[1:]:
                own = rule.keep(b, h, q, kv)
                kept = kept | own if rule.kind == "union" else kept & own
            return kept

        return keep


def masks_of(info: Any) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None, Keep | None]:
    """The mask, both segment ids and a mask_mod of a MaskInfo, ours or ejkernel's."""
    if isinstance(info, MaskInfo):
        return info.mask, info.q_segment_ids, info.kv_segment_ids, info.mask_mod
    if not hasattr(info, "_attention_mask") or not hasattr(info, "_q_segment_ids"):
        raise InvalidArgumentError(f"mask_info is {short(info)}; expected a MaskInfo: pass a mask as attention_mask=")
    mask = info._attention_mask
    if info._q_segment_ids is None and info._kv_segment_ids is None:
        return mask, None, None, None
    return mask, *info.get_or_compute_segment_ids(per_head=False), None


def both(one: Keep | None, other: Keep | None) -> Keep | None:
    """What both keep."""
    if one is None or other is None:
        return other if one is None else one
    return lambda b, h, q, kv: one(b, h, q, kv) & other(b, h, q, kv)


def _ids(name: str, given: ArrayLike) -> jax.Array:
    array = as_array(name, given)
    if array.ndim != 2 or not (jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == jnp.bool_):
        raise InvalidArgumentError(
            f"{name} is {described(array)}; expected an integer for each position: [batch, length]"
        )
    return array.astype(jnp.int32)


def _offset(given: int | jax.Array) -> tuple[int, tuple[jax.Array, ...]]:
    if isinstance(given, (int, np.integer)):
        return int(given), ()
    array = as_array("offset", given)
    if array.ndim > 1 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise InvalidArgumentError(f"offset is {described(array)}; expected an integer, or int32 [batch]")
    return 0, (array.astype(jnp.int32).reshape(-1),)


def _whole(name: str, given: Any) -> int:
    try:
        number = operator.index(given)
    except TypeError as error:
        raise InvalidArgumentError(f"{name} is {given!r}; expected an integer") from error
    if number < 0 or isinstance(given, bool):
        raise InvalidArgumentError(f"{name} is {given!r}; expected an integer, not negative")
    return number
