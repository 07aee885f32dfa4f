"""Writes docs/gallery: a page and a picture for each entry of entries.py, and the index.

    build/venv/bin/python scripts/gallery/pages.py [--check]

Pictures and counts of tiles are `flashlift draw`'s, of the problem that the C++ block makes. --check writes nothing,
and says which files are not up to date. `make gallery` runs this.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from entries import ENTRIES, Entry

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
FOLDER = ROOT / "docs" / "gallery"
TILE = 64

PROGRAM = """#include <cstdio>

#include "flashlift/attention.h"
#include "flashlift/builder.h"

void show(const char* name, const flashlift::Problem& problem, const flashlift::Result<flashlift::Attention>& made) {{
  std::printf("%s\\t%s\\n", name, made ? flashlift::print(problem).c_str() : made.error().message.c_str());
}}

{functions}
int main() {{
{calls}}}
"""

PAGE = """# {title}

{about}

![What {title} keeps, and the tiles]({name}.svg)

Of {total} tiles of {tile} by {tile} scores, {full} are kept whole, {partial} in part, and {skipped} are never computed.

## PyTorch

```python
{torch}```

## JAX

```python
{jax}```

## C++

```cpp
{cpp}```
{in_words}{speed}"""

IN_WORDS = """
## As one line

    flashlift run "{problem}" --check
"""

SPEED = """
## Speed beside FlexAttention

{lines}
"""

# The runs of benchmarks/results that pages quote, and their tables.
ON_GPU = ("2026-11-28-h200-00db7d4b", "mods")
ON_CPU = ("2026-11-21-cpu-avx512-b5baf45", "flex")

INDEX = """# Gallery

{count} well-known masks and score functions, each in PyTorch, JAX and C++, with a picture of what it keeps and of the
tiles that a kernel computes. `make gallery` generates these pages from `scripts/gallery`; a test runs every block and
compares its result with unfused maths.

Each picture shows one head. In the left half, kept scores are dark. The right half shows which tiles are kept whole,
kept in part, or never computed. C++ blocks need `flashlift/attention.h` and `flashlift/builder.h`;
[examples/two_lambdas.cpp](../../examples/two_lambdas.cpp) shows how to run the compiled attention.

| | | tiles computed |
| --- | --- | --- |
{rows}
"""


def run(*command, **options):
    done = subprocess.run([str(one) for one in command], text=True, capture_output=True, **options)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def problems_of_cpp(entries: list[Entry]) -> dict[str, str]:
    """The problem text that each C++ block prints; all blocks are in one program."""
    functions = "".join(
        f"void {entry.name}() {{\n{entry.cpp}show({json.dumps(entry.name)}, problem, attention);\n}}\n\n"
        for entry in entries
    )
    calls = "".join(f"  {entry.name}();\n" for entry in entries)
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "gallery.cpp", Path(folder) / "gallery"
        source.write_text(PROGRAM.format(functions=functions, calls=calls))
        run(os.environ.get("CXX", "c++"), "-std=c++20", "-O0", "-Wall", f"-I{ROOT / 'include'}", source, "-o", program,
            f"-L{BUILD}", "-lflashlift", f"-Wl,-rpath,{BUILD}")  # fmt: skip
        found = dict(line.split("\t", 1) for line in run(program).splitlines())
    for name, text in found.items():
        if not text.startswith("attn "):
            sys.exit(f"the C++ block of {name}: {text}")
    return found


def in_words(entry: Entry, problem: str) -> str:
    """The problem in words, with the sizes of the block, if the entry has some."""
    sizes = {one: re.search(rf" {one}(\d+)", problem)[1] for one in ("hq", "sq", "skv")}
    depth = "" if " dv" in f" {entry.words}" else " d64"
    length = f"s{sizes['sq']}" if sizes["sq"] == sizes["skv"] else f"sq{sizes['sq']} skv{sizes['skv']}"
    return f"attn h{sizes['hq']} {length}{depth} {entry.words or entry.picture}"


def row_of(result: str, table: str, problem: str) -> tuple[dict, dict, dict]:
    """A run, one of its tables, and that table's values for a problem."""
    run = json.loads((ROOT / "benchmarks" / "results" / f"{result}.json").read_text())
    found = run["tables"][table]
    (row,) = [one for one in found["rows"] if one["problem"] == problem]
    return run, found, row["values"]


def speed(entry: Entry) -> str:
    lines = []
    if entry.on_gpu:
        run, table, values = row_of(*ON_GPU, entry.on_gpu)
        sizes = table["title"].split(", ", 1)[1]
        ours, *peers = values.items()
        figures = "; ".join(
            [f"{ours[1]} {table['unit']}", *(f"{who.replace(', ', ' by ')} {one}" for who, one in peers)]
        )
        lines.append(f"- {_sentence(run['hardware'])}, {sizes}, {entry.on_gpu}: {figures} {_source(ON_GPU[0])}.")
    if entry.on_cpu:
        run, _, values = row_of(*ON_CPU, entry.on_cpu)
        figures = ", ".join(f"{value} times in {dtype}" for dtype, value in values.items())
        machine = _sentence(run["hardware"].split(";")[0])
        lines.append(f"- {machine}, H8 S1024 D64, {entry.on_cpu}, relative to compiled FlexAttention: {figures} "
                     f"{_source(ON_CPU[0])}.")  # fmt: skip
    return SPEED.format(lines="\n".join(lines)) if lines else ""


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _source(result: str) -> str:
    return f"([{result}](../../benchmarks/results/{result}.json))"


def draw(text: str, path: Path) -> dict:
    done = run(BUILD / "bin" / "flashlift", "draw", text, "-o", path, "--q-tile", TILE, "--kv-tile", TILE, "--json")
    return json.loads(done)["tiles"]


def make(folder: Path) -> None:
    problems = problems_of_cpp(ENTRIES)
    rows = []
    for entry in ENTRIES:
        problem = problems[entry.name]
        words = in_words(entry, problem) if entry.words else ""
        drawn = words or (in_words(entry, problem) if entry.picture else problem)
        tiles = draw(drawn, folder / f"{entry.name}.svg")
        counts = {one: tiles[one] for one in ("full", "partial", "skipped")}
        total = sum(counts.values())
        one_line = IN_WORDS.format(problem=words) if words else ""
        (folder / f"{entry.name}.md").write_text(
            PAGE.format(**vars(entry) | {"in_words": one_line, "speed": speed(entry)}, **counts, total=total, tile=TILE)
        )
        computed = counts["full"] + counts["partial"]
        first_sentence = re.split(r"(?<=[.]) ", entry.about)[0].rstrip(".")
        rows.append(f"| [{entry.title}]({entry.name}.md) | {first_sentence} | {computed} of {total} |")
    (folder / "README.md").write_text(INDEX.format(count=len(ENTRIES), rows="\n".join(rows)))


def stale() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        make(made)
        names = {one.name for one in [*made.iterdir(), *FOLDER.iterdir()]}
        return sorted(
            name
            for name in names
            if not (made / name).exists()
            or not (FOLDER / name).exists()
            or (made / name).read_text() != (FOLDER / name).read_text()
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        found = stale()
        for name in found:
            print(f"docs/gallery/{name} is not what scripts/gallery makes: run make gallery")
        return int(bool(found))
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    make(FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
