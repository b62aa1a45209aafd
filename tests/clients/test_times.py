"""Reading from a time on: all that was stored since, but for what says that it is older.

The model knows chunks, when they were stored, and when their messages say that they were created:
of the first chunk that is not older than the time, messages created before it are left out.
"""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock

from clients import Client, Consumer, Message, Properties
from clients.connection import ClientConnection
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.values import Field
from streamd.wire.stream import commands as c
from streamd.wire.stream.publish import encode_sub_batch
from tests.clients.conftest import program
from tests.support.amqp import Delivery, open_peer
from tests.support.client import Network
from tests.support.logs import entry
from tests.support.server import Harness, harness

STREAM = "s"
START = 1_700_000_000  # seconds; the clock of the server in memory begins there


class Stored(NamedTuple):
    """A message: when it says that it was created, and its region."""

    created: int | None
    region: str

    def encode(self) -> bytes:
        created = None if self.created is None else moment(self.created)
        properties = Properties(creation_time=created)
        return Message(b"", properties, {"region": self.region}).encode()


class Chunk(NamedTuple):
    """Messages that are stored together; seconds after the one before."""

    pause: int
    messages: list[tuple[int | None, str]]  # created so long before, and a region
    is_batch: bool


def moment(seconds: float) -> datetime:
    """A time, in seconds since the server was started."""
    return datetime.fromtimestamp(START, UTC) + timedelta(seconds=seconds)


async def fill(server: Harness, chunks: list[Chunk]) -> list[tuple[int, list[Stored]]]:
    """Store chunks; when each was stored, and what is in it."""
    peer = await server.peer()
    await peer.create(STREAM, stream_filter_property="region", stream_filter_derive="true")
    await peer.declare(STREAM)
    began, stored, number = trio.current_time(), [], 0
    for pause, messages, is_batch in chunks:
        await trio.sleep(pause)
        now = round(trio.current_time() - began)
        held = [Stored(None if age is None else now - age, region) for age, region in messages]
        bodies = [one.encode() for one in held]
        if is_batch:
            data = b"".join(map(entry, bodies))
            batch = encode_sub_batch(number + 1, len(bodies), 0, len(data), data)
            await peer.send(c.Publish(1, 1, batch))
            await peer.confirmed(1)
        else:
            await peer.store(bodies, number + 1)
        number += len(bodies)
        stored.append((now, held))
    return stored


def expected(stored: list[tuple[int, list[Stored]]], since: int) -> list[tuple[int, Stored]]:
    """What a consumer gets that begins with a time: offsets and messages."""
    found, offset, is_first = [], 0, True
    for time, messages in stored:
        for message in messages:
            is_older = message.created is not None and message.created < since
            if time >= since and not (is_first and is_older):
                found.append((offset, message))
            offset += 1
        is_first = is_first and time < since
    return found


