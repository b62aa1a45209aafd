"""Rows of the comparison with RocketMQ: orders are published, chosen and looked up, exactly.

streamd is asked in several ways, RocketMQ with its Java client, which pulls. Orders that are read
are published once for all rounds. The answers of both are counted: a wrong number is an error.
"""

import asyncio
import json
import random
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import page_cache
from benchmarks.orders import ALL, Choice, Orders, number_chosen, order_id
from benchmarks.peer import ScriptedServer, running
from benchmarks.scenarios import Figures, Skipped
from benchmarks.target import Server, Target
from clients import Client, connect
from segments.segment import FILTER_SUFFIX, KEYS_SUFFIX, SEGMENT_SUFFIX

ROCKETMQ_SCRIPT = Path(__file__).with_name("rocketmq.sh")
_MILLION = 1_000_000
_PART = 100_000  # orders that are made before they are sent
_LOOKUPS = 1_000
_PREFETCH = 500
_CREDIT = 100
_SEALED_BYTES = 10  # of a segment, for each order of the stream: some twenty segments
_PATIENCE_SECONDS = 120
_NUMBERS = count()


class Reading(NamedTuple):
    """What a row took."""

    seconds: float
    cpu_seconds: float
    messages: int


class Lookups(NamedTuple):
    """What look-ups took, each and together."""

    milliseconds: list[float]
    cpu_seconds: float
    messages: int


class _Clock:
    """What passes from now on, and what the server uses meanwhile."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._cpu = server.cpu_seconds()
        self._began = time.perf_counter()

    def stop(self, messages: int) -> Reading:
        seconds = time.perf_counter() - self._began
        return Reading(seconds, self._server.cpu_seconds() - self._cpu, messages)


# -- streamd


class OrderTarget(Target):
    """streamd with AMQP."""

    def __init__(self, folder: Path) -> None:
        self.data = folder
        super().__init__(folder, "--amqp-port", "0")

    @property
    def uri(self) -> str:
        """Where its own clients connect."""
        return f"rabbitmq-stream://guest:guest@{self.host}:{self.port}/"

    def publish(self, orders: Orders) -> tuple[str, Reading]:
        """Publish orders into a new stream; its name."""
        stream = f"orders-{next(_NUMBERS)}"
        return stream, asyncio.run(self._publish(stream, orders))

    async def _publish(self, stream: str, orders: Orders) -> Reading:
        arguments = {"stream-filter-property": "kind,TAGS", "stream-key-properties": "order_id"}
        size = orders.messages * _SEALED_BYTES if orders.is_sealed else None
        async with connect(self.uri) as client:
            await client.create(stream, segment_size=size, arguments=arguments)
            cpu, seconds = self.cpu_seconds(), 0.0
            async with client.producer(stream) as producer:
                for start in range(0, orders.messages, _PART):
                    made = list(orders.made(start, min(start + _PART, orders.messages)))
                    began = time.perf_counter()
                    for message in made:
                        await producer.send(message)
                    await producer.flush()
                    seconds += time.perf_counter() - began
            used = self.cpu_seconds() - cpu
            await self._until_indexed(stream)
        return Reading(seconds, used, orders.messages)

    async def _until_indexed(self, stream: str) -> None:
        """Return when each sealed segment has its indexes."""
        missing = [
            file.with_suffix(suffix)
            for file in self._segments(stream)[:-1]
            for suffix in (FILTER_SUFFIX, KEYS_SUFFIX)
        ]
        end = time.monotonic() + _PATIENCE_SECONDS
        while missing := [file for file in missing if not file.exists()]:
            if time.monotonic() > end:
                raise TimeoutError(f"not indexed within {_PATIENCE_SECONDS} s")
            await asyncio.sleep(0.1)

    def delete(self, stream: str) -> None:
        """Remove a stream."""

        async def work() -> None:
            async with connect(self.uri) as client:
                await client.delete(stream)

        asyncio.run(work())

    def _segments(self, stream: str) -> list[Path]:
        return sorted(self.data.glob(f"streams/*/{stream}/*{SEGMENT_SUFFIX}"))

    def stored_bytes(self, stream: str) -> int:
        """Bytes of a stream's segments."""
        return sum(file.stat().st_size for file in self._segments(stream))

    def read(self, stream: str, orders: Orders, choice: Choice, door: "Door") -> Reading:
        """Read what is chosen of a stream, from its beginning to its end."""
        return door(self, stream, orders, choice)

    def look_up(self, stream: str, orders: Orders, lookups: int) -> Lookups:
        """Look random orders up, one after the other."""
        return asyncio.run(self._look_up(stream, orders, lookups))

    async def _look_up(self, stream: str, orders: Orders, lookups: int) -> Lookups:
        chance = random.Random(1)  # noqa: S311 - the same keys each time
        found, times = 0, []
        async with connect(self.uri) as client:
            clock = _Clock(self)
            for _ in range(lookups):
                key = order_id(chance.randrange(orders.messages))
                began = time.perf_counter()
                async for _ in client.find(stream, key=key):
                    found += 1
                times.append((time.perf_counter() - began) * 1e3)
            return Lookups(times, clock.stop(found).cpu_seconds, found)


