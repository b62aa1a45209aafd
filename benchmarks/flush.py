"""`python -m benchmarks.flush`: what waiting for the disk costs publishers, in each flush mode.

A server for each mode, all on the same disk; they take turns, so that a busy moment of the machine
slows all of them. With `--before` another version of streamd is one more of them.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.load import Load, frames, publish
from benchmarks.target import Target, other_version
from streamd.broker.streams.flusher import FlushMode
from streamd.wire.stream import commands as c

_STREAM = "benchmark"
_WIDTH = 120
_LOADS = {
    "100 B, 100 per frame": Load(500_000),
    "1 KiB, 100 per frame": Load(60_000, size=1024),
    "100 B, one frame of 10 at a time": Load(20_000, batch=10, window=10),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=5, show_default=True, help="Rounds; the median is shown.")
@click.option("--scale", default=1.0, show_default=True, help="Times as many messages.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder on the disk to be measured.")
@click.option("--before", type=click.Path(exists=True), help="Folder of another version.")
def main(rounds: int, scale: float, data: Path | None, before: str | None) -> None:
    """Measure publishing with confirms in each flush mode: messages per second, CPU for each."""
    loads = {
        name: load._replace(messages=int(load.messages * scale)) for name, load in _LOADS.items()
    }
    made = {name: frames(load) for name, load in loads.items()}
    rates: dict[tuple[str, str], list[float]] = {}
    work: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=data)))
        targets: dict[str, Target] = {}
        if before is not None:
            with other_version(before):
                targets["before"] = stack.enter_context(Target(folder / "before"))
        for mode in FlushMode:
            target = Target(folder / mode.value, "--flush", mode.value)
            targets[mode.value] = stack.enter_context(target)
        for _ in range(rounds):
            for load_name, load in loads.items():
                for name, target in targets.items():
                    with target.connect() as connection:
                        connection.request(c.Create, _STREAM, ())
                        used = target.cpu_seconds()
                        seconds = publish(connection, _STREAM, load, made[load_name])
                        used = target.cpu_seconds() - used
                        connection.request(c.Delete, _STREAM)
                    rates.setdefault((load_name, name), []).append(load.messages / seconds)
                    work.setdefault((load_name, name), []).append(used / load.messages * 1e6)
    table = Table(box=SIMPLE)
    for heading in ("messages per second", *targets):
        table.add_column(heading, justify="right" if heading in targets else "left")
    for load_name in loads:
        cells = (
            f"{median(rates[load_name, name]):,.0f}; {median(work[load_name, name]):.2f} µs"
            for name in targets
        )
        table.add_row(load_name, *cells)
    Console(width=_WIDTH).print(table)


if __name__ == "__main__":
    main()
