"""Reductions and searches, unrolled."""

import itertools
import math
from typing import Any

import torch

from flashlift.torch._program import Builder, Node, type_of
from flashlift.torch._trace.lines import TraceError, where
from flashlift.torch._trace.operations.results import by_element, infer, made, operand
from flashlift.torch._trace.operations.table import TABLE, arguments_of, name_of, register
from flashlift.torch._trace.recording import Recording
from flashlift.torch._trace.values import Index

# Reductions over more elements are refused.
_MAX_UNROLLED = 256


@register("min", "max")
def _min_max(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    name = name_of(func)
    if len(args) == 2 and isinstance(args[1], torch.Tensor):
        return TABLE[name + "imum"](recording, getattr(torch.ops.aten, name + "imum").default, args, kwargs)
    if len(args) == 1 and not kwargs:
        return _reduce(recording, "a" + name, args[0], None, False, args[0].dtype)
    return NotImplemented


@register("sum", "prod", "any", "all", "amin", "amax")
def _reduction(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    given = arguments_of(func, args, kwargs)
    dtype = infer(func, args, kwargs).dtype
    return _reduce(recording, name_of(func), args[0], given.get("dim"), bool(given.get("keepdim", False)), dtype)


def check_count(name: str, count: int) -> None:
    if count > _MAX_UNROLLED or count == 0:
        raise TraceError(f"{name} over {count} elements{where()}; a program can reduce 1 to {_MAX_UNROLLED}")


_REDUCERS = {"sum": "add", "prod": "mul", "any": "or", "all": "and", "amin": "min", "amax": "max"}


def _reduce(
    recording: Recording, name: str, tensor: torch.Tensor, dim: Any, keepdim: bool, dtype: torch.dtype
) -> torch.Tensor:
    builder = recording.builder
    value = recording.value_of(tensor)
    rank = len(value.shape)
    dims = list(range(rank)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    dims = sorted(one % rank for one in dims) if rank else []
    count = math.prod(value.shape[one] for one in dims)
    check_count(f"aten.{name}", count)
    op = {"amin": "and", "amax": "or"}.get(name) if dtype == torch.bool else None
    op = op or _REDUCERS[name]
    kept = [i for i in range(rank) if i not in dims]
    shape = tuple(1 if i in dims else size for i, size in enumerate(value.shape)) if keepdim else None
    shape = tuple(value.shape[i] for i in kept) if shape is None else shape

    def at(index: Index) -> Node:
        outer = dict(zip(kept, [index[i] for i in kept] if keepdim else index, strict=True))
        total: Node | None = None
        elements = []
        for inner in itertools.product(*(range(value.shape[one]) for one in dims)):
            inside = {i: builder.constant(one, "i64") for i, one in zip(dims, inner, strict=True)}
            element = builder.convert(value.at(tuple((outer | inside)[i] for i in range(rank))), type_of(dtype))
            elements.append(element)
            total = element if total is None else builder.emit(op, total, element)
        assert total is not None, "there is one element at least"
        if name in ("amin", "amax") and count > 2 and "load" in builder.follows(total):
            total = _shared_evenly(builder, total, elements)
        return builder.narrow(total, dtype)

    return made(recording, dtype, shape, at)


def _shared_evenly(builder: Builder, extreme: Node, elements: list[Node]) -> Node:
    """The extreme of elements, whose gradient those that are equal to it share evenly: a chain of maxima would halve it
    at each. Their mean has the gradient; its rounding errors cancel."""
    zero = builder.constant(0.0, "f32")
    total, count = zero, zero
    for one in elements:
        is_extreme = builder.emit("and", builder.emit("eq", one, extreme), builder.emit("is_finite", one))
        total = builder.emit("add", total, builder.emit("select", is_extreme, one, zero))
        count = builder.emit("add", count, builder.convert(is_extreme, "f32"))
    mean = builder.emit("div", total, builder.emit("max", count, builder.constant(1.0, "f32")))
    return builder.emit("add", builder.detached(extreme), builder.emit("sub", mean, builder.detached(mean)))


@register("searchsorted", "bucketize")
def _search(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    """The number of sorted boundaries that lie below a scalar."""
    boundaries, x = args[:2] if name_of(func) == "searchsorted" else (args[1], args[0])
    right = kwargs.get("right", False) or kwargs.get("side") == "right"
    like = x if isinstance(x, torch.Tensor) else torch.ones((), device="cpu")
    common = torch.promote_types(boundaries.dtype, like.dtype)
    type_ = type_of(common)
    # Captured integers are searched; all other tensors are compared element by element.
    is_searched = type_ in ("i32", "i64") and not recording.is_traced(boundaries) and boundaries.numel() > 0
    limited = not is_searched and len(boundaries) > _MAX_UNROLLED
    if boundaries.dim() != 1 or limited or kwargs.get("sorter") is not None:
        raise TraceError(
            f"{func} needs boundaries in one dimension, in their order, up to {_MAX_UNROLLED} where they are floats or "
            f"computed{where()}"
        )
    table = recording.value_of(boundaries)
    dtype = torch.int32 if kwargs.get("out_int32", False) else torch.int64

    def search(builder: Builder, node: Node) -> Node:
        tensor = table.at((builder.constant(0, "i64"),)).payload
        node = node if right else builder.emit("sub", node, builder.constant(1, node.type))
        return builder.convert(builder.node("search", "i32", (node,), tensor), type_of(dtype))

    def compute(builder: Builder, node: Node) -> Node:
        total = builder.constant(0, "i32")
        for i in range(table.shape[0]):
            bound = builder.convert(table.at((builder.constant(i, "i64"),)), type_)
            below = builder.emit("le" if right else "lt", bound, node)
            total = builder.emit("add", total, builder.convert(below, "i32"))
        return builder.convert(total, type_of(dtype))

    found = search if is_searched else compute
    return by_element(recording, like, [operand(recording, x, common)], found, dtype)
