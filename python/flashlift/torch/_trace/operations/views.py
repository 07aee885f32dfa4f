"""Views: where each element of the result comes from."""

import itertools
from typing import Any

import torch

from flashlift.torch._program import Node
from flashlift.torch._trace.operations.results import infer, made, operand
from flashlift.torch._trace.operations.table import arguments_of, name_of, register
from flashlift.torch._trace.recording import Recording
from flashlift.torch._trace.values import Index, broadcast, reshaped


@register("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "_reshape_alias")
def _view(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    if func._overloadname == "dtype":
        return NotImplemented
    shape = tuple(infer(func, args, kwargs).shape)
    value = reshaped(recording.value_of(args[0]), shape, recording.builder)
    return made(recording, value.dtype, shape, value.at)


@register("expand", "broadcast_to", "expand_as")
def _expand(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    shape = tuple(infer(func, args, kwargs).shape)
    value = broadcast(recording.value_of(args[0]), shape, recording.builder)
    return made(recording, value.dtype, shape, value.at)


@register("permute", "transpose", "t", "numpy_T", "swapaxes")
def _permute(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    name = name_of(func)
    value = recording.value_of(args[0])
    order = list(range(len(value.shape)))
    if not order:
        return recording.traced(value)
    if name in ("t", "numpy_T"):
        order.reverse()
    elif name == "permute":
        order = [one % len(order) for one in args[1]]
    else:
        i, j = args[1] % len(order), args[2] % len(order)
        order[i], order[j] = order[j], order[i]

    def at(index: Index) -> Node:
        return value.at(tuple(index[order.index(i)] for i in range(len(order))))

    return made(recording, value.dtype, tuple(value.shape[i] for i in order), at)


@register("diagonal")
def _diagonal(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    builder = recording.builder
    given = arguments_of(func, args, kwargs)
    value = recording.value_of(args[0])
    offset = given.get("offset", 0)
    dims = [given.get(name, default) % len(value.shape) for name, default in (("dim1", 0), ("dim2", 1))]
    starts = (max(-offset, 0), max(offset, 0))
    plain = [i for i in range(len(value.shape)) if i not in dims]

    def at(index: Index) -> Node:
        full = dict(zip(plain, index[:-1], strict=True))
        for dim, start in zip(dims, starts, strict=True):
            full[dim] = builder.emit("add", builder.convert(index[-1], "i64"), builder.constant(start, "i64"))
        return value.at(tuple(full[i] for i in range(len(value.shape))))

    return made(recording, value.dtype, tuple(infer(func, args, kwargs).shape), at)


@register("select")
def _select(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    value = recording.value_of(args[0])
    dim, index = args[1] % len(value.shape), args[2]
    place = recording.builder.constant(index % value.shape[dim], "i64")
    shape = (*value.shape[:dim], *value.shape[dim + 1 :])
    return made(recording, value.dtype, shape, lambda rest: value.at((*rest[:dim], place, *rest[dim:])))


@register("slice")
def _slice(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    builder = recording.builder
    given = arguments_of(func, args, kwargs)
    value = recording.value_of(args[0])
    dim = given.get("dim", 0) % len(value.shape)
    start, end, step = slice(given.get("start"), given.get("end"), given.get("step", 1)).indices(value.shape[dim])
    if (start, end, step) == (0, value.shape[dim], 1):
        return recording.traced(value)

    def at(index: Index) -> Node:
        scaled = builder.emit("mul", builder.convert(index[dim], "i64"), builder.constant(step, "i64"))
        moved = builder.emit("add", scaled, builder.constant(start, "i64"))
        return value.at((*index[:dim], moved, *index[dim + 1 :]))

    shape = (*value.shape[:dim], len(range(start, end, step)), *value.shape[dim + 1 :])
    return made(recording, value.dtype, shape, at)


@register("unfold")
def _unfold(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    builder = recording.builder
    value = recording.value_of(args[0])
    shape = tuple(infer(func, args, kwargs).shape)
    if not value.shape:
        return recording.traced(reshaped(value, shape, builder))
    given = arguments_of(func, args, kwargs)
    dim, step = given["dimension"] % len(value.shape), given["step"]

    def at(index: Index) -> Node:
        *outer, inner = index
        start = builder.emit("mul", builder.convert(outer[dim], "i64"), builder.constant(step, "i64"))
        outer[dim] = builder.emit("add", start, builder.convert(inner, "i64"))
        return value.at(tuple(outer))

    return made(recording, value.dtype, shape, at)


@register("flip")
def _flip(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    builder = recording.builder
    value = recording.value_of(args[0])
    dims = {one % len(value.shape) for one in args[1]}

    def at(index: Index) -> Node:
        last = [builder.constant(size - 1, "i64") for size in value.shape]
        turned = [builder.emit("sub", last[i], builder.convert(one, "i64")) for i, one in enumerate(index)]
        return value.at(tuple(turned[i] if i in dims else one for i, one in enumerate(index)))

    return made(recording, value.dtype, value.shape, at)


@register("cat", "concat", "concatenate")
def _cat(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    builder = recording.builder
    inferred = func([one.to("meta") for one in args[0]], *args[1:], **kwargs)
    values = [operand(recording, one, inferred.dtype) for one in args[0] if one.shape != (0,)]
    dim = arguments_of(func, args, kwargs).get("dim", 0) % inferred.dim()
    starts = list(itertools.accumulate((value.shape[dim] for value in values), initial=0))

    def at(index: Index) -> Node:
        place = builder.convert(index[dim], "i64")
        result: Node | None = None
        for value, start, end in reversed(list(zip(values, starts, starts[1:], strict=False))):
            if place.op == "constant" and not start <= place.payload < end:
                continue
            here = builder.emit("sub", place, builder.constant(start, "i64"))
            part = value.at((*index[:dim], here, *index[dim + 1 :]))
            before_end = builder.emit("lt", place, builder.constant(end, "i64"))
            result = part if result is None else builder.emit("select", before_end, part, result)
        assert result is not None, "every index is in one part"
        return result

    return made(recording, inferred.dtype, tuple(inferred.shape), at)


@register("stack")
def _stack(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    """Stacks scalars: a small table, read by a chain of selections."""
    if any(one.dim() for one in args[0]):
        return NotImplemented
    builder = recording.builder
    dtype = func(*args, **kwargs).dtype
    nodes = [builder.cast(recording.value_of(one).node, dtype) for one in args[0]]

    def at(index: Index) -> Node:
        result = nodes[-1]
        for i in range(len(nodes) - 2, -1, -1):
            here = builder.emit("eq", index[0], builder.constant(i, index[0].type))
            result = builder.emit("select", here, nodes[i], result)
        return result

    return made(recording, dtype, (len(nodes),), at)
