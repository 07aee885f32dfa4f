"""Compares Flashlift with other libraries on this machine's CPU: speed and temporary memory, all in one process.

`make bench`, or `python benchmarks/bench.py [--json] [--seconds S] [--only WORD] [--output FILE.md] [--record MACHINE]
[--plot FILE.svg]`.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import contenders
import flashlift
import golden
import hardware
import jax
import memory
import numpy as np
import recorded
import torch
from contenders import Case, Contender

BUILD = Path(__file__).resolve().parents[1] / "build"
LEAST_ROUNDS, MOST_ROUNDS = 4, 40

SHAPES = [(8, 1024, 64, 0), (8, 4096, 64, 0), (16, 2048, 128, 0), (32, 2048, 128, 8)]
PLAIN = [
    Case(heads, length, depth, dtype, kv_heads, mod)
    for dtype in ("f32", "bf16")
    for heads, length, depth, kv_heads in SHAPES
    for mod in ("full", "causal")
]
MODS = [
    Case(8, 1024, 64, dtype, mod=mod)
    for dtype in ("f32", "bf16")
    for mod in ("causal", "ALiBi", "softcap 30", "window 256", "4 documents")
]
BACKWARD = [
    Case(heads, length, depth, dtype, mod=mod, backward=True)
    for dtype in ("f32", "bf16")
    for heads, length, depth, _ in SHAPES[1:3]
    for mod in ("full", "causal")
]
DECODE = [Case(32, 16384, 128, dtype, 8, queries=1) for dtype in ("f32", "bf16")]


@dataclass(frozen=True)
class Row:
    case: str
    problem: str
    contender: str
    ms: float
    gflops: float
    key_value_gbs: float
    """Bytes of keys and values over the time."""
    temporary_bytes: int
    prepare_ms: float
    wrong: list[str]
    """What the judge says against the result (benchmarks/golden.py)."""


def main() -> int:
    options = parse_arguments("bench.md")
    limits = hardware.measure(BUILD)
    note(f"{limits}\n")
    verdict = golden.Verdict()
    plain, mods, decode, backward = (
        run_all([case for case in cases if options.only in case.name], make, limits, options, verdict)
        for cases, make in (
            (PLAIN, plain_contenders),
            (MODS, mod_contenders),
            (DECODE, decode_contenders),
            (BACKWARD, backward_contenders),
        )
    )
    text = "\n".join(
        [
            f"{limits}.",
            f"flashlift {flashlift.__version__}, torch {torch.__version__}, jax {jax.__version__}.",
            "Medians of runs taken in turns in one process. Speeds in GFLOP/s, of the scores that are kept; × is",
            "Flashlift's speed over the peer's. Memory is what a call needs besides inputs and outputs: what the",
            "library plans, or by how much the process grows, whichever is more. Preparing is compiling, building",
            "masks and the first call. Every result was judged beside float64 first. The last two columns have one",
            "number for each contender, in order.",
            "",
            "Written by `make bench`.",
            "",
            "### Plain attention",
            "",
            *table(plain, ["XLA:CPU, fused", "torch SDPA", "XLA:CPU"]),
            "",
            "### Masks and score modifications",
            "",
            *table(mods, ["flex_attention"]),
            "",
            "### One query: GB/s of keys and values",
            "",
            *table(decode, ["torch SDPA"], "key_value_gbs"),
            "",
            "### Backward: five products a score",
            "",
            *table(backward, ["torch SDPA"]),
        ]
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text + "\n")
    if options.json:
        rows = [asdict(row) for row in plain + mods + decode + backward]
        print(json.dumps({"hardware": asdict(limits), "rows": rows}, indent=1))
    else:
        print(f"\n{text}\n\nAlso in {options.output}.")
    record(options, limits, {"forward": plain, "mods": mods, "decode": decode, "backward": backward})
    return verdict.exit_code()


TITLES = {
    "forward": ("Forward pass", "GFLOP/s"),
    "mods": ("Masks and score functions", "GFLOP/s"),
    "decode": ("One query", "GB/s of keys and values"),
    "backward": ("Backward pass, five products a score", "GFLOP/s"),
}


def record(options: argparse.Namespace, limits: hardware.Limits, parts: dict[str, list[Row]]) -> None:
    """Does what --record and --plot request."""
    run = recorded.Run()
    for name, rows in parts.items():
        for case, found in by_case(rows).items():
            speeds = {one: row.key_value_gbs if name.endswith("decode") else row.gflops for one, row in found.items()}
            run.table(name, *TITLES[name.removeprefix("peers-")]).add(
                case, "", {one: round(speed, 1) for one, speed in speeds.items()}
            )
    run.finish(options, {"torch": torch.__version__, "jax": jax.__version__}, str(limits))


def by_case(rows: list[Row]) -> dict[str, dict[str, Row]]:
    """The rows by case and contender."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.case, {})[row.contender] = row
    return found


