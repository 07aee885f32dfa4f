"""Which line of a mod runs, and the error that names it."""

import linecache
import sys
import types

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
