"""The examples for each language are built against the C interface, run, and check their results.

C and C++ are tested beside CMake's package, in tests/package.
"""

import ctypes
import os
import re
import shutil
import subprocess

import pytest


@pytest.fixture(scope="module")
def library(root):
    return root / "build"


def run(*command, **environment):
    done = subprocess.run(
        [str(one) for one in command], env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(compiler, version, package):
    """Skips if the compiler is missing, or is only a launcher without a compiler, as rustup's may be."""
    there = shutil.which(compiler) and subprocess.run([compiler, version], capture_output=True).returncode == 0
    return pytest.mark.skipif(not there, reason=f"needs {compiler}: apt-get install {package}")


@needs("go", "version", "golang-go")
def test_go(root, library, tmp_path):
    program = tmp_path / "attention"
    flags = {
        "CGO_CFLAGS": f"-I{root / 'include'}",
        "CGO_LDFLAGS": f"-L{library} -lflashlift -Wl,-rpath,{library}",
        "HOME": str(tmp_path),
        "GOCACHE": str(root / "build" / "go-cache"),  # Go's own library is compiled once
    }
    run("go", "build", "-o", program, root / "examples" / "go" / "main.go", **flags)
    assert "largest error" in run(program)


@needs("rustc", "--version", "rustc")
def test_rust(root, library, tmp_path):
    program = tmp_path / "attention"
    source = root / "examples" / "rust" / "main.rs"
    flags = ["--edition=2021", "-O", "-Dwarnings", f"-L{library}", f"-Clink-arg=-Wl,-rpath,{library}"]
    run("rustc", *flags, source, "-o", program)
    assert "largest error" in run(program)


def test_rust_declares_what_the_header_says(root):
    header = (root / "include/flashlift/flashlift.h").read_text()
    rust = (root / "examples/rust/flashlift.rs").read_text()
    (in_c,) = re.findall(r"typedef struct FlashliftArguments \{(.*?)\} FlashliftArguments;", header, re.DOTALL)
    (in_rust,) = re.findall(r"pub struct Arguments \{(.*?)\}", rust, re.DOTALL)
    in_c = re.sub(r"/\*.*?\*/", "", in_c, flags=re.DOTALL)
    names_in_c = re.findall(r"(\w+);", in_c)
    names_in_rust = re.findall(r"pub (\w+):", in_rust)
    assert names_in_rust == names_in_c[: len(names_in_rust)]
    known = ctypes.CDLL(str(root / "build" / "libflashlift.so"))
    for function in re.findall(r"pub fn (flashlift_\w+)", rust):
        assert hasattr(known, function), function
