"""flashlift.jax beside ejkernel on a CPU (platform "xla"): the same calls, in turns, errors beside float64.

Needs ejkernel (pip install ejkernel==0.0.80.3) where flashlift.jax is installed:
    build/venv/bin/python benchmarks/jax_ejkernel.py [--rounds N] [--record MACHINE] [--plot FILE.svg]
"""

import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import recorded
from flashlift.jax import flash_attention

CASES = {
    "causal": {"causal": True},
    "window": {"causal": True, "sliding_window": (256, 0)},
    "soft cap": {"logits_soft_cap": 30.0},
    "sinks": {"softmax_aux": np.zeros(4, np.float32)},
}
BATCH, LENGTH, HEADS, KV_HEADS, DEPTH = 1, 1024, 8, 2, 64


def exact(q, k, v, causal=False, sliding_window=None, logits_soft_cap=None, softmax_aux=None):
    """The result in float64, in plain numpy."""
    q, k, v = (np.asarray(one, np.float64) for one in (q, k, v))
    k, v = (np.repeat(one, HEADS // KV_HEADS, axis=2) for one in (k, v))
    s = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(DEPTH)
    s = s if logits_soft_cap is None else logits_soft_cap * np.tanh(s / logits_soft_cap)
    distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    kept = (distance >= 0) | (not causal)
    if sliding_window is not None:
        kept = kept & (distance <= sliding_window[0]) & (-distance <= sliding_window[1])
    p = np.where(kept, np.exp(s), 0)
    total = p.sum(-1, keepdims=True) + (0 if softmax_aux is None else np.exp(softmax_aux).sum())
    return np.einsum("bhqk,bkhd->bqhd", p / total, v)


def positional(function, q, k, v, softmax_aux=None, **arguments):
    return function(q, k, v, None, None, None, softmax_aux, **arguments)


def measured(functions, operands, rounds):
    """The shortest time of each, measured in turns."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function(*operands))
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    recorded.add_options(parser)
    options = parser.parse_args()
    os.environ.setdefault("EJKERNEL_AUTOTUNE_POLICY", "heuristics")  # and not minutes of tuning in the first call
    from ejkernel.modules import flash_attention as theirs

    rng = np.random.default_rng(0)
    shapes = [(BATCH, LENGTH, heads, DEPTH) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    operands = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
    print(
        f"{'case':10} {'pass':9} {'ours ms':>9} {'ejkernel ms':>12} {'ratio':>6} {'our error':>10} {'their error':>12}"
    )
    run = recorded.Run()
    table = run.table(
        "ejkernel", f"Beside ejkernel (XLA), B{BATCH} S{LENGTH} H{HEADS}/{KV_HEADS} D{DEPTH}", "ms", "lower"
    )
    for case, arguments in CASES.items():
        want = exact(*operands, **arguments)
        forward = {
            "ours": jax.jit(lambda *qkv, a=arguments: positional(flash_attention, *qkv, **a)),
            "theirs": jax.jit(lambda *qkv, a=arguments: positional(theirs, *qkv, platform="xla", **a)),
        }
        both = {
            name: jax.jit(jax.grad(lambda *qkv, f=function: f(*qkv).sum(), argnums=(0, 1, 2)))
            for name, function in forward.items()
        }
        errors = [np.abs(np.asarray(function(*operands)) - want).max() for function in forward.values()]
        for kind, functions in (("forward", forward), ("gradient", both)):
            times = measured(functions, operands, options.rounds)
            shown = [f"{one:.1e}" for one in errors] if kind == "forward" else ["", ""]
            print(
                f"{case:10} {kind:9} {1e3 * times['ours']:9.2f} {1e3 * times['theirs']:12.2f} "
                f"{times['theirs'] / times['ours']:6.1f} {shown[0]:>10} {shown[1]:>12}",
                flush=True,
            )
            found = {"Flashlift": times["ours"], "ejkernel": times["theirs"]}
            table.add(case, kind, {who: round(1e3 * seconds, 3) for who, seconds in found.items()})
    run.finish(options, {"jax": jax.__version__}, f"CPU, {os.cpu_count()} threads")


if __name__ == "__main__":
    main()
