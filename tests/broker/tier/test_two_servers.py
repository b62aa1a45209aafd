"""A server that does not know that another one has taken its tier over harms nothing."""

from pathlib import Path
from typing import Any, cast

import pytest

from segments.store.lookup import counts_since, find_stream
from segments.store.metadata_log import Held
from segments.store.object_store import MissingError, TierError
from streamd.broker.tier import claims
from streamd.broker.tier.claims import FencedError, begin_since
from streamd.broker.tier.identity import Identity
from streamd.operations.tier_reports import TierState
from tests.broker.tier.support import (
    a_stream,
    all_of,
    bodies,
    held_of,
    is_of_log,
    manifest_of,
    manifests,
    passes,
    publish,
    publisher,
    tier_of,
    tiered,
)
from tests.support.fake_store import FakeStore
from tests.support.server import Harness, Peer


async def _goes_on(late: Peer) -> None:
    """Publish until it is refused."""
    with pytest.raises(AssertionError, match="PublishError"):
        await publish(late, 0, 30)
    await passes(5)


async def _next_offset(server: Harness) -> int:
    async with server.host.find("s").opened() as log:
        return log.segments.gaps.before(log.next_offset)


async def test_what_it_stores_for_the_first_time_counts_nowhere(tmp_path: Path) -> None:
    """A stream of which nothing was stored has no manifest that could fence its first server."""
    store = FakeStore()
    async with tiered(tmp_path / "old", store) as old:
        peer = await a_stream(old)
        await passes(5)
        async with tiered(tmp_path / "new", store, restore=True):
            await passes(5)
        await _goes_on(peer)
        assert tier_of(old).ownership.state is TierState.FENCED
        log = old.host.find("s").log
        assert all(segment.cold is None for segment in log.segments.shown)
        assert not any(segment.stored for segment in log.segments.shown)
    with pytest.raises(MissingError):
        find_stream(store, "/", "s", counts_since(store))
    async with tiered(tmp_path / "reader", store, read_only=True) as reader:
        assert await _next_offset(reader) == 0
    async with tiered(tmp_path / "third", store, restore=True) as third:
        assert await _next_offset(third) == 0


async def test_a_reader_learns_that_it_does_not_count(tmp_path: Path, store: FakeStore) -> None:
    """It was shown until the new server had made sure of the others."""
    async with tiered(tmp_path / "old", store) as old:
        peer = await a_stream(old)
        await publish(peer, 0, 10)
        await passes(5)
    async with tiered(tmp_path / "reader", store, read_only=True) as reader:
        assert await _next_offset(reader) > 0
        held = held_of(store)
        begin_since(store, held, Identity(held.cluster.writer, held.cluster.epoch + 1, "1"))
        await passes(60)
        assert await _next_offset(reader) == 0


async def test_a_life_that_it_begins_does_not_replace_the_one_that_counts(tmp_path: Path) -> None:
    store = FakeStore()
    async with tiered(tmp_path / "old", store) as old:
        late = await a_stream(old)
        await passes(5)
        async with tiered(tmp_path / "new", store, restore=True) as new:
            peer = await publisher(new)
            await publish(peer, 0, 10)
            await passes(5)
            stored = manifest_of(store, "s")
            await _goes_on(late)
    async with tiered(tmp_path / "third", store, restore=True) as third:
        assert await _next_offset(third) == stored.next_offset
        restored = third.host.find("s").log.stored.manifest
        assert restored is not None
        assert restored.stream == stored.stream


async def test_what_it_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has asked whose the tier is, and then the other one has taken it."""
    store = FakeStore()
    async with tiered(tmp_path / "old", store) as old:
        late = await a_stream(old)
        await passes(5)
        async with tiered(tmp_path / "new", store, restore=True) as new:
            await passes(5)
            check = tier_of(old).ownership.check

            async def has_asked() -> None:
                monkeypatch.setattr(tier_of(old).ownership, "check", check)

            monkeypatch.setattr(tier_of(old).ownership, "check", has_asked)
            await _goes_on(late)
            assert manifests(store)
            await tier_of(new).collect(dry_run=False)
            assert not manifests(store)
            assert all(map(is_of_log, store.objects))


async def test_consumers_miss_nothing_of_what_a_new_machine_gets(tmp_path: Path) -> None:
    """The first one had seen more than what was stored; at these offsets come other messages."""
    store = FakeStore()
    async with tiered(tmp_path / "old", store) as old:
        peer = await a_stream(old)
        store.fail(name="put_file", key=".segment", skip=1, times=-1)
        async with old.host.find("s").opened():
            await old.host.find("s").set_offset("app", 199)
        await publish(peer, 0, 10)
        await passes(60)
        stored = manifest_of(store, "s").next_offset
        assert 0 < stored < 199
    store.heal()
    async with (
        tiered(tmp_path / "new", store, restore=True) as new,
        new.host.find("s").opened() as log,
    ):
        assert log.journal.tracking.offset(b"app") == stored - 1


class _Line:
    """Leads to a store, until it is cut."""

    def __init__(self, store: FakeStore) -> None:
        self.is_cut = False
        self._store = store

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def ask(*arguments: Any) -> Any:
            if self.is_cut:
                raise TierError("nobody answers")
            return call(*arguments)

        return ask


async def _all_bodies(server: Harness) -> list[bytes]:
    async with server.host.find("s").opened() as log:
        assert log.segments.first_offset == 0
        count = log.segments.gaps.num_between(0, log.next_offset)
    found = await all_of(server)
    assert len(found) == count
    return found


async def test_what_was_confirmed_and_not_stored_stays_where_it_is(tmp_path: Path) -> None:
    """Messages of two servers at the same offsets: each keeps its own, and the second's count."""
    store = FakeStore()
    line = _Line(store)
    async with tiered(tmp_path / "old", cast("FakeStore", line)) as old:
        peer = await a_stream(old)
        end = await publish(peer, 0, 8)
        await passes(5)
        line.is_cut = True
        end = await publish(peer, end, 8)
        stored = manifest_of(store, "s").next_offset
        assert 0 < stored < end
        async with tiered(tmp_path / "new", store, restore=True) as new:
            other = await new.publisher("s", reference="q")
            theirs = [b"another %08d" % number for number in range(300)]
            for at in range(0, 300, 20):
                await other.store(theirs[at : at + 20], at + 1)
            await passes(5)
            line.is_cut = False
            await passes(100)
            assert tier_of(old).ownership.state is TierState.FENCED
            mine = bodies(0, end)
            assert await _all_bodies(old) == mine
            assert await _all_bodies(new) == mine[:stored] + theirs
        before = dict(store.objects)
    async with tiered(tmp_path / "old", store) as old:
        await passes(100)
        assert tier_of(old).ownership.state is TierState.FENCED
        assert await _all_bodies(old) == mine
    assert store.objects == before
    async with tiered(tmp_path / "third", store, restore=True) as third:
        found = await _all_bodies(third)
        assert found == (mine[:stored] + theirs)[: len(found)]
        assert len(found) > stored


async def test_an_answer_from_before_it_was_known_is_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has been told that the tier is another's stays away from it."""
    store, check = FakeStore(), claims.check

    def late(*asked: Any) -> Held:
        held = check(*asked)
        ownership.give_up(FencedError(held.cluster))
        return held

    async with tiered(tmp_path, store) as server:
        ownership = tier_of(server).ownership
        await passes(5)
        assert ownership.state is TierState.OK
        monkeypatch.setattr(claims, "check", late)
        ownership.look_again(TierError("somebody has met a conflict"))
        await passes(5)
        assert ownership.state is TierState.FENCED
