"""`make demo-tier`: a stream ten times larger than what it may have on the disk, and what it costs.

Every flight that left New York in 2013 is published; one question is asked of all of them; then the
disk is lost. A second machine is lost in the middle of publishing to a stream that is confirmed by
the store. What the store is asked for is counted by a proxy before it, or, where the store is a
folder, by the server.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import trio
from rich.box import SIMPLE
from rich.table import Table

from benchmarks.target import Target
from benchmarks.tier.bench import (
    folder_of,
    status,
    stored,
    wait_until,
    wait_until_ready,
)
from benchmarks.tier.stores import Place, Proxy, Store, is_there, started
from clients import ReceivedMessage, connect
from segments.errors import SegmentsError
from streamd.cli.demo.flights import Flight, NoRecords, flights_file, read_flights
from streamd.cli.terminal import Failed, note, show, show_paragraphs

_STREAM = "flights"
_COLUMN, _WANTED = "dest", "ANC"
_FILTER_SIZE = 64
_SEGMENTS, _SHARE = 36, 10  # of the stream; ten times more is stored than may be local
_WIDTH = 88
_PAYMENTS, _SENT, _RATE = "payments", 10_000, 2_000  # messages, and how many of them a second
_LOST_AFTER = _SENT // 2


class Cost(NamedTuple):
    """What the store was asked for: requests that write and that read, and their bytes."""

    writes: int
    reads: int
    written: int
    read: int

    def since(self, before: "Cost") -> "Cost":
        """What has come since."""
        return Cost(*(now - then for now, then in zip(self, before, strict=True)))


class Answer(NamedTuple):
    """What came of a question.

    Attributes:
        what: was asked, of whom.
        flights: that were found.
        chunks: that were sent; in_all: of the stream.
        cost: of the store.
        seconds: that it took.
    """

    what: str
    flights: int
    chunks: int
    in_all: int
    cost: Cost
    seconds: float


class Loss(NamedTuple):
    """What came of a machine that was lost while somebody published.

    Attributes:
        sent: messages that were on their way or stored then.
        confirmed: of those.
        missing: confirmed messages that are not in the stream at the end.
        stored: messages of the stream at the end; all that were sent, each once, in order.
        writes: to the store, from the first message until the machine was lost.
        seconds: until the next machine was ready.
    """

    sent: int
    confirmed: int
    missing: int
    stored: int
    writes: int
    seconds: float


class _Counter:
    """What the store is asked for: by the proxy before it, or by the server."""

    def __init__(self, proxy: Proxy | None) -> None:
        self._proxy = proxy

    def count(self, target: Target) -> Cost:
        if self._proxy is not None:
            found = self._proxy.count()
            reads = found.requests["GET"] + found.requests["HEAD"]
            return Cost(found.requests.total() - reads, reads, found.sent, found.received)
        with target.connect() as connection:
            told = status(connection)
        reads, writes = told.requests["get"] + told.requests["list"], told.requests["put"]
        return Cost(writes, reads, told.transferred["put"], told.transferred["get"])


@contextmanager
def _place(store: Store) -> Iterator[tuple[Place, _Counter]]:
    place = store.place("demo")
    if not place.endpoint:
        yield place, _Counter(None)
        return
    with Proxy(place.endpoint) as proxy:
        yield place._replace(endpoint=proxy.endpoint), _Counter(proxy)


def _options(place: Place) -> tuple[str, ...]:
    """As little waiting as can be: nothing may be missing when the disk is lost."""
    return (*place.options, "--tier-delete-delay-seconds", "0", "--tier-roll-seconds", "1")


@click.command()
@click.option("--quick", is_flag=True, help="With a tenth of the flights.")
def main(*, quick: bool) -> None:
    """Show a stream that is larger than the disk, and what is left when the disk is lost.

    The object store is gofakes3, where `make stores` has built it, or else a folder.
    """
    try:
        flights = list(read_flights(flights_file()))
    except NoRecords as error:
        raise Failed(str(error)) from error
    if quick:
        flights = flights[::10]
    kind = "gofakes3" if is_there("gofakes3") else "file"
    with (
        tempfile.TemporaryDirectory(prefix="streamd-demo-") as folder,
        started(kind) as store,
        _place(store) as (place, counter),
    ):
        _Demo(Path(folder), kind, place, counter, flights).run()


class _Demo:
    """The story, and its figures.

    Args:
        folder: for the disks of two machines.
        kind: of the store.
        place: in it.
        counter: counts what is asked of it.
        flights: all of them.
    """

    def __init__(
        self, folder: Path, kind: str, place: Place, counter: _Counter, flights: Sequence[Flight]
    ) -> None:
        self._folder, self._kind, self._place = folder, kind, place
        self._counter, self._flights = counter, flights
        self._size = sum(len(flight.encoded) for flight in flights)
        self._segment = self._size // _SEGMENTS
        self._limit = self._size // _SHARE

    def run(self) -> None:
        """Tell it."""
        first, second, third = (self._folder / name for name in ("first", "second", "third"))
        with Target(first, *_options(self._place)) as target:
            uploaded = self._publish(target, first)
        local = _bytes_in(folder_of(first, _STREAM), "*.segment")
        others = _bytes_in(first, "**/*") - local
        answers = []
        with Target(first, *_options(self._place)) as target:
            answers.append(self._ask(target, "first machine", _WANTED))
            answers.append(self._ask(target, "the same again", _WANTED))
        with Target(first, *_options(self._place)) as target:
            answers.append(self._ask(target, "all flights", None))
        shutil.rmtree(first)
        began = time.perf_counter()
        with Target(second, *_options(self._place), "--restore") as target:
            seconds = time.perf_counter() - began
            answers.append(self._ask(target, "second machine", _WANTED))
            note("publishing to a stream that the store confirms, until the machine is lost")
            loss = trio.run(self._lose, target, second, third)
        show(self._table(answers))
        show_paragraphs(
            self._in_words(uploaded, local, others, answers, seconds), markup=True, width=_WIDTH
        )
        show_paragraphs(self._loss_in_words(loss), markup=True, width=_WIDTH)

    def _publish(self, target: Target, data: Path) -> Cost:
        """Publish everything, and wait until it is in the store, and little of it here."""
        note(f"publishing {len(self._flights):,} flights, {self._size / 1e6:,.0f} MB")
        before = self._counter.count(target)
        trio.run(self._send, target)
        note("waiting until all is in the store")
        wait_until("all was stored", lambda: _next_offset(data) >= len(self._flights))
        wait_until("little was local", lambda: self._local(data) <= self._limit + self._segment)
        return self._counter.count(target).since(before)

    def _local(self, data: Path) -> int:
        return _bytes_in(folder_of(data, _STREAM), "*.segment")

    async def _send(self, target: Target) -> None:
        async with connect(_uri(target)) as client:
            await client.create(
                _STREAM,
                filter_size=_FILTER_SIZE,
                arguments={
                    "stream-filter-property": _COLUMN,
                    "stream-max-segment-size-bytes": str(self._segment),
                    "stream-local-max-length-bytes": str(self._limit),
                },
            )
            async with client.producer(_STREAM) as producer:
                for flight in self._flights:
                    await producer.send_encoded(flight.encoded, flight.dest)

    def _ask(self, target: Target, what: str, wanted: str | None) -> Answer:
        note(f"asking: {what}")
        with target.connect() as connection:
            wait_until_ready(connection)
        before = self._counter.count(target)
        flights, chunks, in_all, seconds = trio.run(self._read, target, wanted)
        expected = sum(wanted in (None, flight.dest) for flight in self._flights)
        if flights != expected:
            raise Failed(f"{expected:,} flights match, {flights:,} came: please report this")
        cost = self._counter.count(target).since(before)
        return Answer(what, flights, chunks, in_all, cost, seconds)

    async def _read(self, target: Target, wanted: str | None) -> tuple[int, int, int, float]:
        def value_of(message: ReceivedMessage) -> str:
            return str(message.application_property(_COLUMN))

        async with connect(_uri(target)) as client:
            (info,) = await client.describe(_STREAM)
            began = time.perf_counter()
            values = [] if wanted is None else [wanted]
            async with client.consumer(
                _STREAM,
                offset="first",
                filter_values=values,
                filter_value=value_of if values else None,
                until_end=True,
            ) as consumer:
                async for _ in consumer.batches():
                    pass
                seconds = time.perf_counter() - began
                counts = consumer.counts
        return counts.matched, counts.chunks, info.figures["chunks"], seconds

    def _table(self, answers: Sequence[Answer]) -> Table:
        title = f"{len(self._flights):,} flights, {self._size / 1e6:.0f} MB; store: {self._kind}"
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE, padding=0)
        table.add_column("\nasked of")
        for heading in (
            "\nwanted",
            "flights\nfound",
            "chunks\nsent",
            "chunks\nin all",
            "requests\nto the store",
            "MB\nfetched",
            "\nsec.",
        ):
            table.add_column(heading, justify="right")
        for one in answers:
            table.add_row(
                one.what,
                "all" if one.flights == len(self._flights) else _WANTED,
                f"{one.flights:,}",
                f"{one.chunks:,}",
                f"{one.in_all:,}",
                f"{one.cost.reads:,}",
                f"{one.cost.read / 1e6:.2f}",
                f"{one.seconds:.2f}",
            )
        return table

    def _in_words(
        self, uploaded: Cost, local: int, others: int, answers: Sequence[Answer], seconds: float
    ) -> str:
        first, again, every, second = answers
        return f"""\
