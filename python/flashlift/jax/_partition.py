"""Calls of sharded operands taken apart over batches and heads, each device running the kernel on what it holds.

XLA asks twice: for a rule by which Shardy propagates shardings (`_rule`), or GSPMD those of the results, and for each
device's part once shardings are known.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from flashlift.jax._arguments.seeds import seed_of_part
from flashlift.jax._call import Call
from flashlift.jax._letters import letters_of

Axes = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A call, or its backward pass, which has these gradients."""

    call: Call
    wanted: tuple[int, ...] | None = None

    def run(self, *operands: jax.Array) -> list[jax.Array]:
        return self.call.run(*operands) if self.wanted is None else self.call.run_backward(self.wanted, *operands)

    def letters(self, operands: Sequence[Any]) -> tuple[list[str], list[str], frozenset[str]]:
        """Of the operands and of the results, and which of b and h must stay whole."""
        found = letters_of(self.call, operands[: self._own_count(operands)])
        if self.wanted is None:
            return list(found.operands), list(found.results), found.fixed
        of_all = [*found.operands, *found.results, *found.results]
        return of_all, [found.operands[i] for i in self.wanted], found.fixed

    def _own_count(self, operands: Sequence[Any]) -> int:
        results = 2 if self.call.with_lse else 1
        return len(operands) if self.wanted is None else len(operands) - 2 * results


def run_partitioned(kind: Kind, *operands: jax.Array) -> list[jax.Array]:
    return list(_run(kind, *operands))


