"""Compares Flashlift's forward kernel on a GPU with other libraries, in one process.

    python benchmarks/gpu/forward.py [--suite plain|mods|decode|overhead|first-calls|all] [--quick] [--json FILE]
        [--cases NAME,...] [--implementation NAME] [--record MACHINE] [--plot FILE.svg]

--cases measures those alone whose names hold one of these, such as `D64,S1024 causal`. --implementation cuda_sm80
measures the portable kernels, which every GPU but Hopper runs, beside FlashAttention-2, which is made of the same
instructions. Peers: cuDNN and FlashAttention-2 through torch, FlashAttention-4 and FlexAttention's FLASH backend
where flash-attn-4 is installed, FlexAttention with its Triton backend. Every kernel's output is judged first
(benchmarks/golden.py; of large ones, some rows): one that is wrong is named, and the exit code is 1. Kernels are timed
in turns, in another order in each round, and then each of them alone for a second, when a limit of power slows it down;
a figure is a median, of the way in which Flashlift compares worse with its best peer. Inputs are random: zeros draw
less power and run faster. TFLOP/s count the products of the score plane (half of it for causal); for other masks, those
of the 128 x 128 blocks that hold a kept score, as FlexAttention's block mask has them.
"""

import argparse
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import flashlift
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

sys.path.append(str(Path(__file__).resolve().parents[1]))
import golden
import recorded

try:
    from flash_attn.cute.interface import flash_attn_func
except ImportError as error:
    flash_attn_func = None
    print(f"without FlashAttention-4: {error}", file=sys.stderr)

BLOCK = 128
IMPLEMENTATION = None  # Flashlift's own choice, or a name
CASES = ()  # all, or parts of the names of those to measure
UNITS = {"tflops": "TFLOP/s", "gbytes": "GB/s of keys and values"}


def in_turns(contenders, rounds):
    """All names and values of a dictionary in each round. Each round has an order of its own, because a GPU whose power
    is limited is faster behind a kernel that drew little of it."""
    order = random.Random(0)
    for _ in range(rounds):
        yield from order.sample(list(contenders.items()), len(contenders))


