"""ATen operations as nodes of score programs.

One table: the name of an ATen operation, whatever its overload, and how it is translated. Result types and shapes are
torch's own: each operation is also carried out on tensors without content.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from flashlift.torch._arithmetic import BINARY, COMPARISONS, PREDICATES, UNARY
from flashlift.torch._program import Builder, Node, type_of
from flashlift.torch._trace import Symbol, TraceError, Tracer, where
from flashlift.torch._values import Index, Value, broadcast, broadcast_index, reshaped

# A reduction, or a search, over more elements than this is refused: it is unrolled.
_MAX_UNROLLED = 256

Handler = Callable[[Tracer, Any, tuple, dict], Any]
_TABLE: dict[str, Handler] = {}
_TAKE_SYMBOLS: set[str] = set()  # operations whose numbers may be arguments of the program


def translate(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> Any:
    """The traced result of an operation, or NotImplemented."""
    name = _name(func)
    handler = _TABLE.get(name)
    if name.removesuffix("_") not in _TAKE_SYMBOLS and any(
        isinstance(one, Symbol) for one in (*args, *kwargs.values())
    ):
        raise TraceError(f"{func} needs a number that does not change from call to call{where()}")
    if handler is not None:
        return handler(tracer, func, args, kwargs)
    # add_ and kin: the same operation, whose result its first argument then stands for.
    if name.endswith("_") and not name.startswith("__") and name[:-1] in _TABLE:
        functional = getattr(getattr(torch.ops.aten, name[:-1]), func._overloadname)
        if not tracer.is_traced(args[0]) or args[0].dim() > 0:
            raise TraceError(f"{func} changes a tensor that is not one of the mod's own scalars{where()}")
        value = tracer.value_of(_TABLE[name[:-1]](tracer, functional, args, kwargs))
        dtype = args[0].dtype
        tracer.bind(args[0], Value.scalar(dtype, tracer.builder.cast(value.node, dtype)))
        return args[0]
    return NotImplemented


def _name(func: Any) -> str:
    return func._schema.name.removeprefix("aten::")


def _arguments(func: Any, args: tuple, kwargs: dict) -> dict[str, Any]:
    return dict(zip([one.name for one in func._schema.arguments], args, strict=False)) | kwargs


def _infer(func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    """The result's type and shape. On scalars the operation itself is the quickest way to it; larger tensors go
    without memory."""
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    if any(isinstance(one, Symbol) for one in (*args, *kwargs.values())):
        func = func.overloadpacket  # the overload that was called takes a tensor in place of the number
        args, kwargs = tree_map_only(Symbol, lambda one: type(one).__base__(one), (args, kwargs))
    if any(one.dim() for one in tensors):
        args, kwargs = tree_map_only(
            torch.Tensor, lambda one: one if one.dim() == 0 else one.to("meta"), (args, kwargs)
        )
    return func(*args, **kwargs)


def _operand(tracer: Tracer, given: Any, dtype: torch.dtype) -> Value:
    """An argument, a tensor or a number, converted to the type that an operation computes in."""
    type_ = type_of(dtype)
    if isinstance(given, torch.Tensor):
        value = tracer.value_of(given)
        return Value(dtype, value.shape, lambda index: tracer.builder.convert(value.at(index), type_))
    if isinstance(given, Symbol):
        return Value.scalar(dtype, tracer.builder.convert(given.node, type_))
    return Value.scalar(dtype, tracer.builder.constant(given, type_))


def _made(tracer: Tracer, dtype: torch.dtype, shape: tuple[int, ...], at: Callable[[Index], Node]) -> torch.Tensor:
    """A traced tensor. A scalar's node is made at once, so that a program is in the order of the mod."""
    return tracer.traced(Value(dtype, tuple(shape), at) if shape else Value.scalar(dtype, at(())))