[bold]Larger than the disk.[/bold] The stream may have {self._limit / 1e6:.0f} MB of messages on \
this disk, and has {self._size / 1e6:.0f}. The server uploaded full segments to the store \
({uploaded.writes:,} requests, {uploaded.written / 1e6:.0f} MB) and deleted them here once it had \
them: {local / 1e6:.1f} MB of messages stayed, and {others / 1e6:.1f} MB of indexes and the \
like.

[bold]A question over all of it.[/bold] Which flights went to Anchorage? The filter indexes are \
still on the disk, so the server knew which {first.chunks:,} of {first.in_all:,} chunks could hold \
one, and fetched those: {first.cost.read / 1e6:.2f} MB in {first.cost.reads:,} requests. Asked \
again, they were in the cache ({again.cost.reads:,} requests). Who wants everything has everything \
fetched: {every.cost.read / 1e6:.0f} MB in {every.cost.reads:,} requests.

[bold]The disk is lost.[/bold] Its folder was deleted, and a second server started on an empty \
one with --restore. It was ready after {seconds:.1f} s, and answered the same question with the \
same {second.flights:,} flights; {second.cost.read / 1e6:.2f} MB were fetched for that, indexes \
included. It goes on publishing behind the last flight.
"""

    async def _lose(self, target: Target, data: Path, next_data: Path) -> Loss:
        """Lose a machine in the middle of publishing, and go on with the next one."""
        sent, is_half, is_all = 0, trio.Event(), trio.Event()
        before = self._counter.count(target)
        async with connect(_uri(target)) as client, trio.open_nursery() as nursery:
            await client.create(_PAYMENTS, arguments={"stream-confirm": "store"})
            async with client.producer(_PAYMENTS, name="till") as producer:

                async def publish() -> None:
                    nonlocal sent
                    for number in range(_SENT):
                        await producer.send(b"%d" % number)
                        sent += 1
                        if sent == _LOST_AFTER:
                            is_half.set()
                        if number % (_RATE // 100) == 0:
                            await trio.sleep(1 / 100)
                    is_all.set()

                nursery.start_soon(publish)
                await is_half.wait()
                writes = self._counter.count(target).since(before).writes
                confirmed, sent_then = sent - producer.num_unconfirmed, sent
                target.kill()
                shutil.rmtree(data)
                note("starting on an empty disk")
                began = time.perf_counter()
                options = (*_options(self._place), "--stream-port", str(target.port), "--restore")
                survivor = await trio.to_thread.run_sync(Target, next_data, *options)
                seconds = time.perf_counter() - began
                await is_all.wait()
        with survivor:
            found = await _numbers(survivor)
        missing = len(set(range(confirmed)) - set(found))
        if missing or found != list(range(_SENT)):
            raise Failed(f"{missing} confirmed messages are missing: please report this")
        return Loss(sent_then, confirmed, missing, len(found), writes, seconds)

    def _loss_in_words(self, loss: Loss) -> str:
        return f"""\
