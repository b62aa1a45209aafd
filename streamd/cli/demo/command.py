"""`streamd demo`: publish real records, read only the wanted chunks, and show the savings."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click
import trio
from rich.box import SIMPLE
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamd.broker.catalog.catalog import DEFAULT_HOST
from streamd.cli.demo import selectors as demo_selectors, tuning as demo_tuning
from streamd.cli.demo.flights import Flight, NoRecords, flights_file, read_flights
from streamd.cli.demo.selectors import Selected, register, select
from streamd.cli.demo.tuning import Tuned, tune_and_check
from streamd.cli.terminal import Failed, note, notes, show, show_paragraphs
from streamd.config import Config
from streamd.operations.names import stream_folder
from streamd.server import serve

if TYPE_CHECKING:
    from clients import Client, ReceivedMessage

_STREAM = "flights"
_FILTER_SIZES = (16, 64)
_ENTRY_HEAD = 4  # bytes before each message in a chunk
_READABLE_WIDTH = 88


class Question(NamedTuple):
    """A property to filter flights by, and the values to ask for."""

    column: str
    value_of: Callable[[Flight], str]
    wanted: Sequence[tuple[str, ...]]


_QUESTIONS = (
    Question("carrier", lambda flight: flight.carrier, (("HA",), ("UA",), ("HA", "UA"))),
    Question("dest", lambda flight: flight.dest, (("ANC",), ("ORD",), ("ANC", "ORD"))),
)


class Measured(NamedTuple):
    """What one consumer got; every figure is from this run."""

    wanted: tuple[str, ...]
    filter_size: int
    chunks: int
    delivered: int
    skipped: int
    false_chunks: int
    messages: int
    bytes_delivered: int
    bytes_in_stream: int
    seconds: float

    @property
    def saved(self) -> float:
        """Share of the stream's bytes that were not sent."""
        return 1 - self.bytes_delivered / self.bytes_in_stream


