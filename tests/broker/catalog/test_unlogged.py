"""What the log has, and what is noted, is the catalog: after all changes, whoever reads it."""

import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from segments.store.cluster import Cluster
from segments.store.metadata_log import Entry, Held, Row
from streamd.broker.catalog.catalog import Catalog, CatalogError, Change
from streamd.broker.catalog.schema import VERSION
from streamd.broker.catalog.transaction import Transaction
from streamd.broker.catalog.unlogged import (
    DifferentError,
    State,
    Taken,
    Unlogged,
    all_rows,
    forget,
    packed,
    rows_of,
    take,
)
from streamd.broker.declared.partitions import partition_binding
from streamd.broker.declared.rows import PermissionRow, StreamRow, UserRow
from streamd.broker.declared.standing_selectors import StandingSelector
from streamd.operations.names import Name
from streamd.operations.routing import ExchangeRow

_NAMES = [Name("a"), Name("b"), Name("\u00e9\u0000\"'%")]
_STATE = State(Held(Cluster(revision=1, epoch=1, writer="w", start="s", tier="t"), "k", "e", 1))
names = st.sampled_from(_NAMES)


def _changes() -> st.SearchStrategy[Change]:
    def stream(name: Name) -> Change:
        def change(t: Transaction) -> None:
            t.remove_streams("/", [name])
            t.add_streams([StreamRow(Name("/"), name, {}, {})])

        return change

    def exchange(name: Name) -> Change:
        row = ExchangeRow(Name("/"), name, "direct", True, False, False, "", False)

        def change(t: Transaction) -> None:
            t.remove_exchanges("/", [name])
            t.add_exchange(row)

        return change

    one = st.one_of(
        names.map(stream),
        names.map(exchange),
        names.map(lambda n: lambda t: t.remove_streams("/", [n])),
        names.map(lambda n: lambda t: t.put_files("/", n)),
        names.map(lambda n: lambda t: t.remove_virtual_host(n)),
        st.builds(
            lambda n, to, at: lambda t: t.put_binding(partition_binding(Name("/"), n, to, "k", at)),
            names,
            names,
            st.integers(0, 2),
        ),
        st.builds(lambda n, text: lambda t: t.put_user(UserRow(n, text, ("x",))), names, st.text()),
        names.map(lambda n: lambda t: t.remove_user(n)),
        names.map(lambda n: lambda t: t.put_permission(PermissionRow(n, Name("/"), "", "", ".*"))),
        st.builds(
            lambda n, since: (
                lambda t: t.put_selector("/", n, StandingSelector("g", "sql", "x = 1", since))
            ),
            names,
            st.integers(0, 1 << 62),
        ),
    )
    return one.map(lambda change: change)


def logged(taken: Taken, revision: int) -> Entry:
    """An entry of the log, with what was taken for it."""
    return Entry(
        tier="t",
        revision=revision,
        epoch=1,
        writer="w",
        start="s",
        change=taken.change,
        schema=VERSION,
        rows=taken.rows,
    )


def _rows(notes: Unlogged) -> list[Row]:
    with closing(notes.copy()) as copy:
        return all_rows(copy)


def test_each_table_of_the_catalog_is_in_the_log(tmp_path: Path) -> None:
    Catalog(str(tmp_path)).close()
    notes = Unlogged(str(tmp_path))
    notes.begin("s")
    with closing(notes.copy()) as copy:
        made = copy.execute("SELECT type, tbl_name FROM sqlite_master").fetchall()
    tables = {name for what, name in made if what == "table"}
    noted = {name for what, name in made if what == "trigger"}
    assert noted == tables - {"unlogged", "log_state"}
    assert len(noted) == 7


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_snapshot_and_entries_are_the_catalog(data: st.DataObject) -> None:
    """Wherever the server ends between the store and its catalog, and whatever is changed then."""
    with tempfile.TemporaryDirectory() as folder:
        catalog, notes = Catalog(folder), Unlogged(folder)
        notes.begin("s")
        log: list[Entry] = []
        snapshot, behind = b"", 0
        for _ in range(data.draw(st.integers(1, 12))):
            step = data.draw(
                st.sampled_from(["change", "change", "log", "lost", "read", "snapshot"])
            )
            if step == "change":
                catalog.apply(*data.draw(st.lists(_changes(), min_size=1, max_size=3)))
            elif step == "read":  # as the next start does
                notes.check(log[behind:], _STATE)
                behind = len(log)
            elif step == "snapshot":
                notes.check(log[behind:], _STATE)
                with closing(notes.copy()) as copy:
                    while (taken := take(copy)).rows:
                        log.append(logged(taken, len(log) + 1))
                        forget(copy, taken.change)
                        notes.written(_STATE, taken.change)
                    snapshot = packed(copy)
                log, behind = [], 0
            elif (taken := notes.take()).rows:
                log.append(logged(taken, len(log) + 1))
                if step == "log" and behind == len(log) - 1:
                    notes.written(_STATE, taken.change)
                    behind = len(log)
        if (taken := notes.take()).rows:
            log.append(logged(taken, len(log) + 1))
        catalog.close()
        there = Path(folder, "there")
        there.mkdir()
        if snapshot:
            (there / "catalog.sqlite").write_bytes(snapshot)
        Catalog(str(there)).close()
        Unlogged(str(there)).follow(log, _STATE)
        assert _rows(Unlogged(str(there))) == _rows(notes)


