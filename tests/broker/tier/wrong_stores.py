"""A server whose store is not the right one, at its start and while it runs, in random runs.

    python -m tests.broker.tier.wrong_stores 500

In each run the store is empty, late, another one, an older one, read-only or half there, or single
objects of it are missing, cut or older, several times; between, and at last, it is the right one.
Whoever reads meanwhile gets the messages in order without a gap, or waits. No file leaves the disk
whose messages the right store does not have; nothing is written into a wrong one but objects of one
upload that was under way, which nothing names; and when the right one is back, everything goes on
by itself, and every message can be read.
"""

import logging
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from segments.store.cluster import decode_cluster
from segments.store.object_names import CLUSTER, MANIFEST_NAME, parse_object
from segments.store.object_store import DeniedError
from streamd.broker.streams.fetcher import AGAIN_SECONDS, LOST_SECONDS
from streamd.operations.tier_reports import TierState
from streamd.server import StartError
from streamd.wire.stream import commands as c
from tests.broker.tier.support import A_FRAME, bodies, passes, publish, tier_of, tiered
from tests.support.fake_store import WRITES, Call, FakeStore, Kept
from tests.support.server import FIRST, Harness, Peer

_STREAM = {"stream_max_segment_size_bytes": "2000", "stream_local_max_length_bytes": "0"}
_SOON = 90.0  # seconds, after which the right store is used again
Objects = dict[str, Kept]


