"""Bars of speeds as an SVG, for `--plot FILE.svg` of the benchmarks and for report.py. Needs matplotlib."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

COLOURS = ("#1f6feb", "#8b949e", "#d0a215", "#57ab5a", "#bc8cff", "#f47067")


@dataclass(frozen=True)
class Group:
    """The bars of one problem."""

    name: str
    values: Mapping[str, float | None]
    """By contender; None where it was not measured."""


def draw(path: Path, title: str, unit: str, contenders: Sequence[str], groups: Sequence[Group]) -> None:
    """Writes the same file whenever the values are the same."""
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit(f"error: drawing {path} needs matplotlib: pip install matplotlib") from error
    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    style = {"svg.hashsalt": "flashlift", "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"}
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(max(6.0, 0.9 * len(groups) + 1), 3.2), layout="constrained")
        width = 0.8 / len(contenders)
        for i, contender in enumerate(contenders):
            places = [k + (i - (len(contenders) - 1) / 2) * width for k in range(len(groups))]
            heights = [group.values.get(contender) or 0 for group in groups]
            axes.bar(places, heights, width * 0.92, label=contender, color=COLOURS[i % len(COLOURS)])
        axes.set_xticks(range(len(groups)), [textwrap.fill(group.name, 11, break_long_words=False) for group in groups])
        axes.set_ylabel(unit)
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, ncols=len(contenders), loc="upper left", bbox_to_anchor=(0, -0.18))
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)
