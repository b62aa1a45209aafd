"""What has changed in the catalog, and is in no entry of the log in the store yet.

Theory of operation. Once a server has a tier, triggers on all tables of the catalog note the key of
each row that is written or removed in the table `unlogged`, in the transaction that does it, with
the number of the change and the start of the server. They are made of the schema, so no table is
forgotten. They stay: what changes while the server runs without its tier is noted, too. Without a
tier there are none.

Whoever writes the log takes all that is noted (`take`): the rows as they are now, so that many
changes are one row of one entry. When the store has the entry, the notes up to its change go, and
the catalog is as of that revision, in one transaction (`written`). If the server ends between, or
is not told that the store has it, the entry is met when the log is read on, as those of others are:

    what is noted of a row                        the row is
    nothing                                       what the entry says
    a change of that start that the entry has     what the entry says; the note goes
    a later one, or one of another start          what it is here; it is still to be logged

An entry of another start is of one before, or of a life that a data folder from a backup does not
know: what was changed here since is not in it.

So in the end the catalog is the fold of the log, and what is noted. A data folder from a backup
gets what the log has, and keeps what was changed there since and the log has not. That is done at
each start, before anybody has read the catalog (`follow`). If the store is away then, it is only
checked later that nothing has to be changed in a catalog that is in use (`check`).
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from segments.store.metadata_log import Entry, Held, Row, Scalar
from streamd.broker.catalog.catalog import CATALOG_FILE, CatalogError
from streamd.broker.catalog.schema import VERSION, migrate

MOST_TAKEN = 8 << 20  # bytes of values in an entry; what was changed together may be torn then
_OWN = ("unlogged", "log_state")
_BUSY_SECONDS = 10.0


class DifferentError(CatalogError):
    """The log says something else than a catalog that is in use."""


class Taken(NamedTuple):
    """What is to be logged.

    Attributes:
        change: up to this one.
        rows: with their present values.
    """

    change: int
    rows: tuple[Row, ...]


class State(msgspec.Struct):
    """What a catalog knows of the log.

    Attributes:
        held: it is as of this.
        snapshot: revision of the newest snapshot.
        num_bytes: of rows in entries since then.
    """

    held: Held
    snapshot: int = 0
    num_bytes: int = 0


class Unlogged:
    """The notes in the catalog of a data folder. All methods block.

    Raises:
        CatalogError: it cannot be used; in all methods.
    """

    def __init__(self, data: str) -> None:
        self._path = Path(data, CATALOG_FILE)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """In this block there is a transaction, which is made at its end."""
        try:
            with closing(
                sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
            ) as db:
                # Not on the device at once: what is lost is read again, or logged again.
                db.execute("PRAGMA synchronous = NORMAL")
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise CatalogError(f"cannot use the catalog {self._path}: {error}") from error

    def begin(self, start: str) -> None:
        """From now on what changes is noted, as of this start of the server."""
        with self._open() as db:
            db.execute("UPDATE log_state SET start = ?", (start,))
            for table in tables_of(db):
                make_triggers(db, table)

    def state(self) -> State | None:
        """What the catalog knows of the log; None where it was in none."""
        with self._open() as db:
            return state_in(db)

    def count(self) -> int:
        """The number of the last change."""
        with self._open() as db:
            return change_in(db)

    def take(self) -> Taken:
        """What is noted."""
        with self._open() as db:
            return take(db)

    def written(self, state: State, change: int) -> None:
        """The store has an entry with all that was noted up to a change."""
        with self._open() as db:
            forget(db, change)
            put_state(db, state)

    def follow(self, entries: Iterable[Entry], state: State) -> int:
        """Have what entries say; how many rows are other ones than before.

        Nobody has read the catalog yet.
        """
        return self._read(entries, state, _overwrite)

    def apply(self, entries: Iterable[Entry]) -> None:
        """The same of a copy that is read anew then, and is never logged."""
        with self._open() as db:
            apply(db, entries)

    def check(self, entries: Iterable[Entry], state: State) -> None:
        """See that a catalog that is in use has what entries say, as it has to have.

        Raises:
            DifferentError: it has not.
        """
        self._read(entries, state, self._refuse)

    def insist(self, entries: Iterable[Entry], state: State) -> None:
        """Note everything in which the log is another one: what is here counts."""
        self._read(entries, state, _note)

    def _refuse(self, _db: sqlite3.Connection, row: Row) -> None:
        raise DifferentError(
            f"the log in the tier has changes that the catalog {self._path} has not, of "
            f"{row.table} for one: was the data folder restored from a backup? Restart the server "
            "while the tier can be reached: it reads them first"
        )

    def _read(
        self,
        entries: Iterable[Entry],
        state: State,
        differs: "Callable[[sqlite3.Connection, Row], None]",
    ) -> int:
        with self._open() as db:
            count = apply(db, entries, differs)
            put_state(db, state)
            return count

    def copy(self) -> sqlite3.Connection:
        """The catalog as it is at one moment, in memory.

        Whoever changes the catalog does not wait for it.
        """
        copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            uri = f"{self._path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True)) as source:
                source.backup(copy)
        except sqlite3.Error as error:
            copy.close()
            raise CatalogError(f"cannot copy the catalog {self._path}: {error}") from error
        return copy


def packed(copy: sqlite3.Connection) -> bytes:
    """A copy as a file, without anything that was removed from it, and without notes; blocks."""
    try:
        for table in tables_of(copy):
            for event in _EVENTS:
                copy.execute(f"DROP TRIGGER IF EXISTS {_trigger(table, event)}")
        copy.execute("DELETE FROM unlogged")
        copy.execute("UPDATE log_state SET change = 0, state = '', start = ''")
        copy.execute("VACUUM")
        return copy.serialize()
    except sqlite3.Error as error:
        raise CatalogError(f"cannot copy the catalog: {error}") from error


def rows_of(content: bytes) -> list[Row]:
    """All rows of a packed copy, or of a new catalog for no bytes; blocks.

    Raises:
        CatalogError: it is of a later version, or no catalog.
    """
    try:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            if content:
                db.deserialize(content)
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise CatalogError(
                    f"the snapshot has version {version}, this program knows {VERSION}: start the "
                    "program that wrote it"
                )
            if version < VERSION:
                migrate(db, version)
            return all_rows(db)
    except sqlite3.Error as error:
        raise CatalogError(f"the snapshot cannot be used: {error}") from error


def size_of(rows: Iterable[Row]) -> int:
    """About as many bytes as they have in an entry."""
    return sum(len(str(row.key)) + len(str(row.values)) for row in rows)


def all_rows(db: sqlite3.Connection) -> list[Row]:
    """All rows of a catalog."""
    found = []
    for table in tables_of(db):
        keys, others = columns_of(db, table)
        names = ", ".join((*keys, *others))
        for values in db.execute(f"SELECT {names} FROM {table}"):  # noqa: S608 - ours
            row = dict(zip((*keys, *others), values, strict=True))
            found.append(Row(table, {k: row[k] for k in keys}, {k: row[k] for k in others}))
    return found


# -- within a transaction

_EVENTS = ("insert", "update", "delete")


def tables_of(db: sqlite3.Connection) -> list[str]:
    """All tables of a catalog that are in the log."""
    found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
    return [str(name) for (name,) in found if name not in _OWN and not name.startswith("sqlite_")]


def columns_of(db: sqlite3.Connection, table: str) -> tuple[list[str], list[str]]:
    """The columns of a table's primary key, in their order, and the others."""
    found = db.execute(f"PRAGMA table_info({table})").fetchall()
    keys = sorted((one for one in found if one[5]), key=lambda one: int(one[5]))
    return [one[1] for one in keys], [one[1] for one in found if not one[5]]


