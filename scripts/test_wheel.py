"""Installs a wheel into bare environments and uses it there: scripts/test_wheel.py WHEEL BUILD [PYTHON...]

PYTHON: the interpreters to install it for; without any, the one in BUILD/venv. BUILD/venv also has the PyTorch and the
JAX that the wheel is loaded beside.
"""

import itertools
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_PACKED, MOST_INSTALLED = 20e6, 50e6
NEWEST_GLIBC = (2, 35)  # Ubuntu 22.04's
PROBLEM = "attn b1 h2 s96 d32 f32 causal"

USE = """
import time
import numpy as np
start = time.process_time()
import flashlift
print(f"import flashlift takes {1e3 * (time.process_time() - start):.0f} ms beyond numpy's own")
q, k, v = np.random.default_rng(1).standard_normal((3, 1, 2, 96, 32), np.float32)
out = flashlift.compile("attn b1 h2 s96 d32 f32 causal")(q, k, v)
scores = np.where(np.tril(np.ones((96, 96), bool)), q @ k.swapaxes(-1, -2) / 32**0.5, -np.inf)
weights = np.exp(scores - scores.max(-1, keepdims=True))
assert abs(out - weights / weights.sum(-1, keepdims=True) @ v).max() < 1e-5
"""

# Each carries an LLVM of its own; the names of one must not meet another's.
LOAD = {
    "torch": "import torch; assert torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2)).sum() == 4",
    "jax": "import jax; assert jax.jit(lambda x: x + 1)(1.0) == 2",
    "flashlift": USE + "import flashlift.stablehlo; flashlift.stablehlo.fuse(open(MODULE).read())",
}


def run(*command, **options):
    done = subprocess.run([str(one) for one in command], text=True, capture_output=True, **options)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_files(prefix, nm="nm"):
    """For every library and program: where it looks for others, which glibc version it needs, and which symbols it
    exports."""
    newest = (0,)
    for path in sorted([*prefix.glob("lib/*.so*"), prefix / "bin" / "flashlift"]):
        if path.read_bytes()[:4] != b"\x7fELF":
            continue
        dynamic = run("readelf", "-dW", path)
        for entry in itertools.chain(*(one.split(":") for one in re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", dynamic))):
            assert entry.startswith("$ORIGIN"), f"{path} looks for libraries in {entry}"
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
            assert not re.search(r"LLVM|MLIR|fmt|spdlog|xxhash|libtbb", name), f"{path} needs {name}"
        versions = re.findall(r"GLIBC_([0-9.]+)", run("readelf", "-VW", path))
        newest = max([newest, *(tuple(map(int, one.split("."))) for one in versions)])
    assert newest <= NEWEST_GLIBC, f"glibc {newest} is asked for"
    library = prefix / "lib" / "libflashlift.so.0"
    # A demangled name has spaces; before it stand its address and its kind.
    names = [line.split(maxsplit=2)[-1] for line in run(nm, "-DC", "--defined-only", library).splitlines()]
    strange = [name for name in names if "flashlift" not in name.partition("(")[0]]
    assert not strange, f"names of others can be seen: {', '.join(strange[:5])}"
    print(f"glibc {'.'.join(map(str, newest))}; {len(names)} names shown, all of them ours")


def use(python, wheel, work):
    shutil.rmtree(work, ignore_errors=True)
    run(python, "-m", "venv", work)
    start = time.perf_counter()
    run(work / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    print(f"{run(python, '--version').strip()}: installed with numpy in {time.perf_counter() - start:.1f} s")
    print(run(work / "bin" / "python", "-c", USE, cwd=work), end="")
    program = work / "bin" / "flashlift"
    start = time.perf_counter()
    print("flashlift --version:", run(program, "--version", cwd=work).strip(), end="")
    print(f", in {1e3 * (time.perf_counter() - start):.0f} ms")
    run(program, "run", PROBLEM, "--check", cwd=work)
    run(program, "fuse", ROOT / "examples/xla/attention.mlir", "-o", work / "fused.mlir")
    assert "flashlift.attention" in (work / "fused.mlir").read_text()
    return work


def build_programs(python, work):
    """Builds C and C++ programs with the wheel, by CMake and by pkg-config."""
    folder = run(python, "-m", "flashlift", "--cmake-dir").strip()
    build = work / "programs"
    run("cmake", "-S", ROOT / "tests/package/consumer", "-B", build, f"-Dflashlift_DIR={folder}", "-DSTABLEHLO=ON",
        f"-DEXAMPLES={ROOT / 'examples'}")  # fmt: skip
    run("cmake", "--build", build)
    for name in ("consumer", "c_consumer", "stablehlo_consumer"):
        run(build / name)
    pkg_config = run(python, "-m", "flashlift", "--pkg-config-dir").strip()
    flags = run(
        "pkg-config", "--cflags", "--libs", "flashlift", env={"PKG_CONFIG_PATH": pkg_config, "PATH": "/usr/bin"}
    )
    library = run(python, "-m", "flashlift", "--library-dir").strip()
    run("cc", ROOT / "examples/attention.c", "-o", build / "plain", *flags.split(), f"-Wl,-rpath,{library}", "-lm")
    run(build / "plain")


def main():
    wheel, build = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    own = build / "venv" / "bin" / "python"
    work = build / "test-wheel"
    shutil.rmtree(work, ignore_errors=True)
    files = zipfile.ZipFile(wheel)
    packed, installed = wheel.stat().st_size, sum(one.file_size for one in files.infolist())
    print(f"{wheel.name}: {packed / 1e6:.1f} MB to download, {installed / 1e6:.1f} MB installed")
    assert packed <= MOST_PACKED and installed <= MOST_INSTALLED
    files.extractall(work / "unpacked")
    check_files(work / "unpacked" / "flashlift")
    for i, python in enumerate(sys.argv[3:] or [own]):
        environment = use(python, wheel, work / f"environment{i}")
    build_programs(environment / "bin" / "python", work)
    module = ROOT / "examples/xla/attention.mlir"
    for order in itertools.permutations(LOAD):
        code = f"MODULE = {str(module)!r}\n" + "\n".join(LOAD[name] for name in order)
        run(own, "-c", code, cwd=work, env={"PYTHONPATH": str(work / "unpacked"), "PATH": "/usr/bin:/bin"})
        print("loaded in one process:", ", ".join(order))
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
