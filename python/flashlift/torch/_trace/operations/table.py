"""The table: the name of an ATen operation, whatever its overload, and how it is translated."""

from collections.abc import Callable
from typing import Any

import torch

from flashlift.torch._trace.lines import TraceError, where
from flashlift.torch._trace.recording import Recording, Symbol

Handler = Callable[[Recording, Any, tuple, dict], Any]
TABLE: dict[str, Handler] = {}
TAKE_SYMBOLS: set[str] = set()  # operations whose numbers may be arguments of the program


def translate(recording: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """The traced result of an operation, or NotImplemented."""
    name = name_of(func)
    handler = TABLE.get(name)
    if any(one.is_out for one in func._schema.arguments):
        raise TraceError(f"{func} writes into out={where()}; use the result of the operation without it")
    if name.removesuffix("_") not in TAKE_SYMBOLS and any(isinstance(one, Symbol) for one in (*args, *kwargs.values())):
        raise TraceError(f"{func} needs a number that does not change from call to call{where()}")
    if handler is not None:
        return handler(recording, func, args, kwargs)
    # add_ and similar: the same operation, whose result replaces its first argument.
    same = _without_change(name)
    if same in TABLE or name == "copy_":
        if not recording.is_traced(args[0]) or args[0].dim() > 0:
            raise TraceError(f"{func} changes a tensor that is not one of the mod's own scalars{where()}")
        if name == "copy_" and args[1].dim() > 0:
            raise TraceError(f"{func} copies a tensor of shape {list(args[1].shape)} to a scalar{where()}")
        if name == "copy_":
            value = recording.value_of(args[1])
        else:
            value = recording.value_of(TABLE[same](recording, _overload_like(func, same), args, kwargs))
        recording.write(args[0], value.node)
        return args[0]
    return NotImplemented


def without_change(func: Any) -> Any:
    """The operation that returns what an operation in place writes; None if there is none."""
    same = _without_change(name_of(func))
    if not same or not hasattr(torch.ops.aten, same):
        return None
    return _overload_like(func, same)


def _without_change(name: str) -> str:
    """The name of the operation that an operation like add_ or __ilshift__ does in place; "" for others."""
    if name.startswith("__i"):
        return "__" + name.removeprefix("__i")
    return name[:-1] if name.endswith("_") and not name.startswith("__") else ""


def _overload_like(func: Any, name: str) -> Any:
    """The overload of an operation with the same arguments as `func`. It may have another name: pow_.Scalar is
    pow.Tensor_Scalar."""
    packet = getattr(torch.ops.aten, name)
    wanted = [str(one.type) for one in func._schema.arguments]
    overloads = [getattr(packet, one) for one in packet.overloads()]
    same = (one for one in overloads if [str(each.type) for each in one._schema.arguments] == wanted)
    return next(same, func)


def name_of(func: Any) -> str:
    return func._schema.name.removeprefix("aten::")


def arguments_of(func: Any, args: tuple, kwargs: dict) -> dict[str, Any]:
    return dict(zip([one.name for one in func._schema.arguments], args, strict=False)) | kwargs


def register(*names: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        for name in names:
            TABLE[name] = handler
        return handler

    return add
