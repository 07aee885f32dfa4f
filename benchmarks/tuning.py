"""Measures the gain of tuning over the heuristics, and checks that another process uses the results.

    python benchmarks/tuning.py [--device cpu|cuda] [--seconds 3] [--record MACHINE] [--plot FILE.svg]

Each problem is tuned in a process of its own, with an empty cache. A second process compiles it twice, as tuned and
with tuning="off", and measures both in turns. The ratio of the two medians is what counts: the first process's own
figures choose the fastest of many, which flatters it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import flashlift
import recorded
import torch

PROBLEMS = {
    "cpu": [
        "attn hq8 hkv2 sq1 skv4096 d64 f32",
        "attn hq32 hkv8 sq1 skv1000 d128 bf16",
        "attn h1 s64 d64 f32",
        "attn h2 s128 d64 bf16 causal",
        "attn h1 s2000 d128 f32",
        "attn h3 s700 d96 f32 causal",
        "attn hq8 hkv1 sq16 skv8192 d128 bf16",
        "attn h2 sq8 skv16384 d64 f32",
        "attn b2 h4 s1024 d256 f32 window=64",
        "attn b16 h8 s77 d64 f32",
    ],
    "cuda": [
        "attn b2 h16 s4096 d128 bf16 out=bf16 causal",
        "attn b8 h8 s300 d64 bf16 out=bf16",
        "attn b4 hq32 hkv8 sq1 skv8192 d128 bf16 out=bf16",
        "attn b1 hq8 hkv1 sq64 skv16384 d128 bf16 out=bf16",
        "attn b1 h2 s512 d64 f16 out=f16",
        "attn b4 h8 s1024 d256 bf16 out=bf16 window=64",
    ],
}


def in_new_process(work, cache, *arguments):
    command = [sys.executable, __file__, "--work", work, *map(str, arguments)]
    environment = {**os.environ, "FLASHLIFT_CACHE_DIR": cache, "FLASHLIFT_TUNING": "write"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr.strip().splitlines()[-1])
    return json.loads(ran.stdout)


def tune(words, device, seconds):
    tuned = flashlift.tune(words, device=device, seconds=float(seconds))
    return {"stored": tuned.stored, "best": describe(tuned.best)}


def describe(tuning):
    sizes = {name: size for name, size in vars(tuning).items() if size and name != "implementation"}
    return " ".join([tuning.implementation or "heuristics", *(f"{name}={size}" for name, size in sizes.items())])


def bound(words, device, tuning):
    """A call with tensors of its own, and its result."""
    problem = flashlift.Problem.parse(words)
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    random = torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn(problem.batch, heads, length, depth, generator=random, device=device).to(dtypes[problem.dtype])
        for heads, length, depth in (
            (problem.q_heads, problem.q_len, problem.head_dim),
            (problem.kv_heads, problem.kv_len, problem.head_dim),
            (problem.kv_heads, problem.kv_len, problem.value_dim),
        )
    )
    out_dtype = dtypes[problem.words.get("out", problem.dtype)]
    out = torch.empty(*q.shape[:3], problem.value_dim, dtype=out_dtype, device=device)
    return flashlift.compile(problem, device=device, tuning=tuning).bind(q, k, v, out), out


def compare(words, device, seconds):
    calls = {name: bound(words, device, name) for name in ("off", "write")}
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def measure(name, count):
        start = time.perf_counter()
        for _ in range(count):
            calls[name][0]()
        wait()
        return (time.perf_counter() - start) / count

    for name in calls:
        measure(name, 3)
    count = max(1, int(2e-3 / measure("off", 3)))  # a round of 2 ms, where one call takes less
    times = {name: [] for name in calls}
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end or len(times["off"]) < 5:
        for name, measured in times.items():
            measured.append(measure(name, count))
    (_, one), (_, other) = calls.values()
    torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
    return {
        "ms": {name: statistics.median(measured) * 1e3 for name, measured in times.items()},
        "taken": describe(flashlift.tune(words, device=device, policy="read").best),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=PROBLEMS, default="cpu")
    parser.add_argument("--seconds", type=float, default=3, help="how long to tune, and to compare, each problem")
    recorded.add_options(parser)
    options = parser.parse_args()
    run = recorded.Run()
    name = {"cpu": "CPU", "cuda": "GPU"}[options.device]
    table = run.table("tuning", f"What tuning gains on a {name}, of the heuristics' speed", "ratio")
    won = 0
    for words in PROBLEMS[options.device]:
        with tempfile.TemporaryDirectory() as cache:
            found = in_new_process("tune", cache, words, options.device, options.seconds)
            measured = in_new_process("compare", cache, words, options.device, options.seconds)
        if found["stored"] and measured["taken"] != found["best"]:
            raise SystemExit(f"{words}: the second process takes {measured['taken']}, not {found['best']}")
        ratio = measured["ms"]["off"] / measured["ms"]["write"]
        won += ratio >= 1.05
        table.add(words, "forward", {"tuned": round(ratio, 3)})
        print(f"{ratio:5.2f}  {measured['ms']['off']:8.4f} ms  {words}: {found['best']}", flush=True)
    print(f"tuned is faster by 5 % or more in {won} of {len(PROBLEMS[options.device])}")
    place = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {os.cpu_count()} threads"
    run.finish(options, {"flashlift": flashlift.__version__}, place)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work, *arguments = sys.argv[2:]
        print(json.dumps({"tune": tune, "compare": compare}[work](*arguments)))
    else:
        main()
