"""The conditions of which a MaskInfo is made, as functions of a position."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from flashlift._errors import InvalidArgumentError
from flashlift.jax._arguments.values import described

Keep = Callable[[Any, Any, Any, Any], Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rule:
    """One condition: its kind, its numbers, and its arrays, whose first dimension is the batch or 1."""

    kind: str = dataclasses.field(metadata={"static": True})  # "union": what it keeps is kept besides what others keep
    numbers: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    arrays: tuple[jax.Array, ...] = ()
    starts: tuple[jax.Array, ...] = ()
    """Where the first query and the first key lie that are left, int32 [batch] each, in the positions of this rule."""

    def keep(self, b: Any, h: Any, q: Any, kv: Any) -> Any:
        def of_batch(array: jax.Array) -> Any:
            return array[b if array.shape[0] > 1 else 0]

        if self.starts:
            q, kv = q + of_batch(self.starts[0]), kv + of_batch(self.starts[1])
        offset = of_batch(self.arrays[0]) if self.kind in ("causal", "window", "chunk") and self.arrays else 0
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
            return kv < of_batch(self.arrays[0])
        if self.kind == "mask":
            mask = self.arrays[0]
            return mask[b if mask.shape[0] > 1 else 0, h if mask.shape[1] > 1 else 0, q, kv]
        of_q, of_kv = self.arrays[0][b, q], self.arrays[1][b, kv]
        if self.kind == "segments":
            return (of_q == of_kv) & (of_q >= 0)
        return (of_q == of_kv) & (of_q != 0 if self.numbers[0] else True) & (of_kv != 0 if self.numbers[1] else True)

    def behind(self, q_start: jax.Array, kv_start: jax.Array) -> "Rule":
        """The same condition for queries and keys whose numbers start there."""
        at = self.starts or (0, 0)
        return dataclasses.replace(self, starts=(at[0] + q_start, at[1] + kv_start))


_WHAT = {
    "causal": "offset", "window": "offset", "chunk": "offset", "lengths": "kv_lengths", "mask": "attention_mask",
    "segments": "q_segment_ids or kv_segment_ids", "types": "token_type_ids", "union": "token_type_ids",
}  # fmt: skip


def check_rules(rules: Sequence[Rule], query: jax.Array, key: jax.Array) -> None:
    """Refuses arrays of other sizes than the call's: indices outside them would be clamped silently."""
    sizes = dict(zip("bqh", query.shape, strict=False)) | {"k": key.shape[1]}
    for rule in rules:
        of_arrays = {"mask": ["bhqk"], "segments": ["bq", "bk"], "types": ["bq", "bk"], "union": ["bq", "bk"]}
        for array, letters in zip(rule.arrays, of_arrays.get(rule.kind, ["b"]), strict=False):
            for letter, size in zip(letters, array.shape, strict=True):
                is_shared = letter in "bh" and size == 1
                is_of_whole = letter in "qk" and bool(rule.starts)  # whether the call has only a part of it
                if size != sizes[letter] and not is_shared and not is_of_whole:
                    raise InvalidArgumentError(
                        f"mask_info's {_WHAT[rule.kind]} is {described(array)}; expected "
                        f"{[sizes[one] for one in letters]}, where one batch or head may be for all"
                    )


def keeps_by(rules: tuple[Rule, ...]) -> Keep | None:
    """All conditions combined into one function of (b, h, q, kv), or None."""
    if not rules:
        return None

    def keep(b: Any, h: Any, q: Any, kv: Any) -> Any:
        kept = rules[0].keep(b, h, q, kv)
        for rule in rules[1:]:
            own = rule.keep(b, h, q, kv)
            kept = kept | own if rule.kind == "union" else kept & own
        return kept

    return keep


def both(one: Keep | None, other: Keep | None) -> Keep | None:
    """A function that keeps what both keep."""
    if one is None or other is None:
        return other if one is None else one
    return lambda b, h, q, kv: one(b, h, q, kv) & other(b, h, q, kv)