def _trigger(table: str, event: str) -> str:
    return f"log_{event}_of_{table}"


def make_triggers(db: sqlite3.Connection, table: str) -> None:
    """Note keys of rows from now on, those that were changed with the old key and the new one."""
    keys, _ = columns_of(db, table)
    rows = {"insert": ("new",), "update": ("old", "new"), "delete": ("old",)}
    for event in _EVENTS:
        notes = ""
        for which in rows[event]:
            key = "json_array({})".format(", ".join(f"{which}.{name}" for name in keys))
            notes += f"""
                UPDATE log_state SET change = change + 1;
                DELETE FROM unlogged WHERE name = '{table}' AND key = {key};
                INSERT INTO unlogged SELECT '{table}', {key}, change, start FROM log_state;
            """  # noqa: S608 - names of ours alone
        name = _trigger(table, event)
        db.execute(f"DROP TRIGGER IF EXISTS {name}")
        db.execute(f"CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN {notes} END")


_decode_state = msgspec.json.Decoder(State).decode  # see segments/store/fields.py


def state_in(db: sqlite3.Connection) -> State | None:
    """See Unlogged.state."""
    (text,) = db.execute("SELECT state FROM log_state").fetchone()
    return _decode_state(text) if text else None


def put_state(db: sqlite3.Connection, state: State) -> None:
    """A catalog is as of this."""
    db.execute("UPDATE log_state SET state = ?", (msgspec.json.encode(state).decode(),))


