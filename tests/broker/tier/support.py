"""A server in memory with a tier in memory, at virtual time."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

from segments.store import stores
from segments.store.manifest import Manifest, decode_manifest
from segments.store.metadata_log import Held, look
from segments.store.object_names import CLUSTER, LOG_FOLDER, SNAPSHOT_FOLDER, WAL_FOLDER, StreamKey
from streamd.broker.tier.tier import Tier
from streamd.operations.names import as_sent
from streamd.operations.tier_reports import StreamTier
from streamd.wire.stream.fields import OffsetSpecification
from tests.support.fake_store import WRITES, Call, FakeStore, Kept
from tests.support.server import FIRST, Harness, Peer, harness

SEGMENT_BYTES = "2000"
A_FRAME = 20  # messages
# Larger ones, for uploads in parts: of a segment as 8 MiB are of 64 MiB.
PART, LARGE_SEGMENT = 25_000, 200_000
_STREAMS, _FRAMES, _LARGE = "abcd", 10, [b"x" * 1_000] * 20


def bodies(first: int, count: int = A_FRAME) -> list[bytes]:
    """Messages of which each says its offset."""
    return [b"message %08d" % number for number in range(first, first + count)]


async def publisher(server: Harness, name: str = "s", **arguments: str) -> Peer:
    """A peer that publishes under a name to a stream, which is created where it is not there."""
    peer = await server.peer()
    if name not in server.host.names():
        await peer.create(name, **arguments)
    await peer.declare(name, reference="p")
    return peer


async def confirmed_by_store(
    server: Harness, name: str = "s", frames: int = 0, **arguments: str
) -> Peer:
    """As `publisher`; the store confirms the stream's messages, and has so many frames of them."""
    peer = await publisher(server, name, **({"stream_confirm": "store"} | arguments))
    await publish(peer, 0, frames)
    return peer


async def a_stream(server: Harness, name: str = "s", **arguments: str) -> Peer:
    """As `publisher`; the stream has small segments."""
    small = {"stream_max_segment_size_bytes": SEGMENT_BYTES}
    return await publisher(server, name, **(small | arguments))


async def stored(server: Harness, frames: int = 30, name: str = "s", **arguments: str) -> Peer:
    """As `a_stream`, with so many frames; the store has all of its segments that are full."""
    peer = await a_stream(server, name, **arguments)
    await publish(peer, 0, frames)
    await passes(5)
    return peer


async def publish(peer: Peer, first: int, frames: int) -> int:
    """Publish messages from an offset on; the one behind the last."""
    for at in range(first, first + frames * A_FRAME, A_FRAME):
        await peer.store(bodies(at), first_id=at + 1)
    return first + frames * A_FRAME


@asynccontextmanager
async def tiered(folder: Path, store: FakeStore, **settings: Any) -> AsyncIterator[Harness]:
    """A server over `folder` whose tier is `store`."""
    settings = {"tier": "s3://bucket/tier", "tier_delete_delay_seconds": 0} | settings
    with opening(store):
        async with harness(folder, **settings) as server:
            yield server


def copy_of(store: FakeStore) -> FakeStore:
    """What another machine finds."""
    return FakeStore(dict(store.objects), now_ms=store.now_ms)


@asynccontextmanager
async def elsewhere(folder: Path, store: FakeStore) -> AsyncIterator[Harness]:
    """The machine is lost: another one begins with what its store has now."""
    async with tiered(folder / "elsewhere", copy_of(store), restore=True) as server:
        yield server


@contextmanager
def opening(store: FakeStore) -> Iterator[None]:
    """Servers that start in this block find this store."""
    opened, stores.open_store = stores.open_store, lambda *_: store
    try:
        yield
    finally:
        stores.open_store = opened


def tier_of(server: Harness) -> Tier:
    tier = server.server.broker.tier
    assert isinstance(tier, Tier)
    return tier


