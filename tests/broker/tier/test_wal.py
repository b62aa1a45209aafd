"""Confirms through the store: nothing that was confirmed is lost with the machine."""

import shutil
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import trio
from hypothesis import given, settings, strategies

from segments.disk import OsDisk
from segments.gaps import RESTORE_GAP
from segments.store.object_names import LOG_FOLDER, WAL_FOLDER
from segments.store.object_store import TierError
from segments.store.wal import Section, decode_slot
from streamd.broker.streams.open_log import OpenLog
from streamd.broker.tier import claims
from streamd.broker.tier.wal import WalStream
from streamd.operations.arguments import CONFIRM
from streamd.server import StartError
from streamd.wire.stream import ResponseCode, commands as c
from tests.broker.tier.support import (
    all_of,
    bodies,
    confirmed_by_store,
    copy_of,
    elsewhere,
    manifest_of,
    passes,
    slots,
    tier_of,
    tiered,
)
from tests.support.fake_store import Call, FakeStore, late_answers
from tests.support.server import FIRST, OK, Harness


async def _sequence(server: Harness, name: str = "s") -> int:
    peer = await server.peer()
    found: int = (await peer.ask(c.QueryPublisherSequence, "p", name)).sequence
    return found


def _reason(server: Harness) -> str:
    """Why the stream s cannot be used."""
    (stream,) = server.server.broker.streams()
    return stream.life.reason


# -- confirming


async def test_a_message_is_confirmed_and_shown_when_the_store_has_it(
    store: FakeStore, server: Harness
) -> None:
    peer = await confirmed_by_store(server)
    reader = await server.consumer("s")
    store.fail(key=WAL_FOLDER, times=-1)
    await peer.publish([b"1"])
    await peer.silence(5)
    await reader.silence(5)
    assert "cannot reach" in server.host.find("s").alarm
    assert await (await server.peer()).code(c.DeclarePublisher, 1, "q", "s") != OK
    store.heal()
    assert await peer.confirmed(1) == [1]
    assert await reader.bodies(1) == [b"1"]
    assert not server.host.find("s").alarm
    slot, _ = decode_slot(slots(store)[0], store.objects[slots(store)[0]].content)
    assert [section.next_offset for section in slot.sections] == [1]


async def test_other_streams_go_on_while_the_store_is_away(
    store: FakeStore, server: Harness
) -> None:
    peer = await confirmed_by_store(server)
    await peer.begin("local", 2)
    store.fail(times=-1)
    await peer.publish([b"1"])
    await peer.store([b"1"], publisher_id=2)


async def test_what_was_sent_twice_is_confirmed_with_the_first(
    store: FakeStore, server: Harness
) -> None:
    peer = await confirmed_by_store(server)
    store.fail(key=WAL_FOLDER, times=-1)
    await peer.publish([b"1"])
    await passes(1)
    await peer.publish([b"1"])
    await peer.silence(5)
    store.heal()
    assert await peer.confirmed(2) == [1, 1]
    await peer.publish([b"1"])
    assert await peer.confirmed(1) == [1]
    assert await all_of(server) == [b"1"]


async def test_a_slot_that_went_elsewhere_confirms_nothing(tmp_path: Path) -> None:
    """A file system was not mounted for a moment: the slot is on the disk below it."""
    store, below = FakeStore(), FakeStore()
    async with tiered(tmp_path, store, tier="file:///mnt/tier") as server:
        peer = await confirmed_by_store(server)
        await peer.store([b"1"])
        right = store.objects

        def unmount(call: Call) -> None:
            if call.name == "create" and WAL_FOLDER in call.key and below.objects == {}:
                store.objects = below.objects

        def mount(call: Call) -> None:
            if call.name == "create" and store.objects is below.objects:
                store.objects = right

        store.before, store.after = unmount, mount
        await peer.store([b"2"], 2)
        assert len(below.objects) == 1
        assert len(slots(store)) == 2


