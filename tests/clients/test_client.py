"""Programs that use the client: what they send is what they get, in asyncio and in trio."""

from datetime import UTC, datetime

import anyio
import pytest

from clients import (
    Client,
    Message,
    NoOffset,
    PreconditionFailed,
    Properties,
    PublishFailed,
    ReceivedMessage,
    StreamDoesNotExist,
    StreamExists,
)
from clients.reconnecting import Place
from tests.clients.conftest import Runner, program
from tests.support.odd_messages import LONG, odd_messages


def carrier(message: Message | ReceivedMessage) -> str | None:
    found = message.application_properties.get("carrier")
    return None if found is None else str(found)


def flight(number: int, name: str | None) -> Message:
    properties = {} if name is None else {"carrier": name}
    return Message(b"%d" % number, application_properties=properties)


async def read(client: Client, stream: str, **options: object) -> list[ReceivedMessage]:
    arguments = {"offset": "first", "until_end": True} | options
    async with client.consumer(stream, **arguments) as messages:  # type: ignore[arg-type]
        return [message async for message in messages]


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return [int(message.body) for message in messages]


class TestStreams:
    @program
    async def test_created_looked_at_deleted(self, client: Client, stream: str) -> None:
        assert not await client.exists(stream)
        await client.create(stream, filter_size=64, max_age="7D", max_length_bytes=10**9)
        assert await client.exists(stream)
        with pytest.raises(StreamExists, match=f"cannot create {stream}: stream exists"):
            await client.create(stream, filter_size=64, max_age="7D", max_length_bytes=10**9)
        await client.create(
            stream, filter_size=64, max_age="7D", max_length_bytes=10**9, exist_ok=True
        )
        with pytest.raises(PreconditionFailed):
            await client.create(stream, filter_size=32)
        (info,) = await client.describe(stream)
        assert info.arguments["stream-filter-size-bytes"] == "64"
        assert info.figures["messages"] == 0
        assert (await client.stats(stream))["committed_offset"] == -1
        assert stream in [found.name for found in await client.describe()]
        await client.delete(stream)
        with pytest.raises(StreamDoesNotExist):
            await client.delete(stream)
        await client.delete(stream, missing_ok=True)
        with pytest.raises(StreamDoesNotExist):
            await client.describe(stream)
        with pytest.raises(StreamDoesNotExist):
            await client.stats(stream)

    @pytest.mark.parametrize("size", [15, 256, "large"])
    @program
    async def test_filter_sizes_that_are_refused(
        self, client: Client, stream: str, size: int | str
    ) -> None:
        with pytest.raises(PreconditionFailed):
            await client.create(stream, filter_size=size)


class TestMessages:
    @program
    async def test_everything_of_a_message_comes_back(self, client: Client, stream: str) -> None:
        sent = Message(
            b"\x00body\xff",
            Properties(
                message_id="m-1", subject="s", creation_time=datetime(2026, 1, 2, tzinfo=UTC)
            ),
            {"text": "é", "number": -5, "real": 1.5, "yes": True, "none": None, "raw": b"\x00"},
        )
        await client.create(stream)
        before = datetime.now(UTC)
        async with client.producer(stream) as producer:
            await producer.send(sent)
            await producer.send(b"just bytes")
            await producer.send(Message(value={"a": [1, 2]}))
        first, second, third = await read(client, stream)
        assert first.to_message() == sent
        assert (first.offset, first.stream) == (0, stream)
        assert abs((first.timestamp - before).total_seconds()) < 10
        assert (second.body, second.is_amqp) == (b"just bytes", True)
        assert third.value == {"a": [1, 2]}

    @program
    async def test_many_in_order(self, client: Client, stream: str) -> None:
        await client.create(stream)
        async with client.producer(stream, window=500) as producer:
            await producer.send_all(flight(n, None) for n in range(5000))
            assert producer.last_publishing_id == 5000
        assert numbers(await read(client, stream)) == list(range(5000))
        assert numbers(await read(client, stream, credit=1)) == list(range(5000))

    @program
    async def test_large_ones(self, client: Client, stream: str) -> None:
        await client.create(stream)
        bodies = [b"x" * size for size in (0, 1, 70_000, 1_000_000, 300_000, 900_000)]
        async with client.producer(stream) as producer:
            await producer.send_all(bodies)
            with pytest.raises(ValueError, match="message is 2000008 bytes, at most"):
                await producer.send(b"x" * 2_000_000)
        assert [message.body for message in await read(client, stream)] == bodies

    @program
    async def test_what_gathers_is_sent_when_the_program_pauses(
        self, client: Client, stream: str
    ) -> None:
        await client.create(stream)
        async with client.producer(stream) as producer:
            await producer.send(b"1")
            await producer.send(b"2")
            async with client.consumer(stream, offset="first") as messages:
                assert [(await anext(messages)).body for _ in range(2)] == [b"1", b"2"]

    @program
    async def test_filter_values_that_begin_late(self, client: Client, stream: str) -> None:
        """What waits then, and what is not confirmed yet, is published without one."""
        await client.create(stream)
        async with client.producer(stream) as producer:
            for number in range(1_300):
                await producer.send(b"%d" % number)
            await producer.send(b"1300", filter_value="v")
            await producer.send(b"1301")
        found = await read(client, stream)
        assert [message.body for message in found] == [b"%d" % n for n in range(1_302)]
        some = await read(client, stream, filter_values=["v"])
        assert b"1300" in {message.body for message in some}
        assert 0 < len(some) < 1_302

    @pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
    @program
    async def test_sub_batches(self, client: Client, stream: str, compression: str) -> None:
        await client.create(stream)
        async with client.producer(stream) as producer:
            await producer.send(flight(0, None))
            for start in (1, 101, 201):
                batch = [flight(n, None) for n in range(start, start + 100)]
                await producer.send_sub_batch(batch, compression)
            await producer.send(flight(301, None))
            with pytest.raises(ValueError, match="0 messages"):
                await producer.send_sub_batch([])
        found = await read(client, stream)
        assert numbers(found) == [m.offset for m in found] == list(range(302))
        assert numbers(await read(client, stream, offset=150)) == list(range(150, 302))