def states_of(store: FakeStore) -> list[dict[str, Kept]]:
    """What a store has after each write from now on, once the tier has begun."""
    states: list[dict[str, Kept]] = []

    def keep(call: Call) -> None:
        if call.name in WRITES and CLUSTER in store.objects:
            states.append(dict(store.objects))

    store.after = keep
    return states


def manifests(store: FakeStore) -> list[Manifest]:
    """All of a store, the newest lives last."""
    keys = sorted(key for key in store.objects if key.endswith("/manifest"))
    return [decode_manifest(store.objects[key].content) for key in keys]


def manifest_of(store: FakeStore, name: str) -> Manifest:
    """The newest of a stream that is not deleted."""
    found = [one for one in manifests(store) if one.stream.stream == name and not one.is_deleted]
    assert found, f"nothing is stored of {name}"
    return max(found, key=lambda one: one.stream.creation)


def orphans(store: FakeStore) -> set[str]:
    """Objects that nothing names."""
    named: set[str] = set()
    for manifest in manifests(store):
        named |= manifest.keys() | {manifest.stream.manifest}
    return {key for key in store.objects if key not in named and not is_of_log(key)}


def is_of_log(key: str) -> bool:
    """It is of the log of metadata, or its root."""
    return key == CLUSTER or key.startswith((f"{LOG_FOLDER}/", f"{SNAPSHOT_FOLDER}/"))


def stored_bytes(store: FakeStore, manifest: Manifest) -> bytes:
    """Chunks of all segments, one behind the other."""
    stream: StreamKey = manifest.stream
    return b"".join(
        store.objects[one.key(stream, ".segment")].content[8:] for one in manifest.segments
    )


async def all_of(
    server: Harness, name: str = "s", offset: OffsetSpecification = FIRST, seconds: float = 3
) -> list[bytes]:
    """All messages that a new consumer gets within some time."""
    peer = await server.consumer(name, offset, credit=1_000)
    found: list[bytes] = []
    with trio.move_on_after(seconds):
        while True:
            found += (await peer.chunk()).bodies
    return found


def slots(store: FakeStore) -> list[str]:
    """Keys of all slots of write-ahead logs."""
    return sorted(key for key in store.objects if key.startswith(WAL_FOLDER))


def slot(number: int) -> str:
    """The key of a slot of the first start."""
    return f"{WAL_FOLDER}/1/{number:020d}"


def held_of(store: FakeStore) -> Held:
    """The newest entry of the log of metadata."""
    held = look(store)
    assert held is not None
    return held


def report_of(server: Harness, name: str = "s") -> StreamTier:
    """What the tier tells of a stream."""
    report = tier_of(server).stream(server.host.name, as_sent(name))
    assert report is not None
    return report


async def passes(seconds: float = 2) -> None:
    """Virtual time goes by."""
    await trio.sleep(seconds)


class Publishers:
    """Publish to the streams a, b, c and d, in step, large messages that fill segments."""

    def __init__(self, server: Harness) -> None:
        self._server = server
        self._peers: list[Peer] = []
        self._frames = 0

    async def publish(self, segments: int) -> int:
        """Fill so many segments of each; bytes of them."""
        if not self._peers:
            for name in _STREAMS:
                peer = await self._server.publisher(
                    name, is_new=True, stream_max_segment_size_bytes=str(LARGE_SEGMENT)
                )
                self._peers.append(peer)
        for _ in range(segments * _FRAMES + (not self._frames)):  # one more seals it
            for peer in self._peers:
                await peer.store(_LARGE, first_id=self._frames * len(_LARGE) + 1)
            self._frames += 1
        return segments * len(_STREAMS) * LARGE_SEGMENT

    async def are_stored(self, store: FakeStore) -> bool:
        """All but what the newest segments have."""
        for name in _STREAMS:
            async with self._server.host.find(as_sent(name)).opened() as log:
                if manifest_of(store, name).next_offset != log.segments.gaps.before(
                    log.segments.shown[-1].base_offset
                ):
                    return False
        return True
