"""Find a parcel's messages, by its number and by message id. First start `streamd serve`."""

import asyncio
import sys

from streamd import Message, Properties, connect


async def main() -> None:
    async with connect(*sys.argv[1:]) as client:
        keys = {"stream-key-properties": "parcel,properties.message_id"}
        await client.create("parcels", arguments=keys, exist_ok=True)
        async with client.producer("parcels") as producer:
            for number, state in enumerate(("sent", "lost", "found", "delivered")):
                properties = Properties(message_id=f"scan-{number}")
                await producer.send(Message(state.encode(), properties, {"parcel": 4711}))
        found = client.find("parcels", key=4711, newest=True, limit=2)
        async for message in found:
            print(message.offset, message.body.decode())
        print("the search is complete" if found.is_all else f"cut by the {found.cut}")
        async for message in client.find("parcels", key="scan-1"):
            print(message.offset, message.body.decode())


asyncio.run(main())
