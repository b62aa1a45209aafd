"""Somebody waits until the store has what was confirmed: it ends when it has, and not before."""

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from segments.journal import tracking_in
from segments.store.object_store import TierError
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.tier_reports import TierState, Uploaded
from streamd.wire.stream import commands as c
from tests.broker.tier.support import (
    A_FRAME,
    a_stream,
    manifest_of,
    manifests,
    opening,
    orphans,
    passes,
    publish,
    publisher,
    stored,
    tier_of,
    tiered,
)
from tests.broker.tier.test_fight import take_over
from tests.broker.tier.test_upload import SEGMENT, has_all
from tests.support.fake_store import Call, FakeStore, late_answers
from tests.support.server import OK, Harness, serving, simulated

HOST = Name("/")


async def upload(server: Harness, *names: str, seconds: float = 60) -> Uploaded:
    return await tier_of(server).upload(HOST, [Name(name) for name in names], seconds)


async def reason(server: Harness, *names: str, seconds: float = 60) -> str:
    with pytest.raises(Refused) as refused:
        await upload(server, *names, seconds=seconds)
    return refused.value.details


def is_left_alone(server: Harness) -> bool:
    """Nobody waits for anything any more."""
    tier = tier_of(server)
    return not tier._waits and not any(one._requests for one in tier._streams.values())


async def test_the_segment_that_grows_is_stored_as_well(store: FakeStore, server: Harness) -> None:
    await publish(await a_stream(server), 0, 12)
    await publish(await a_stream(server, "t"), 0, 1)
    await a_stream(server, "empty")
    await a_stream(server, "outside", stream_tier="false")
    await passes(5)
    assert manifest_of(store, "s").next_offset == 2 * SEGMENT
    before = store.size("put_file")
    found = await upload(server)
    has_all(store, "s", 12 * A_FRAME)
    has_all(store, "t", A_FRAME)
    assert {one.name: one.next_offset for one in found.streams} == {
        "s": 240,
        "t": 20,
        "empty": 0,
    }
    assert (found.num_streams, found.num_outside) == (3, 1)
    assert {one.stream.stream for one in manifests(store)} == {"s", "t"}
    sent = sum(one.num_bytes for one in found.streams)
    assert found.num_bytes == sent > store.size("put_file") - before > 0
    assert is_left_alone(server)


class Clock:
    """One on the wall, which can be set."""

    skew_ms = 0

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(trio.current_time() * 1_000) + self.skew_ms


@asynccontextmanager
async def with_clock(
    folder: Path, store: FakeStore, clock: Clock, **settings: Any
) -> AsyncIterator[Harness]:
    """See `tiered`: a server with this clock."""
    with simulated(), opening(store):
        async with serving(folder, clock.now_ms, tier="s3://bucket/tier", **settings) as server:
            yield server


@pytest.mark.parametrize("is_waited_for", [True, False])
async def test_the_segment_that_grows_is_stored_when_the_clock_was_with_clock(
    tmp_path: Path, *, is_waited_for: bool
) -> None:
    store, clock = FakeStore(), Clock()
    async with with_clock(tmp_path, store, clock, tier_roll_seconds=60) as server:
        await publish(await a_stream(server), 0, 1)
        clock.skew_ms = -1_800_000
        if is_waited_for:
            await upload(server, seconds=5)
        else:
            await passes(150)
        has_all(store, "s", A_FRAME)


async def test_a_stream_is_removed_when_the_clock_was_set_back_since(tmp_path: Path) -> None:
    store, clock = FakeStore(), Clock()
    async with with_clock(tmp_path, store, clock) as server:
        peer = await a_stream(server)
        await publish(peer, 0, 12)
        await upload(server)
        store.fail(times=-1)
        assert await peer.code(c.Delete, "s") == OK
        await passes(5)
        clock.skew_ms = -1_800_000
        store.heal()
        await upload(server, seconds=200)
        assert not any("/s~" in key and key.endswith(".segment") for key in store.objects)


async def test_what_is_stored_costs_no_object(store: FakeStore, server: Harness) -> None:
    await publish(await a_stream(server), 0, 12)
    await upload(server)
    segments = len(server.host.find("s").log.segments.shown)
    writes = store.count("put") + store.count("put_file") + store.count("replace")
    await passes(600)  # its log is closed
    found = await upload(server, "s", "s")
    assert (found.num_streams, found.num_bytes) == (1, 0)
    assert found.streams[0].next_offset == 240
    assert len(server.host.find("s").log.segments.shown) == segments
    assert store.count("put") + store.count("put_file") + store.count("replace") == writes


