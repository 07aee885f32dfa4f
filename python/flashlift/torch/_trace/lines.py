"""Which line of a mod runs, and the error that names it."""

import inspect
import linecache
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from flashlift._errors import UnsupportedError


class TraceError(UnsupportedError):
    """A mod does something that a score program cannot express. The message names the operation and the line."""


def where() -> str:
    """The line of the mod that runs, as " at FILE:LINE: SOURCE"."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_filename
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] not in ("torch", "flashlift") and not name.startswith("<"):
            line = linecache.getline(name, frame.f_lineno).strip()
            return f" at {name}:{frame.f_lineno}" + (f": {line}" if line else "")
        frame = frame.f_back
    return ""


def running_autograd_function() -> str | None:
    """The name of the torch.autograd.Function whose forward function runs, if any. Does not look for the frame of
    apply(), which is a C function since PyTorch 2.14."""
    names = {}
    for kind in _subclasses(torch.autograd.Function):
        forward = inspect.unwrap(kind.forward)
        if isinstance(forward, types.FunctionType):
            names[forward.__code__] = kind.__name__
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code in names:
            return names[frame.f_code]
        frame = frame.f_back
    return None


def _subclasses(kind: Any) -> Iterator[Any]:
    one: Any
    for one in type.__subclasses__(kind):
        yield one
        yield from _subclasses(one)
