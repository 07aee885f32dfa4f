"""Measures the peak memory of a call, as the system reports it."""

import ctypes
from collections.abc import Callable
from pathlib import Path

_LIBC = ctypes.CDLL(None)


def growth(run: Callable[[], object], first: bool = False) -> int:
    """Bytes by which resident memory grows during a call, at the peak; to within a few hundred KiB.

    Of the first call, with what it loads and keeps, or of one after that.

    What libraries say of themselves is not enough: XLA:CPU plans no memory for the products that it hands to its
    library of kernels, which allocates gigabytes of its own.
    """
    if not first:
        run()
    _LIBC.malloc_trim(0)  # gives back what earlier calls have left, which would be used again unseen
    Path("/proc/self/clear_refs").write_text("5")  # sets the recorded peak to what is resident now
    before = _status("VmRSS")
    run()
    return max(_status("VmHWM") - before, 0)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")
