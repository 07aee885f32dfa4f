"""Runs users of JAX's attention with Flashlift: Flax's nnx, and JAX's own tests through the PJRT plugin.

scripts/test_jax_users.py BUILD [--jax-source FOLDER]

Flax goes to a folder under BUILD/versions. FOLDER is a checkout of JAX at the version that is installed: its tests of
jax.nn.dot_product_attention run with JAX_PLATFORMS=flashlift around PyPI's CPU plugin (scripts/requirements-xla.txt).
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLAX = ["flax", "msgpack", "rich", "treescope", "markdown-it-py", "mdurl", "pygments", "typing_extensions", "absl-py"]
FLAX += ["optax", "pyyaml"]
PLUGIN = "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"


def pytest(python, environment, *arguments):
    # Hypothesis's plugin writes a folder beside the tests.
    ran = subprocess.run(
        [python, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *map(str, arguments)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
    )
    print(ran.stdout[-3000:] if ran.returncode else ran.stdout.splitlines()[-1], flush=True)
    return ran.returncode, ran.stdout


def losses_of(text):
    return [float(one) for one in re.search(r"^losses (.*)$", text, re.M)[1].split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--jax-source", type=Path, help="a checkout of JAX, whose tests/nn_test.py is run")
    options = parser.parse_args()
    python = options.build.resolve() / "venv" / "bin" / "python"
    flax = options.build.resolve() / "versions" / "flax"
    if not flax.exists():
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--target", flax, *FLAX], check=True)
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    places = [Path(found.stdout.strip()), *map(Path, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    plain = os.environ | {"PYTHONPATH": str(flax), "JAX_PLATFORMS": "cpu"}
    plugin = next((place / PLUGIN for place in places if (place / PLUGIN).exists()), "")
    wrapped = plain | {"JAX_PLATFORMS": "flashlift", "FLASHLIFT_PJRT_PLUGIN": str(plugin)}

    print("==> Flax's nnx", flush=True)
    failed, own = pytest(python, plain, ROOT / "tests" / "users")
    print("==> a training loop through the PJRT plugin", flush=True)
    code, through = pytest(python, wrapped, ROOT / "tests" / "users", "-k", "training_loop")
    failed = failed or code
    if not failed:
        pairs = list(zip(losses_of(own), losses_of(through), strict=True))
        apart = max(abs(a - b) for a, b in pairs)
        print(f"{len(pairs)} losses, at most {apart:.1e} apart")
        failed = apart > 1e-5
    if options.jax_source:
        print("==> JAX's own tests of jax.nn.dot_product_attention through the PJRT plugin", flush=True)
        code, _ = pytest(python, wrapped, options.jax_source / "tests" / "nn_test.py", "-k", "DotProduct")
        failed = failed or code
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
