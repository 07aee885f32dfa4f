"""Uses a wheel for 64-bit Arm under qemu-user: scripts/test_wheel_aarch64.py WHEEL FOLDER

FOLDER/system is what scripts/setup_aarch64.sh unpacked: Debian's Python and the libraries that it needs. numpy and
NVRTC come from PyPI.
"""

import shutil
import sys
import zipfile
from pathlib import Path

from test_wheel import MOST_INSTALLED, MOST_PACKED, PROBLEM, ROOT, check_files, run

# pip does not derive older tags from a newer one.
PLATFORMS = [f"--platform=manylinux_{glibc}_aarch64" for glibc in ("2_35", "2_28", "2_27", "2_17")]

# One attention that is masked, and has a program of its own, which is interpreted here; gradients against differences.
USE = """
import os
import numpy as np
import flashlift
assert os.uname().machine == "aarch64"
attention = flashlift.compile("attn b1 h2 s96 d32 f32 causal softcap=2 lse")
assert attention.implementation == "cpu_portable", attention.implementation
random = np.random.default_rng(1)
q, k, v, d_out, step = random.standard_normal((5, 1, 2, 96, 32), np.float32)


def expected(q, k, v):
    scores = 2 * np.tanh(q @ k.swapaxes(-1, -2) / 32**0.5 / 2)
    weights = np.exp(np.where(np.tril(np.ones((96, 96), bool)), scores, -np.inf))
    return weights / weights.sum(-1, keepdims=True) @ v


out, lse = attention(q, k, v)
assert abs(out - expected(q, k, v)).max() < 1e-5
gradients = attention.backward(q, k, v, out, d_out, lse=lse)
exact = [array.astype(np.float64) for array in (q, k, v)]
for place, gradient in enumerate((gradients.q, gradients.k, gradients.v)):
    losses = []
    for sign in (1, -1):
        moved = [array + sign * 1e-4 * step if i == place else array for i, array in enumerate(exact)]
        losses.append((expected(*moved) * d_out).sum())
    difference = (losses[0] - losses[1]) / 2e-4
    assert abs((gradient * step).sum() - difference) < 1e-3 * abs(difference) + 1e-3, place
try:
    flashlift.compile("attn h2 s96 d32 causal", device="cuda")
except flashlift.FlashliftError as error:
    assert "no CUDA driver" in str(error), error
import flashlift.stablehlo
assert "flashlift.attention" in flashlift.stablehlo.fuse(open(MODULE).read()).module
print("a forward and a backward pass, and a fused module, by numpy", np.__version__)
"""


def main():
    wheel, folder = (Path(one).resolve() for one in sys.argv[1:])
    root, work = folder / "system" / "root", folder / "test-wheel"
    site = work / "site-packages"
    shutil.rmtree(work, ignore_errors=True)
    packed = wheel.stat().st_size
    installed = sum(one.file_size for one in zipfile.ZipFile(wheel).infolist())
    print(f"{wheel.name}: {packed / 1e6:.1f} MB to download, {installed / 1e6:.1f} MB installed")
    assert packed <= MOST_PACKED and installed <= MOST_INSTALLED
    run(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", site,
        "--only-binary=:all:", "--python-version=3.11", *PLATFORMS, f"{wheel}[cuda]")  # fmt: skip
    check_files(site / "flashlift", nm="aarch64-linux-gnu-nm")

    libraries = f"{root}/lib/aarch64-linux-gnu:{root}/usr/lib/aarch64-linux-gnu"
    emulator = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={libraries}"]
    emulator += ["-E", f"FLASHLIFT_CACHE_DIR={work / 'cache'}"]
    python = [*emulator, "-E", f"PYTHONHOME={root / 'usr'}", "-E", f"PYTHONPATH={site}"]
    python.append(root / "usr/bin/python3.11")
    program = [*emulator, site / "flashlift/bin/flashlift"]
    module = ROOT / "examples/xla/attention.mlir"
    print(run(*python, "--version").strip(), "and flashlift", run(*program, "--version").strip(), "under qemu")
    print(run(*python, "-c", f"MODULE = {str(module)!r}\n{USE}", cwd=work), end="")
    for direction in ([], ["--backward"]):
        run(*program, "run", PROBLEM, "--check", *direction, cwd=work)
    # For the GPUs that stand beside such processors, which no emulator has.
    print(run(*program, "compile", PROBLEM.replace("f32", "bf16"), "--architecture", "90", cwd=work), end="")
    run(*program, "fuse", module, "-o", work / "fused.mlir")
    assert "flashlift.attention" in (work / "fused.mlir").read_text()
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
