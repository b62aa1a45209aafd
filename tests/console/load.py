"""Something to look at: streams that are written and read, until this is killed.

`python -m tests.console.load URI` prints "ready" once there is something on every page.
"""

import itertools
import math
import random
import sys

import anyio

from clients import Client, Message, connect

CUSTOMERS = 400
FAVOURITES = ("customer-7", "customer-29")
ORDERS = 24_000
_PAUSE = 0.25


def order(number: int, choose: random.Random) -> Message:
    total = round(choose.lognormvariate(3.5, 1), 2)
    customer = f"customer-{int(choose.paretovariate(0.6)) % CUSTOMERS}"
    properties = {"order_id": number, "customer": customer, "total": total}
    body = f'{{"order": {number}, "total": {total}, "items": {choose.randint(1, 9)}}}'
    return Message(body.encode(), application_properties=properties)


async def fill(client: Client) -> None:
    choose = random.Random(1)
    await client.create(
        "orders",
        arguments={
            "stream-filter-property": "customer",
            "stream-filter-derive": "true",
            "stream-key-properties": "order_id",
            "stream-max-segment-size-bytes": "500000",
            "stream-chunk-max-records": "60",
            "max-age": "30D",
        },
    )
    for name in ("invoices", "audit", "telemetry", "payments", "clicks", "shipments", "returns"):
        await client.create(name, arguments={"max-age": "7D"})
    async with client.producer("orders") as producer:
        for number in range(ORDERS):
            await producer.send(order(number, choose))
    for name in ("invoices", "payments", "shipments"):
        async with client.producer(name) as producer:
            await producer.send_all(order(n, choose) for n in range(choose.randrange(500, 4000)))
    await client.register_selector("orders", "large-orders", sql="total > 300")
    for name, offset in (("billing", 23_400), ("warehouse", 17_250), ("reports", 4_100)):
        await client.set_offset("orders", name, offset)


async def publish(client: Client, stream: str, each_second: float) -> None:
    choose = random.Random(stream)
    async with client.producer(stream, name=f"{stream}-service") as producer:
        for turn in itertools.count():
            wave = 1 + 0.5 * math.sin(turn / 40) + 0.3 * choose.random()
            for _ in range(round(each_second * _PAUSE * wave)):
                await producer.send(order(turn, choose))
            await anyio.sleep(_PAUSE)


async def consume(client: Client, stream: str, name: str, pause: float, **options: object) -> None:
    async with client.consumer(stream, name=name, **options) as messages:  # type: ignore[arg-type]
        async for _ in messages:
            await anyio.sleep(pause)


async def main(uri: str) -> None:
    async with connect(uri) as client, connect(uri) as slow, connect(uri) as quick:
        await fill(client)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish, client, "orders", 80)
            tasks.start_soon(publish, client, "clicks", 200)
            tasks.start_soon(publish, client, "payments", 20)
            follow = {"filter_values": FAVOURITES, "filter_value": "customer"}
            tasks.start_soon(lambda: consume(quick, "orders", "dashboard", 0, offset="next"))
            tasks.start_soon(lambda: consume(quick, "clicks", "clicks-reader", 0, offset="first"))
            tasks.start_soon(
                lambda: consume(slow, "orders", "billing", 0.01, offset=9_000, **follow)
            )
            tasks.start_soon(lambda: consume(slow, "orders", "archive", 0.05, offset="first"))
            await anyio.sleep(2)
            print("ready", flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
