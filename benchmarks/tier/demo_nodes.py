"""`make demo-nodes`: three servers are one, and one of them is killed while flights are published.

Flights go to a super stream with a partition for each airport of New York; somebody reads those of
one airline, with a filter, at the same time. Both are connected to a node that stands by. Then the
leader is killed, and nobody does anything about it.
"""

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click
import trio

from benchmarks.target import Target
from clients import ReceivedMessage, connect
from segments.amqp10 import Value
from segments.message import Message
from streamd.cli.demo.flights import Flight, NoRecords, flights_file, read_flights
from streamd.cli.terminal import Failed, note, show_paragraphs

_STREAM, _AIRPORTS = "flights", ("EWR", "JFK", "LGA")
_COLUMN, _WANTED = "carrier", "WN"
_NODES = ("one", "two", "three")
_FLIGHTS, _RATE, _KILLED_AFTER = 60_000, 4_000, 20_000  # flights, and how many of them a second
_TICK = 0.05  # seconds
_WIDTH = 88


class _Demo:
    """The story, and its figures."""

    def __init__(self, nodes: dict[str, Target], flights: Sequence[Flight]) -> None:
        self._nodes, self._flights = nodes, flights
        self._began = time.perf_counter()
        self._is_killed, self._is_published = trio.Event(), trio.Event()
        self._confirmed_at = self._began
        self._longest = 0.0
        self._read: Counter[int] = Counter()
        self._chunks = 0

    async def run(self) -> None:
        """Tell it."""
        at = self._nodes["three"]
        uri = f"rabbitmq-stream://guest:guest@{at.host}:{at.port}/"
        async with connect(uri) as client:
            arguments = {"stream-filter-property": _COLUMN}
            await client.create_super_stream(_STREAM, _AIRPORTS, arguments=arguments)
        self._say("one leads, two and three stand by; all clients are connected to three")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish, uri)
            nursery.start_soon(self._consume, uri, nursery.cancel_scope)
            await self._is_killed.wait()
            self._nodes["one"].kill()
            self._say("one was killed with kill -9")

    async def _publish(self, uri: str) -> None:
        async with (
            connect(uri) as client,
            client.super_producer(_STREAM, _airport, by_key=True, name="board") as producer,
        ):
            for number, flight in enumerate(self._flights, 1):
                await producer.send(_message(number, flight))
                if number % int(_RATE * _TICK) == 0:
                    await producer.flush()
                    self._note_confirmed()
                    await trio.sleep(_TICK)
                if number == _KILLED_AFTER:
                    self._is_killed.set()
        self._note_confirmed()
        self._is_published.set()

    def _note_confirmed(self) -> None:
        now = time.perf_counter()
        pause = now - self._confirmed_at
        if pause > 1:
            self._say(f"confirmed again; the publisher has waited for {pause:.1f} s")
        self._longest = max(self._longest, pause)
        self._confirmed_at = now

    async def _consume(self, uri: str, everything: trio.CancelScope) -> None:
        expected = sum(flight.carrier == _WANTED for flight in self._flights)
        async with (
            connect(uri) as client,
            client.super_consumer(
                _STREAM, offset="first", filter_values=[_WANTED], filter_value=_carrier
            ) as consumer,
        ):
            async for message in consumer:
                self._read[int(str(message.application_property("number")))] += 1
                self._chunks = sum(one.counts.chunks for one in consumer.consumers.values())
                if len(self._read) == expected:
                    await self._is_published.wait()
                    everything.cancel()

    def _say(self, what: str) -> None:
        note(f"{time.perf_counter() - self._began:6.1f} s  {what}")

    def check(self) -> str:
        """Compare what was read with what was published; what came of it."""
        numbers = {n for n, flight in enumerate(self._flights, 1) if flight.carrier == _WANTED}
        missing, doubled = len(numbers - self._read.keys()), self._read.total() - len(self._read)
        if missing or doubled or self._read.keys() - numbers:
            raise Failed(f"{missing} flights are missing, {doubled} doubled: please report this")
        return f"""\
[bold]Nothing was lost.[/bold] {len(self._flights):,} flights were published and confirmed, \
{len(numbers):,} of them by {_WANTED}. The consumer got these with a filter, in {self._chunks:,} \
chunks: 0 are missing, 0 came twice. The publisher did not get a confirm for {self._longest:.1f} \
s: after ten without a sign of life another node took over, read what the leader had confirmed \
from the store, and went on. Publisher and consumer found it by themselves.

[bold]What to try next.[/bold] docs/how-to/several-servers.md says how to start nodes on machines \
of their own, what is promised, and what it costs.
"""


def _message(number: int, flight: Flight) -> Message:
    properties: dict[str, Value] = {
        _COLUMN: flight.carrier,
        "origin": flight.origin,
        "number": number,
    }
    return Message(flight.dest.encode(), application_properties=properties)


def _airport(message: Message) -> str:
    return str(message.application_properties["origin"])


def _carrier(message: ReceivedMessage) -> str:
    return str(message.application_property(_COLUMN))


@click.command()
def main() -> None:
    """Kill the leader of three nodes while somebody publishes."""
    try:
        flights = list(read_flights(flights_file()))[:_FLIGHTS]
    except NoRecords as error:
        raise Failed(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="streamd-demo-") as folder, ExitStack() as stack:
        tier = Path(folder, "tier")
        tier.mkdir()
        options = ("--tier", tier.as_uri(), "--confirm", "store")
        nodes = {
            name: stack.enter_context(Target(Path(folder, name), "--node", name, *options))
            for name in _NODES
        }
        demo = _Demo(nodes, flights)
        trio.run(demo.run)
    show_paragraphs(demo.check(), markup=True, width=_WIDTH)


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"Error: {error}")
