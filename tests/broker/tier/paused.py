"""A server is paused at any of its requests; another one takes over; the first one goes on.

    python -m tests.broker.tier.paused

Each request is met twice: the first server stops before the store has it, and when it is done and
nobody has heard of it. The new machine then has what was stored, publishes behind it, and nothing
that the first one does later changes what it has.
"""

import logging
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from segments.checksum import crc32
from segments.gaps import RESTORE_GAP
from segments.store.lookup import by_stream, counts_since, newest_manifest, stream_folders
from segments.store.manifest import Manifest
from segments.store.object_names import StreamKey
from streamd.net import threads
from streamd.operations.tier_reports import TierState
from streamd.wire.stream import commands as c
from tests.broker.tier.support import A_FRAME, SEGMENT_BYTES, passes, publish, tier_of, tiered
from tests.support.fake_store import FakeStore
from tests.support.server import FIRST, Harness, Peer

_is_old: ContextVar[bool] = ContextVar("the old server's", default=False)
_SMALL = {"stream_max_segment_size_bytes": SEGMENT_BYTES, "stream_local_max_length_bytes": "0"}
_NEW_FRAMES = 8


class Pause:
    """Stops a server at one of its requests to the store.

    Args:
        number: of the request; 0 for none.
        is_after: it is done then, and the answer is still on its way.

    Attributes:
        count: of requests.
        has_come: it is there.
        goes_on: set it to let it go on.
    """

    def __init__(self, number: int, *, is_after: bool) -> None:
        self.count = 0
        self.has_come, self.goes_on = trio.Event(), trio.Event()
        self._number, self._is_after = number, is_after

    @asynccontextmanager
    async def at_requests(self) -> AsyncIterator[None]:
        """In this block."""
        inner = threads.in_thread

        async def in_thread(work: Callable[..., Any], *arguments: object) -> Any:
            is_asked = _is_old.get() and threads._limiter.get() is not None
            self.count += is_asked
            is_met = is_asked and self.count == self._number
            if is_met and not self._is_after:
                await self._stop()
            try:
                return await inner(work, *arguments)
            finally:
                if is_met and self._is_after:
                    await self._stop()

        threads.in_thread = in_thread
        try:
            yield
        finally:
            threads.in_thread = inner

    async def _stop(self) -> None:
        self.has_come.set()
        with trio.CancelScope(shield=True):
            await self.goes_on.wait()


async def _old_work(server: Harness, peer: Peer) -> None:
    with suppress(AssertionError):  # it is refused, at last
        await _work(server, peer)


async def _work(server: Harness, peer: Peer) -> None:
    await publish(peer, 0, 8)
    await passes(2)
    await peer.begin("late", 3, reference="q", **_SMALL)
    for at in range(0, 8 * A_FRAME, A_FRAME):
        await peer.store([b"late %08d" % n for n in range(A_FRAME)], at + 1, 3)
    await server.host.settings.set_arguments("s", [("max-length-bytes", "4000")])
    await server.host.expire()
    await passes(2)
    await publish(peer, 8 * A_FRAME, 12)
    await server.host.expire()
    await peer.code(c.Delete, "gone")
    await passes(3)


async def _begin(server: Harness) -> Peer:
    peer = await server.peer()
    for number, name in enumerate(("s", "gone"), 1):
        await peer.begin(name, number, reference="p", **_SMALL)
    for at in range(0, 12 * A_FRAME, A_FRAME):
        await peer.store([b"gone %08d" % n for n in range(A_FRAME)], at + 1, 2)
    await passes(4)
    return peer


def _counting(store: FakeStore) -> dict[str, Manifest]:
    since, groups = counts_since(store), by_stream(stream_folders(store)).values()
    found = [newest_manifest(store, group, since) for group in groups]
    return {one.manifest.stream.stream: one.manifest for one in found if one is not None}