def _run_whole(kind: Kind, *operands: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(kind.run(*operands))


def _plan(kind: Kind, mesh: Any, operands: Sequence[Any]) -> dict[str, Axes]:
    """The axes of the mesh that split batches (b), query heads (h) and key-value heads (k)."""
    layout = kind.call.layout
    q, k = operands[0], operands[1]
    _, _, fixed = kind.letters(operands)

    def axes_of(array: Any, letter: str) -> Axes:
        if letter in fixed or not isinstance(array.sharding, NamedSharding):
            return ()
        spec = tuple(array.sharding.spec)
        entry = (spec + (None,) * (len(layout) - len(spec)))[layout.index(letter)]
        return () if entry is None else tuple(entry) if isinstance(entry, tuple) else (entry,)

    sizes, kv_heads = kind.call.axes(q), kind.call.axes(k)["h"]
    batches = axes_of(q, "b") or axes_of(k, "b")
    while batches and sizes["b"] % _count(mesh, batches):
        batches = batches[:-1]
    heads = tuple(one for one in axes_of(q, "h") or axes_of(k, "h") if one not in batches)
    while heads:
        shared = heads
        while shared and kv_heads % _count(mesh, shared):
            shared = shared[:-1]
        if sizes["h"] % _count(mesh, heads) == 0 and _shares(mesh, heads, shared, kv_heads) is not None:
            return {"b": batches, "h": heads, "k": shared}
        heads = heads[:-1]
    return {"b": batches, "h": (), "k": ()}


def _shares(mesh: Any, heads: Axes, shared: Axes, kv_heads: int) -> tuple[int, int] | None:
    """How many key-value heads a device holds, and how many devices of those that hold the same ones use the same one.
    Devices hold consecutive query heads. None: a device would use a part of them."""
    held, holders = kv_heads // _count(mesh, shared), _count(mesh, heads[len(shared) :])
    if holders == 1:
        return held, 1
    return (held, holders // held) if holders % held == 0 else None


def _count(mesh: Any, axes: Axes) -> int:
    count = 1
    for axis in axes:
        count *= mesh.shape[axis]
    return count


def _sharding(mesh: Any, letters: str, plan: dict[str, Axes]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(plan.get(letter) or None for letter in letters)))


def _partition(kind: Kind, mesh: Any, operands: Sequence[Any], _: Any) -> tuple[Any, Callable[..., Any], Any, Any]:
    of_operands, of_results, _fixed = kind.letters(operands)
    plan = _plan(kind, mesh, operands)

    at = kind.call.layout.index("h")
    held, alike = _shares(mesh, plan["h"], plan["k"], kind.call.axes(operands[1])["h"]) or (1, 1)
    further = plan["h"][len(plan["k"]) :]  # the axes whose devices hold the same key-value heads
    is_chosen = bool(further) and held > 1  # of several, of which each device uses one

    def run(*parts: jax.Array) -> tuple[jax.Array, ...]:
        own = _with_origin(kind.call, parts, plan)
        head = jax.lax.axis_index(further) // alike if is_chosen else 0
        if is_chosen:
            own[1:3] = (jax.lax.dynamic_slice_in_dim(one, head, 1, at) for one in own[1:3])
        results = kind.run(*own)
        if kind.wanted is None:
            return tuple(results)
        if is_chosen:
            for i, letters in enumerate(of_results):
                if "k" in letters:
                    whole = jnp.zeros((*results[i].shape[:at], held, *results[i].shape[at + 1 :]), results[i].dtype)
                    results[i] = jax.lax.dynamic_update_slice_in_dim(whole, results[i], head, at)
        # What several devices read, each of them has a share of the gradient of.
        return tuple(_summed(one, letters, plan) for one, letters in zip(results, of_results, strict=True))

    results = tuple(_sharding(mesh, letters, plan) for letters in of_results)
    return mesh, run, results, tuple(_sharding(mesh, letters, plan) for letters in of_operands)


def _with_origin(call: Call, parts: Sequence[jax.Array], plan: dict[str, Axes]) -> list[jax.Array]:
    """Dropout leaves out in each device's part what it leaves out in the whole."""
    own = list(parts)
    if call.seed is not None:
        own[call.seed] = seed_of_part(own[call.seed], plan, call.axes(own[0])).words
    return own


def _summed(gradient: jax.Array, letters: str, plan: dict[str, Axes]) -> jax.Array:
    own = {axis for letter in letters for axis in plan.get(letter, ())}
    others = tuple(axis for axis in (*plan["b"], *plan["h"]) if axis not in own)
    return jax.lax.psum(gradient, others) if others else gradient


def _infer(kind: Kind, mesh: Any, operands: Sequence[Any], _: Any) -> tuple[NamedSharding, ...]:
    _, of_results, _fixed = kind.letters(operands)
    plan = _plan(kind, mesh, operands)
    return tuple(_sharding(mesh, letters, plan) for letters in of_results)


def _rule(kind: Kind, mesh: Any, operands: Sequence[Any], _results: Any) -> tuple[str, dict[str, Any]]:
    """Batches may be split, and query heads as groups of those that share a key-value head; all else must be whole.
    Where an axis of the mesh has more devices than there are key-value heads for, Shardy would split these by a part of
    it, which JAX cannot express: query heads and key-value heads are then split each as they are."""
    of_operands, of_results, fixed = kind.letters(operands)
    q_heads, kv_heads = (kind.call.axes(operands[i])["h"] for i in (0, 1))
    fits = all(kv_heads % size == 0 for size in mesh.shape.values())
    is_grouped = 1 < kv_heads < q_heads and fits
    names = {"b": "batch", "h": "(heads group)" if is_grouped else "heads"}
    if kv_heads > 1:
        names["k"] = "heads" if is_grouped or kv_heads == q_heads else "shared"
    whole: list[str] = []  # in the order in which they are met, as Shardy wants them

    def factor(letter: str) -> str:
        if letter in names and letter.replace("k", "h") not in fixed:
            return names[letter]
        whole.append(f"whole{len(whole)}")
        return whole[-1]

    sides = [", ".join(" ".join(map(factor, one)) for one in side) for side in (of_operands, of_results)]
    arguments: dict[str, Any] = {"need_replication_factors": tuple(whole)}
    has_groups = is_grouped and "h" not in fixed
    return " -> ".join(sides), arguments | ({"group": q_heads // kv_heads} if has_groups else {})


_run = custom_partitioning(_run_whole, static_argnums=(0,))
_run.def_partition(_partition, infer_sharding_from_operands=_infer, sharding_rule=_rule)
