"""The log in the store has the catalog as it is here: soon, whatever fails, and of one server."""

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from segments.checksum import crc32
from segments.store.cluster import CatalogCopy, EarlierRoot
from segments.store.metadata_log import look
from segments.store.object_names import CLUSTER, SNAPSHOT_FOLDER
from segments.store.object_store import TierError
from streamd.broker.catalog.catalog import Catalog
from streamd.broker.catalog.unlogged import Unlogged, packed
from streamd.broker.tier import catalog_log, claims
from streamd.broker.tier.claims import claim
from streamd.broker.tier.folding import make_catalog
from streamd.broker.tier.identity import Identity
from streamd.operations.tier_reports import TierState
from tests.broker.tier.support import held_of, passes, tier_of, tiered
from tests.support.fake_store import Call, FakeStore
from tests.support.server import Harness, work_beside
from tests.support.tiers import earlier_root

Rows = dict[str, object]


def rows_here(data: Path) -> Rows:
    """What the catalog of a data folder says."""
    with closing(Catalog(str(data))) as catalog:
        found = {**catalog.contents()._asdict(), "users": catalog.users()}
        return found | {"permissions": catalog.permissions()}


async def rows_there(store: FakeStore, folder: Path) -> Rows:
    """What the log says."""
    folder.mkdir()
    store.heal()
    store.before = store.after = lambda _call: None

    def read() -> Rows:
        found = claims.find(store)
        assert found is not None
        make_catalog(str(folder), found)
        return rows_here(folder)

    return work_beside(read)


def _revision(store: FakeStore) -> int:
    held = held_of(store)
    return held.cluster.revision


async def test_what_is_changed_is_in_the_store_soon(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path / "a", store) as server:
        peer = await server.peer()
        await passes(3)
        before = _revision(store)
        for n in range(20):
            await peer.create(f"s{n}")
        await passes(3)
        assert _revision(store) == before + 1  # all of them in one
        assert await rows_there(store, tmp_path / "b") == rows_here(tmp_path / "a")
        await passes(60)
        assert _revision(store) == before + 1  # nothing has changed


@pytest.mark.parametrize("is_known", [False, True])
async def test_what_is_changed_without_the_tier_is_in_the_store_later(
    tmp_path: Path, store: FakeStore, *, is_known: bool
) -> None:
    """Also what was there before the tier."""
    if is_known:
        async with tiered(tmp_path / "a", store):
            await passes(3)
    async with tiered(tmp_path / "a", store, tier="") as server:
        await (await server.peer()).create("s")
    async with tiered(tmp_path / "a", store):
        await passes(3)
    there = await rows_there(store, tmp_path / "b")
    assert there == rows_here(tmp_path / "a")
    assert there["streams"]


async def _changes(server: Harness) -> None:
    peer = await server.peer()
    await peer.create("s")
    await passes(2)
    await peer.create("t")
    await passes(2)


@pytest.mark.parametrize("is_after", [False, True])
async def test_a_request_that_fails_or_is_not_answered(tmp_path: Path, *, is_after: bool) -> None:
    """At each request: what is in the store in the end is what is here, each change once."""
    number, has_failed = 0, True
    while has_failed:
        store = FakeStore()
        number += 1
        store.fail(after=is_after, skip=number - 1)
        async with tiered(tmp_path / f"{number}", store) as server:
            await _changes(server)
            await passes(100)
            assert tier_of(server).ownership.state is TierState.OK, number
        there = await rows_there(store, tmp_path / f"{number}-there")
        assert there == rows_here(tmp_path / f"{number}"), number
        has_failed = len(store.calls) > number and number < 40
    assert number > 12


