"""What programs may not do is refused where they do it, and ends nothing else."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

import clients.connection
from clients import (
    AccessRefused,
    Client,
    Closed,
    ConnectionLost,
    Consumer,
    Message,
    Producer,
    PublishFailed,
    StreamError,
    StreamNotAvailable,
)
from streamd.auth.administration import Administration
from streamd.broker.declared.rows import PermissionRow
from streamd.wire.stream import ResponseCode, commands as c
from tests.support.client import Network
from tests.support.server import FIRST, OK, harness


@pytest.fixture
async def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]  # noqa: ANN201
    async with harness(tmp_path) as server:
        for name in ("s", "t"):
            await server.host.create(name, [])
        yield Network(server, monkeypatch)


async def contents(client: Client, stream: str) -> list[bytes]:
    async with client.consumer(stream, offset="first", until_end=True) as messages:
        return [message.body async for message in messages]


class TestAfterTheContext:
    async def test_a_producer(self, network: Network) -> None:
        async with network.client() as client:
            async with client.producer("s") as old:
                await old.send(b"1")
            async with client.producer("t") as new:
                for use in (old.send(b"2"), old.send_sub_batch([b"2"]), old.flush()):
                    with pytest.raises(Closed, match="s is used after the context"):
                        await use
                await new.send(b"3")
            assert await contents(client, "t") == [b"3"]
            assert await contents(client, "s") == [b"1"]

    async def test_a_producer_that_waits_for_room(self, network: Network) -> None:
        failures: list[Exception] = []

        async def wait() -> None:
            try:
                await producer.send(b"2")
            except Closed as error:
                failures.append(error)

        async with network.client() as client, trio.open_nursery() as nursery:
            with pytest.raises(ZeroDivisionError):  # noqa: PT012
                async with client.producer("s", window=1) as producer:
                    producer._connection = None
                    await producer.send(b"1")
                    nursery.start_soon(wait)
                    await trio.testing.wait_all_tasks_blocked()
                    raise ZeroDivisionError
        assert len(failures) == 1

    async def test_a_consumer(self, network: Network) -> None:
        async with network.client() as client:
            async with client.consumer("s", name="c") as old:
                pass
            async with client.consumer("t", name="c"):
                for use in (anext(old), old.store_offset(1), old.progress()):
                    with pytest.raises(Closed, match="s is used after the context"):
                        await use

    async def test_a_client(self, network: Network) -> None:
        async with network.client() as client:
            pass
        with pytest.raises(Closed, match="client of localhost:5552 is used after"):
            await client.exists("s")
        with pytest.raises(Closed):
            async with client.producer("s"):
                pass


class TestPublishing:
    async def test_a_filter_value_that_is_too_long(self, network: Network) -> None:
        async with network.client() as client:
            async with client.producer("s") as producer:
                with pytest.raises(ValueError, match="32768 bytes, expected 32767 at most"):
                    await producer.send(b"x", filter_value="v" * 32_768)
                await producer.send(b"y", filter_value="v" * 32_767)
            assert await contents(client, "s") == [b"y"]

    @pytest.mark.parametrize("value", [0, False, 7, [], bytearray()])
    async def test_a_filter_value_that_is_no_text(self, network: Network, value: object) -> None:
        """As a property may have: the message is refused, nothing else ends."""
        async with network.client() as client:
            async with client.producer("s", filter_value=lambda _: value) as producer:  # type: ignore[arg-type,return-value]
                with pytest.raises(TypeError, match=r"filter value is .*, expected text, bytes"):
                    await producer.send(b"x")
                await producer.send(b"y", filter_value="v")
            assert await contents(client, "s") == [b"y"]

    async def test_a_flush_waits_for_what_was_given_before(self, network: Network) -> None:
        """Another task gives more without end, so there is always something not confirmed."""
        given = 0
        is_flushed = False

        async def give(producer: Producer) -> None:
            nonlocal given
            while not is_flushed:
                assert given < 10_000
                await producer.send(b"%d" % given)
                given += 1

        async with network.client() as client:
            async with client.producer("s", window=300) as producer, trio.open_nursery() as nursery:
                nursery.start_soon(give, producer)
                while not given:
                    await trio.lowlevel.checkpoint()
                before = given
                await producer.flush()
                is_flushed = True
                assert producer.num_confirmed >= before
            assert await contents(client, "s") == [b"%d" % number for number in range(given)]

    async def test_all_that_wait_are_told_what_is_refused(self, network: Network) -> None:
        told: list[list[tuple[int, int]]] = []

        async def flush(producer: Producer) -> None:
            try:
                await producer.flush()
            except PublishFailed as failed:
                told.append(failed.refused)

        async with network.client() as client, client.producer("s") as producer:
            producer._connection = None  # so that they wait
            await producer.send(b"1")
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(flush, producer)
                await trio.testing.wait_all_tasks_blocked()
                producer._waiting.clear()
                producer.received(c.PublishError(0, ((1, ResponseCode.PRECONDITION_FAILED),)))
            assert told == [[(1, ResponseCode.PRECONDITION_FAILED)]] * 3
            await producer.flush()  # it was told

    async def test_a_number_goes_on_above_all_earlier_ones(self, network: Network) -> None:
        """A duplicate has a low number; the messages behind it are none."""
        async with network.client() as client:
            async with client.producer("s", name="n") as producer:
                await producer.send(b"1", publishing_id=10)
                await producer.send(b"again", publishing_id=5)
                assert await producer.send(b"2") == 11
            assert await contents(client, "s") == [b"1", b"2"]

    @pytest.mark.parametrize("number", [-1, 1 << 64])
    async def test_a_number_that_is_none(self, network: Network, number: int) -> None:
        async with network.client() as client:
            async with client.producer("s") as producer:
                with pytest.raises(ValueError, match="publishing id is"):
                    await producer.send(b"x", publishing_id=number)
                await producer.send(b"y")
            assert await contents(client, "s") == [b"y"]

    async def test_what_is_no_message(self, network: Network) -> None:
        async with network.client() as client, client.producer("s") as producer:
            for wrong in ("text", 5, None):
                with pytest.raises(TypeError, match="expected a Message, or bytes"):
                    await producer.send(wrong)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="compression is 'zip', expected none, gzip"):
                await producer.send_sub_batch([b"x"], "zip")
            with pytest.raises(ValueError, match="window is 0"):
                async with client.producer("s", window=0):
                    pass

    async def test_the_largest_sub_batches(self, network: Network) -> None:
        async with network.client() as client:
            async with client.producer("s") as producer:
                largest = 0
                for size in range((1 << 20) - 50, 1 << 20):
                    try:
                        await producer.send_sub_batch([b"x" * size], "none")
                    except ValueError:
                        break
                    largest = size
                await producer.flush()
            assert largest
            assert len((await contents(client, "s"))[-1]) == largest

    @pytest.mark.parametrize("name", ["", "p"])
    async def test_a_server_that_comes_back_with_a_lower_limit(
        self, network: Network, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """A producer with a name ends with the first one that fits into no frame any more."""
        async with network.client() as client:
            async with client.producer("s", name=name) as producer:
                producer._connection = None  # so that they wait
                await producer.send(b"1")
                await producer.send(b"x" * 3000)
                await producer.send_sub_batch([b"x" * 3000], "none")
                await producer.send(b"2")
                monkeypatch.setattr(clients.connection, "_FRAME_MAX", 2000)
                network.streams[-1].kill()
                with pytest.raises(PublishFailed, match="messages were not accepted") as failed:
                    await producer.flush()
            too_large, behind = ResponseCode.FRAME_TOO_LARGE, ResponseCode.PUBLISHER_DOES_NOT_EXIST
            rest = [(4, behind)] if name else []
            assert failed.value.refused == [(2, too_large), (3, too_large), *rest]
            assert await contents(client, "s") == ([b"1"] if name else [b"1", b"2"])


class TestConsuming:
    async def test_the_end_is_known_when_the_first_chunk_comes(
        self, network: Network, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """More is published while the consumer is opened, and comes together with the answer."""
        opening = Consumer.open

        async def open_slowly(consumer: Consumer, *where: Any) -> None:
            await opening(consumer, *where)
            await trio.testing.wait_all_tasks_blocked()

        async with network.client() as client, client.producer("s") as producer:
            await producer.send(b"1")
            await producer.flush()
            stats = client.stats

            async def stats_and_more(stream: str) -> dict[str, int]:
                before = await stats(stream)
                await producer.send(b"2")
                await producer.flush()
                return before

            monkeypatch.setattr(client, "stats", stats_and_more)
            monkeypatch.setattr(Consumer, "open", open_slowly)
            async with client.consumer("s", offset="first", until_end=True) as messages:
                first = messages.take()
                assert first is not None
                assert first.body == b"1"
                assert [message async for message in messages] == []

    async def test_one_by_one_and_then_chunk_by_chunk(self, network: Network) -> None:
        sent = [b"%d" % number for number in range(10)]
        async with network.client() as client:
            async with client.producer("s") as producer:
                await producer.send_all(sent)
            async with client.consumer("s", offset="first", until_end=True) as messages:
                found = [(await anext(messages)).body for _ in range(3)]
                async for batch in messages.batches():
                    found += [message.body for message in batch]
                    assert messages.last_offset == len(found) - 1
            assert found == sent

    async def test_options(self, network: Network) -> None:
        async with network.client() as client:
            for options, reason in (
                ({"filter_values": "HA"}, "expected \\['HA'\\]"),
                ({"filter_values": b"HA"}, "expected \\[b'HA'\\]"),
                ({"filter_values": [5]}, "filter value is 5, expected text or bytes"),
                ({"credit": 0}, "credit is 0, expected 1 to 65535"),
                ({"credit": 70_000}, "credit is 70000"),
            ):
                with pytest.raises((ValueError, TypeError), match=reason):
                    async with client.consumer("s", **options):  # type: ignore[arg-type]
                        pass
            async with client.consumer("s", credit=65_535):
                pass
            with pytest.raises(ValueError, match="partitions is 'abc'"):
                await client.create_super_stream("x", "abc")

    @pytest.mark.parametrize("offset", [-1, 1 << 64])
    async def test_offsets_that_cannot_be_stored(self, network: Network, offset: int) -> None:
        async with network.client() as client, client.consumer("s", name="c") as consumer:
            with pytest.raises(ValueError, match="offset to store is"):
                await consumer.store_offset(offset)
            network.streams[-1].kill()
            await client.exists("s")

    async def test_offsets_that_the_server_does_not_store(self, network: Network) -> None:
        """Leaving does not ask over and over again until its time is up."""
        async with network.client() as client:
            consumer = client.consumer("s", name="c")
            messages = await consumer.__aenter__()
            await messages.store_offset(5)
            await network.server.host.delete("s", lambda: None)
            before = trio.current_time()
            await consumer.__aexit__(None, None, None)
            assert trio.current_time() < before + 1


class TestNumbers:
    async def test_a_producer_that_is_refused_half_way(self, network: Network) -> None:
        """With the right to write alone its number can be declared, but not continued."""
        server = network.server.server
        administration = Administration(server.broker, server.directory)
        await administration.put_permission(PermissionRow("guest", "/", "", "s|t", "t"))
        async with network.client() as client:
            for _ in range(2):
                with pytest.raises(AccessRefused):
                    async with client.producer("s", name="p"):
                        pass
            async with client.producer("s") as producer:
                await producer.send(b"x")

    async def test_one_whose_opening_is_not_answered(
        self, network: Network, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its number is used again when the server has said that it is free, not before."""
        async with network.client() as client:
            connection = client._connection._connection
            assert connection is not None
            dispatch = connection._dispatch
            held: list[c.ServerCommand] = []

            async def hold(command: c.ServerCommand) -> None:
                held.append(command)

            monkeypatch.setattr(connection, "_dispatch", hold)
            with pytest.raises(ConnectionLost, match="no answer to DeclarePublisher in 30 s"):
                async with client.producer("s"):
                    pass
            assert set(client._connection.publishers.places) == {0}
            monkeypatch.setattr(connection, "_dispatch", dispatch)
            async with client.producer("s") as producer:
                await producer.send(b"x")
                assert producer._publisher_id == 1
            for command in held:
                await dispatch(command)
            await trio.testing.wait_all_tasks_blocked()
            assert set(client._connection.publishers.places) == set()

    async def test_a_stream_that_goes_as_a_consumer_is_opened(self, network: Network) -> None:
        """The news arrive together with the answer, before the program has seen that."""
        async with network.client() as client:
            connection = client._connection._connection
            assert connection is not None
            dispatch = connection._dispatch

            async def with_news(command: c.ServerCommand) -> None:
                await dispatch(command)
                if isinstance(command, c.SubscribeResponse):
                    await dispatch(c.MetadataUpdate(ResponseCode.STREAM_NOT_AVAILABLE, "s"))

            connection._dispatch = with_news  # type: ignore[method-assign]
            with trio.fail_after(100), pytest.raises(StreamNotAvailable, match="s is gone"):
                async with client.consumer("s") as consumer:
                    await anext(consumer)


