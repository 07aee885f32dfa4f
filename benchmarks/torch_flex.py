"""Compares flashlift.torch.flex_attention with PyTorch's compiled flex_attention, in one process, interleaved.

    python benchmarks/torch_flex.py [--mods NAME...] [--dtypes float32 bfloat16] [--length 2048] [--json FILE]
    python benchmarks/torch_flex.py --device cuda --dtypes bfloat16 --heads 32 --length 8192 --depth 128

For each mod: milliseconds (the median of some), their ratio, and the first call of each. Both results are judged
(benchmarks/golden.py): one that is wrong is named, and the exit code is 1. TorchDynamo's state is fresh for
every mod: past eight masks in one process, PyTorch's silently runs the unfused maths. Then: kernels compiled for 100
mods and for 100 lengths. Last, documents of 131,072 tokens: a call of one tile of queries, which is what comes before
the work (the mask's ids are new each time), the whole call, and the growth of the process's memory.
"""

import argparse
import json
import resource
import statistics
import sys
import time

import golden
import recorded
import torch
from flashlift.torch import flex_attention
from flashlift.torch._mods import families
from flashlift.torch._run import kernels
from torch.nn.attention.flex_attention import and_masks, create_block_mask
from torch.nn.attention.flex_attention import flex_attention as torch_flex_attention


def causal(b, h, q, kv):
    return q >= kv


def window(size):
    return and_masks(causal, lambda b, h, q, kv: q - kv < size)


def mods(length, heads, device):
    documents = torch.arange(length, device=device) * 8 // length
    slopes = torch.exp2(-torch.arange(1, heads + 1, device=device) * 8.0 / heads)
    table = torch.randn(heads, 2 * length, device=device)

    def same_document(b, h, q, kv):
        return documents[q] == documents[kv]

    return {
        "noop": (None, None),
        "causal": (None, causal),
        "window": (None, window(512)),
        "documents": (None, and_masks(same_document, causal)),
        "prefix_lm": (None, lambda b, h, q, kv: (kv < length // 4) | (q >= kv)),
        "alibi": (lambda score, b, h, q, kv: score + slopes[h] * (kv - q), causal),
        "softcap": (lambda score, b, h, q, kv: 30 * torch.tanh(score / 30), causal),
        "relative_bias": (lambda score, b, h, q, kv: score + table[h, q - kv + length], None),
    }


def once(call):
    start = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


@torch.no_grad()
def compare(name, mod, dtype, options):
    torch._dynamo.reset()
    score_mod, mask_mod = mod
    shape = 1, options.heads, options.length, options.depth
    q, k, v = (torch.randn(shape, device=options.device).to(dtype) for _ in range(3))
    block_mask = None
    if mask_mod is not None:
        block_mask = create_block_mask(mask_mod, None, None, options.length, options.length, device=options.device)
    compiled = torch.compile(torch_flex_attention)
    calls = {
        "flashlift": lambda: flex_attention(q, k, v, score_mod, mask_mod=mask_mod),
        "torch": lambda: compiled(q, k, v, score_mod, block_mask),
    }
    row = {"mod": name, "dtype": str(dtype).removeprefix("torch.")}
    row |= {f"{who}_first_ms": once(call) for who, call in calls.items()}
    times = {who: [] for who in calls}
    for _ in range(options.repeats):
        for who, call in calls.items():
            times[who].append(once(call))
    row |= {f"{who}_ms": statistics.median(found) for who, found in times.items()}
    want = golden.forward(golden.Attention(q, k, v, score_mod, mask_mod))
    row["wrong"] = golden.complaints({who: {"out": call()} for who, call in calls.items()}, {"out": want})
    return row | {"ratio": row["torch_ms"] / row["flashlift_ms"]}


@torch.no_grad()
def compiled_kernels(make, lengths):
    kernels.compiled.cache_clear()
    families._families.clear()
    for i, length in enumerate(lengths):
        q, k, v = torch.randn(3, 1, 2, length, 16)
        score_mod, mask_mod = make(i, length)
        flex_attention(q, k, v, score_mod, mask_mod=mask_mod)
    return kernels.compiled.cache_info().misses


def capped_window(i, length):
    return (lambda score, b, h, q, kv: (i + 1.5) * torch.tanh(score / (i + 1.5))), window(i + 2)


def biased(i, length):
    bias = torch.randn(length)
    return (lambda score, b, h, q, kv: score + bias[kv]), window(length // 2)


@torch.no_grad()
def long_documents(length=131072, count=1024):
    def attend(queries):
        ids = torch.arange(length) * count // length
        mask_mod = and_masks(causal, lambda b, h, q, kv: ids[q] == ids[kv])
        return once(lambda: flex_attention(q[:, :, :queries], k, v, mask_mod=mask_mod))

    q, k, v = torch.randn(3, 1, 1, length, 16)
    compiling = attend(64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    whole = min(attend(length) for _ in range(5))
    return {
        "documents_131072_setup_ms": min(attend(64) for _ in range(20)),
        "documents_131072_ms": whole,
        "documents_131072_compiling_ms": compiling,
        "documents_131072_growth_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--mods", nargs="*")
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    for name, value in (("heads", 8), ("length", 2048), ("depth", 64), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", help="a file for the figures")
    recorded.add_options(parser)
    options = parser.parse_args()
    rows, verdict = [], golden.Verdict()
    print(f"{'':14} {'dtype':9} {'flashlift':>10} {'torch':>10} {'ratio':>7}   first call: flashlift, torch")
    for name, mod in mods(options.length, options.heads, options.device).items():
        for dtype in options.dtypes:
            if options.mods is None or name in options.mods:
                row = compare(name, mod, getattr(torch, dtype), options)
                rows.append(row)
                times = f"{row['flashlift_ms']:7.1f} ms {row['torch_ms']:7.1f} ms {row['ratio']:6.1f}×"
                first = f"{row['flashlift_first_ms']:.0f} ms, {row['torch_first_ms']:.0f} ms"
                print(f"{name:14} {dtype:9} {times}   {first}", flush=True)
                verdict.add(row["wrong"])
    found = {}
    if options.device == "cpu":
        found["kernels_for_100_mods"] = compiled_kernels(capped_window, [64] * 100)
        found["kernels_for_100_lengths"] = compiled_kernels(biased, range(20, 120))
        found |= long_documents()
    for name, value in found.items():
        print(f"{name}: {value:.1f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"options": {**vars(options), "plot": str(options.plot)}, "rows": rows, **found}, file, indent=1)
    run = recorded.Run()
    what = f"flashlift.torch beside flex_attention, H{options.heads} S{options.length} D{options.depth}"
    for row in rows:
        times = {"Flashlift": round(row["flashlift_ms"], 2), "compiled flex_attention": round(row["torch_ms"], 2)}
        run.table(f"flex-{options.device}", what, "ms", "lower").add(row["mod"], row["dtype"], times)
    run.finish(options, {"torch": torch.__version__}, options.device)
    return verdict.exit_code()


if __name__ == "__main__":
    sys.exit(main())
