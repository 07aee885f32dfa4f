"""Measures the candidates for a problem, and stores the fastest."""

import ctypes
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flashlift._attention import parse_device, parse_policy
from flashlift._errors import InvalidArgumentError
from flashlift._library import TuneOptions, TuneProgress, c_text, check, core
from flashlift._problem import Problem


@dataclass(frozen=True)
class Tuning:
    """The choices of a pass. None or 0 leaves a choice to the library."""

    implementation: str | None = None
    q_tile: int = 0
    kv_tile: int = 0
    splits: int = 0
    threads: int = 0


@dataclass(frozen=True)
class TuneCandidate:
    """ms: the median of its calls, or None if it failed; slow candidates have few calls."""

    tuning: Tuning
    ms: float | None
    calls: int
    failure: str | None


@dataclass(frozen=True)
class Tuned:
    """The result of tune(). candidates: the fastest first; empty if the result is from_database."""

    problem: str
    device: str
    direction: str
    best: Tuning
    ms: float
    heuristics_ms: float
    from_database: bool
    stored: bool
    candidates: tuple[TuneCandidate, ...]

    def table(self, rows: int = 8) -> str:
        """The fastest candidates in aligned columns, and the heuristics."""
        lines = [["implementation", "q tile", "kv tile", "splits", "threads", "ms", "speed", "calls"]]
        for i, one in enumerate(self.candidates):
            if one.ms is not None and (i < rows or one.tuning == Tuning()):
                t = one.tuning
                sizes = [str(size or "-") for size in (t.q_tile, t.kv_tile, t.splits, t.threads)]
                speed = f"{self.heuristics_ms / one.ms:.2f}" if one.ms else "-"
                name = "heuristics" if t == Tuning() else t.implementation or "-"
                lines.append([name, *sizes, f"{one.ms:.4g}", speed, str(one.calls)])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = (
            "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(both))
            for both in ([*zip(line, widths, strict=True)] for line in lines)
        )
        return "\n".join(aligned)


def tune(
    problem: str | Problem,
    *,
    device: str = "cpu",
    backward: bool = False,
    layout: str = "bhsd",
    seconds: float = 2.0,
    policy: str | None = None,
    progress: bool | None = None,
) -> Tuned:
    """Measures the candidates for a problem in turns, and stores the fastest in a database that processes share.

    Compiling the same problem for the same lengths then uses it, in `flashlift.compile`, JAX, PyTorch and XLA. No other
    function measures. Candidates are the implementations, and on a CPU also other tiles, splits and threads.
    backward: tune the backward pass, which is tuned separately.
    layout: "bhsd" or "bshd", the order of dimensions in memory.
    seconds: about how long to measure.
    policy: "write" measures and stores, "read" measures only what is not stored, "off" only measures; None: as
    FLASHLIFT_TUNING says, or "write".
    progress: show a progress bar on standard error (tqdm's if installed); None: if that is a terminal.
    Raises the errors of compile(); NotFoundError without SQLite or if the cache's folder cannot be written.
    """
    if layout not in ("bhsd", "bshd"):
        raise InvalidArgumentError(f'layout is {layout!r}; expected "bhsd" or "bshd"')
    shown = sys.stderr.isatty() if progress is None else progress
    bar = _Bar(str(problem)) if shown else None
    raised: list[BaseException] = []

    def tell(_context: Any, done: float, left: int) -> int:
        try:
            if bar is not None:
                bar.show(done, left)
        except BaseException as error:  # ctypes would only print it, also if the user interrupts
            raised.append(error)
            return 1
        return 0

    options = TuneOptions(
        ctypes.sizeof(TuneOptions),
        parse_device(device),
        int(backward),
        int(layout == "bshd"),
        seconds or 1e-9,
        parse_policy("policy", policy),
        TuneProgress(tell),
        None,
    )
    library = core()
    handle = ctypes.c_void_p()
    text = c_text(str(problem) if isinstance(problem, Problem) else problem, "problem")
    try:
        error = library.flashlift_tune(text, options, ctypes.byref(handle))
    finally:
        if bar is not None:
            bar.close()
    if raised:
        raise raised[0]
    check(library, error)
    try:
        found = json.loads(library.flashlift_tuned_json(handle))
    finally:
        library.flashlift_tuned_destroy(handle)
    candidates = tuple(_candidate(one) for one in found.pop("candidates"))
    return Tuned(**found | {"best": Tuning(**found["best"]), "candidates": candidates})


def _candidate(fields: dict[str, Any]) -> TuneCandidate:
    own = {name: fields.pop(name) for name in ("ms", "calls", "failure")}
    return TuneCandidate(Tuning(**fields), **own)


class _Bar:
    """tqdm's progress bar, or a plain line if tqdm is not installed."""

    def __init__(self, title: str) -> None:
        short = title if len(title) <= 40 else title[:37] + "..."
        self._show: Callable[[float, int], None]
        try:
            from tqdm import tqdm
        except ImportError:
            self._show = lambda done, left: print(f"\r{short}: {done:4.0%}, {left} candidates", end="", file=sys.stderr)
            self.close = lambda: print(file=sys.stderr)
            return
        bar = tqdm(total=100, desc=short, bar_format="{desc}: {bar} {n:.0f} % {postfix}", leave=False)

        def show(done: float, left: int) -> None:
            bar.set_postfix_str(f"{left} candidates", refresh=False)
            bar.update(100 * done - bar.n)

        self._show = show
        self.close = bar.close

    def show(self, done: float, left: int) -> None:
        self._show(done, left)
