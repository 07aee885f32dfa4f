"""Builds the source distribution on a system with only its own packages, and tests the result.

scripts/test_dist.py BUILD SDIST

The environment is bare: no variable but PATH and HOME, no package in it but pip. It has the machine's cache of compiled
files. pip fetches what pyproject.toml says that a build needs.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path


def main():
    build, sdist = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    work = build / "test-dist"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(work), "LC_ALL": "C.UTF-8"}
    # How this machine reaches the package index, and where it keeps compiled files.
    environment |= {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_CERT", "CCACHE_"))
    }
    environment.setdefault("CCACHE_DIR", str(Path.home() / ".cache" / "ccache"))

    def run(*command):
        done = subprocess.run([str(one) for one in command], cwd=work, env=environment, text=True, capture_output=True)
        if done.returncode:
            sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout[-8000:]}{done.stderr[-8000:]}")
        return done.stdout

    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    (source,) = work.glob("flashlift-*")
    for name in ("LICENSE", "README.md", "docs/tour.md", "include/flashlift/flashlift.h", "tests/CMakeLists.txt"):
        assert (source / name).exists(), f"{sdist.name} lacks {name}"
    run("python3", "-m", "venv", work / "venv")
    pip = [work / "venv/bin/python", "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", work / "wheels", source)
    (wheel,) = (work / "wheels").glob("*.whl")
    print(
        f"{sdist.name} ({sdist.stat().st_size / 1e6:.1f} MB) became {wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB)"
    )
    run(*pip, "install", "--quiet", wheel)
    run(work / "venv/bin/flashlift", "run", "attn h2 s96 d32 causal", "--check")
    run(work / "venv/bin/flashlift", "fuse", source / "examples/xla/attention.mlir", "-o", work / "fused.mlir")
    run(work / "venv/bin/python", "-c", "import flashlift; print(flashlift.compile('attn h2 s96 d32').implementation)")
    print("it runs, checks a problem and fuses a module")

    fetch = [f"-DARCHIVE={sdist}", "-DFLASHLIFT_STABLEHLO=OFF", "-DCMAKE_BUILD_TYPE=Release"]
    run("cmake", "-S", source / "tests/package/fetch", "-B", work / "fetch", "-G", "Ninja", *fetch)
    run("cmake", "--build", work / "fetch")
    run(work / "fetch/fetched")
    print("a project that fetches it by FetchContent builds and runs")
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
