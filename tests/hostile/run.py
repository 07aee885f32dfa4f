"""Attacks on Flashlift's interfaces by malicious input. `make hostile` runs all of them.

    run.py [--short] [--part NAME] [--match TEXT] [--jobs N] [--build FOLDER]

Exit code 1 if one was not withstood. `--match` runs those whose name holds TEXT, and says what each gave.
"""

import argparse
import importlib
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import attack

PARTS = ["command_line", "c_interface", "modules", "tuning"]


def attacks_of(part: str, short: bool, match: str) -> list:
    if not (Path(__file__).parent / f"{part}.py").exists():
        return []
    attacks = importlib.import_module(part).attacks()
    names = [one.name for one in attacks]
    assert len(set(names)) == len(names), f"{part}: {[name for name in names if names.count(name) > 1]} twice"
    return [one for one in attacks if (one.short or not short) and match in one.name]


def withstood(one) -> str | None:
    try:
        return one.run()
    except Exception as error:  # in the attack's own code, which counts as a failure too
        return f"{type(error).__name__}: {error}"


def run(part: str, attacks: list, jobs: int) -> list[str]:
    """The failures, each with the attack's name. Shows progress."""
    faults = []
    start = time.monotonic()
    on_terminal = sys.stdout.isatty()
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(withstood, one): one for one in attacks}
        for done, future in enumerate(as_completed(running), 1):
            fault = future.result()
            if fault:
                faults.append(f"{part}: {running[future].name}: {fault}")
                print(("\r" if on_terminal else "") + faults[-1])
            if on_terminal:
                print(f"\r{part}: {done} of {len(attacks)}", end="\n" if done == len(attacks) else "", flush=True)
    print(f"{part}: {len(attacks)} attacks, {len(faults)} broke through, {time.monotonic() - start:.0f} s", flush=True)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a choice of them, for `make test`")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part")
    parser.add_argument("--match", default="", help="only attacks whose name holds this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--build", type=Path, default=attack.BUILD, help="the build folder")
    options = parser.parse_args()
    attack.BUILD = options.build
    faults, count = [], 0
    for part in options.part or PARTS:
        attacks = attacks_of(part, options.short, options.match)
        if attacks:
            faults += run(part, attacks, options.jobs)
            count += len(attacks)
    print(f"hostile: {count - len(faults)} of {count} attacks withstood")
    return 1 if faults or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
