"""Flax's linen over eight devices. Run by scripts/test_jax_users.py, which installs Flax."""

import os
import subprocess
import sys
from pathlib import Path


def test_training():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, Path(__file__).with_name("sharded_flax.py")], env=environment, check=True)
