"""The ratios as one picture: to the right of the line streamd is better, to the left its peer.

Needs matplotlib: the extra `bench`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.report import Recorded, Report, number, summary

_REACHED, _MISSED, _NO_GOAL = "#2a7f9e", "#e08a2e", "#b9bec4"
_HATCH = "///"
_INCHES_PER_BAR, _INCHES_AROUND = 0.24, 1.6
_GAP = 0.6  # between rows, in bars


class Bar(NamedTuple):
    """How many times better streamd is, whichever way the figure counts.

    Attributes:
        goal: how many times better it has to be, None without such a goal.
    """

    at: float
    label: str
    better: float
    goal: float | None
    is_reached: bool | None


def bars(figures: Sequence[Recorded]) -> list[Bar]:
    """The figures that have a ratio, from the top down; rows stand a little apart."""
    made: list[Bar] = []
    at, last = 0.0, ""
    for it in figures:
        if not it.ratio:
            continue
        at += 1 if it.row == last or not made else 1 + _GAP
        last = it.row
        goal = it.figure.goal
        limit = goal.limit if goal and goal.is_ratio else None
        made.append(
            Bar(
                at,
                f"{it.row} · {it.figure.name}",
                _times(it.ratio, is_least=it.figure.is_least),
                None if limit is None else _times(limit, is_least=it.figure.is_least),
                it.is_reached,
            )
        )
    return made


def _times(ratio: float, *, is_least: bool) -> float:
    return ratio if is_least else 1 / ratio


def draw(report: Report, path: Path) -> None:
    """Draw a report into a PNG file.

    Raises:
        ValueError: there is no ratio in it.
    """
    made = bars(report.figures)
    if not made:
        raise ValueError("no chart: there is no peer in these figures to compare with")
    mpl.rcParams["hatch.linewidth"] = 0.6
    height = _INCHES_PER_BAR * made[-1].at + _INCHES_AROUND
    picture = Picture(figsize=(11, height), layout="constrained")
    axes = picture.add_subplot()
    for bar in made:
        _draw_bar(axes, bar)
    _decorate(axes, made)
    about = report.about
    peers = " and ".join(dict.fromkeys(it.peer_name for it in report.figures if it.ratio))
    picture.suptitle(
        f"How many times better than {peers} streamd is: {summary(report)}\n", fontweight="bold"
    )
    axes.set_title(
        f"medians of {about['rounds']} rounds in the same run, {about['cores']} cores shared with "
        f"the load generator, {about['date']}",
        fontsize=9,
    )
    picture.savefig(path, dpi=130)


def _draw_bar(axes: Axes, bar: Bar) -> None:
    missed = bar.is_reached is False
    color = _NO_GOAL if bar.is_reached is None else _MISSED if missed else _REACHED
    axes.barh(
        bar.at,
        bar.better - 1,
        left=1,
        color=color,
        hatch=_HATCH if missed else None,
        edgecolor="white",
        linewidth=0,
        height=0.8,
    )
    if bar.goal is not None:
        axes.plot([bar.goal] * 2, [bar.at - 0.48, bar.at + 0.48], color="black", linewidth=2)
    right = max(bar.better, bar.goal or 1, 1)
    text = f"{number(bar.better)} ×" + (" missed" if missed else "")
    axes.annotate(
        text, (right, bar.at), (5, 0), textcoords="offset points", va="center", fontsize=8
    )


def _decorate(axes: Axes, made: Sequence[Bar]) -> None:
    axes.set_xscale("log")
    values = [it.better for it in made] + [it.goal for it in made if it.goal]
    axes.set_xlim(min([*values, 0.5]) / 1.2, max(values) * 2.5)
    axes.set_ylim(made[-1].at + 0.8, made[0].at - 0.8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks([it.at for it in made], [it.label for it in made], fontsize=8)
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1000, 10_000) if t < max(values) * 2.5]
    axes.set_xticks([], minor=True)
    axes.set_xticks(ticks, [f"{it:g} ×" for it in ticks])
    axes.tick_params(axis="x", top=True, labeltop=True)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(
        handles=[
            Patch(facecolor=_REACHED, label="goal reached"),
            Patch(facecolor=_MISSED, hatch=_HATCH, edgecolor="white", label="goal missed"),
            Patch(facecolor=_NO_GOAL, label="without a goal"),
            Line2D([], [], color="black", linewidth=2, label="goal (bar must reach it)"),
        ],
        loc="upper center",
        bbox_to_anchor=(0.3, -0.03),
        ncols=4,
        frameon=False,
        fontsize=9,
    )
