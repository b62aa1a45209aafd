"""Copy the messages of a stream to another server; run again, it goes on where it ended.

    python copy_stream.py FROM TO STREAM [PROPERTY]

FROM and TO are addresses, rabbitmq-stream://user:password@host:port/virtual-host, of streamd or
RabbitMQ; both have the stream already. With a PROPERTY its values become the filter values, for a
server that does not take them from the messages by itself.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

from streamd import ReceivedMessage, connect

IDLE_SECONDS = 3  # so long nothing more has come: that was all


async def copy(source: str, target: str, stream: str, filter_property: str = "") -> None:
    def value_of(message: ReceivedMessage) -> str:
        return str(message.application_properties.get(filter_property, ""))

    async with connect(source) as old, connect(target) as new:
        # The number of a message is its offset plus one: the target knows what it has already.
        async with new.producer(stream, name=f"copy of {stream}") as producer:
            begin = producer.last_publishing_id
            async with old.consumer(stream, offset=begin) as messages:
                async for message in until_idle(messages.batches()):
                    await producer.send_encoded(
                        message.raw,
                        publishing_id=message.offset + 1,
                        filter_value=value_of(message) if filter_property else None,
                    )
        print(f"{stream}: copied {producer.num_confirmed:,} messages, from offset {begin} on")
        here = (await new.stats(stream))["committed_offset"]
        print(f"the last one has offset {producer.last_publishing_id - 1} there, {here} here")


async def until_idle(
    batches: AsyncIterator[list[ReceivedMessage]],
) -> AsyncIterator[ReceivedMessage]:
    with suppress(TimeoutError):
        while True:
            for message in await asyncio.wait_for(anext(batches), IDLE_SECONDS):
                yield message


asyncio.run(copy(*sys.argv[1:]))
