"""Flashlift's demo: a real sentence encoder, its attention found, proved and run as fused kernels.

make demo        or        python examples/minilm/demo.py
"""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import flashlift
import flashlift.jax
import jax
import numpy as np
from model import HEADS, LAYERS, encode, load, tokenize

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "build" / "demo" / "padding_mask.svg"

SENTENCES = [
    "A man is playing a guitar on the street corner.",
    "Someone strums an acoustic guitar outdoors.",
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun by the window.",
    "Interest rates were raised by a quarter point on Thursday, the central bank said in a statement.",
    "The central bank increased borrowing costs.",
    "Attention needs memory that grows with the square of the sequence.",
    "Softmax over all pairs of tokens is quadratic in the length of the text.",
]
WORDS = " ".join(SENTENCES).split()
# (batch, length) of the timings.
SIZES = [(1, 128), (8, 128), (1, 512), (8, 512)]
LEAST_COSINE = 0.99999
PAIRS = 4


def main() -> int:
    started = time.perf_counter()
    weights, tokenizer = load()
    count = sum(array.size for array in weights.values())
    print("Flashlift: attention lifted out of a model and run as one fused kernel\n")
    print(f"  model    all-MiniLM-L6-v2, a sentence encoder with {count / 1e6:.1f} million trained weights,")
    print(f"           written in JAX ({LAYERS} layers of {HEADS} heads), exported to StableHLO")
    print(f"  machine  {os.cpu_count()} CPU cores; jax {jax.__version__}, flashlift {flashlift.__version__}")

    ids, mask = tokenize(tokenizer, SENTENCES)
    fused = flashlift.jax.fuse(encode)
    report = show_what_was_found(fused, (weights, ids, mask))
    agree = show_embeddings(weights, fused, ids, mask)
    show_costs(weights, fused, tokenizer)
    show_picture(tokenizer)
    print(f"\nDone in {time.perf_counter() - started:.0f} s.")
    if report.fused_count != LAYERS or not agree:
        print(f"FAILED: expected {LAYERS} fused attentions and embeddings that agree", file=sys.stderr)
        return 1
    return 0


def heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m\n" if sys.stdout.isatty() else f"\n{text}\n")


def show_what_was_found(fused: flashlift.jax.FusedFunction, arguments: tuple) -> flashlift.jax.Report:
    begin = time.perf_counter()
    report = fused.analyze(*arguments)
    seconds = time.perf_counter() - begin
    heading("1. What was found")
    lines = report.original.count("\n")
    print(f"  {report.fused_count} attentions in {lines} lines of StableHLO, in {seconds:.1f} s with the export:\n")
    alike = Counter((one.fused, re.sub(r"^.*/", "", one.location), one.reason) for one in report.candidates)
    for (is_fused, place, reason), times in sorted(alike.items(), reverse=True):
        print(f"    {times} × {'fused' if is_fused else 'left alone'} at {place}: {reason}")
    first = next((one for one in report.candidates if one.fused), None)
    if first is not None:
        same = sum(one.problem == first.problem for one in report.candidates)
        how_many = "All" if same == report.fused_count else same
        print(f"\n  {how_many} of them are the same problem. Its text form, with the padding mask read off")
        print("  the model as a program over the coordinates of one score:\n")
        for line in first.problem.replace(" score_mod", "\nscore_mod").replace(" mask_mod", "\nmask_mod").split("\n"):
            print(f"    {line}")
    before, after = operations(report.original), operations(report.module)
    print(f"\n  Operations in the module: {before} before, {after} after.")
    return report


def operations(module: str) -> int:
    return len(re.findall(r"\bstablehlo\.\w+|\bchlo\.\w+", module))


