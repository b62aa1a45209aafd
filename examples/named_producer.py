"""Publish each order once, however often this program runs. First start `streamd serve`."""

import asyncio
import sys

from streamd import Client, connect

ORDERS = [b"tea", b"milk", b"sugar"]


async def publish(client: Client) -> None:
    async with client.producer("till", name="till-3") as producer:
        print("the server has everything up to", producer.last_publishing_id)
        for number, order in enumerate(ORDERS, start=1):
            await producer.send(order, publishing_id=number)


async def main() -> None:
    async with connect(*sys.argv[1:]) as client:
        await client.create("till", max_age="7D", exist_ok=True)
        await publish(client)
        print((await client.stats("till"))["committed_offset"] + 1, "orders are stored")


asyncio.run(main())
