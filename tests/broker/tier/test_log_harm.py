"""The log of metadata when things end half way, go elsewhere, are damaged, or are from a backup."""

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from segments.errors import FormatError
from segments.store.cluster import WalMark
from segments.store.metadata_log import Entry, Held, Row, after, encode_entry, find, look
from segments.store.object_names import (
    LOG_FOLDER,
    SNAPSHOT_FOLDER,
    entry_key,
    log_folder,
    snapshot_folder,
    snapshot_key,
)
from segments.store.object_store import TierError
from streamd.broker.catalog import unlogged
from streamd.broker.catalog.catalog import Catalog
from streamd.broker.catalog.schema import VERSION
from streamd.broker.catalog.unlogged import State, Unlogged
from streamd.broker.declared.rows import UserRow
from streamd.broker.tier import catalog_log, claims, folding
from streamd.broker.tier.identity import Identity
from streamd.operations.names import Name
from streamd.operations.tier_reports import TierState
from streamd.server import StartError
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair
from tests.broker.catalog.test_unlogged import logged
from tests.broker.tier.support import (
    A_FRAME,
    a_stream,
    all_of,
    bodies,
    confirmed_by_store,
    copy_of,
    held_of,
    manifest_of,
    passes,
    publish,
    publisher,
    tier_of,
    tiered,
)
from tests.broker.tier.test_catalog_log import _earlier
from tests.support.fake_store import Call, FakeStore
from tests.support.server import OK

_ME = Identity("a" * 16, 1, "1" * 16)


def _logged(store: FakeStore, held: Held, number: int) -> Held:
    for n in range(number):
        held = claims.put_rows(
            store, held, (Row("users", {"name": f"u{n}"}, None),), n + 1, VERSION
        )
    return held


@pytest.mark.parametrize("width", [1, 2, 40])
@pytest.mark.parametrize("is_known", [False, True])
def test_no_hole_is_taken_for_the_end(width: int, *, is_known: bool) -> None:
    store = FakeStore()
    held = claims.claim(store, _ME)
    end = _logged(store, held, 60)
    for n in range(width):
        del store.objects[entry_key(end.cluster.tier, held.cluster.revision + 3 + n)]
    before = dict(store.objects)
    me = _ME._replace(epoch=2, start="2" * 16, tier=held.cluster.tier, claimed=1)
    with pytest.raises(TierError, match="later ones are"):
        claims.examine(store, me, held if is_known else None)
    with pytest.raises(TierError, match="later ones are"):
        claims.claim(store, me._replace(name="b" * 16), takes_over=True)
    assert store.objects == before


def test_an_entry_of_another_epoch_cannot_follow(store: FakeStore) -> None:
    held = claims.claim(store, _ME)
    cluster = held.cluster
    entry = Entry(
        tier=cluster.tier, revision=cluster.revision + 1, epoch=1, writer=_ME.name, start="2" * 16
    )
    with pytest.raises(FormatError, match="does not have the tier there"):
        after(cluster, entry)


async def _names(folder: Path, store: FakeStore, **options: object) -> set[str]:
    async with tiered(folder, store, **options) as server:
        await passes(60)
        return {str(name) for name in server.host.names()}


async def test_a_restore_of_an_earlier_tier_that_ends_half_way(tmp_path: Path) -> None:
    """The old server does not take the log, that begins with less than it has, for its own."""
    store, old = FakeStore(), tmp_path / "old"
    async with _earlier(old, store):
        pass
    with closing(sqlite3.connect(old / "catalog.sqlite")) as db, db:
        db.execute("INSERT INTO virtual_hosts VALUES ('answered')")
    store.fail(name="create", key=LOG_FOLDER, times=-1)
    with pytest.raises(StartError):
        async with tiered(tmp_path / "new", store, restore=True):
            pass
    store.heal()
    async with tiered(old, store) as server:
        await passes(10)
        assert tier_of(server).ownership.state is TierState.FENCED
    with closing(sqlite3.connect(old / "catalog.sqlite")) as db:
        assert ("answered",) in db.execute("SELECT name FROM virtual_hosts").fetchall()
    assert "s" in await _names(tmp_path / "new", store, restore=True)


