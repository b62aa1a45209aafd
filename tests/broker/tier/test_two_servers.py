"""A server that does not know that another one has taken its tier over harms nothing."""

from pathlib import Path

import pytest

from segments.tier.keys import CLUSTER
from segments.tier.lookup import find_stream
from segments.tier.object_store import MissingError
from streamd.broker.tier.claims import begin_since, look
from streamd.broker.tier.identity import Identity
from streamd.broker.tier.reports import TierState
from tests.broker.tier.support import (
    SEGMENT_BYTES,
    manifest_of,
    manifests,
    passes,
    publish,
    tier_of,
    tiered,
)
from tests.support.fake_store import FakeStore
from tests.support.server import Harness, Peer

SMALL = {"stream_max_segment_size_bytes": SEGMENT_BYTES}


async def _publisher(server: Harness, name: str, *, is_new: bool = False) -> Peer:
    peer = await server.peer()
    if is_new:
        await peer.create(name, **SMALL)
    await peer.declare(name, reference="p")
    return peer


async def _goes_on(late: Peer) -> None:
    """Publish until it is refused."""
    with pytest.raises(AssertionError, match="PublishError"):
        await publish(late, 0, 30)
    await passes(5)


async def _next_offset(server: Harness, name: str) -> int:
    async with server.host.find(name).opened() as log:
        return log.next_offset


async def test_what_it_stores_for_the_first_time_counts_nowhere(tmp_path: Path) -> None:
    """A stream of which nothing was stored has no manifest that could fence its first server."""
    store = FakeStore()
    async with tiered(tmp_path / "old", store) as old:
        peer = await _publisher(old, "s", is_new=True)
        await passes(5)
        async with tiered(tmp_path / "new", store, restore=True):
            await passes(5)
        await _goes_on(peer)
        assert tier_of(old).state is TierState.FENCED
        log = old.host.find("s").log
        assert all(segment.cold is None for segment in log.segments)
        assert not any(segment.stored for segment in log.segments)
    with pytest.raises(MissingError):
        find_stream(store, "/", "s")
    async with tiered(tmp_path / "reader", store, read_only=True) as reader:
        assert await _next_offset(reader, "s") == 0
    async with tiered(tmp_path / "third", store, restore=True) as third:
        assert await _next_offset(third, "s") == 0


async def test_a_reader_learns_that_it_does_not_count(tmp_path: Path) -> None:
    """It was shown until the new server had made sure of the others."""
    store = FakeStore()
    async with tiered(tmp_path / "old", store) as old:
        peer = await _publisher(old, "s", is_new=True)
        await publish(peer, 0, 10)
        await passes(5)
    async with tiered(tmp_path / "reader", store, read_only=True) as reader:
        assert await _next_offset(reader, "s") > 0
        held = look(store)
        assert held is not None
        begin_since(store, held, Identity(held.cluster.writer, held.cluster.epoch + 1, "1"))
        await passes(60)
        assert await _next_offset(reader, "s") == 0


async def test_a_life_that_it_begins_does_not_replace_the_one_that_counts(tmp_path: Path) -> None:
    store = FakeStore()
    async with tiered(tmp_path / "old", store) as old:
        late = await _publisher(old, "s", is_new=True)
        await passes(5)
        async with tiered(tmp_path / "new", store, restore=True) as new:
            peer = await _publisher(new, "s")
            await publish(peer, 0, 10)
            await passes(5)
            stored = manifest_of(store, "s")
            await _goes_on(late)
    async with tiered(tmp_path / "third", store, restore=True) as third:
        assert await _next_offset(third, "s") == stored.next_offset
        restored = third.host.find("s").log.manifest
        assert restored is not None
        assert restored.stream == stored.stream


async def test_what_it_has_left_is_removed(tmp_path: Path) -> None:
    store = FakeStore()
    async with tiered(tmp_path / "old", store) as old:
        late = await _publisher(old, "s", is_new=True)
        await passes(5)
        async with tiered(tmp_path / "new", store, restore=True) as new:
            await passes(5)
            await _goes_on(late)
            assert manifests(store)
            await tier_of(new).collect(dry_run=False)
            assert not manifests(store)
            assert {key for key in store.objects if "/catalog/" not in key} == {CLUSTER}


async def test_consumers_miss_nothing_of_what_a_new_machine_gets(tmp_path: Path) -> None:
    """The first one had seen more than what was stored; at these offsets come other messages."""
    store = FakeStore()
    async with tiered(tmp_path / "old", store) as old:
        peer = await _publisher(old, "s", is_new=True)
        store.fail(key=".segment", skip=1, times=-1)
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
        assert log.tracking.offset(b"app") == stored - 1
