"""The catalog is in the store as it is here, some moments later."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from segments.store.object_names import CATALOG_FOLDER
from segments.store.object_store import TierError
from streamd.broker.catalog.catalog import Catalog
from streamd.broker.tier.catalog_copy import CatalogCopies, compact_copy
from streamd.broker.tier.claims import FencedError, claim, look
from streamd.broker.tier.identity import Identity
from tests.support.fake_store import FakeStore, late_answers
from tests.support.server import Harness, harness


def _catalog_in(store: FakeStore, folder: Path) -> Catalog:
    """The copy that the cluster object names, opened."""
    held = look(store)
    assert held is not None
    assert held.cluster.catalog is not None
    folder.mkdir(exist_ok=True)
    Path(folder, "catalog.sqlite").write_bytes(store.get(held.cluster.catalog.key).content)
    return Catalog(str(folder))


class _Copied:
    def __init__(self, server: Harness, store: FakeStore) -> None:
        self.me = Identity("a" * 16, 7, "1" * 16)
        self.fenced: list[FencedError] = []
        self.copies = CatalogCopies(str(server.data), store, lambda: self.me, self.fenced.append)


@asynccontextmanager
async def _copying(server: Harness, store: FakeStore) -> AsyncIterator[_Copied]:
    copied = _Copied(server, store)
    claim(store, copied.me)
    server.server.broker.catalog.tell(copied.copies.changed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(copied.copies.run)
        yield copied
        nursery.cancel_scope.cancel()


async def test_what_is_changed_is_in_the_store_soon(tmp_path: Path) -> None:
    store = FakeStore()
    async with harness(tmp_path / "a") as server, _copying(server, store) as copied:
        peer = await server.peer()
        await trio.sleep(2)
        assert not copied.copies.is_behind
        before = store.count("put")
        for n in range(20):
            await peer.create(f"s{n}")
        assert copied.copies.is_behind
        await trio.sleep(2)
        assert store.count("put") == before + 1  # for all of them
        catalog = _catalog_in(store, tmp_path / "copy")
        assert len(catalog.streams()) == 20
        assert [user.name for user in catalog.users()] == ["guest"]
        catalog.close()
        await trio.sleep(60)
        assert store.count("put") == before + 1  # nothing has changed


async def test_two_copies_are_kept(tmp_path: Path) -> None:
    store = FakeStore()
    async with harness(tmp_path) as server, _copying(server, store):
        peer = await server.peer()
        for n in range(5):
            await peer.create(f"s{n}")
            await trio.sleep(5)
    names = sorted(key for key in store.objects if key.startswith(CATALOG_FOLDER))
    assert [name.split("/")[-1].split(".")[0] for name in names] == ["5", "6"] or len(names) == 2


async def test_what_could_not_be_removed_is_removed_later(tmp_path: Path) -> None:
    store = FakeStore()
    async with harness(tmp_path) as server, _copying(server, store):
        peer = await server.peer()
        await trio.sleep(2)
        store.fail(TierError("refused"), name="delete", times=3)
        for n in range(4):
            await peer.create(f"s{n}")
            await trio.sleep(3)
        assert sum(key.startswith(f"{CATALOG_FOLDER}/") for key in store.objects) > 2
        await trio.sleep(60)
        assert sum(key.startswith(f"{CATALOG_FOLDER}/") for key in store.objects) == 2


async def test_a_store_that_is_away_is_asked_again(tmp_path: Path) -> None:
    store = FakeStore()
    async with harness(tmp_path / "a") as server, _copying(server, store) as copied:
        await trio.sleep(2)
        peer = await server.peer()
        store.fail(times=7)
        await peer.create("s")
        await trio.sleep(10)
        assert copied.copies.is_behind
        await trio.sleep(200)
        assert not copied.copies.is_behind
        catalog = _catalog_in(store, tmp_path / "copy")
        assert [row.name for row in catalog.streams()] == ["s"]
        catalog.close()


async def test_an_answer_that_is_lost_does_no_harm(tmp_path: Path) -> None:
    for lost in ("put", "replace", "delete"):
        store = FakeStore()
        async with harness(tmp_path / lost) as server, _copying(server, store) as copied:
            store.fail(name=lost, after=True, times=2)
            peer = await server.peer()
            await peer.create("s")
            await trio.sleep(100)
            assert not copied.copies.is_behind
            assert not copied.fenced
            catalog = _catalog_in(store, tmp_path / f"copy-{lost}")
            assert [row.name for row in catalog.streams()] == ["s"]
            catalog.close()


async def test_a_fenced_server_copies_nothing(tmp_path: Path) -> None:
    store = FakeStore()
    async with harness(tmp_path / "a") as server, _copying(server, store) as copied:
        await trio.sleep(2)
        claim(store, Identity("b" * 16, 3, "2" * 16), takes_over=True)
        before = look(store)
        peer = await server.peer()
        await peer.create("s")
        await trio.sleep(60)
        assert look(store) == before
        assert len(copied.fenced) == 1
        assert copied.copies.is_fenced


def test_a_copy_has_nothing_that_was_removed(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path))
    secret = "a hash that was replaced " * 4
    for n in range(500):
        catalog.apply(lambda t, n=n: t.add_virtual_host(f"{secret} {n}"))  # type: ignore[misc]
    for n in range(500):
        catalog.apply(lambda t, n=n: t.remove_virtual_host(f"{secret} {n}"))  # type: ignore[misc]
    content = compact_copy(str(tmp_path))
    assert b"replaced" not in content
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "catalog.sqlite").write_bytes(content)
    copy = Catalog(str(tmp_path / "copy"))
    assert copy.contents() == catalog.contents()
    with sqlite3.connect(tmp_path / "copy" / "catalog.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    copy.close()
    catalog.close()


async def test_a_catalog_that_cannot_be_read_is_tried_again(tmp_path: Path) -> None:
    store = FakeStore()
    async with harness(tmp_path) as server:
        copied = _Copied(server, store)
        claim(store, copied.me)
        path = tmp_path / "catalog.sqlite"
        path.rename(tmp_path / "aside")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(copied.copies.run)
            await trio.sleep(3)
            assert copied.copies.is_behind
            (tmp_path / "aside").rename(path)
            await trio.sleep(60)
            assert not copied.copies.is_behind
            nursery.cancel_scope.cancel()


async def test_a_copy_is_not_named_without_a_claim(tmp_path: Path) -> None:
    store = FakeStore()
    async with harness(tmp_path) as server:
        copied = _Copied(server, store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(copied.copies.run)
            await trio.sleep(20)
            assert copied.copies.is_behind
            assert not store.objects
            nursery.cancel_scope.cancel()


async def test_a_store_that_hangs_keeps_no_server_from_ending(tmp_path: Path) -> None:
    store = FakeStore()
    async with harness(tmp_path / "a") as server:
        with late_answers(store):
            async with _copying(server, store):
                store.seconds = lambda _call: 3_600.0
                await trio.sleep(5)
                ends_at = trio.current_time()
            assert trio.current_time() < ends_at + 1


async def test_the_object_that_names_the_copy_is_gone(tmp_path: Path) -> None:
    """It is waited for: nothing is stored meanwhile, and once it is back, it names a copy soon."""
    store = FakeStore()
    async with harness(tmp_path / "a") as server, _copying(server, store) as copied:
        await trio.sleep(2)
        cluster = store.objects.pop("v1/cluster")
        before = dict(store.objects)
        copied.copies.changed()
        await trio.sleep(60)
        assert store.objects == before
        store.objects["v1/cluster"] = cluster
        await trio.sleep(60)
        assert _catalog_in(store, tmp_path / "copy").virtual_hosts()
