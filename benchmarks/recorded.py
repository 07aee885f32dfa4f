"""Stores the results of a benchmark, as a run in benchmarks/results (`--record MACHINE`) or as a plot (`--plot
FILE.svg`).

recorded.add_options(parser)
run = recorded.Run()
run.table("forward", "Forward pass, bf16", "TFLOP/s").add("D64 S1024", "causal", {"Flashlift": 473, "cuDNN": 443})
run.finish(options, {"torch": torch.__version__}, torch.cuda.get_device_name())
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import bars

RESULTS = Path(__file__).resolve().parent / "results"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record", metavar="MACHINE", help='write benchmarks/results/DATE-MACHINE-COMMIT.json; MACHINE such as "h200"'
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.svg",
        help="draw the figures as bars; a second table goes to FILE-TABLE.svg; needs matplotlib",
    )


@dataclass
class Table:
    title: str
    unit: str
    better: str
    rows: list[dict] = field(default_factory=list)

    def add(self, problem: str, variant: str, values: Mapping[str, float]) -> None:
        """variant: distinguishes rows for the same problem in a document's table, such as "full" and "causal"."""
        self.rows.append({"problem": problem, "variant": variant, "values": dict(values)})

    @property
    def contenders(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row["values"]))

    def as_json(self) -> dict:
        names = self.contenders
        rows = [row | {"values": {name: row["values"].get(name) for name in names}} for row in self.rows]
        return {"title": self.title, "unit": self.unit, "better": self.better, "contenders": names, "rows": rows}


class Run:
    def __init__(self) -> None:
        self._tables: dict[str, Table] = {}

    def table(self, name: str, title: str, unit: str, better: str = "higher") -> Table:
        """The table of this name, created when it is first requested."""
        return self._tables.setdefault(name, Table(title, unit, better))

    def finish(self, options: argparse.Namespace, software: Mapping[str, str], hardware: str) -> None:
        """Writes what the options request."""
        tables = {name: table for name, table in self._tables.items() if table.rows}
        if options.record:
            path = self._record(tables, options.record, software, hardware)
            print(f"recorded in {path}", file=sys.stderr)
        for i, (name, table) in enumerate(tables.items() if options.plot else ()):
            path = options.plot.with_stem(f"{options.plot.stem}-{name}") if i else options.plot
            groups = [bars.Group(f"{row['problem']} {row['variant']}".strip(), row["values"]) for row in table.rows]
            bars.draw(path, table.title, table.unit, table.contenders, groups)
            print(f"drawn in {path}", file=sys.stderr)

    @staticmethod
    def _record(tables: Mapping[str, Table], machine: str, software: Mapping[str, str], hardware: str) -> Path:
        commit = _git("rev-parse", "--short", "HEAD")
        if _git("status", "--porcelain", "--untracked-files=no"):
            print("warning: what was measured is not committed; the record names the commit before", file=sys.stderr)
        date = time.strftime("%Y-%m-%d")
        text = {
            "date": date,
            "machine": machine,
            "commit": commit,
            "hardware": hardware,
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "software": dict(software),
            "note": "",
            "tables": {name: table.as_json() for name, table in tables.items()},
        }
        path = RESULTS / f"{date}-{machine}-{commit}.json"
        if path.exists():  # another benchmark of the same build
            text["tables"] = json.loads(path.read_text())["tables"] | text["tables"]
        path.write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n")
        return path


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=RESULTS, capture_output=True, text=True, check=True)
    return done.stdout.strip()
