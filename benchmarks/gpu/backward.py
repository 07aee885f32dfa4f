"""Compares Flashlift's backward pass on a GPU with other libraries, in one process.

    python benchmarks/gpu/backward.py [--suite plain|mods|captures|all] [--quick] [--json FILE]
        [--cases NAME,...] [--implementation NAME] [--record MACHINE] [--plot FILE.svg]

Peers: cuDNN and FlashAttention-2 through torch's autograd, FlashAttention-4 and FlexAttention's FLASH backend where
flash-attn-4 is installed, FlexAttention with its Triton backend. FlashAttention-4 and Flashlift run with
and without `deterministic`, which is Flashlift's default. Every kernel's gradients are judged first
(benchmarks/golden.py; of large ones, some rows of all heads): one that is wrong is named, and the exit code is 1.
They are timed in turns, in another order in each round, and then each of them alone for a second; a figure is a median,
of the way in which Flashlift compares worse with its best peer. TFLOP/s count five products of the score plane (half of
it for causal; otherwise of the 128 x 128 blocks that hold a kept score), whatever a kernel computes.

The suite `captures` adds the gradient of a tensor that the score_mod captures, through flashlift.torch and PyTorch's
flex_attention.
"""

import argparse
import json
import math
import sys

import flashlift
import flashlift.torch
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