async def test_a_log_that_was_looked_for_elsewhere_has_not_ended(tmp_path: Path) -> None:
    """A file system was not mounted for a moment: below it there are no slots."""
    store, below = FakeStore(), FakeStore()
    async with tiered(tmp_path / "old", store, tier="file:///mnt/tier") as server:
        peer = await confirmed_by_store(server)
        for number in range(1, 4):
            await peer.store([b"%d" % number], number)
        right = store.objects
        lost = copy_of(store)
    right, store = lost.objects, lost
    num_reads = 0

    def look(call: Call) -> None:
        nonlocal num_reads
        num_reads += WAL_FOLDER in call.key
        store.objects = below.objects if 2 < num_reads < 18 and WAL_FOLDER in call.key else right

    store.before = look
    with suppress(StartError):
        async with tiered(tmp_path / "new", store, tier="file:///mnt/tier", restore=True) as server:
            pytest.fail("it was taken for the end")
    assert below.objects
    num_reads = 20
    async with tiered(tmp_path / "new", store, tier="file:///mnt/tier", restore=True) as server:
        assert await all_of(server) == [b"1", b"2", b"3"]


async def test_no_request_is_made_when_nothing_waits(store: FakeStore, server: Harness) -> None:
    await confirmed_by_store(server, frames=1)
    await passes(5)
    before = store.count(name="create")
    await passes(1_000)
    assert store.count(name="create") == before


async def test_a_bug_stays_in_its_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken of others for the same slot is in it; of that stream nothing is confirmed."""
    store, section = FakeStore(), WalStream.section

    def broken(stream: WalStream, taken: Any) -> Section:
        if stream.key.stream == "t":
            raise RuntimeError("a bug")
        return section(stream, taken)

    async with tiered(tmp_path, store) as server:
        peer, other = await confirmed_by_store(server), await confirmed_by_store(server, "t")
        await other.store([b"1"])
        monkeypatch.setattr(WalStream, "section", broken)
        await peer.publish([b"1"])
        await other.publish([b"2"], 2)
        assert await peer.confirmed(1) == [1]
        assert isinstance(await other.next(), c.PublishError)
        monkeypatch.undo()
        await other.publish([b"3"], 3)
        assert isinstance(await other.next(), c.PublishError)
        await peer.store([b"2"], 2)
        assert tier_of(server).confirms.bytes_behind == 0


async def test_what_waits_is_counted(store: FakeStore, server: Harness) -> None:
    peer = await confirmed_by_store(server)
    confirms = tier_of(server).confirms
    for where in ("store", "local", "store"):
        await server.host.settings.set_arguments("s", [(CONFIRM, where)])
        for number in range(5):
            store.fail(key=WAL_FOLDER, times=number)
            await peer.store(bodies(0, 30), 1)
            await peer.publish(bodies(0, 30), 31)
            await peer.confirmed(30)
    await passes(5)
    assert confirms.bytes_behind == 0


async def test_what_a_flush_has_written_is_counted_when_it_is_taken(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush tells nobody of what it writes, and a slot may be made just then."""
    peer = await confirmed_by_store(server)
    confirms = tier_of(server).confirms
    with monkeypatch.context() as patch:
        patch.setattr(OpenLog, "_write", lambda opened: opened.writer.write())
        await peer.publish([b"1"])
        await passes(0.1)
        confirms.wants(*confirms._streams.values())
        assert await peer.confirmed(1) == [1]
    await peer.store([b"2"], 2)
    assert confirms.bytes_behind == confirms._num_held == 0


@pytest.mark.parametrize(
    ("most", "count", "size", "least", "end"),
    [(10_000, 100, 1_000, 0, 20), (200_000, 300, 1, 50, 120)],
    ids=["large", "small"],
)
async def test_memory_is_bounded_while_the_store_is_away(
    store: FakeStore,
    server: Harness,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    count: int,
    size: int,
    least: int,
    end: int,
) -> None:
    """A message of a byte in a chunk of its own takes as much of it as one of two thousand."""
    monkeypatch.setattr("streamd.broker.tier.wal._MOST_BEHIND", most)
    peer = await confirmed_by_store(server)
    store.fail(key=WAL_FOLDER, times=-1)
    for number in range(count):
        await peer.publish([b"x" * size], number + 1)
        await passes(0.1)
    log = server.host.find("s").log
    assert least < log.next_offset < end  # the rest is queued
    store.heal()
    assert len(await peer.confirmed(count)) == count
    assert log.committed_offset == count
    assert not tier_of(server).confirms.is_behind
    assert len(await all_of(server)) == count


