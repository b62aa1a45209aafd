"""What rstream does against a running server; a line "ok NAME" for each part.

What it does alone, or inside TLS, is tried in tests/e2e/test_rstream.py and its neighbours.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from rstream import (
    AMQPMessage,
    Consumer,
    ConsumerOffsetSpecification,
    EventContext,
    MessageContext,
    OffsetSpecification,
    OffsetType,
    Producer,
    RouteType,
    SuperStreamConsumer,
    SuperStreamCreationOption,
    SuperStreamProducer,
    amqp_decoder,
)

SERVER = {"host": "localhost", "username": "guest", "password": "guest"}
PORT = int(os.environ["STREAM_PORT"])
FIRST = ConsumerOffsetSpecification(OffsetType.FIRST, None)
Got = list[Any]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def same(found: object, expected: object) -> None:
    assert found == expected, f"{found!r}, not {expected!r}"


async def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true"
        await asyncio.sleep(0.02)


def producer() -> Producer:
    return Producer(**SERVER, port=PORT)


def consumer() -> Consumer:
    return Consumer(**SERVER, port=PORT)


async def publish(stream: str, messages: Iterable[Any]) -> None:
    async with producer() as sink:
        await sink.create_stream(stream, exists_ok=True)
        for message in messages:
            await sink.send_wait(stream, message)


async def consume(stream: str, enough: int, offset: ConsumerOffsetSpecification = FIRST) -> Got:
    """The messages that come until there are enough, and those that come shortly after."""
    got: Got = []
    async with consumer() as source:
        await source.subscribe(
            stream, lambda message, _context: got.append(message), offset_specification=offset
        )
        await until(lambda: len(got) >= enough, f"{enough} messages")
        await asyncio.sleep(0.2)
    return got


async def super_stream(stream: str) -> None:
    """Messages go where their keys are bound."""

    async def key(message: AMQPMessage) -> str:
        return str(message.application_properties["key"])

    keys = ["a", "b", "c"]
    made = SuperStreamCreationOption(n_partitions=0, binding_keys=keys)
    for wanted in keys:  # one producer each: 1.1.1 asks once where a key leads, for all keys
        async with SuperStreamProducer(
            **SERVER,
            port=PORT,
            super_stream=stream,
            super_stream_creation_option=made,
            routing=RouteType.Key,
            routing_extractor=key,
        ) as sink:
            for number in range(keys.index(wanted), 60, 3):
                properties = {"key": wanted}
                message = AMQPMessage(body=b"%d" % number, application_properties=properties)
                await sink.send(message)
    got = await consume_all(stream, 60)
    same(got, {f"{stream}-{k}": list(range(n, 60, 3)) for n, k in enumerate(keys)})
    async with consumer() as locator:
        await (await locator.default_client).delete_super_stream(stream)


async def consume_all(name: str, enough: int) -> dict[str, list[int]]:
    """The numbers in the partitions of a super stream."""
    got: dict[str, list[int]] = {}

    def take(message: AMQPMessage, context: MessageContext) -> None:
        got.setdefault(context.stream, []).append(int(bytes(message.body)))

    async with SuperStreamConsumer(**SERVER, port=PORT, super_stream=name) as source:
        await source.subscribe(take, decoder=amqp_decoder, offset_specification=FIRST)
        await until(lambda: sum(map(len, got.values())) >= enough, f"{enough} messages")
    return got


async def single_active_consumer(stream: str) -> None:
    await publish(stream, numbers(10))
    first: Got = []
    second: Got = []

    async def from_the_first(_active: bool, _context: EventContext) -> OffsetSpecification:
        return OffsetSpecification(OffsetType.FIRST, 0)

    async def join(source: Consumer, got: Got) -> None:
        await source.subscribe(
            stream,
            lambda message, _context: got.append(message),
            offset_specification=FIRST,
            properties={"single-active-consumer": "true", "name": "app"},
            consumer_update_listener=from_the_first,
        )

    async with consumer() as other:
        async with consumer() as one:
            await join(one, first)
            await until(lambda: len(first) >= 10, "10 messages")
            await join(other, second)
            await asyncio.sleep(0.3)
            same(second, [])
        await until(lambda: len(second) >= 10, "the second consumer's turn")


async def concurrency(stream: str) -> None:
    """Several publish and consume one stream while others come and go beside it."""
    got: list[Got] = [[], [], []]

    async def publish_some(writer: str) -> None:
        await publish(stream, [f"{writer} {number}".encode() for number in range(200)])

    async def consume_all_of_it(mine: Got) -> None:
        mine += await consume(stream, 600)

    async def come_and_go(name: str) -> None:
        async with producer() as sink:
            for number in range(10):
                await sink.create_stream(name)
                await sink.send_wait(name, b"%d" % number)
                same(await consume(name, 1), [b"%d" % number])
                await sink.delete_stream(name)
                same(await sink.stream_exists(name), False)

    await publish(stream, [])
    async with asyncio.TaskGroup() as tasks:
        for mine in got:
            tasks.create_task(consume_all_of_it(mine))
        for writer in "abc":
            tasks.create_task(publish_some(writer))
        for name in "xy":
            tasks.create_task(come_and_go(f"{stream}-{name}"))
    for mine in got:
        same(mine, got[0])
        for writer in (b"a", b"b", b"c"):
            own = [body for body in mine if body.startswith(writer)]
            same(own, [b"%s %d" % (writer, number) for number in range(200)])


async def gap(_stream: str) -> None:
    """Messages to offset 19 were seen; those from 10 on were lost with the machine."""
    stream = os.environ["GAP_STREAM"]
    async with consumer() as source:
        same(await source.query_offset(stream, "app"), 9)
    await publish(stream, numbers(3))
    for offset in (10, 15, 20):
        behind = ConsumerOffsetSpecification(OffsetType.OFFSET, offset)
        same(await consume(stream, 3, behind), numbers(3))


PARTS: tuple[Callable[[str], Awaitable[None]], ...] = (
    super_stream,
    single_active_consumer,
    concurrency,
    gap,
)


async def main() -> None:
    for part in PARTS:
        await asyncio.wait_for(part(f"python-{part.__name__}"), 60)
        print("ok", part.__name__, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
