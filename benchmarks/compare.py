"""`python -m benchmarks.compare`: streamd and its peers, row by row in the same run.

Each peer has rows of its own: RabbitMQ those of the stream protocol, RocketMQ those of messages
that are chosen and looked up exactly. In each round every row goes through both servers, so that a
ratio comes from figures that were measured close together. Both share this machine's cores with the
generator.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

from benchmarks.exact import ROCKETMQ_SCRIPT, OrderTarget, rocketmq
from benchmarks.peer import PORT, SCRIPT, is_ready, peer
from benchmarks.report import RABBITMQ, Recorded, Report, as_json, from_json, summary, tables
from benchmarks.rows import ORDER_STAGES, STAGES, Row, Stage
from benchmarks.scenarios import Figures, Skipped
from benchmarks.target import Server, Target

_WIDTH = 140
_STREAMD, _ROCKETMQ = "streamd", "RocketMQ"
_Peer = Callable[[], AbstractContextManager[Server | None]]


class Comparison(NamedTuple):
    """A peer, and what is measured of it and of streamd.

    Attributes:
        target: starts streamd on a data folder.
        setup: the command that sets the peer up, and what it needs.
        warm_rounds: of the peer alone, before those that count: it compiles its code meanwhile.
    """

    peer_name: str
    stages: tuple[Stage, ...]
    target: Callable[[Path], Target]
    setup: str
    warm_rounds: int = 0

    def of(self, only: Sequence[str]) -> "Comparison":
        """The same with the rows of such names."""
        chosen = (it._replace(rows=_chosen(it, only)) for it in self.stages)
        return self._replace(stages=tuple(it for it in chosen if it.rows))


_COMPARISONS = (
    Comparison(RABBITMQ, STAGES, Target, f"once, as root: {SCRIPT} setup"),
    Comparison(
        _ROCKETMQ,
        ORDER_STAGES,
        OrderTarget,
        f"once, with Maven and a JDK: {ROCKETMQ_SCRIPT} setup",
        1,
    ),
)


class Address(click.ParamType[tuple[int, int]]):
    """PORT:PID."""

    name = "PORT:PID"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Two numbers."""
        port, _, pid = str(value).partition(":")
        if not (port.isdigit() and pid.isdigit()):
            self.fail(f"{value!r} is not a port and a process id, as in 15552:4711", param, ctx)
        return int(port), int(pid)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--peer", "address", type=Address(), help="RabbitMQ, where it runs already.")
@click.option(
    "--peer-script",
    type=click.Path(path_type=Path),
    help="Script that starts RabbitMQ: start, pid and stop.  [default: benchmarks/rabbitmq.sh]",
)
@click.option(
    "--peer-port", default=PORT, show_default=True, help="Where the script's server listens."
)
@click.option("--alone", is_flag=True, help="Measure streamd without peers.")
@click.option("--rounds", default=5, show_default=True, help="Rounds; medians are shown.")
@click.option("--only", multiple=True, metavar="NAME", help="Rows whose name contains this.")
@click.option("--scale", default=1.0, show_default=True, help="Share of the full size.")
@click.option("--json", "wants_json", is_flag=True, help="One JSON object instead of the table.")
@click.option("--chart", type=click.Path(path_type=Path), help="Draw the ratios into a PNG file.")
@click.option(
    "--recorded",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show a run that was written with --json instead of measuring.",
)
def main(  # noqa: PLR0913 - each an option
    address: tuple[int, int] | None,
    peer_script: Path | None,
    peer_port: int,
    rounds: int,
    only: tuple[str, ...],
    scale: float,
    chart: Path | None,
    recorded: Path | None,
    *,
    alone: bool,
    wants_json: bool,
) -> None:
    """Measure streamd beside RabbitMQ and RocketMQ: tables with medians, ratios and goals.

    A peer is started by a script that was set up once, or runs already; without it, streamd is
    measured alone. What was started here is stopped at the end.
    """
    if recorded:
        report = from_json(json.loads(recorded.read_text()))
    else:
        peers: dict[str, _Peer] = {}
        if not alone:
            if address or peer_script or is_ready(SCRIPT):
                peers[RABBITMQ] = lambda: peer(address, peer_script or SCRIPT, peer_port)
            if is_ready(ROCKETMQ_SCRIPT):
                peers[_ROCKETMQ] = rocketmq
        report = _measured(peers, rounds, only, scale)
    if chart:
        from benchmarks.chart import draw  # noqa: PLC0415 - needs the extra `bench`

        try:
            draw(report, chart)
        except ValueError as reason:
            click.echo(reason, err=True)
    if wants_json:
        click.echo(json.dumps(as_json(report), indent=1))
        return
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    for table in tables(report):
        console.print(table)
    console.print(summary(report))
    for note in report.notes:
        console.print(note)


