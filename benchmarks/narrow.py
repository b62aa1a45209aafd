"""`python -m benchmarks.narrow`: many consumers, each for a filter value of its own.

Every message is for one of them. Shows how many messages came in time and how late, and what that
costs the server: CPU per message and per subscription, memory per subscription.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.compare import Address
from benchmarks.crowd import IN_TIME_SECONDS, Crowd, Served, serve
from benchmarks.peer import PORT, SCRIPT, is_ready, peer
from benchmarks.report import number
from benchmarks.target import Server, Target, other_version
from streamd.config import MAX_IDS
from streamd.wire.stream import commands as c

_STREAM = "narrow"
_WIDTH = 140
_HEADINGS = {
    "in_time": f"within {IN_TIME_SECONDS:g} s, %",
    "p50": "p50 ms",
    "p99": "p99 ms",
    "cpu": "CPU µs/msg",
    "subscribing": "CPU µs to subscribe",
    "memory": "kB each",
    "others": "others' load, %",
}


class _Key(NamedTuple):
    """What one line of the table is about."""

    server: str
    crowd: Crowd


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--subscriptions",
    multiple=True,
    type=click.IntRange(1),
    default=(100, 1_000, 5_000, 50_000),
    show_default=True,
    help="How many; several times for several runs.",
)
@click.option(
    "--connections",
    type=click.IntRange(0),
    default=0,
    help="That share them.  [default: one per 10, at most 500]",
)
@click.option("--rate", default=1_000, show_default=True, help="Messages per second.")
@click.option("--seconds", default=5.0, show_default=True, help="How long.")
@click.option("--rounds", default=3, show_default=True, help="Rounds; medians are shown.")
@click.option("--peer", "address", type=Address(), help="RabbitMQ, where it runs already.")
@click.option("--alone", is_flag=True, help="Measure streamd without RabbitMQ.")
@click.option(
    "--peer-most",
    default=1_000,
    show_default=True,
    help="RabbitMQ gets no more subscriptions than this.",
)
@click.option(
    "--before", type=click.Path(exists=True), help="Folder of another version of streamd."
)
@click.option("--json", "wants_json", is_flag=True, help="All rounds as JSON instead of the table.")
def main(  # noqa: PLR0913 - each an option
    subscriptions: tuple[int, ...],
    connections: int,
    rate: int,
    seconds: float,
    rounds: int,
    address: tuple[int, int] | None,
    peer_most: int,
    before: str | None,
    *,
    alone: bool,
    wants_json: bool,
) -> None:
    """Measure many narrow consumers of one stream, streamd and RabbitMQ in turn.

    RabbitMQ is started where `benchmarks/rabbitmq.sh setup` was run once. Both share this machine's
    cores with the generator, and with whatever else runs: see the last column.
    """
    crowds = [Crowd(count, rate, seconds, connections) for count in subscriptions]
    for crowd in crowds:
        if crowd.subscriptions > crowd.members * MAX_IDS:
            raise click.UsageError(
                f"{crowd.subscriptions:,} subscriptions are too many for {crowd.members:,} "
                f"connections: {MAX_IDS} each are the most"
            )
    script = None if alone or address or not is_ready(SCRIPT) else SCRIPT
    found: dict[_Key, list[Served]] = {}
    with peer(address, script, PORT) as other:
        for turn, crowd in product(range(rounds), crowds):
            for name, opened in _servers(other, before, is_small=crowd.subscriptions <= peer_most):
                click.echo(f"round {turn + 1}, {crowd.subscriptions:,}: {name}", err=True)
                with opened as server:
                    found.setdefault(_Key(name, crowd), []).append(_measured(server, crowd))
    if wants_json:
        lines = [
            {
                "server": name,
                **crowd._replace(connections=crowd.members)._asdict(),
                "rounds": [it._asdict() for it in rows],
            }
            for (name, crowd), rows in found.items()
        ]
        click.echo(json.dumps(lines, indent=1))
        return
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    console.print(_table(found, rounds))


def _servers(
    other: Server | None, before: str | None, *, is_small: bool
) -> list[tuple[str, AbstractContextManager[Server]]]:
    """Those to be measured; streamd is started anew each time, so that its memory can be told."""
    servers: list[tuple[str, AbstractContextManager[Server]]] = [("streamd", _started(None))]
    if before is not None:
        servers.append(("before", _started(before)))
    if other is not None and is_small:
        servers.append(("RabbitMQ", nullcontext(other)))
    return servers


@contextmanager
def _started(folder: str | None) -> Iterator[Server]:
    """A new streamd, this version or that of a folder."""
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamd-bench-")))
        with other_version(folder) if folder else nullcontext():
            target = Target(data)
        yield stack.enter_context(target)


def _measured(server: Server, crowd: Crowd) -> Served:
    with server.connect() as connection:
        connection.request(c.Create, _STREAM, ())
        try:
            return serve(server, _STREAM, crowd)
        finally:
            connection.request(c.Delete, _STREAM)


def _table(found: Mapping[_Key, Sequence[Served]], rounds: int) -> Table:
    """Medians."""
    rates = {f"{key.crowd.rate:,} msg/s" for key in found}
    title = f"{', '.join(rates)}, medians of {rounds} rounds"
    made = Table(title=title, title_justify="left", box=SIMPLE)
    made.add_column("")
    for heading in ("subscriptions", "connections", *_HEADINGS.values()):
        made.add_column(heading, justify="right")
    for (name, crowd), rows in found.items():
        figures = (number(median(getattr(row, field) for row in rows)) for field in _HEADINGS)
        made.add_row(name, f"{crowd.subscriptions:,}", f"{crowd.members:,}", *figures)
    return made


if __name__ == "__main__":
    main()