class ChangingStore(FakeStore):
    """A store that is another one for a while.

    Attributes:
        right: what the right one has.
        past: what it had earlier, the oldest first.
        versions: contents of each object, the oldest first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.right = self.objects
        self.past: list[Objects] = []
        self.versions: dict[str, list[Kept]] = {}

    def _keep(self, key: str, content: bytes) -> str:
        etag = super()._keep(key, content)
        self.versions.setdefault(key, []).append(self.objects[key])
        return etag

    def is_right(self) -> None:
        """It is the right one again, with all that it had."""
        self.heal()
        self.before = lambda _call: None
        self.objects = self.right

    def is_another(self, objects: Objects) -> None:
        self.right, self.objects = self.objects, objects

    def lacks(self, keys: list[str]) -> Objects:
        """Some objects are not there; gives them."""
        return {key: self.objects.pop(key) for key in keys}


class Wrong:
    """What is wrong with a store for a while; `is_mended` ends it.

    Args:
        store: which.
        dice: choose.

    Attributes:
        is_foreign: nothing may be written there.
        loses: objects of segments are missing for so long that their messages count as lost.
        seconds: that it lasts.
    """

    def __init__(self, store: ChangingStore, dice: random.Random) -> None:
        self._store, self._dice = store, dice
        self.is_foreign = self.loses = False
        self.seconds = dice.choice([1, 15, 70, 300])
        self._changed: Objects = {}
        self._cut_ones: Objects = {}
        self.kind = dice.choice(
            ["empty", "late", "another", "older", "read-only", "half", "lacking", "cut", "aged"]
        )
        self._before: Objects = {}
        getattr(self, f"_{self.kind.replace('-', '_')}")()

    def _empty(self) -> None:
        self._is_another({})

    def _late(self) -> None:
        self._store.fail(DeniedError("there is no such folder"), times=-1)

    def _another(self) -> None:
        self._is_another(_another_tier())

    def _older(self) -> None:
        """From before the last start; nothing tells one from after it as long as nobody looks."""
        known = decode_cluster(self._store.objects[CLUSTER].content).epoch
        past = [one for one in self._store.past if _epoch_of(one) < known]
        self._is_another(dict(self._dice.choice(past)) if past else {})

    def _is_another(self, objects: Objects) -> None:
        self.is_foreign = True
        self._before = dict(objects)
        self._store.is_another(objects)

    def _read_only(self) -> None:
        def before(call: Call) -> None:
            if call.name in WRITES:
                raise DeniedError("read-only file system")

        self._store.before = before

    def _half(self) -> None:
        """Manifests, or the object that says whose it is, and any others."""
        keys = list(self._store.objects)
        chosen = set(self._dice.sample(keys, self._dice.randint(0, len(keys))))
        manifests = {key for key in keys if key.endswith(f"/{MANIFEST_NAME}")}
        self._changed = self._store.lacks(sorted(chosen | manifests | {CLUSTER}))

    def _lacking(self) -> None:
        """Objects of segments alone."""
        keys = [key for key in self._store.objects if ".segment" in key or ".index" in key]
        chosen = self._dice.sample(keys, self._dice.randint(0, len(keys)))
        self._changed = self._store.lacks(chosen)
        self.loses = self.seconds >= LOST_SECONDS

    def _cut(self) -> None:
        for key in self._dice.sample(sorted(self._store.objects), 3):
            kept = self._changed[key] = self._store.objects[key]
            self._store.shorten(key, self._dice.randrange(len(kept.content)))
            self._cut_ones[key] = self._store.objects[key]
        self.loses = self.seconds >= LOST_SECONDS

    def _aged(self) -> None:
        """Those objects that change are as they were some time ago."""
        for key, versions in self._store.versions.items():
            if key in self._store.objects and len(versions) > 1:
                self._changed[key] = self._store.objects[key]
                self._store.objects[key] = self._dice.choice(versions[:-1])

    def is_mended(self) -> None:
        if self.is_foreign:
            added = self._store.objects.keys() - self._before.keys()
            kept = {key: self._store.objects.get(key) for key in self._before}
            assert kept == self._before, f"something was changed in it: {self.kind}"
            # An upload may have been under way; nothing names what it has left.
            names = {parse_object(key.rpartition("/")[2]) for key in added}
            assert None not in names, f"something was stored in it: {self.kind}, {added}"
            assert len({name.uid for name in names if name is not None}) <= 1
        self._store.is_right()
        for key, kept in self._changed.items():
            now = self._store.objects.get(key)
            if now is None or self.kind == "aged" or now is self._cut_ones.get(key):
                self._store.objects[key] = kept


def _epoch_of(objects: Objects) -> int:
    return decode_cluster(objects[CLUSTER].content).epoch


_OTHER: Objects = {}


def _another_tier() -> Objects:
    return dict(_OTHER)


async def make_other() -> None:
    """Make the tier that another server has."""
    store = FakeStore()
    with tempfile.TemporaryDirectory() as folder:
        async with tiered(Path(folder), store) as server:
            peer = await server.peer()
            await peer.create("s", **_STREAM)
            await peer.declare("s")
            await publish(peer, 0, 12)
            await passes(5)
    _OTHER.update(store.objects)


class Run:
    """One run; see the module.

    Args:
        folder: of the data folders.
        seed: of the dice.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._dice = random.Random(seed)
        self._store = ChangingStore()
        self._end = 0
        self._servers = AsyncExitStack()

    async def run(self) -> None:
        async with AsyncExitStack() as servers:
            server = await self._started(servers)
            peer = await server.peer()
            await peer.create("s", **_STREAM)
            await passes(3)  # the catalog is there
            for _ in range(2):
                await self._publish(server)
                self._store.past.append(dict(self._store.objects))
                if self._dice.random() < 0.5:
                    await servers.aclose()
                    server = await self._started(servers)
            for _ in range(self._dice.randint(1, 3)):
                server = await self._phase(servers, server)

    async def _started(self, servers: AsyncExitStack) -> Harness:
        server: Harness = await servers.enter_async_context(
            tiered(self._folder / "writer", self._store)
        )
        server.server.broker.fetcher.cache.max_bytes = self._dice.choice([0, 1 << 20])
        return server

    async def _publish(self, server: Harness) -> None:
        peer = await server.peer()
        await peer.declare("s")
        for _ in range(self._dice.randint(1, 20)):
            await peer.publish(bodies(self._end, A_FRAME), self._end + 1)
            await peer.confirmed(A_FRAME)
            self._end += A_FRAME
        await passes(self._dice.choice([0, 5]))

    async def _phase(self, servers: AsyncExitStack, server: Harness) -> Harness:
        """The store is wrong for a while."""
        is_at_start = self._dice.random() < 0.5
        async with self._readers(server, is_off=is_at_start) as followers:
            if is_at_start:
                await servers.aclose()
            wrong = Wrong(self._store, self._dice)
            logging.getLogger(__name__).info("%s, at start: %s", wrong.kind, is_at_start)
            if is_at_start:
                server = await self._started(servers)
                await self._may_follow(wrong)
            async with _reading(server) as reader, trio.open_nursery() as nursery:
                for follower in followers:
                    nursery.start_soon(follower.read)
                nursery.start_soon(reader.read)
                await self._publish(server)
                await trio.sleep(wrong.seconds)
                self._check_disk(server, wrong)
                wrong.is_mended()
                await passes(_SOON + (AGAIN_SECONDS if wrong.loses else 0))
                await self._publish(server)
                await passes(_SOON)
                nursery.cancel_scope.cancel()
            for one in (reader, *followers):
                one.check(self._end, is_all=one is reader and not wrong.loses, loses=wrong.loses)
        assert tier_of(server).ownership.state is TierState.OK, tier_of(server).ownership.sentence
        self._check_disk(server, wrong)
        await self._check_all(server)
        return server

    @asynccontextmanager
    async def _readers(self, server: Harness, *, is_off: bool) -> AsyncIterator[list["Reader"]]:
        """Sometimes, a server that only reads, with a consumer."""
        if is_off or self._dice.random() < 0.5:
            yield []
            return
        read_only = tiered(self._folder / f"reader{self._end}", self._store, read_only=True)
        async with read_only as following, _reading(following) as reader:
            yield [reader]
        del server

    async def _may_follow(self, wrong: Wrong) -> None:
        """A server that only reads starts, or says why not; what it delivers is right."""
        folder = self._folder / f"late{self._end}"
        with suppress(StartError):
            async with tiered(folder, self._store, read_only=True) as server:
                if not server.host.has_stream("s") or wrong.is_foreign or wrong.kind == "aged":
                    return  # it is another one's, or an earlier one
                async with _reading(server) as reader:
                    with trio.move_on_after(LOST_SECONDS - 5):
                        await reader.read()
                    reader.check(self._end)

    def _check_disk(self, server: Harness, wrong: Wrong) -> None:
        """What is not on the disk is in the right store."""
        stream = server.host.find("s")
        if not stream.is_open:
            return
        has = {**self._store.right, **wrong._changed}
        for segment in stream.log.segments.shown:
            if segment.cold is not None:
                stored, key = segment.cold.stored, segment.cold.stream
                assert stored.key(key, ".segment") in has, (wrong.kind, stored.base_offset)

    async def _check_all(self, server: Harness) -> None:
        async with _reading(server) as reader:
            with trio.move_on_after(300):
                await reader.read(self._end)
            reader.check(self._end, is_all=True)
        async with server.host.find("s").opened() as log:
            assert log.segments.num_lost == 0
            assert log.segments.first_offset == 0


