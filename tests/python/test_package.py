"""The Python package itself: what it says where a framework is missing or too old, and `python -m flashlift`."""

import subprocess
import sys
from pathlib import Path

import flashlift
import pytest

OVERLAY = "import sys; sys.path.insert(0, sys.argv[1]); "


def python(*arguments):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.parametrize("module, name, package", [("jax", "JAX", "jax"), ("torch", "PyTorch", "torch")])
def test_a_missing_framework_is_named_with_its_command(module, name, package):
    done = python("-c", f"import sys; sys.modules[{module!r}] = None; import flashlift.{module}")
    expected = f"ModuleNotFoundError: flashlift.{module} needs {name}: pip install 'flashlift[{package}]'"
    assert done.stderr.splitlines()[-1] == expected, done.stderr


def test_a_missing_part_of_a_framework_is_named_itself(tmp_path):
    (tmp_path / "jax.py").write_text("import no_jaxlib_here")
    done = python("-c", OVERLAY + "import flashlift.jax", tmp_path)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_jaxlib_here'", done.stderr


def test_an_old_jax_is_refused_by_name(tmp_path):
    (tmp_path / "jax.py").write_text("__version__, __version_info__ = '0.7.2', (0, 7, 2)")
    done = python("-c", OVERLAY + "import flashlift.jax", tmp_path)
    expected = (
        "ImportError: flashlift.jax is for jax 0.9.2 and later; this is jax 0.7.2. To go on, install such a jax: "
    )
    assert done.stderr.splitlines()[-1] == expected + "pip install 'flashlift[jax]'", done.stderr


def test_an_older_library_beside_the_package_is_refused(tmp_path):
    (tmp_path / "old.c").write_text("int flashlift_api_version(void) { return 1; }")
    subprocess.run(["cc", "-shared", "-fPIC", "old.c", "-o", "old.so"], cwd=tmp_path, check=True)
    old = "import ctypes, flashlift._library as own; own.load = lambda name: ctypes.CDLL(sys.argv[1]); own.core()"
    done = python("-c", "import sys; " + old, tmp_path / "old.so")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {tmp_path}/old.so has API version 1, this package needs "), done.stderr
    assert last.endswith("install it again"), done.stderr


def test_folders_of_the_package():
    done = python("-m", "flashlift", "--help")
    shown = done.stdout
    assert "\n  run " in shown if done.returncode == 0 else "built without the command line" in done.stderr
    for option in ("--cmake-dir", "--pkg-config-dir", "--include-dir", "--library-dir"):
        assert f"  {option} " in shown
        done = python("-m", "flashlift", option)  # a build for development has the libraries only
        assert Path(done.stdout.strip()).is_dir() if done.returncode == 0 else "A wheel has it" in done.stderr, done
    assert (Path(done.stdout.strip()) / "libflashlift.so.0").exists()
    assert Path(done.stdout.strip()).is_relative_to(Path(flashlift.__file__).parent)
    assert python("-m", "flashlift", "--library-dir", "--library-dir").stdout == 2 * done.stdout