class TestSuperStreams:
    async def test_partitions_take_turns(self, network: Network) -> None:
        """One that always has more does not keep the others waiting."""
        names = [(str(n), f"super-{n}") for n in range(3)]
        await network.server.host.create_super_stream("super", names, [])
        async with network.client() as client:
            for _, name in names:
                async with client.producer(name) as producer:
                    for _ in range(5):
                        await producer.send_all([b"1", b"2"])
                        await producer.flush()
            async with client.super_consumer("super", offset="first", until_end=True) as messages:
                await trio.testing.wait_all_tasks_blocked()
                found = [(message.stream, message.offset) async for message in messages]
        for _, name in names:
            places = [place for place, (stream, _) in enumerate(found) if stream == name]
            assert [found[place][1] for place in places] == list(range(10))
            assert places[0] < 3
            assert max(b - a for a, b in pairwise(places)) <= 5  # two of each other, then one

    async def test_a_partition_that_goes_away(self, network: Network) -> None:
        """The error is that of the partition, alone, and the others can be read on."""
        names = [(str(n), f"super-{n}") for n in range(3)]
        await network.server.host.create_super_stream("super", names, [])
        async with network.client() as client:
            async with client.super_producer("super", lambda m: m.body.decode()) as producer:
                for number in range(30):
                    await producer.send(Message(b"%d" % number))
            failures: list[StreamError] = []
            found: set[str] = set()
            with pytest.raises(StreamNotAvailable, match="super-1 is gone"):  # noqa: PT012
                async with client.super_consumer("super", offset="first") as messages:
                    await network.server.host.delete("super-1", lambda: None)
                    await trio.testing.wait_all_tasks_blocked()
                    while not found >= {"gone", "super-0", "super-2"}:
                        try:
                            found.add((await anext(messages)).stream)
                        except StreamError as error:
                            failures.append(error)
                            found.add("gone")
                    raise failures[0]
            assert len(failures) == 1


