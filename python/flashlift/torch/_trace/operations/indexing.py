"""Indexing by tensors."""

from typing import Any

import torch

from flashlift.torch._program import Node
from flashlift.torch._trace.lines import TraceError, where
from flashlift.torch._trace.operations.results import made
from flashlift.torch._trace.operations.table import register
from flashlift.torch._trace.recording import Recording
from flashlift.torch._trace.values import Index, broadcast


def _wrapped(recording: Recording, index: Node, size: int) -> Node:
    builder = recording.builder
    recording.note_read(index, size)
    index = index if index.type in ("i32", "i64") else builder.convert(index, "i32")
    if index.op == "constant":
        return builder.constant(index.payload + size, index.type) if index.payload < 0 else index
    return builder.node("wrap", index.type, (index, builder.convert(recording.size(size), index.type)))


@register("index", "_unsafe_index")
def _index(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    builder = recording.builder
    tensor, given = args
    value = recording.value_of(tensor)
    indices = {i: recording.value_of(one) for i, one in enumerate(given) if one is not None}
    if any(one.dtype in (torch.bool, torch.uint8) for one in indices.values()):
        raise TraceError(f"{func} by a boolean mask has a result of unknown size{where()}")
    if any(one.dtype.is_floating_point for one in indices.values()):
        raise IndexError(f"tensors used as indices must be long, int, byte or bool tensors{where()}")
    shape = tuple(torch.broadcast_shapes(*(one.shape for one in indices.values())))
    indices = {i: broadcast(one, shape, builder) for i, one in indices.items()}
    positions = sorted(indices)
    together = positions[-1] - positions[0] + 1 == len(positions)
    plain = [i for i in range(len(value.shape)) if i not in indices]
    before = [i for i in plain if together and i < positions[0]]
    after = plain[len(before) :]

    def at(place: Index) -> Node:
        inner = place[len(before) : len(before) + len(shape)]
        outer = iter((*place[: len(before)], *place[len(before) + len(shape) :]))
        full = [
            _wrapped(recording, indices[i].at(inner), size) if i in indices else next(outer)
            for i, size in enumerate(value.shape)
        ]
        return value.at(tuple(full))

    return made(
        recording, value.dtype, (*(value.shape[i] for i in before), *shape, *(value.shape[i] for i in after)), at
    )