Door = Callable[[OrderTarget, str, Orders, Choice], Reading]


def pika(server: OrderTarget, stream: str, orders: Orders, choice: Choice) -> Reading:
    """An AMQP consumer: the server chooses. The last order tells the end."""
    import pika  # noqa: PLC0415 - needs the extra `bench`

    found = 0

    def got(channel: Any, method: Any, header: Any, _body: bytes) -> None:  # noqa: ANN401 - no types
        nonlocal found
        found += 1
        channel.basic_ack(method.delivery_tag)
        if header.headers["x-stream-offset"] == orders.messages - 1:
            channel.stop_consuming()

    given = {"offset": "first", "tags": choice.tags, "sql": choice.sql}
    arguments = {f"x-stream-{name}": text for name, text in given.items() if text}
    parameters = pika.URLParameters(f"amqp://guest:guest@{server.amqp}/")
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        clock = _Clock(server)
        channel.basic_qos(prefetch_count=_PREFETCH)
        channel.basic_consume(stream, got, arguments=arguments)
        connection.call_later(_PATIENCE_SECONDS, channel.stop_consuming)
        channel.start_consuming()
        return clock.stop(found)


def _in_client(work: Callable[[Client, str, Choice], Coroutine[Any, Any, int]]) -> Door:
    """A door of our own client, from what counts the chosen messages."""

    def door(server: OrderTarget, stream: str, _: Orders, choice: Choice) -> Reading:
        async def run() -> Reading:
            async with connect(server.uri) as client:
                clock = _Clock(server)
                return clock.stop(await work(client, stream, choice))

        return asyncio.run(run())

    return door


@_in_client
async def own_client(client: Client, stream: str, choice: Choice) -> int:
    """The client chooses; one property of each message is looked at."""
    found = 0
    async with client.consumer(
        stream, offset="first", until_end=True, tags=choice.tags, sql=choice.sql
    ) as consumer:
        async for batch in consumer.batches():
            for message in batch:
                found += message.application_property("kind") is not None
    return found


@_in_client
async def arrow(client: Client, stream: str, choice: Choice) -> int:
    """The same as Arrow record batches of three columns."""
    found = 0
    async with client.consumer(
        stream, offset="first", until_end=True, credit=_CREDIT, tags=choice.tags, sql=choice.sql
    ) as consumer:
        async for batch in consumer.arrow(["offset", "kind", "total"]):
            found += batch.num_rows - batch.column("kind").null_count
    return found


@_in_client
async def find(client: Client, stream: str, choice: Choice) -> int:
    """A search."""
    found = 0
    async for _ in client.find(stream, tags=choice.tags, sql=choice.sql):
        found += 1
    return found


# -- RocketMQ


