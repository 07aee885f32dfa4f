"""The Makefile in a folder whose name has spaces, with stubs in place of the programs that it runs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETUP_SCRIPTS = ("setup_system.sh", "setup_python.sh", "configure.sh")
ECHO = '#!/bin/sh\nprintf "<%s>" "$0" "$@" >>"$CALLS"\n'


def stub(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """make's calls of cmake, with each argument in <>."""
    checkout, calls = tmp_path / "a flash lift", tmp_path / "calls"
    (checkout / "scripts").mkdir(parents=True)
    for name in ("Makefile", "CMakePresets.json"):
        shutil.copy(ROOT / name, checkout)
    shutil.copytree(ROOT / "packaging/kernels", checkout / "packaging/kernels")
    for path in (ROOT / "scripts").glob("requirements*.txt"):
        shutil.copy(path, checkout / "scripts")
    for name in SETUP_SCRIPTS:
        stub(checkout / "scripts" / name, "#!/bin/sh\n")
    stub(checkout / "build/venv/bin/python", '#!/bin/sh\necho "$PWD/site packages"\n')
    stub(tmp_path / "bin/cmake", ECHO)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.delenv("MAKEFLAGS", raising=False)  # of `make test BUILD=...`

    def make(*arguments):
        subprocess.run(["make", *arguments], cwd=checkout, check=True, timeout=60, capture_output=True)
        return checkout, calls.read_text()

    return make


def test_build(run):
    checkout, calls = run("build")
    assert f"<--component><python><--prefix><{checkout}/site packages>" in calls


def test_wheel_kernels(run):
    checkout, calls = run("wheel-kernels")
    assert f"<-DNVRTC={checkout}/site packages/nvidia/" in calls
    assert f"<-DFOLDER={checkout}/build/kernels/flashlift/lib/flashlift_kernels>" in calls


def test_install(run):
    assert "<--prefix></opt/flash lift>" in run("install", "PREFIX=/opt/flash lift")[1]
    assert f"<--prefix><{Path.home()}/flashlift>" in run("install", "PREFIX=~/flashlift")[1]


@pytest.mark.parametrize(
    "python, message",
    [
        ("/nowhere/python3", "error: there is no program /nowhere/python3. Name one: make PYTHON="),
        ("#!/bin/sh\necho Python 3.9.2; exit 1\n", "is Python 3.9.2, and the tests need Python 3.11 or later"),
    ],
)
def test_a_python_that_cannot_be_used(tmp_path, monkeypatch, python, message):
    if python.startswith("#!"):
        stub(tmp_path / "python3", python)
        python = tmp_path / "python3"
    monkeypatch.setenv("PYTHON", str(python))
    done = subprocess.run([ROOT / "scripts/setup_python.sh", tmp_path / "venv"], capture_output=True, text=True)
    assert done.returncode == 1 and message in done.stderr
    assert len(done.stderr.splitlines()) == 1
