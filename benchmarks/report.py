"""Generates the tables and plots of the documents from benchmarks/results/*.json.

    python benchmarks/report.py             write the tables into the documents
    python benchmarks/report.py --check     only say which are not up to date, tables and plots
    python benchmarks/report.py --plots     draw the plots too (needs matplotlib)

A document asks for a table by a comment, and gets it between that comment and the next one:

    <!-- figures: RESULT TABLE [| PROBLEM; PROBLEM; ...] -->
    <!-- end of figures -->

RESULT is the name of a file without its suffix. Variants of one problem, such as full and causal, share a row.
The index of docs/lessons is made in the same way, of the records' titles and verdicts.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import bars

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"(<!-- figures: (\S+) (\S+)(?: \| ([^>]*?))? -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)

LESSONS = ROOT / "docs" / "lessons"
INDEX = re.compile(r"(<!-- lessons -->\n)(.*?)(<!-- end of lessons -->)", re.DOTALL)
RECORD = re.compile(r"^## (.+?)\n(.*?)^\*\*Verdict:\*\* (.+?)\.$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Plot:
    """Bars of one table: a group for each problem, a bar for each contender."""

    path: str
    title: str
    result: str
    table: str
    problems: tuple[str | tuple[str, str, str], ...]
    """Each a problem of the table, or a problem, its variant and the name that the plot gives it."""
    variant: str = ""

    def rows(self) -> list[tuple[str, str, str]]:
        return [(one, self.variant, one) if isinstance(one, str) else one for one in self.problems]


_SDPA = "PyTorch's scaled_dot_product_attention"
PLOTS = (
    Plot(
        "docs/figures/forward-h200.svg",
        "Forward pass on an H200, bf16, no mask",
        "2026-11-28-h200-00db7d4b",
        "forward",
        tuple(f"{width} {length}" for width in ("D64", "D128", "D256") for length in ("S1024", "S4096", "S16384")),
        "full",
    ),
    Plot(
        "docs/figures/mods-h200.svg",
        "Masks and score functions on an H200, bf16, B2 H16 S8192 D128",
        "2026-11-28-h200-00db7d4b",
        "mods",
        ("causal", "ALiBi", "softcap", "relative bias", "window 1024", "8 documents and causal", "Eagle3"),
    ),
    Plot(
        "docs/figures/cpu.svg",
        "Speed over peers on a CPU (two threads, AVX-512)",
        "2026-11-22-cpu-avx512-b24dcaa",
        "ratios",
        (
            ("XLA:CPU, H16 S2048 D128", "causal", "XLA:CPU"),
            (f"{_SDPA}, H16 S2048 D128", "causal", "PyTorch SDPA"),
            ("its backward pass, H16 S2048 D128", "causal", "PyTorch SDPA, backward"),
            (f"{_SDPA}, one query, 16,384 keys", "", "PyTorch SDPA, decoding"),
            ("compiled flex_attention, H8 S1024 D64", "slowest mod", "FlexAttention, slowest mod"),
            ("compiled flex_attention, H8 S1024 D64", "fastest mod", "FlexAttention, fastest mod"),
        ),
    ),
)


def load(result: str) -> dict:
    return json.loads((RESULTS / f"{result}.json").read_text())


def rows_of(table: dict, problems: Sequence[str]) -> dict[str, dict[str, dict]]:
    """The values of each problem, in the requested order, by variant and contender."""
    found: dict[str, dict[str, dict]] = {one: {} for one in problems}
    for row in table["rows"]:
        if not problems or row["problem"] in found:
            found.setdefault(row["problem"], {})[row["variant"]] = row["values"]
    missing = [one for one, variants in found.items() if not variants]
    if missing:
        raise SystemExit(f"error: no row is named {missing}; there are {[row['problem'] for row in table['rows']]}")
    return found


def markdown(result: str, table_name: str, problems: Sequence[str]) -> str:
    """A table, followed by the run that it comes from."""
    run = load(result)
    table = run["tables"][table_name]
    lines = [
        f"| {table['title']}, {table['unit']} | " + " | ".join(table["contenders"]) + " |",
        "| --- " * (len(table["contenders"]) + 1) + "|",
    ]
    for problem, variants in rows_of(table, problems).items():
        cells = [_joined([values[contender] for values in variants.values()]) for contender in table["contenders"]]
        named = " · ".join(filter(None, variants))
        lines.append(f"| {problem}{', ' if named else ''}{named} | " + " | ".join(cells) + " |")
    software = ", ".join(f"{name} {version}" for name, version in run["software"].items())
    source = (
        f"[{result}](/benchmarks/results/{result}.json): {run['hardware']}, `{table.get('command', run['command'])}`"
    )
    return "\n".join([*lines, "", f"<sub>{source}{', ' if software else ''}{software}.</sub>", ""])


def _joined(values: Sequence[float | None]) -> str:
    return "" if all(one is None for one in values) else " · ".join("–" if one is None else str(one) for one in values)


def updated(document: Path) -> str:
    """The text of a document with up-to-date tables."""
    link = "../" * (len(document.relative_to(ROOT).parts) - 1)

    def fill(match: re.Match) -> str:
        problems = [one.strip() for one in (match[4] or "").split(";") if one.strip()]
        table = markdown(match[2], match[3], problems).replace("](/benchmarks/", f"]({link}benchmarks/")
        return f"{match[1]}{table}{match[6]}"

    text = BLOCK.sub(fill, document.read_text())
    return INDEX.sub(lambda match: f"{match[1]}{index_of_lessons()}{match[3]}", text)


def records_of(lessons: Path) -> list[tuple[str, str]]:
    """The titles and verdicts of a file of lessons."""
    return [(title, verdict) for title, _, verdict in RECORD.findall(lessons.read_text())]


def index_of_lessons() -> str:
    files = sorted(one for one in LESSONS.glob("*.md") if one.name != "README.md")
    parts, rejected = [], []
    for one in files:
        title = one.read_text().split("\n", 1)[0].removeprefix("# ")
        records = records_of(one)
        parts.append(f"| [{title}]({one.name}) | {len(records)} |")
        for name, verdict in records:
            if verdict.startswith("rejected"):
                reason = verdict.removeprefix("rejected").lstrip(":, ")
                rejected.append(f"| [{name}]({one.name}#{_anchor(name)}) | {reason} |")
    head = ["| part | records |", "| --- | --- |", *parts]
    return "\n".join(
        [
            *head,
            "",
            "Rejected trials, and the reason or what is done instead:",
            "",
            "| | |",
            "| --- | --- |",
            *rejected,
            "",
        ]
    )


def _anchor(title: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def groups_of(plot: Plot) -> tuple[dict, list[bars.Group]]:
    table = load(plot.result)["tables"][plot.table]
    rows = rows_of(table, [problem for problem, _, _ in plot.rows()])
    return table, [bars.Group(name, rows[problem][variant]) for problem, variant, name in plot.rows()]


def digest(plot: Plot) -> str:
    """A hash of a plot's data, which the file contains."""
    table, groups = groups_of(plot)
    text = json.dumps([plot.title, table["unit"], table["contenders"], [[one.name, one.values] for one in groups]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def draw(plot: Plot) -> None:
    table, groups = groups_of(plot)
    path = ROOT / plot.path
    path.parent.mkdir(parents=True, exist_ok=True)
    bars.draw(path, plot.title, table["unit"], table["contenders"], groups)
    path.write_text(f"{path.read_text().rstrip()}\n<!-- {digest(plot)} -->\n")


def stale() -> list[str]:
    """The documents and plots that differ from the results."""
    found = [str(one.relative_to(ROOT)) for one in DOCUMENTS if updated(one) != one.read_text()]
    for plot in PLOTS:
        path = ROOT / plot.path
        if not path.exists() or f"<!-- {digest(plot)} -->" not in path.read_text():
            found.append(plot.path)
    return found


def main(say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--plots", action="store_true")
    options = parser.parse_args()
    if not options.check:
        for document in DOCUMENTS:
            document.write_text(updated(document))
        for plot in PLOTS if options.plots else ():
            draw(plot)
    left = stale()
    for one in left:
        say(f"{one} is not what benchmarks/results say: run python benchmarks/report.py --plots")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
