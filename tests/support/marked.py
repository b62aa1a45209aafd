"""What the consumers of a group get of stream `s`, and what a plain reader says they should get."""

from typing import NamedTuple

import trio

from segments.message import Message, MessageView
from tests.support.server import Chunk, Harness, Peer

ONE, TWO = "d = 1", "d = 2"  # selectors


def message(d: int, *, is_filtered: bool = False) -> bytes:
    properties = {"d": d, "is_filtered": is_filtered}
    return Message(b"x" * 100, application_properties=properties).encode()


class Read(NamedTuple):
    """A message that was delivered."""

    offset: int
    d: object
    is_filtered: object


def messages(chunk: Chunk) -> list[Read]:
    found = [MessageView(body).application_properties for body in chunk.bodies]
    return [Read(chunk.header.chunk_id + n, **one) for n, one in enumerate(found)]


async def read(peer: Peer) -> list[Read]:
    """All that comes until nothing does."""
    found: list[Read] = []
    while True:
        with trio.move_on_after(30) as limit:
            chunk = await peer.chunk()
        if limit.cancelled_caught:
            return found
        found += messages(chunk)


async def plain(server: Harness) -> list[Read]:
    peer = await server.peer()
    await peer.subscribe("s", credit=1_000)
    return await read(peer)


async def of_group(server: Harness) -> list[Read]:
    peer = await server.peer()
    await peer.subscribe("s", credit=1_000, selector_group="g")
    return await read(peer)


def matching(found: list[Read], text: str) -> list[Read]:
    return [one for one in found if f"d = {one.d}" == text]
