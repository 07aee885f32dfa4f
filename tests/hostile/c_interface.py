"""Attacks on the C interface: hundreds of wrong calls in each of some processes (c_calls.py)."""

import sys
from pathlib import Path

import attack
import c_calls

SHORT = ("structures", "null", "block_kinds", "judge")
SECONDS = 300


def attacks() -> list[attack.Attack]:
    calls = Path(__file__).parent / "c_calls.py"

    def run(group: str) -> str | None:
        return attack.program([sys.executable, calls, attack.BUILD, group], SECONDS)

    return [attack.Attack(group, lambda group=group: run(group), group in SHORT) for group in c_calls.GROUPS]
