"""Producers and consumers of the stream protocol: our own client, and rstream."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import rstream

from benchmarks.soak.ledger import Producer, Reader, Told
from clients import Client, Message
from clients.filters import ReceivedMessage

_BATCH = 25
_PAUSE = 0.05
_CONFIRM_SECONDS = 5
_STORE_EACH = 50
_SUB_BATCHES, _FLUSHES = 0.3, 0.2  # of all batches


def next_messages(producer: Producer, count: int) -> Iterator[Told]:
    """So many more, counted as sent."""
    for _ in range(count):
        producer.sent += 1
        yield Told(producer.name, producer.sent)


def _message(told: Told) -> Message:
    return Message(told.body(), application_properties=told.properties)


async def publish(
    client: Client,
    producer: Producer,
    stop: asyncio.Event,
    *,
    with_values: bool = False,
    with_sub_batches: bool = False,
) -> None:
    """With our client, which sends again what was not confirmed when a connection was lost."""
    chance = random.Random(producer.name)  # noqa: S311 - to be had again
    name = "" if producer.may_repeat else producer.name
    value: Callable[[Message], str] | None = None
    if with_values:

        def value(message: Message) -> str:
            return str((message.application_properties or {})["kind"])

    async with client.producer(producer.stream, name=name, filter_value=value) as sink:
        while not stop.is_set():
            messages = [_message(told) for told in next_messages(producer, _BATCH)]
            if with_sub_batches and chance.random() < _SUB_BATCHES:
                await sink.send_sub_batch(messages, chance.choice(("none", "gzip", "lz4")))
            else:
                await sink.send_all(messages)
            if chance.random() < _FLUSHES:
                sent = producer.sent
                await sink.flush()
                producer.confirmed = sent
            await asyncio.sleep(_PAUSE)
        await sink.flush()
        producer.confirmed = producer.sent


async def publish_with_rstream(port: int, producer: Producer, stop: asyncio.Event) -> None:
    """With numbers of our own; what was not confirmed is sent again with the same ones."""
    waiting: list[Told] = []
    while not (stop.is_set() and not waiting):
        with suppress(Exception):  # whatever rstream raises when its connection is gone
            async with rstream.Producer(
                "localhost",
                port,
                username="guest",
                password="guest",  # noqa: S106 - of a new server
            ) as sink:
                while not stop.is_set() or waiting:
                    if not waiting:
                        waiting = list(next_messages(producer, _BATCH))
                    await asyncio.wait_for(_send(sink, producer, waiting), _CONFIRM_SECONDS)
                    producer.confirmed = waiting[-1].number
                    waiting = []
                    await asyncio.sleep(_PAUSE)
        await asyncio.sleep(_PAUSE)


async def _send(sink: rstream.Producer, producer: Producer, batch: list[Told]) -> None:
    missing = {told.number for told in batch}
    done = asyncio.Event()

    def on_confirm(status: rstream.ConfirmationStatus) -> None:
        if status.is_confirmed:
            missing.discard(status.message_id)
        if not missing:
            done.set()

    messages = []
    for told in batch:
        message = rstream.AMQPMessage(body=told.body(), application_properties=told.properties)
        message.publishing_id = told.number
        messages.append(message)
    await sink.send_batch(
        producer.stream,
        messages,
        publisher_name=producer.name,
        on_publish_confirm=on_confirm,
    )
    await done.wait()


async def read(client: Client, reader: Reader, stop: asyncio.Event, **options: object) -> None:
    """With our client, which goes on behind what has arrived when a connection was lost."""
    async with client.consumer(reader.stream, offset="first", **options) as messages:  # type: ignore[arg-type]
        await _take_all(messages.batches(), reader, stop)


async def _take_all(batches: object, reader: Reader, stop: asyncio.Event) -> None:
    async for batch in batches:  # type: ignore[attr-defined]
        for message in batch:
            take(reader, message)
        if stop.is_set():
            return


def take(reader: Reader, message: ReceivedMessage) -> None:
    """Judge a message."""
    reader.take(bytes(message.body), message.offset)


async def read_from_stored(client: Client, reader: Reader, stop: asyncio.Event) -> None:
    """A consumer that ends and comes again, and goes on behind the offset that it has stored."""
    chance = random.Random(reader.name)  # noqa: S311 - to be had again
    while not stop.is_set():
        left = chance.randint(100, 2000)
        async with client.consumer(reader.stream, offset="stored", name=reader.name) as messages:
            async for message in messages:
                take(reader, message)
                left -= 1
                if left <= 0 or stop.is_set() or message.offset % _STORE_EACH == 0:
                    await messages.store_offset()
                if left <= 0 or stop.is_set():
                    break
