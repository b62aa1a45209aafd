"""Confirms through the store: what the server answers is in the store, also around a change."""

from pathlib import Path
from typing import Any

import pytest
import trio

from segments import StorageError
from segments.store.object_names import LOG_FOLDER, WAL_FOLDER
from streamd.broker.tier import wal
from streamd.operations.arguments import CONFIRM
from streamd.wire.stream import ResponseCode, commands as c
from tests.broker.tier.support import (
    all_of,
    bodies,
    confirmed_by_store,
    elsewhere,
    manifest_of,
    passes,
    publisher,
    slot,
    tiered,
)
from tests.support.fake_store import FakeStore
from tests.support.server import FIRST, OK, Harness


async def _store_offset(server: Harness, offset: int) -> None:
    peer = await server.peer()
    await peer.send(c.StoreOffset("a", "s", offset))
    await passes(1)


async def _offset(server: Harness) -> int | None:
    """What the server answers within some seconds; None for nothing."""
    peer = await server.peer()
    with trio.move_on_after(5):
        found: int = (await peer.ask(c.QueryOffset, "a", "s")).offset
        return found
    return None


async def _change(server: Harness, where: str) -> None:
    await server.host.settings.set_arguments("s", [(CONFIRM, where)])


async def test_an_offset_that_only_the_disk_has_is_answered_when_the_store_has_it(
    tmp_path: Path, store: FakeStore
) -> None:
    """It was stored before the start, and never answered."""
    async with tiered(tmp_path, store) as server:
        await confirmed_by_store(server, frames=1)
        store.fail(key=WAL_FOLDER, times=-1)
        await _store_offset(server, 3)
    store.heal()
    store.fail(key=f"{WAL_FOLDER}/2", times=-1)
    async with tiered(tmp_path, store) as server:
        assert await _offset(server) is None
        store.heal()
        assert await _offset(server) == 3


async def test_what_was_there_before_a_change_is_answered_when_the_store_has_it(
    store: FakeStore, server: Harness
) -> None:
    peer = await publisher(server)
    await peer.store(bodies(0))
    await _store_offset(server, 3)
    store.fail(key=WAL_FOLDER, times=-1)
    await _change(server, "store")
    assert await _offset(server) is None
    other = await server.peer()
    with trio.move_on_after(5) as waited:
        await other.ask(c.QueryPublisherSequence, "p", "s")
    assert waited.cancelled_caught
    await peer.publish(bodies(0))
    await peer.silence(5)
    store.heal()
    with trio.fail_after(30):
        assert len(await peer.confirmed(20)) == 20
    assert await _offset(server) == 3


async def test_what_was_uploaded_and_has_left_the_disk_needs_no_slot(tmp_path: Path) -> None:
    store = FakeStore()
    async with tiered(tmp_path, store, tier_roll_seconds=1) as server:
        arguments = {"stream_max_segment_size_bytes": "2000"}
        arguments["stream_local_max_length_bytes"] = "3000"
        peer = await confirmed_by_store(server, **arguments, frames=1)
        await _change(server, "local")
        for first in range(20, 400, 20):
            await peer.store(bodies(first), first + 1)
        async with server.host.find("s").opened() as log:
            await passes(100)
            assert manifest_of(store, "s").next_offset == 400
            assert log.segments.shown[0].cold is not None
        await _change(server, "store")
        with trio.fail_after(30):
            await peer.store(bodies(400), 401)


async def test_what_the_disk_refuses_for_a_while_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors are short, say, when the first slot of a stream is made."""
    store, put_mark, fails = FakeStore(), wal.put_mark, True

    def refuse(*arguments: Any) -> None:
        if fails:
            raise StorageError("create", "wal", OSError(24, "Too many open files"))
        put_mark(*arguments)

    async with tiered(tmp_path, store) as server:
        peer = await confirmed_by_store(server)
        monkeypatch.setattr(wal, "put_mark", refuse)
        await peer.publish([b"1"])
        await peer.silence(5)
        fails = False
        with trio.fail_after(30):
            assert await peer.confirmed(1) == [1]


async def test_offsets_of_each_time_in_between_go_along(
    tmp_path: Path, store: FakeStore, server: Harness
) -> None:
    """Also the second time that the store is to confirm."""
    await confirmed_by_store(server, frames=1)
    await _change(server, "local")
    await _store_offset(server, 7)
    await _change(server, "store")
    assert await _offset(server) == 7
    async with elsewhere(tmp_path, store) as new:
        assert await _offset(new) == 7


async def test_a_stream_is_marked_each_time(tmp_path: Path, server: Harness) -> None:
    """The mark went when its log was opened to be confirmed by this machine."""
    peer = await confirmed_by_store(server, frames=1)
    await _change(server, "local")
    await passes(1_000)
    assert not server.host.find("s").is_open
    await peer.store(bodies(20), 21)
    assert not list(tmp_path.glob("streams/*/*/wal-*"))
    await _change(server, "store")
    await peer.store(bodies(40), 41)
    assert list(tmp_path.glob("streams/*/*/wal-*"))


async def test_offsets_that_are_taken_before_their_turn_are_waited_for(server: Harness) -> None:
    await confirmed_by_store(server)
    stream = server.host.find("s")
    async with stream.opened() as log:
        await stream.settled()
        writer = stream.life.held.writer
        writer.store_offset(b"a", 0)
        assert writer.take_offsets() == {b"a": 0}
        batch = writer.take_batches(log.next_offset)
        writer.write()
        assert not writer.is_settled
        writer.settle_batches(batch)
        assert writer.is_settled


async def test_slots_are_small_however_many_offsets_there_are(
    tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is too large could not be read again."""
    monkeypatch.setattr("streamd.broker.streams.log_writer.MAX_OFFSETS", 50)
    monkeypatch.setattr(wal, "SLOT_BYTES", 10_000)
    async with tiered(tmp_path, store) as server:
        await passes(5)
        store.fail(key=WAL_FOLDER, times=-1)
        for name in "stu":
            await (await server.peer()).create(name, stream_confirm="store")
            stream = server.host.find(name)
            async with stream.opened():
                for number in range(500):
                    stream.store_offset(f"{number:0200d}", number)
                assert len(stream.life.held.writer.changed_offsets) <= 50
        await passes(5)
        store.heal()
        await passes(5)
        sizes = [len(one.content) for key, one in store.objects.items() if WAL_FOLDER in key]
        assert sizes
        assert max(sizes) < 50 * 450