@pytest.mark.parametrize("killed_at", ["", "marks", "catalog"])
async def test_streams_that_a_backup_lacks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    killed_at: str,
) -> None:
    """What the store has of them is there; one of which it has nothing takes messages again."""
    store, backup = FakeStore(), tmp_path / "backup"
    async with tiered(tmp_path / "a", store):
        await passes(3)
    shutil.copytree(tmp_path / "a", backup)
    async with tiered(tmp_path / "a", store) as server:
        await (await server.peer()).create("unused")
        await publish(await a_stream(server, "uploaded"), 0, 12)
        await publish(await publisher(server, "local"), 0, 1)
        await publish(await confirmed_by_store(server, "wal"), 0, 2)
        await passes(30)
    stored = manifest_of(store, "uploaded").next_offset
    if killed_at:
        owner, name = (
            (folding, "write_unrestored") if killed_at == "marks" else (Unlogged, "follow")
        )
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                async with tiered(backup, store):
                    pass
    async with tiered(backup, store) as server:
        await passes(10)
        assert tier_of(server).ownership.state is TierState.OK
        assert await all_of(server, "uploaded") == bodies(0, stored)
        assert await all_of(server, "wal") == bodies(0, 40)
        for name in ("unused", "local", "wal", "uploaded"):
            peer = await server.publisher(name)
            await peer.store([b"new"], first_id=1)
        async with server.host.find("local").opened() as log:
            assert log.next_offset > 1 << 40  # readers may have seen what it had
    assert "the catalog lacked" in caplog.text


@pytest.mark.parametrize("is_uploaded", [False, True])
async def test_a_stream_that_a_backup_lacks_gets_nothing_of_an_earlier_one(
    tmp_path: Path, store: FakeStore, *, is_uploaded: bool
) -> None:
    """That one was deleted, and slots still have its messages."""
    backup = tmp_path / "backup"
    async with tiered(tmp_path / "a", store):
        await passes(3)
    shutil.copytree(tmp_path / "a", backup)
    async with tiered(tmp_path / "a", store) as server:
        await publish(await a_stream(server, stream_confirm="store"), 0, 2)
        assert await (await server.peer()).code(c.Delete, "s") == OK
        await publish(await a_stream(server), 0, int(is_uploaded))
        if is_uploaded:
            await tier_of(server).upload(server.host.name, [Name("s")], 60)
        await passes(3)
    async with tiered(backup, store, confirm="store") as server:
        peer = await server.peer()
        await peer.declare("s")
        await peer.store([b"new"], first_id=1)
        assert await all_of(server) == [*bodies(0, A_FRAME * is_uploaded), b"new"]


@pytest.mark.parametrize("confirm", ["store", "local"])
async def test_a_stream_that_a_backup_lacks_is_the_one_that_was_created_last(
    tmp_path: Path, store: FakeStore, confirm: str
) -> None:
    """What the store has of an earlier one was about to go when the machine was lost."""
    backup = tmp_path / "backup"
    async with tiered(tmp_path / "a", store):
        await passes(3)
    shutil.copytree(tmp_path / "a", backup)
    async with tiered(tmp_path / "a", store) as server:
        await confirmed_by_store(server, frames=2)
        await tier_of(server).upload(server.host.name, [Name("s")], 60)
        store.fail(name="replace", key="/manifest", times=-1)
        assert await (await server.peer()).code(c.Delete, "s") != OK
        peer = await publisher(server, stream_confirm=confirm)
        await peer.store([b"new"], first_id=1)
        await passes(3)
        lost = copy_of(store)
    async with tiered(backup, lost) as server:
        assert await all_of(server) == [b"new"][: confirm == "store"]


async def test_what_the_store_has_confirmed_of_a_stream_that_a_backup_lacks(
    tmp_path: Path, store: FakeStore
) -> None:
    """Its messages are confirmed by the machine since."""
    backup = tmp_path / "backup"
    async with tiered(tmp_path / "a", store):
        await passes(3)
    shutil.copytree(tmp_path / "a", backup)
    async with tiered(tmp_path / "a", store) as server:
        peer = await confirmed_by_store(server, frames=2)
        await peer.ask(
            c.Manage, "stream.set", (Pair("stream", "s"), Pair("stream-confirm", "local"))
        )
        await passes(3)
    async with tiered(backup, store) as server:
        assert await all_of(server) == bodies(0, 2 * A_FRAME)


async def test_marks_alone_bring_a_snapshot(
    tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_log, "SNAPSHOT_REVISIONS", 3)
    async with tiered(tmp_path, store) as server:
        await (await server.peer()).create("s")
        await passes(3)
        for n in range(9):
            await tier_of(server).ownership.mark_wals(lambda _, n=n: (WalMark(1, n + 1),))  # type: ignore[misc]
            await passes(3)
    found = find(store)
    assert found is not None
    assert found.snapshot is not None
    assert found.held.cluster.revision - found.snapshot.head.cluster.revision <= 3


