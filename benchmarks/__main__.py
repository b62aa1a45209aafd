"""`python -m benchmarks`: publish and read back, as a table.

A server of its own for the whole run, on this machine; a stream of its own for each round. The
median of the rounds is shown, with the lowest and the highest.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.load import Load, frames, publish
from benchmarks.raw_connection import RawConnection
from benchmarks.reading import Read, read
from benchmarks.target import Target
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair

_STREAM = "benchmark"
_FILTER_SIZE = "64"
_WIDTH = 100


class Figure(NamedTuple):
    """One round of one row."""

    messages_per_second: float
    cpu_microseconds: float
    chunks: int


class Row(NamedTuple):
    """A load to publish and what to read back; a figure for each of the two."""

    name: str
    load: Load


def rows(count: int) -> list[Row]:
    """What is measured."""
    return [
        Row("100 B", Load(count)),
        Row("100 B, 100 filter values", Load(count, values=100)),
        Row("10 B", Load(count, size=10)),
        Row("1 KiB", Load(count // 5, size=1024)),
    ]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--count", default=1_000_000, show_default=True, help="Messages per round.")
@click.option("--rounds", default=5, show_default=True, help="Rounds; the median is shown.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the table.")
def main(count: int, rounds: int, *, as_json: bool) -> None:
    """Measure the server: messages per second, CPU per message, memory.

    One connection, 100 messages per frame, 10,000 unconfirmed at most; then everything is read
    back by chunk headers. Generator and server share this machine's cores.
    """
    measured: dict[str, list[Figure]] = {}
    with tempfile.TemporaryDirectory(prefix="streamd-bench-") as folder, Target(Path(folder)) as it:
        for name, figure in _measure(it, count, rounds):
            measured.setdefault(name, []).append(figure)
        peak = it.peak_resident_bytes()
    if as_json:
        click.echo(json.dumps({"peak_resident_bytes": peak, "rows": _medians(measured)}))
    else:
        console = Console(width=None if sys.stdout.isatty() else _WIDTH)
        console.print(_table(measured))
        console.print(f"most memory the server held: {peak / 1e6:.0f} MB", highlight=False)


def _measure(target: Target, count: int, rounds: int) -> Iterator[tuple[str, Figure]]:
    loads = [(row, frames(row.load)) for row in rows(count)]
    steps = [step for _ in range(rounds) for step in loads]
    for row, made in track(steps, "measuring", console=Console(stderr=True), transient=True):
        with RawConnection(target.host, target.port) as connection:
            arguments = (Pair("stream-filter-size-bytes", _FILTER_SIZE),)
            connection.request(c.Create, _STREAM, arguments)
            writing = partial(publish, connection, _STREAM, row.load, made)
            yield f"publish {row.name}", _figure(target, row, writing)
            yield f"read {row.name}", _figure(target, row, partial(_read, target))
            connection.request(c.Delete, _STREAM)


def _read(target: Target) -> Read:
    with RawConnection(target.host, target.port) as connection:
        return read(connection, _STREAM)


def _figure(target: Target, row: Row, work: Callable[[], Read | float]) -> Figure:
    before = target.cpu_seconds()
    done = work()
    used = target.cpu_seconds() - before
    seconds, chunks = (done.seconds, len(done.chunks)) if isinstance(done, Read) else (done, 0)
    count = row.load.messages
    return Figure(count / seconds, used / count * 1e6, chunks)


def _medians(measured: dict[str, list[Figure]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            field: median(getattr(figure, field) for figure in figures) for field in Figure._fields
        }
        for name, figures in measured.items()
    }


def _table(measured: dict[str, list[Figure]]) -> Table:
    table = Table(title="one connection, 100 messages per frame", title_justify="left", box=SIMPLE)
    table.add_column("")
    for heading in ("thousand msg/s", "lowest to highest", "server CPU µs/msg", "chunks"):
        table.add_column(heading, justify="right")
    for name, figures in measured.items():
        rates = [figure.messages_per_second / 1000 for figure in figures]
        cpu = median(figure.cpu_microseconds for figure in figures)
        chunks = int(median(figure.chunks for figure in figures))
        table.add_row(
            name,
            f"{median(rates):,.0f}",
            f"{min(rates):,.0f} to {max(rates):,.0f}",
            f"{cpu:.2f}",
            f"{chunks:,}" if chunks else "",
        )
    return table


if __name__ == "__main__":
    main()
