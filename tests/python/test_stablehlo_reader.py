"""The StableHLO reader compared with JAX's: both must read the same module from a text."""

import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "corpus"))
import run

PRINT_MODULE = ROOT / "build" / "bin" / "print_module"
MODULES = sorted((ROOT / "tests" / "stablehlo" / "modules").glob("*.mlir"))
# Modules of real producers with inputs and outputs, where somebody has laid them beside the repository.
CASES = run.find_cases(ROOT.parent / "shared" / "corpus")


def printed(path):
    done = subprocess.run([PRINT_MODULE, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_prints_what_it_read(path):
    assert run.generic_text(printed(path)) == run.generic_text(path.read_text())


def test_boolean_constants_of_jax(tmp_path):
    """JAX's MLIR writes one byte an element where MLIR 22 reads bits."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    mask = np.random.default_rng(3).random((9, 31)) < 0.4
    text = jax.jit(lambda x: jnp.where(mask, x, 0)).lower(jnp.zeros(mask.shape)).as_text()
    assert 'dense<"0x' in text
    path = tmp_path / "mask.mlir"
    path.write_text(text)
    x = np.ones(mask.shape, np.float32)
    np.testing.assert_array_equal(run.run_on_cpu(printed(path), [x])[0], mask)


@pytest.mark.parametrize("mode", run.MODES)
@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_corpus(path, mode):
    run.flashlift.jax.register()
    assert run.check(path, mode, PRINT_MODULE) is None
