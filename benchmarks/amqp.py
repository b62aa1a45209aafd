"""`python -m benchmarks.amqp`: pika and aio-pika publish and consume, here and at a peer.

The peer is any server of AMQP 0-9-1 with stream queues on this machine, usually RabbitMQ: give
its address and the process id whose CPU time counts. Both get each load in turn, in the same
round; the medians of the rounds are shown. The clients are by far the larger part of the time.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from uuid import uuid4

import aio_pika
import click
import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.target import Target, cpu_seconds

_BODY = bytes(100)
_VALUES = 100
_RUN = 1_000  # messages of one value after the other, where they come in runs
_WINDOW = 500  # messages that are not confirmed, or not acknowledged, at a time
_STREAM = {"x-queue-type": "stream", "x-stream-filter-size-bytes": 255}
_FIRST = {"x-stream-offset": "first"}
_WANTED = "v7"


class Figure(NamedTuple):
    """One load at one server: seconds, and CPU seconds of the server."""

    seconds: float
    cpu_seconds: float


def scattered(number: int) -> str:
    """A filter value: neighbours have others."""
    return f"v{number % _VALUES}"


def in_runs(number: int) -> str:
    """A filter value: most neighbours have the same."""
    return f"v{number // _RUN % _VALUES}"


# -- pika


def _connection(uri: str) -> Any:
    return pika.BlockingConnection(pika.URLParameters(uri))


def pika_publish_one_by_one(uri: str, queue: str, count: int) -> None:
    """Each message waits for its confirm."""
    with _connection(uri) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(count):
            channel.basic_publish("", queue, _BODY)


def pika_publish(
    uri: str, queue: str, count: int, value_of: Callable[[int], str] | None = None
) -> None:
    """On asyncio: up to a window of messages waits for confirms."""
    sent = confirmed = 0

    def opened(channel: Any) -> None:
        channel.confirm_delivery(partial(acked, channel))
        fill(channel)

    def acked(channel: Any, frame: Any) -> None:
        nonlocal confirmed
        tag = frame.method.delivery_tag
        confirmed = max(confirmed, tag) if frame.method.multiple else confirmed + 1
        if confirmed >= count:
            connection.close()
        elif sent - confirmed <= _WINDOW // 2:
            fill(channel)

    def fill(channel: Any) -> None:
        nonlocal sent
        while sent < count and sent - confirmed < _WINDOW:
            properties = None
            if value_of is not None:
                headers = {"x-stream-filter-value": value_of(sent)}
                properties = pika.BasicProperties(headers=headers)
            channel.basic_publish("", queue, _BODY, properties)
            sent += 1

    loop = asyncio.new_event_loop()
    connection = AsyncioConnection(
        pika.URLParameters(uri),
        on_open_callback=lambda c: c.channel(on_open_callback=opened),
        on_close_callback=lambda *_: loop.stop(),
        custom_ioloop=loop,
    )
    loop.run_forever()
    loop.close()


def pika_consume(uri: str, queue: str, count: int, wanted: str | None = None) -> None:
    """Each message is acknowledged by itself, `count` of them are wanted."""
    found = 0

    def got(channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        nonlocal found
        channel.basic_ack(method.delivery_tag)
        value = (properties.headers or {}).get("x-stream-filter-value")
        found += wanted in (None, value)
        if found == count:
            channel.stop_consuming()

    arguments = _FIRST | ({} if wanted is None else {"x-stream-filter": wanted})
    with _connection(uri) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=_WINDOW)
        channel.basic_consume(queue, got, arguments=arguments)
        channel.start_consuming()


# -- aio-pika


def aio_publish(uri: str, queue: str, count: int) -> None:
    """A window of messages at once, then the next."""

    async def main(connection: Any) -> None:
        channel = await connection.channel()
        publish = channel.default_exchange.publish
        for start in range(0, count, _WINDOW):
            messages = range(start, min(start + _WINDOW, count))
            await asyncio.gather(*(publish(aio_pika.Message(_BODY), queue) for _ in messages))

    _run(uri, main)


def aio_consume(uri: str, queue: str, count: int) -> None:
    """Each message is acknowledged by itself."""

    async def main(connection: Any) -> None:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=_WINDOW)
        found, done = 0, asyncio.Event()

        async def got(message: Any) -> None:
            nonlocal found
            await message.ack()
            found += 1
            if found == count:
                done.set()

        source = await channel.get_queue(queue)
        tag = await source.consume(got, arguments=_FIRST)
        await done.wait()
        await source.cancel(tag)

    _run(uri, main)


def _run(uri: str, main: Callable[[Any], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with await aio_pika.connect(uri) as connection:
            await main(connection)

    asyncio.run(connected())


# -- measuring


class Place:
    """A server to measure."""

    def __init__(self, name: str, uri: str, pid: int) -> None:
        self.name = name
        self.uri = uri
        self._pid = pid

    def declare(self, queue: str) -> None:
        """Make a stream."""
        with _connection(self.uri) as connection:
            connection.channel().queue_declare(queue, durable=True, arguments=_STREAM)

    def delete(self, queue: str) -> None:
        """Remove it."""
        with _connection(self.uri) as connection:
            connection.channel().queue_delete(queue)

    def measure(self, load: Callable[[str], None]) -> Figure:
        """Run a load."""
        cpu, start = cpu_seconds(self._pid), time.perf_counter()
        load(self.uri)
        return Figure(time.perf_counter() - start, cpu_seconds(self._pid) - cpu)


def one_round(place: Place, count: int) -> dict[str, Figure]:
    """All loads, each on what was published before it."""
    queues = {name: f"benchmark-{uuid4()}" for name in ("plain", "scattered", "runs", "slow")}
    for queue in queues.values():
        place.declare(queue)
    few, some = count // 10, count // _VALUES
    loads: list[tuple[str, Callable[[str], None]]] = [
        ("pika, publish, one by one", lambda u: pika_publish_one_by_one(u, queues["slow"], few)),
        ("pika, publish", lambda u: pika_publish(u, queues["plain"], count)),
        ("pika, consume", lambda u: pika_consume(u, queues["plain"], count)),
        ("aio-pika, publish", lambda u: aio_publish(u, queues["plain"], count)),
        ("aio-pika, consume", lambda u: aio_consume(u, queues["plain"], count)),
        (
            "pika, publish, 100 filter values",
            lambda u: pika_publish(u, queues["scattered"], count, scattered),
        ),
        (
            "pika, consume 1 %, scattered",
            lambda u: pika_consume(u, queues["scattered"], some, _WANTED),
        ),
        ("", lambda u: pika_publish(u, queues["runs"], count, in_runs)),
        ("pika, consume 1 %, in runs", lambda u: pika_consume(u, queues["runs"], some, _WANTED)),
    ]
    figures = {name: place.measure(load) for name, load in loads}
    for queue in queues.values():
        place.delete(queue)
    return {name: figure for name, figure in figures.items() if name}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--count",
    type=click.IntRange(min=8 * _RUN),  # of fewer, none in runs is the one that is wanted
    default=100_000,
    show_default=True,
    help="Messages per load.",
)
@click.option("--rounds", default=3, show_default=True, help="Rounds; the median is shown.")
@click.option("--peer", help="Another server, as amqp://guest:guest@localhost:5672/.")
@click.option("--peer-pid", type=int, help="Its process id.")
def main(count: int, rounds: int, peer: str | None, peer_pid: int | None) -> None:
    """Measure the AMQP clients pika and aio-pika against this server, and a peer beside it."""
    if (peer is None) != (peer_pid is None):
        raise click.UsageError("--peer and --peer-pid belong together")
    with (
        tempfile.TemporaryDirectory() as folder,
        Target(Path(folder, "data"), "--amqp-port", "0") as target,
    ):
        places = [Place("streamd", f"amqp://guest:guest@{target.amqp}/", target.pid)]
        if peer is not None and peer_pid is not None:
            places.append(Place("peer", peer, peer_pid))
        found: dict[str, dict[str, list[Figure]]] = {}
        for _ in track(range(rounds), description="measuring", transient=True):
            for place in places:
                for name, figure in one_round(place, count).items():
                    found.setdefault(name, {}).setdefault(place.name, []).append(figure)
    Console(width=100).print(table_of(found, [place.name for place in places]))


def table_of(found: dict[str, dict[str, list[Figure]]], places: list[str]) -> Table:
    """Medians of all rounds, load by load."""
    table = Table(box=SIMPLE)
    table.add_column("load")
    for name in places:
        table.add_column(f"{name}, s", justify="right")
        table.add_column("server CPU, s", justify="right")
    for name, by_place in found.items():
        cells = []
        for place in places:
            figures = by_place[place]
            cells.append(f"{median(f.seconds for f in figures):.2f}")
            cells.append(f"{median(f.cpu_seconds for f in figures):.2f}")
        table.add_row(name, *cells)
    return table


if __name__ == "__main__":
    main()
