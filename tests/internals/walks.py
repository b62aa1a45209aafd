"""What the server calls for a message, through real sockets: recorded with a profile function."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import trio

from clients import Client, Message, connect
from streamd.config import Config
from streamd.server import Server, serve

ROOT = Path(__file__).parents[2]
_PRODUCT = tuple(str(ROOT / name) for name in ("streamd", "segments"))


class Trace(list[tuple[str, str]]):
    """Functions in the order in which they were called: file and qualified name."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record in this thread as long as the block lasts."""
        before = sys.getprofile()
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_PRODUCT):
            name = code.co_qualname.replace(".<locals>", "")
            self.append((str(Path(code.co_filename).relative_to(ROOT)), name))


def record(data: Path) -> tuple[Trace, Trace]:
    """What is called for a published message, and for a chunk to consumers with a filter.

    One consumer reads two sealed segments from the beginning, then waits for the message.
    """
    return trio.run(_record, data)


async def _record(data: Path) -> tuple[Trace, Trace]:
    ports = {"stream_port": 0, "amqp_port": None, "http_port": None}
    config = Config(data=str(data), **ports)  # type: ignore[arg-type]
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(partial(serve, config, stop=stop))
        address = server.addresses["stream"]
        uri = f"rabbitmq-stream://guest:guest@localhost:{address.port}"
        async with connect(uri) as client:
            published, delivered = await _walk(client)
        stop.set()
    return published, delivered


async def _walk(client: Client) -> tuple[Trace, Trace]:
    published, delivered = Trace(), Trace()
    await client.create("s", filter_size=16, segment_size=2_000)
    async with client.producer("s", name="p", filter_value=lambda _: "v") as producer:
        for _ in range(6):
            await producer.send(Message(b"x" * 1_000))
            await producer.flush()
        with published.running():
            await producer.send(Message(b"the one"))
            await producer.flush()
        with delivered.running():
            async with client.consumer("s", offset="first", filter_values=["v"]) as messages:
                async for message in messages:
                    if message.body == b"the one":
                        await producer.send(Message(b"another"))
                    if message.body == b"another":
                        break
    return published, delivered
