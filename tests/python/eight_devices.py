"""Programs that run on eight devices of the CPU, each in a process of its own."""

import os
import subprocess
import sys

# argv: the partitioner, shardy or gspmd.
HEAD = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import flashlift.jax

if sys.argv[1] == "gspmd":
    jax.config.update("jax_use_shardy_partitioner", False)
rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
place = lambda one, spec: jax.device_put(one, NamedSharding(mesh, spec))

def assert_close(ones, others):
    for one, other in zip(jax.tree.leaves(ones), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4, rtol=1e-4)
"""


def run(program, *arguments):
    """Runs a program that must print "agree" at its end, and nothing else."""
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "agree\n", done.stderr