def parse_arguments(output: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to run each contender of a case [2]")
    parser.add_argument("--only", default="", metavar="WORD", help='only cases whose name holds WORD, such as "bf16"')
    parser.add_argument("--output", type=Path, default=BUILD / output, help=f"where the tables go [build/{output}]")
    recorded.add_options(parser)
    return parser.parse_args()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def plain_contenders(case: Case, inputs: contenders.Inputs, threads: int) -> list[Contender]:
    found = [contenders.with_flashlift(case, inputs, threads), contenders.with_torch(case, inputs)]
    if case.dtype == "f32":  # XLA:CPU has no bf16 matrix product of its own: it converts, ten times slower
        found += contenders.with_xla(case, inputs, threads)
    return found


def mod_contenders(case: Case, inputs: contenders.Inputs, threads: int) -> list[Contender]:
    return [contenders.with_flashlift(case, inputs, threads), contenders.with_flex(case, inputs)]


def decode_contenders(case: Case, inputs: contenders.Inputs, threads: int) -> list[Contender]:
    return [contenders.with_flashlift(case, inputs, threads), contenders.with_torch(case, inputs)]


def backward_contenders(case: Case, inputs: contenders.Inputs, threads: int) -> list[Contender]:
    return [contenders.with_flashlift_backward(case, inputs, threads), contenders.with_torch_backward(case, inputs)]


def run_all(
    cases: list[Case], make: object, limits: hardware.Limits, options: argparse.Namespace, verdict: golden.Verdict
) -> list[Row]:
    rows = []
    for case in cases:
        note(case.name)
        inputs = contenders.Inputs(case)
        references = inputs.reference(case)
        group = make(case, inputs, limits.threads)
        times = measure(group, options.seconds)
        for one, seconds in zip(group, times, strict=True):
            rows.append(
                Row(
                    case.name,
                    case.problem,
                    one.name,
                    1e3 * seconds,
                    1e-9 * case.flops / seconds,
                    1e-9 * case.key_value_bytes / seconds,
                    max(one.planned_bytes, memory.growth(one.run) - one.result_bytes),
                    1e3 * one.prepare_seconds,
                    golden.complaints({one.name: one.results()}, references),
                )
            )
            verdict.add(rows[-1].wrong)
            row = rows[-1]
            cost = f"{in_mib(row.temporary_bytes)} MiB; prepared in {row.prepare_ms:.0f} ms"
            note(f"  {one.name:16} {row.ms:9.2f} ms {row.gflops:6.0f} GFLOP/s {cost}")
    return rows


def measure(group: list[Contender], seconds: float) -> list[float]:
    """Median seconds of each, measured in turns so that changes of the machine's speed affect all.

    The order changes in each round: what runs right after XLA has returned a gigabyte to the system is slower.
    """
    samples: list[list[float]] = [[] for _ in group]
    order = np.random.default_rng(1)
    for one in group:
        one.run()
    begin = time.perf_counter()
    while len(samples[0]) < LEAST_ROUNDS or (
        time.perf_counter() - begin < seconds * len(group) and len(samples[0]) < MOST_ROUNDS
    ):
        for i in order.permutation(len(group)):
            time.sleep(0.01)  # lets the previous one's threads go to sleep instead of spinning beside this one's
            start = time.perf_counter()
            group[i].run()
            samples[i].append(time.perf_counter() - start)
    return [float(np.median(times)) for times in samples]


def in_mib(count: int) -> str:
    return f"{count / 2**20:.1f}"


def table(rows: list[Row], peers: list[str], speed: str = "gflops") -> list[str]:
    header = ["", "Flashlift", *(part for peer in peers for part in (peer, "×")), "memory, MiB", "prepared in, ms"]
    lines = [as_line(header), as_line(["---"] * len(header))]
    for name, found in by_case(rows).items():
        ours = found["Flashlift"]
        theirs = [found.get(peer) for peer in peers]
        cells = [name, f"{getattr(ours, speed):.0f}"]
        for row in theirs:
            cells += [f"{getattr(row, speed):.0f}", f"{row.ms / ours.ms:.2f}"] if row else ["", ""]
        cells.append(" · ".join(in_mib(row.temporary_bytes) if row else "–" for row in [ours, *theirs]))
        cells.append(" · ".join(f"{row.prepare_ms:.0f}" if row else "–" for row in [ours, *theirs]))
        lines.append(as_line(cells))
    return lines


def as_line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
