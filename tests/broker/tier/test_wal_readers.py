"""Read-only servers show what write-ahead logs have behind the segments in the store."""

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import example, given, settings, strategies

from segments.store.object_names import WAL_FOLDER
from segments.store.object_store import StoredObject, TierError
from streamd.broker.follower import Follower
from streamd.broker.stream_follower import POLL_SECONDS, SLOT_SECONDS
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import OffsetSpecification
from tests.broker.tier.support import (
    all_of,
    bodies,
    confirmed_by_store,
    passes,
    publish,
    tier_of,
    tiered,
)
from tests.support.fake_store import WRITES, FakeStore
from tests.support.server import NEXT, OK, Harness, Peer

_all = partial(all_of, seconds=0.5)
SOON = SLOT_SECONDS + 0.5  # a slot is written every 0.2 s
IDLE = POLL_SECONDS + 0.5


class _Reads:
    """The same store, for one that only reads."""

    is_asleep = False  # for slots

    def __init__(self, store: FakeStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        assert name not in WRITES
        return getattr(self._store, name)

    def get(self, key: str, *most: int) -> StoredObject:
        if self.is_asleep and key.startswith(WAL_FOLDER):
            raise TierError("cannot reach it")
        return self._store.get(key, *most)


@asynccontextmanager
async def _beside(
    folder: Path, store: FakeStore, *, frames: int
) -> AsyncIterator[tuple[Harness, Peer, Harness]]:
    """A server, its publisher of so many frames, and a server that has read them beside it."""
    async with tiered(folder / "writer", store) as server:
        peer = await confirmed_by_store(server)
        await publish(peer, 0, frames)
        await passes(5)
        async with _reading(folder, store) as reading:
            await passes(IDLE)
            yield server, peer, reading


@asynccontextmanager
async def _reading(folder: Path, store: FakeStore, reads: Any = None) -> AsyncIterator[Harness]:
    reads = reads or _Reads(store)
    async with tiered(folder / "reader", reads, read_only=True) as server:
        yield server


async def _uploaded(server: Harness) -> None:
    """What is in the log now is in segments, and slots of before are gone."""
    await tier_of(server).confirms.shorten()


async def test_a_reader_is_seconds_behind(tmp_path: Path, store: FakeStore) -> None:
    async with _beside(tmp_path, store, frames=1) as (_, peer, reading):
        reader = await reading.consumer("s", credit=1_000)
        late = await reading.consumer("s", NEXT, credit=1_000)
        assert await reader.bodies(20) == bodies(0)
        for first in range(20, 200, 20):
            await peer.store(bodies(first), first + 1)
            with trio.fail_after(SOON):
                assert await reader.bodies(20) == bodies(first)
                assert await late.bodies(20) == bodies(first)
        assert manifest_count(store) == 0
        assert await _all(reading) == bodies(0, 200)
        await reader.silence(100)
        await peer.store(bodies(200), 201)
        with trio.fail_after(IDLE):
            assert await reader.bodies(20) == bodies(200)


@asynccontextmanager
async def _writing(folder: Path, store: FakeStore) -> AsyncIterator[Peer]:
    """A publisher, whose first messages are in a segment in the store."""
    async with tiered(folder / "writer", store) as server:
        peer = await confirmed_by_store(server, frames=1)
        await _uploaded(server)
        yield peer


async def test_a_reader_that_has_just_started_ends_where_the_store_does(
    tmp_path: Path, store: FakeStore
) -> None:
    """Not where it has read to: an earlier life of it has shown more."""
    async with _writing(tmp_path, store) as peer:
        await peer.store(bodies(20), 21)
        reads = _Reads(store)
        reads.is_asleep = True
        async with _reading(tmp_path, store, reads) as reading, trio.open_nursery() as nursery:
            late = await reading.peer()
            nursery.start_soon(late.subscribe, "s", NEXT, 1_000)
            await passes(2)
            reads.is_asleep = False
            await passes(IDLE)
            await peer.store(bodies(40), 41)
            with trio.fail_after(IDLE):
                assert await late.bodies(20) == bodies(40)


def manifest_count(store: FakeStore) -> int:
    return sum(key.endswith("/manifest") for key in store.objects)


async def test_what_is_uploaded_is_shown_from_its_segment(tmp_path: Path, store: FakeStore) -> None:
    """Whoever reads gets each message once, wherever it stands while segments take over."""
    async with _beside(tmp_path, store, frames=1) as (server, peer, reading):
        readers = []
        for credit in (1, 2, 3, 5, 1_000):
            reader = await reading.consumer("s", credit=credit)
            readers.append(reader)
        for first in range(20, 400, 20):
            await peer.store(bodies(first), first + 1)
            if first % 60 == 0:
                await _uploaded(server)
                await peer.store(bodies(first + 20, 10), first + 21)
                await passes(POLL_SECONDS)  # slots that it has not read are gone
            if first % 100 == 0:
                await passes(2 * POLL_SECONDS)
            await passes(SOON)
            assert await _all(reading) == await _all(server)
        await passes(3 * POLL_SECONDS)
        (stream,) = reading.server.broker.streams()
        cold = [one for one in stream.log.segments.shown if one.cold is not None]
        assert len(cold) > 3
        assert len(stream.log.segments.shown) == len(cold) + 1
        count = stream.log.committed_offset
        for reader, credit in zip(readers, (1, 2, 3, 5, 1_000), strict=True):
            found: list[bytes] = []
            while len(found) < count:
                found += (await reader.chunk()).bodies
                if credit < 1_000:
                    await reader.send(c.Credit(1, 1))
            assert found == bodies(0, count)
        assert await _all(reading, offset=NEXT) == []
        follower = reading.server.broker.tier
        assert isinstance(follower, Follower)
        names = sorted(path.name for path in (tmp_path / "reader" / "tails").iterdir())
        assert len(names) <= 2


async def test_a_log_that_is_opened_has_all_of_it(tmp_path: Path, store: FakeStore) -> None:
    """The figures of one that is not open have it, too."""
    async with tiered(tmp_path / "writer", store) as server:
        peer = await confirmed_by_store(server)
        await peer.store(bodies(0), values=[b"x"] * 20)
        await _uploaded(server)
        await peer.store(bodies(20), 21, values=[b"x", b"y"] * 10)
        await passes(5)
        async with _reading(tmp_path, store) as reading:
            await passes(IDLE)
            stream = reading.host.find("s")
            assert not stream.is_open
            for first in (40, 60, 80):
                await peer.store(bodies(first), first + 1, values=[b"x"] * 20)
                await passes(SOON)
                figures = stream.figures
                assert figures is not None
                assert (figures.first_offset, figures.next_offset) == (0, first + 20)
                assert figures.num_chunks == 1 + first // 20
            reader = await reading.consumer("s", filter__1="y", credit=100)
            assert await reader.bodies(20) == bodies(20)
            assert not stream.log.report.losses
            await peer.store(bodies(100), 101, values=[b"y"] * 20)
            await passes(SOON)
            assert await reader.bodies(20) == bodies(100)
            await reader.ask(c.Unsubscribe, 1)
            await stream.life.close()
            assert await _all(reading) == bodies(0, 120)


async def test_a_log_is_opened_when_manifests_have_all_of_it(
    tmp_path: Path, store: FakeStore
) -> None:
    async with _beside(tmp_path, store, frames=0) as (server, peer, reading):
        await peer.store(bodies(0))
        await passes(IDLE)
        await tier_of(server).upload("/", ["s"], 10)
        await passes(70)
        assert await _all(reading) == bodies(0)


async def test_sequences_and_stored_offsets_follow(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path / "writer", store) as server:
        peer = await confirmed_by_store(server)
        await peer.store(bodies(0, 100))
        await peer.send(c.StoreOffset("a", "s", 7))
        await passes(5)
        async with _reading(tmp_path, store) as reading:
            await passes(IDLE)
            asked = await reading.peer()
            assert (await asked.ask(c.QueryPublisherSequence, "p", "s")).sequence == 100
            assert (await asked.ask(c.QueryOffset, "a", "s")).offset == 7
            await peer.send(c.StoreOffset("a", "s", 90))
            await peer.store(bodies(100), 101)
            await passes(SOON)
            assert (await asked.ask(c.QueryOffset, "a", "s")).offset == 90
            assert (await asked.ask(c.QueryPublisherSequence, "p", "s")).sequence == 120
            await asked.send(c.StoreOffset("a", "s", 3))  # counts here from now on
            await peer.send(c.StoreOffset("a", "s", 91))
            await peer.send(c.StoreOffset("b", "s", 5))
            await passes(SOON)
            assert (await asked.ask(c.QueryOffset, "a", "s")).offset == 3
            assert (await asked.ask(c.QueryOffset, "b", "s")).offset == 5
            await _uploaded(server)
            await passes(2 * POLL_SECONDS)
            assert (await asked.ask(c.QueryOffset, "a", "s")).offset == 3
            assert (await asked.ask(c.QueryOffset, "b", "s")).offset == 5
            assert (await asked.ask(c.QueryPublisherSequence, "p", "s")).sequence == 120


async def test_another_server_takes_over(tmp_path: Path, store: FakeStore) -> None:
    """What it begins stands behind a gap of offsets."""
    number = 0
    async with tiered(tmp_path / "0", store) as server:
        await confirmed_by_store(server)
        await passes(5)
    async with _reading(tmp_path, store) as reading:
        reader = await reading.consumer("s", credit=1_000)
        for machine in range(1, 4):
            async with tiered(tmp_path / f"{machine}", store, restore=True) as server:
                peer = await confirmed_by_store(server)
                for _ in range(2):
                    await peer.store(bodies(number, 10), number + 1)
                    number += 10
                    await passes(IDLE)
                    assert (await _all(reading))[-10:] == bodies(number - 10, 10)
                await passes(20 * (machine % 2))
        assert await reader.bodies(number) == bodies(0, number)
        assert await _all(reading) == bodies(0, number)


async def test_a_stream_is_deleted_and_created_again(tmp_path: Path, store: FakeStore) -> None:
    async with _beside(tmp_path, store, frames=1) as (server, first, reading):
        peer = first
        for number, is_stored in enumerate((False, True, False)):
            reader = await reading.consumer("s", credit=100)
            assert await reader.bodies(20) == bodies(100 * number)
            if is_stored:
                await _uploaded(server)
                await passes(20)
            assert await peer.code(c.Delete, "s") == OK
            peer = await confirmed_by_store(server)
            await peer.store(bodies(100 * number + 100))
            assert (await reader.expect(c.MetadataUpdate)).stream == "s"
            await passes(15)
            assert await _all(reading) == bodies(100 * number + 100)
        assert await peer.code(c.Delete, "s") == OK
        await passes(30)
        assert reading.host.names() == []


async def test_a_stream_is_confirmed_in_another_way(tmp_path: Path, store: FakeStore) -> None:
    number = 0
    async with _beside(tmp_path, store, frames=0) as (server, peer, reading):
        reader = await reading.consumer("s", credit=1_000)
        for confirm in ("store", "local", "store", "local", "store"):
            await server.host.settings.set_arguments("s", [("stream-confirm", confirm)])
            for _ in range(3):
                await peer.store(bodies(number, 10), number + 1)
                number += 10
                await passes(SOON)
            if confirm == "store":
                assert await _all(reading) == bodies(0, number)
        assert await reader.bodies(number) == bodies(0, number)


async def test_a_slot_that_is_damaged_is_not_passed_over(tmp_path: Path, store: FakeStore) -> None:
    async with _beside(tmp_path, store, frames=1) as (server, peer, reading):
        key = max(store.objects, key=lambda key: (key.startswith(WAL_FOLDER), key))
        assert await _all(reading) == bodies(0)
        store.damage(lambda content: content[:-1] + b"?", key=f"{key[:-1]}1", times=-1)
        await peer.store(bodies(20), 21)
        await passes(1)
        await peer.store(bodies(40), 41)
        await passes(20)
        assert await _all(reading) == bodies(0)
        tier = reading.server.broker.tier
        assert tier is not None
        assert f"{key[:-1]}1" in (await tier.status()).sentence
        await _uploaded(server)
        await passes(IDLE + POLL_SECONDS)
        await peer.store(bodies(60), 61)
        await passes(IDLE)
        assert await _all(reading) == bodies(0, 80)
        assert not (await tier.status()).sentence


async def test_a_store_that_is_away_is_asked_again(tmp_path: Path, store: FakeStore) -> None:
    async with _beside(tmp_path, store, frames=0) as (_, peer, reading):
        reader = await reading.consumer("s", credit=1_000)
        await peer.store(bodies(0))
        store.fail(times=-1)
        await passes(20)
        store.heal()
        await peer.store(bodies(20), 21)
        assert await reader.bodies(40) == bodies(0, 40)


async def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamd.broker.stream_follower._MOST_TAILS", 3_000)
    store = FakeStore()
    async with _beside(tmp_path, store, frames=0) as (server, peer, reading):
        for number in range(20):
            await peer.store([b"x" * 500], number + 1)
            await passes(1)
        files = list((tmp_path / "reader" / "tails").iterdir())
        assert sum(path.stat().st_size for path in files) < 5_000
        tier = reading.server.broker.tier
        assert tier is not None
        assert "in no manifest" in (await tier.status()).sentence
        await _uploaded(server)
        await passes(12)
        assert len(await _all(reading)) == 20
        await peer.store([b"x"], 21)
        await passes(IDLE)
        assert len(await _all(reading)) == 21


async def test_an_idle_log_costs_a_request_every_two_seconds(
    tmp_path: Path, store: FakeStore
) -> None:
    async with tiered(tmp_path / "writer", store) as server:
        peer = await confirmed_by_store(server)
        await passes(5)
        async with _reading(tmp_path, store):
            before = _asked(store)
            await passes(100)
            assert _asked(store) == before  # nothing was ever written
            await peer.store(bodies(0))
            await passes(100)
            before = _asked(store)
            await passes(3_000)
            assert _asked(store) - before <= 3_000 / POLL_SECONDS + 1


def _asked(store: FakeStore) -> int:
    return sum(call.key.startswith(WAL_FOLDER) and call.name == "get" for call in store.calls)


class _Writer:
    """A server that writes, which is stopped, killed, or lost with its machine, and goes on."""

    def __init__(self, folder: Path, store: FakeStore, stack: AsyncExitStack) -> None:
        self._folder, self._store, self._stack = folder, store, stack
        self._machine = 0
        self.number = 0

    async def start(self, **settings: Any) -> None:
        settings["tier_delete_delay_seconds"] = 3_600  # a reader looks at manifests now and then
        context = tiered(self._folder / f"{self._machine}", self._store, **settings)
        self.server = await self._stack.enter_async_context(context)
        self.peer = await confirmed_by_store(self.server)

    async def stop(self, how: str = "stop") -> None:
        if how != "stop":
            now = self._folder / f"{self._machine}"
            self._machine += 1
            if how == "kill":
                shutil.copytree(now, self._folder / f"{self._machine}")
            self._store.fail(name="create", times=-1)
            self._store.fail(name="replace", times=-1)
        await self._stack.aclose()
        self._store.heal()

    async def publish(self, count: int) -> None:
        await self.peer.store(bodies(self.number, count), self.number + 1)
        self.number += count


class _Consumer:
    """Reads what there is, and begins again where it was."""

    def __init__(self, server: Harness) -> None:
        self._server = server
        self._next = 0
        self.found: list[bytes] = []
        self.peer: Peer | None = None

    async def begin(self) -> None:
        self.peer = await self._server.peer()
        await self.peer.subscribe("s", OffsetSpecification(4, self._next), credit=10_000)

    async def read(self) -> None:
        assert self.peer is not None
        with trio.move_on_after(0.1):
            while True:
                chunk = await self.peer.chunk()
                assert chunk.header.chunk_id >= self._next
                self.found += chunk.bodies
                self._next = chunk.header.chunk_id + chunk.header.num_records

    async def end(self) -> None:
        assert self.peer is not None
        await self.peer.vanish()
        await passes(0.1)
        (stream,) = self._server.server.broker.streams()
        if stream.is_open:
            await stream.life.close()


_STEPS = ("publish", "publish", "publish", "upload", "stop", "kill", "lose", "sleep", "close")


@settings(max_examples=15)
@given(
    strategies.lists(strategies.sampled_from(_STEPS), max_size=25),
    strategies.randoms(use_true_random=False),
)
@example(["publish", "stop"] * 5, Random(1))  # each start has a log of its own
@example(["sleep", "publish", "stop"] * 5, Random(2))  # slots are missed every other time
def test_whatever_happens_each_message_comes_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], random: Random
) -> None:
    """A reader that stays, one that begins again where it was, and new ones."""
    folder, store = tmp_path_factory.mktemp("any"), FakeStore()

    async def run() -> None:
        async with tiered(folder / "0", store) as server:
            await confirmed_by_store(server)
            await passes(5)
        async with _reading(folder, store, reads := _Reads(store)) as reading:
            stays, again = _Consumer(reading), _Consumer(reading)
            await stays.begin()
            async with AsyncExitStack() as stack:
                writer = _Writer(folder, store, stack)
                await writer.start()
                for step in (*steps, "publish"):
                    if step == "publish":
                        for _ in range(random.randint(1, 4)):
                            await writer.publish(random.randint(1, 20))
                    elif step == "upload":
                        await _uploaded(writer.server)
                    elif step == "sleep":
                        reads.is_asleep = not reads.is_asleep
                    elif step == "close":
                        await stays.end()
                        await stays.begin()
                    else:
                        await writer.stop(step)
                        await writer.start(**({"restore": True} if step == "lose" else {}))
                    await passes(random.choice((0, 0.3, 1, 5, 30)))
                    await stays.read()
                reads.is_asleep = False
                await passes(30)
                await stays.read()
                await again.begin()
                await again.read()
                wanted = bodies(0, writer.number)
                assert stays.found == wanted
                assert again.found == wanted

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_what_changes_while_a_manifest_is_on_its_way_is_looked_at_again(
    tmp_path: Path, store: FakeStore
) -> None:
    """The log of metadata says so; the manifest that arrives then is of before."""
    async with _writing(tmp_path, store), _reading(tmp_path, store) as reading:
        follower = reading.server.broker.tier
        assert isinstance(follower, Follower)
        (one,) = follower._streams.values()
        await passes(IDLE)
        read, looks = follower._read, 0

        def change(followed: Any) -> Any:
            nonlocal looks
            looks += 1
            if looks == 1:
                followed.due_at = 0.0  # as `_read_log` does
            return read(followed)

        follower._read = change  # type: ignore[method-assign]
        one.due_at = 0.0
        await passes(2 * POLL_SECONDS + 1)
        assert looks == 2


async def test_slots_that_cannot_be_read_hold_neither_the_end_nor_a_late_reader(
    tmp_path: Path, store: FakeStore
) -> None:
    async with _writing(tmp_path, store):
        reads = _Reads(store)
        reads.is_asleep = True
        async with _reading(tmp_path, store, reads) as reading, trio.open_nursery() as nursery:
            late = await reading.peer()
            nursery.start_soon(late.code, c.StreamStats, "s")
            await passes(1)
            begun = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - begun < 2
        async with _reading(tmp_path, store, reads) as reading:
            await passes(60)
            late, begun = await reading.peer(), trio.current_time()
            await late.subscribe("s")
            assert trio.current_time() - begun < 2