[bold]A machine is lost in the middle of publishing.[/bold] The stream {_PAYMENTS} was declared \
with stream-confirm=store: a message is confirmed when the store has it. When {loss.sent:,} were \
sent and {loss.confirmed:,} of them confirmed, the second server was killed and its folder \
deleted. A third one, on an empty folder, was ready after {loss.seconds:.1f} s; the publisher \
found it by itself and sent again what was not confirmed. Of the confirmed messages \
[bold]{loss.missing} are missing[/bold]; all {loss.stored:,} are there, each once, in order. Up to \
the loss that took {loss.writes:,} requests.

[bold]What to try next.[/bold] docs/how-to/tier.md has the settings, what it costs, and what is \
not promised: of streams that are not declared so, what is not uploaded yet is on one disk alone.
"""


def _uri(target: Target) -> str:
    return f"rabbitmq-stream://guest:guest@{target.host}:{target.port}/"


async def _numbers(target: Target) -> list[int]:
    """The messages of the stream of payments, in its order."""
    async with (
        connect(_uri(target)) as client,
        client.consumer(_PAYMENTS, offset="first", until_end=True) as consumer,
    ):
        return [int(message.body) async for message in consumer]


def _next_offset(data: Path) -> int:
    try:
        return stored(data, _STREAM).next_offset
    except SegmentsError:  # nothing is stored so far
        return 0


def _bytes_in(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"Error: {error}")
