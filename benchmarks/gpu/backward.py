"""Compares Flashlift's backward pass on a GPU with other libraries, in one process.

    python benchmarks/gpu/backward.py [--suite plain|mods|all] [--quick] [--json FILE]
        [--cases NAME,...] [--implementation NAME] [--record MACHINE] [--plot FILE.svg]

Peers: cuDNN and FlashAttention-2 through torch's autograd, FlexAttention with its Triton backend. Every kernel's
gradients are judged first (benchmarks/golden.py): one that is wrong is named, and the exit code is 1. Rounds go through
all in turn; a figure is the median. TFLOP/s count five products of the score plane (half of it for causal; otherwise of
the 128 x 128 blocks that hold a kept score), whatever a kernel computes.
"""

import argparse
import json
import math
import sys

import flashlift
import forward
import torch
import torch.nn.functional as F
from forward import (
    BLOCK,
    first_result,
    golden,
    inputs,
    mod_cases,
    plain_name,
    record,
    recorded,
    report,
    wanted,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def bind(text, q, k, v, captures=()):
    """The gradients of sum(out * d_out), and the call that writes them."""
    # As the PyTorch front end does.
    attention = flashlift.compile(text + " lse residual", device="cuda", implementation=forward.IMPLEMENTATION)
    out = torch.empty((*q.shape[:3], v.shape[3]), device="cuda", dtype=q.dtype)
    residual = torch.empty_like(out)
    lse = torch.empty(q.shape[:3], device="cuda", dtype=torch.float32)
    attention.bind(q, k, v, out, captures=captures, lse=lse, residual=residual)()
    d_out = torch.randn_like(out)
    gradients = [torch.full_like(x, float("nan")) for x in (q, k, v)]
    d_q, d_k, d_v = gradients
    run = attention.bind_backward(
        q, k, v, out, d_out, captures=captures, lse=lse, residual=residual, d_q=d_q, d_k=d_k, d_v=d_v
    )
    return gradients, d_out, run


def by_autograd(call, tensors, d_out):
    """The backward pass alone of the function `call`."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = call(*leaves)
    return lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True)


def compare(gradients, run, peers, attention, d_out):
    """The kernels to be measured, and the errors in their gradients."""
    names = ("d_q", "d_k", "d_v")
    kernels, results = {"flashlift": run}, {"flashlift": dict(zip(names, gradients, strict=True))}
    run()
    for name, make in peers.items():
        backward = first_result(name, make)
        found = None if backward is None else first_result(name, backward)
        if found is not None:
            kernels[name] = backward
            results[name] = dict(zip(names, found, strict=True))
    return kernels, golden.complaints(results, golden.backward(attention, d_out))


def plain_case(s, d, dv, causal, heads, kv_heads):
    b = max(1, 16384 // s)
    q, k, v = inputs(b, heads, kv_heads, s, s, d, dv)
    text = f"attn b{b} hq{heads} hkv{kv_heads} s{s} dqk{d} dv{dv} bf16 scale={1 / math.sqrt(d)!r}" + " causal" * causal
    gradients, d_out, run = bind(text, q, k, v)

    def sdpa(backend):
        def call(q, k, v):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)

        return lambda: by_autograd(call, (q, k, v), d_out)

    peers = {"cudnn": sdpa(SDPBackend.CUDNN_ATTENTION), "fa2": sdpa(SDPBackend.FLASH_ATTENTION)}
    mask_mod = (lambda b, h, q, kv: q >= kv) if causal else None
    attention = golden.Attention(q, k, v, mask_mod=mask_mod)
    kernels, wrong = compare(gradients, run, peers, attention, d_out)
    flops = b * heads * s * s * (6 * d + 4 * dv) * (0.5 if causal else 1)
    return plain_name(s, d, dv, causal, heads, kv_heads), kernels, flops, wrong


def mod_case(case):
    name, words, captures, score_mod, mask_mod, skv = case
    s = skv if name != "eagle3" else skv // 2
    b, h, d = 2, 16, 128
    q, k, v = inputs(b, h, h, s, skv, d, d)
    text = f"attn b{b} h{h} sq{s} skv{skv} d{d} bf16 scale={1 / math.sqrt(d)!r}{words}"
    gradients, d_out, run = bind(text, q, k, v, captures)
    block_mask = create_block_mask(mask_mod, None, None, s, skv, device="cuda") if mask_mod else None
    torch._dynamo.reset()  # it gives up compiling after eight masks otherwise
    compiled = torch.compile(flex_attention, dynamic=False)

    def flex():
        return by_autograd(
            lambda q, k, v: compiled(q, k, v, score_mod=score_mod, block_mask=block_mask), (q, k, v), d_out
        )

    attention = golden.Attention(q, k, v, score_mod, mask_mod)
    kernels, wrong = compare(gradients, run, {"flex": flex}, attention, d_out)
    blocks = (s // BLOCK) * (skv // BLOCK)
    if block_mask is not None:
        blocks = int(block_mask.kv_num_blocks.sum() + block_mask.full_kv_num_blocks.sum())
    return name, kernels, 10 * b * h * blocks * BLOCK * BLOCK * d, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="all", choices=["plain", "mods", "all"])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--json", help="write all figures here")
    forward.add_choices(parser)
    recorded.add_options(parser)
    arguments = parser.parse_args()
    forward.take_choices(arguments)
    rounds = 5 if arguments.quick else 15
    rows, verdict = [], golden.Verdict()
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    if arguments.suite in ("plain", "all"):
        for d, dv, heads, kv_heads in (
            (64, 64, 16, 16),
            (128, 128, 16, 16),
            (128, 128, 32, 8),
            (192, 128, 16, 16),
            (256, 256, 8, 8),
        ):
            for s in (4096,) if arguments.quick else (1024, 4096, 16384):
                for causal in (False, True):
                    case = (s, d, dv, causal, heads, kv_heads)
                    if wanted(plain_name(*case)):
                        report(rows, verdict, *plain_case(*case), rounds)
    if arguments.suite in ("mods", "all"):
        for case in mod_cases(8192):
            if wanted(case[0]):
                report(rows, verdict, *mod_case(case), rounds)
    if not rows:
        sys.exit(f"no case of suite {arguments.suite} is named by --cases {arguments.cases}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)
    record(rows, "Backward pass", arguments)
    return verdict.exit_code()


if __name__ == "__main__":
    sys.exit(main())
