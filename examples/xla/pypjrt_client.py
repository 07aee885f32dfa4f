"""Gradients of attention from pypjrt, a PJRT client of plain Python (pip install pypjrt numpy): unfused, then fused by
pointing the client at Flashlift's plugin, and compared.

    FLASHLIFT_PJRT_PLUGIN=/path/to/pjrt_c_api_cpu_plugin.so \
      python pypjrt_client.py /path/to/pjrt_c_api_flashlift-cpu_plugin.so
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import pypjrt

MODULE = Path(__file__).parent / "gradient.mlir"
SHAPE = (1, 1024, 8, 64)  # of all its arguments and results, as f32
F32 = 11  # PJRT_Buffer_Type


def run(plugin: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
    with pypjrt.Client.create(plugin) as client, client.devices() as devices:
        begin = time.perf_counter()
        executable = client.compile(MODULE.read_bytes())
        compiled = time.perf_counter()
        buffers = [client.buffer_from_host(a.view(np.uint8), F32, list(a.shape), devices[0]) for a in arguments]
        results = []
        for _ in range(3):
            started = time.perf_counter()
            results = [np.empty(SHAPE, np.float32) for _ in range(4)]
            for result, output in zip(results, executable(*buffers), strict=True):
                output.to_host(result.view(np.uint8))
            took = time.perf_counter() - started
    print(f"{plugin}: compile {(compiled - begin) * 1e3:.0f} ms, run {took * 1e3:.1f} ms")
    return results


def main() -> None:
    if len(sys.argv) != 2 or "FLASHLIFT_PJRT_PLUGIN" not in os.environ:
        sys.exit(__doc__)
    random = np.random.default_rng(1)
    arguments = [random.standard_normal(SHAPE, np.float32) for _ in range(4)]
    unfused = run(os.environ["FLASHLIFT_PJRT_PLUGIN"], arguments)
    fused = run(sys.argv[1], arguments)
    for name, a, b in zip(("out", "d_q", "d_k", "d_v"), fused, unfused, strict=True):
        print(f"{name}: largest difference {np.abs(a - b).max():.3g}")
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4)


main()
