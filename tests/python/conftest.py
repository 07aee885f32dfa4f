"""Fixtures that all Python tests share."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def seeded():
    """A test draws the same tensors whichever ran before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def untuned(monkeypatch):
    """What was tuned on a developer's machine decides nothing here."""
    monkeypatch.setenv("FLASHLIFT_TUNING", "off")


@pytest.fixture(scope="session")
def root():
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def flashlift():
    """Runs the command line: flashlift("run", "attn ...") gives the finished process, with text output."""
    program = ROOT / "build" / "bin" / "flashlift"
    assert program.exists(), f"{program} is missing; run `make build`"

    def call(*arguments, timeout=120, **options):
        return subprocess.run(
            [program, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, **options
        )

    return call
