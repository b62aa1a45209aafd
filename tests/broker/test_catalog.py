"""The catalog as a file: all of a change or nothing, whatever other programs do with it."""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamd.broker import catalog as catalog_module
from streamd.broker.catalog import Catalog, CatalogError
from streamd.broker.catalog_rows import StreamRow, UserRow
from streamd.broker.catalog_transaction import Transaction


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = Catalog(str(tmp_path))
    yield opened
    opened.close()


def add(name: str) -> catalog_module.Change:
    return lambda rows: rows.put_user(UserRow(name, "", ()))


def names(catalog: Catalog) -> list[str]:
    return [user.name for user in catalog.users()]


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
def reader(catalog: Catalog, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another program, in the middle of reading: no commit can be made meanwhile."""
    catalog.apply(*map(add, ["a", "b", "c"]))
    db = sqlite3.connect(tmp_path / "catalog.sqlite", check_same_thread=False, isolation_level=None)
    db.execute("BEGIN")
    db.execute("SELECT name FROM users").fetchone()
    yield db
    db.close()


def test_a_commit_that_fails_leaves_nothing(
    tmp_path: Path,
    catalog: Catalog,
    reader: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog_module, "_PATIENCE_SECONDS", 0)
    for _ in range(2):
        with pytest.raises(CatalogError, match="database is locked"):
            catalog.apply(add("d"))
        assert names(catalog) == ["a", "b", "c"]
    reader.execute("ROLLBACK")
    catalog.apply(add("e"))
    assert names(catalog) == ["a", "b", "c", "e"]
    other = Catalog(str(tmp_path))
    assert names(other) == names(catalog)
    other.close()


def test_a_commit_waits_for_other_programs(
    catalog: Catalog, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog._db.execute("PRAGMA busy_timeout = 10")
    tries: list[None] = []
    once = catalog._apply_once
    monkeypatch.setattr(catalog, "_apply_once", lambda c: (tries.append(None), once(c))[1])
    timer = threading.Timer(0.2, reader.execute, ["ROLLBACK"])
    timer.start()
    catalog.apply(add("d"))
    timer.join()
    assert names(catalog) == ["a", "b", "c", "d"]
    assert len(tries) > 1