class Reader:
    """A consumer from the beginning, that notes what it gets."""

    def __init__(self, peer: Peer, server: Harness) -> None:
        self._peer, self._server = peer, server
        self.found: list[bytes] = []
        self.num_lost = 0

    async def read(self, count: float = float("inf")) -> None:
        with suppress(trio.EndOfChannel):
            while len(self.found) < count:
                chunk = await self._peer.chunk()
                self.found += chunk.bodies
                stream = self._server.host.find("s")
                if stream.is_open:
                    self.num_lost = max(self.num_lost, stream.log.segments.num_lost)

    def check(self, end: int, *, is_all: bool = False, loses: bool = False) -> None:
        """No message is missing that was not reported as lost."""
        numbers = [int(body.split()[1]) for body in self.found]
        if loses:
            assert numbers == sorted(set(numbers))
            assert len(numbers) + self.num_lost >= (numbers[-1] + 1 if numbers else 0)
        else:
            assert numbers == list(range(len(numbers)))
        if is_all:
            assert len(numbers) == end


@asynccontextmanager
async def _reading(server: Harness) -> AsyncIterator[Reader]:
    peer = await server.peer()
    code = await peer.code(c.Subscribe, 1, "s", FIRST, 60_000, ())
    reader = Reader(peer, server)
    if code != 1:
        reader.read = trio.sleep_forever  # type: ignore[method-assign] - it is unavailable
    yield reader


async def one_run(folder: Path, seed: int) -> None:
    """A run; an assertion fails where messages are hidden, evicted or uploaded astray."""
    if not _OTHER:
        await make_other()
    await Run(folder, seed).run()


def main(count: int, first: int = 0) -> None:
    """Many runs."""
    logging.disable(logging.CRITICAL)
    failed = []
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            try:
                work: Callable[..., Any] = partial(one_run, Path(folder), seed)
                trio.run(work, clock=MockClock(autojump_threshold=0))
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                failed.append(seed)
                print(seed, repr(error)[:300], flush=True)
    print(f"{count} runs: {len(failed)} failed {failed[:20]}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