def _measured(peers: Mapping[str, _Peer], rounds: int, only: Sequence[str], scale: float) -> Report:
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "rounds": rounds,
        "scale": scale,
        "peer": bool(peers),
    }
    report = Report(about, [], [])
    chosen = [it for it in (comparison.of(only) for comparison in _COMPARISONS) if it.stages]
    if not chosen:
        raise click.UsageError("no row has such a name")
    for it in chosen:
        report.figures.extend(
            Recorded(row.name, figure, [], [], it.peer_name)
            for stage in it.stages
            for row in stage.rows
            for figure in row.figures
        )
    for it in chosen:
        with (
            tempfile.TemporaryDirectory(prefix="streamd-bench-") as folder,
            peers.get(it.peer_name, nullcontext)() as other,
            it.target(Path(folder)) as target,
        ):
            _compare(report, it, target, other, rounds, scale)
    return report


def _compare(
    report: Report, it: Comparison, target: Target, other: Server | None, rounds: int, scale: float
) -> None:
    servers: dict[str, Server] = {_STREAMD: target}
    if other is None:
        _note(report, f"no {it.peer_name}: streamd alone, without ratios ({it.setup})")
    else:
        servers = {it.peer_name: other, **servers}
        if not other.can_restart:
            _note(report, f"{it.peer_name} was running before: its memory is what it held then")
        for row in (row for stage in it.stages for row in stage.rows * it.warm_rounds):
            click.echo(f"not counted, {row.name}: {it.peer_name}", err=True)
            _figures(report, row, it.peer_name, other, scale)
    for stage in it.stages:
        for number in range(rounds if stage.is_repeated else 1):
            turns = list(servers.items())[:: -1 if number % 2 else 1]
            for row, (name, server) in product(stage.rows, turns):
                click.echo(f"round {number + 1}, {row.name}: {name}", err=True)
                _measure(report, row, name, server, scale)


def _chosen(stage: Stage, only: Sequence[str]) -> tuple[Row, ...]:
    return tuple(row for row in stage.rows if not only or any(it in row.name for it in only))


def _measure(report: Report, row: Row, name: str, server: Server, scale: float) -> None:
    """Add a round of a row, unless it fails."""
    if figures := _figures(report, row, name, server, scale):
        for it in _of(report, row):
            rounds = it.streamd if name == _STREAMD else it.peer
            rounds.append(figures[it.figure.key])


def _figures(report: Report, row: Row, name: str, server: Server, scale: float) -> Figures | None:
    """What a round gives; one that fails leaves a note, and the run goes on."""
    try:
        return row.work(server, scale)
    except Skipped as reason:
        _note(report, f"{row.name}, {name}: {reason}")
    except (OSError, RuntimeError) as error:
        _note(report, f"{row.name}, {name}: a round failed: {error}")
    return None


def _of(report: Report, row: Row) -> Iterator[Recorded]:
    return (it for it in report.figures if it.row == row.name)


def _note(report: Report, text: str) -> None:
    if text not in report.notes:
        click.echo(text, err=True)
        report.notes.append(text)


if __name__ == "__main__":
    main()
