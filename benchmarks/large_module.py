"""Reads a large portable artifact, and prints the time and memory that this takes.

benchmarks/large_module.py [--megabytes 100] [--of weights|operations] [--keep FILE]
benchmarks/large_module.py --of perceptron [--layers 12] [--keep FILE]

The module is a portable artifact (VHLO) of an attention beside weights, or beside operations without any, up to the
size; or, as text, a classifier's gradient without attention, whose loss makes a candidate of each of its products.
Prints the seconds and the memory that `flashlift fuse` takes beyond what a small module does, for the whole of it:
reading, lifting and writing.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir.dialects import stablehlo

ROOT = Path(__file__).resolve().parents[1]


def attend(q, k, v):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)


def with_weights(megabytes):
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((512, 512)).astype(np.float32) for _ in range(max(1, megabytes))]

    def model(q, k, v):
        x = attend(q, k, v).reshape(-1, 512)
        for one in weights:
            x = x @ one
        return x

    return model


def with_operations(megabytes):
    def model(q, k, v):
        x = attend(q, k, v)
        for i in range(megabytes * 24_000):  # about 40 bytes each, and its name's place
            x = jax.lax.add(x, v) if i % 2 else jax.lax.mul(x, k)
        return x

    return model


def perceptron(layers):
    """The module of a gradient: GELU, residuals, normalisation, and the loss of a classifier."""

    def loss(weights, x, labels):
        for first, second in weights:
            x = x + jax.nn.gelu(x @ first) @ second
            x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1))

    shapes = jax.ShapeDtypeStruct((256, 1024), "float32"), jax.ShapeDtypeStruct((1024, 256), "float32")
    rows = jax.ShapeDtypeStruct((64, 256), "float32"), jax.ShapeDtypeStruct((64,), "int32")
    return jax.jit(jax.grad(loss)).lower([shapes] * layers, *rows)


def artifact(model):
    shape = jax.ShapeDtypeStruct((1, 64, 8, 64), "float32")
    lowered = jax.jit(model).lower(shape, shape, shape)
    return stablehlo.serialize_portable_artifact_str(lowered.as_text(), stablehlo.get_current_version())


def measure(path):
    """The processor time in seconds and the peak memory in MB of `flashlift fuse`."""
    out = path.with_suffix(".fused")
    code = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:], capture_output=True, text=True)\n"
        "use = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(done.returncode, use.ru_utime + use.ru_stime, use.ru_maxrss / 1024, done.stderr[-500:])\n"
    )
    program = ROOT / "build" / "bin" / "flashlift"
    ran = subprocess.run(
        ["python3", "-c", code, program, "fuse", path, "-o", out, "--emit", "bytecode", "--gradients"],
        capture_output=True,
        text=True,
        check=True,
    )
    code, seconds, megabytes, *rest = ran.stdout.split(maxsplit=3)
    if code != "0":
        raise SystemExit(f"flashlift fuse failed: {' '.join(rest)}")
    return float(seconds), float(megabytes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--of", choices=("weights", "operations", "perceptron"), default="weights")
    parser.add_argument("--layers", type=int, default=12, help="of the perceptron")
    parser.add_argument("--keep", type=Path, help="write the module there")
    options = parser.parse_args()
    if options.of == "perceptron":
        module = perceptron(options.layers).as_text().encode()
    else:
        make = with_weights if options.of == "weights" else with_operations
        module = artifact(make(options.megabytes))
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.mlirbc", options.keep or Path(folder) / "large.mlirbc"
        small.write_bytes(artifact(with_weights(1)))
        large.write_bytes(module)
        before, after = measure(small), measure(large)
        size = large.stat().st_size / 2**20
        print(
            f"{size:.3g} MB of {options.of}: {after[0] - before[0]:.2f} s, {after[1] - before[1]:.0f} MB "
            f"({(after[1] - before[1]) / size:.1f} x) beyond a small module's {before[0]:.2f} s and {before[1]:.0f} MB"
        )


if __name__ == "__main__":
    main()