@pytest.mark.parametrize("step", ["take", "written", "state", "begin"])
async def test_a_server_that_ends_between_store_and_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The entry is there, and the notes are, too: it is met by the next start."""
    store, inner = FakeStore(), getattr(Unlogged, step)
    left = [0]

    def ends(self: Unlogged, *arguments: object) -> object:
        left[0] -= 1
        if left[0] <= 0:
            raise TierError("nothing comes back")
        return inner(self, *arguments)

    async with tiered(tmp_path / "a", store) as server:
        await passes(3)
        monkeypatch.setattr(Unlogged, step, ends)
        await _changes(server)
        await (await server.peer()).create("u")
        await passes(5)
    monkeypatch.undo()
    async with tiered(tmp_path / "a", store) as server:
        await (await server.peer()).create("v")
        await passes(10)
        assert tier_of(server).ownership.state is TierState.OK
    assert await rows_there(store, tmp_path / "b") == rows_here(tmp_path / "a")


async def test_snapshots_are_of_what_the_log_has(
    tmp_path: Path, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_log, "SNAPSHOT_REVISIONS", 3)
    async with tiered(tmp_path / "a", store) as server:
        peer = await server.peer()
        for n in range(15):
            await peer.create(f"s{n}")
            await passes(2)
        keys = sorted(key for key in store.objects if key.startswith(SNAPSHOT_FOLDER))
        assert len(keys) == 2
        here = rows_here(tmp_path / "a")
        assert await rows_there(store, tmp_path / "b") == here
        store.flip(keys[1], 200)  # what is damaged is passed over
        assert await rows_there(store, tmp_path / "c") == here
        store.flip(keys[0], 200)
        with pytest.raises(Exception, match="cannot be used"):
            await rows_there(store, tmp_path / "d")


async def test_a_server_that_was_taken_over_logs_nothing(tmp_path: Path, store: FakeStore) -> None:
    async with tiered(tmp_path / "a", store) as server:
        await passes(3)
        claim(store, Identity("b" * 16, 3, "2" * 16), takes_over=True)
        before = dict(store.objects)
        await (await server.peer()).create("s")
        await passes(5)
        assert tier_of(server).ownership.state is TierState.FENCED
        assert store.objects == before


async def test_a_folder_from_a_backup_gets_what_the_log_has(tmp_path: Path) -> None:
    """If the store is away at a start it says so later, logs nothing; the next one reads it."""
    store = FakeStore()
    async with tiered(tmp_path / "a", store) as server:
        await (await server.peer()).create("s")
        await passes(3)
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    async with tiered(tmp_path / "a", store) as server:
        await (await server.peer()).create("t")
        await passes(3)
    there = await rows_there(store, tmp_path / "there")
    store.fail(times=-1)
    async with tiered(tmp_path / "backup", store) as server:
        store.heal()
        await passes(90)
        assert tier_of(server).ownership.state is TierState.AWAY
        assert "restored from a backup" in tier_of(server).ownership.sentence
        revision = _revision(store)
        await (await server.peer()).create("u")
        await passes(10)
        assert _revision(store) == revision
    async with tiered(tmp_path / "backup", store) as server:
        await passes(10)
        assert tier_of(server).ownership.state is TierState.OK
        names = server.host.names()
        assert sorted(names) == ["s", "t", "u"]
    assert there["streams"] != rows_here(tmp_path / "backup")["streams"]
    assert await rows_there(store, tmp_path / "b") == rows_here(tmp_path / "backup")


@asynccontextmanager
async def _earlier(folder: Path, store: FakeStore) -> AsyncIterator[None]:
    """A tier as versions without a log have left it, and the folder of its server."""
    async with tiered(folder, store) as server:
        await (await server.peer()).create("s")
        await passes(3)
    held = held_of(store)
    with closing(Unlogged(str(folder)).copy()) as copy:
        content = packed(copy)
    catalog = CatalogCopy(4, held.cluster.epoch, "0" * 16, len(content), crc32(content))
    for key in [key for key in store.objects if "/~log/" in key or "/~snapshots/" in key]:
        del store.objects[key]
    store.put(catalog.key, content)
    store.delete([CLUSTER])
    store.create(CLUSTER, earlier_root(held.cluster, catalog))
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as db, db:
        for (name,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute("UPDATE log_state SET change = 0, state = ''")
    yield


@pytest.mark.parametrize("how", ["start", "restore"])
@pytest.mark.parametrize("is_after", [False, True])
async def test_an_earlier_tier_gets_a_log(tmp_path: Path, *, how: str, is_after: bool) -> None:
    """Whatever request fails, it is begun again, and goes on above all epochs that there were."""
    number, has_failed = 0, True
    while has_failed:
        store = FakeStore()
        number += 1
        folder = tmp_path / f"{number}"
        async with _earlier(folder, store):
            before = claims.look(store)
        assert before is not None
        assert isinstance(before.earlier, EarlierRoot)
        store.fail(after=is_after, skip=number - 1)
        new = folder if how == "start" else tmp_path / f"{number}-new"
        async with tiered(new, store, restore=how == "restore") as server:
            await passes(60)
            assert tier_of(server).ownership.state is TierState.OK, number
            assert server.host.names() == ["s"]
        after = look(store)
        assert after is not None
        assert after.earlier is None
        assert after.cluster.tier == before.cluster.tier
        assert after.cluster.epoch > before.cluster.epoch
        assert after.cluster.revision > before.cluster.revision
        assert await rows_there(store, tmp_path / f"{number}-there") == rows_here(new), number
        has_failed = number < 14


async def test_an_earlier_tier_cannot_be_read_only(tmp_path: Path, store: FakeStore) -> None:
    async with _earlier(tmp_path / "a", store):
        pass
    with pytest.raises(Exception, match="start the server that writes with this version first"):
        async with tiered(tmp_path / "b", store, read_only=True):
            pass


def _claim_for_a_copy(store: FakeStore) -> None:
    held = held_of(store)
    claim(store, Identity(held.cluster.writer, 50, "9" * 16))


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_two_writers_at_each_request(tmp_path: Path, moment: str) -> None:
    """A server on a copy of the folder takes the tier at each request of the first one."""
    number, has_met = 0, True
    while has_met:
        store, met = FakeStore(), list[Call]()
        number += 1
        folder = tmp_path / f"{number}"
        async with tiered(folder, store) as server:
            await passes(3)
        shutil.copytree(folder, tmp_path / f"{number}-copy")

        first = len(store.calls)

        def hook(
            call: Call,
            number: int = first + number,
            met: list[Call] = met,
            store: FakeStore = store,
        ) -> None:
            if call.number == number:
                met.append(call)
                _claim_for_a_copy(store)

        setattr(store, moment, hook)
        async with tiered(folder, store) as server:
            await _changes(server)
            await passes(70)
            if met:
                state = tier_of(server).ownership.state
                held = held_of(store)
                owner = tier_of(server).ownership.identity.start
                assert (state is TierState.FENCED) == (held.cluster.start != owner), number
        has_met = len(store.calls) > first + number
    assert number > 8
