"""A mod run once, and recorded as a program: run (tracing) under modes that see what it does (functions, dispatch,
operations) and write it down (recording, values), giving a record that is used again for each call (record)."""

from flashlift.torch._trace.dispatch import open_size_error
from flashlift.torch._trace.functions import IndexByTensors
from flashlift.torch._trace.lines import TraceError
from flashlift.torch._trace.record import Trace, as_tensor, hint_of
from flashlift.torch._trace.tracing import ARGUMENTS, trace
from flashlift.torch._trace.values import stand_in

__all__ = [
    "ARGUMENTS",
    "IndexByTensors",
    "Trace",
    "TraceError",
    "as_tensor",
    "hint_of",
    "open_size_error",
    "stand_in",
    "trace",
]