async def test_each_opening_waits_for_what_only_the_disk_has(
    tmp_path: Path, store: FakeStore
) -> None:
    """It was never confirmed: a machine may still take it away.

    The second waits for it, too, when the slot of the first is still on its way.
    """
    async with tiered(tmp_path, store) as server:
        peer = await confirmed_by_store(server)
        await peer.store([b"1"])
        store.fail(key=WAL_FOLDER, times=-1)
        await peer.publish([b"2"], 2)
        await passes(1)
    store.heal()
    store.fail(key=f"{WAL_FOLDER}/2", times=-1)
    async with tiered(tmp_path, store) as server:
        for _ in range(3):
            peer = await server.peer()
            with trio.move_on_after(30):
                assert await peer.code(c.Subscribe, 1, "s", FIRST, 1, ()) != OK
            await passes(10)
        store.heal()
        await passes(10)
        assert await all_of(server) == [b"1", b"2"]
        async with elsewhere(tmp_path, store) as new:
            assert await all_of(new) == [b"1", b"2"]


async def test_what_was_not_answered_is_not_when_it_is_declared_again(tmp_path: Path) -> None:
    """That it exists is an answer, too; what the store has already is answered at once."""
    store = FakeStore()
    async with tiered(tmp_path, store, confirm="store") as server:
        peer = await server.peer()
        await peer.create("old")
        store.fail(times=-1)
        assert await peer.code(c.Create, "s", ()) == ResponseCode.STREAM_NOT_AVAILABLE
        again = await peer.code(c.Create, "s", ())
        assert again not in (OK, ResponseCode.STREAM_EXISTS)
        with trio.fail_after(1):
            assert await peer.code(c.Create, "old", ()) == ResponseCode.STREAM_EXISTS
        store.heal()
        await passes(60)
        assert await peer.code(c.Create, "s", ()) == ResponseCode.STREAM_EXISTS
        lost = FakeStore(dict(store.objects), now_ms=store.now_ms)
        with trio.fail_after(1):
            assert await peer.code(c.Create, "s", ()) == ResponseCode.STREAM_EXISTS
    async with tiered(tmp_path / "new", lost, restore=True) as new:
        assert new.host.names() == ["old", "s"]


async def test_a_turn_that_needs_several_slots_is_confirmed_with_the_last(
    tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "SLOT_BYTES", 1_000)
    async with tiered(tmp_path, store) as server:
        peer = await confirmed_by_store(server, stream_chunk_max_records="1")
        store.fail(key=slot(1), times=-1)
        await peer.publish([b"x" * 600] * 4)
        await peer.silence(5)
        store.heal()
        assert len(await peer.confirmed(4)) == 4


@pytest.mark.parametrize("confirm", ["local", "store"])
@pytest.mark.parametrize("is_super", [False, True])
async def test_a_deletion_is_answered_before_its_client_is_told_that_the_stream_is_gone(
    tmp_path: Path, store: FakeStore, confirm: str, *, is_super: bool
) -> None:
    """As RabbitMQ does; others are told at once, also while the store is away."""
    async with tiered(tmp_path, store, confirm=confirm) as server:
        peer, other = await server.peer(), await server.peer()
        if is_super:
            assert await peer.code(c.CreateSuperStream, "x", ("s",), ("k",), ()) == OK
        else:
            await peer.create("s")
        for one in (peer, other):
            await one.subscribe("s")
            await one.declare("s")
        await passes(5)
        store.fail(key=LOG_FOLDER, times=-1)
        kind: Any = c.DeleteSuperStream if is_super else c.Delete
        await peer.send(kind(7, "x" if is_super else "s"))
        assert (await other.expect(c.MetadataUpdate)).stream == "s"
        store.heal()
        first, second = await peer.next(), await peer.next()
        assert (first.correlation_id, first.code) == (7, OK)
        assert second == c.MetadataUpdate(ResponseCode.STREAM_NOT_AVAILABLE, "s")
