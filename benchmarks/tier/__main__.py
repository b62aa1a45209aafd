"""`python -m benchmarks.tier`: publishing, reading and restoring with an object store.

The store runs on this machine, too, so it takes a part of the same processors.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.tier.bench import QUICK, Bench, Row, Size, cold_stream
from benchmarks.tier.confirming import confirming
from benchmarks.tier.machines import reading_elsewhere, restoring
from benchmarks.tier.reading import choosing, first_messages, reading_all
from benchmarks.tier.stores import KINDS, best_kind, is_there, started
from benchmarks.tier.writing import publishing, staying_small, uploading

_WIDTH = 130


def _reading(bench: Bench) -> Iterator[Row]:
    cold = cold_stream(bench)
    for work in (reading_all, choosing, first_messages):
        yield from work(bench, cold)


_PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "publishing": publishing,
    "confirming": confirming,
    "uploading": uploading,
    "local": staying_small,
    "reading": _reading,
    "restoring": restoring,
    "elsewhere": reading_elsewhere,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", type=click.Choice(KINDS), help="[default: the first that is there]")
@click.option("--quick", is_flag=True, help="Little of everything, once.")
@click.option("--rounds", type=click.IntRange(1), help="Of what is measured in turn.")
@click.option(
    "--only", multiple=True, type=click.Choice(list(_PARTS)), help="Parts that are measured."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per row.")
def main(
    store: str | None, rounds: int | None, only: tuple[str, ...], *, quick: bool, as_json: bool
) -> None:
    """Measure a server whose full segments go to an object store on this machine.

    `make stores` builds the stores; a folder is always there.

    \b
    Examples:
      python -m benchmarks.tier
      python -m benchmarks.tier --only reading --store gofakes3 --rounds 3
    """
    kind = store or best_kind()
    if not is_there(kind):
        raise click.UsageError(f"{kind} is not there: make stores builds it")
    size = QUICK if quick else Size()
    rows = []
    for part, work in _PARTS.items():
        if only and part not in only:
            continue
        for row in _measured(kind, work, size._replace(rounds=rounds or size.rounds)):
            rows.append(row)
            if as_json:
                sys.stdout.write(json.dumps(_plain(row)) + "\n")
                sys.stdout.flush()
            else:
                click.echo(f"{part}: {row.name}: {row.value}", err=True)
    if not as_json:
        Console(width=_WIDTH, highlight=False).print(_table(kind, rows))


def _measured(kind: str, work: Callable[[Bench], Iterator[Row]], size: Size) -> Iterator[Row]:
    """With an empty store, and folders that are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="streamd-bench-") as folder, started(kind) as store:
        yield from work(Bench(store, Path(folder), size))


def _plain(row: Row) -> dict[str, object]:
    goal = None if row.goal is None else f"{row.goal}"
    return {**row._asdict(), "goal": goal, "is_reached": row.is_reached}


def _table(kind: str, rows: list[Row]) -> Table:
    table = Table("", "measured", "goal", "", title=f"store: {kind}", box=SIMPLE)
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal} {row.unit}"
        reached = "" if row.is_reached is None else "reached" if row.is_reached else "missed"
        table.add_row(row.name, row.value, goal, reached)
    return table


if __name__ == "__main__":
    main()