def _elementwise(
    tracer: Tracer, like: torch.Tensor, operands: list[Value], compute: Callable[..., Node], dtype: torch.dtype
) -> torch.Tensor:
    builder = tracer.builder

    def at(index: Index) -> Node:
        node = compute(builder, *(one.at(broadcast_index(one, index, builder)) for one in operands))
        return builder.narrow(node, dtype)

    return _made(tracer, dtype, like.shape, at)


def _exceeds_i32(args: tuple) -> bool:
    wide_symbol = any(isinstance(one, Symbol) and one.node.type == "i64" for one in args)
    return wide_symbol or any(isinstance(one, int) and not -(2**31) <= one < 2**31 for one in args)


def _promoting(arity: int, compute: Callable[..., Node], *, gives_bool: bool = False) -> Handler:
    """An operation whose operands are promoted to one type."""

    def handler(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        operands, options = args[:arity], args[arity:]
        if any(isinstance(one, Symbol) for one in (*options, *kwargs.values())):
            raise TraceError(f"{func} needs an option that does not change from call to call{where()}")
        dtype = operands[0].dtype if arity == 1 else torch.result_type(*operands)
        if dtype == torch.int32 and _exceeds_i32(operands):
            # Numbers that do not fit 32 bits. Coordinates are int64 in eager PyTorch and int32 in compiled kernels; only
            # the former gives the number that was written.
            dtype = inferred_dtype = torch.int64
            inferred = torch.empty(
                torch.broadcast_shapes(*(getattr(one, "shape", ()) for one in operands)), device="meta"
            )
        else:
            inferred = _infer(func, args, kwargs)
            inferred_dtype = inferred.dtype
        out_dtype = torch.bool if gives_bool else inferred_dtype
        values = [_operand(tracer, one, dtype if gives_bool else out_dtype) for one in operands]

        def finish(builder: Builder, *nodes: Node) -> Node:
            return compute(builder, *nodes, *options, **kwargs)

        return _elementwise(tracer, inferred, values, finish, out_dtype)

    return handler


for _one, _compute in BINARY.items():
    _TABLE[_one] = _promoting(2, _compute)
for _one, _compute in UNARY.items():
    _TABLE[_one] = _promoting(1, _compute)
for _one, _compute in COMPARISONS.items():
    _TABLE[_one] = _promoting(2, _compute, gives_bool=True)
for _one, _compute in PREDICATES.items():
    _TABLE[_one] = _promoting(1, _compute, gives_bool=True)

# pow multiplies where it knows its exponent, which is also right for numbers below zero.
_TAKE_SYMBOLS |= (
    BINARY.keys() | COMPARISONS.keys() | {"where", "masked_fill", "clamp", "clip", "clamp_min", "clamp_max"}
) - {"pow"}


def _register(*names: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        for name in names:
            _TABLE[name] = handler
        return handler

    return add


def _select_node(builder: Builder, condition: Node, x: Node, y: Node) -> Node:
    return builder.emit("select", condition, x, y)


@_register("where")
def _where(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    if len(args) != 3:
        raise TraceError(f"aten.where with only a condition has a result of unknown size{where()}")
    inferred = _infer(func, args, kwargs)
    operands = [_operand(tracer, args[0], torch.bool)]
    operands += [_operand(tracer, one, inferred.dtype) for one in args[1:]]
    return _elementwise(tracer, inferred, operands, _select_node, inferred.dtype)


@_register("masked_fill")
def _masked_fill(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    inferred = _infer(func, args, kwargs)
    tensor, mask, value = args
    operands = [_operand(tracer, mask, torch.bool)]
    operands += [_operand(tracer, one, inferred.dtype) for one in (value, tensor)]
    return _elementwise(tracer, inferred, operands, _select_node, inferred.dtype)


@_register("clamp", "clip", "clamp_min", "clamp_max", "hardtanh")
def _clamp(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    given = _arguments(func, args, kwargs)
    inferred = _infer(func, args, kwargs)
    defaults = (-1, 1) if _name(func) == "hardtanh" else (None, None)
    low, high = given.get("min", given.get("min_val", defaults[0])), given.get("max", given.get("max_val", defaults[1]))
    limits = [(op, one) for op, one in (("max", low), ("min", high)) if one is not None]
    operands = [_operand(tracer, one, inferred.dtype) for one in (args[0], *(one for _, one in limits))]

    def compute(builder: Builder, x: Node, *bounds: Node) -> Node:
        for (op, _), bound in zip(limits, bounds, strict=True):
            x = builder.emit(op, x, bound)
        return x

    return _elementwise(tracer, inferred, operands, compute, inferred.dtype)


@_register("_to_copy", "to", "type_as")
def _convert(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    dtype = _infer(func, args, kwargs).dtype
    value = tracer.value_of(args[0])
    if dtype == value.dtype:
        return args[0]
    return _elementwise(tracer, args[0], [value], lambda builder, node: builder.convert(node, type_of(dtype)), dtype)


@_register("clone", "alias", "contiguous", "lift_fresh", "lift_fresh_copy", "positive")
def _same(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    return tracer.traced(tracer.value_of(args[0]))


@_register("detach")
def _detach(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    return tracer.detached(_same(tracer, func, args, kwargs))


@_register("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "new_empty", "empty_like")
def _filled(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    # The traced tensor gives only its type and shape: the result is a constant.
    result = func(*args, **kwargs)
    tracer.keep(result)
    return result


@_register("_local_scalar_dense", "item", "is_nonzero")
def _read(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> Any:
    node = tracer.value_of(args[0]).at(tuple(tracer.builder.constant(0, "i64") for _ in args[0].shape))
    if node.op == "constant":
        return bool(node.payload) if _name(func) == "is_nonzero" else node.payload
    raise TraceError(
        f"{func} needs the value of a traced scalar{where()}; a mod must not branch on its arguments in Python: use "
        "torch.where, &, | and ~ in place of if, and, or and not, torch.minimum in place of min"
    )


@_register("min", "max")
def _min_max(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    name = _name(func)
    if len(args) == 2 and isinstance(args[1], torch.Tensor):
        return _TABLE[name + "imum"](tracer, getattr(torch.ops.aten, name + "imum").default, args, kwargs)
    if len(args) == 1 and not kwargs:
        return _reduce(tracer, "a" + name, args[0], None, False, args[0].dtype)
    return NotImplemented


@_register("sum", "prod", "any", "all", "amin", "amax")
def _reduction(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    given = _arguments(func, args, kwargs)
    dtype = _infer(func, args, kwargs).dtype
    return _reduce(tracer, _name(func), args[0], given.get("dim"), bool(given.get("keepdim", False)), dtype)


_REDUCERS = {"sum": "add", "prod": "mul", "any": "or", "all": "and", "amin": "min", "amax": "max"}


def _reduce(
    tracer: Tracer, name: str, tensor: torch.Tensor, dim: Any, keepdim: bool, dtype: torch.dtype
) -> torch.Tensor:
    builder = tracer.builder
    value = tracer.value_of(tensor)
    rank = len(value.shape)
    dims = list(range(rank)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    dims = sorted(one % rank for one in dims) if rank else []
    count = math.prod(value.shape[one] for one in dims)
    if count > _MAX_UNROLLED or count == 0:
        raise TraceError(f"aten.{name} over {count} elements{where()}; a program can reduce 1 to {_MAX_UNROLLED}")
    kept = [i for i in range(rank) if i not in dims]
    shape = tuple(1 if i in dims else size for i, size in enumerate(value.shape)) if keepdim else None
    shape = tuple(value.shape[i] for i in kept) if shape is None else shape

    def at(index: Index) -> Node:
        outer = dict(zip(kept, [index[i] for i in kept] if keepdim else index, strict=True))
        total = None
        for inner in itertools.product(*(range(value.shape[one]) for one in dims)):
            inside = {i: builder.constant(one, "i64") for i, one in zip(dims, inner, strict=True)}
            element = builder.convert(value.at(tuple((outer | inside)[i] for i in range(rank))), type_of(dtype))
            total = element if total is None else builder.emit(_REDUCERS[name], total, element)
        return builder.narrow(total, dtype)

    return _made(tracer, dtype, shape, at)


@_register("searchsorted", "bucketize")
def _search(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    """How many of the sorted boundaries lie below a scalar."""
    boundaries, x = args[:2] if _name(func) == "searchsorted" else (args[1], args[0])
    right = kwargs.get("right", False) or kwargs.get("side") == "right"
    if boundaries.dim() != 1 or len(boundaries) > _MAX_UNROLLED or kwargs.get("sorter") is not None:
        raise TraceError(f"{func} needs 1 to {_MAX_UNROLLED} boundaries in one dimension{where()}")
    table = tracer.value_of(boundaries)
    dtype = torch.int32 if kwargs.get("out_int32", False) else torch.int64
    like = x if isinstance(x, torch.Tensor) else torch.ones((), device="cpu")
    common = torch.promote_types(boundaries.dtype, like.dtype)
    type_ = type_of(common)

    def compute(builder: Builder, node: Node) -> Node:
        total = builder.constant(0, "i32")
        for i in range(table.shape[0]):
            bound = builder.convert(table.at((builder.constant(i, "i64"),)), type_)
            below = builder.emit("le" if right else "lt", bound, node)
            total = builder.emit("add", total, builder.convert(below, "i32"))
        return builder.convert(total, type_of(dtype))

    return _elementwise(tracer, like, [_operand(tracer, x, common)], compute, dtype)


# Indexing.


def _wrapped(tracer: Tracer, index: Node, size: int) -> Node:
    builder = tracer.builder
    index = index if index.type in ("i32", "i64") else builder.convert(index, "i32")
    if index.op == "constant":
        return builder.constant(index.payload + size, index.type) if index.payload < 0 else index
    return builder.node("wrap", index.type, (index, builder.convert(tracer.size(size), index.type)))


@_register("index", "_unsafe_index")
def _index(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    builder = tracer.builder
    tensor, given = args
    value = tracer.value_of(tensor)
    indices = {i: tracer.value_of(one) for i, one in enumerate(given) if one is not None}
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
            _wrapped(tracer, indices[i].at(inner), size) if i in indices else next(outer)
            for i, size in enumerate(value.shape)
        ]
        return value.at(tuple(full))

    return _made(tracer, value.dtype, (*(value.shape[i] for i in before), *shape, *(value.shape[i] for i in after)), at)


@_register("take", "embedding", "index_select", "gather")
def _take(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    name = _name(func)
    index_by = torch.ops.aten.index.Tensor
    with tracer:
        if name == "take":
            return index_by(args[0].reshape(-1), [args[1]])
        if name == "embedding":
            return index_by(args[0], [args[1]])
        tensor, dim, index = args[:3]
        if name == "index_select":
            return index_by(tensor, [*[None] * (dim % max(tensor.dim(), 1)), index.reshape(-1)])
        if tensor.dim() == 1:
            return index_by(tensor, [index])
    return NotImplemented


# Views: where each element of the result comes from.


@_register("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "_reshape_alias")
def _view(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    if func._overloadname == "dtype":
        return NotImplemented
    shape = tuple(_infer(func, args, kwargs).shape)
    value = reshaped(tracer.value_of(args[0]), shape, tracer.builder)
    return _made(tracer, value.dtype, shape, value.at)


@_register("expand", "broadcast_to", "expand_as")
def _expand(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    shape = tuple(_infer(func, args, kwargs).shape)
    value = broadcast(tracer.value_of(args[0]), shape, tracer.builder)
    return _made(tracer, value.dtype, shape, value.at)


@_register("permute", "transpose", "t", "numpy_T", "swapaxes")
def _permute(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    name = _name(func)
    value = tracer.value_of(args[0])
    order = list(range(len(value.shape)))
    if name in ("t", "numpy_T"):
        order.reverse()
    elif name == "permute":
        order = [one % len(order) for one in args[1]]
    else:
        i, j = args[1] % len(order), args[2] % len(order)
        order[i], order[j] = order[j], order[i]

    def at(index: Index) -> Node:
        return value.at(tuple(index[order.index(i)] for i in range(len(order))))

    return _made(tracer, value.dtype, tuple(value.shape[i] for i in order), at)


@_register("select")
def _select(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    value = tracer.value_of(args[0])
    dim, index = args[1] % len(value.shape), args[2]
    place = tracer.builder.constant(index % value.shape[dim], "i64")
    shape = (*value.shape[:dim], *value.shape[dim + 1 :])
    return _made(tracer, value.dtype, shape, lambda rest: value.at((*rest[:dim], place, *rest[dim:])))


@_register("slice")
def _slice(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    builder = tracer.builder
    given = _arguments(func, args, kwargs)
    value = tracer.value_of(args[0])
    dim = given.get("dim", 0) % len(value.shape)
    start, end, step = slice(given.get("start"), given.get("end"), given.get("step", 1)).indices(value.shape[dim])
    if (start, end, step) == (0, value.shape[dim], 1):
        return tracer.traced(value)

    def at(index: Index) -> Node:
        scaled = builder.emit("mul", builder.convert(index[dim], "i64"), builder.constant(step, "i64"))
        moved = builder.emit("add", scaled, builder.constant(start, "i64"))
        return value.at((*index[:dim], moved, *index[dim + 1 :]))

    shape = (*value.shape[:dim], len(range(start, end, step)), *value.shape[dim + 1 :])
    return _made(tracer, value.dtype, shape, at)


@_register("flip")
def _flip(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    builder = tracer.builder
    value = tracer.value_of(args[0])
    dims = {one % len(value.shape) for one in args[1]}

    def at(index: Index) -> Node:
        last = [builder.constant(size - 1, "i64") for size in value.shape]
        turned = [builder.emit("sub", last[i], builder.convert(one, "i64")) for i, one in enumerate(index)]
        return value.at(tuple(turned[i] if i in dims else one for i, one in enumerate(index)))

    return _made(tracer, value.dtype, value.shape, at)


@_register("cat", "concat", "concatenate")
def _cat(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    builder = tracer.builder
    inferred = func([one.to("meta") for one in args[0]], *args[1:], **kwargs)
    values = [_operand(tracer, one, inferred.dtype) for one in args[0] if one.shape != (0,)]
    dim = _arguments(func, args, kwargs).get("dim", 0) % inferred.dim()
    starts = list(itertools.accumulate((value.shape[dim] for value in values), initial=0))

    def at(index: Index) -> Node:
        place = builder.convert(index[dim], "i64")
        result = None
        for value, start, end in reversed(list(zip(values, starts, starts[1:], strict=False))):
            if place.op == "constant" and not start <= place.payload < end:
                continue
            here = builder.emit("sub", place, builder.constant(start, "i64"))
            part = value.at((*index[:dim], here, *index[dim + 1 :]))
            before_end = builder.emit("lt", place, builder.constant(end, "i64"))
            result = part if result is None else builder.emit("select", before_end, part, result)
        return result

    return _made(tracer, inferred.dtype, tuple(inferred.shape), at)


@_register("stack")
def _stack(tracer: Tracer, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    """Of scalars: a little table, read by a chain of selections."""
    if any(one.dim() for one in args[0]):
        return NotImplemented
    builder = tracer.builder
    dtype = func(*args, **kwargs).dtype
    nodes = [builder.cast(tracer.value_of(one).node, dtype) for one in args[0]]

    def at(index: Index) -> Node:
        result = nodes[-1]
        for i in range(len(nodes) - 2, -1, -1):
            here = builder.emit("eq", index[0], builder.constant(i, index[0].type))
            result = builder.emit("select", here, nodes[i], result)
        return result

    return _made(tracer, dtype, (len(nodes),), at)