chunks = st.lists(
    st.builds(
        Chunk,
        st.integers(1, 3),
        st.lists(
            st.tuples(st.none() | st.integers(-1, 4), st.sampled_from(["EU", "US"])),
            min_size=1,
            max_size=5,
        ),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)
WAYS: list[dict[str, Any]] = [
    {},
    {"sql": "region = 'EU'"},
    {"filter_values": ["EU"], "filter_value": "region"},
]


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


async def taken(messages: Consumer, network: Network, kills: set[int]) -> AsyncIterator[int]:
    """Offsets that come out; the connection breaks when so many have."""
    count = 0
    if 0 in kills:
        network.streams[-1].kill()
    async for message in messages:
        yield message.offset
        count += 1
        if count in kills:
            network.streams[-1].kill()


def offset_of(delivery: Delivery) -> int:
    found: int = (delivery.properties.headers or {})["x-stream-offset"].value
    return found


class TestAnyTime:
    @settings(max_examples=25)
    @given(
        chunks,
        st.integers(0, 14),
        st.sampled_from(WAYS),
        st.sets(st.integers(0, 8), max_size=2),
        st.integers(1, 3),
    )
    def test_of_the_library(
        self, chunks: list[Chunk], since: int, way: dict[str, Any], kills: set[int], credit: int
    ) -> None:
        async def main() -> None:
            with folder() as data, pytest.MonkeyPatch.context() as patch:
                async with harness(data, flush="os") as server:
                    stored = await fill(server, chunks)
                    network = Network(server, patch)
                    async with network.client() as client:
                        options: Any = {"offset": moment(since), "credit": credit, **way}
                        async with client.consumer(STREAM, until_end=True, **options) as messages:
                            found = [n async for n in taken(messages, network, kills)]
                        counts = messages.counts
            wanted = expected(stored, since)
            assert found == [n for n, one in wanted if not way or one.region == "EU"]
            assert counts.matched == len(found)
            if not kills and not way:
                assert counts.messages == len(found)

        trio.run(main, clock=MockClock(autojump_threshold=0))

    @settings(max_examples=25)
    @given(
        chunks,
        st.integers(0, 14),
        st.sampled_from([{}, {"x_stream_sql": "region = 'EU'"}, {"x_stream_filter": "EU"}]),
        st.integers(1, 4),
    )
    def test_of_amqp(
        self, chunks: list[Chunk], since: int, way: dict[str, Any], prefetch: int
    ) -> None:
        async def main() -> None:
            with folder() as data:
                async with harness(data, flush="os") as server:
                    stored = await fill(server, chunks)
                    peer = await open_peer(server)
                    since_field = Field("T", START + since)
                    await peer.consume(STREAM, "c", 1, prefetch, x_stream_offset=since_field, **way)
                    wanted = expected(stored, since)
                    left = [n for n, one in wanted if not way or one.region == "EU"]
                    while left:
                        some = await peer.deliveries(min(prefetch, len(left)))
                        assert [offset_of(d) for d in some] == left[: len(some)]
                        del left[: len(some)]
                        await peer.silence(1)  # what was left out takes no credit
                        await peer.send(m.BasicAck(some[-1].method.delivery_tag, True))
                    await peer.silence()

        trio.run(main, clock=MockClock(autojump_threshold=0))

    async def test_a_time_to_come_over_amqp(self, server: Harness) -> None:
        peer = await open_peer(server)
        await peer.declare(STREAM)
        await peer.consume(STREAM, x_stream_offset=Field("T", START + 3_600))
        await peer.store(STREAM, b"new", timestamp=START)
        assert [delivery.body for delivery in await peer.deliveries(1)] == [b"new"]


async def publish(client: Client, stream: str, *created: datetime | None) -> None:
    """Store messages in one chunk."""
    async with client.producer(stream) as producer:
        await producer.send_all(Message(b"", Properties(creation_time=time)) for time in created)


class TestOffsetsThatAreTimes:
    @program
    async def test_a_chunk_of_which_nothing_is_left(self, client: Client, stream: str) -> None:
        await client.create(stream)
        since = datetime.now(UTC)
        await anyio.sleep(0.02)
        await publish(client, stream, since - timedelta(seconds=1))
        async with client.consumer(stream, offset=since, until_end=True) as messages:
            assert [batch async for batch in messages.batches()] == [[]]
        assert messages.counts.false_chunks == 1
        async with client.consumer(stream, offset=since, credit=1) as messages:
            await publish(client, stream, since)
            assert (await anext(messages)).offset == 1

    @program
    async def test_a_time_to_come_begins_with_all_that_is_new(
        self, client: Client, stream: str
    ) -> None:
        await client.create(stream)
        await publish(client, stream, None)
        now = datetime.now(UTC)
        async with client.consumer(stream, offset=now + timedelta(hours=1)) as messages:
            await publish(client, stream, now)
            assert (await anext(messages)).offset == 1

    @program
    async def test_whose_turn_it_is_in_a_group(self, client: Client, stream: str) -> None:
        await client.create(stream)
        since = datetime.now(UTC)
        await anyio.sleep(0.02)
        await publish(client, stream, since - timedelta(seconds=1), since)
        await publish(client, stream, since - timedelta(seconds=1))
        options: Any = {"offset": since, "name": "g", "single_active": True}
        async with client.consumer(stream, **options) as second:
            async with client.consumer(stream, **options) as first:
                assert [(await anext(second)).offset for _ in range(2)] == [1, 2]
                assert first.take() is None
            assert second.is_active
        async with client.consumer(stream, **options) as again:  # from the beginning
            assert [(await anext(again)).offset for _ in range(2)] == [1, 2]

    @program
    async def test_where_the_server_does_not_tell_the_chunk(
        self, client: Client, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await client.create(stream)
        since = datetime.now(UTC)
        await anyio.sleep(0.02)
        await publish(client, stream, since - timedelta(seconds=1), since)
        await publish(client, stream, since - timedelta(seconds=1))
        monkeypatch.setattr(ClientConnection, "knows", lambda *_: False)
        async with client.consumer(stream, offset=since) as messages:
            assert [(await anext(messages)).offset for _ in range(2)] == [1, 2]
