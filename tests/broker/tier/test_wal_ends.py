"""Confirms through the store: what ends, in a stream or of it, and is answered, stays so."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from segments import Log, at_offset
from segments.flush import Flush
from segments.store.object_names import WAL_FOLDER
from segments.store.object_store import TierError
from segments.store.wal import decode_slot
from streamd.broker.catalog.catalog import CatalogError
from streamd.broker.catalog.transaction import Transaction
from streamd.broker.tier import wal
from streamd.operations.arguments import CONFIRM
from streamd.operations.errors import Refused
from streamd.operations.names import Name
from streamd.operations.routing import NO_ALTERNATE, ExchangeRow, ExchangeType
from streamd.wire.stream import ResponseCode, commands as c
from tests.broker.tier.support import (
    all_of,
    bodies,
    confirmed_by_store,
    elsewhere,
    manifests,
    passes,
    publisher,
    slot,
    slots,
    tier_of,
    tiered,
)
from tests.support.disk import FaultyDisk
from tests.support.fake_store import WRITES, Call, FakeStore
from tests.support.logs import append
from tests.support.server import OK, Harness

AWAY = ResponseCode.STREAM_NOT_AVAILABLE
STORE = {"stream_confirm": "store"}


async def _change(server: Harness, where: str) -> None:
    await server.host.settings.set_arguments("s", [(CONFIRM, where)])


@pytest.mark.parametrize("confirm", ["local", "store"])
@pytest.mark.parametrize("is_uploaded", [False, True])
async def test_a_machine_that_is_lost_brings_no_stream_back_whose_end_was_answered(
    tmp_path: Path, store: FakeStore, *, confirm: str, is_uploaded: bool
) -> None:
    """Of one that is confirmed by the store, or of any where the server's default is that."""
    arguments = STORE if confirm == "local" else {}
    async with tiered(tmp_path, store, confirm=confirm) as server:
        peer = await publisher(server, **arguments)
        await peer.store(bodies(0))
        if is_uploaded:
            await tier_of(server).upload(server.host.name, [Name("s")], 60)
        assert await peer.code(c.Delete, "s") == OK
        async with elsewhere(tmp_path, store) as new:
            assert new.host.names() == []


@pytest.mark.parametrize("key", [WAL_FOLDER, "/~log/", "manifest"])
async def test_an_end_that_the_store_does_not_know_is_not_answered(
    tmp_path: Path, store: FakeStore, server: Harness, key: str
) -> None:
    """Nor when somebody asks again; others have their turns meanwhile."""
    peer, other = await confirmed_by_store(server), await server.peer()
    await peer.store(bodies(0))
    await tier_of(server).upload(server.host.name, [Name("s")], 60)
    await peer.store(bodies(20), 21)
    store.fail(key=key, times=-1)
    async with trio.open_nursery() as nursery:
        codes: list[int] = []

        async def delete() -> None:
            codes.append(await (await server.peer()).code(c.Delete, "s"))

        nursery.start_soon(delete)
        await passes(1)
        with trio.fail_after(1):
            await other.create("local")
    assert codes == [AWAY]
    assert await other.code(c.Delete, "s") == AWAY
    store.heal()
    await passes(60)
    assert await other.code(c.Delete, "s") == ResponseCode.STREAM_DOES_NOT_EXIST
    async with elsewhere(tmp_path, store) as new:
        assert "s" not in new.host.names()


@pytest.mark.parametrize("is_uploaded", [False, True])
async def test_an_end_that_no_slot_has_is_said_where_another_one_of_its_name_is_there(
    tmp_path: Path, store: FakeStore, *, is_uploaded: bool
) -> None:
    """Nobody has looked at that one yet when the logs are read."""
    async with tiered(tmp_path, store) as server:
        peer = await confirmed_by_store(server, frames=1)
        if is_uploaded:
            await tier_of(server).upload(server.host.name, [Name("s")], 60)
            await peer.store(bodies(20), 21)
        store.fail(key=WAL_FOLDER, times=-1)
        assert await (await server.peer()).code(c.Delete, "s") == AWAY
        for name in ("a", "b", "c", "s"):  # which are looked at one after the other
            await (await publisher(server, name)).store([b"new"])
        assert manifests(store) == [] or is_uploaded
    store.heal()
    async with tiered(tmp_path, store) as server:
        await passes(5)
        assert manifests(store) == []
        found = (decode_slot(key, store.objects[key].content)[0] for key in slots(store))
        assert any(one.is_deleted for slot in found for one in slot.sections)
        async with elsewhere(tmp_path, store) as new:
            assert await all_of(new) == []