def show_embeddings(weights: dict, fused: flashlift.jax.FusedFunction, ids: np.ndarray, mask: np.ndarray) -> bool:
    original = np.asarray(jax.jit(encode)(weights, ids, mask))
    ours = np.asarray(fused(weights, ids, mask))
    cosines = (unit(original) * unit(ours)).sum(-1)
    heading("2. The same embeddings")
    print("  tokens  cosine to the original")
    for sentence, tokens, cosine in zip(SENTENCES, mask.sum(-1), cosines, strict=True):
        print(f"  {tokens:6}  {cosine:.8f}  {shorten(sentence, 84)}")
    similar = np.triu(unit(ours) @ unit(ours).T, 1)
    print("\n  Closest to each other:")
    for pair in np.argsort(similar, axis=None)[: -PAIRS - 1 : -1]:
        i, j = np.unravel_index(pair, similar.shape)
        print(f"    {similar[i, j]:.2f}  {shorten(SENTENCES[i], 48):48}  {shorten(SENTENCES[j], 48)}")
    agree = bool((cosines > LEAST_COSINE).all())
    verdict = "They agree" if agree else "THEY DIFFER"
    print(f"\n  {verdict}: smallest cosine {cosines.min():.8f} (needed: {LEAST_COSINE}),")
    print(f"  largest difference of a coordinate {np.abs(original - ours).max():.1e}.")
    return agree


def unit(vectors: np.ndarray) -> np.ndarray:
    wide = vectors.astype(np.float64)
    return wide / np.linalg.norm(wide, axis=-1, keepdims=True)


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def documents(tokenizer: object, batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts of half the length to the full length, padded to the longest."""
    lengths = np.linspace(length // 2, length, batch).astype(int) if batch > 1 else [length]
    ids, mask = tokenize(tokenizer, [" ".join(WORDS * (length // len(WORDS) + 1))] * batch)
    ids, mask = ids[:, :length], mask[:, :length].copy()
    for row, tokens in enumerate(lengths):
        mask[row, tokens:] = 0
    return ids * mask, mask


def show_costs(weights: dict, fused: flashlift.jax.FusedFunction, tokenizer: object) -> None:
    heading("3. What it costs: the whole encoder, compiled by XLA for this CPU")
    print("                    time, ms                     temporary memory, MiB")
    print("  batch  length     XLA  Flashlift  faster        XLA  Flashlift    less")
    for batch, length in SIZES:
        arguments = (weights, *documents(tokenizer, batch, length))
        programs = [jax.jit(function).lower(*arguments).compile() for function in (encode, fused)]
        milliseconds = median_times(programs, arguments)
        problems = set(fused.analyze(*arguments).problems)
        workspace = max(flashlift.compile(problem).workspace_bytes(os.cpu_count() or 1) for problem in problems)
        memory = [program.memory_analysis().temp_size_in_bytes for program in programs]
        memory[1] += workspace
        print(
            f"  {batch:5}  {length:6}  {milliseconds[0]:6.1f}  {milliseconds[1]:9.1f}  "
            f"{milliseconds[0] / milliseconds[1]:5.2f}×    {memory[0] / 2**20:7.1f}  {memory[1] / 2**20:9.1f}  "
            f"{memory[0] / memory[1]:5.1f}×"
        )
    print("\n  Medians, in turns, in one process. Memory is what XLA plans for temporaries, and Flashlift's workspace.")
    print("  The attentions are a part of this model; `make bench` measures them alone.")


def median_times(programs: list, arguments: tuple) -> list[float]:
    samples: list[list[float]] = [[] for _ in programs]
    begin = time.perf_counter()
    while len(samples[0]) < 3 or (time.perf_counter() - begin < 1.5 and len(samples[0]) < 50):
        for program, times in zip(programs, samples, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(program(*arguments))
            times.append(1000 * (time.perf_counter() - start))
    return [float(np.median(times[1:])) for times in samples]


def show_picture(tokenizer: object) -> None:
    """The padding mask of one text of 300 tokens in a batch padded to 512."""
    heading("4. A picture of the mask")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    problem = f"attn b1 h{HEADS} s512 d32 mask_mod() {{ %0 = lt kv, 300; return %0 }}"
    command = [str(ROOT / "build" / "bin" / "flashlift"), "draw", problem, "-o", str(PICTURE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"  flashlift draw failed: {done.stderr.strip()}")
        return
    print("  A text of 300 tokens in a batch padded to 512; keys beyond it are never visited:\n")
    print(f"    {done.stdout.strip().replace(str(ROOT) + '/', '')}")


if __name__ == "__main__":
    sys.exit(main())
