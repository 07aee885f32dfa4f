"""Fixtures that all Python tests share."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def quick_xla():
    """Flags with which XLA compiles for CPUs in an eighth of the time. The compiled programs run only for microseconds
    here."""
    if any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return ""  # they would change its code for GPUs, too
    version = importlib.metadata.version("jaxlib")
    # At level 0, XLA may compute a score twice and round it differently, so that the gradient of a row's maximum is
    # infinite: in JAX 0.12, and on CPUs without AVX-512 in 0.10. Tests of such gradients compare single operations
    # (`whole=False` in test_lifting_rules.py); JAX 0.12 has level 1, where this was not seen.
    level = 0 if version.startswith(("0.9.", "0.10.", "0.11.")) else 1
    flags = f"--xla_backend_optimization_level={level} --xla_llvm_disable_expensive_passes=true"
    # XLA of JAX 0.11 has one emitter, and stops the process if it gets a flag that it does not know.
    if version.startswith(("0.9.", "0.10.")):
        flags += " --xla_cpu_use_fusion_emitters=false"
    return flags


# Must be set before JAX creates its first client. Processes that tests start inherit it.
os.environ.setdefault("XLA_FLAGS", quick_xla())


_GENERATORS = []  # numpy's that tests share, and their states before the first test


def pytest_collection_finish():
    folder = str(Path(__file__).parent) + os.sep
    modules = [one for one in sys.modules.values() if (getattr(one, "__file__", None) or "").startswith(folder)]
    shared = {
        id(value): value for one in modules for value in vars(one).values() if isinstance(value, np.random.Generator)
    }
    _GENERATORS[:] = [(generator, generator.bit_generator.state) for generator in shared.values()]


@pytest.fixture(autouse=True)
def seeded():
    """A test draws the same tensors, whichever tests ran before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    for generator, state in _GENERATORS:
        generator.bit_generator.state = state


@pytest.fixture(autouse=True)
def untuned(monkeypatch):
    """Tuning results on a developer's machine have no effect here."""
    monkeypatch.setenv("FLASHLIFT_TUNING", "off")


@pytest.fixture(scope="session")
def root():
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def flashlift():
    """Runs the command line: flashlift("run", "attn ...") returns the finished process, with text output."""
    program = ROOT / "build" / "bin" / "flashlift"
    assert program.exists(), f"{program} is missing; run `make build`"

    def call(*arguments, timeout=120, **options):
        return subprocess.run(
            [program, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, **options
        )

    return call
