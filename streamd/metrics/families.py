"""What a metric is, and how it is written down for Prometheus.

Source: prometheus/docs, docs/instrumenting/exposition_formats.md, "Text-based format".

The lines are made here and not by prometheus_client, which takes 6 µs for each: those of 10,000
streams have to be there within a second, beside all other work. Tests read what is made here with
that library's parser.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from streamd.operations.figures import Distribution

COUNTER, GAUGE, HISTOGRAM, SUMMARY, UNTYPED = "counter", "gauge", "histogram", "summary", "untyped"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = Mapping[str, str]
Number: TypeAlias = int | float


class Family(NamedTuple):
    """One metric, with all its labels.

    Attributes:
        name: as it is written.
        kind: COUNTER, GAUGE, HISTOGRAM, SUMMARY or UNTYPED.
        help: what it means, in one line.
        labels: that each of its values has, in this order.
        groups: names by which /metrics/detailed is asked for it.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def head(self, name: str) -> str:
        """The lines before its values.

        Args:
            name: under which it is written, which /metrics/detailed changes.
        """
        return f"# HELP {name} {_escaped_help(self.help)}\n# TYPE {name} {self.kind}\n"


class Sample(NamedTuple):
    """A value of a family.

    Attributes:
        labels: its labels' values.
        value: the number, or the numbers of a histogram.
    """

    labels: Labels
    value: Number | Distribution


def escaped(value: str) -> str:
    """The value of a label between quotes."""
    if "\\" in value or '"' in value or "\n" in value:
        value = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return value


def labelled(labels: Labels) -> str:
    """Labels as they stand behind a name; empty without any."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


def shown(value: Number) -> str:
    """A number in Prometheus's words, and in those of Go where dashboards ask for them: 1e+06."""
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return repr(value)


def bound(value: float) -> str:
    """The bound of a bucket as the label `le`: 100.0, 1e+06.

    RabbitMQ's dashboards ask for these words, which Prometheus makes of others since version 3.
    """
    text = repr(value)
    if value < 1e6:  # noqa: PLR2004 - from here on Go has an exponent
        return text
    digits, exponent = f"{value:e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{exponent}"


def lines(name: str, samples: Iterable[Sample]) -> Iterator[str]:
    """The lines of a family's values."""
    for labels, value in samples:
        if isinstance(value, Distribution):
            yield from _histogram_lines(name, labels, value)
        else:
            yield f"{name}{labelled(labels)} {shown(value)}\n"


def _histogram_lines(name: str, labels: Labels, value: Distribution) -> Iterator[str]:
    seen = 0
    for count, most in zip(value.counts, [*map(bound, value.bounds), "+Inf"], strict=True):
        seen += count
        yield f"{name}_bucket{labelled({**labels, 'le': most})} {seen}\n"
    yield f"{name}_count{labelled(labels)} {seen}\n"
    yield f"{name}_sum{labelled(labels)} {shown(value.sum)}\n"


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
