"""The catalog as a file: all of a change or nothing, whatever other programs do with it."""

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from streamd.broker.catalog import catalog as catalog_module
from streamd.broker.catalog.catalog import Catalog, CatalogError
from streamd.broker.catalog.transaction import Transaction
from streamd.broker.declared.rows import StreamRow, UserRow
from streamd.broker.declared.standing_selectors import StandingSelector
from streamd.net.turns import Stepwise
from streamd.operations.argument_kinds import Age
from streamd.operations.arguments import filter_properties, policy_of
from streamd.operations.routing import Binding, ExchangeRow, as_super_stream
from streamd.wire.stream import commands as c
from tests.support.server import OK, harness, with_peer


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = Catalog(str(tmp_path))
    yield opened
    opened.close()


def add(name: str) -> catalog_module.Change:
    return lambda rows: rows.put_user(UserRow(name, "", ()))


def names(catalog: Catalog) -> list[str]:
    return [user.name for user in catalog.users()]


def test_its_files_are_not_for_everybody(catalog: Catalog, tmp_path: Path) -> None:
    catalog.apply(add("a"))
    modes = {file.name: file.stat().st_mode & 0o007 for file in tmp_path.iterdir()}
    assert modes == {f"catalog.sqlite{suffix}": 0 for suffix in ("", "-shm", "-wal")}


def test_a_change_that_fails_leaves_nothing(catalog: Catalog) -> None:
    def half(rows: Transaction) -> None:
        rows.add_streams([StreamRow("/", "s", {})])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        catalog.apply(add("a"), half)
    assert (names(catalog), catalog.streams()) == ([], [])
    with pytest.raises(CatalogError, match="UNIQUE constraint"):
        catalog.apply(add("b"), lambda rows: rows.add_streams([StreamRow("/", "s", {})] * 2))
    assert (names(catalog), catalog.streams()) == ([], [])
    catalog.apply(add("c"))
    assert names(catalog) == ["c"]


