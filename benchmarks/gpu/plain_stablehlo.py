"""Compares plain causal attention compiled through the PJRT plugin with flashlift.jax.flash_attention.

    python benchmarks/gpu/plain_stablehlo.py [--length 8192] [--heads 16] [--rounds 20] [--platform cuda|cpu]

Both in one process, in turns: `plugin` is plain attention on platform `flashlift`, `call` flash_attention on JAX's own
platform. Prints the median time of a forward pass, and the temporaries that the compiled programs plan; those of `xla`,
plain attention on JAX's own platform, are asked for without running it.
"""

import argparse
import os
import statistics
import time

CALLS = 50  # a turn


def measure(run, calls):
    begin = time.perf_counter()
    for _ in range(calls):
        out = run()
    out.block_until_ready()
    return (time.perf_counter() - begin) * 1e3 / calls


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--platform", choices=("cuda", "cpu"), default="cuda", help="JAX's own")
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = f"flashlift,{options.platform}"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two clients share the device
    import flashlift.jax
    import jax
    import jax.numpy as jnp
    import numpy as np

    def plain(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
        keep = jnp.tril(jnp.ones((options.length, options.length), bool))
        p = jax.nn.softmax(jnp.where(keep, scores, -jnp.inf)).astype(q.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    def call(q, k, v):
        return flashlift.jax.flash_attention(q, k, v, causal=True)

    contenders = {"plugin": (plain, "flashlift"), "call": (call, options.platform), "xla": (plain, options.platform)}
    rng = np.random.default_rng(0)
    host = [rng.standard_normal((1, options.length, options.heads, 128)).astype(jnp.bfloat16) for _ in range(3)]
    runs, temporaries, outputs = {}, {}, {}
    for name, (function, platform) in contenders.items():
        tensors = [jax.device_put(each, jax.devices(platform)[0]) for each in host]
        compiled = jax.jit(function).lower(*tensors).compile()
        temporaries[name] = compiled.memory_analysis().temp_size_in_bytes
        if ("flashlift." in compiled.as_text()) == (name == "xla"):
            raise SystemExit("error: the plugin's program holds no fused call, or XLA's holds one")
        if name != "xla":
            runs[name] = lambda compiled=compiled, tensors=tensors: compiled(*tensors)
            outputs[name] = np.asarray(runs[name]()).astype(np.float32)
    for run in runs.values():
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.5:
            measure(run, 5)
    found = {name: [] for name in runs}
    for i in range(options.rounds):
        for name in sorted(runs, reverse=bool(i % 2)):
            measure(runs[name], 5)
            found[name].append(measure(runs[name], CALLS))
    plugin, other = (statistics.median(found[name]) for name in ("plugin", "call"))
    difference = np.max(np.abs(outputs["plugin"] - outputs["call"]))
    print(f"plain through the plugin {plugin:.3f} ms, flash_attention {other:.3f} ms: {plugin / other:.3f} times")
    share = 100 * temporaries["plugin"] / max(1, temporaries["xla"])
    print(f"largest difference {difference:.3g}; temporaries: {temporaries}; the plugin's are {share:.2f} % of XLA's")


if __name__ == "__main__":
    main()
