"""Calls of sharded operands taken apart over batches and heads, each device running the kernel on what it holds.

XLA asks twice: for a rule by which Shardy propagates shardings (`_rule`), or GSPMD those of the results, and for each
device's part once shardings are known.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.sharding import NamedSharding, PartitionSpec

from flashlift._errors import UnsupportedError
from flashlift.jax._arguments.seeds import seed_of_part
from flashlift.jax._call import INPUTS, Call
from flashlift.jax._counting import counting
from flashlift.jax._letters import BATCHES, Letters, letters_of

Axes = tuple[str, ...]


class Kind(Protocol):
    """One kind of call, hashable, that XLA may split."""

    def letters(self, operands: Sequence[Any]) -> Letters: ...

    def run(self, *operands: jax.Array) -> list[jax.Array]: ...

    def run_part(
        self, letters: Letters, counts: Mapping[str, int], plan: Mapping[str, Axes], *parts: jax.Array
    ) -> list[jax.Array]:
        """Runs the call on a part. letters: those of the whole; plan: the axes that split batches (b) and heads (h)."""
        ...


@dataclasses.dataclass(frozen=True)
class Forward:
    call: Call

    def letters(self, operands: Sequence[Any]) -> Letters:
        return letters_of(self.call, operands)

    def run(self, *operands: jax.Array) -> list[jax.Array]:
        return self.call.run(*operands)

    def run_part(
        self, letters: Letters, counts: Mapping[str, int], plan: Mapping[str, Axes], *parts: jax.Array
    ) -> list[jax.Array]:
        call, operands, _ = _of_part(self.call, letters, counts, plan, parts)
        return call.run(*operands)


@dataclasses.dataclass(frozen=True)
class Backward:
    """The backward pass of a call, with these gradients."""

    call: Call
    wanted: tuple[int, ...]

    def letters(self, operands: Sequence[Any]) -> Letters:
        results = 2 if self.call.with_lse else 1
        found = letters_of(self.call, operands[: len(operands) - 2 * results])
        of_all = (*found.operands, *found.results, *found.results)
        return dataclasses.replace(found, operands=of_all, results=tuple(found.operands[i] for i in self.wanted))

    def run(self, *operands: jax.Array) -> list[jax.Array]:
        return self.call.run_backward(self.wanted, *operands)

    def run_part(
        self, letters: Letters, counts: Mapping[str, int], plan: Mapping[str, Axes], *parts: jax.Array
    ) -> list[jax.Array]:
        call, operands, place_of = _of_part(self.call, letters, counts, plan, parts)
        return call.run_backward(tuple(map(place_of, self.wanted)), *operands)


def run_partitioned(kind: Kind, *operands: jax.Array) -> list[jax.Array]:
    return list(_run(kind, *operands))


def is_split(context: Any) -> bool:
    """Whether the code being lowered may be split over several devices."""
    if getattr(context.module_context.lowering_parameters, "for_export", False):
        return False  # XLA splits it by functions of this process
    devices = context.module_context.axis_context
    # Within shard_map, each device has its own part. If some axes are not manual, JAX cannot read the shardings over
    # the others; XLA then gathers over these, as for any custom call.
    if manual := getattr(devices, "manual_axes", None):
        is_partly = any(size > 1 for name, size in devices.mesh.shape.items() if name not in manual)
        config: Any = jax.config
        if is_partly and jax.__version_info__ < (0, 10) and not config.jax_use_shardy_partitioner:
            raise UnsupportedError(
                "attention is called within a shard_map over some of the mesh's axes, which GSPMD of JAX before 0.10 "
                "cannot compile; expected Shardy (jax_use_shardy_partitioner), or all axes of the mesh in axis_names"
            )
        return False
    # If the devices are still unknown, nothing can compute the parts.
    return getattr(devices, "num_devices", None) != 1 and getattr(devices, "device_assignment", devices) is not None


def needs_devices(*primitives: Primitive) -> None:
    """Makes JAX tell these primitives' lowering rules about the devices. JAX's set of such primitives has no public
    name; without it, calls on sharded operands are still right, but gather them."""
    with contextlib.suppress(ImportError):
        from jax._src.dispatch import prim_requires_devices_during_lowering

        prim_requires_devices_during_lowering.update(primitives)


def _run_whole(kind: Kind, *operands: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(kind.run(*operands))


def _plan(kind: Kind, mesh: Any, operands: Sequence[Any]) -> dict[str, Axes]:
    """The axes of the mesh that split batches (b), query heads (h) and key-value heads (k)."""
    letters = kind.letters(operands)

    def axes_of(letter: str) -> Axes:
        """The axes that split a letter, taken from the first operand that is split by it."""
        for array, names in zip(operands, letters.operands, strict=True):
            if letter in names and (axes := _axes_of(mesh, array, names.index(letter))):
                return axes
        return ()

    sizes = letters.sizes(operands)
    plan: dict[str, Axes] = {"h": (), "k": ()}
    taken: Axes = ()
    for letter in BATCHES:
        batches = () if "b" in letters.fixed else axes_of(letter)
        batches = tuple(one for one in batches if one not in taken)
        while batches and sizes[letter] % _count(mesh, batches):
            batches = batches[:-1]
        plan[letter] = batches
        taken += batches
    heads = () if "h" in letters.fixed else axes_of("h") or axes_of("k")
    heads = tuple(one for one in heads if one not in taken)
    while heads:
        shared = heads
        while shared and sizes["k"] % _count(mesh, shared):
            shared = shared[:-1]
        if sizes["h"] % _count(mesh, heads) == 0 and _shares(mesh, heads, shared, sizes["k"]) is not None:
            return plan | {"h": heads, "k": shared}
        heads = heads[:-1]
    return plan


def _axes_of(mesh: Any, array: jax.ShapeDtypeStruct, dimension: int) -> Axes:
    """The axes of the mesh that split a dimension, as far as each of them splits it as a whole.

    XLA may split 2 heads by half of an axis of 4 devices, and the depth by the other half. JAX's own names for axes
    (decode_shardings) do not cover this: it raises an error, or with GSPMD ends the process.
    """
    if array.sharding is None or mesh.empty:
        return ()
    # Of an array of this shape, every number of devices splits every dimension evenly.
    parts = array.sharding.devices_indices_map((mesh.size,) * array.ndim)
    start = np.vectorize(lambda device: parts[device][dimension].start or 0)(mesh.devices)
    axes: Axes = ()
    size, free = mesh.size, [name for name in mesh.axis_names if mesh.shape[name] > 1]
    while found := [name for name in free if _splits(start, size // mesh.shape[name], mesh, name)]:
        axes += (found[0],)
        free.remove(found[0])
        size //= mesh.shape[found[0]]
        start = start % size
    return axes


def _splits(start: np.ndarray, size: int, mesh: Any, axis: str) -> bool:
    """Whether the devices' parts of this size are numbered as the devices are along the axis."""
    along = mesh.axis_names.index(axis)
    return bool((start // size == np.indices(start.shape)[along]).all())


def _shares(mesh: Any, heads: Axes, shared: Axes, kv_heads: int) -> tuple[int, int] | None:
    """How many key-value heads a device holds, and how many of the devices that hold the same ones use the same one.
    Devices hold consecutive query heads. None if a device would use only some of the key-value heads that it holds."""
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
    letters = kind.letters(operands)
    plan = _plan(kind, mesh, operands)
    counts = {letter: _count(mesh, axes) for letter, axes in plan.items()}
    held, alike = _shares(mesh, plan["h"], plan["k"], letters.sizes(operands)["k"]) or (1, 1)
    further = plan["h"][len(plan["k"]) :]  # the axes whose devices have the same key-value heads
    is_chosen = bool(further) and held > 1  # each device uses one of several heads

    def run(*parts: jax.Array) -> tuple[jax.Array, ...]:
        own = list(parts)
        head = jax.lax.axis_index(further) // alike if is_chosen else 0
        if is_chosen:
            for i, names in enumerate(letters.operands):
                if "k" in names:
                    own[i] = jax.lax.dynamic_slice_in_dim(own[i], head, 1, names.index("k"))
        results = kind.run_part(letters, counts, plan, *own)
        if is_chosen:
            for i, names in enumerate(letters.results):
                if "k" in names:
                    at, one = names.index("k"), results[i]
                    whole = jnp.zeros((*one.shape[:at], held, *one.shape[at + 1 :]), one.dtype)
                    results[i] = jax.lax.dynamic_update_slice_in_dim(whole, one, head, at)
        # If several devices read an operand, each computes a part of its gradient.
        return tuple(_summed(one, names, plan) for one, names in zip(results, letters.results, strict=True))

    def run_alone(*parts: jax.Array) -> tuple[jax.Array, ...]:
        # Otherwise operations would have types of the caller's mesh, with shardings that no part has.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            return run(*parts)

    results = tuple(_sharding(mesh, names, plan) for names in letters.results)
    return mesh, run_alone, results, tuple(_sharding(mesh, names, plan) for names in letters.operands)


def _of_part(
    call: Call, letters: Letters, counts: Mapping[str, int], plan: Mapping[str, Axes], parts: Sequence[jax.Array]
) -> tuple[Call, list[jax.Array], Callable[[int], int]]:
    """The call of a part, with batch and head indices and dropped keys as in the whole; its operands; and the position
    of each given operand among them."""
    operands = list(parts)
    sizes = call.axes(parts[0])
    if call.seed is not None:
        operands[call.seed] = seed_of_part(operands[call.seed], plan, sizes).words
    end = len(INPUTS) + len(call.capture_names)
    added = counting(
        call.problem,
        letters.counted,
        dict(zip(call.capture_names, letters.operands[len(INPUTS) : end], strict=True)),
        plan,
        {one: sizes[one] * counts[one] for one in "bh"},
        sizes,
    )
    operands[end:end] = added.operands
    own = dataclasses.replace(call, problem=added.problem, capture_names=(*call.capture_names, *added.captures))
    return own, operands, lambda i: i if i < end else i + len(added.operands)


def _summed(gradient: jax.Array, letters: str, plan: dict[str, Axes]) -> jax.Array:
    own = {axis for letter in letters for axis in plan.get(letter, ())}
    others = tuple(axis for letter in (*BATCHES, "h") for axis in plan[letter] if axis not in own)
    return jax.lax.psum(gradient, others) if others else gradient


def _infer(kind: Kind, mesh: Any, operands: Sequence[Any], _: Any) -> tuple[NamedSharding, ...]:
    plan = _plan(kind, mesh, operands)
    return tuple(_sharding(mesh, names, plan) for names in kind.letters(operands).results)


def _rule(kind: Kind, mesh: Any, operands: Sequence[Any], _results: Any) -> tuple[str, dict[str, Any]]:
    """Batches may be split, and query heads in groups that share a key-value head; all other dimensions must be whole.
    If an axis of the mesh has more devices than there are key-value heads, Shardy would split these by a part of the
    axis, which JAX cannot express: then query heads and key-value heads are each split separately."""
    letters = kind.letters(operands)
    sizes = letters.sizes(operands)
    q_heads, kv_heads = sizes["h"], sizes["k"]
    fits = all(kv_heads % size == 0 for size in mesh.shape.values())
    is_grouped = 1 < kv_heads < q_heads and fits
    names = {letter: f"batch{letter}" for letter in BATCHES} | {"h": "(heads group)" if is_grouped else "heads"}
    if kv_heads > 1:
        names["k"] = "heads" if is_grouped or kv_heads == q_heads else "shared"
    whole: list[str] = []  # in the order of their occurrence, as Shardy requires

    def factor(letter: str) -> str:
        if letter in names and not {"b" if letter in BATCHES else "h"} & letters.fixed:
            return names[letter]
        whole.append(f"whole{len(whole)}")
        return whole[-1]

    sides = [", ".join(" ".join(map(factor, one)) for one in side) for side in (letters.operands, letters.results)]
    arguments: dict[str, Any] = {"need_replication_factors": tuple(whole)}
    has_groups = is_grouped and "h" not in letters.fixed
    return " -> ".join(sides), arguments | ({"group": q_heads // kv_heads} if has_groups else {})


_run = custom_partitioning(_run_whole, static_argnums=(0,))
_run.def_partition(_partition, infer_sharding_from_operands=_infer, sharding_rule=_rule, decode_shardings=False)