def bind(text, q, k, v, captures=(), d_out=None):
    """The gradients of sum(out * d_out), d_out, which is drawn unless it is given, and the call that writes them."""
    # As the PyTorch front end does.
    attention = flashlift.compile(text + " lse residual", device="cuda", implementation=forward.IMPLEMENTATION)
    out = torch.empty((*q.shape[:3], v.shape[3]), device="cuda", dtype=q.dtype)
    residual = torch.empty_like(out, dtype=torch.int8)
    lse = torch.empty(q.shape[:3], device="cuda", dtype=torch.float32)
    attention.bind(q, k, v, out, captures=captures, lse=lse, residual=residual)()
    d_out = torch.randn_like(out) if d_out is None else d_out
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

    def in_any_order():
        found, _, call = bind(text + " nondeterministic", q, k, v, d_out=d_out)

        def backward():
            call()
            return found

        return backward

    def sdpa(backend):
        def call(q, k, v):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)

        return lambda: by_autograd(call, (q, k, v), d_out)

    def fa4(deterministic):
        def call(q, k, v):
            rows = (x.transpose(1, 2) for x in (q, k, v))
            out = forward.flash_attn_func(*rows, causal=causal, deterministic=deterministic)
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)  # the log-sum-exp may stand beside it

        return lambda: by_autograd(call, rows_first[:3], rows_first[3])

    peers = {"cudnn": sdpa(SDPBackend.CUDNN_ATTENTION), "fa2": sdpa(SDPBackend.FLASH_ATTENTION)}
    if forward.IMPLEMENTATION is None:
        peers["flashlift_nondeterministic"] = in_any_order
    if forward.flash_attn_func is not None:
        # Tensors [batch, heads, length, depth] that lie in memory as [batch, length, heads, depth], which it is made
        # for.
        rows_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, d_out)]
        peers |= {"fa4": fa4(False), "fa4_deterministic": fa4(True)}
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

    def flex(backend):
        def attend(q, k, v):
            return compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, kernel_options={"BACKEND": backend})

        return lambda: by_autograd(attend, (q, k, v), d_out)

    peers = {"flex": flex("TRITON")}
    if forward.flash_attn_func is not None:
        peers["flex_flash"] = flex("FLASH")
    attention = golden.Attention(q, k, v, score_mod, mask_mod)
    kernels, wrong = compare(gradients, run, peers, attention, d_out)
    blocks = (s // BLOCK) * (skv // BLOCK)
    if block_mask is not None:
        blocks = int(block_mask.kv_num_blocks.sum() + block_mask.full_kv_num_blocks.sum())
    return name, kernels, 10 * b * h * blocks * BLOCK * BLOCK * d, wrong


def capture_cases(s, h):
    """Name, shape of the captured tensor, the score_mod that reads it, and is the mask causal."""
    buckets = 32

    def bucket(distance):  # as T5's, of past keys
        return torch.clamp(distance, 0, buckets - 1)

    return [
        ("slope of a head", (h,), lambda t: lambda score, b, h, q, kv: score + t[h] * (kv - q), True),
        ("bias of a key", (s,), lambda t: lambda score, b, h, q, kv: score + t[kv], False),
        ("factor of a query and head", (h, s), lambda t: lambda score, b, h, q, kv: score * t[h, q], False),
        ("relative bias", (2 * s,), lambda t: lambda score, b, h, q, kv: score + t[q - kv + s], False),
        ("causal relative bias of a head", (h, s),
         lambda t: lambda score, b, h, q, kv: score + t[h, (q - kv).abs()], True),
        ("buckets of distances", (h, buckets),
         lambda t: lambda score, b, h, q, kv: score + t[h, bucket(q - kv)], True),
        ("full bias of all heads", (s, s), lambda t: lambda score, b, h, q, kv: score + t[q, kv], False),
        ("full bias of a head", (h, s, s), lambda t: lambda score, b, h, q, kv: score + t[h, q, kv], False),
        ("table by position", (64,), lambda t: lambda score, b, h, q, kv: score + t[(q * 5 + kv) % 64], False),
    ]  # fmt: skip


def capture_case(case, s):
    name, shape, mod_of, is_causal = case
    b, h, d = 2, 8, 128
    q, k, v = inputs(b, h, h, s, s, d, d)
    captured = torch.randn(shape, device="cuda") / 8
    leaf = captured.clone().requires_grad_()
    score_mod, mask_mod = mod_of(leaf), (lambda b, h, q, kv: q >= kv) if is_causal else None
    block_mask = create_block_mask(mask_mod, None, None, s, s, device="cuda") if is_causal else None
    d_out = torch.randn_like(q)
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)

    def by(attend, **options):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = attend(*leaves, score_mod=score_mod, block_mask=block_mask, **options)
        return lambda: torch.autograd.grad(out, [*leaves, leaf], d_out, retain_graph=True)

    contenders = [
        ("flashlift", lambda: by(flashlift.torch.flex_attention)),
        ("flex", lambda: by(compiled)),
        # Several of these programs need more shared memory than there is with the stages that it chooses.
        ("flex, one stage", lambda: by(compiled, kernel_options={"bwd_num_stages": 1})),
    ]
    kernels, results = {}, {}
    for contender, make in contenders:
        if contender == "flex, one stage" and "flex" in kernels:
            continue
        backward = first_result(contender, make)
        found = None if backward is None else first_result(contender, backward)
        if found is not None:
            kernels[contender] = backward
            results[contender] = dict(zip(("d_q", "d_k", "d_v", "d_captured"), found, strict=True))
    same = all(
        torch.equal(one, other)
        for one, other in zip(results["flashlift"].values(), kernels["flashlift"](), strict=True)
    )
    attention = golden.Attention(q, k, v, None, mask_mod, captured=captured, mod_of=mod_of)
    wrong = golden.complaints(results, golden.backward(attention, d_out))
    wrong += [] if same else ["WRONG: flashlift: two calls differ in their bits"]
    blocks = (s // BLOCK) ** 2 if block_mask is None else (s // BLOCK) * (s // BLOCK + 1) // 2
    return name, kernels, 10 * b * h * blocks * BLOCK * BLOCK * d, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="all", choices=["plain", "mods", "captures", "all"])
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
            (96, 96, 16, 16),
            (128, 128, 16, 16),
            (128, 128, 32, 8),
            (192, 192, 16, 16),
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
    if arguments.suite in ("captures", "all"):
        s = 2048 if arguments.quick else 8192
        for case in capture_cases(s, 8):
            if wanted(case[0]):
                report(rows, verdict, *capture_case(case, s), rounds)
    if not rows:
        sys.exit(f"no case of suite {arguments.suite} is named by --cases {arguments.cases}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)
    record(rows, "Backward pass", arguments)
    return verdict.exit_code()


if __name__ == "__main__":
    sys.exit(main())
