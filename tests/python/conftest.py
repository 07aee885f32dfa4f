"""Fixtures that all Python tests share."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


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
