"""Compares each front end with flashlift.compile of the same call, in one process.

    python benchmarks/front_ends.py [--device cpu|cuda] [--lengths 1024 8192] [--json FILE]
        [--record MACHINE] [--plot FILE.svg]

compile: the problem, with its lengths, bound to its tensors. torch: flashlift.torch.flex_attention; torch.compile: the
same in a compiled function; jax: flashlift.jax.attention under jit, where JAX has the device. Rounds go through all of
them in turn; figures are medians. Every result is judged (benchmarks/golden.py). The exit code is 1 if one is wrong, or
if a front end is slower than flashlift.compile by more than --tolerance (0.02), from 1024 queries on.
"""

import argparse
import json
import math
import statistics
import sys
import time

import flashlift
import golden
import recorded
import torch
from flashlift.torch import flex_attention

MASKS = {"full": (None, ""), "causal": (lambda b, h, q, kv: q >= kv, " causal")}


def milliseconds(call, device, calls):
    """The time of one of `calls` successive calls: on a GPU the host runs ahead, as it does in a model."""
    if device == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        call()
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / calls
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) * 1e3 / calls


def jax_call(tensors, words, device):
    """A call of the JAX front end, and its result as a tensor; None if JAX does not support the device."""
    try:
        import jax
        import jax.numpy as jnp
        from flashlift.jax import attention

        place = jax.devices("gpu" if device == "cuda" else "cpu")[0]
    except (ImportError, RuntimeError):
        return None
    arrays = [
        jax.device_put(jnp.asarray(one.float().cpu().numpy(), dtype=str(one.dtype)[6:]), place) for one in tensors
    ]
    attend = jax.jit(lambda q, k, v: attention(q, k, v, words.strip(), layout="bhsd"))
    result = torch.from_numpy(jax.device_get(attend(*arrays).astype(jnp.float32)).copy())

    def call():
        attend(*arrays).block_until_ready()

    return call, result.to(tensors[0])


@torch.no_grad()
def compare(options, length, depth, mask, dtype):
    heads, batch = options.heads, max(1, options.tokens // length)
    tensors = [torch.randn(batch, heads, length, depth, device=options.device).to(dtype) for _ in range(3)]
    mask_mod, words = MASKS[mask]
    scale = 1 / math.sqrt(depth)
    name = {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
    text = f"attn b{batch} h{heads} s{length} d{depth} {name} scale={scale!r} lse{words}"
    out = torch.empty_like(tensors[0])
    lse = torch.empty(out.shape[:3], device=options.device)
    bound = flashlift.compile(text, device=options.device).bind(*tensors, out, lse=lse)
    bound()

    def attend(q, k, v):
        return flex_attention(q, k, v, mask_mod=mask_mod)

    compiled = torch.compile(attend)
    calls = {"compile": bound, "torch": lambda: attend(*tensors), "torch.compile": lambda: compiled(*tensors)}
    results = {"compile": out, "torch": attend(*tensors), "torch.compile": compiled(*tensors)}
    jax = jax_call(tensors, words, options.device)
    if jax is not None:
        calls["jax"], results["jax"] = jax
    wrong = golden.complaints(
        {who: {"out": result} for who, result in results.items()},
        {"out": golden.forward(golden.Attention(*tensors, mask_mod=mask_mod, scale=scale))},
    )
    times = {who: [] for who in calls}
    for _ in range(options.rounds):
        for who, call in calls.items():
            times[who].append(milliseconds(call, options.device, options.calls))
    row = {"length": length, "depth": depth, "mask": mask, "dtype": name, "wrong": wrong}
    return row | {"ms": {who: statistics.median(found) for who, found in times.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--depths", type=int, nargs="+", default=[64, 128])
    for name, value in (("heads", 8), ("tokens", 4096), ("rounds", 9), ("calls", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--json", help="a file for the figures")
    recorded.add_options(parser)
    options = parser.parse_args()
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    rows, verdict, slow = [], golden.Verdict(), []
    for depth in options.depths:
        for length in options.lengths:
            for mask in MASKS:
                row = compare(options, length, depth, mask, dtype)
                rows.append(row)
                verdict.add(row["wrong"])
                ratios = {who: ms / row["ms"]["compile"] for who, ms in row["ms"].items() if who != "compile"}
                figures = "  ".join(f"{who} {ratio:.3f}x" for who, ratio in ratios.items())
                print(f"D{depth} S{length} {mask:7} compile {row['ms']['compile']:.3f} ms  {figures}", flush=True)
                slow += [who for who, ratio in ratios.items() if length >= 1024 and ratio > 1 + options.tolerance]
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    run = recorded.Run()
    table = run.table("front-ends", "Front ends beside flashlift.compile", "ms", better="lower")
    for row in rows:
        milliseconds_of = {who: round(ms, 4) for who, ms in row["ms"].items()}
        table.add(f"D{row['depth']} S{row['length']} {row['dtype']}", row["mask"], milliseconds_of)
    place = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    run.finish(options, {"torch": torch.__version__}, place)
    if slow:
        print(f"slower than flashlift.compile by more than {options.tolerance:.0%}: {', '.join(sorted(set(slow)))}")
    return max(verdict.exit_code(), int(bool(slow)))


if __name__ == "__main__":
    sys.exit(main())