async def test_a_log_that_is_not_open(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path, store) as server:
        await publish(await a_stream(server), 0, 12)
        await passes(600)
        assert not server.host.find("s").is_open
        await upload(server, "s")
        has_all(store, "s", 240)
    async with tiered(tmp_path, store) as server:
        found = await upload(server)
        assert (found.num_bytes, found.streams[0].next_offset) == (0, 240)


async def test_the_catalog_is_stored(store: FakeStore, server: Harness) -> None:
    store.seconds = lambda call: 5.0 if call.name == "create" and "/~log/" in call.key else 0.0
    await upload(server)
    await publish(await a_stream(server), 0, 1)
    entries = store.count("create", "/~log/")
    with late_answers(store):
        found = await upload(server)
    assert found.streams[0].next_offset == 20
    assert store.count("create", "/~log/") == entries + 1
    store.fail(name="create", key="/~log/", times=-1)
    await a_stream(server, "t")
    assert await reason(server) == "after 60 seconds the tier does not have everything: the catalog"
    store.heal()
    await upload(server)


async def test_nothing_ends_before_the_manifest_is_stored(tmp_path: Path, store: FakeStore) -> None:
    """At each request it is not over until the last manifest is there, and then it is."""
    early: list[int] = []
    done = False

    def before(call: Call) -> None:
        if done and ".segment" in call.key:
            early.append(call.number)

    store.before = before
    async with tiered(tmp_path, store) as server:
        await publish(await a_stream(server), 0, 23)
        await upload(server)
        done = True
        assert manifest_of(store, "s").next_offset == 23 * A_FRAME
        await passes(60)
        assert not early


async def test_two_at_once_seal_once(store: FakeStore, server: Harness) -> None:
    store.seconds = lambda call: 3.0 if ".segment" in call.key else 0.0
    peer = await a_stream(server)
    await publish(peer, 0, 3)
    found: list[Uploaded] = []

    async def one(*names: str) -> None:
        found.append(await upload(server, *names))

    with late_answers(store):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            nursery.start_soon(one, "s")
            await trio.sleep(1)
            await publish(peer, 60, 1)
            nursery.start_soon(one, "s")
    ends = [each.streams[0].next_offset for each in found]
    assert ends == [60, 60, 80]
    assert [each.next_offset for each in manifest_of(store, "s").segments] == [60, 80]
    assert is_left_alone(server)


async def test_it_ends_however_fast_others_publish(store: FakeStore, server: Harness) -> None:
    """The store is slower than the publisher, and falls behind for good."""
    store.seconds = lambda call: 1.0 if ".segment" in call.key else 0.0
    peer = await a_stream(server)
    after = await publish(peer, 0, 7)

    async def go_on() -> None:
        nonlocal after
        while True:
            after = await publish(peer, after, 4)
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(go_on)
        with late_answers(store):
            await trio.sleep(0.5)
            confirmed = after
            (found,) = (await upload(server, seconds=30)).streams
        assert after > found.next_offset + 5 * SEGMENT
        assert confirmed <= found.next_offset < confirmed + 3 * SEGMENT
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("names", [(), ("s",)])
async def test_a_stream_is_deleted_meanwhile(
    store: FakeStore, server: Harness, names: Sequence[str]
) -> None:
    await publish(await a_stream(server, "t"), 0, 1)
    await stored(server, 3)
    store.fail(key="/s~", times=-1)
    async with trio.open_nursery() as nursery:

        async def delete() -> None:
            await trio.sleep(2)
            await server.host.delete("s", lambda: None)

        nursery.start_soon(delete)
        if names:
            with pytest.raises(Refused) as refused:
                await upload(server, *names)
            assert refused.value.reason is Reason.NOT_FOUND
        else:
            found = await upload(server)
            assert [one.name for one in found.streams] == ["t"]
    store.heal()
    assert is_left_alone(server)


