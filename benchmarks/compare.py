"""`python -m benchmarks.compare`: streamd and RabbitMQ, row by row in the same run.

In each round every row goes through both servers, so that a ratio comes from figures that were
measured close together. Both share this machine's cores with the generator.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import click
from rich.console import Console

from benchmarks.peer import PORT, SCRIPT, is_ready, peer
from benchmarks.report import Recorded, Report, as_json, from_json, summary, table
from benchmarks.rows import STAGES, Row, Stage
from benchmarks.scenarios import Skipped
from benchmarks.target import Server, Target

_WIDTH = 140
_STREAMD, _PEER = "streamd", "RabbitMQ"


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
@click.option("--peer", "address", type=Address(), help="The peer, where it runs already.")
@click.option(
    "--peer-script",
    type=click.Path(path_type=Path),
    help="Script that understands start, pid and stop.  [default: benchmarks/rabbitmq.sh]",
)
@click.option(
    "--peer-port", default=PORT, show_default=True, help="Where the script's server listens."
)
@click.option("--alone", is_flag=True, help="Measure streamd without a peer.")
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
    """Measure streamd and RabbitMQ side by side: one table with medians, ratios and goals.

    RabbitMQ is started by a script that was set up once, or runs already; otherwise streamd is
    measured alone. What was started here is stopped at the end.
    """
    if recorded:
        report = from_json(json.loads(recorded.read_text()))
    else:
        script = None if alone or address else _script(peer_script)
        with peer(address, script, peer_port) as other:
            report = _measured(other, rounds, only, scale)
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
    console.print(table(report))
    console.print(summary(report))
    for note in report.notes:
        console.print(note)


def _script(chosen: Path | None) -> Path | None:
    """The script that starts RabbitMQ; None where the usual one was never set up."""
    if chosen is None and not is_ready(SCRIPT):
        click.echo(f"RabbitMQ is not set up; once, as root: {SCRIPT} setup", err=True)
        return None
    return chosen or SCRIPT


def _measured(other: Server | None, rounds: int, only: Sequence[str], scale: float) -> Report:
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "rounds": rounds,
        "scale": scale,
        "peer": other is not None,
    }
    report = Report(about, [], [])
    if other is None:
        _note(report, "no RabbitMQ: streamd alone, without ratios")
    elif not other.can_restart:
        _note(report, "RabbitMQ was running before: its idle memory is what it held then")
    chosen = [stage._replace(rows=_chosen(stage, only)) for stage in STAGES]
    if not any(stage.rows for stage in chosen):
        raise click.UsageError("no row has such a name")
    for stage in chosen:
        report.figures.extend(Recorded(r.name, f, [], []) for r in stage.rows for f in r.figures)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="streamd-bench-"))
        servers: dict[str, Server] = {_STREAMD: stack.enter_context(Target(Path(folder)))}
        if other is not None:
            servers = {_PEER: other, **servers}
        for stage in chosen:
            for number in range(rounds if stage.is_repeated else 1):
                turns = list(servers.items())[:: -1 if number % 2 else 1]
                for row, (name, server) in product(stage.rows, turns):
                    click.echo(f"round {number + 1}, {row.name}: {name}", err=True)
                    _measure(report, row, name, server, scale)
    return report


def _chosen(stage: Stage, only: Sequence[str]) -> tuple[Row, ...]:
    return tuple(row for row in stage.rows if not only or any(it in row.name for it in only))


def _measure(report: Report, row: Row, name: str, server: Server, scale: float) -> None:
    """Add a round of a row; one that fails leaves a note, and the run goes on."""
    try:
        figures = row.work(server, scale)
    except Skipped as reason:
        _note(report, f"{row.name}, {name}: {reason}")
        return
    except (OSError, RuntimeError) as error:
        _note(report, f"{row.name}, {name}: a round failed: {error}")
        return
    for it in _of(report, row):
        rounds = it.streamd if name == _STREAMD else it.peer
        rounds.append(figures[it.figure.key])


def _of(report: Report, row: Row) -> Iterator[Recorded]:
    return (it for it in report.figures if it.row == row.name)


def _note(report: Report, text: str) -> None:
    if text not in report.notes:
        click.echo(text, err=True)
        report.notes.append(text)


if __name__ == "__main__":
    main()