def _is_whole(store: FakeStore, manifest: Manifest) -> bool:
    key: StreamKey = manifest.stream
    return all(
        crc32(store.objects[segment.key(key, suffix)].content) == file.crc
        for segment in manifest.segments
        for suffix, file in segment.files.items()
    )


async def _work_of_new(server: Harness) -> tuple[dict[str, int], dict[str, int]]:
    """Publish to all streams; where each begins to be new, and where it ends."""
    begin, end = {}, {}
    peer = await server.peer()
    for number, name in enumerate(server.host.names()):
        async with server.host.find(name).opened() as log:
            begin[name] = log.next_offset
        await peer.declare(name, number)
        for _ in range(_NEW_FRAMES):
            bodies = [b"new %08d" % n for n in range(A_FRAME)]
            await peer.publish(bodies, 1, number)
            await peer.confirmed(A_FRAME)
        async with server.host.find(name).opened() as log:
            end[name] = log.next_offset
            assert end[name] == begin[name] + _NEW_FRAMES * A_FRAME
    return begin, end


async def _bodies(server: Harness, name: str) -> dict[int, bytes]:
    async with server.host.find(name).opened() as log:
        offsets = [
            at for one in log.segments.shown for at in range(one.base_offset, one.next_offset)
        ]
    if not offsets:
        return {}
    peer = await server.consumer(name, FIRST, credit=500)
    return dict(zip(offsets, await peer.bodies(len(offsets)), strict=True))


async def paused_at(number: int, folder: Path, *, is_after: bool) -> bool:
    """Whether there is such a request."""
    store, pause = FakeStore(), Pause(number, is_after=is_after)
    token = _is_old.set(True)
    async with tiered(folder / "old", store) as old, trio.open_nursery() as nursery:
        peer = await _begin(old)
        async with pause.at_requests():
            nursery.start_soon(_old_work, old, peer)
            with trio.move_on_after(30):
                await pause.has_come.wait()
            if not pause.has_come.is_set():
                nursery.cancel_scope.cancel()
                return False
            _is_old.reset(token)
            async with tiered(folder / "new", store, restore=True) as new:
                await _beside(old, new, pause, store)
                nursery.cancel_scope.cancel()
    async with tiered(folder / "third", store, restore=True) as third:
        assert await _bodies(third, "s")
    return True


async def _beside(old: Harness, new: Harness, pause: Pause, store: FakeStore) -> None:
    restored = _counting(store)
    begin, end = await _work_of_new(new)
    for name, manifest in restored.items():
        assert begin[name] == manifest.next_offset + RESTORE_GAP
    await passes(3)
    pause.goes_on.set()
    await passes(75)
    assert tier_of(old).ownership.state is TierState.FENCED
    counting = _counting(store)
    for name in new.host.names():
        async with new.host.find(name).opened() as log:
            manifest = log.stored.manifest
        assert manifest == counting.get(name), name
        assert manifest is None or _is_whole(store, manifest)
        bodies = await _bodies(new, name)
        assert max(bodies) == end[name] - 1
        for offset, body in bodies.items():
            at = (offset - begin[name]) % A_FRAME
            is_new = offset >= begin[name]
            assert body.startswith(b"new ") == is_new, (name, offset, body)
            if is_new:
                assert body == b"new %08d" % at
            elif name == "s":
                assert body == b"message %08d" % offset
    assert set(counting) <= set(new.host.names())


def main() -> None:
    """All requests; an assertion fails where one does harm."""
    logging.disable(logging.CRITICAL)
    total = 0
    for is_after in (False, True):
        number, is_there = 0, True
        while is_there:
            number += 1
            with tempfile.TemporaryDirectory() as folder:
                work = partial(paused_at, number, Path(folder), is_after=is_after)
                is_there = trio.run(work, clock=MockClock(autojump_threshold=0))
        total += number - 1
    print(f"paused at each of {total} requests: nothing was harmed")


if __name__ == "__main__":
    main()
