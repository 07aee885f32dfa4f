"""Measures the limits of this machine; see hardware.cpp."""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    processor: str
    threads: int
    fma_gflops: float
    """fp32 multiply-adds."""
    bf16_gflops: float
    """bf16 products summed in fp32; 0 without an instruction for them."""
    read_gbs: float

    def __str__(self) -> str:
        bf16 = f"bf16 dot product {self.bf16_gflops:.0f} GFLOP/s" if self.bf16_gflops else "no bf16 dot product"
        return (
            f"{self.processor}, {self.threads} threads: fp32 multiply-add {self.fma_gflops:.0f} GFLOP/s, {bf16}, "
            f"reading memory {self.read_gbs:.1f} GB/s (all measured)"
        )


def measure(build: Path) -> Limits:
    library = ctypes.CDLL(str(build / "lib" / "libflashlift_hardware.so"))
    threads = len(os.sched_getaffinity(0))
    names = ("hardware_fma_gflops", "hardware_bf16_gflops", "hardware_read_gbs")
    for name in names:
        getattr(library, name).restype = ctypes.c_double
    return Limits(_processor(), threads, *(getattr(library, name)(threads) for name in names))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"