async def test_a_backup_that_is_far_behind_reads_a_snapshot(
    tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted since goes, what was declared comes."""
    monkeypatch.setattr(catalog_log, "SNAPSHOT_REVISIONS", 3)
    monkeypatch.setattr(claims, "_FAR", 3)
    async with tiered(tmp_path / "a", store) as server:
        await (await server.peer()).create("gone")
        await passes(3)
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    async with tiered(tmp_path / "a", store) as server:
        peer = await server.peer()
        await server.host.delete(Name("gone"), lambda: None)
        for n in range(12):
            await peer.create(f"s{n}")
            await passes(2)
    store.calls.clear()
    assert await _names(tmp_path / "backup", store) == {f"s{n}" for n in range(12)}
    assert sum(call.name == "get" and LOG_FOLDER in call.key for call in store.calls) < 12


async def test_a_tier_that_was_begun_where_that_was_asked_for_and_not_claimed(
    tmp_path: Path,
) -> None:
    old, new = FakeStore(), FakeStore()
    async with tiered(tmp_path, old) as server:
        await (await server.peer()).create("s")
        await passes(3)
    (tmp_path / "begin-tier").touch()
    new.fail(name="create", key=LOG_FOLDER)
    async with tiered(tmp_path, new) as server:
        await passes(100)
        assert tier_of(server).ownership.state is TierState.OK
    assert not (tmp_path / "begin-tier").exists()


async def test_snapshots_of_another_tier_are_nobodys(
    tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_log, "SNAPSHOT_REVISIONS", 3)
    for n in (5_000, 6_000):
        store.put(snapshot_key("another", n, "0" * 16), b"of another tier")
    async with tiered(tmp_path / "a", store) as server:
        for n in range(8):
            await (await server.peer()).create(f"s{n}")
            await passes(2)
    assert await _names(tmp_path / "b", store, restore=True) == {f"s{n}" for n in range(8)}


async def test_what_is_changed_before_the_tier_is_seen_is_kept(tmp_path: Path) -> None:
    """In a data folder from before the log, or from a backup: it is not in any entry."""
    store = FakeStore()
    async with _earlier(tmp_path / "a", store):
        pass
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    async with tiered(tmp_path / "a", store) as server:
        for n in range(5):
            await (await server.peer()).create(f"t{n}")
            await passes(2)
    store.fail(times=-1)
    async with tiered(tmp_path / "backup", store) as server:
        await (await server.peer()).create("answered")
        store.heal()
        await passes(60)
    names = {"s", "answered"} | {f"t{n}" for n in range(5)}
    assert await _names(tmp_path / "backup", store) == names
    assert await _names(tmp_path / "new", store, restore=True) == names


@pytest.fixture
def notes(tmp_path: Path) -> Unlogged:
    """Of a catalog with nothing in it."""
    Catalog(str(tmp_path)).close()
    made = Unlogged(str(tmp_path))
    made.begin("1")
    return made


def _with_user(folder: Path, name: str, text: str) -> None:
    with closing(Catalog(str(folder))) as catalog:
        catalog.apply(lambda t: t.put_user(UserRow(Name(name), text, ())))


def _state(store: FakeStore) -> State:
    held = held_of(store)
    return State(held)


def test_changes_of_two_lives_are_not_compared(tmp_path: Path) -> None:
    """By number: that of the backup is smaller, and later."""
    state = _state_of_a_claim()
    now, backup = tmp_path / "now", tmp_path / "backup"
    now.mkdir()
    Catalog(str(now)).close()
    Unlogged(str(now)).begin("1")
    _with_user(now, "ann", "first")
    Unlogged(str(now)).written(state, Unlogged(str(now)).count())
    shutil.copytree(now, backup)
    for n in range(5):
        _with_user(now, "ann", f"{n}")
    entry = logged(Unlogged(str(now)).take(), 2)
    notes = Unlogged(str(backup))
    notes.begin("2")
    with closing(Catalog(str(backup))) as catalog:
        catalog.apply(lambda t: t.remove_user("ann"))
        notes.follow([entry], state)
        assert [str(user.name) for user in catalog.users()] == []
    assert [(row.key, row.values) for row in notes.take().rows] == [({"name": "ann"}, None)]


def _state_of_a_claim() -> State:
    store = FakeStore()
    claims.claim(store, _ME)
    return _state(store)


def test_what_is_changed_while_an_entry_is_on_its_way_is_in_the_next(
    tmp_path: Path, notes: Unlogged
) -> None:
    _with_user(tmp_path, "ann", "first")
    taken = notes.take()
    _with_user(tmp_path, "ann", "second")
    _with_user(tmp_path, "bob", "third")
    notes.written(_state_of_a_claim(), taken.change)
    assert [row.key["name"] for row in notes.take().rows] == ["ann", "bob"]


def test_a_key_that_becomes_another_is_noted_with_both(tmp_path: Path, notes: Unlogged) -> None:
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as db, db:
        db.execute("INSERT INTO virtual_hosts VALUES ('a')")
    notes.written(_state_of_a_claim(), notes.count())
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as db, db:
        db.execute("UPDATE virtual_hosts SET name = 'b' WHERE name = 'a'")
    found = {row.key["name"]: row.values for row in notes.take().rows}
    assert found == {"a": None, "b": {}}


def test_an_entry_can_be_read_whatever_names_are_made_of(
    tmp_path: Path, notes: Unlogged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unlogged, "MOST_TAKEN", 50_000)
    with closing(Catalog(str(tmp_path))) as catalog:
        for n in range(200):
            catalog.apply(lambda t, n=n: t.add_virtual_host("\U0001f4ab" * 200 + str(n)))  # type: ignore[misc]
    taken = notes.take()
    assert 1 < len(taken.rows) < 200
    assert len(encode_entry(logged(taken, 1))) < 2 * 50_000


async def test_the_first_snapshot_goes_elsewhere(tmp_path: Path) -> None:
    """Something else is mounted for that one request."""
    store, elsewhere = FakeStore(), FakeStore()
    async with _earlier(tmp_path / "a", store):
        pass
    right, is_done = store.objects, False

    def is_snapshot(call: Call) -> bool:
        return not is_done and call.name == "put" and SNAPSHOT_FOLDER in call.key

    def leave(call: Call) -> None:
        if is_snapshot(call):
            store.objects = elsewhere.objects

    def come_back(call: Call) -> None:
        nonlocal is_done
        if is_snapshot(call):
            store.objects, is_done = right, True

    store.before, store.after = leave, come_back
    async with tiered(tmp_path / "a", store) as server:
        await passes(30)
        assert tier_of(server).ownership.state is TierState.OK
        await (await server.peer()).create("later")
        await passes(10)
    assert elsewhere.objects
    assert await _names(tmp_path / "b", store, restore=True) == {"s", "later"}


@pytest.mark.parametrize("harm", ["damaged", "missing", "behind", "another's"])
async def test_a_snapshot_is_enough(
    tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """The entry that it is as of is damaged or gone, alone or with those behind it."""
    monkeypatch.setattr(catalog_log, "SNAPSHOT_REVISIONS", 3)
    async with tiered(tmp_path / "a", store) as server:
        for n in range(11):
            await (await server.peer()).create(f"s{n}")
            await passes(2)
    held = held_of(store)
    tier, end = held.cluster.tier, held.cluster.revision
    newest = max(key for key in store.objects if key.startswith(snapshot_folder(tier)))
    revision = int(newest.rpartition("/")[2].partition(".")[0])
    wanted = {f"s{n}" for n in range(11)}
    if harm == "damaged":
        store.flip(entry_key(tier, revision), 50)
    elif harm == "another's":  # is passed over
        store.objects[snapshot_key(tier, end + 9, "0" * 16)] = store.objects[newest]
    else:
        last = revision if harm == "missing" else end
        for at in range(revision, last + 1):
            del store.objects[entry_key(tier, at)]
    found = await _names(tmp_path / "b", store, restore=True)
    assert found == wanted if harm != "behind" else found <= wanted
    assert look(store) is not None


async def test_a_new_folder_asks_for_the_root_alone(tmp_path: Path, store: FakeStore) -> None:
    _logged(store, claims.claim(store, _ME), 50)
    store.calls.clear()
    with pytest.raises(StartError, match="belongs to another server"):
        async with tiered(tmp_path, store):
            pass
    assert len(store.calls) == 1


async def test_what_another_start_logged_just_before_the_claim(tmp_path: Path) -> None:
    """Two processes on copies of one folder: the later one lacks an end that was answered."""
    store = FakeStore()
    async with tiered(tmp_path / "a", store) as server:
        await (await server.peer()).create("secret")
        await passes(3)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    async with tiered(tmp_path / "a", store):
        await passes(5)
    is_done = False

    def before(call: Call) -> None:
        nonlocal is_done
        if call.name == "create" and LOG_FOLDER in call.key and not is_done:
            is_done = True
            held, row = look(store), Row("streams", {"virtual_host": "/", "name": "secret"}, None)
            assert held is not None
            claims.put_rows(store, held, (row,), 99, VERSION)

    store.before = before
    async with tiered(tmp_path / "b", store) as server:
        await passes(60)
        assert tier_of(server).ownership.state is TierState.AWAY
        assert "Restart the server" in tier_of(server).ownership.sentence
    store.before = lambda _: None
    assert await _names(tmp_path / "b", store) == set()


async def test_nothing_is_logged_in_another_store(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path, store) as server:
        await passes(5)
        right, store.objects = store.objects, {}
        await (await server.peer()).create("s")
        await passes(30)
        assert not [key for key in store.objects if key.startswith(LOG_FOLDER)]
        store.objects = right
        await passes(60)
        with suppress(StopIteration):
            held = held_of(store)
            assert any(key.startswith(log_folder(held.cluster.tier)) for key in store.objects)
    assert await _names(tmp_path / "new", store, restore=True) == {"s"}
