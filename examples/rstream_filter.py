"""Chunk filtering with rstream, RabbitMQ's stream client for Python: pip install rstream.

Nothing here is specific to streamd. First start `streamd serve`.
"""

import asyncio
import sys
from typing import Any

from rstream import (
    AMQPMessage,
    Consumer,
    ConsumerOffsetSpecification,
    FilterConfiguration,
    MessageContext,
    OffsetType,
    Producer,
    amqp_decoder,
)

STREAM = "rstream-flights"
PORT = int(sys.argv[1]) if sys.argv[1:] else 5552


async def carrier(message: Any) -> str:
    return message.application_properties["carrier"]


async def publish() -> None:
    async with Producer(
        "localhost", PORT, username="guest", password="guest", filter_value_extractor=carrier
    ) as producer:
        await producer.delete_stream(STREAM, missing_ok=True)
        await producer.create_stream(STREAM, arguments={"stream-filter-size-bytes": 64})
        for code in ("HA", "UA", "DL"):
            flights = [
                AMQPMessage(body=f"flight {n}".encode(), application_properties={"carrier": code})
                for n in range(100)
            ]
            await producer.send_batch(STREAM, flights)
            await asyncio.sleep(0.1)  # batches that arrive together may share a chunk


async def consume() -> int:
    """Count the delivered flights of Hawaiian Airlines; the server skips the other chunks."""
    consumer = Consumer("localhost", PORT, username="guest", password="guest")
    await consumer.start()
    came, matched, done = 0, 0, asyncio.Event()

    async def on_message(message: Any, _context: MessageContext) -> None:
        nonlocal came, matched
        came += 1
        matched += message.application_properties[b"carrier"] == b"HA"  # rstream gives bytes
        if matched == 100:
            done.set()

    await consumer.subscribe(
        STREAM,
        on_message,
        decoder=amqp_decoder,
        offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None),
        filter_input=FilterConfiguration(values_to_filter=["HA"], match_unfiltered=False),
    )
    running = asyncio.create_task(consumer.run())
    await done.wait()
    await consumer.close()
    await running
    return came


async def main() -> None:
    await publish()
    print("of 300 messages the server sent", await consume())


asyncio.run(main())