@pytest.fixture
def writer(catalog: Catalog, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another program, in the middle of writing: no commit can be made meanwhile."""
    catalog.apply(*map(add, ["a", "b", "c"]))
    db = sqlite3.connect(tmp_path / "catalog.sqlite", check_same_thread=False, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    yield db
    db.close()


def test_a_commit_that_fails_leaves_nothing(
    tmp_path: Path,
    catalog: Catalog,
    writer: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog_module, "_PATIENCE_SECONDS", 0)
    for _ in range(2):
        with pytest.raises(CatalogError, match="database is locked"):
            catalog.apply(add("d"))
        assert names(catalog) == ["a", "b", "c"]
    writer.execute("ROLLBACK")
    catalog.apply(add("e"))
    assert names(catalog) == ["a", "b", "c", "e"]
    other = Catalog(str(tmp_path))
    assert names(other) == names(catalog)
    other.close()


def test_a_commit_waits_for_other_programs(
    catalog: Catalog, writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog._db.execute("PRAGMA busy_timeout = 10")
    tries: list[None] = []
    once = catalog._apply_once
    monkeypatch.setattr(catalog, "_apply_once", lambda c: (tries.append(None), once(c))[1])
    timer = threading.Timer(0.2, writer.execute, ["ROLLBACK"])
    timer.start()
    catalog.apply(add("d"))
    timer.join()
    assert names(catalog) == ["a", "b", "c", "d"]
    assert len(tries) > 1


# -- older versions


_ORDER = "x-stream-partition-order"
_PARTITIONS = [
    Binding("/", "super", "p-1", False, "b", {_ORDER: 0}, 0),
    Binding("/", "super", "p-0", False, "a", {_ORDER: 1}, 1),
    Binding("/", "super", "p-1", False, "again", {_ORDER: 5}, 5),
]
_OTHERS = [Binding("other", "super", "o", False, "0", {_ORDER: 0}, 0)]
_SUPER_STREAMS = [as_super_stream("/", "empty"), as_super_stream("/", "super")]
_EXCHANGES = [
    ExchangeRow("/", "x", "topic", True, True, False, ""),
    ExchangeRow("/", "y", "headers", True, False, True, "super"),
]


@contextmanager
def database(folder: Path) -> Iterator[sqlite3.Connection]:
    """The file of a catalog, for another program."""
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as db, db:
        yield db


def write_old(folder: Path, version: int) -> None:
    """A catalog as a program that knew this version wrote it."""
    vector = Path(__file__).parents[2] / "vectors" / "catalogs" / f"version-{version}.sql"
    with database(folder) as db:
        db.executescript(vector.read_text())


@pytest.mark.parametrize("version", range(1, 9))
def test_an_older_catalog_is_taken_over(tmp_path: Path, version: int) -> None:
    write_old(tmp_path, version)
    for _ in range(2):
        catalog = Catalog(str(tmp_path))
        found, users, permissions = catalog.contents(), catalog.users(), catalog.permissions()
        catalog.close()
        settings = {"max-age": ""} if version >= 4 else {}
        streams = [("/", f"p-{n}", {}, {}, True) for n in range(3)]
        streams.append(("/", "s", {"max-age": Age("1h", 3600)}, settings, True))
        selectors = {("/", "s"): [StandingSelector("g", "union", "a = 1", 7)]}
        if version == 1:
            assert found == (["/"], streams, {}, [], [])
            assert (users, permissions) == ([], [])
            continue
        assert found.virtual_hosts == ["/", "other"]
        assert [str(age) for row in found.streams for age in row.arguments.values()] == ["1h"]
        assert found.streams == [*streams, ("other", "o", {}, {}, True)]
        assert found.selectors == (selectors if version >= 3 else {})
        exchanges = _EXCHANGES if version >= 5 else []
        assert found.exchanges == [*_SUPER_STREAMS, *exchanges, as_super_stream("other", "super")]
        if version < 5:
            assert found.bindings == [*_PARTITIONS, *_OTHERS]
        else:
            assert found.bindings == [
                Binding("/", "amq.fanout", "s", False, "k", {}),
                *_PARTITIONS,
                Binding("/", "super", "y", True, "a", {}),
                Binding("/", "x", "s", False, "a.#", {}),
                Binding("/", "x", "super", True, "#", {}),
                Binding("/", "y", "s", False, "", {"a": 1.0}),
                Binding("/", "y", "s", False, "", {"a": 1}),
                *_OTHERS,
            ]
        assert [user.name for user in users] == ["guest"]
        assert permissions == [("guest", "/", ".*", ".*", ".*")]


def test_ages_of_an_older_catalog_get_their_unit(tmp_path: Path) -> None:
    write_old(tmp_path, 6)
    with database(tmp_path) as db:
        for seconds in (1, 90, 120, 3_600, 86_400, 864_000, 31_536_000):
            text = f'{{"max-age": {seconds}, "max-length-bytes": {seconds}}}'
            row = ("/", f"{seconds}", text, text)
            db.execute("INSERT INTO streams VALUES (?, ?, ?, ?)", row)
    with closing(Catalog(str(tmp_path))) as catalog:
        found = {row.name: row for row in catalog.streams() if row.name.isdigit()}
    ages = {name: str(row.arguments["max-age"]) for name, row in found.items()}
    assert ages == {
        "1": "1s",
        "90": "90s",
        "120": "2m",
        "3600": "1h",
        "86400": "1D",
        "864000": "10D",
        "31536000": "365D",
    }
    for name, row in found.items():
        assert row.arguments == row.settings
        assert policy_of(row.arguments).max_age_ms == int(name) * 1000
        assert row.arguments["max-length-bytes"] == int(name)


def test_a_comma_in_a_filter_property_of_an_older_catalog_stays_part_of_it(tmp_path: Path) -> None:
    write_old(tmp_path, 7)
    with database(tmp_path) as db:
        for name in ("region", "a,b", "[a,b]", "a],b", "[x]"):
            text = json.dumps({"stream-filter-property": name, "max-age": "1h"})
            db.execute("INSERT INTO streams VALUES ('/', ?, ?, '{}', 1)", (f"of {name}", text))
    with closing(Catalog(str(tmp_path))) as catalog:
        found = [row for row in catalog.streams() if row.name.startswith("of ")]
    assert len(found) == 5
    for row in found:
        assert filter_properties(row.arguments) == (row.name.removeprefix("of "),)
        assert row.arguments["max-age"] == Age("1h", 3600)


def test_a_new_catalog_has_the_tables_of_one_taken_over(tmp_path: Path) -> None:
    found = []
    for version in range(8):
        folder = tmp_path / str(version)
        folder.mkdir()
        if version:
            write_old(folder, version)
        catalog = Catalog(str(folder))
        found.append(set(catalog._rows("SELECT type, name, sql FROM sqlite_master")))
        catalog.close()
    assert found == [found[0]] * 8


def test_a_catalog_that_cannot_be_taken_over_stays_as_it_is(tmp_path: Path) -> None:
    write_old(tmp_path, 5)
    db = sqlite3.connect(tmp_path / "catalog.sqlite")
    db.execute("CREATE TABLE old_partitions (taken)")
    before = list(db.iterdump())
    with pytest.raises(CatalogError, match="there is already another table"):
        Catalog(str(tmp_path))
    assert list(db.iterdump()) == before
    assert db.execute("PRAGMA user_version").fetchone() == (5,)
    db.close()


async def test_an_older_super_stream_serves(tmp_path: Path) -> None:
    async with harness(tmp_path) as server:
        for name in ("s", "p-0", "p-1", "p-2"):
            await server.host.create(name, [])
    (tmp_path / "catalog.sqlite").unlink()
    write_old(tmp_path, 5)
    with database(tmp_path) as db:
        db.execute("DELETE FROM users")  # so that there is a password for guest
    async with with_peer(tmp_path) as (server, peer):
        assert (await peer.ask(c.Partitions, "super")).streams == ("p-1", "p-0", "p-1")
        assert (await peer.ask(c.Route, "again", "super")).streams == ("p-1",)
        assert Stepwise(server.host.topology.reach("x", ["a"], {})).result == ["s", "p-0"]
        assert await peer.code(c.DeleteSuperStream, "super") == OK
        assert server.host.names() == ["p-2", "s"]
        assert Stepwise(server.host.topology.reach("x", ["a"], {})).result == ["s"]
    async with harness(tmp_path) as server:
        assert [row.name for row in server.host.super_streams.rows()] == ["empty"]
