"""The newest rstream, unmodified, against a real server."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import rstream
from rstream import (
    AMQPMessage,
    CompressionType,
    ConfirmationStatus,
    Consumer,
    ConsumerOffsetSpecification,
    FilterConfiguration,
    OffsetType,
    Producer,
    amqp_decoder,
)

from tests.support.process import PATIENCE_SECONDS, ServerProcess
from tests.support.proxy import CuttingProxy

STREAM = "flights"
Got = list[tuple[int, Any]]


async def carrier(message: Any) -> str:
    return str(message.application_properties["carrier"])


def login(server: ServerProcess | CuttingProxy) -> dict[str, Any]:
    host = server.virtual_host if isinstance(server, ServerProcess) else "/"
    user = {"username": "guest", "password": "guest"}
    return user | {"host": "localhost", "port": server.port, "vhost": host}


def producer(server: ServerProcess | CuttingProxy, **options: Any) -> Producer:
    return Producer(**login(server), **options)


def consumer(server: ServerProcess | CuttingProxy, **options: Any) -> Consumer:
    return Consumer(**login(server), **options)


def flight(carrier: str, number: int) -> AMQPMessage:
    return AMQPMessage(body=b"%d" % number, application_properties={"carrier": carrier})


async def publish_and_wait(sink: Producer, messages: list[Any], **options: Any) -> list[int]:
    """Publish and wait until each is confirmed; returns publishing ids in order of confirms."""
    confirmed: list[int] = []
    done = asyncio.Event()

    def on_confirm(status: ConfirmationStatus) -> None:
        assert status.is_confirmed
        confirmed.append(status.message_id)
        if len(confirmed) >= len(messages):
            done.set()

    await sink.send_batch(STREAM, messages, on_publish_confirm=on_confirm, **options)
    await asyncio.wait_for(done.wait(), 20)
    return confirmed


async def collect(
    server: ServerProcess | CuttingProxy,
    enough: Callable[[Got], bool],
    offset: ConsumerOffsetSpecification | None = None,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
    quiet: float = 0.2,
    **options: Any,
) -> Got:
    """Consume until `enough`, and a little longer to see whether more comes."""
    got: Got = []
    source = consumer(server)
    await source.start()

    async def on_message(message: Any, context: rstream.MessageContext) -> None:
        got.append((context.offset, message))

    await source.subscribe(
        STREAM,
        on_message,
        offset_specification=offset or ConsumerOffsetSpecification(OffsetType.FIRST, None),
        **({"decoder": amqp_decoder} | options),
    )
    running = asyncio.create_task(source.run())
    if meanwhile is not None:
        await meanwhile()
    end = time.monotonic() + PATIENCE_SECONDS
    while not enough(got):
        assert time.monotonic() < end, f"only {len(got)} messages came"
        await asyncio.sleep(0.02)
    await asyncio.sleep(quiet)
    await source.close()
    await running
    return got


def at(kind: OffsetType, value: int | None = None) -> ConsumerOffsetSpecification:
    return ConsumerOffsetSpecification(kind, value)


def two_waves_in(server: ServerProcess) -> ServerProcess:
    """Stream of filter size 64: 500 flights of HA, 500 of UA, 500 without a filter value."""

    async def fill() -> None:
        async with producer(server, filter_value_extractor=carrier) as sink:
            await sink.create_stream(STREAM, arguments={"stream-filter-size-bytes": 64})
            for start, name in ((0, "HA"), (500, "UA")):
                await publish_and_wait(sink, [flight(name, start + n) for n in range(500)])
        async with producer(server) as sink:
            await publish_and_wait(sink, [flight("none", 1000 + n) for n in range(500)])

    asyncio.run(fill())
    return server


@pytest.fixture(scope="module")
def two_waves(shared_by_module: ServerProcess) -> ServerProcess:
    """For those that only read."""
    return two_waves_in(shared_by_module)


def test_a_stream_with_a_filter_size(shared: ServerProcess) -> None:
    async def main() -> None:
        async with producer(shared) as sink:
            await sink.create_stream(STREAM, arguments={"stream-filter-size-bytes": 64})
            assert await sink.stream_exists(STREAM)
            await sink.create_stream(
                STREAM, arguments={"stream-filter-size-bytes": 64}, exists_ok=True
            )
            with pytest.raises(rstream.exceptions.StreamAlreadyExists):
                await sink.create_stream(STREAM, arguments={"stream-filter-size-bytes": 64})
            for size in (15, 256):
                with pytest.raises(rstream.exceptions.PreconditionFailed):
                    await sink.create_stream("other", arguments={"stream-filter-size-bytes": size})
            await sink.delete_stream(STREAM)
            with pytest.raises(rstream.exceptions.StreamDoesNotExist):
                await sink.delete_stream(STREAM)

    asyncio.run(main())


class TestFilters:
    @pytest.mark.parametrize(
        ("values", "unfiltered", "offsets"),
        [
            (["HA"], True, [*range(500), *range(1000, 1500)]),
            (["XX"], False, []),
            (["HA", "UA"], False, list(range(1000))),
            (None, False, list(range(1500))),
        ],
    )
    def test_what_comes(
        self,
        two_waves: ServerProcess,
        values: list[str] | None,
        unfiltered: bool,
        offsets: list[int],
    ) -> None:
        wanted = values and FilterConfiguration(values, None, match_unfiltered=unfiltered)
        enough = len(offsets)
        got = asyncio.run(
            collect(two_waves, lambda got: len(got) >= enough, filter_input=wanted, quiet=0.5)
        )
        assert [offset for offset, _ in got] == offsets

    def test_no_match_is_lost_and_other_chunks_are_not_sent(self, two_waves: ServerProcess) -> None:
        wanted = FilterConfiguration(values_to_filter=["UA"], predicate=None)
        got = asyncio.run(collect(two_waves, lambda got: len(got) >= 500, filter_input=wanted))
        # No predicate: whatever the server sends shows. Only chunks of UA were sent.
        assert [offset for offset, _ in got] == list(range(500, 1000))
        assert {bytes(m.application_properties[b"carrier"]) for _, m in got} == {b"UA"}
        assert [int(bytes(message.body)) for _, message in got] == list(range(500, 1000))

    def test_what_was_left_out_was_not_moved(self, server: ServerProcess) -> None:
        """Counted in bytes on the way: reading one wave of three moves a third."""
        two_waves_in(server).stop()

        async def read(
            proxy: CuttingProxy, filter_input: FilterConfiguration | None, expected: int
        ) -> int:
            before = proxy.to_client
            got = await collect(proxy, lambda got: len(got) >= expected, filter_input=filter_input)
            assert len(got) == expected
            return proxy.to_client - before

        async def main() -> tuple[int, int]:
            with CuttingProxy(server.port) as proxy:
                # Clients connect to the address that the server announces: that must be the proxy.
                server.start("--advertised-port", str(proxy.port))
                wanted = FilterConfiguration(values_to_filter=["HA"], predicate=None)
                return await read(proxy, wanted, 500), await read(proxy, None, 1500)

        filtered, everything = asyncio.run(main())
        assert 0.25 * everything < filtered < 0.4 * everything


class TestOffsets:
    @pytest.mark.parametrize(
        ("offset", "first"),
        [
            (at(OffsetType.FIRST), 0),
            (at(OffsetType.OFFSET, 0), 0),
            (at(OffsetType.OFFSET, 742), 742),
            (at(OffsetType.OFFSET, 1499), 1499),
            (at(OffsetType.TIMESTAMP, 0), 0),
        ],
    )
    def test_where_reading_begins(
        self, two_waves: ServerProcess, offset: ConsumerOffsetSpecification, first: int
    ) -> None:
        got = asyncio.run(
            collect(two_waves, lambda got: len(got) >= 1500 - first, offset, quiet=0.2)
        )
        assert [number for number, _ in got] == list(range(first, 1500))

    def test_the_last_chunk(self, two_waves: ServerProcess) -> None:
        got = asyncio.run(collect(two_waves, bool, at(OffsetType.LAST)))
        assert got[0][0] > 0
        assert [number for number, _ in got] == list(range(got[0][0], 1500))

    @pytest.mark.parametrize("offset", [at(OffsetType.NEXT), at(OffsetType.TIMESTAMP, 1 << 60)])
    def test_what_comes_from_now_on(
        self, shared: ServerProcess, offset: ConsumerOffsetSpecification
    ) -> None:
        two_waves_in(shared)

        async def publish_more() -> None:
            async with producer(shared) as sink:
                await publish_and_wait(sink, [flight("new", n) for n in range(10)])

        got = asyncio.run(
            collect(shared, lambda got: len(got) >= 10, offset, meanwhile=publish_more)
        )
        assert [number for number, _ in got] == list(range(1500, 1510))

    def test_stored_offsets(self, server: ServerProcess) -> None:
        two_waves_in(server)

        async def main() -> None:
            source = consumer(server)
            await source.start()
            with pytest.raises(rstream.exceptions.OffsetNotFound):
                await source.query_offset(STREAM, "app")
            for offset in (1000, 321):
                await source.store_offset(STREAM, "app", offset)
                assert await source.query_offset(STREAM, "app") == offset
            await source.close()

        asyncio.run(main())
        server.stop()
        server.start()

        async def again() -> int:
            source = consumer(server)
            await source.start()
            offset = await source.query_offset(STREAM, "app")
            await source.close()
            return int(offset)

        assert asyncio.run(again()) == 321
        got = asyncio.run(
            collect(server, lambda got: len(got) >= 1178, at(OffsetType.OFFSET, 322), quiet=0.1)
        )
        assert got[0][0] == 322


class TestPublishing:
    def test_confirms(self, shared: ServerProcess) -> None:
        async def main() -> None:
            async with producer(shared) as sink:
                await sink.create_stream(STREAM)
                ids = await publish_and_wait(sink, [b"x"] * 3000)
                assert sorted(ids) == list(range(1, 3001)) or sorted(ids) == list(range(3000))
                assert isinstance(await sink.send_wait(STREAM, b"one"), int)

        asyncio.run(main())

    def test_duplicates_across_connections(self, shared: ServerProcess) -> None:
        async def main() -> None:
            for start in (0, 50):  # the second half of the first is sent again
                async with producer(shared) as sink:
                    await sink.create_stream(STREAM, exists_ok=True)
                    batch = []
                    for n in range(start, start + 100):
                        message = AMQPMessage(body=b"%d" % n)
                        message.publishing_id = n + 1
                        batch.append(message)
                    confirmed = await publish_and_wait(sink, batch, publisher_name="importer")
                    assert len(confirmed) == 100  # duplicates are confirmed too

        asyncio.run(main())
        got = asyncio.run(collect(shared, lambda got: len(got) >= 150))
        assert [int(bytes(message.body)) for _, message in got] == list(range(150))

    def test_a_named_producer_goes_on_where_it_was(self, server: ServerProcess) -> None:
        async def send(count: int) -> None:
            async with producer(server) as sink:
                await sink.create_stream(STREAM, exists_ok=True)
                messages = [AMQPMessage(body=b"x") for _ in range(count)]
                await publish_and_wait(sink, messages, publisher_name="app")

        asyncio.run(send(10))
        server.kill()
        server.start()
        asyncio.run(send(10))
        got = asyncio.run(collect(server, lambda got: len(got) >= 20))
        assert [number for number, _ in got] == list(range(20))

    @pytest.mark.parametrize("compression", [CompressionType.No, CompressionType.Gzip])
    def test_sub_batches(self, shared: ServerProcess, compression: CompressionType) -> None:
        async def main() -> Got:
            async with producer(shared) as sink:
                await sink.create_stream(STREAM)
                for start in range(0, 1000, 100):
                    messages = [AMQPMessage(body=b"%d" % (start + n)) for n in range(100)]
                    await sink.send_sub_entry(STREAM, messages, compression_type=compression)
                await sink.send(STREAM, AMQPMessage(body=b"1000"))
                return await collect(shared, lambda got: len(got) >= 1001)

        got = asyncio.run(main())
        assert [number for number, _ in got] == list(range(1001))
        assert [int(bytes(message.body)) for _, message in got] == list(range(1001))
