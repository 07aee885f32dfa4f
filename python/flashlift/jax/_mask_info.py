"""The parts of a mask, as in ejkernel's MaskInfo, without the mask itself.

Conditions stay conditions: nothing of size q_len times kv_len exists until `attention_mask` is read, and
flash_attention never reads it.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from flashlift._errors import InvalidArgumentError
from flashlift.jax._arguments import as_array, described, short
from flashlift.jax._arguments.values import known, listed
from flashlift.jax._arguments.words import Window, is_pair_of_sides, window_sides
from flashlift.jax._mask_picture import as_numpy, picture
from flashlift.jax._mask_rules import Keep, Rule, keeps_by
from flashlift.jax._mask_segments import (
    bounds_of,
    checked_ids,
    checked_lengths,
    counts,
    ends_of,
    padding,
    plane_of,
    positions,
    whole_number,
)

AxisName = str | tuple[str, ...] | None


class MaskSharding(NamedTuple):
    """How the arrays of a MaskInfo are split; None for arrays that it does not have."""

    attention_mask: PartitionSpec | None = None
    q_segment_ids: PartitionSpec | None = None
    kv_segment_ids: PartitionSpec | None = None
    cu_seqlens_q: PartitionSpec | None = None
    cu_seqlens_kv: PartitionSpec | None = None
    q_positions: PartitionSpec | None = None
    kv_positions: PartitionSpec | None = None


def _static(default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskInfo:
    """Which keys a query sees: a mask, segment ids, and conditions on positions. A key must satisfy all of them.

    Create one by from_segments, from_attention_mask or from_cu_seqlens, and add conditions by apply_*, each of which
    returns a new object. The four axis names are ejkernel's: the mesh axes by which get_shardings splits.
    """

    _attention_mask: jax.Array | None = None
    _q_segment_ids: jax.Array | None = None
    _kv_segment_ids: jax.Array | None = None
    _cu_seqlens_q: jax.Array | None = None
    _cu_seqlens_kv: jax.Array | None = None
    q_positions: jax.Array | None = None
    kv_positions: jax.Array | None = None
    rules: tuple[Rule, ...] = ()
    causal_mask_baked_in: bool = _static(False)
    sliding_window_baked_in: bool = _static(False)
    chunked_mask_baked_in: bool = _static(False)
    token_type_ids_baked_in: bool = _static(False)
    batch_axis_name: AxisName = _static(("dp", "fsdp"))
    qheads_axis_name: AxisName = _static("tp")
    kvheads_axis_name: AxisName = _static("tp")
    sequence_axis_name: AxisName = _static("sp")

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
        """Integers [batch, length]; negative ones are padding. is_attn_mask: 0 is padding, all other values are one
        segment."""
        of_q = checked_ids("q_segment_ids", q_segment_ids)
        of_kv = of_q if kv_segment_ids is None else checked_ids("kv_segment_ids", kv_segment_ids)
        if is_attn_mask:
            of_q, of_kv = padding(of_q != 0), padding(of_kv != 0)
        return cls(
            _q_segment_ids=of_q,
            _kv_segment_ids=of_kv,
            q_positions=q_positions,
            kv_positions=kv_positions,
            **axis_names,
        )

    @classmethod
    def from_attention_mask(
        cls,
        attention_mask: ArrayLike,
        q_positions: jax.Array | None = None,
        kv_positions: jax.Array | None = None,
        *,
        mask_is_valid: bool = True,
        **axis_names: Any,
    ) -> "MaskInfo":
        """Booleans or integers: [batch, length] is padding of queries and keys; [batch, q_len, kv_len] and [batch,
        heads or 1, q_len, kv_len] are masks. mask_is_valid=False: 0 keeps a key."""
        mask = as_array("attention_mask", attention_mask)
        if jnp.issubdtype(mask.dtype, jnp.floating) or mask.ndim not in (2, 3, 4):
            raise InvalidArgumentError(
                f"attention_mask is {described(mask)}; expected booleans or integers in two to four dimensions"
            )
        kept = mask.astype(bool) == mask_is_valid
        if kept.ndim == 2:
            return cls.from_segments(padding(kept), None, q_positions, kv_positions, **axis_names)
        kept = kept[:, None] if kept.ndim == 3 else kept
        return cls(_attention_mask=kept, q_positions=q_positions, kv_positions=kv_positions, **axis_names)

    @classmethod
    def from_cu_seqlens(
        cls,
        cu_seqlens_q: ArrayLike,
        *,
        max_q_len: int,
        cu_seqlens_kv: ArrayLike | None = None,
        max_kv_len: int | None = None,
        **others: Any,
    ) -> "MaskInfo":
        """The starts and ends of each batch's sequences, one after the other: [start, end, start, end, ...]. others:
        positions and axis names."""

        def ids(name: str, bounds: ArrayLike, length: int) -> tuple[jax.Array, jax.Array]:
            array = as_array(name, bounds)
            if array.ndim != 1 or array.size % 2 or not jnp.issubdtype(array.dtype, jnp.integer):
                raise InvalidArgumentError(f"{name} is {described(array)}; expected int32 [2 * batch]: starts and ends")
            values = known(bounds)
            if values is not None:
                starts, ends = values.reshape(-1, 2).T
                if not ((starts >= 0) & (starts <= ends) & (ends <= length)).all():
                    raise InvalidArgumentError(
                        f"{name} is {listed(values)}; expected starts and ends from 0 to {length}, no end "
                        "before its start"
                    )
            bounds = array.astype(jnp.int32)
            start, end = bounds.reshape(-1, 2).T[..., None]
            at = jnp.arange(length, dtype=jnp.int32)[None]
            return padding((at >= start) & (at < end)), bounds

        of_q, cu_q = ids("cu_seqlens_q", cu_seqlens_q, max_q_len)
        of_kv, cu_kv = of_q, cu_q
        if cu_seqlens_kv is not None or max_kv_len not in (None, max_q_len):
            bounds = cu_seqlens_q if cu_seqlens_kv is None else cu_seqlens_kv
            of_kv, cu_kv = ids("cu_seqlens_kv", bounds, max_kv_len or max_q_len)
        return cls(_q_segment_ids=of_q, _kv_segment_ids=of_kv, _cu_seqlens_q=cu_q, _cu_seqlens_kv=cu_kv, **others)

    @classmethod
    def from_random(
        cls,
        batch_size: int,
        q_len: int,
        kv_len: int | None = None,
        sparsity: float = 0.5,
        seed: int = 0,
        **others: Any,
    ) -> "MaskInfo":
        """A mask that drops each key with the probability `sparsity`, for tests. others: as in from_cu_seqlens."""
        if not 0 <= sparsity <= 1:
            raise InvalidArgumentError(f"sparsity is {sparsity}; expected a probability, from 0 to 1")
        shape = (batch_size, 1, q_len, q_len if kv_len is None else kv_len)
        return cls(_attention_mask=jax.random.bernoulli(jax.random.key(seed), 1 - sparsity, shape), **others)

    @classmethod
    def dynamic_init(
        cls,
        *,
        mask_info: "MaskInfo | None" = None,
        input_ids: ArrayLike | None = None,
        inputs_embeds: ArrayLike | None = None,
        attention_mask: ArrayLike | None = None,
    ) -> "MaskInfo":
        """mask_info, if given; otherwise from attention_mask, if given; otherwise one without padding, of the
        inputs' size."""
        if mask_info is not None:
            return mask_info
        if attention_mask is not None:
            return cls.from_attention_mask(attention_mask)
        inputs = input_ids if inputs_embeds is None else inputs_embeds
        if inputs is None:
            raise InvalidArgumentError(
                "nothing came; expected mask_info, attention_mask, input_ids or inputs_embeds, to know a size"
            )
        return cls.from_segments(jnp.zeros(jnp.shape(inputs)[:2], jnp.int32))

    def apply_causal(self, offset: int | jax.Array = 0) -> "MaskInfo":
        """Keeps keys up to the query's position plus an offset, a number or int32 [batch]."""
        number, arrays = self._offset(offset)
        return self._with(Rule("causal", (number,), arrays), causal_mask_baked_in=True)

    def apply_sliding_window(
        self,
        sliding_window: Window | None,
        *,
        offset: int | jax.Array = 0,
        mode: str | None = None,
        index: int | jax.Array | None = None,
    ) -> "MaskInfo":
        """Keeps that many positions to the left and to the right of the query's position plus an offset; a single
        number sets both, and None for one side keeps all positions there. mode="decode" keeps only the query at
        `index`, an integer or int32 [batch], and the keys that its window can see. mode="prefill" keeps only as many
        keys as a window holds, from the end. The call then gets only these."""
        if mode not in (None, "default", "decode", "prefill"):
            raise InvalidArgumentError(f'mode is {mode!r}; expected None, "default", "decode" or "prefill"')
        if (mode == "decode") != (index is not None):
            raise InvalidArgumentError(
                f'mode is {mode!r} and index {short(index)}; the position of the query goes with mode="decode"'
            )
        left, right = window_sides(sliding_window)
        number, arrays = self._offset(offset)
        whole = self._with(Rule("window", (left, right, number), arrays), sliding_window_baked_in=True)
        if mode in (None, "default"):
            return whole
        q_len, kv_len = self._lengths()
        if mode == "prefill":
            span = left + right + 1 if is_pair_of_sides(sliding_window) else left
            width = min(span, kv_len)
            return whole._sliced(0, q_len, kv_len - width, width)
        width = min(left + right + 1, kv_len)
        at = jnp.clip(jnp.asarray(index, jnp.int32), 0, q_len - 1)
        return whole._sliced(at, 1, jnp.clip(at - left, 0, kv_len - width), width)

    def apply_chunked(self, chunk_size: int, offset: int = 0) -> "MaskInfo":
        """Keeps the keys of the query's own chunk, up to its position plus an offset."""
        size = whole_number("chunk_size", chunk_size)
        if size == 0:
            raise InvalidArgumentError("chunk_size is 0; expected at least 1")
        if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)):
            raise InvalidArgumentError(f"offset is {short(offset)}; expected an integer")
        return self._with(Rule("chunk", (size, int(offset))), chunked_mask_baked_in=True)

    def apply_kv_lengths(
        self,
        kv_lengths: ArrayLike,
        *,
        q_len: int | None = None,
        end_index: ArrayLike | None = None,
        sliding_window: int | None = None,
    ) -> "MaskInfo":
        """Keeps the first kv_lengths[batch] keys. q_len: keeps only the q_len queries before end_index[batch].
        sliding_window: keeps only as many keys before kv_lengths. The call then gets only these."""
        lengths = checked_lengths("kv_lengths", kv_lengths)
        if self.batch_size is not None and lengths.size not in (1, self.batch_size):
            raise InvalidArgumentError(
                f"kv_lengths is {described(lengths)}; expected int32 [{self.batch_size}], a length for each batch"
            )
        if (q_len is None) != (end_index is None) or (sliding_window is not None and q_len is None):
            raise InvalidArgumentError(
                f"q_len is {q_len}, end_index {short(end_index)} and sliding_window {sliding_window}; expected q_len "
                "and end_index together, and sliding_window with them alone"
            )
        if self._kv_segment_ids is None:
            kept = self._with(Rule("lengths", (), (lengths,)))
        else:
            behind = jnp.arange(self._kv_segment_ids.shape[1], dtype=jnp.int32)[None] >= lengths[:, None]
            kept = self.replace(kv_segment_ids=jnp.where(behind, -1, self._kv_segment_ids))
        if q_len is None or end_index is None:
            return kept
        all_q, all_kv = self._lengths()
        width = all_kv if sliding_window is None else min(whole_number("sliding_window", sliding_window), all_kv)
        end = checked_lengths("end_index", end_index)
        q_start = jnp.clip(end - q_len, 0, max(all_q - q_len, 0))
        return kept._sliced(q_start, min(q_len, all_q), jnp.clip(lengths - width, 0, all_kv - width), width)

    def apply_token_type_ids(
        self,
        token_type_ids: Any,
        *,
        combine: str = "union",
        zero_policy: str = "q",
        update_segment_ids: bool | None = None,
    ) -> "MaskInfo":
        """Keeps keys of the query's own type: one array [batch, length], or one for queries and one for keys.

        combine: "union" keeps them in addition to the keys that were kept before, "intersect" keeps only those of them
        that were kept before, "replace" drops all earlier conditions.
        zero_policy: whether type 0 sees nothing by its type ("q"), is not seen ("kv"), both, or is a type like others
        ("none").
        Padding and other segments do not change. update_segment_ids (by default with "intersect" and "replace"): the
        types become the segments, and 0 is padding."""
        if combine not in ("union", "intersect", "replace") or zero_policy not in ("q", "kv", "both", "none"):
            raise InvalidArgumentError(
                f'combine is "{combine}" and zero_policy "{zero_policy}"; expected union, intersect or replace, and q, '
                "kv, both or none"
            )
        pair = token_type_ids if isinstance(token_type_ids, (tuple, list)) else (token_type_ids, token_type_ids)
        arrays = tuple(checked_ids("token_type_ids", one) for one in pair)
        zeros = int(zero_policy in ("q", "both")), int(zero_policy in ("kv", "both"))
        ids: tuple[jax.Array | None, jax.Array | None] = self._q_segment_ids, self._kv_segment_ids
        before: tuple[Rule, ...] = ()
        if combine != "replace":
            before = self._as_rules()
            if ids[0] is None and self._attention_mask is not None:
                ids = self.get_or_compute_segment_ids()
        if combine == "union" and not before:
            raise InvalidArgumentError(
                'combine is "union", and nothing is masked yet, so that all would be kept; expected "replace", or '
                "conditions before"
            )
        if combine != "union" if update_segment_ids is None else update_segment_ids:
            ids = jnp.where(arrays[0] == 0, -1, arrays[0]), jnp.where(arrays[1] == 0, -1, arrays[1])
        return dataclasses.replace(
            self,
            _attention_mask=None,
            _q_segment_ids=ids[0],
            _kv_segment_ids=ids[1],
            _cu_seqlens_q=None,
            _cu_seqlens_kv=None,
            rules=(*before, Rule("union" if combine == "union" else "types", zeros, arrays)),
            token_type_ids_baked_in=True,
        )

    def _as_rules(self) -> tuple[Rule, ...]:
        """All conditions as rules, including the mask and the segment ids as they are."""
        first = []
        if self._attention_mask is not None:
            first.append(Rule("mask", (), (self._attention_mask,)))
        if self._q_segment_ids is not None and self._kv_segment_ids is not None:
            first.append(Rule("segments", (), (self._q_segment_ids, self._kv_segment_ids)))
        return (*first, *self.rules)

    def replace(
        self,
        *,
        attention_mask: jax.Array | None = None,
        q_segment_ids: jax.Array | None = None,
        kv_segment_ids: jax.Array | None = None,
        cu_seqlens_q: jax.Array | None = None,
        cu_seqlens_kv: jax.Array | None = None,
        **fields: Any,
    ) -> "MaskInfo":
        """The same with other fields; None keeps a field. A mask replaces all conditions except segment ids."""
        changed = {
            "_attention_mask": attention_mask, "_q_segment_ids": q_segment_ids, "_kv_segment_ids": kv_segment_ids,
        }  # fmt: skip
        new: dict[str, Any] = {name: one for name, one in changed.items() if one is not None}
        if new:
            new |= {"_cu_seqlens_q": None, "_cu_seqlens_kv": None}
        if attention_mask is not None:
            new["rules"] = ()
        new |= {} if cu_seqlens_q is None else {"_cu_seqlens_q": cu_seqlens_q}
        new |= {} if cu_seqlens_kv is None else {"_cu_seqlens_kv": cu_seqlens_kv}
        return dataclasses.replace(self, **(new | fields))

    def _with(self, rule: Rule, **flags: Any) -> "MaskInfo":
        return dataclasses.replace(self, rules=(*self.rules, rule), **flags)

    def _sliced(self, q_start: Any, q_len: int, kv_start: Any, kv_len: int) -> "MaskInfo":
        """The same for these queries and keys only; their starts are a number or int32 [batch]."""
        starts = tuple(jnp.broadcast_to(jnp.asarray(one, jnp.int32), (self.batch_size,)) for one in (q_start, kv_start))

        def cut(array: jax.Array | None, q_axis: int, kv_axis: int) -> jax.Array | None:
            """The part of an array for these queries and keys; 0 if there is no array."""
            if array is None:
                return None
            lengths = list(array.shape[1:])
            at = [jnp.zeros_like(starts[0])] * len(lengths)
            for axis, start, length in ((q_axis, starts[0], q_len), (kv_axis, starts[1], kv_len)):
                if axis:
                    lengths[axis - 1], at[axis - 1] = length, start
            return jax.vmap(lambda one, *at: jax.lax.dynamic_slice(one, at, lengths))(array, *at)

        return dataclasses.replace(
            self,
            _attention_mask=cut(self._attention_mask, 2, 3),
            _q_segment_ids=cut(self._q_segment_ids, 1, 0),
            _kv_segment_ids=cut(self._kv_segment_ids, 0, 1),
            _cu_seqlens_q=None,
            _cu_seqlens_kv=None,
            q_positions=cut(self.q_positions, 1, 0),
            kv_positions=cut(self.kv_positions, 0, 1),
            rules=tuple(rule.behind(*starts) for rule in self.rules),
        )

    @property
    def batch_size(self) -> int | None:
        return self._size(0, 0)

    @property
    def q_len(self) -> int | None:
        return self._size(1, 2)

    @property
    def kv_len(self) -> int | None:
        if self._kv_segment_ids is not None:
            return int(self._kv_segment_ids.shape[1])
        if self._attention_mask is not None:
            return int(self._attention_mask.shape[3])
        types = self._types()
        return None if types is None else int(types[1].shape[1])

    @property
    def shape(self) -> tuple[int | None, int | None, int | None]:
        return self.batch_size, self.q_len, self.kv_len

    def _size(self, of_ids: int, of_mask: int) -> int | None:
        if self._q_segment_ids is not None:
            return int(self._q_segment_ids.shape[of_ids])
        if self._attention_mask is not None:
            return int(self._attention_mask.shape[of_mask])
        types = self._types()
        return None if types is None else int(types[0].shape[of_ids])

    def _types(self) -> tuple[jax.Array, ...] | None:
        """Arrays that define the lengths if there is neither a mask nor segment ids."""
        return next((rule.arrays for rule in self.rules if rule.kind in ("types", "union") and not rule.starts), None)

    def _lengths(self) -> tuple[int, int]:
        if self.q_len is None or self.kv_len is None:
            raise InvalidArgumentError(
                "neither a mask nor segment ids came, so that the lengths are unknown; expected one of them"
            )
        return self.q_len, self.kv_len

    def _offset(self, given: int | jax.Array) -> tuple[int, tuple[jax.Array, ...]]:
        if isinstance(given, (int, np.integer)):
            return int(given), ()
        array = as_array("offset", given)
        batches = (1,) if array.ndim == 0 else (1, self.batch_size or array.size)
        if array.ndim > 1 or array.size not in batches or not jnp.issubdtype(array.dtype, jnp.integer):
            raise InvalidArgumentError(f"offset is {described(array)}; expected an integer, or int32 [batch]")
        return 0, (array.astype(jnp.int32).reshape(-1),)

    def is_self_attention(self) -> bool | jax.Array:
        """Whether queries and keys have the same segments, or the same number of positions if there are none."""
        of_q, of_kv = self._q_segment_ids, self._kv_segment_ids
        if of_q is None or of_kv is None or of_q is of_kv:
            return self.q_len is not None and self.q_len == self.kv_len
        return of_q.shape == of_kv.shape and jnp.array_equal(of_q, of_kv)

    @property
    def baked_in_masks(self) -> dict[str, bool]:
        kinds = ("causal", "sliding_window", "chunked", "token_type_ids")
        flags = (self.causal_mask_baked_in, self.sliding_window_baked_in, self.chunked_mask_baked_in)
        return dict(zip(kinds, (*flags, self.token_type_ids_baked_in), strict=True))

    def get_or_compute_segment_ids(self, per_head: bool = False) -> tuple[jax.Array, jax.Array]:
        """The given segment ids; for a mask, 0 for queries and keys of which it keeps anything, and -1 for padding.
        Conditions that were added later do not count."""
        if per_head:
            raise InvalidArgumentError("per_head is True; expected False: segments are the same for all heads")
        if self._q_segment_ids is not None and self._kv_segment_ids is not None:
            return self._q_segment_ids, self._kv_segment_ids
        mask = self.attention_mask if self._attention_mask is None else self._attention_mask.astype(bool)
        return padding(mask.any((1, 3))), padding(mask.any((1, 2)))

    @property
    def q_segment_ids(self) -> jax.Array:
        return self.get_or_compute_segment_ids()[0]

    @property
    def kv_segment_ids(self) -> jax.Array:
        return self.get_or_compute_segment_ids()[1]

    def materialize_segment_ids(self, per_head: bool = False) -> "MaskInfo":
        of_q, of_kv = self.get_or_compute_segment_ids(per_head)
        return dataclasses.replace(self, _q_segment_ids=of_q, _kv_segment_ids=of_kv)

    @property
    def q_attention_mask(self) -> jax.Array:
        """int32 [batch, q_len]: 0 for padding."""
        return (self.q_segment_ids != -1).astype(jnp.int32)

    def get_qkv_masks(self, dtype: DTypeLike = jnp.bool_) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Which queries and keys are not padding, [batch, length], and which pairs have the same segment."""
        of_q, of_kv = self.get_or_compute_segment_ids()
        both = Rule("segments", (), (of_q, of_kv))
        return (of_q >= 0).astype(dtype), (of_kv >= 0).astype(dtype), plane_of(both.keep, of_q, of_kv).astype(dtype)

    @property
    def is_multi_sequence(self) -> jax.Array:
        """Whether there is a segment other than number 0."""
        ids = self._kv_segment_ids if self._q_segment_ids is None else self._q_segment_ids
        return jnp.asarray(False) if ids is None else jnp.max(ids, initial=0) > 0

    @property
    def q_lens(self) -> jax.Array | None:
        """The number of queries of each segment, over all batches, or of each batch if number 0 is the only segment."""
        return None if self._q_segment_ids is None else counts(self._q_segment_ids)

    @property
    def kv_lens(self) -> jax.Array | None:
        return None if self._kv_segment_ids is None else counts(self._kv_segment_ids)

    def get_or_compute_qkv_cu_seqlens(
        self, *, out_dtype: DTypeLike = jnp.int32, max_segments: int = 128
    ) -> tuple[jax.Array, jax.Array]:
        """As from_cu_seqlens took them, and so of a mask; of segments, the sums of their lengths, all batches
        together, as ends [max_segments + 1]."""
        of_q, of_kv = self._cu_seqlens_q, self._cu_seqlens_kv
        if of_q is None and of_kv is None:
            ids = self.get_or_compute_segment_ids()
            of_q, of_kv = (
                bounds_of(one >= 0) if self._q_segment_ids is None else ends_of(one, max_segments) for one in ids
            )
        of_q, of_kv = (of_kv if of_q is None else of_q), (of_q if of_kv is None else of_kv)
        return jnp.asarray(of_q, out_dtype), jnp.asarray(of_kv, out_dtype)

    @property
    def cu_seqlens_q(self) -> jax.Array:
        return self.get_or_compute_qkv_cu_seqlens()[0]

    @property
    def cu_seqlens_kv(self) -> jax.Array:
        return self.get_or_compute_qkv_cu_seqlens()[1]

    @property
    def q_position_ids(self) -> jax.Array:
        """Positions within segments, int32 [batch, q_len], -1 for padding."""
        return positions(self.q_segment_ids, -1)

    def get_or_compute_positions(self) -> tuple[jax.Array | None, jax.Array | None]:
        """The given positions, or else positions within segments: for padding -1 of queries, and the largest int32
        of keys."""
        of_q, of_kv = self.q_positions, self.kv_positions
        if self.q_len is None or self.kv_len is None or (of_q is not None and of_kv is not None):
            return of_q, of_kv
        ids = self.get_or_compute_segment_ids()
        of_q = positions(ids[0], -1) if of_q is None else of_q
        return of_q, positions(ids[1], np.iinfo(np.int32).max) if of_kv is None else of_kv

    @property
    def attention_mask(self) -> jax.Array:
        """The whole mask as booleans [batch, heads or 1, q_len, kv_len], in memory."""
        return self.get_or_compute_attention_mask()

    def get_or_compute_attention_mask(self, dtype: DTypeLike = jnp.bool_) -> jax.Array:
        q_len, kv_len = self._lengths()
        batch = self.batch_size or 1
        keep = keeps_by(self.rules)
        mask = self._attention_mask
        kept = jnp.ones((batch, 1, q_len, kv_len), bool) if mask is None else mask.astype(bool)
        if self._q_segment_ids is not None and self._kv_segment_ids is not None:
            kept &= self.get_qkv_masks()[2]
        if keep is None:
            return kept.astype(dtype)
        heads = max((rule.arrays[0].shape[1] for rule in self.rules if rule.kind == "mask"), default=1)
        plane = (batch, heads, q_len, kv_len)
        b, h, q, kv = (jax.lax.broadcasted_iota(jnp.int32, plane, axis) for axis in range(4))
        return (kept & keep(b, h, q, kv)).astype(dtype)

    @property
    def bias(self) -> jax.Array:
        """The mask to add to scores: 0 and the lowest float32, in memory."""
        return self.create_bias()

    def create_bias(self, dtype: DTypeLike = jnp.float32) -> jax.Array:
        return jnp.where(self.attention_mask, 0, jnp.finfo(dtype).min).astype(dtype)

    def materialize_attention_mask(self, dtype: DTypeLike = jnp.bool_) -> "MaskInfo":
        return dataclasses.replace(self, _attention_mask=self.get_or_compute_attention_mask(dtype), rules=())

    to_dtype = materialize_attention_mask

    @property
    def mask_mod(self) -> Keep | None:
        """The conditions on positions as a function of (b, h, q, kv), or None."""
        return keeps_by(self.rules)

    @staticmethod
    def create_chunked_attention_mask(
        chunk_size: int, q_len: int, kv_len: int | None = None, offset: int = 0, dtype: DTypeLike = jnp.bool_
    ) -> jax.Array:
        """The condition of apply_chunked as a mask [q_len, kv_len]."""
        rules = MaskInfo().apply_chunked(chunk_size, offset).rules
        q, kv = jnp.arange(q_len)[:, None], jnp.arange(q_len if kv_len is None else kv_len)
        return jnp.asarray(rules[0].keep(0, 0, q, kv)).astype(dtype)

    @staticmethod
    def get_empty_sharding() -> MaskSharding:
        return MaskSharding()

    def get_shardings(self, sequence_parallel: bool = False, *, mesh: jax.sharding.Mesh) -> MaskSharding:
        """How the arrays are split over the mesh by the four axis names: batches, heads, and lengths of queries if
        sequence_parallel. Axes that do not divide a dimension do not split it."""
        axes = {"b": self.batch_axis_name, "h": self.qheads_axis_name}
        axes["q"] = axes["k"] = self.sequence_axis_name if sequence_parallel else None
        for name in {one: None for names in axes.values() for one in _names(names)}:
            if name not in mesh.shape:
                raise InvalidArgumentError(
                    f'the mesh has no axis "{name}", only {", ".join(map(repr, mesh.shape))}; name its axes by '
                    "batch_axis_name=, qheads_axis_name= and sequence_axis_name="
                )

        def spec(array: jax.Array | None, letters: str) -> PartitionSpec | None:
            if array is None:
                return None
            parts = []
            for letter, size in zip(letters, array.shape, strict=True):
                names = axes.get(letter)
                count = int(np.prod([mesh.shape[one] for one in _names(names)], dtype=int))
                parts.append(names if size % count == 0 else None)
            return PartitionSpec(*parts)

        return MaskSharding(
            attention_mask=spec(self._attention_mask, "bhq."),
            q_segment_ids=spec(self._q_segment_ids, "bq"),
            kv_segment_ids=spec(self._kv_segment_ids, "bk"),
            q_positions=spec(self.q_positions, "bq"),
            kv_positions=spec(self.kv_positions, "bk"),
        )

    def visualize(
        self,
        block_size: int | tuple[int, int] = 32,
        batch: int = 0,
        head: int = 0,
        fit_in_screen: bool = True,
        max_rows: int = 32,
        max_cols: int = 64,
        charset: str = "unicode",
        show_segments: bool = True,
        return_str: bool = False,
    ) -> str | None:
        """Prints the mask of one batch and head, with two characters per block_size queries and keys, or returns the
        text. fit_in_screen: uses larger blocks if there are more than max_rows and max_cols. charset: or "ascii"."""
        if charset not in ("unicode", "ascii"):
            raise InvalidArgumentError(f'charset is {charset!r}; expected "unicode" or "ascii"')
        mask = self.attention_mask
        for name, at, size in (("batch", batch, mask.shape[0]), ("head", head, mask.shape[1])):
            if not 0 <= at < size:
                raise InvalidArgumentError(f"{name} is {at}; expected 0 to {size - 1}")
        tile = block_size if isinstance(block_size, tuple) else (block_size, block_size)
        of_q, of_kv = (as_numpy(one[batch]) for one in self.get_or_compute_segment_ids())
        text = picture(
            as_numpy(mask[batch, head]),
            (max(tile[0], 1), max(tile[1], 1)),
            (of_q, of_kv) if show_segments else None,
            (max_rows, max_cols) if fit_in_screen else None,
            charset,
        )
        if return_str:
            return text
        print(text)
        return None


def masks_of(info: Any) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None, tuple[Rule, ...]]:
    """The mask, both segment ids and the rules of a MaskInfo, ours or ejkernel's."""
    if isinstance(info, type) or not hasattr(info, "_attention_mask") or not hasattr(info, "_q_segment_ids"):
        raise InvalidArgumentError(f"mask_info is {short(info)}; expected a MaskInfo: pass a mask as attention_mask=")
    mask = info._attention_mask
    if mask is not None and jnp.issubdtype(mask.dtype, jnp.floating):
        mask = mask != 0  # a result of to_dtype: 0 or 1
    rules = info.rules if isinstance(info, MaskInfo) else ()
    if info._q_segment_ids is None and info._kv_segment_ids is None:
        return mask, None, None, rules
    return mask, *info.get_or_compute_segment_ids(per_head=False), rules


def _names(axis: AxisName) -> tuple[str, ...]:
    return () if axis is None else (axis,) if isinstance(axis, str) else tuple(axis)
