"""Plain causal attention compiled through the PJRT plugin, beside flashlift.jax.flash_attention and XLA unfused.

    python benchmarks/gpu/plain_stablehlo.py [--length 8192] [--heads 16] [--rounds 5] [--platform cuda|cpu]

Each contender runs in processes of its own, in another order each round: `plugin` is plain attention on platform
`flashlift`, `call` is flash_attention and `xla` plain attention on JAX's own platform. Prints the median time of a
forward pass, and the temporaries that the compiled program plans; XLA's temporaries are asked for without running it.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

CONTENDERS = ("plugin", "call", "xla")


def work(contender, length, heads):
    import jax
    import jax.numpy as jnp

    def plain(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
        keep = jnp.tril(jnp.ones((length, length), bool))
        p = jax.nn.softmax(jnp.where(keep, scores, -jnp.inf)).astype(q.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", p, v)

    def call(q, k, v):
        import flashlift.jax

        return flashlift.jax.flash_attention(q, k, v, causal=True)

    shape = jax.ShapeDtypeStruct((1, length, heads, 128), jnp.bfloat16)
    compiled = jax.jit(call if contender == "call" else plain).lower(shape, shape, shape).compile()
    found = {
        "temporaries": compiled.memory_analysis().temp_size_in_bytes,
        "calls": compiled.as_text().count("flashlift."),
    }
    if contender != "xla":
        rng = jax.random.split(jax.random.key(0), 3)
        tensors = [jax.random.normal(key, shape.shape, shape.dtype) for key in rng]
        for _ in range(3):
            jax.block_until_ready(compiled(*tensors))
        begin, count = time.perf_counter(), 20
        for _ in range(count):
            out = compiled(*tensors)
        out.block_until_ready()
        found["ms"] = (time.perf_counter() - begin) * 1e3 / count
    print(json.dumps(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--platform", choices=("cuda", "cpu"), default="cuda", help="JAX's own")
    options = parser.parse_args()
    found = {name: [] for name in CONTENDERS}
    for i in range(options.rounds):
        order = [name for name in CONTENDERS if name != "xla" or i == 0]
        random.shuffle(order)
        for name in order:
            environment = {**os.environ, "JAX_PLATFORMS": "flashlift" if name == "plugin" else options.platform}
            command = [sys.executable, __file__, "--work", name, str(options.length), str(options.heads)]
            ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            found[name].append(json.loads(ran.stdout.splitlines()[-1]))
    if not found["plugin"][0]["calls"] or found["xla"][0]["calls"]:
        raise SystemExit("error: the plugin's program holds no fused call, or XLA's holds one")
    plugin, call = (statistics.median(each["ms"] for each in found[name]) for name in ("plugin", "call"))
    temporaries = {name: found[name][0]["temporaries"] for name in CONTENDERS}
    print(f"plain through the plugin {plugin:.3f} ms, flash_attention {call:.3f} ms: {plugin / call:.3f} times")
    share = temporaries["plugin"] / temporaries["xla"]
    print(f"temporaries: {temporaries}; the plugin's are {100 * share:.2f} % of XLA's")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        main()
