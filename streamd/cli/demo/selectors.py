"""The demo's table of SQL selectors over flights, and of the chunks that each was sent."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.box import SIMPLE
from rich.table import Table

from streamd.cli.demo.flights import Flight
from streamd.cli.terminal import Failed

if TYPE_CHECKING:
    from clients import Client

_GROUP = "demo"
_LATE = "dep_delay > 600 AND origin <> 'JFK'"


class Selection(NamedTuple):
    """A selector, and the same question in Python.

    Attributes:
        matches: whether a flight is selected.
        is_standing: it was registered before the flights were published.
    """

    sql: str
    matches: Callable[[Flight], bool]
    is_standing: bool = False


def _is_late(flight: Flight) -> bool:
    delay = flight.dep_delay
    return delay is not None and delay > 600 and flight.origin != "JFK"  # noqa: PLR2004 - as in _LATE


# By the filter property of the stream that they read.
SELECTIONS = {
    "carrier": (
        Selection(
            "carrier = 'HA' AND dep_delay > 60",
            lambda f: f.carrier == "HA" and f.dep_delay is not None and f.dep_delay > 60,  # noqa: PLR2004
        ),
        Selection(_LATE, _is_late),
        Selection(_LATE, _is_late, is_standing=True),
    ),
    "dest": (
        Selection(
            "dest IN ('ANC', 'HNL') AND distance > 3000",
            lambda f: f.dest in ("ANC", "HNL") and f.distance > 3000,  # noqa: PLR2004
        ),
    ),
}


class Selected(NamedTuple):
    """What a consumer with a selector got; every figure is from this run."""

    selection: Selection
    filter_property: str
    chunks: int
    delivered: int
    tested: int
    matched: int
    bytes_delivered: int
    bytes_in_stream: int
    seconds: float


async def register(client: "Client", stream: str, filter_property: str) -> None:
    """Register the standing selectors, before the flights are published."""
    for selection in SELECTIONS[filter_property]:
        if selection.is_standing:
            await client.register_selector(stream, _GROUP, sql=selection.sql)


async def select(
    client: "Client", stream: str, filter_property: str, flights: Sequence[Flight]
) -> list[Selected]:
    """Read with each selector, and compare the messages with the records."""
    return [
        await _select(client, stream, filter_property, selection, flights)
        for selection in SELECTIONS[filter_property]
    ]


async def _select(
    client: "Client",
    stream: str,
    filter_property: str,
    selection: Selection,
    flights: Sequence[Flight],
) -> Selected:
    (info,) = await client.describe(stream)
    began = time.perf_counter()
    offsets: list[int] = []
    asked = {"group": _GROUP} if selection.is_standing else {"sql": selection.sql}
    async with client.consumer(
        stream,
        offset="first",
        until_end=True,
        sql=asked.get("sql"),
        group=asked.get("group", ""),
    ) as consumer:
        async for messages in consumer.batches():
            offsets += [message.offset for message in messages]
        seconds = time.perf_counter() - began
    expected = [n for n, flight in enumerate(flights) if selection.matches(flight)]
    if offsets != expected:
        came = len(set(offsets) & set(expected))
        raise Failed(
            f"{len(expected)} flights match {selection.sql}, {came} of {len(offsets)} that came "
            "do: please report this"
        )
    counts = consumer.counts
    return Selected(
        selection=selection,
        filter_property=filter_property,
        chunks=info.figures["chunks"],
        delivered=counts.chunks,
        tested=counts.messages,
        matched=counts.matched,
        bytes_delivered=counts.bytes,
        bytes_in_stream=info.figures["bytes"],
        seconds=seconds,
    )


def table(flights: Sequence[Flight], selected: Sequence[Selected]) -> Table:
    """A table with one row for each selector."""
    made = Table(
        title=f"{len(flights):,} flights, picked by SQL (filter of 64 bytes)",
        title_justify="left",
        title_style="bold",
        box=SIMPLE,
        padding=0,
    )
    made.add_column("\nselector")
    made.add_column("chunks\nchosen by")
    for heading in (
        "chunks\nin all",
        "chunks\nsent",
        "messages\ntested",
        "\nmatches",
        "MB\nsent",
        "\nsec.",
    ):
        made.add_column(heading, justify="right")
    for row in selected:
        pushed = row.delivered < row.chunks
        chosen = f"its {row.filter_property}" if pushed else "nothing"
        made.add_row(
            row.selection.sql,
            "standing" if row.selection.is_standing else chosen,
            f"{row.chunks:,}",
            f"{row.delivered:,}",
            f"{row.tested:,}",
            f"{row.matched:,}",
            f"{row.bytes_delivered / 1e6:.1f}",
            f"{row.seconds:.2f}",
        )
    return made


def in_words(selected: Sequence[Selected]) -> str:
    """The table in a paragraph."""
    pushed = selected[0]
    plain, standing = (
        next(row for row in selected if row.selection == Selection(_LATE, _is_late, is_standing))
        for is_standing in (False, True)
    )
    return f"""\
[bold]SQL.[/bold] Each stream declares the property of its filter values \
(`--filter-property`), so the consumer of `{pushed.selection.sql}` asked by itself for the \
chunks with HA and tested only {pushed.tested:,} messages. `{_LATE}` does not name the carrier: \
all {plain.chunks:,} chunks had to be sent. Registered as a standing selector before the flights \
were published, it was tried on each chunk as that was written, and the same question was answered \
from {standing.delivered:,} chunks."""