async def test_the_life_of_a_stream_that_only_the_log_has_is_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, after a power failure, the log's messages would be another stream's."""
    store, synced = FakeStore(), []
    async with tiered(tmp_path / "old", store) as server:
        await (await confirmed_by_store(server)).store([b"1"])
        lost = copy_of(store)
    sync = OsDisk.sync_folder

    def note(disk: OsDisk, folder: str) -> None:
        synced.append((Path(folder).name, any(Path(folder).glob("life-*"))))
        sync(disk, folder)

    monkeypatch.setattr(OsDisk, "sync_folder", note)
    async with tiered(tmp_path / "new", lost, restore=True) as server:
        assert ("s", True) in synced
        assert await all_of(server) == [b"1"]


async def test_a_large_backlog_goes_in_several_slots(store: FakeStore, server: Harness) -> None:
    peer = await confirmed_by_store(server)
    store.fail(key=WAL_FOLDER, times=-1)
    for number in range(12):
        await peer.publish([b"x" * 900_000], number + 1)
    await passes(1)
    store.heal()
    assert len(await peer.confirmed(12)) == 12
    sizes = [len(store.objects[key].content) for key in slots(store)]
    assert len(sizes) > 1
    assert max(sizes) < 6 << 20


# -- a machine that is lost


class _Moment(NamedTuple):
    """What the store had when so many messages were confirmed."""

    store: FakeStore
    num_confirmed: int


async def test_whenever_the_machine_is_lost_all_that_was_confirmed_is_there(tmp_path: Path) -> None:
    store, moments, confirmed = FakeStore(), [], 0

    def note(call: Call) -> None:
        if call.name in ("create", "replace", "put", "delete", "put_file"):
            moments.append(_Moment(copy_of(store), confirmed))

    async with tiered(tmp_path / "old", store, tier_roll_seconds=3) as server:
        await passes(5)
        store.after = note
        peer = await confirmed_by_store(server, stream_max_segment_size_bytes="2000")
        for first in range(0, 200, 20):
            await peer.store(bodies(first), first + 1)
            confirmed = first + 20
            await passes(1)
        await tier_of(server).confirms.shorten()
        await peer.store(bodies(200), 201)
        confirmed = 220
        store.after = lambda _call: None
        moments.append(_Moment(copy_of(store), confirmed))
    has_shorter = False
    for number, moment in enumerate(moments):
        folder = tmp_path / f"new{number}"
        async with tiered(folder, moment.store, restore=True) as server:
            if "s" not in server.host.names():
                assert not moment.num_confirmed
                continue
            found = await all_of(server)
            assert len(found) >= moment.num_confirmed
            assert found == bodies(0, len(found))
            assert await _sequence(server) == len(found)
            peer = await confirmed_by_store(server)
            await peer.store(bodies(len(found)), len(found) + 1)
            assert await all_of(server) == bodies(0, len(found) + 20)
            has_shorter = has_shorter or f"{WAL_FOLDER}/1/{0:020d}" not in moment.store.objects
        shutil.rmtree(folder)
    assert has_shorter


async def test_machines_are_lost_one_after_the_other(tmp_path: Path) -> None:
    """Each goes on with what those before have left in several logs."""
    store, number = FakeStore(), 0
    for machine in range(5):
        async with tiered(tmp_path / f"{machine}", store, restore=machine > 0) as server:
            assert (await all_of(server) if machine else []) == bodies(0, number)
            peer = await confirmed_by_store(server)
            await peer.store(bodies(number, 7), number + 1)
            number += 7
            store = copy_of(store)


def _let_the_log_take_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks of write-ahead logs are written, changes of the catalog are not."""

    def put_rows(*_: object, **__: object) -> None:
        raise TierError("cannot reach fake://store")

    monkeypatch.setattr(claims, "put_rows", put_rows)