def turns_ms(kernels, rounds):
    """Median milliseconds of each kernel: two launches between events, after one that loads its instructions into the
    caches."""
    for run in kernels.values():
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    events = {name: [] for name in kernels}
    for name, run in in_turns(kernels, rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        run()
        begin.record()
        run()
        run()
        end.record()
        events[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: statistics.median(b.elapsed_time(e) / 2 for b, e in pairs) for name, pairs in events.items()}


def alone_ms(run, ms, seconds=1.0):
    """Median milliseconds of a kernel that runs alone for a second, without the first third of it. ms: about as long as
    it takes."""
    count = max(8, math.ceil(seconds * 1e3 / ms))
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    group = max(1, count // 100)  # events between short kernels would take time of their own
    for _ in range(0, count, group):
        for _ in range(group):
            run()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
    torch.cuda.synchronize()
    laps = [begin.elapsed_time(end) / group for begin, end in itertools.pairwise(events)]
    return statistics.median(laps[len(laps) // 3 :])


def compared_ms(kernels, rounds):
    """Median milliseconds of each kernel in turns and alone, and which of the two is claimed: the one in which
    Flashlift compares worse with its best peer."""
    turns = turns_ms(kernels, rounds)
    alone = {name: alone_ms(run, turns[name]) for name, run in kernels.items()}

    def to_best_peer(times):
        return times["flashlift"] / min(
            (ms for name, ms in times.items() if not name.startswith("flashlift")), default=1
        )

    claimed = alone if to_best_peer(alone) >= to_best_peer(turns) else turns
    return {"turns": turns, "alone": alone}, claimed


def inputs(b, hq, hkv, sq, skv, d, dv, dtype=torch.bfloat16):
    shapes = ((b, hq, sq, d), (b, hkv, skv, d), (b, hkv, skv, dv))
    return [torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes]


def bind(text, q, k, v, captures=()):
    attention = flashlift.compile(text, device="cuda", implementation=IMPLEMENTATION)
    out = torch.full((*q.shape[:3], v.shape[3]), float("nan"), device="cuda", dtype=q.dtype)
    return attention, out, attention.bind(q, k, v, out, captures=captures)


def first_result(name, call):
    """The result of a peer, or None if it does not support this problem or is not installed completely."""
    try:
        return call()
    except Exception as error:
        print(f"  {name} is left out: {type(error).__name__}: {str(error).strip().splitlines()[-1][:120]}", flush=True)
        return None


def plain_name(s, d, dv, causal, heads, kv_heads):
    name = f"D{d}" + (f"/{dv}" if dv != d else "") + (f" GQA{heads}/{kv_heads}" if heads != kv_heads else "")
    return f"{name} S{s} {'causal' if causal else 'full'}"


def plain_case(s, d, dv, causal, heads, kv_heads):
    b = max(1, 16384 // s)
    q, k, v = inputs(b, heads, kv_heads, s, s, d, dv)
    scale = 1 / math.sqrt(d)
    text = f"attn b{b} hq{heads} hkv{kv_heads} s{s} dqk{d} dv{dv} bf16 out=bf16 scale={scale!r}" + " causal" * causal
    _, out, run = bind(text, q, k, v)
    kernels = {"flashlift": run}

    def sdpa(backend):
        def call():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)

        return call

    peers = {"cudnn": sdpa(SDPBackend.CUDNN_ATTENTION), "fa2": sdpa(SDPBackend.FLASH_ATTENTION)}
    if flash_attn_func is not None:
        rows_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]  # the layout it is made for
        peers["fa4"] = lambda: flash_attn_func(*rows_first, causal=causal)
    results = {"flashlift": {"out": out}}
    for name, call in peers.items():
        result = first_result(name, call)
        if result is not None:
            kernels[name] = call
            result = result[0] if isinstance(result, tuple) else result  # fa4's may have its lse beside it
            results[name] = {"out": result.transpose(1, 2) if name == "fa4" else result}
    run()
    mask_mod = (lambda b, h, q, kv: q >= kv) if causal else None
    wrong = complaints(results, golden.Attention(q, k, v, mask_mod=mask_mod, scale=scale))
    flops = 2 * b * heads * s * s * (d + dv) * (0.5 if causal else 1)
    return plain_name(s, d, dv, causal, heads, kv_heads), kernels, flops, wrong


def complaints(results, attention):
    """The errors in the outputs of the kernels."""
    return golden.complaints(results, {"out": golden.forward(attention)})


def mod_cases(s):
    h = 16
    slopes = torch.exp2(-8.0 * (torch.arange(h, device="cuda") + 1) / h)
    table = torch.randn(2 * s, device="cuda")
    document = torch.arange(s, device="cuda", dtype=torch.int32) // (s // 8)
    floats = torch.full((s, s), -math.inf, device="cuda").triu(1)  # -inf where kv > q

    def causal(b, h, q, kv):
        return q >= kv

    def alibi(score, b, h, q, kv):
        return score + slopes[h] * (kv - q)

    def softcap(score, b, h, q, kv):
        return 30 * torch.tanh(score / 30)

    def relative(score, b, h, q, kv):
        return score + table[q - kv + s]

    def add_mask(score, b, h, q, kv):
        return score + floats[q, kv]

    relative_text = (
        " score_mod(table: f32[?]) { %0 = sub q, kv; %1 = add %0, " + str(s) + "; %2 = load table[%1]; "
        "%3 = add score, %2; return %3 }"
    )
    floats_text = " score_mod(mask: f32[?,?]) { %0 = load mask[q, kv]; %1 = add score, %0; return %1 }"
    documents_text = " mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; %2 = eq %0, %1; %3 = le kv, q; "
    documents_text += "%4 = and %2, %3; return %4 }"
    eagle_text = f" mask_mod() {{ %0 = le kv, q; %1 = sub kv, q; %2 = rem %1, {s}; %3 = eq %2, 0; %4 = ge kv, {s}; "
    eagle_text += "%5 = and %3, %4; %6 = or %0, %5; return %6 }"
    return [  # name, words of the problem, captures, score_mod, mask_mod, kv_len
        ("none", "", (), None, None, s),
        ("causal", " causal", (), None, causal, s),
        ("alibi", " alibi", (), alibi, None, s),
        ("alibi+causal", " alibi causal", (), alibi, causal, s),
        ("softcap", " softcap=30", (), softcap, None, s),
        ("softcap+causal", " softcap=30 causal", (), softcap, causal, s),
        ("relative bias", relative_text, (table,), relative, None, s),
        ("causal as a float tensor", floats_text, (floats,), add_mask, None, s),  # rates count all blocks
        ("window 1024", " causal window=1024", (), None, lambda b, h, q, kv: (q >= kv) & (q - kv <= 1024), s),
        ("8 documents+causal", documents_text, (document,), None,
         lambda b, h, q, kv: (document[q] == document[kv]) & (q >= kv), s),
        ("prefix-LM 2048", " causal prefix=2048", (), None, lambda b, h, q, kv: (q >= kv) | (kv < 2048), s),
        ("eagle3", eagle_text, (), None, lambda b, h, q, kv: (q >= kv) | ((kv >= s) & ((kv - q) % s == 0)), 2 * s),
    ]  # fmt: skip


def mod_case(case, s):
    name, words, captures, score_mod, mask_mod, skv = case
    b, h, d = 2, 16, 128
    q, k, v = inputs(b, h, h, s, skv, d, d)
    scale = 1 / math.sqrt(d)
    text = f"attn b{b} h{h} sq{s} skv{skv} d{d} bf16 out=bf16 scale={scale!r}{words}"
    _, out, run = bind(text, q, k, v, captures)
    block_mask = create_block_mask(mask_mod, None, None, s, skv, device="cuda") if mask_mod else None
    torch._dynamo.reset()  # it gives up compiling after eight masks otherwise
    compiled = torch.compile(flex_attention, dynamic=False)
    kernels, results = {"flashlift": run}, {"flashlift": {"out": out}}
    for peer, backend in (("flex", "TRITON"), ("flex_flash", "FLASH")):
        if backend == "FLASH" and flash_attn_func is None:
            continue

        def flex(backend=backend):
            return compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, kernel_options={"BACKEND": backend})

        result = first_result(peer, flex)
        if result is not None:
            kernels[peer] = flex
            results[peer] = {"out": result}
    run()
    wrong = complaints(results, golden.Attention(q, k, v, score_mod, mask_mod, scale))
    blocks = (s // BLOCK) * (skv // BLOCK)
    if block_mask is not None:
        blocks = int(block_mask.kv_num_blocks.sum() + block_mask.full_kv_num_blocks.sum())
    return name, kernels, 4 * b * h * blocks * BLOCK * BLOCK * d, wrong


def report(rows, verdict, name, kernels, flops, wrong, rounds):
    measured, claimed = compared_ms(kernels, rounds)
    rates = {kernel: flops / ms / 1e9 for kernel, ms in claimed.items()}
    rows.append({"case": name, "wrong": wrong, "ms": measured, "tflops": rates})
    ratios = " ".join(f"{rates['flashlift'] / rate:.2f}x {peer}" for peer, rate in rates.items() if peer != "flashlift")
    for way, times in measured.items():
        figures = " ".join(f"{kernel} {flops / ms / 1e9:4.0f}" for kernel, ms in times.items())
        print(f"{name:28s} {way} {figures}" + f"   {ratios}" * (times is claimed), flush=True)
    verdict.add(wrong)


def decode_name(b, kv, page, room):
    return f"decode B{b} KV{kv}" + (f" of {room}" if room else "") + (f" pages of {page}" if page else "")


def decode_case(rows, verdict, b, kv, page, room, rounds):
    """One new token per sequence: the speed of reading K and V decides. room: for how many keys the cache, or the table
    of pages, has room, of which the first `kv` are in use; 0: all of it is."""
    hq, hkv, d = 32, 8, 128
    scale = 1 / math.sqrt(d)
    kv_bytes = 2 * b * hkv * kv * d * 2
    sets = max(1, (256 << 20) // kv_bytes)  # so many that no cache holds them
    calls, peers, tensors = [], [], []
    text = f"attn b{b} hq{hq} hkv{hkv} sq1 skv{room or kv} d{d} bf16 out=bf16 scale={scale!r}"
    words = (f" page_size={page}" if page else "") + (" key_lengths" if room else "")
    attention = flashlift.compile(text + words, device="cuda", implementation=IMPLEMENTATION)
    lengths = [torch.full((b,), kv, device="cuda", dtype=torch.int32)] if room else []
    for i in range(sets):
        q, k, v = inputs(b, hq, hkv, 1, kv, d, d)
        options = {}
        if page:
            pages = b * kv // page
            table = torch.randperm(pages, device="cuda", dtype=torch.int32).reshape(b, kv // page)
            k_pages, v_pages = (torch.empty(pages, hkv, page, d, device="cuda", dtype=q.dtype) for _ in range(2))
            for paged, tensor in ((k_pages, k), (v_pages, v)):
                paged[table.long()] = tensor.reshape(b, hkv, kv // page, page, d).transpose(1, 2)
            run_k, run_v = k_pages, v_pages
            options["page_table"] = F.pad(table, (0, (room or kv) // page - table.shape[1]), value=-1)
        elif room:
            run_k, run_v = (F.pad(x, (0, 0, 0, room - kv)) for x in (k, v))
        else:
            run_k, run_v = k, v
        out = torch.full_like(q, float("nan"))
        calls.append(attention.bind(q, run_k, run_v, out, captures=lengths, **options))

        def peer(q=q, k=k, v=v):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        peers.append(peer)
        if i == 0:
            calls[0]()
            tensors = [q, k, v, out]

    def all_of(list_of_calls):
        def run():
            for call in list_of_calls:
                call()

        return run

    kernels, results = {"flashlift": all_of(calls)}, {"flashlift": {"out": tensors.pop()}}
    try:
        results["cudnn"] = {"out": peers[0]()}
        kernels["cudnn"] = all_of(peers)
    except RuntimeError:
        pass
    wrong = complaints(results, golden.Attention(*tensors, scale=scale))
    measured, times = compared_ms(kernels, rounds)
    name = decode_name(b, kv, page, room)
    rates = {kernel: kv_bytes * sets / ms / 1e6 for kernel, ms in times.items()}
    ms = {way: {kernel: of_all / sets for kernel, of_all in one.items()} for way, one in measured.items()}
    rows.append({"case": name, "wrong": wrong, "ms": ms, "gbytes": rates})
    figures = " ".join(f"{k} {t / sets * 1e3:.1f} us {rates[k]:.0f} GB/s" for k, t in times.items())
    print(f"{name:32s} {figures}", flush=True)
    verdict.add(wrong)


def record(rows, title, arguments):
    """Does what --record and --plot request."""
    run = recorded.Run()
    for row in rows:
        for rate, unit in UNITS.items():
            if rate in row:
                problem, _, last = row["case"].rpartition(" ")
                problem, variant = (problem, last) if last in ("full", "causal") else (row["case"], "")
                values = {name: round(one) for name, one in row[rate].items()}
                run.table(f"{title.split()[0].lower()}-{rate}", f"{title}, bf16", unit).add(problem, variant, values)
    run.finish(arguments, {"torch": torch.__version__}, torch.cuda.get_device_name())


def overhead(rows):
    """The host time of a warmed-up call through ctypes (build/bin/host_call_benchmark measures it without ctypes), and
    of first calls."""
    q, k, v = inputs(1, 8, 8, 128, 128, 64, 64)
    for words in ("", " causal"):
        _, _, run = bind(f"attn h8 s128 d64 bf16 out=bf16{words}", q, k, v)
        run()
        torch.cuda.synchronize()
        laps = []
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(200):
                run()
            laps.append((time.perf_counter() - begin) / 200 * 1e6)
            torch.cuda.synchronize()
        rows.append({"case": f"host time of a warmed call{words}", "us": min(laps)})
        print(f"host time of a warmed call{words}: {min(laps):.1f} us (ctypes included)")
    # In processes of their own: the first compiles, the second finds the machine code on disk.
    with tempfile.TemporaryDirectory() as cache:
        for source in ("cold", "from disk"):
            command = [sys.executable, __file__, "--suite", "first-calls"]
            child = subprocess.run(
                command, env={**os.environ, "FLASHLIFT_CACHE_DIR": cache}, capture_output=True, text=True, check=True
            )
            for words, ms in json.loads(child.stdout.splitlines()[-1]).items():
                rows.append({"case": f"first call {source}{words}", "ms": ms})
                print(f"first call of{words}, {source}: {ms:.1f} ms")


def first_calls():
    """Milliseconds from a problem's text to its first result, if context and compiler are already loaded."""
    times = {}
    for words in (" scale=2", " softcap=17", " alibi causal", " causal window=99"):
        tensors = inputs(1, 8, 8, 128, 128, 128, 128)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        _, _, run = bind(f"attn h8 s128 d128 bf16 out=bf16{words}", *tensors)
        run()
        torch.cuda.synchronize()
        times[words] = (time.perf_counter() - begin) * 1e3
    del times[" scale=2"]  # it found out where the driver and the compiler are
    print(json.dumps(times))


def add_choices(parser):
    parser.add_argument("--implementation", help="ask for this one by name: cuda_sm80 for the portable kernels")
    parser.add_argument("--cases", metavar="NAME,...", help="only cases whose names hold one of these")


def take_choices(arguments):
    global IMPLEMENTATION, CASES
    IMPLEMENTATION = arguments.implementation
    CASES = arguments.cases.split(",") if arguments.cases else ()


def wanted(name):
    return not CASES or any(part in name for part in CASES)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="all", choices=["plain", "mods", "decode", "overhead", "first-calls", "all"])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--json", help="write all figures here")
    add_choices(parser)
    recorded.add_options(parser)
    arguments = parser.parse_args()
    take_choices(arguments)
    if arguments.suite == "first-calls":
        first_calls()
        return 0
    rows, verdict = [], golden.Verdict()
    rounds = 10 if arguments.quick else 20
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cuDNN", torch.backends.cudnn.version())
    if arguments.suite in ("plain", "all"):
        dims = [(128, 128, 16, 16), (64, 64, 32, 32), (256, 256, 8, 8)]
        if not arguments.quick:
            dims += [(96, 96, 16, 16), (192, 192, 16, 16), (192, 128, 16, 16), (128, 128, 32, 8)]
        for d, dv, heads, kv_heads in dims:
            for causal in (False, True):
                for s in (1024, 4096, 16384):
                    case = (s, d, dv, causal, heads, kv_heads)
                    if wanted(plain_name(*case)):
                        report(rows, verdict, *plain_case(*case), rounds)
    if arguments.suite in ("mods", "all"):
        s = 8192
        for case in mod_cases(s):
            if wanted(case[0]):
                report(rows, verdict, *mod_case(case, s), rounds)
    if arguments.suite in ("decode", "all"):
        whole = [(1, 8192, 0), (16, 8192, 0), (1, 131072, 0), (16, 32768, 0), (64, 4096, 0)]
        for b, kv, room in [*whole, (1, 3072, 131072), (8, 3072, 131072)]:
            for page in (0, 16):
                if wanted(decode_name(b, kv, page, room)):
                    decode_case(rows, verdict, b, kv, page, room, rounds)
    if arguments.suite in ("overhead", "all"):
        overhead(rows)
    if not rows:
        sys.exit(f"no case of suite {arguments.suite} is named by --cases {arguments.cases}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(
                {"device": torch.cuda.get_device_name(), "command": " ".join(sys.argv), "rows": rows}, file, indent=1
            )
    record(rows, "Forward pass", arguments)
    return verdict.exit_code()


if __name__ == "__main__":
    sys.exit(main())
