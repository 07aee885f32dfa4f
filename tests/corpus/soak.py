"""Draws modules of every kind in turn, and compares what is fused of them with XLA.

    build/venv/bin/python tests/corpus/soak.py [--count N] [--seed N] [--kind KIND]... [--platform gpu]

Prints a line for each module that disagrees, with the command that makes it again, a line of progress after each round
of all kinds, and a summary.
"""

import argparse
import sys
import time

import flashlift.jax
import random_masks
import random_modules
import random_numbers
import random_steps

KINDS = {"masks": random_masks, "numbers": random_numbers, "steps": random_steps}
ROUND = 48  # modules of a kind, compiled a few at a time


def report(kind, seed):
    def disagrees(number, drawn, words):
        print(f"random_{kind}.py --seed {seed} --first {number} --count 1: {words} ({drawn.words})", flush=True)

    return disagrees


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10000, help="how many modules to draw, of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this one; may be given several times")
    parser.add_argument(
        "--platform", choices=("cpu", "gpu"), default="cpu", help="where fused modules run; XLA:CPU runs the originals"
    )
    options = parser.parse_args()
    try:
        random_modules.run_fused_on(options.platform)
    except RuntimeError as error:
        sys.exit(f"JAX finds no {options.platform} here: {error}")
    kinds = options.kind or list(KINDS)
    share = -(-options.count // len(kinds))
    flashlift.jax.register()
    totals = {kind: random_modules.Summary() for kind in kinds}
    start = time.monotonic()
    for first in range(0, share, ROUND):
        numbers = list(range(first, min(first + ROUND, share)))
        for kind in kinds:
            totals[kind] += random_modules.check_numbers(
                KINDS[kind].draw_module, options.seed, numbers, report(kind, options.seed)
            )
        drawn = sum(total.modules for total in totals.values())
        failures = sum(total.failures for total in totals.values())
        print(
            f"{drawn} of {share * len(kinds)} drawn, {failures} disagree, {time.monotonic() - start:.0f} s", flush=True
        )
    for kind, total in totals.items():
        print(f"{kind}: {total}")
    return 1 if any(total.failures for total in totals.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
