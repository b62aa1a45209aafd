"""Publish three messages, read back those of one carrier. First start `streamd serve`."""

import asyncio
import sys

from streamd import Message, ReceivedMessage, connect


def carrier(message: Message | ReceivedMessage) -> str:
    return message.application_properties["carrier"]


async def main() -> None:
    async with connect(*sys.argv[1:]) as client:  # rabbitmq-stream://guest:guest@localhost:5552
        await client.create("hello", filter_size=32, exist_ok=True)
        async with client.producer("hello", filter_value=carrier) as producer:
            for code in ("HA", "UA", "HA"):
                await producer.send(Message(b"aloha", application_properties={"carrier": code}))
        async with client.consumer(
            "hello", offset="first", filter_values=["HA"], filter_value=carrier, until_end=True
        ) as messages:
            async for message in messages:
                print(message.offset, carrier(message), message.body.decode())


asyncio.run(main())
