"""Orders in three partitions, those of a customer in order. First start `streamd serve`."""

import asyncio
import sys

from streamd import Client, Message, ReceivedMessage, connect


def customer(message: Message | ReceivedMessage) -> str:
    return message.application_properties["customer"]


async def publish(client: Client) -> None:
    async with client.super_producer("sales", routing_key=customer) as producer:
        for number in range(1, 4):
            for name in ("Ada", "Ben", "Finn"):
                body = b"order %d" % number
                await producer.send(Message(body, application_properties={"customer": name}))


async def count(client: Client) -> None:
    async with client.super_consumer("sales", offset="first", until_end=True) as orders:
        async for order in orders:
            print(order.stream, order.offset, customer(order), order.body.decode())


async def main() -> None:
    async with connect(*sys.argv[1:]) as client:
        await client.create_super_stream("sales", 3)
        await publish(client)
        await count(client)
        await client.delete_super_stream("sales")


asyncio.run(main())
