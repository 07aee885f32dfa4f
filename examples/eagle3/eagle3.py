"""Speculative-decoding training (EAGLE-3) with its own mask, forward and backward, on a CPU.

The draft model is unrolled for a few steps. Each step appends the keys of its own predictions: the first q_len keys are
attended causally, and of each further block of q_len keys a query sees its own position only. Keys are thus a multiple
of the queries, and sequences in a batch have lengths of their own. Written out, that mask is a table of q_len × kv_len;
as a mask_mod it is seven lines, and tiles without a diagonal in them are never computed.

    python examples/eagle3/eagle3.py                 the check, then time and memory beside PyTorch's own attention
    python examples/eagle3/eagle3.py --length 256 --steps 2 --check-only
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from flashlift.torch import flex_attention
from torch.nn.attention.flex_attention import create_block_mask, or_masks
from torch.nn.attention.flex_attention import flex_attention as torch_flex_attention


def eagle3_mask(lengths: torch.Tensor, q_len: int):
    def first_step(b, h, q, kv):
        return (q >= kv) & (q < lengths[b]) & (kv < lengths[b])

    def later_steps(b, h, q, kv):
        return (kv >= q_len) & (kv % q_len < lengths[b]) & ((kv - q) % q_len == 0)

    return or_masks(first_step, later_steps)


def inputs(options):
    torch.manual_seed(0)
    shape = options.batch, options.heads, options.length, options.depth
    q = torch.randn(shape)
    k, v = torch.randn(2, shape[0], shape[1], options.length * (1 + options.steps), options.depth)
    lengths = torch.linspace(options.length * 0.6, options.length, options.batch).long()
    return [one.requires_grad_() for one in (q, k, v)], lengths


def materialised(options, lengths):
    """The same mask as a table of bools."""
    mask = eagle3_mask(lengths, options.length)
    b = torch.arange(options.batch)[:, None, None]
    q = torch.arange(options.length)[:, None]
    return mask(b, None, q, torch.arange(options.length * (1 + options.steps)))[:, None]


def attention(contender, options, lengths):
    """A function of q, k and v that makes the mask itself: lengths differ in each training step."""
    kv_len = options.length * (1 + options.steps)
    if contender == "flashlift":
        return lambda *qkv: flex_attention(*qkv, mask_mod=eagle3_mask(lengths, options.length))
    if contender == "torch sdpa":
        sdpa = torch.nn.functional.scaled_dot_product_attention
        return lambda *qkv: sdpa(*qkv, attn_mask=materialised(options, lengths)).nan_to_num()
    compiled = torch.compile(torch_flex_attention)

    def flex(*qkv):
        mask = create_block_mask(
            eagle3_mask(lengths, options.length), options.batch, None, options.length, kv_len, "cpu"
        )
        return compiled(*qkv, block_mask=mask)

    return flex


def check(options):
    """Compares outputs and gradients with the materialised mask in float64. Queries beyond their sequence see nothing,
    and after the first step only their own diagonal, so that only queries that belong to a sequence are compared."""
    qkv, lengths = inputs(options)
    kept = (torch.arange(options.length) < lengths[:, None])[:, None, :, None]
    cotangent = torch.randn(qkv[0].shape) * kept
    ours = attention("flashlift", options, lengths)(*qkv)
    gradients = torch.autograd.grad((ours * cotangent).sum(), qkv)
    doubled = [one.detach().double().requires_grad_() for one in qkv]
    scores = doubled[0] @ doubled[1].mT / options.depth**0.5
    scores = torch.where(materialised(options, lengths) | ~kept, scores, float("-inf"))
    truth = torch.softmax(scores, -1) @ doubled[2]
    expected = torch.autograd.grad((truth * cotangent).sum(), doubled)
    torch.testing.assert_close((ours * kept).double(), truth * kept, atol=1e-5, rtol=1e-4)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-4)
    print("outputs and the gradients of q, k and v agree with the materialised mask in float64")


def peak_mib():
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def measure(contender, options):
    """The milliseconds of forward and backward, and the largest growth of the process in MiB, in a new process."""
    qkv, lengths = inputs(options)
    attend = attention(contender, options, lengths)
    backward = contender != "torch flex"  # which has none on a CPU
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = peak_mib()
    times = {"forward": [], "backward": []}
    for _ in range(options.repeats + 1):
        with torch.set_grad_enabled(backward):
            start = time.perf_counter()
            out = attend(*(qkv if backward else [one.detach() for one in qkv]))
            times["forward"].append(time.perf_counter() - start)
        if backward:
            start = time.perf_counter()
            torch.autograd.grad(out.sum(), qkv)
            times["backward"].append(time.perf_counter() - start)
    grown = peak_mib() - before
    result = {name: min(found[1:]) * 1e3 if found else None for name, found in times.items()}
    print(json.dumps({"contender": contender, **result, "mib": grown, "first": times["forward"][0] * 1e3}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("batch", 2), ("heads", 4), ("length", 1024), ("steps", 3), ("depth", 64), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        return measure(options.contender, options)
    check(options)
    if options.check_only:
        return None
    print(f"{'':12} {'first call':>12} {'forward':>12} {'backward':>12} {'memory':>12}")
    for contender in ("flashlift", "torch sdpa", "torch flex"):
        command = [sys.executable, __file__, *sys.argv[1:], "--contender", contender]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        backward = f"{row['backward']:9.1f} ms" if row["backward"] else "none"
        times = f"{row['first']:9.1f} ms {row['forward']:9.1f} ms {backward:>12}"
        print(f"{contender:12} {times} {row['mib']:8.0f} MiB")
    return None


if __name__ == "__main__":
    main()