async def test_a_stream_that_was_deleted_before_is_deleted_there(tmp_path: Path) -> None:
    """Another machine would bring it back."""
    store = FakeStore()
    async with tiered(tmp_path / "old", store) as server:
        await stored(server, 11)
        assert [one.is_deleted for one in manifests(store)] == [False]
        store.fail(key="/s~", times=-1)
        await server.host.delete("s", lambda: None)
        assert (
            await reason(server)
            == "after 60 seconds the tier does not have everything: the end of deleted streams"
        )
        store.heal()
        await upload(server)
        assert is_left_alone(server)
    async with tiered(tmp_path / "new", store, restore=True) as server:
        assert server.host.names() == []


async def test_a_stream_leaves_the_tier_meanwhile(store: FakeStore, server: Harness) -> None:
    await publish(await a_stream(server), 0, 3)
    store.fail(key="/s~", times=-1)
    async with trio.open_nursery() as nursery:

        async def leave() -> None:
            await trio.sleep(2)
            await server.host.settings.set_arguments("s", [("stream-tier", "false")])

        nursery.start_soon(leave)
        says = "s is not uploaded to the tier: its argument stream-tier is false"
        assert await reason(server, "s", seconds=3_600) == says
    assert trio.current_time() < 3_000
    assert (await upload(server)).num_outside == 1


async def test_the_store_is_away_and_comes_back(store: FakeStore, server: Harness) -> None:
    await stored(server, 3)
    store.fail(times=-1)
    says = await reason(server)
    assert says == (
        "after 60 seconds the tier does not have everything: "
        "s: cannot reach fake://store: the connection broke off"
    )
    assert is_left_alone(server)
    async with trio.open_nursery() as nursery:

        async def come_back() -> None:
            await trio.sleep(200)
            store.heal()

        nursery.start_soon(come_back)
        began = trio.current_time()
        await upload(server, seconds=300)
        assert trio.current_time() - began < 200 + 60
    has_all(store, "s", 60)


async def test_it_is_away_from_the_start(tmp_path: Path, store: FakeStore) -> None:
    store.fail(times=-1)
    async with tiered(tmp_path, store) as server:
        says = await reason(server)
        assert says.endswith(
            "everything: the catalog: cannot reach fake://store: the connection broke off"
        )
        store.heal()
        await upload(server)


async def test_a_fenced_server(store: FakeStore, server: Harness) -> None:
    """It ends when that turns out, and never says that all is stored."""
    await publish(await a_stream(server), 0, 3)
    await upload(server)
    take_over(store)
    says = await reason(server)  # everything was stored, by somebody who has lost the tier
    assert says.startswith("another server, epoch ")
    assert tier_of(server).ownership.state is TierState.FENCED
    assert await reason(server, "s") == says
    assert is_left_alone(server)


@pytest.mark.parametrize("name", ["put_file", "create", "replace", "get"])
async def test_it_is_fenced_meanwhile(store: FakeStore, server: Harness, name: str) -> None:
    peer = await a_stream(server)
    await publish(peer, 0, 3)
    if name == "replace":
        await upload(server)
        await publish(peer, 60, 1)

    def before(call: Call) -> None:
        if call.name == name:
            store.before = lambda _call: None
            take_over(store)

    store.before = before
    assert (await reason(server, seconds=3_600)).startswith("another server, epoch ")
    assert trio.current_time() < 3_000
    assert is_left_alone(server)


async def test_a_store_that_cannot_compare_and_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.broker.tier.ownership.probe", lambda _store: "it cannot")
    async with tiered(tmp_path, FakeStore()) as server:
        with pytest.raises(TierError, match="it cannot; nothing is uploaded"):
            await upload(server)
        assert trio.current_time() < 60


async def test_a_stream_that_cannot_be_uploaded_does_not_wait(tmp_path: Path) -> None:
    """Its folder is an older backup; the other stream is stored."""
    store = FakeStore()
    async with tiered(tmp_path, store) as server:
        await publish(await a_stream(server), 0, 3)
        await upload(server)
        await publish(await a_stream(server, "t"), 0, 3)
    shutil.copytree(tmp_path, tmp_path.with_suffix(".backup"))
    async with tiered(tmp_path, store) as server:
        peer = await publisher(server)
        await publish(peer, 60, 3)
        await upload(server, "s")
    shutil.copy(tmp_path / "tier.json", tmp_path.with_suffix(".backup"))
    async with tiered(tmp_path.with_suffix(".backup"), store) as server:
        says = await reason(server, seconds=3_600)
        assert says.startswith("the tier does not get everything: s: ")
        assert trio.current_time() < 3_000
        has_all(store, "t", 60)


