"""Sealed segments reach the store, in order, once, whatever becomes of requests."""

from pathlib import Path

from tests.broker.tier.support import (
    SEGMENT_BYTES,
    manifest_of,
    orphans,
    passes,
    publish,
    tiered,
)
from tests.support.fake_store import FakeStore


async def test_sealed_segments_are_stored(tmp_path: Path) -> None:
    store = FakeStore()
    async with tiered(tmp_path, store) as server:
        peer = await server.peer()
        await peer.create("s", stream_max_segment_size_bytes=SEGMENT_BYTES)
        await peer.declare("s", reference="p")
        await publish(peer, 0, 30)
        await passes(5)
        stream = server.host.find("s")
        log = stream.log
        manifest = manifest_of(store, "s")
        assert len(log.segments) > 3
        assert manifest.next_offset == log.segments[-1].base_offset
        assert all(segment.stored for segment in log.segments[:-1])
        assert not orphans(store)
