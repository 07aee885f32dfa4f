"""Whether the fuzzers' dictionaries have every word that the readers know: one that lacks it seldom gets there.

    dictionaries.py [--write]

The words are taken from the readers' tables and sources. (tests/problem/write_words.cpp makes problem.dict.) Exit code
1, and a list, where some are missing; --write adds them.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def found(path: str, *patterns: str) -> list[str]:
    """The texts that the groups of the patterns match, in order. A pattern without a match is out of date."""
    text = re.sub(r"(?m)^\s*//.*$", "", (ROOT / path).read_text())
    words = []
    for pattern in patterns:
        matches = re.findall(pattern, text)
        assert matches, f"{path} has nothing like {pattern}: bring this test up to date"
        words += matches
    return words


def dtypes() -> list[str]:
    return found("src/support/dtype.cpp", r'\{DType::\w+, "(\w+)"')


def program_words() -> list[str]:
    return [
        *found("include/flashlift/ops.def", r"(?m)^FLASHLIFT_OP\((\w+),"),
        *found("src/score/sizes.cpp", r'\{k\w+Size, "([^"]+)"\}'),
        *found(
            "src/score/reader.cpp", r'(?:accept|expect)\("(\w+)"\)', r'text == "([^"]+)"', r'starts_with\("(\w+)"\)'
        ),
        *dtypes(),
    ]


def module_words() -> list[str]:
    return [
        *found("src/stablehlo/reader/ops.def", r'"(?:stablehlo|chlo)\.(\w+)"', r'"(sdy\.\w+)"'),
        *found(
            "src/stablehlo/rewrite/cudnn.cpp",
            r'"((?:cudnn|fmha|bmm1|mask|max|is|rhs|dropout|sliding)_\w+)"',
            r'mask != "(\w+)"',
        ),
    ]


def missing(name: str, words: list[str]) -> list[str]:
    """The words that the dictionary lacks. A word may appear with its value, as "causal=bottom_right"."""
    entries = re.findall(r'(?m)^"(.*)"$', (ROOT / f"tests/fuzz/{name}.dict").read_text())
    parts = {part for entry in entries for part in [entry, *re.split(r"[=(]", entry)]}
    return [word for word in dict.fromkeys(words) if word not in parts]


def main() -> int:
    lacking = False
    for name, words in {"program": program_words(), "module": module_words()}.items():
        absent = missing(name, words)
        if absent and "--write" in sys.argv[1:]:
            with (ROOT / f"tests/fuzz/{name}.dict").open("a") as file:
                file.writelines(f'"{word}"\n' for word in absent)
        elif absent:
            lacking = True
            print(f"tests/fuzz/{name}.dict lacks {' '.join(absent)}; run tests/fuzz/dictionaries.py --write")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
