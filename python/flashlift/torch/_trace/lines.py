"""Which line of a mod runs, and the error that names it."""

import linecache
import sys
import types

import torch

from flashlift._errors import UnsupportedError


class TraceError(UnsupportedError):
    """A mod does what a score program cannot say. The message names the operation and the line."""


_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


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
    """The name of the torch.autograd.Function whose forward function runs, if any."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _APPLY:
            return frame.f_locals["cls"].__name__
        frame = frame.f_back
    return None
