"""Compares a GPT's training step on a GPU with Flashlift's attention and with other libraries', in one process.

    python benchmarks/gpu/training.py [--suite causal|documents|softcap|all] [--heads N] [--depth N] [--length N]
        [--layers N] [--json FILE] [--record MACHINE] [--plot FILE.svg]

Forward and backward pass of layers in bf16 under torch.compile. Peers: FlexAttention's Triton backend, cuDNN where the
mask is causal and nothing else, and a step without attention. The gradient of the first layer's weights is judged
first, by that of attention in float32: one whose error is more than twice a peer's is named, and the exit code is 1.
Rounds go through all, each in another order; a figure is the median: "launched", from Python, and "graph", replayed
from a CUDA graph, which leaves out what the host needs for its launches.
"""

import argparse
import json
import statistics
import sys
import time

import flashlift.torch
import torch
import torch.nn as nn
import torch.nn.functional as F
from forward import first_result, golden, in_turns, recorded
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DOCUMENTS = 8
ROUNDS = 15
MORE_THAN_A_PEER = 2.0  # times its error: the rest of the model rounds, too


def mods(mask, length):
    document = torch.arange(length, device="cuda", dtype=torch.int32) // (length // DOCUMENTS)

    def causal(b, h, q, kv):
        return q >= kv

    def documents(b, h, q, kv):
        return (q >= kv) & (document[q] == document[kv])

    def softcap(score, b, h, q, kv):
        return 30 * torch.tanh(score / 30)

    return softcap if mask == "softcap" else None, documents if mask == "documents" else causal


def in_float32(q, k, v, score_mod, mask_mod):
    """Unfused attention, for as many queries at a time as keep the scores small enough for memory."""
    at = torch.arange(q.shape[2], device=q.device)
    parts = []
    for rows in at.split(1024):
        scores = q[:, :, rows].float() @ k.float().transpose(2, 3) * q.shape[3] ** -0.5
        if score_mod is not None:
            scores = score_mod(scores, 0, 0, rows[:, None], at[None])
        scores = scores.masked_fill(~mask_mod(0, 0, rows[:, None], at[None]), float("-inf"))
        parts.append((torch.softmax(scores, -1) @ v.float()).to(q.dtype))
    return torch.cat(parts, 2)


def contenders(mask, length):
    score_mod, mask_mod = mods(mask, length)
    block_mask = create_block_mask(mask_mod, None, None, length, length, device="cuda")

    def cudnn(q, k, v):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def ours(deterministic):
        return lambda q, k, v: flashlift.torch.flex_attention(
            q, k, v, score_mod=score_mod, mask_mod=mask_mod, deterministic=deterministic
        )

    found = {
        "flashlift": ours(True),
        "flashlift_nondeterministic": ours(False),
        "flex": lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask),
    }
    if mask == "causal":
        found["cudnn"] = cudnn
    found["none"] = lambda q, k, v: v + 0 * q + 0 * k
    return found, lambda q, k, v: in_float32(q, k, v, score_mod, mask_mod)


class Block(nn.Module):
    def __init__(self, heads, depth):
        super().__init__()
        width = heads * depth
        self.split = heads, depth
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, attend):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, *self.split).permute(2, 0, 3, 1, 4)
        x = x + self.out(attend(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Step:
    """A training step of a model whose weights equal those of every other contender: it computes the loss's
    gradients."""

    def __init__(self, arguments, x, attend, compiles=True):
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(Block(arguments.heads, arguments.depth) for _ in range(arguments.layers))
        self.blocks.cuda().bfloat16()

        def loss(x):
            for block in self.blocks:
                x = block(x, attend)
            return x.float().square().mean()

        # Code of its own for each step: compiled graphs of one code are found by trying each one's guards.
        loss.__code__ = loss.__code__.replace()
        self.loss = torch.compile(loss, fullgraph=True) if compiles else loss
        self.x = x

    def __call__(self):
        self.blocks.zero_grad(set_to_none=True)
        self.loss(self.x).backward()

    def gradient(self):
        return self.blocks[0].qkv.weight.grad.float()

    def graph(self):
        """A CUDA graph of the step's launches."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self()
        torch.cuda.current_stream().wait_stream(stream)
        self.blocks.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.loss(self.x).backward()
        return graph.replay


def milliseconds(calls):
    times = {name: [] for name in calls}
    for name, call in in_turns(calls, ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times[name].append((time.perf_counter() - begin) * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def measure(mask, arguments, rows, verdict):
    x = torch.randn(1, arguments.length, arguments.heads * arguments.depth, device="cuda", dtype=torch.bfloat16)
    torch._dynamo.reset()
    attends, reference = contenders(mask, arguments.length)
    exact = Step(arguments, x, reference, compiles=False)
    exact()
    want = exact.gradient()
    del exact
    steps, errors, first = {}, {}, {}
    for name, attend in attends.items():
        begin = time.perf_counter()
        step = Step(arguments, x, attend)
        if first_result(name, lambda step=step: step() or True) is None:
            continue
        torch.cuda.synchronize()
        first[name] = time.perf_counter() - begin
        print(f"{mask:10s} {name:10s} first {first[name]:4.1f} s", flush=True)
        steps[name] = step
        if name != "none":
            errors[name] = float((step.gradient() - want).norm() / want.norm())
    least = min(errors.values())
    wrong = [
        f"WRONG: {name}: the gradient's error is {error:.1e}, that of a peer {least:.1e}"
        for name, error in errors.items()
        if not error <= MORE_THAN_A_PEER * least
    ]
    launched = milliseconds(steps)
    graphs = {name: first_result(f"{name}'s graph", step.graph) for name, step in steps.items()}
    replayed = milliseconds({name: graph for name, graph in graphs.items() if graph is not None})
    for name in steps:
        graph = f"graph {replayed[name]:6.2f}" if name in replayed else "no graph"
        error = f"error {errors[name]:.1e}" if name in errors else ""
        print(f"{mask:10s} {name:10s} launched {launched[name]:6.2f} {graph} ms {error}", flush=True)
    rows.append(
        {"case": mask, "wrong": wrong, "launched": launched, "graph": replayed, "first": first, "errors": errors}
    )
    verdict.add(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="all", choices=["causal", "documents", "softcap", "all"])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--depth", type=int, default=128)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--json", help="write all figures here")
    recorded.add_options(parser)
    arguments = parser.parse_args()
    rows, verdict = [], golden.Verdict()
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for mask in ("causal", "documents", "softcap") if arguments.suite == "all" else (arguments.suite,):
        measure(mask, arguments, rows, verdict)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)
    run = recorded.Run()
    name = f"GPT of {arguments.layers} layers, {arguments.heads} heads of D{arguments.depth}, S{arguments.length}, bf16"
    for row in rows:
        for how in ("launched", "graph"):
            values = {one: round(ms, 2) for one, ms in row[how].items()}
            run.table("training", f"Training step, {name}", "ms", "lower").add(row["case"], how, values)
    run.finish(arguments, {"torch": torch.__version__}, torch.cuda.get_device_name())
    return verdict.exit_code()


if __name__ == "__main__":
    sys.exit(main())