class TestTurns:
    async def test_active_then_inactive_at_once(self, network: Network) -> None:
        """It is inactive in the end, and both questions are answered, in their order."""
        async with network.client() as client:
            connection = client._connection._connection
            assert connection is not None
            async with client.consumer(
                "s", name="g", single_active=True, offset="stored"
            ) as consumer:
                await trio.testing.wait_all_tasks_blocked()
                assert consumer.is_active
                sent: list[c.ClientCommand] = []

                send_on = connection.send

                async def send(command: c.ClientCommand) -> None:
                    sent.append(command)
                    if not isinstance(command, c.ConsumerUpdateResponse):
                        await send_on(command)

                connection.send = send  # type: ignore[method-assign]
                for number, active in enumerate((0, 1, 0)):
                    consumer.received(c.ConsumerUpdate(number, 0, active))
                assert not consumer.is_active
                await trio.testing.wait_all_tasks_blocked()
                assert not consumer.is_active
                answers = [a for a in sent if isinstance(a, c.ConsumerUpdateResponse)]
                assert [(a.correlation_id, a.code) for a in answers] == [(n, OK) for n in range(3)]
                assert answers[1].offset == FIRST
                for number, active in enumerate((1, 0, 1), 3):
                    consumer.received(c.ConsumerUpdate(number, 0, active))
                await trio.testing.wait_all_tasks_blocked()
                assert consumer.is_active
                del connection.send


async def test_a_request_that_was_not_sent_is_sent_on_the_next_connection(network: Network) -> None:
    async with network.client() as client, trio.open_nursery() as nursery:
        connection = client._connection._connection
        assert connection is not None
        async with connection._sending:
            nursery.start_soon(client.create, "new")
            await trio.testing.wait_all_tasks_blocked()
            network.streams[-1].kill()
            await connection.ended.wait()
        with trio.fail_after(100):
            while not await client.exists("new"):
                await trio.sleep(0.1)


async def test_credit_that_becomes_due_while_other_credit_is_sent(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is done with all it was sent meanwhile is sent more nevertheless."""
    original = clients.connection.ClientConnection.send_frame

    async def slow(connection: Any, make: Any) -> None:
        await original(connection, make)
        await trio.sleep(1)  # the program reads on

    async with network.client() as client:
        for number in range(40):
            async with client.producer("s") as producer:
                await producer.send(Message(b"%d" % number))
        monkeypatch.setattr(clients.connection.ClientConnection, "send_frame", slow)
        with trio.fail_after(100):
            assert await contents(client, "s") == [b"%d" % number for number in range(40)]
