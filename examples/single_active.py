"""Two workers of one name: one works, the other takes over. First start `streamd serve`."""

import asyncio
import sys

from streamd import Client, connect


async def work(client: Client, worker: str, enough: int, is_there: asyncio.Event) -> None:
    """Take some jobs, then leave."""
    async with client.consumer("jobs", name="workers", single_active=True, offset="stored") as jobs:
        is_there.set()
        async for job in jobs:
            print(worker, "does", job.body.decode())
            await jobs.store_offset(job.offset)
            enough -= 1
            if enough == 0:
                return


async def main() -> None:
    async with connect(*sys.argv[1:]) as client:
        await client.create("jobs", exist_ok=True)
        async with asyncio.TaskGroup() as tasks:
            for worker, enough in (("the first one", 2), ("the second one", 1)):
                is_there = asyncio.Event()
                tasks.create_task(work(client, worker, enough, is_there))
                await is_there.wait()
            async with client.producer("jobs") as producer:
                await producer.send_all([b"tea", b"milk", b"sugar"])
        await client.delete("jobs")


asyncio.run(main())