class RocketMQ(ScriptedServer):
    """RocketMQ's broker, and its client: a process that takes commands, see rocketmq/Peer.java."""

    def __init__(self) -> None:
        super().__init__(ROCKETMQ_SCRIPT, 0)
        shown = subprocess.run(
            [ROCKETMQ_SCRIPT, "data"], capture_output=True, text=True, check=True
        )
        self.data = Path(shown.stdout.strip())
        self._client = subprocess.Popen(
            [ROCKETMQ_SCRIPT, "client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def close(self) -> None:
        """End its client."""
        self._client.communicate()

    def _ask(self, *words: object) -> dict[str, Any]:
        assert self._client.stdin
        assert self._client.stdout
        self._client.stdin.write("\t".join(map(str, words)) + "\n")
        self._client.stdin.flush()
        line = self._client.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its client has ended"}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def publish(self, orders: Orders) -> tuple[str, Reading]:
        """Publish orders into a new topic; its name."""
        topic = f"orders-{time.time_ns()}"
        self._ask("topic", topic)
        clock = _Clock(self)
        seconds = self._ask("publish", topic, orders.messages, orders.run)["seconds"]
        return topic, clock.stop(orders.messages)._replace(seconds=seconds)

    def delete(self, topic: str) -> None:
        """Topics stay until it is started anew, as their messages do in any case."""

    def stored_bytes(self, topic: str) -> int:
        """Bytes of a topic's messages in the commit log."""
        return int(self._pull(topic, ALL)["bytes"])

    def read(self, topic: str, _orders: Orders, choice: Choice, _door: Door) -> Reading:
        """Pull what is chosen of a topic, from its beginning to its end."""
        clock = _Clock(self)
        answer = self._pull(topic, choice)
        return clock.stop(answer["messages"])._replace(seconds=answer["seconds"])

    def _pull(self, topic: str, choice: Choice) -> dict[str, Any]:
        selector = f"sql:{choice.sql}" if choice.sql else f"tag:{choice.tags or '*'}"
        return self._ask("pull", topic, selector)

    def look_up(self, topic: str, orders: Orders, lookups: int) -> Lookups:
        """Look random orders up, one after the other."""
        clock = _Clock(self)
        answer = self._ask("keys", topic, orders.messages, lookups)
        return Lookups(answer["millis"], clock.stop(0).cpu_seconds, answer["messages"])


@contextmanager
def rocketmq() -> Iterator[RocketMQ]:
    """RocketMQ, which is stopped at the end unless it was running."""
    was_running = running(ROCKETMQ_SCRIPT) is not None
    server = RocketMQ()
    server.can_restart = not was_running
    try:
        yield server
    finally:
        server.close()
        if not was_running:
            server.stop()


# -- rows

OrderServer = OrderTarget | RocketMQ
Work = Callable[[OrderServer, float], Figures]


@cache
def _stored(server: OrderServer, orders: Orders) -> str:
    """Where a server has these orders; they are published when they are first needed."""
    return server.publish(orders)[0]


def _scaled(orders: Orders, scale: float, server: OrderServer) -> Orders:
    """A share of the orders; a segment is nothing that RocketMQ has."""
    is_sealed = orders.is_sealed and isinstance(server, OrderTarget)
    return orders._replace(messages=max(round(orders.messages * scale), 1), is_sealed=is_sealed)


def _per_million(it: Reading, orders: Orders) -> Figures:
    part = orders.messages / _MILLION
    return {"seconds": it.seconds / part, "cpu": it.cpu_seconds / part}


def publish_orders(server: OrderServer, scale: float) -> Figures:
    """Publish orders."""
    orders = _scaled(Orders(_MILLION), scale, server)
    stream, taken = server.publish(orders)
    server.delete(stream)
    return _per_million(taken, orders)


def store_orders(server: OrderServer, scale: float) -> Figures:
    """What an order takes on the disk."""
    orders = _scaled(Orders(_MILLION), scale, server)
    return {"bytes": server.stored_bytes(_stored(server, orders)) / orders.messages}


def choose_orders(choice: Choice, door: Door, orders: Orders, *, is_cold: bool = False) -> Work:
    """Read what is chosen: the second time, or with a cold page cache."""

    def work(server: OrderServer, scale: float) -> Figures:
        part = _scaled(orders, scale, server)
        stream = _stored(server, part)
        if is_cold:
            _cool(server)
        else:
            server.read(stream, part, choice, door)
        taken = server.read(stream, part, choice, door)
        _check(taken.messages, number_chosen(choice, part._replace(is_sealed=False)))
        return _per_million(taken, part)

    return work


def look_orders_up(orders: Orders, *, is_cold: bool = False) -> Work:
    """Look keys up: some were looked up before, or the page cache is cold at first."""

    def work(server: OrderServer, scale: float) -> Figures:
        part, lookups = _scaled(orders, scale, server), max(round(_LOOKUPS * scale), 1)
        stream = _stored(server, part)
        if is_cold:
            _cool(server)
        else:
            server.look_up(stream, part, lookups)
        taken = server.look_up(stream, part, lookups)
        _check(taken.messages, lookups)
        p50 = sorted(taken.milliseconds)[lookups // 2]
        return {"p50": p50, "cpu": taken.cpu_seconds / lookups * 1e3}

    return work


def _cool(server: OrderServer) -> None:
    try:
        page_cache.drop(server.data, server.pid)
    except PermissionError as reason:
        raise Skipped("only root takes a server's files out of the page cache") from reason


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{found:,} messages, {expected:,} expected")
