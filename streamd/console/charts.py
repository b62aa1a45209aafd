"""Charts of the last hour, and the same as tables: a script draws them, and nobody needs it to."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from markupsafe import Markup

_MAX_POINTS = 240
_TABLE_MS = 5 * 60_000
_DIGITS = 6  # that are sent


class Timed(Protocol):
    """What was measured until some moment, in ms since 1970."""

    @property
    def at_ms(self) -> int:
        """When it ends."""


Measured = TypeVar("Measured", bound=Timed)


class Series(NamedTuple):
    """One line of a chart.

    Attributes:
        values: one for each time; None where nothing was measured.
    """

    label: str
    values: list[float | None]

    @property
    def latest(self) -> float | None:
        """The last value."""
        return self.values[-1] if self.values else None


class Chart(NamedTuple):
    """Some lines over the same times.

    Attributes:
        unit: of all values: a word of `words.FILTERS`.
        times: in ms since 1970, the oldest first.
        series: the lines.
        steps: for the table: when a step begins, and for each line the mean or the most within it.
    """

    identity: str
    title: str
    unit: str
    times: list[int]
    series: list[Series]
    steps: list[tuple[int, list[float | None]]]

    @property
    def data(self) -> Markup:
        """For the script: JSON that can stand inside an element."""
        value = {
            "unit": self.unit,
            "times": [time // 1000 for time in self.times],
            "series": [
                {"label": line.label, "values": [_short(value) for value in line.values]}
                for line in self.series
            ],
        }
        text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
        return Markup(text)  # noqa: S704 - nothing in it can end the element


Reduce = Callable[[Sequence[float]], float]


def mean(values: Sequence[float]) -> float:
    """The mean, for rates."""
    return sum(values) / len(values)


def make_chart(
    identity: str,
    title: str,
    unit: str,
    measured: Iterable[Measured],
    lines: Sequence[tuple[str, Callable[[Measured], float | None]]],
    reduce: Reduce = mean,
) -> Chart:
    """A chart of what was measured.

    Args:
        identity: see Chart.
        title: see Chart.
        unit: see Chart.
        measured: the oldest first.
        lines: labels, and what they show of each.
        reduce: makes one value of several that follow each other: `mean` or `max`.
    """
    everything = list(measured)
    size = -(-len(everything) // _MAX_POINTS) or 1
    begin = len(everything) % size  # so that the newest group is whole
    groups = [everything[:begin]] if begin else []
    groups += [everything[n : n + size] for n in range(begin, len(everything), size)]
    steps: dict[int, list[Measured]] = {}
    for item in everything:
        steps.setdefault(item.at_ms // _TABLE_MS * _TABLE_MS, []).append(item)
    return Chart(
        identity,
        title,
        unit,
        [group[-1].at_ms for group in groups],
        [Series(label, [_one(group, get, reduce) for group in groups]) for label, get in lines],
        [
            (at, [_one(group, get, reduce) for _, get in lines])
            for at, group in sorted(steps.items(), reverse=True)
        ],
    )


def _one(
    group: Sequence[Measured], get: Callable[[Measured], float | None], reduce: Reduce
) -> float | None:
    values = [value for value in map(get, group) if value is not None]
    return reduce(values) if values else None


def _short(value: float | None) -> Any:  # noqa: ANN401 - a number as JSON has it
    if value is None:
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() else short
