"""What was measured: recorded figures, their ratios, the tables and the JSON made of them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

from rich.box import SIMPLE
from rich.table import Table

from benchmarks.rows import Figure, Goal

RABBITMQ = "RabbitMQ"
_MANY = 100  # from here on no decimals


class Recorded(NamedTuple):
    """All rounds of one figure of a row.

    Attributes:
        peer: empty where the peer was not measured.
        peer_name: which server that is.
    """

    row: str
    figure: Figure
    streamd: list[float]
    peer: list[float]
    peer_name: str = RABBITMQ

    @property
    def ratio(self) -> float | None:
        """The ratio of streamd's figure to the peer's, by the medians."""
        if not self.streamd or not self.peer or not median(self.peer):
            return None
        return median(self.streamd) / median(self.peer)

    @property
    def is_reached(self) -> bool | None:
        """Whether the goal is reached; None without a goal, or without the figure it is about."""
        goal = self.figure.goal
        if goal is None or not self.streamd:
            return None
        value = self.ratio if goal.is_ratio else median(self.streamd)
        return None if value is None else goal.is_reached(value)


class Report(NamedTuple):
    """A run.

    Attributes:
        about: when and how it was measured.
        notes: rows that could not be measured, and why.
    """

    about: dict[str, Any]
    figures: list[Recorded]
    notes: list[str]


def as_json(report: Report) -> dict[str, Any]:
    """All rounds of all figures."""
    return {
        **report.about,
        "notes": report.notes,
        "figures": [
            {
                "row": it.row,
                **it.figure._asdict(),
                "goal": it.figure.goal and it.figure.goal._asdict(),
                "streamd": it.streamd,
                "peer": it.peer,
                "peer_name": it.peer_name,
                "ratio": it.ratio,
                "is_reached": it.is_reached,
            }
            for it in report.figures
        ],
    }


def from_json(read: dict[str, Any]) -> Report:
    """A report that was written with as_json."""
    about = {name: it for name, it in read.items() if name not in ("notes", "figures")}
    figures = []
    for it in read["figures"]:
        goal = Goal(**it["goal"]) if it["goal"] else None
        figure = Figure(it["key"], it["name"], goal, it["is_least"])
        name = it.get("peer_name", RABBITMQ)  # the only one, in files of before
        figures.append(Recorded(it["row"], figure, it["streamd"], it["peer"], name))
    return Report(about, figures, read["notes"])


def tables(report: Report) -> Iterator[Table]:
    """Medians, ratios, goals: a table for each peer."""
    about = report.about
    title = f"medians of {about['rounds']} rounds, {about['cores']} cores"
    if about["scale"] != 1:
        title += f", {about['scale']:g} of the full size: not for comparing"
    for peer_name, figures in groupby(report.figures, attrgetter("peer_name")):
        yield _table(title, peer_name, figures)


def _table(title: str, peer_name: str, figures: Iterable[Recorded]) -> Table:
    made = Table(title=title, title_justify="left", box=SIMPLE)
    for heading in ("", "figure"):
        made.add_column(heading)
    for heading in (peer_name, "streamd", "ratio", "goal"):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("reached", no_wrap=True)
    last = ""
    for it in figures:
        name, last = "" if it.row == last else it.row, it.row
        ratio = "" if it.ratio is None else f"{number(it.ratio)} ×"
        goal = str(it.figure.goal or "")
        reached = {None: "", True: "yes", False: "NO"}[it.is_reached]
        middles = (_median(it.peer), _median(it.streamd))
        made.add_row(name, it.figure.name, *middles, ratio, goal, reached)
    return made


def summary(report: Report) -> str:
    """One line: how many goals are reached."""
    with_goal = [it for it in report.figures if it.is_reached is not None]
    reached = sum(bool(it.is_reached) for it in with_goal)
    return f"{reached} of {len(with_goal)} goals reached"


def number(value: float) -> str:
    """With three significant digits."""
    return f"{value:,.0f}" if abs(value) >= _MANY else f"{value:.3g}"


def _median(rounds: Sequence[float]) -> str:
    return number(median(rounds)) if rounds else ""
