"""The tables and plots of the documents agree with benchmarks/results."""

import argparse
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import bars  # noqa: E402
import recorded  # noqa: E402
import report  # noqa: E402


def test_the_documents_are_up_to_date():
    assert report.stale() == []


def test_a_figure_that_was_changed_by_hand_is_found(tmp_path, monkeypatch):
    document = tmp_path / "README.md"
    text = (ROOT / "README.md").read_text()
    block = report.BLOCK.search(text)
    assert block is not None
    changed = re.sub(r"\| (\d)", r"| 9\1", block[5], count=1)
    document.write_text(text.replace(block[5], changed))
    monkeypatch.setattr(report, "ROOT", tmp_path)
    assert report.updated(document) == text


@pytest.mark.parametrize("path", sorted(report.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_are_named_by_what_they_hold(path):
    run = json.loads(path.read_text())
    assert path.stem == f"{run['date']}-{run['machine']}-{run['commit']}"
    for table in run["tables"].values():
        assert table["better"] in ("higher", "lower")
        for row in table["rows"]:
            assert list(row["values"]) == table["contenders"], row


def test_a_problem_that_is_not_there_is_named():
    table = {"rows": [{"problem": "causal", "variant": "", "values": {}}]}
    with pytest.raises(SystemExit, match=r"no row is named \['window'\]; there are \['causal'\]"):
        report.rows_of(table, ["window"])


@pytest.mark.parametrize(
    "path", [one for one in sorted(report.LESSONS.glob("*.md")) if one.name != "README.md"], ids=lambda path: path.stem
)
def test_every_lesson_has_a_verdict(path):
    titles = re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)
    records = report.records_of(path)
    assert [title for title, _ in records] == titles
    for _, verdict in records:
        assert re.match(r"(kept|rejected|measured|open|note)\b", verdict), verdict


def test_a_benchmark_records_what_reports_are_made_of(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    monkeypatch.setattr(recorded, "_git", lambda *arguments: "abc1234" if arguments[0] == "rev-parse" else "")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    options = argparse.Namespace(record="h200", plot=None)
    for name in ("forward", "backward"):  # of one build, which share a file
        run = recorded.Run()
        run.table(name, "A pass", "TFLOP/s").add("D64", "full", {"Flashlift": 500, "cuDNN": 400})
        run.table(name, "A pass", "TFLOP/s").add("D64", "causal", {"Flashlift": 450})
        run.table("empty", "Nothing", "ms")
        run.finish(options, {"torch": "2.13"}, "one NVIDIA H200")
    (path,) = tmp_path.glob("*-h200-abc1234.json")
    assert set(json.loads(path.read_text())["tables"]) == {"forward", "backward"}
    lines = report.markdown(path.stem, "forward", []).splitlines()
    assert lines[0] == "| A pass, TFLOP/s | Flashlift | cuDNN |"
    assert lines[2] == "| D64, full · causal | 500 · 450 | 400 · – |"


def test_a_plot_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="needs matplotlib: pip install matplotlib"):
        bars.draw(tmp_path / "plot.svg", "title", "ms", ["Flashlift"], [bars.Group("causal", {"Flashlift": 1.0})])