def _with_user(catalog: Catalog, name: str, text: str) -> None:
    catalog.apply(lambda t: t.put_user(UserRow(Name(name), text, ())))


def _digest(folder: Path, name: str) -> str:
    with closing(Catalog(str(folder))) as catalog:
        return {user.name: user.password_hash for user in catalog.users()}[Name(name)]


def test_a_backup_gets_what_the_log_has_and_keeps_what_is_noted(tmp_path: Path) -> None:
    now, backup = tmp_path / "now", tmp_path / "backup"
    now.mkdir()
    catalog, notes = Catalog(str(now)), Unlogged(str(now))
    notes.begin("s")
    for name in "abc":
        _with_user(catalog, name, "first")
    catalog.close()
    shutil.copytree(now, backup)
    with closing(Catalog(str(now))) as catalog:
        _with_user(catalog, "a", "second")
    entry = logged(notes.take(), 1)
    older = Unlogged(str(backup))
    older.written(_STATE, older.count())
    with closing(Catalog(str(backup))) as catalog:
        for _ in range(9):
            _with_user(catalog, "b", "third")
    with pytest.raises(DifferentError, match="restored from a backup"):
        older.check([entry], _STATE)
    assert _digest(backup, "a") == "first"
    assert older.follow([entry], _STATE) == 1
    assert _digest(backup, "a") == "second"
    assert _digest(backup, "b") == "third"  # changed since, and not in the log
    assert [row.key for row in older.take().rows] == [{"name": "b"}]


def test_what_here_counts_is_noted(tmp_path: Path) -> None:
    """Of a log that is an older one, where its operator says so."""
    with closing(Catalog(str(tmp_path))) as catalog:
        notes = Unlogged(str(tmp_path))
        notes.begin("s")
        _with_user(catalog, "a", "first")
        older = logged(notes.take(), 1)
        _with_user(catalog, "a", "second")
    notes.written(_STATE, notes.count())
    notes.insist([older], _STATE)
    assert _digest(tmp_path, "a") == "second"
    assert [row.values and row.values["password_hash"] for row in notes.take().rows] == ["second"]


@pytest.mark.parametrize(
    "row",
    [
        Row("nothing", {"name": "x"}, None),
        Row("users", {}, None),
        Row("users", {"nothing": "x"}, None),
        Row("users", {"name": "x"}, {"nothing": 1}),
        Row("unlogged", {"name": "x", "key": "y"}, {"change": 1}),
    ],
)
def test_rows_that_are_none_are_refused(tmp_path: Path, row: Row) -> None:
    Catalog(str(tmp_path)).close()
    with pytest.raises(CatalogError, match="that is no row of"):
        Unlogged(str(tmp_path)).follow([logged(Taken(1, (row,)), 1)], _STATE)


def test_a_copy_has_nothing_that_was_removed(tmp_path: Path) -> None:
    notes = Unlogged(str(tmp_path))
    with closing(Catalog(str(tmp_path))) as catalog:
        notes.begin("s")
        for n in range(300):
            catalog.apply(lambda t, n=n: t.add_virtual_host(f"a hash that was replaced {n}"))  # type: ignore[misc]
        for n in range(300):
            catalog.apply(lambda t, n=n: t.remove_virtual_host(f"a hash that was replaced {n}"))  # type: ignore[misc]
        with closing(notes.copy()) as copy:
            content = packed(copy)
    assert b"replaced" not in content
    assert rows_of(content) == _rows(notes)
