"""Pick orders by SQL; only chunks that may hold a match are sent. First start `streamd serve`."""

import asyncio
import sys

from streamd import Message, connect

ORDERS = [("EU", 90), ("EU", 5), ("US", 70), (None, 80)]
DECLARED = {"stream-filter-property": "region"}


async def main() -> None:
    async with connect(*sys.argv[1:]) as client:
        await client.create("sql-orders", filter_size=32, arguments=DECLARED)
        await client.register_selector("sql-orders", "big", sql="total > 60")
        async with client.producer("sql-orders") as producer:
            for region, total in ORDERS:
                properties = {"total": total} | ({"region": region} if region else {})
                await producer.send(Message(b"", application_properties=properties))
                await producer.flush()
        for asked in ({"sql": "region = 'EU' AND total > 50"}, {"group": "big"}):
            async with client.consumer(
                "sql-orders", offset="first", until_end=True, **asked
            ) as found:
                orders = [message.application_properties async for message in found]
            print(orders, f"from {found.counts.chunks} of {len(ORDERS)} chunks")
        await client.delete("sql-orders")


if __name__ == "__main__":
    asyncio.run(main())
