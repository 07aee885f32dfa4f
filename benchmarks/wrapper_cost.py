"""Measures the time that libflashlift_pjrt adds to compiling modules without attention.

    build/venv/bin/python benchmarks/wrapper_cost.py [--rounds 9] [--plugin FILE] [--only WORD] [--megabytes 100]

Each module is compiled by a real plugin for CPUs and by the wrapper around it, in one process, in turns and in another
order each round. Prints the medians: the wrapped plugin's own compile, what searching the module for attention takes
(`fuse_ms` of the wrapper's report), and that as a share of the compile and for each megabyte of the module; then what
the whole compile through the wrapper takes beside the compile without, which varies from run to run by more than that.
"""

import argparse
import importlib.util
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import flashlift
import jax
import jax.numpy as jnp
import large_module
import numpy as np
from jax._src.lib import _jax
from jaxlib.mlir.dialects import stablehlo

WRAPPER = Path(flashlift.__file__).parent / "lib" / "pjrt_c_api_flashlift-cpu_plugin.so"


def array(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


def cross_entropy(logits, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))


def classifier():
    """The gradient of a linear classifier: an exponential and its sum, between two products."""

    def loss(w, x, labels):
        return cross_entropy(x @ w, labels)

    return jax.jit(jax.value_and_grad(loss)).lower(array(784, 10), array(64, 784), array(64, dtype="int32"))


def mlp():
    """Three layers with ReLU, their gradient and a step of gradient descent."""

    def step(weights, x, labels):
        def loss(weights):
            out = x
            for w, b in weights[:-1]:
                out = jax.nn.relu(out @ w + b)
            return cross_entropy(out @ weights[-1][0] + weights[-1][1], labels)

        value, by = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, by)

    sizes = [784, 256, 128, 10]
    weights = [(array(m, n), array(n)) for m, n in zip(sizes, sizes[1:], strict=False)]
    return jax.jit(step).lower(weights, array(64, 784), array(64, dtype="int32"))


def convolution():
    """Six convolutions, each with a residual, batch statistics and a classifier: their gradient."""

    def loss(weights, head, x, labels):
        for w in weights:
            y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            y = (y - y.mean((0, 1, 2))) * jax.lax.rsqrt(y.var((0, 1, 2)) + 1e-5)
            x = x + jax.nn.relu(y)
        return cross_entropy(x.mean((1, 2)) @ head, labels)

    weights = [array(3, 3, 16, 16)] * 6
    return jax.jit(jax.grad(loss, argnums=(0, 1))).lower(
        weights, array(16, 10), array(4, 16, 16, 16), array(4, dtype="int32")
    )


def recurrent():
    """A GRU over a sequence, with a classifier for each step: its gradient."""

    def loss(w, u, head, x, labels):
        def cell(h, xt):
            z, r, n = jnp.split(xt @ w, 3, -1)
            a, b, c = jnp.split(h @ u, 3, -1)
            z = jax.nn.sigmoid(z + a)
            h = (1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + b) * c) + z * h
            return h, h

        _, hs = jax.lax.scan(cell, jnp.zeros((x.shape[1], u.shape[0])), x)
        logits = hs.reshape(-1, u.shape[0]) @ head
        return cross_entropy(logits, labels.reshape(-1))

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(
        array(32, 192), array(64, 192), array(64, 10), array(20, 8, 32), array(20, 8, dtype="int32")
    )


def with_weights(megabytes):
    """A classifier whose weights are constants of the module."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((512, 512)).astype(np.float32) for _ in range(megabytes)]

    def model(x):
        for one in weights:
            x = jax.nn.relu(x @ one)
        return jax.nn.softmax(x)

    return jax.jit(model).lower(array(8, 512))


def small():
    return jax.jit(lambda x, y: jnp.tanh(x @ y) + 1).lower(array(8, 8), array(8, 8))


def modules(megabytes):
    """For each name, the function that makes the module."""
    return {
        "small": small,
        "classifier's gradient": classifier,
        "MLP's step": mlp,
        "convolutions' gradient": convolution,
        "GRU's gradient": recurrent,
        "perceptron's gradient, 2 layers": lambda: large_module.perceptron(2),
        "perceptron's gradient, 12 layers": lambda: large_module.perceptron(12),
        "perceptron's gradient, 24 layers": lambda: large_module.perceptron(24),
        f"weights of {megabytes} MB": lambda: with_weights(megabytes),
    }


def as_jax_sends_it(lowered):
    """A portable artifact, without CHLO's operations, which these modules do not contain."""
    version = stablehlo.get_current_version()
    return _jax.mlir.serialize_portable_artifact(lowered.as_text(), version, True)


def find_plugin():
    for package, name in (
        ("fastatomstruct_xla_cpu", "libpjrt_cpu.so"),
        ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
    ):
        spec = importlib.util.find_spec(package)
        if spec and spec.origin:
            return Path(spec.origin).parent / name
    sys.exit("no plugin: scripts/requirements-xla.txt has two")


def seconds_of_compile(client, program):
    begin = time.perf_counter()
    client.compile(program)
    return time.perf_counter() - begin


def measure(clients, report, program, rounds):
    """The seconds of each contender, and of the search inside the wrapper."""
    found = {name: [] for name in clients}
    searched = []
    for i in range(rounds + 1):
        order = list(clients)
        random.shuffle(order)
        for name in order:
            took = seconds_of_compile(clients[name], program)
            if i > 0:  # the first of all loads libraries
                found[name].append(took)
    for line in report.read_text().splitlines()[1:]:
        told = json.loads(line)
        if told["fused"] or told["failed"]:
            sys.exit(f"error: expected a module without attention that compiles, got {told}")
        searched.append(told["fuse_ms"] / 1e3)
    report.write_text("")
    return {name: statistics.median(times) for name, times in found.items()} | {"search": statistics.median(searched)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--plugin", type=Path, help="the plugin to wrap")
    parser.add_argument("--only", default="", help="modules whose name has this in it")
    parser.add_argument("--megabytes", type=int, default=100)
    options = parser.parse_args()
    import pypjrt

    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        plugin = options.plugin or find_plugin()
        os.environ |= {"FLASHLIFT_PJRT_PLUGIN": str(plugin.absolute()), "FLASHLIFT_PJRT_REPORT": str(report)}
        print(f"{'module':34} {'KB':>8} {'compile':>10} {'search':>9} {'share':>7} {'ms/MB':>7} {'wrapped':>10}")
        with pypjrt.Client.create(str(plugin)) as without, pypjrt.Client.create(str(WRAPPER)) as wrapped:
            clients = {"without": without, "wrapped": wrapped}
            for name, lower in modules(options.megabytes).items():
                if options.only not in name:
                    continue
                program = as_jax_sends_it(lower())
                took = measure(clients, report, program, options.rounds)
                size = len(program) / 2**20
                print(
                    f"{name:34} {len(program) / 1024:8.0f} {took['without'] * 1e3:7.1f} ms "
                    f"{took['search'] * 1e3:6.2f} ms "
                    f"{100 * took['search'] / took['without']:6.2f}% {took['search'] * 1e3 / size:7.2f} "
                    f"{took['wrapped'] * 1e3:7.1f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