class TestFilters:
    @program
    async def test_just_the_matching_messages(self, client: Client, stream: str) -> None:
        names = ["HA", "UA", "HA", None, "DL"]
        await client.create(stream, filter_size=64)
        async with client.producer(stream, filter_value=carrier) as producer:
            for n in range(1000):
                await producer.send(flight(n, names[n // 7 % 5]))
        expected = [n for n in range(1000) if names[n // 7 % 5] == "HA"]
        found = await read(client, stream, filter_values=["HA"], filter_value=carrier)
        assert numbers(found) == expected
        unfiltered = [n for n in range(1000) if names[n // 7 % 5] in ("HA", None)]
        found = await read(
            client, stream, filter_values=["HA"], filter_value=carrier, match_unfiltered=True
        )
        assert numbers(found) == unfiltered
        assert await read(client, stream, filter_values=["XX"], filter_value=carrier) == []

    @program
    async def test_chunks_that_cannot_match_are_not_sent(self, client: Client, stream: str) -> None:
        await client.create(stream, filter_size=64)
        for wave, name in enumerate(["HA", "UA", "HA"]):
            async with client.producer(stream, filter_value=carrier) as producer:
                await producer.send_all(flight(wave * 200 + n, name) for n in range(200))
        async with client.consumer(
            stream, offset="first", filter_values=["UA"], until_end=True
        ) as messages:
            found = [message async for message in messages]
            progress = await messages.progress()
        assert numbers(found) == list(range(200, 400))
        # How many chunks a wave fills depends on how fast the machine is; none holds two.
        assert messages.counts.chunks == progress["chunks"] >= 1
        assert progress["skipped_chunks"] >= 2
        assert progress["next_offset"] == 600
        assert (messages.counts.matched, messages.counts.false_chunks) == (200, 0)

    @program
    async def test_a_filter_value_given_with_the_message(self, client: Client, stream: str) -> None:
        await client.create(stream)
        async with client.producer(stream) as producer:
            await producer.send(b"1", filter_value="a")
            await producer.flush()
            await producer.send(b"2", filter_value=b"b")
            await producer.flush()
            await producer.send(b"3")
        assert numbers(await read(client, stream, filter_values=["b"])) == [2]
        found = await read(client, stream, filter_values=["b"], match_unfiltered=True)
        assert numbers(found) == [2, 3]

    @pytest.mark.parametrize("name", ["region", "properties.subject"])
    @program
    async def test_a_property_by_its_name(self, client: Client, stream: str, name: str) -> None:
        """Values of every type, and messages that are not AMQP 1.0 or are cut off."""
        found = odd_messages(name)
        wanted = [b"EU", b"\xff\x00", LONG]
        arguments = {"stream-filter-property": name, "stream-filter-derive": "true"}
        await client.create(stream, arguments=arguments)
        async with client.producer(stream) as producer:
            for odd in found:
                await producer.send_encoded(odd.raw)
        for unfiltered in (False, True):
            messages = await read(
                client,
                stream,
                filter_values=wanted,
                filter_value=name,
                match_unfiltered=unfiltered,
            )
            assert [m.offset for m in messages] == [
                n
                for n, odd in enumerate(found)
                if odd.derived in wanted or (unfiltered and not odd.derived)
            ]

    @pytest.mark.parametrize("unfiltered", [False, True])
    @pytest.mark.parametrize(
        ("arguments", "published", "expected"),
        [
            # the offsets that come, and those that come besides with match_unfiltered
            ({}, "5", ([0, 2], [4])),
            ({}, None, ([2], [0, 4])),
            ({"stream-filter-property": "n"}, "5", ([0, 2], [4])),
            ({"stream-filter-property": "n"}, None, ([0, 2], [1, 4])),
            ({"stream-filter-property": "other"}, None, ([0, 2], [1, 4])),
            (
                {"stream-filter-property": "n", "stream-filter-contract": "strict"},
                None,
                ([2], [0, 1, 4]),
            ),
        ],
    )
    @program
    async def test_numbers(
        self,
        client: Client,
        stream: str,
        arguments: dict[str, str],
        published: str | None,
        expected: tuple[list[int], list[int]],
        unfiltered: bool,
    ) -> None:
        """By the property's name; a chunk for each message, so that the server's view counts."""
        numbers_given = {5: published, 6: published and "6"}
        await client.create(stream, arguments=arguments)
        for value in (5, 6, "5", "6", None):
            given = numbers_given.get(value, value)  # type: ignore[call-overload]
            properties = {} if value is None else {"n": value}
            async with client.producer(stream) as producer:
                message = Message(b"", application_properties=properties)
                await producer.send(message, filter_value=given)
        messages = await read(
            client, stream, filter_values=["5"], filter_value="n", match_unfiltered=unfiltered
        )
        wanted, others = expected
        found = [m.offset for m in messages]
        assert found == sorted((*wanted, *(others if unfiltered else ())))

    @program
    async def test_values_that_are_no_text(self, client: Client, stream: str) -> None:
        """The server skips by them as by any other, given as values and in a selector."""
        arguments = {
            "stream-filter-property": "region",
            "stream-filter-derive": "true",
            "stream-filter-contract": "strict",
        }
        await client.create(stream, arguments=arguments)
        for value in (b"\xff\x00", b"\xff\x01"):
            async with client.producer(stream) as producer:
                await producer.send(Message(b"1", application_properties={"region": value}))
        for options in (
            {"filter_values": [b"\xff\x00"]},
            {"sql": "region = 0xFF00"},
        ):
            async with client.consumer(
                stream,
                offset="first",
                until_end=True,
                **options,  # type: ignore[arg-type]
            ) as messages:
                assert "\ufffd" in messages.explain()[-1]
                assert [message.offset async for message in messages] == [0]
                assert messages.counts.chunks == 1

    @pytest.mark.parametrize("derive", ["true", "false"])
    @program
    async def test_of_the_declared_property(self, client: Client, stream: str, derive: str) -> None:
        """Whoever gives it: the server, or on a stream where it does not, the producer."""
        arguments = {"stream-filter-property": "region", "stream-filter-derive": derive}
        await client.create(stream, arguments=arguments | {"stream-chunk-max-records": "1"})
        large = "x" * 600_000  # fits into a frame once, not twice
        async with client.producer(stream) as producer:
            for region in ("EU", "US", None, large):
                properties = {} if region is None else {"region": region}
                await producer.send(Message(b"", application_properties=properties))
            eu = Message(b"", application_properties={"region": "EU"})
            await producer.send(eu, filter_value="US")
            await producer.send_encoded(eu.encode())
            await producer.send(eu, filter_value=b"")
        found = await read(client, stream, filter_values=["EU"])
        filled = [6] if derive == "true" else []  # the server's rule is not the producer's
        assert [message.offset for message in found] == [0, 5, *filled]

    @program
    async def test_a_name_that_no_property_has(self, client: Client, stream: str) -> None:
        await client.create(stream)
        with pytest.raises(ValueError, match="properties has message_id, user_id, to, subject"):
            await read(client, stream, filter_values=["a"], filter_value="properties.color")

    @program
    async def test_by_batches(self, client: Client, stream: str) -> None:
        await client.create(stream)
        async with client.producer(stream, filter_value=carrier) as producer:
            await producer.send_all(flight(n, "HA" if n % 300 == 0 else "UA") for n in range(900))
        async with client.consumer(
            stream,
            offset="first",
            filter_values=["HA"],
            filter_value=carrier,
            until_end=True,
        ) as consumer:
            batches = [batch async for batch in consumer.batches()]
        assert [int(m.body) for batch in batches for m in batch] == [0, 300, 600]
        assert consumer.last_offset == 600


class TestOffsets:
    @program
    async def test_where_reading_begins(self, client: Client, stream: str) -> None:
        await client.create(stream)
        async with client.producer(stream) as producer:
            await producer.send_all(flight(n, None) for n in range(100))
        await anyio.sleep(0.02)  # chunks have their time in milliseconds
        middle = datetime.now(UTC)
        await anyio.sleep(0.02)
        async with client.producer(stream) as producer:
            await producer.send_all(flight(n, None) for n in range(100, 150))
        for offset, first in (("first", 0), (0, 0), (42, 42), (middle, 100), ("last", 100)):
            assert numbers(await read(client, stream, offset=offset)) == list(range(first, 150))
        for offset in ("next", 150, 10**9):
            assert await read(client, stream, offset=offset) == []
        for wrong in ("middle", -1):
            with pytest.raises(ValueError, match="offset is"):
                await read(client, stream, offset=wrong)

    @program
    async def test_what_comes_from_now_on(self, client: Client, stream: str) -> None:
        await client.create(stream)
        async with client.producer(stream) as producer, client.consumer(stream) as messages:
            for n in range(3):
                await producer.send(flight(n, None))
                assert int((await anext(messages)).body) == n

    @program
    async def test_stored(self, client: Client, stream: str) -> None:
        await client.create(stream)
        async with client.producer(stream) as producer:
            await producer.send_all(flight(n, None) for n in range(100))
        with pytest.raises(NoOffset):
            await client.query_offset(stream, "app")
        first = await read(client, stream, offset="stored", name="app")
        assert numbers(first) == list(range(100))
        async with client.consumer(stream, offset="first", name="app") as messages:
            with pytest.raises(ValueError, match="no offset to store"):
                await messages.store_offset()
            async for message in messages:
                if message.offset == 30:
                    await messages.store_offset()
                    break
        assert await client.query_offset(stream, "app") == 30
        rest = await read(client, stream, offset="stored", name="app")
        assert numbers(rest) == list(range(31, 100))
        async with client.consumer(stream) as messages:
            with pytest.raises(ValueError, match="with a name"):
                await messages.store_offset(5)
        with pytest.raises(ValueError, match="needs the name"):
            await read(client, stream, offset="stored")


class TestNamedProducers:
    @program
    async def test_what_is_sent_again_is_stored_once(self, client: Client, stream: str) -> None:
        await client.create(stream)
        for start in (0, 50):
            async with client.producer(stream, name="importer") as producer:
                for n in range(start, start + 100):
                    await producer.send(flight(n, None), publishing_id=n + 1)
        assert numbers(await read(client, stream)) == list(range(150))
        async with client.producer(stream, name="importer") as producer:
            assert producer.last_publishing_id == 150
            await producer.send(flight(150, None))
        assert numbers(await read(client, stream)) == list(range(151))


class TestFailures:
    @program
    async def test_streams_that_do_not_exist(self, client: Client, stream: str) -> None:
        with pytest.raises(StreamDoesNotExist, match="cannot publish to"):
            async with client.producer(stream):
                pass
        with pytest.raises(StreamDoesNotExist, match="cannot read"):
            async with client.consumer(stream):
                pass

    @program
    async def test_a_stream_that_is_deleted_while_it_is_used(
        self, client: Client, stream: str
    ) -> None:
        await client.create(stream)
        async with client.consumer(stream) as messages:
            await client.delete(stream)
            with pytest.raises(Exception, match=f"stream {stream} is gone"):
                await anext(messages)
        await client.create(stream)
        with pytest.raises(Exception, match=f"stream {stream} is gone"):  # noqa: PT012
            async with client.producer(stream) as producer:
                await client.delete(stream)
                await producer.send_all([b"x"] * 1000)

    def test_an_error_of_the_program_comes_out_as_it_is(self, run: Runner, stream: str) -> None:
        async def work(client: Client) -> None:
            await client.create(stream)
            async with client.producer(stream) as producer, client.consumer(stream):
                await producer.send(b"x")
                raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            run(work)

    @program
    async def test_messages_that_are_refused(self, client: Client, stream: str) -> None:
        await client.create(stream)
        async with client.producer(stream) as producer:
            await producer.send(b"x")
            await producer.flush()
            producer._publisher_id = 77  # one that the server does not know
            client._connection.publishers.places[77] = Place(77, producer)
            await producer.send(b"y")
            with pytest.raises(PublishFailed, match="1 messages were not accepted: publisher does"):
                await producer.flush()
            producer._publisher_id = 0

    @program
    async def test_as_many_as_a_connection_has_ids(self, client: Client, stream: str) -> None:
        await client.create(stream)
        for _ in range(300):  # ids are given back
            async with client.producer(stream), client.consumer(stream):
                pass