@click.command()
def demo() -> None:
    """Show chunk filtering on real records: all flights that left New York in 2013.

    Starts a server in a temporary folder, publishes 336,776 flights with their carrier, then with
    their destination, as filter value, reads some of them back, and picks some by SQL. Then tunes
    the stream from its own history and publishes it again as recommended. Needs the extra "demo":
    in a checkout of streamd, pip install '.[demo]'. Takes about a minute and a half.
    """
    try:
        path = flights_file()
    except NoRecords as error:
        raise Failed(str(error)) from error
    with _progress() as advance:
        advance("reading the records")
        flights = list(read_flights(path))
        results, selected, tuned = trio.run(_measure, flights, advance)
    for question in _QUESTIONS:
        show(_table(question, flights, results[question.column]))
    show(demo_selectors.table(flights, selected))
    words = demo_selectors.in_words(selected)
    if isinstance(tuned, Tuned):
        show(demo_tuning.table(tuned))
        words += f"\n\n{demo_tuning.in_words(tuned)}"
    else:
        note(tuned)
    show_paragraphs(_in_words(flights, results, words), markup=True, width=_READABLE_WIDTH)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A progress bar on a terminal, nothing elsewhere; yields a function that advances it."""
    steps = len(_QUESTIONS) * (len(_FILTER_SIZES) * 4 + 1) + 4
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    terminal = notes()
    with Progress(
        *columns, console=terminal, disable=not terminal.is_terminal, transient=True
    ) as bar:
        task = bar.add_task("", total=steps, completed=-1)

        def advance(what: str) -> None:
            bar.update(task, advance=1, description=what)

        yield advance


async def _measure(
    flights: Sequence[Flight], advance: Callable[[str], None]
) -> tuple[dict[str, list[Measured]], list[Selected], Tuned | str]:
    """Ask every question with every filter size, then tune, on a server of its own."""
    from clients import connect  # noqa: PLC0415 - the server does not need it

    results: dict[str, list[Measured]] = {}
    selected: list[Selected] = []
    with tempfile.TemporaryDirectory(prefix="streamd-demo-") as folder:
        async with trio.open_nursery() as nursery:
            config = Config(data=folder, stream_port=0, amqp_port=None, http_port=None)
            server = await nursery.start(partial(serve, config))
            uri = f"rabbitmq-stream://guest:guest@{server.addresses['stream']}/"
            async with connect(uri, name="streamd demo") as client:
                for question in _QUESTIONS:
                    measured = results[question.column] = []
                    for filter_size in _FILTER_SIZES:
                        advance(f"publishing by {question.column}, filter of {filter_size} bytes")
                        await _publish(client, flights, question, filter_size)
                        for wanted in question.wanted:
                            advance(f"reading {' and '.join(wanted)}")
                            measured.append(
                                await _read(client, flights, question, filter_size, wanted)
                            )
                        if filter_size == max(_FILTER_SIZES):
                            advance(f"selecting, chunks by {question.column}")
                            selected += await select(client, _STREAM, question.column, flights)
                        await client.delete(_STREAM)
                tuned = await _tune(client, folder, flights, advance)
            nursery.cancel_scope.cancel()
    return results, selected, tuned


async def _tune(
    client: "Client", data: str, flights: Sequence[Flight], advance: Callable[[str], None]
) -> Tuned | str:
    question = _QUESTIONS[-1]
    await client.create(_STREAM, filter_size=demo_tuning.FILTER_SIZE)
    folder = stream_folder(data, DEFAULT_HOST, _STREAM)
    publish = partial(_send, client, flights, question)
    return await tune_and_check(client, _STREAM, folder, publish, advance)


async def _publish(
    client: "Client", flights: Sequence[Flight], question: Question, filter_size: int
) -> None:
    arguments = {"stream-filter-property": question.column}
    await client.create(_STREAM, filter_size=filter_size, arguments=arguments)
    if filter_size == max(_FILTER_SIZES):
        await register(client, _STREAM, question.column)
    await _send(client, flights, question)


async def _send(client: "Client", flights: Sequence[Flight], question: Question) -> None:
    async with client.producer(_STREAM) as producer:
        for flight in flights:
            await producer.send_encoded(flight.encoded, question.value_of(flight))


async def _read(
    client: "Client",
    flights: Sequence[Flight],
    question: Question,
    filter_size: int,
    wanted: tuple[str, ...],
) -> Measured:
    """Read with a filter, and compare the messages with the records."""

    def value_of(message: "ReceivedMessage") -> str:
        return str(message.application_property(question.column))

    (info,) = await client.describe(_STREAM)
    began = time.perf_counter()
    offsets: list[int] = []
    async with client.consumer(
        _STREAM, offset="first", filter_values=wanted, filter_value=value_of, until_end=True
    ) as consumer:
        async for messages in consumer.batches():
            offsets += [message.offset for message in messages]
        seconds = time.perf_counter() - began
        progress = await consumer.progress()
    expected = [n for n, flight in enumerate(flights) if question.value_of(flight) in wanted]
    if offsets != expected:
        came = len(set(offsets) & set(expected))
        names = " or ".join(wanted)
        raise Failed(f"{len(expected)} flights match {names}, {came} came: please report this")
    counts = consumer.counts
    return Measured(
        wanted=wanted,
        filter_size=filter_size,
        chunks=info.figures["chunks"],
        delivered=counts.chunks,
        skipped=progress["skipped_chunks"],
        false_chunks=counts.false_chunks,
        messages=counts.matched,
        bytes_delivered=counts.bytes,
        bytes_in_stream=sum(len(flight.encoded) + _ENTRY_HEAD for flight in flights),
        seconds=seconds,
    )


def _table(question: Question, flights: Sequence[Flight], measured: Sequence[Measured]) -> Table:
    distinct = len({question.value_of(flight) for flight in flights})
    table = Table(
        title=f"{len(flights):,} flights, filter value = {question.column} ({distinct} values)",
        title_justify="left",
        title_style="bold",
        box=SIMPLE,
        padding=0,
    )
    table.add_column("\nwanted")
    for heading in (
        "filter\nbytes",
        "chunks\nin all",
        "chunks\nsent",
        "chunks\nskipped",
        "false\npos.",
        "\nmatches",
        "MB\nin all",
        "MB\nsent",
        "bytes\nsaved",
        "\nsec.",
    ):
        table.add_column(heading, justify="right")
    for row in measured:
        table.add_row(
            " ".join(row.wanted),
            str(row.filter_size),
            f"{row.chunks:,}",
            f"{row.delivered:,}",
            f"{row.skipped:,}",
            f"{row.false_chunks:,}",
            f"{row.messages:,}",
            f"{row.bytes_in_stream / 1e6:.1f}",
            f"{row.bytes_delivered / 1e6:.1f}",
            f"{row.saved:.1%}",
            f"{row.seconds:.2f}",
            end_section=row.wanted == question.wanted[-1],
        )
    return table


def _in_words(
    flights: Sequence[Flight], results: dict[str, list[Measured]], about_selectors: str
) -> str:
    def found(column: str, wanted: str, filter_size: int) -> Measured:
        return next(
            m for m in results[column] if m.wanted == (wanted,) and m.filter_size == filter_size
        )

    rare, frequent = found("carrier", "HA", 64), found("carrier", "UA", 64)
    small, large = found("dest", "ANC", 16), found("dest", "ANC", 64)
    return f"""\
[bold]Filters.[/bold] The server stores messages in chunks, and in each chunk's header a \
filter over the filter values in it. A consumer that asked for Hawaiian Airlines (HA, \
{rare.messages:,} of {len(flights):,} flights) was sent {rare.delivered:,} of {rare.chunks:,} \
chunks: {rare.saved:.0%} of the bytes were not sent. United (UA) is in nearly every chunk, so \
its filter saves next to nothing ({frequent.saved:.1%}). A false positive is a chunk that was \
sent although no message in it matched. For {_distinct(flights)} destinations 16 bytes are few, \
and such a filter alone lets far too many chunks pass; the server's index over the filter values \
of each segment brings that down to {small.false_chunks:,} for Anchorage (ANC), as with 64 bytes \
({large.false_chunks:,}). The consumer tested every message as well, so only matches were kept; \
they were compared with the records, and none was lost.

{about_selectors}

[bold]What to try next.[/bold] Start a server with `streamd serve` and create a stream with \
`streamd stream create NAME --filter-property carrier`. Smaller chunks can be skipped more often: \
add `--chunk-max-records 50`. Publish with `streamd publish NAME`, read with \
`streamd consume NAME --filter HA`, or use any RabbitMQ stream client.
"""


def _distinct(flights: Sequence[Flight]) -> int:
    return len({flight.dest for flight in flights})
