"""Operations that compute each element of their result by itself."""

from collections.abc import Callable
from typing import Any

import torch

from flashlift.torch._internals import LIMITS_HAVE_GRADIENTS, tree_map_only
from flashlift.torch._program import Builder, Node, type_of
from flashlift.torch._trace.lines import TraceError, where
from flashlift.torch._trace.operations.arithmetic import BINARY, COMPARISONS, PREDICATES, UNARY, limited
from flashlift.torch._trace.operations.results import by_element, infer, operand
from flashlift.torch._trace.operations.table import TABLE, TAKE_SYMBOLS, Handler, arguments_of, name_of, register
from flashlift.torch._trace.recording import Recording, Symbol


def _exceeds_i32(args: tuple) -> bool:
    wide_symbol = any(isinstance(one, Symbol) and one.node.type == "i64" for one in args)
    return wide_symbol or any(isinstance(one, int) and not -(2**31) <= one < 2**31 for one in args)


def _widened(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments, to infer a result's type from: with coordinates in 64 bits beside numbers that need them."""
    if not _exceeds_i32((*args, *kwargs.values())):
        return args, kwargs
    return tree_map_only(torch.Tensor, lambda one: one.long() if one.dtype == torch.int32 else one, (args, kwargs))


def _promoting(arity: int, compute: Callable[..., Node], *, gives_bool: bool = False) -> Handler:
    """An operation whose operands are promoted to one type."""

    def handler(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        operands, options = args[:arity], args[arity:]
        if any(isinstance(one, Symbol) for one in (*options, *kwargs.values())):
            raise TraceError(f"{func} needs an option that does not change from call to call{where()}")
        is_wide = _exceeds_i32((*operands, *options, *kwargs.values()))
        if is_wide and arity > 1 and torch.result_type(*operands) == torch.int32:
            # Numbers that do not fit into 32 bits. Coordinates are int64 in eager PyTorch and int32 in compiled
            # kernels; only the former give the written number. Torch is asked about int64, since the result need not be
            # an integer.
            args = tree_map_only(torch.Tensor, lambda one: one.long(), args)
        inferred = infer(func, args, kwargs)
        dtype = operands[0].dtype if arity == 1 else torch.result_type(*args[:arity])
        out_dtype = torch.bool if gives_bool else inferred.dtype
        values = [operand(recording, one, dtype if gives_bool else out_dtype) for one in operands]

        def finish(builder: Builder, *nodes: Node) -> Node:
            return compute(builder, *nodes, *options, **kwargs)

        return by_element(recording, inferred, values, finish, out_dtype)

    return handler


for _one, _compute in BINARY.items():
    TABLE[_one] = _promoting(2, _compute)
for _one, _compute in UNARY.items():
    TABLE[_one] = _promoting(1, _compute)
for _one, _compute in COMPARISONS.items():
    TABLE[_one] = _promoting(2, _compute, gives_bool=True)
for _one, _compute in PREDICATES.items():
    TABLE[_one] = _promoting(1, _compute, gives_bool=True)

# pow becomes multiplications if its exponent is known, which is also right for negative numbers.
TAKE_SYMBOLS.update((BINARY.keys() | COMPARISONS.keys()) - {"pow"})
TAKE_SYMBOLS.update(("where", "masked_fill", "clamp", "clip", "clamp_min", "clamp_max"))


def _select_node(builder: Builder, condition: Node, x: Node, y: Node) -> Node:
    return builder.emit("select", condition, x, y)


@register("where")
def _where(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    if len(args) != 3:
        raise TraceError(f"aten.where with only a condition has a result of unknown size{where()}")
    inferred = infer(func, *_widened(args, kwargs))
    operands = [operand(recording, args[0], torch.bool)]
    operands += [operand(recording, one, inferred.dtype) for one in args[1:]]
    return by_element(recording, inferred, operands, _select_node, inferred.dtype)


@register("masked_fill")
def _masked_fill(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    inferred = infer(func, *_widened(args, kwargs))
    tensor, mask, value = args
    operands = [operand(recording, mask, torch.bool)]
    operands += [operand(recording, one, inferred.dtype) for one in (value, tensor)]
    return by_element(recording, inferred, operands, _select_node, inferred.dtype)


_DEFAULT_LIMITS = {"hardtanh": (-1, 1), "relu6": (0, 6)}


@register("clamp", "clip", "clamp_min", "clamp_max", *_DEFAULT_LIMITS)
def _clamp(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    given = arguments_of(func, args, kwargs)
    inferred = infer(func, *_widened(args, kwargs))
    defaults = _DEFAULT_LIMITS.get(name_of(func), (None, None))
    # torch's hardtanh has no gradient at its limits, its clamp has one, or once had.
    passes = name_of(func) not in _DEFAULT_LIMITS and not LIMITS_HAVE_GRADIENTS
    low, high = given.get("min", given.get("min_val", defaults[0])), given.get("max", given.get("max_val", defaults[1]))
    limits = [(op, one) for op, one in (("max", low), ("min", high)) if one is not None]
    operands = [operand(recording, one, inferred.dtype) for one in (args[0], *(one for _, one in limits))]

    def compute(builder: Builder, x: Node, *bounds: Node) -> Node:
        for (op, limit), bound in zip(limits, bounds, strict=True):
            is_shared = LIMITS_HAVE_GRADIENTS and isinstance(limit, torch.Tensor)
            x = builder.emit(op, x, bound) if is_shared else limited(builder, op, x, bound, passes=passes)
        return x

    return by_element(recording, inferred, operands, compute, inferred.dtype)


@register("_to_copy", "to", "type_as")
def _convert(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    kwargs = {name: one for name, one in kwargs.items() if name != "device"}  # infer() may compute on another one
    dtype = infer(func, args, kwargs).dtype
    value = recording.value_of(args[0])
    if dtype == value.dtype:
        is_copy = name_of(func) == "_to_copy" or arguments_of(func, args, kwargs).get("copy")
        return recording.traced(value) if is_copy else args[0]
    return by_element(recording, args[0], [value], lambda builder, node: builder.convert(node, type_of(dtype)), dtype)


@register("clone", "alias", "contiguous", "lift_fresh", "lift_fresh_copy", "positive")
def _same(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    return recording.traced(recording.value_of(args[0]))


@register("detach")
def _detach(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    return recording.detached(_same(recording, func, args, kwargs))


@register("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "new_empty", "empty_like")
def _filled(recording: Recording, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    # The traced tensor only determines the type and shape: the result is a constant, which the mod may change.
    args, kwargs = _widened(args, kwargs)
    result = func(*args, **kwargs)
    recording.keep(result)
    recording.own.add(id(result))
    return result


@register("_local_scalar_dense", "item", "is_nonzero")
def _read(recording: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    node = recording.value_of(args[0]).at(tuple(recording.builder.constant(0, "i64") for _ in args[0].shape))
    if node.op == "constant":
        return bool(node.payload) if name_of(func) == "is_nonzero" else node.payload
    if name_of(func) == "is_nonzero":
        advice = (
            "a mod must not branch on its arguments in Python: use torch.where, &, | and ~ in place of if, and, or and "
            "not, torch.minimum in place of min"
        )
    else:
        advice = (
            "a mod's arguments have none in Python: use torch.exp in place of math.exp, .float() in place of float(), "
            "and a mask, table * (torch.arange(n) < i), in place of a slice table[:i]"
        )
    raise TraceError(f"{func} needs the value of a traced scalar{where()}; {advice}")
