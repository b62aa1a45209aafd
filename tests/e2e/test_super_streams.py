"""Super streams and single active consumers with rstream, unmodified."""

import asyncio
import time
from typing import Any

from rstream import (
    AMQPMessage,
    ConsumerOffsetSpecification,
    OffsetSpecification,
    OffsetType,
    SuperStreamConsumer,
    SuperStreamCreationOption,
    SuperStreamProducer,
    amqp_decoder,
)

from tests.support.process import PATIENCE_SECONDS, ServerProcess

NAME = "invoices"
FIRST = ConsumerOffsetSpecification(OffsetType.FIRST, None)


async def key_of(message: Any) -> str:
    return str(message.application_properties["id"])


def producer(server: ServerProcess) -> SuperStreamProducer:
    return SuperStreamProducer(
        "localhost",
        server.port,
        username="guest",
        password="guest",
        super_stream=NAME,
        routing_extractor=key_of,
        super_stream_creation_option=SuperStreamCreationOption(n_partitions=3),
    )


def consumer(server: ServerProcess) -> SuperStreamConsumer:
    return SuperStreamConsumer(
        "localhost", server.port, username="guest", password="guest", super_stream=NAME
    )


async def publish(server: ServerProcess, numbers: range) -> None:
    async with producer(server) as sink:
        for number in numbers:
            properties = {"id": str(number)}
            await sink.send(AMQPMessage(body=b"%d" % number, application_properties=properties))


class Reader:
    """A super stream consumer that writes down what it gets, by partition."""

    def __init__(self, server: ServerProcess) -> None:
        self.source = consumer(server)
        self.got: list[tuple[str, int]] = []
        self._running: asyncio.Task[None] | None = None

    async def start(self, **options: Any) -> None:
        await self.source.start()

        async def on_message(message: Any, context: Any) -> None:
            self.got.append((context.stream, int(bytes(message.body))))

        await self.source.subscribe(
            on_message, decoder=amqp_decoder, offset_specification=FIRST, **options
        )
        self._running = asyncio.create_task(self.source.run())

    async def close(self) -> None:
        await self.source.close()
        assert self._running is not None
        await self._running


async def until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.05)


def test_messages_spread_over_partitions_in_order(server: ServerProcess) -> None:
    async def main() -> None:
        await publish(server, range(300))
        reader = Reader(server)
        await reader.start()
        await until(lambda: len(reader.got) >= 300)
        await reader.close()
        assert sorted(number for _, number in reader.got) == list(range(300))
        partitions = {stream for stream, _ in reader.got}
        assert partitions == {f"{NAME}-{n}" for n in range(3)}
        for partition in partitions:
            numbers = [number for stream, number in reader.got if stream == partition]
            assert numbers == sorted(numbers)

    asyncio.run(main())


def test_single_active_consumers_share_and_take_over(server: ServerProcess) -> None:
    properties = {"single-active-consumer": "true", "super-stream": NAME, "name": "app"}
    options = {"properties": properties, "subscriber_name": "app"}

    async def on_update(_is_active: bool, _context: Any) -> Any:
        return OffsetSpecification(OffsetType.FIRST, 0)

    async def main() -> None:
        await publish(server, range(300))
        first, second = Reader(server), Reader(server)
        await first.start(consumer_update_listener=on_update, **options)
        await until(lambda: len(first.got) >= 300)
        await second.start(consumer_update_listener=on_update, **options)
        # Partition 1 of 3 is the second member's: it begins again, where it asks to.
        await until(lambda: second.got)
        await asyncio.sleep(0.5)
        assert {stream for stream, _ in second.got} == {f"{NAME}-1"}
        await first.close()
        await until(lambda: len({stream for stream, _ in second.got}) == 3)
        await until(lambda: len(second.got) >= 300)
        await second.close()
        assert sorted(number for _, number in second.got) == list(range(300))

    asyncio.run(main())