def change_in(db: sqlite3.Connection) -> int:
    """The number of the last change."""
    (change,) = db.execute("SELECT change FROM log_state").fetchone()
    return int(change)


def take(db: sqlite3.Connection) -> Taken:
    """What is noted; the oldest first, with as much of it as an entry may have."""
    rows: list[Row] = []
    size = change = 0
    noted = db.execute("SELECT name, key, change FROM unlogged ORDER BY change").fetchall()
    columns = {table: columns_of(db, table) for table in tables_of(db)}
    for table, text, number in noted:
        row = _row(db, columns[table], table, json.loads(text))
        size += len(text.encode()) + len(str(row.values).encode())
        if rows and size > MOST_TAKEN:
            break
        rows.append(row)
        change = number
    return Taken(change, tuple(rows))


def _row(
    db: sqlite3.Connection, columns: tuple[list[str], list[str]], table: str, key: list[Scalar]
) -> Row:
    """A row as it is now."""
    keys, others = columns
    where = " AND ".join(f"{name} = ?" for name in keys)
    names = ", ".join(others) or "NULL"
    found = db.execute(f"SELECT {names} FROM {table} WHERE {where}", key).fetchone()  # noqa: S608
    values = None if found is None else dict(zip(others, found, strict=False))
    return Row(table, dict(zip(keys, key, strict=True)), values)


def forget(db: sqlite3.Connection, change: int) -> None:
    """What was noted up to a change is in the log."""
    db.execute("DELETE FROM unlogged WHERE change <= ?", (change,))


def apply(
    db: sqlite3.Connection,
    entries: Iterable[Entry],
    differs: Callable[[sqlite3.Connection, Row], None] | None = None,
) -> int:
    """Have what entries say, see above; how many rows are other ones.

    Args:
        db: the catalog, in a transaction.
        entries: in their order.
        differs: does what is to be done with a row that is another one here, and not noted.
    """
    count = 0
    differs = differs or _overwrite
    columns = {table: columns_of(db, table) for table in tables_of(db)}
    for entry in entries:
        if entry.rows and entry.schema != VERSION:
            raise CatalogError(
                f"{entry.key} is of a catalog of version {entry.schema}, this program knows "
                f"{VERSION}: start the program that wrote it"
            )
        for row in entry.rows:
            count += _apply_row(db, columns.get(row.table, ([], [])), entry, row, differs)
    return count


def _apply_row(
    db: sqlite3.Connection,
    columns: tuple[list[str], list[str]],
    entry: Entry,
    row: Row,
    differs: Callable[[sqlite3.Connection, Row], None],
) -> bool:
    keys, others = columns
    if (
        not keys
        or set(row.key) != set(keys)
        or (row.values is not None and set(row.values) != set(others))
    ):
        raise CatalogError(f"{entry.key} has something that is no row of {row.table}")
    note = (row.table, _key_text(db, [row.key[name] for name in keys]))
    where = "name = ? AND key = ?"
    noted = db.execute(f"SELECT change, start FROM unlogged WHERE {where}", note).fetchone()  # noqa: S608
    if noted is not None and (noted[0] > entry.change or noted[1] != entry.start):
        return False
    is_other = _row(db, columns, row.table, [row.key[name] for name in keys]).values != row.values
    if is_other:
        differs(db, row)
    if differs is not _note or not is_other:
        db.execute(f"DELETE FROM unlogged WHERE {where}", note)  # noqa: S608
    return is_other


def _key_text(db: sqlite3.Connection, key: list[Scalar]) -> str:
    """As the triggers write it."""
    marks = ", ".join("?" * len(key))
    (text,) = db.execute(f"SELECT json_array({marks})", key).fetchone()
    return str(text)


def _overwrite(db: sqlite3.Connection, row: Row) -> None:
    where = " AND ".join(f"{name} = ?" for name in row.key)
    db.execute(f"DELETE FROM {row.table} WHERE {where}", tuple(row.key.values()))  # noqa: S608
    if row.values is not None:
        values = {**row.key, **row.values}
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        insert = f"INSERT INTO {row.table} ({names}) VALUES ({marks})"  # noqa: S608
        db.execute(insert, tuple(values.values()))


def _note(db: sqlite3.Connection, row: Row) -> None:
    """What is here is to be logged: it is a change."""
    note = row.table, _key_text(db, list(row.key.values()))
    db.execute("UPDATE log_state SET change = change + 1")
    db.execute("DELETE FROM unlogged WHERE name = ? AND key = ?", note)
    db.execute("INSERT INTO unlogged SELECT ?, ?, change, start FROM log_state", note)
