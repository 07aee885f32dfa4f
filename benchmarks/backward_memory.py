"""The memory of long attention, forward and backward: what the process grows by at its peak, and that a window's time
grows with the length and not with its square.

    python benchmarks/backward_memory.py [--record MACHINE] [--plot FILE.svg]

The Python package must be importable.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable

import flashlift
import memory
import numpy as np
import recorded

LIMIT = 300e6
DEPTH = 64
LENGTHS = (4096, 16384, 65536)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recorded.add_options(parser)
    options = parser.parse_args()
    run = recorded.Run()
    grows = run.table(
        "memory", "Forward and backward, H1 D64 f32: peak memory beyond inputs and outputs", "MB", "lower"
    )
    takes = run.table("time", "Forward and backward, H1 D64 f32: time of a query", "µs", "lower")
    largest = 0
    for words in ("causal", "window=511,0"):
        for length in LENGTHS:
            # Each in a process of its own, so that nothing is kept from another.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                grown, seconds = pool.apply(measure, (f"attn h1 s{length} d{DEPTH} f32 lse {words}", length))
            largest = max(largest, grown)
            print(
                f"{words:13} S{length:<6} {seconds:8.3f} s  {1e6 * seconds / length:7.2f} µs a query  "
                f"peak memory beyond inputs and outputs {grown / 1e6:6.1f} MB",
                flush=True,
            )
            grows.add(f"S{length}", words, {"Flashlift": round(grown / 1e6, 1)})
            takes.add(f"S{length}", words, {"Flashlift": round(1e6 * seconds / length, 2)})
    run.finish(options, {"flashlift": flashlift.__version__}, f"CPU, {os.cpu_count()} threads")
    print(f"forward and backward, H1 D{DEPTH} f32: at most {largest / 1e6:.1f} MB, {LIMIT / 1e6:.0f} MB allowed")
    return int(largest > LIMIT)


def measure(problem: str, length: int) -> tuple[int, float]:
    """The memory in bytes of the first forward and backward call together, including compilation, and the seconds of
    the second."""
    run = bind(problem, length)
    grown = memory.growth(run, first=True)
    start = time.perf_counter()
    run()
    return grown, time.perf_counter() - start


def bind(problem: str, length: int) -> Callable[[], None]:
    """A forward and a backward call with all their arrays."""
    random = np.random.default_rng(1)
    shape = (1, 1, length, DEPTH)
    q, k, v, d_out = (random.normal(size=shape).astype(np.float32) for _ in range(4))
    out, d_q, d_k, d_v = (np.zeros(shape, np.float32) for _ in range(4))
    lse = np.zeros(shape[:3], np.float32)

    def run() -> None:
        attention = flashlift.compile(problem)
        attention.bind(q, k, v, out, lse=lse)()
        attention.bind_backward(q, k, v, out, d_out, lse=lse, d_q=d_q, d_k=d_k, d_v=d_v)()

    return run


if __name__ == "__main__":
    sys.exit(main())