async def test_a_stream_that_the_catalog_does_not_know_is_as_it_was_declared(
    tmp_path: Path, store: FakeStore, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await passes(5)
    _let_the_log_take_no_rows(monkeypatch)
    peer = await confirmed_by_store(server, max_age="7D")
    await peer.store([b"1"])
    monkeypatch.undo()
    async with elsewhere(tmp_path, store) as new:
        row = new.host.row("s")
        assert row.arguments["max-age"].seconds == 7 * 86_400
        assert row.arguments[CONFIRM] == "store"
        assert await all_of(new) == [b"1"]
        assert new.host.find("s").log.next_offset == 1 + 2 * RESTORE_GAP


async def test_settings_are_those_of_the_latest_messages(
    tmp_path: Path, store: FakeStore, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog does not know the stream, and the manifest is from before they were changed."""
    await passes(5)
    _let_the_log_take_no_rows(monkeypatch)
    peer = await confirmed_by_store(server, max_age="7D")
    await peer.store([b"1"])
    await tier_of(server).confirms.shorten()
    await server.host.settings.set_arguments("s", [("max-age", "9D")])
    await peer.store([b"2"], 2)
    monkeypatch.undo()
    async with elsewhere(tmp_path, store) as new:
        row = new.host.row("s")
        assert row.arguments["max-age"].seconds == 7 * 86_400
        assert row.effective["max-age"].seconds == 9 * 86_400


async def test_offsets_are_as_they_were_answered(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path / "old", store) as server:
        peer = await confirmed_by_store(server, frames=1)
        reader = await server.consumer("s")
        for name, offset in (("a", 3), ("b", 5), ("a", 7), ("gone", 1)):
            await reader.send(c.StoreOffset(name, "s", offset))
        answer = await reader.ask(c.QueryOffset, "a", "s")
        assert answer.offset == 7
        stream = server.host.find("s")
        async with stream.opened():
            await stream.set_offset("set", 9)
            assert await stream.delete_offset("gone")
        lost = copy_of(store)
    async with tiered(tmp_path / "new", lost, restore=True) as server:
        peer = await server.peer()
        found = [await peer.ask(c.QueryOffset, name, "s") for name in ("a", "b", "set", "gone")]
        assert [answer.offset for answer in found[:3]] == [7, 5, 9]
        assert found[3].code == ResponseCode.NO_OFFSET
        await tier_of(server).confirms.shorten()  # of the earlier log
        again = copy_of(lost)
        assert not [key for key in slots(again) if "/1/" in key][1:]
    async with tiered(tmp_path / "third", again, restore=True) as server:
        peer = await server.peer()
        assert (await peer.ask(c.QueryOffset, "set", "s")).offset == 9


async def test_an_opening_that_fails_loses_no_offset(
    tmp_path: Path, store: FakeStore, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await confirmed_by_store(server, frames=1)
    stream = server.host.find("s")
    async with stream.opened():
        await stream.set_offset("a", 9)
    patience = "streamd.broker.tier.tier._CATCH_UP_SECONDS"
    monkeypatch.setattr(patience, 0)
    async with elsewhere(tmp_path, store) as new:
        peer = await new.peer()
        assert (await peer.ask(c.QueryOffset, "a", "s")).code == ResponseCode.STREAM_NOT_AVAILABLE
        monkeypatch.setattr(patience, 10)
        await passes(10)
        assert (await peer.ask(c.QueryOffset, "a", "s")).offset == 9


async def test_a_stream_that_was_deleted_stays_so(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path / "old", store) as server:
        peer = await confirmed_by_store(server, frames=1)
        assert await peer.code(c.Delete, "s") == OK
        await passes(5)
        peer = await confirmed_by_store(server)
        await peer.store([b"another"])
        lost = copy_of(store)
        assert await peer.code(c.Delete, "s") == OK
        await passes(5)
    async with tiered(tmp_path / "new", lost, restore=True) as server:
        assert await all_of(server) == [b"another"]
    async with tiered(tmp_path / "none", copy_of(store), restore=True) as server:
        assert server.host.names() == []


# -- a start on the same disk


async def test_what_the_disk_has_lost_is_put_back(tmp_path: Path, store: FakeStore) -> None:
    """A power failure takes any part of what was not flushed; the tier has it."""
    async with tiered(tmp_path / "old", store) as server:
        peer = await confirmed_by_store(server)
        for first in range(0, 100, 20):
            await peer.store(bodies(first), first + 1)
        shutil.copytree(tmp_path / "old", tmp_path / "copy")
    (segment,) = (tmp_path / "copy").glob("streams/*/*/*.segment")
    content = segment.read_bytes()
    for size in Random(1).sample(range(len(content)), 12):
        folder = tmp_path / f"at{size}"
        shutil.copytree(tmp_path / "copy", folder)
        (found,) = folder.glob("streams/*/*/*.segment")
        found.write_bytes(content[:size])
        for other in found.parent.glob("checkpoint"):
            other.unlink()  # it was written before
        async with tiered(folder, copy_of(store)) as server:
            assert await all_of(server) == bodies(0, 100)
            assert await _sequence(server) == 100
            peer = await confirmed_by_store(server)
            await peer.store(bodies(100), 101)
            assert await all_of(server) == bodies(0, 120)


async def test_a_start_reads_the_log_before_it_opens_a_stream(tmp_path: Path) -> None:
    """While the store is away the stream is not available, and says why."""
    store = FakeStore()
    async with tiered(tmp_path, store) as server:
        peer = await confirmed_by_store(server)
        await peer.store([b"1"])
    store.fail(times=-1)
    async with tiered(tmp_path, store) as server:
        peer = await server.peer()
        assert await peer.code(c.Subscribe, 1, "s", FIRST, 1, ()) != OK
        assert "cannot reach" in _reason(server)
        store.heal()
        await passes(60)
        assert await all_of(server) == [b"1"]


@pytest.mark.parametrize("number", [0, 1])
async def test_a_slot_that_is_damaged_is_not_the_end(tmp_path: Path, number: int) -> None:
    store = FakeStore()
    async with tiered(tmp_path, store) as server:
        peer = await confirmed_by_store(server)
        for first in range(0, 60, 20):
            await peer.store(bodies(first), first + 1)
            await passes(1)
    key = slots(store)[number]
    before = store.objects[key]
    store.flip(key, len(before.content) - 5)
    async with tiered(tmp_path, store) as server:
        peer = await server.peer()
        assert await peer.code(c.Subscribe, 1, "s", FIRST, 1, ()) != OK
        assert key in _reason(server)
        store.objects[key] = before
        await passes(100)
        assert await all_of(server) == bodies(0, 60)


async def test_files_of_another_time_are_not_gone_on_from(tmp_path: Path, store: FakeStore) -> None:
    """A backup was put there, and the log has been shortened since: messages are missing."""
    async with tiered(tmp_path / "old", store) as server:
        peer = await confirmed_by_store(server, frames=1)
        shutil.copytree(tmp_path / "old", tmp_path / "backup")
        await peer.store(bodies(20), 21)
        await tier_of(server).confirms.shorten()
        await peer.store(bodies(40), 41)
    async with tiered(tmp_path / "backup", store) as server:
        peer = await server.peer()
        assert await peer.code(c.Subscribe, 1, "s", FIRST, 1, ()) != OK
        assert "--restore" in _reason(server)


# -- another server


async def test_a_server_that_was_taken_over_confirms_nothing(tmp_path: Path) -> None:
    """Whenever it sleeps, before or after any of its requests, and however long."""
    for number in range(6):
        store, folder = FakeStore(), tmp_path / f"{number}"
        async with tiered(folder / "old", store) as old:
            peer = await confirmed_by_store(old, frames=1)
            with late_answers(store):
                count = 0

                def sleep(call: Call) -> float:
                    nonlocal count
                    count += WAL_FOLDER in call.key and call.name == "create"
                    return 100.0 if count == number // 2 + 1 else 0.0  # noqa: B023

                store.seconds = sleep
                for first in range(20, 60, 20):
                    await peer.publish(bodies(first), first + 1)
                    await passes(1)
                store.seconds = lambda _call: 0.0
                async with tiered(folder / "new", store, restore=True) as new:
                    found = await all_of(new)
                    told = [one for one in peer.unasked if isinstance(one, c.PublishConfirm)]
                    with trio.move_on_after(200):
                        while True:
                            told.append(await peer.expect(c.PublishConfirm))
                    ids = [one for confirm in told for one in confirm.publishing_ids]
                    assert max(ids, default=20) <= len(found)
                    assert found == bodies(0, len(found))


async def test_a_fence_is_never_deleted(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path, store) as server:
        await confirmed_by_store(server, frames=1)
    async with tiered(tmp_path, store) as server:
        await passes(30)
        await (await confirmed_by_store(server)).store(bodies(20), 21)
        await tier_of(server).confirms.shorten()
        (key,) = slots(store)
        slot, _ = decode_slot(key, store.objects[key].content)
        assert slot.is_fence
        assert (slot.epoch, slot.slot) == (1, 1)


# -- what is declared


async def test_what_was_declared_is_there_when_that_was_answered(tmp_path: Path) -> None:
    store = FakeStore()
    async with tiered(tmp_path / "old", store, confirm="store") as server:
        peer = await server.peer()
        for number in range(3):
            await peer.create(f"s{number}")
            lost = copy_of(store)
            async with tiered(tmp_path / f"{number}", lost, restore=True) as new:
                assert new.host.names() == [f"s{known}" for known in range(number + 1)]


async def test_many_changes_have_few_copies(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path, store, confirm="store") as server:
        await passes(5)
        with late_answers(store):
            store.seconds = lambda _call: 0.05
            before = store.count("create", LOG_FOLDER)
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon((await server.peer()).create, f"s{number}")
        assert 0 < store.count("create", LOG_FOLDER) - before < 10


# -- changes


async def test_confirming_is_changed_while_it_runs(
    tmp_path: Path, store: FakeStore, server: Harness
) -> None:
    """Each time all that was confirmed under the new rule is where that says."""
    number = 0
    peer = await server.publisher("s", is_new=True, reference="p")
    for where in ("store", "local", "store", "local", "store"):
        await peer.publish(bodies(number, 3), number + 1)
        await server.host.settings.set_arguments("s", [(CONFIRM, where)])
        await peer.publish(bodies(number + 3, 3), number + 4)
        await peer.confirmed(6)
        number += 6
        await passes(1)
    await peer.store(bodies(number, 1), number + 1)
    async with elsewhere(tmp_path, store) as new:
        assert await all_of(new) == bodies(0, number + 1)


async def test_offsets_go_along_with_changes(tmp_path: Path, store: FakeStore) -> None:
    """Those that this machine alone had are stored; later ones of its own are not undone."""
    async with tiered(tmp_path / "old", store) as server:
        peer = await server.publisher("s", is_new=True, reference="p")
        await peer.store(bodies(0))
        stream = server.host.find("s")
        async with stream.opened():
            await stream.set_offset("a", 3)
            await server.host.settings.set_arguments("s", [(CONFIRM, "store")])
            await peer.store(bodies(20), 21)
            await stream.set_offset("b", 4)
            lost = copy_of(store)
            await server.host.settings.set_arguments("s", [(CONFIRM, "local")])
            await peer.store(bodies(40), 41)
            await stream.set_offset("b", 44)
    async with tiered(tmp_path / "new", lost, restore=True) as server:
        peer = await server.peer()
        found = [(await peer.ask(c.QueryOffset, name, "s")).offset for name in "ab"]
        assert found == [3, 4]
    async with tiered(tmp_path / "old", store) as server:
        peer = await server.peer()
        assert (await peer.ask(c.QueryOffset, "b", "s")).offset == 44
        assert not list((tmp_path / "old").glob("streams/*/*/wal-*"))


async def test_a_stream_that_was_confirmed_by_the_store_needs_its_log(tmp_path: Path) -> None:
    """It confirms on its own now; what was confirmed before may be in the store alone."""
    store = FakeStore()
    async with tiered(tmp_path, store) as server:
        await confirmed_by_store(server, frames=1)
        await server.host.settings.set_arguments("s", [(CONFIRM, "local")])
        shutil.copytree(tmp_path, f"{tmp_path}-copy")
    (segment,) = Path(f"{tmp_path}-copy").glob("streams/*/*/*.segment")
    segment.write_bytes(segment.read_bytes()[:30])
    (segment.parent / "checkpoint").unlink(missing_ok=True)
    async with tiered(Path(f"{tmp_path}-copy"), store) as server:
        assert await all_of(server) == bodies(0)


async def test_without_a_tier_such_a_stream_is_not_available(tmp_path: Path) -> None:
    store = FakeStore()
    async with tiered(tmp_path, store) as server:
        await (await confirmed_by_store(server)).store([b"1"])
    async with tiered(tmp_path, store, tier="") as server:
        peer = await server.peer()
        assert await peer.code(c.Subscribe, 1, "s", FIRST, 1, ()) != OK
        assert "--tier" in _reason(server)


async def test_the_log_is_shortened_and_what_is_left_is_enough(
    tmp_path: Path, store: FakeStore, server: Harness
) -> None:
    peer = await confirmed_by_store(server)
    other = await confirmed_by_store(server, "t")
    await other.store(bodies(0, 3))
    for first in range(0, 100, 20):
        await peer.store(bodies(first), first + 1)
        await passes(1)
    await tier_of(server).confirms.shorten()
    assert slots(store) == []
    assert manifest_of(store, "s").next_offset == 100
    assert manifest_of(store, "t").next_offset == 3
    await peer.store(bodies(100), 101)
    assert len(slots(store)) == 1
    async with elsewhere(tmp_path, store) as new:
        assert await all_of(new) == bodies(0, 120)
        assert await all_of(new, "t") == bodies(0, 3)


async def test_the_log_is_shortened_as_segments_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is uploaded for it: it goes with segments that are full, and offsets with them."""
    monkeypatch.setattr("streamd.broker.tier.wal._LOOK_BYTES", 10_000)
    store, most = FakeStore(), 0
    async with tiered(tmp_path / "old", store) as server:
        peer = await confirmed_by_store(server, stream_max_segment_size_bytes="20000")
        stream = server.host.find("s")
        async with stream.opened():
            for number in range(60):
                await peer.store([b"x" * 1_000] * 4, number * 4 + 1)
                await stream.set_offset("a", number * 4)
                await passes(15)
                most = max(most, len(slots(store)))
                if number % 20 == 19:
                    lost = copy_of(store)
                    async with tiered(tmp_path / f"{number}", lost, restore=True) as new:
                        assert len(await all_of(new)) == (number + 1) * 4
                        asking = await new.peer()
                        answer = await asking.ask(c.QueryOffset, "a", "s")
                        assert answer.offset == number * 4
            assert 5 < most < 30
            assert len(manifest_of(store, "s").segments) > 5
            assert server.host.find("s").log.segments.shown[-1].num_chunks  # and is not sealed


@settings(max_examples=15)
@given(strategies.lists(strategies.integers(0, 5), min_size=1, max_size=12), strategies.randoms())
def test_whatever_the_store_does_what_was_confirmed_is_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], random: Random
) -> None:
    """Answers are lost, late or refused; the log is shortened; machines are lost meanwhile."""

    async def run() -> None:
        folder = tmp_path_factory.mktemp("random")
        store, number, machine = FakeStore(), 0, 0
        pending = list(steps)
        while pending:
            async with tiered(folder / f"{machine}", store, restore=machine > 0) as server:
                if "s" in server.host.names():
                    found = await all_of(server)
                    assert found == bodies(0, len(found))
                    assert len(found) >= number
                    number = len(found)
                assert "s" in server.host.names() or not number
                peer = await confirmed_by_store(server)
                while pending:
                    step = pending.pop()
                    if step == 0:
                        store.fail(after=random.random() < 0.5, times=random.randrange(1, 4))
                    elif step == 1:
                        with suppress(TierError):
                            await tier_of(server).confirms.shorten()
                    elif step == 2:
                        store, machine = copy_of(store), machine + 1
                        break
                    else:
                        count = random.randrange(1, 30)
                        await peer.store(bodies(number, count), number + 1)
                        number += count

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
