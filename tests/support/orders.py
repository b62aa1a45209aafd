"""Orders in several segments, for those that search in a stream."""

import trio

from segments.message import Message, Properties
from tests.support.server import Peer


def order(number: int) -> bytes:
    return Message(
        b'{"order": %d}' % number,
        Properties(message_id=f"id-{number}"),
        {"order_id": number, "region": "EU" if number % 2 else "US", "TAGS": "ab"[number % 2]},
    ).encode()


async def store_orders(peer: Peer, **arguments: str) -> None:
    """Create the stream s, and store 30 of them, three at a time, a second apart."""
    await peer.create(
        "s",
        stream_max_segment_size_bytes="2000",
        stream_chunk_max_records="3",
        stream_filter_property="region",
        stream_filter_derive="true",
        **arguments,
    )
    await peer.declare("s")
    for n in range(0, 30, 3):
        await peer.store([order(n + k) for k in range(3)], n)
        await trio.sleep(1)
