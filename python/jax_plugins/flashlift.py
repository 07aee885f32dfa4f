"""Flashlift as a platform of JAX: with JAX_PLATFORMS=flashlift, each module that JAX compiles is fused first.

JAX finds this module by its folder or by the package's entry point, and calls initialize() in every process.
"""

import importlib.util
import os
from pathlib import Path

import jax._src.xla_bridge as xla_bridge
from jax._src.hardware_utils import has_visible_nvidia_gpu
from jax._src.lib import xla_client

NAME = "flashlift"

# Packages that bring a PJRT plugin, and its path in them.
_CUDA_PLUGINS = (("jax_plugins.xla_cuda13", "xla_cuda_plugin.so"), ("jax_plugins.xla_cuda12", "xla_cuda_plugin.so"))
_CPU_PLUGINS = (
    ("fastatomstruct_xla_cpu", "libpjrt_cpu.so"),
    ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
)
_VARIABLE = "FLASHLIFT_PJRT_PLUGIN"


def initialize() -> None:
    """Registers the platform where JAX_PLATFORMS names it; see docs/xla.md."""
    platforms = (xla_bridge.config.jax_platforms.value or "").split(",")
    if NAME not in (platform.strip() for platform in platforms):
        return
    named = os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS", "")
    if any(entry.startswith(NAME + ":") for entry in named.split(",")):
        return  # the user names a library of this name, which JAX registers next
    # What is wrapped is the library's to find, which fails with a reason; only it does not know Python's other folders.
    wrapped = os.environ.get(_VARIABLE) or _find_plugin()
    if wrapped:
        os.environ[_VARIABLE] = wrapped
    on_cuda = any(word in Path(wrapped).name for word in ("cuda", "gpu"))
    folder = Path(__file__).resolve().parent.parent / "flashlift" / "lib"
    xla_bridge.register_plugin(
        NAME,
        priority=600,  # above JAX's own for CUDA
        library_path=str(folder / f"pjrt_c_api_flashlift-{'cuda' if on_cuda else 'cpu'}_plugin.so"),
        # Memory and collectives as JAX's own plugin for CUDA is told; a client for CPUs takes no options.
        options=xla_client.generate_pjrt_gpu_plugin_options() if on_cuda else None,
    )


def _find_plugin() -> str:
    for package, name in (*(_CUDA_PLUGINS if has_visible_nvidia_gpu() else ()), *_CPU_PLUGINS):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:  # of the package around it
            continue
        if found and found.origin and (Path(found.origin).parent / name).exists():
            return str(Path(found.origin).parent / name)
    return ""
