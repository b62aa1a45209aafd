"""A worker that goes on where it stopped: run it again, and it gets only new orders.

The same library as in hello.py, this time in a trio program. First start `streamd serve`.
"""

import sys

import trio

from streamd import Message, connect


async def main() -> None:
    async with connect(*sys.argv[1:]) as client:
        await client.create("work", max_age="7D", exist_ok=True)
        async with client.producer("work") as producer:
            for item in ("tea", "milk", "sugar"):
                await producer.send(Message(item.encode()))
        async with client.consumer(
            "work", name="worker", offset="stored", until_end=True
        ) as orders:
            async for order in orders:
                print("done:", order.offset, order.body.decode())
                await orders.store_offset(order.offset)


trio.run(main)
