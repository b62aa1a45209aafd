"""What rstream does against a running server; a line "ok NAME" for each part."""

import asyncio
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from rstream import (
    AMQPMessage,
    CompressionType,
    Consumer,
    ConsumerOffsetSpecification,
    EventContext,
    FilterConfiguration,
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


def producer(**options: Any) -> Producer:
    return Producer(**SERVER, **({"port": PORT} | options))


def consumer(**options: Any) -> Consumer:
    return Consumer(**SERVER, **({"port": PORT} | options))


async def publish(stream: str, messages: Iterable[Any], **options: Any) -> None:
    async with producer(**options) as sink:
        await sink.create_stream(stream, exists_ok=True)
        for message in messages:
            await sink.send_wait(stream, message)


async def consume(stream: str, enough: int, subscribe: Any = None, **options: Any) -> Got:
    """The messages that come until there are enough, and those that come shortly after."""
    got: Got = []
    async with consumer(**options) as source:
        wanted = {"offset_specification": FIRST} | (subscribe or {})
        await source.subscribe(stream, lambda message, _context: got.append(message), **wanted)
        await until(lambda: len(got) >= enough, f"{enough} messages")
        await asyncio.sleep(0.2)
    return got


async def publish_and_confirm(stream: str) -> None:
    confirmed: list[int] = []
    async with producer() as sink:
        await sink.create_stream(stream)
        await sink.send_batch(
            stream,
            numbers(1000),
            on_publish_confirm=lambda status: confirmed.append(status.is_confirmed),
        )
        await until(lambda: len(confirmed) == 1000, "confirms")
    same(all(confirmed), True)
    same(await consume(stream, 1000), numbers(1000))
    behind = {"offset_specification": ConsumerOffsetSpecification(OffsetType.OFFSET, 990)}
    same(await consume(stream, 10, behind), numbers(1000)[990:])


async def deduplication(stream: str) -> None:
    async with producer() as sink:
        await sink.create_stream(stream)
        for number in (1, 2, 2, 1, 3):
            message = AMQPMessage(body=b"%d" % number)
            message.publishing_id = number
            await sink.send(stream, message, publisher_name="p")
        got = await consume(stream, 3, {"decoder": amqp_decoder})
    same([bytes(message.body) for message in got], [b"1", b"2", b"3"])


async def sub_batches(stream: str) -> None:
    messages = [AMQPMessage(body=body) for body in numbers(100)]
    async with producer() as sink:
        await sink.create_stream(stream)
        for compression in (CompressionType.No, CompressionType.Gzip):
            await sink.send_sub_entry(stream, messages, compression_type=compression)
        got = await consume(stream, 200, {"decoder": amqp_decoder})
    same([bytes(message.body) for message in got], numbers(100) * 2)


async def filtering(stream: str) -> None:
    async def value(message: AMQPMessage) -> str:
        return str(message.application_properties["carrier"])

    def wants(message: AMQPMessage) -> bool:  # what rstream decodes is bytes
        return bytes(message.application_properties[b"carrier"]) in (b"HA", b"")

    for name in ("HA", "UA", "HA"):
        message = AMQPMessage(body=name.encode(), application_properties={"carrier": name})
        await publish(stream, [message], filter_value_extractor=value)
    await publish(stream, [AMQPMessage(body=b"none", application_properties={"carrier": ""})])
    for match_unfiltered, expected in ((False, [b"HA", b"HA"]), (True, [b"HA", b"HA", b"none"])):
        wanted = FilterConfiguration(["HA"], wants, match_unfiltered)
        subscribe = {"decoder": amqp_decoder, "filter_input": wanted}
        got = await consume(stream, len(expected), subscribe)
        same([bytes(message.body) for message in got], expected)


async def offset_tracking(stream: str) -> None:
    await publish(stream, numbers(10))
    async with consumer() as source:
        await source.store_offset(stream, "app", 6)
        same(await source.query_offset(stream, "app"), 6)


async def statistics(stream: str) -> None:
    await publish(stream, numbers(10))
    async with producer() as sink:
        client = await sink.default_client
        found = await client.query_leader_and_replicas(stream)
        same(found[0].port, PORT)
        same(await sink.stream_exists(stream), True)
        same(await sink.stream_exists("no-such-stream"), False)


async def super_stream(stream: str) -> None:
    async def key(message: AMQPMessage) -> str:
        return str(message.application_properties["key"])

    keys = ["a", "b", "c"]
    made = SuperStreamCreationOption(n_partitions=0, binding_keys=keys)
    for routing in (RouteType.Hash, RouteType.Key):
        name = f"{stream}-{routing.name}"
        for wanted in keys:  # one producer each: 1.1.1 asks once where a key leads, for all keys
            async with SuperStreamProducer(
                **SERVER,
                port=PORT,
                super_stream=name,
                super_stream_creation_option=made,
                routing=routing,
                routing_extractor=key,
            ) as sink:
                for number in range(keys.index(wanted), 60, 3):
                    properties = {"key": wanted}
                    message = AMQPMessage(body=b"%d" % number, application_properties=properties)
                    await sink.send(message)
        got = await consume_all(name, 60)
        same(sorted(n for numbers in got.values() for n in numbers), list(range(60)))
        if routing is RouteType.Key:
            same(got, {f"{name}-{k}": list(range(n, 60, 3)) for n, k in enumerate(keys)})
        async with consumer() as locator:
            await (await locator.default_client).delete_super_stream(name)


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
        behind = {"offset_specification": ConsumerOffsetSpecification(OffsetType.OFFSET, offset)}
        same(await consume(stream, 3, behind), numbers(3))


async def tls(stream: str) -> None:
    context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
    options = {"port": int(os.environ["TLS_PORT"]), "ssl_context": context}
    await publish(stream, numbers(100), **options)
    same(await consume(stream, 100, **options), numbers(100))


PARTS: tuple[Callable[[str], Awaitable[None]], ...] = (
    publish_and_confirm,
    deduplication,
    sub_batches,
    filtering,
    offset_tracking,
    statistics,
    super_stream,
    single_active_consumer,
    concurrency,
    gap,
    tls,
)


async def main() -> None:
    for part in PARTS:
        await asyncio.wait_for(part(f"python-{part.__name__}"), 60)
        print("ok", part.__name__, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