async def test_a_stream_whose_log_cannot_be_opened(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path, store) as server:
        await publish(await a_stream(server), 0, 3)
        await upload(server)
    (path,) = tmp_path.rglob("s/manifest")
    path.write_bytes(b"damaged")
    for mark in path.parent.glob("tier-*"):  # else it would be fetched
        mark.unlink()
    async with tiered(tmp_path, store) as server:
        assert "damaged" in await reason(server, seconds=3_600)
        assert trio.current_time() < 3_000


async def test_cancelling_it_leaves_nothing_behind(store: FakeStore, server: Harness) -> None:
    """The segment that grows is not sealed any more, nor anything uploaded."""
    await stored(server, 3)
    store.fail(times=-1)
    tier_of(server).ownership._look.set()
    await passes(5)
    with trio.move_on_after(30) as limit:
        await upload(server, seconds=3_600)
    assert limit.cancelled_caught
    assert is_left_alone(server)
    store.heal()
    await passes(300)
    assert tier_of(server).ownership.state is TierState.OK
    assert not manifests(store)
    async with server.host.find("s").opened() as log:
        assert len(log.segments.shown) == 1


async def test_what_retention_takes_is_not_waited_for(store: FakeStore, server: Harness) -> None:
    peer = await a_stream(server)
    await publish(peer, 0, 12)
    store.fail(key=".segment", times=-1)
    async with trio.open_nursery() as nursery:

        async def drop() -> None:
            await trio.sleep(10)
            await server.host.settings.set_arguments("s", [("max-length-bytes", "1000")])
            await publish(peer, 240, 10)
            await server.host.expire()
            store.heal()

        nursery.start_soon(drop)
        (found,) = (await upload(server, seconds=300)).streams
        assert found.next_offset < 240


async def test_what_readers_see_no_more_is_no_fault_of_the_upload(
    tmp_path: Path, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A segment outlives its limits while it is on its way; its file is kept as yet."""
    async with tiered(tmp_path, store) as server:
        peer = await a_stream(server)
        async with server.host.find("s").opened() as log:
            hidden = []

            def hide(call: Call) -> None:
                if call.key.endswith(".segment") and not hidden:
                    log.policy = replace(log.policy, max_length_bytes=100)
                    log.outlive(log.segments.last_timestamp_ms or 0)
                    hidden.extend(log.segments.outlived)

            store.before = hide
            await publish(peer, 0, 12)
            await passes(20)
            assert hidden
            assert log.segments.first_offset == log.segments.kept_from == 2 * SEGMENT
    assert "not needed any more" not in caplog.text


async def _stored_offsets(store: FakeStore) -> dict[bytes, int]:
    manifest = manifest_of(store, "s")
    assert manifest.tracking is not None
    assert manifest.tracking.next_offset == manifest.next_offset
    found = tracking_in(store.objects[manifest.tracking_key].content, manifest.next_offset)
    assert found.sequences()[b"once"] == 77
    assert found.sequences()[b"p"] >= manifest.next_offset - 1
    return found.offsets()


@pytest.mark.parametrize("lost", ["", ".tracking", "/manifest"])
async def test_offsets_of_consumers_are_stored_without_a_segment(
    store: FakeStore, server: Harness, lost: str
) -> None:
    peer = await a_stream(server)
    await peer.declare("s", 2, "once")
    await peer.store([b"x" * 20], 77, publisher_id=2)
    end = await publish(peer, 1, 12)
    await peer.send(c.StoreOffset("app", "s", 3))
    await passes(1)
    await upload(server)
    assert await _stored_offsets(store) == {b"app": 3}
    segments = store.count("put_file")
    await peer.send(c.StoreOffset("app", "s", end - 1))
    await peer.send(c.StoreOffset("ahead", "s", end + 5))
    await passes(1)
    if lost:
        store.fail(key=lost, after=True)
    found = await upload(server, seconds=300)
    assert found.streams[0].next_offset == end
    assert await _stored_offsets(store) == {b"app": end - 1, b"ahead": end - 1}
    assert store.count("put_file") == segments
    await passes(60)
    writes = store.count("put")
    await upload(server)
    assert store.count("put") == writes
    assert len(orphans(store)) == (lost == ".tracking")
    await publish(peer, end, 1)
    await upload(server)
    assert await _stored_offsets(store) == {b"app": end - 1, b"ahead": end + 5}
