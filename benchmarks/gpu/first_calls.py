"""Measures first calls on a GPU, each in a process of its own, and compares them with FlexAttention's Triton backend.

    python benchmarks/gpu/first_calls.py [--cores 2,16] [--front-ends torch,c,jax,flex] [--cases plain,causal,mod]
        [--quick] [--json FILE] [--record MACHINE] [--plot FILE.svg]

For each front end, case and number of cores: a process with empty caches, then one that finds them full. Measured is
from the inputs on the device to the first result, and to the first gradients. CUDA's context and the front end's
modules are there already, and FlexAttention's block mask, which imports TorchDynamo; compilers of the libraries that
are measured are not. `c` is flashlift.compile, which is the C interface and nothing else. Who is missing is named, with
the reason.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorded

CASES = {"plain": "", "causal": "causal", "mod": "causal softcap=17"}
SHAPE = 1, 8, 1024, 128  # batch, heads, length, depth
MODULES = {
    "torch": ["torch", "flashlift.torch"],
    "flex": ["torch", "torch.nn.attention.flex_attention"],
    "c": ["torch", "flashlift"],
    "jax": ["jax", "flashlift.jax"],
}


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def softcap(score, b, h, q_idx, kv_idx):
    import torch

    return 17 * torch.tanh(score / 17)


def by_torch(attend, **options):
    """(forward, backward) of a flex_attention."""
    import torch

    q, k, v = (torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    found = []

    def forward():
        found[:] = [attend(q, k, v, **options)]
        torch.cuda.synchronize()

    def backward():
        torch.autograd.grad(found[0].sum(), (q, k, v))
        torch.cuda.synchronize()

    return forward, backward


def of_torch(case):
    from flashlift.torch import flex_attention

    mods = {"score_mod": softcap if case == "mod" else None, "mask_mod": None if case == "plain" else causal}
    return by_torch(flex_attention, **mods)


def of_flex(case):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = None if case == "plain" else create_block_mask(causal, None, None, SHAPE[2], SHAPE[2], device="cuda")
    return by_torch(torch.compile(flex_attention), score_mod=softcap if case == "mod" else None, block_mask=mask)


def of_c(case):
    import flashlift
    import torch

    batch, heads, length, depth = SHAPE
    q, k, v, out, d_out, *gradients = (torch.randn(SHAPE, device="cuda", dtype=torch.bfloat16) for _ in range(8))
    residual = torch.empty(SHAPE, device="cuda", dtype=torch.int8)
    lse = torch.empty(SHAPE[:3], device="cuda")
    words = f"attn b{batch} h{heads} s{length} d{depth} bf16 out=bf16 lse residual {CASES[case]}"
    found = []

    def forward():
        found[:] = [flashlift.compile(words, device="cuda")]
        found[0].bind(q, k, v, out, lse=lse, residual=residual)()
        torch.cuda.synchronize()

    def backward():
        d_q, d_k, d_v = gradients
        bound = found[0].bind_backward(q, k, v, out, d_out, lse=lse, residual=residual, d_q=d_q, d_k=d_k, d_v=d_v)
        bound()
        torch.cuda.synchronize()

    return forward, backward


def of_jax(case):
    import jax
    import jax.numpy as jnp
    from flashlift.jax import flash_attention

    batch, heads, length, depth = SHAPE
    keys = jax.random.split(jax.random.key(0), 3)
    tensors = [jax.random.normal(key, (batch, length, heads, depth), jnp.bfloat16) for key in keys]
    jax.block_until_ready(tensors)
    options = {"causal": case != "plain"} | ({"logits_soft_cap": 17.0} if case == "mod" else {})

    def attend(*given):
        return flash_attention(*given, **options)

    def forward():
        jax.block_until_ready(jax.jit(attend)(*tensors))

    def backward():
        def loss(*given):
            return attend(*given).astype(jnp.float32).sum()

        jax.block_until_ready(jax.jit(jax.grad(loss, (0, 1, 2)))(*tensors))

    return forward, backward


def measure(front_end, case, cores):
    """The milliseconds to the first result, to the second, and to the first gradients, in a new process."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    for module in MODULES[front_end]:
        importlib.import_module(module)
    if front_end != "jax":
        import torch

        torch.cuda.synchronize()
        torch.randn(256, 256, device="cuda", dtype=torch.bfloat16).matmul(torch.eye(256, device="cuda").bfloat16())
        torch.cuda.synchronize()
    forward, backward = globals()[f"of_{front_end}"](case)
    times = {}
    for name, call in (("first", forward), ("second", forward), ("gradients", backward)):
        begin = time.perf_counter()
        call()
        times[name] = (time.perf_counter() - begin) * 1e3
    print(json.dumps(times))


def child(front_end, case, cores, caches):
    # And NVRTC has a cache of its own, in the home folder.
    folders = {name: str(caches) for name in ("HOME", "XDG_CACHE_HOME")}
    for name in ("FLASHLIFT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
        folders[name] = str(caches / name.lower())
    command = [sys.executable, __file__, "--child", front_end, case, str(cores)]
    done = subprocess.run(command, env=os.environ | folders, capture_output=True, text=True)
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", default="2,16")
    parser.add_argument("--front-ends", default="c,torch,jax,flex")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--quick", action="store_true", help="the mod alone")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    recorded.add_options(parser)
    arguments = parser.parse_args()
    if arguments.child:
        front_end, case, cores = arguments.child
        measure(front_end, case, int(cores))
        return
    rows = []
    print(
        f"{'':20} {'cores':>5}   {'empty caches: first · gradients':>32}   {'full caches: first · gradients':>32}  ms"
    )
    for front_end in arguments.front_ends.split(","):
        for case in ["mod"] if arguments.quick else arguments.cases.split(","):
            for cores in map(int, arguments.cores.split(",")):
                if cores > len(os.sched_getaffinity(0)):
                    print(f"{front_end} {case}: this machine has fewer than {cores} cores")
                    continue
                with tempfile.TemporaryDirectory() as caches:
                    found = [child(front_end, case, cores, Path(caches)) for _ in ("empty", "full")]
                missing = [one for one in found if isinstance(one, str)]
                if missing:
                    print(f"{front_end} {case}: {missing[0]}", flush=True)
                    continue
                empty, full = found
                rows.append({"front end": front_end, "case": case, "cores": cores, "empty": empty, "full": full})
                columns = (f"{one['first']:.0f} · {one['gradients']:.0f}" for one in found)
                print(
                    f"{front_end:12} {case:7} {cores:>5}   " + "   ".join(f"{one:>32}" for one in columns), flush=True
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    if rows:
        record(rows, arguments)


def record(rows, arguments):
    import torch

    run = recorded.Run()
    for row in rows:
        for caches in ("empty", "full"):
            table = run.table(f"first-calls-{caches}", f"First calls, {caches} caches", "ms", better="lower")
            for name, what in (("first", "forward"), ("gradients", "gradients")):
                problem = f"{row['case']}, {row['cores']} cores"
                table.add(problem, what, {row["front end"]: round(row[caches][name])})
    run.finish(arguments, {"torch": torch.__version__}, torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