async def test_many_ends_go_into_several_slots(
    tmp_path: Path, store: FakeStore, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is too large could not be read by the next start, nor anything behind it."""
    monkeypatch.setattr(wal, "_MOST_ENDS", 3)
    names = [f"s{number}" for number in range(10)]
    for name in names:
        await confirmed_by_store(server, name, frames=1)
    store.fail(key=WAL_FOLDER, times=-1)
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon((await server.peer()).code, c.Delete, name)
    store.heal()
    await passes(10)
    assert await (await server.peer()).code(c.Delete, "s9") == ResponseCode.STREAM_DOES_NOT_EXIST
    found = (decode_slot(key, store.objects[key].content)[0] for key in slots(store))
    ends = [sum(one.is_deleted for one in slot.sections) for slot in found]
    assert sum(ends) == 10
    assert max(ends) <= 3
    async with elsewhere(tmp_path, store) as new:
        assert new.host.names() == []


@pytest.mark.parametrize("is_left", [False, True])
async def test_a_stream_whose_end_no_log_says_comes_back_whole(
    tmp_path: Path, store: FakeStore, server: Harness, *, is_left: bool
) -> None:
    """Its messages are in the tier and behind that in a log: no half of it has gone."""
    peer = await confirmed_by_store(server)
    await peer.store(bodies(0))
    await tier_of(server).upload(server.host.name, [Name("s")], 60)
    await tier_of(server).confirms.shorten()
    await peer.store(bodies(20), 21)
    store.fail(key=WAL_FOLDER, times=-1)
    if is_left:
        store.fail(name="delete", times=-1)
    assert await (await server.peer()).code(c.Delete, "s") == AWAY
    async with elsewhere(tmp_path, store) as new:
        assert await all_of(new) == bodies(0, 40)
        await tier_of(new).upload(new.host.name, [Name("s")], 60)


@asynccontextmanager
async def _ended_unread(folder: Path, store: FakeStore) -> AsyncIterator[Harness]:
    """A server that has begun anew, and deleted s before it could read what logs have of it."""
    async with tiered(folder, store) as server:
        await confirmed_by_store(server, frames=1)
    store.fail(key=WAL_FOLDER, times=-1)
    async with tiered(folder, store) as server:
        assert await (await server.peer()).code(c.Delete, "s") == AWAY
        yield server


async def test_a_stream_that_ends_before_logs_are_read_stays_so(
    tmp_path: Path, store: FakeStore
) -> None:
    async with _ended_unread(tmp_path, store) as server:
        store.heal()
        code = await (await server.peer()).code(c.Delete, "s")
        assert code == ResponseCode.STREAM_DOES_NOT_EXIST
        async with elsewhere(tmp_path, store) as new:
            assert new.host.names() == []


async def test_an_end_that_no_slot_has_when_the_server_ends_is_said_at_the_next_start(
    tmp_path: Path, store: FakeStore
) -> None:
    """Of a stream of which only the log has something."""
    async with tiered(tmp_path, store) as server:
        await confirmed_by_store(server, frames=1)
        store.fail(times=-1)
        assert await (await server.peer()).code(c.Delete, "s") == AWAY
    store.heal()
    async with tiered(tmp_path, store):
        await passes(5)  # the log is not shortened yet
        async with elsewhere(tmp_path, store) as new:
            assert new.host.names() == []


async def test_a_stream_that_follows_one_which_ended_before_logs_were_read_is_another(
    tmp_path: Path, store: FakeStore
) -> None:
    """What it confirms is not taken for a part of what has ended."""
    async with _ended_unread(tmp_path, store) as server:
        peer = await confirmed_by_store(server)
        await peer.publish(bodies(40), 1)
        await passes(1)
        store.heal()
        assert len(await peer.confirmed(20)) == 20
        await peer.store(bodies(60), 21)
        async with elsewhere(tmp_path, store) as new:
            assert await all_of(new) == bodies(40, 40)


async def test_a_stream_that_is_declared_again_before_logs_are_read_begins_empty(
    tmp_path: Path, store: FakeStore
) -> None:
    """Also on another machine, when nobody has used it yet."""
    async with _ended_unread(tmp_path, store) as server:
        await (await server.peer()).create("s", **STORE)
        store.heal()
        await passes(5)  # the log is not shortened yet
        async with elsewhere(tmp_path, store) as new:
            assert await all_of(new) == []


async def test_what_cannot_be_removed_of_a_stream_keeps_no_other_end_from_being_answered(
    store: FakeStore, server: Harness
) -> None:
    peer = await confirmed_by_store(server)
    await peer.create("other", **STORE)
    await peer.store(bodies(0))
    await tier_of(server).upload(server.host.name, [Name("s")], 60)
    store.fail(key="/s~", times=-1)
    assert await (await server.peer()).code(c.Delete, "s") == AWAY
    with trio.fail_after(10):
        assert await (await server.peer()).code(c.Delete, "other") == OK


async def test_what_was_truncated_stays_so(
    tmp_path: Path, store: FakeStore, server: Harness
) -> None:
    """Of a stream of which only the log had something."""
    peer = await confirmed_by_store(server)
    for first in range(0, 100, 20):
        await peer.store(bodies(first), first + 1)
    stream = server.host.find("s")
    async with stream.opened():
        assert await stream.truncate(at_offset(60)) == 60
    async with elsewhere(tmp_path, store) as new:
        assert await all_of(new) == bodies(60, 40)


async def test_a_truncation_that_the_store_does_not_know_is_not_answered(
    store: FakeStore, server: Harness
) -> None:
    peer = await confirmed_by_store(server)
    for first in range(0, 100, 20):
        await peer.store(bodies(first), first + 1)
    stream = server.host.find("s")
    store.fail(key="manifest", times=-1)
    async with stream.opened():
        with pytest.raises(Refused, match="would come back if the machine was lost"):
            await stream.truncate(at_offset(60))


async def test_truncating_what_is_not_in_the_tier_waits_for_none(tmp_path: Path) -> None:
    async with tiered(tmp_path, FakeStore(), confirm="store") as server:
        peer = await publisher(server, stream_tier="false", stream_confirm="local")
        for first in range(0, 100, 20):
            await peer.store(bodies(first), first + 1)
        stream = server.host.find("s")
        async with stream.opened():
            assert await stream.truncate(at_offset(60)) == 60


async def test_a_deletion_that_the_catalog_refuses_is_not_told_as_done(
    store: FakeStore, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CatalogError("database or disk is full")

    await confirmed_by_store(server, frames=1)
    store.fail(times=-1)
    monkeypatch.setattr(Transaction, "remove_streams", refuse)
    with trio.fail_after(5):
        with pytest.raises(Refused, match="disk is full"):
            await server.host.delete(Name("s"), lambda: None)
    assert server.host.has_stream(Name("s"))


async def test_nobody_waits_for_ever_for_a_store_that_is_away(
    store: FakeStore, server: Harness
) -> None:
    peer = await confirmed_by_store(server, frames=1)
    store.fail(key=WAL_FOLDER, times=-1)
    await peer.publish([b"1"], 21)
    stream = server.host.find("s")
    async with stream.opened():
        stream.store_offset("a", 3)
        with trio.fail_after(25):
            with pytest.raises(Refused, match="cannot reach"):
                await stream.set_offset("b", 4)
    asks = [(c.QueryOffset, "a", "s"), (c.QueryPublisherSequence, "p", "s")]
    for ask in asks:
        with trio.fail_after(25):
            assert await (await server.peer()).code(*ask) == AWAY
    store.heal()
    await passes(10)
    answers = [await (await server.peer()).ask(*ask) for ask in asks]
    assert [answer.code for answer in answers] == [OK, OK]
    assert answers[0].offset == 3


async def test_a_flush_that_runs_shows_nothing_that_a_store_is_to_have() -> None:
    log = Log.open("s", disk=FaultyDisk(), commits_on_flush=True)
    append(log, [b"1"])
    flush: Flush = log.begin_flush()
    flush.run()
    log.await_store(awaits=True)
    log.end_flush(flush)
    assert log.committed_offset == 0
    log.commit_to(1)
    assert log.committed_offset == 1


@pytest.mark.parametrize("is_open", [False, True])
async def test_offsets_that_were_forgotten_here_do_not_come_back(
    tmp_path: Path, store: FakeStore, *, is_open: bool
) -> None:
    """Nor do those of before the stream was confirmed by this machine again."""
    async with tiered(tmp_path, store) as server:
        await confirmed_by_store(server, frames=1)
        stream = server.host.find("s")
        async with stream.opened():
            await stream.set_offset("a", 3)
            await stream.set_offset("b", 9)
        if not is_open:
            await passes(1_000)
            assert not stream.is_open
        await _change(server, "local")
        await passes(5)
        async with stream.opened():
            assert await stream.delete_offset("a")
            await stream.set_offset("b", 5)
    async with tiered(tmp_path, store) as server:
        stream = server.host.find("s")
        async with stream.opened():
            assert stream.stored_offsets() == {b"b": 5}
        assert await all_of(server) == bodies(0)


async def test_what_is_published_while_a_stream_leaves_the_store_is_confirmed(
    server: Harness,
) -> None:
    peer = await confirmed_by_store(server, frames=1)
    for number in range(20, 200, 20):
        await peer.publish(bodies(number), number + 1)
        await _change(server, "local" if number % 40 else "store")
        stream = server.host.find("s")
        stream.store_offset("a", number)
        assert len(await peer.confirmed(20)) == 20
    await _change(server, "local")
    await passes(5)
    async with stream.opened() as log:
        await stream.set_offset("a", 1_000)
        assert not log.awaits_store
    assert await all_of(server) == bodies(0, 200)


async def test_an_exchange_is_told_of_when_the_store_has_it(tmp_path: Path) -> None:
    """Also to who declares it again, or a super stream."""
    store = FakeStore()
    kind = ExchangeType.FANOUT
    row = ExchangeRow(Name("/"), Name("e"), kind, True, False, False, NO_ALTERNATE)
    async with tiered(tmp_path, store, confirm="store") as server:
        peer = await server.peer()
        host = server.host
        await peer.create("old")
        store.fail(times=-1)
        with pytest.raises(Refused):
            await host.exchanges.declare(row)
        with pytest.raises(Refused, match="the tier does not have it"):
            await host.exchanges.declare(row)
        with pytest.raises(Refused, match="the tier does not have it"):
            await host.tell_of(Name("e"))
        keys = [("0", Name("x-0"))]
        for _ in range(2):
            with pytest.raises(Refused, match="the tier does not have it"):
                await host.create_super_stream(Name("x"), keys, [])
        await host.tell_of(Name("old"))
        store.heal()
        await passes(60)
        assert not await host.exchanges.declare(row)


async def test_an_end_is_not_answered_by_a_slot_from_before(
    store: FakeStore, server: Harness
) -> None:
    """One that was on its way when the stream ended, and has come to the store since."""
    peer = await confirmed_by_store(server)
    await peer.store([b"1"])
    for number in (1, 2):
        store.fail(key=slot(number), times=-1)
    await peer.publish([b"2"], 2)
    await passes(1)
    async with trio.open_nursery() as nursery:

        async def delete() -> None:
            assert await (await server.peer()).code(c.Delete, "s") == AWAY

        nursery.start_soon(delete)
        await passes(1)
        store.heal()
        store.fail(key=slot(2), times=-1)
        await passes(2)
        assert slot(1) in store.objects


async def test_nothing_goes_to_the_store_while_a_stream_leaves_its_log(
    store: FakeStore, server: Harness
) -> None:
    """It would be answered, and be on no disk when the log is not needed any more."""
    peer = await confirmed_by_store(server)
    await peer.store([b"1"])
    stream = server.host.find("s")
    async with stream.opened():
        opened = stream.life.held
        opened.writer.pause()
        stream.store_offset("a", 0)
        await passes(0.5)  # shorter than until the next flush, which would resume it
        assert slot(1) not in store.objects
        opened.writer.resume()
        opened.work.set()
        await passes(2)
        assert slot(1) in store.objects


async def test_a_log_that_is_being_opened_does_not_hold_the_end(tmp_path: Path) -> None:
    """It waits until the store has what its disk has; after the end nobody stores that."""
    store = FakeStore()
    async with tiered(tmp_path, store) as server:
        peer = await publisher(server)
        await peer.store(bodies(0))
        await _change(server, "store")
    store.before = _away  # for slots
    async with tiered(tmp_path, store) as server:
        peer = await server.peer()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.code, c.StreamStats, "s")
            await passes(2)
            begun = trio.current_time()
            nursery.cancel_scope.cancel()
    assert trio.current_time() - begun < 1


def _away(call: Call) -> None:
    if call.name in WRITES and call.key.startswith(WAL_FOLDER):
        raise TierError("the store is away")
