"""The catalog: streams, super streams, virtual hosts, users and their permissions, in SQLite.

SQLite because it is in the standard library, survives a kill at any point, and can be looked at
with any tool. Calls block on the disk: make them from a thread, one at a time. What a call has
changed is on disk when it returns; a call changes all or nothing.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from streamd.broker import catalog_exchanges as exchange_tables
from streamd.broker.arguments import Arguments
from streamd.broker.catalog_exchanges import ExchangeTables
from streamd.broker.routing.matching import ExchangeRow, RouteRow
from streamd.broker.standing_selectors import StandingSelector

DEFAULT_HOST = "/"
_FILE_NAME = "catalog.sqlite"
_VERSION = 5
_SYNCHRONOUS = "FULL"  # what a call has changed is on disk when it returns
_SCHEMA_1 = """
CREATE TABLE streams (
    virtual_host TEXT NOT NULL,
    name TEXT NOT NULL,
    arguments TEXT NOT NULL,
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID;
"""
_SCHEMA_2 = """
CREATE TABLE virtual_hosts (name TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID;
INSERT INTO virtual_hosts VALUES ('/');
CREATE TABLE super_streams (
    virtual_host TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID;
CREATE TABLE bindings (
    virtual_host TEXT NOT NULL,
    super_stream TEXT NOT NULL,
    position INTEGER NOT NULL,
    key TEXT NOT NULL,
    stream TEXT NOT NULL,
    PRIMARY KEY (virtual_host, super_stream, position)
) WITHOUT ROWID;
CREATE TABLE users (
    name TEXT NOT NULL PRIMARY KEY,
    password_hash TEXT NOT NULL,
    tags TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE permissions (
    user TEXT NOT NULL,
    virtual_host TEXT NOT NULL,
    configure TEXT NOT NULL,
    write TEXT NOT NULL,
    read TEXT NOT NULL,
    PRIMARY KEY (user, virtual_host)
) WITHOUT ROWID;
"""
_SCHEMA_3 = """
CREATE TABLE standing_selectors (
    virtual_host TEXT NOT NULL,
    stream TEXT NOT NULL,
    consumers TEXT NOT NULL,
    dialect TEXT NOT NULL,
    text TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (virtual_host, stream, consumers)
) WITHOUT ROWID;
"""
_SCHEMA_4 = "ALTER TABLE streams ADD COLUMN settings TEXT NOT NULL DEFAULT '{}';"
_SCHEMAS = (_SCHEMA_1, _SCHEMA_2, _SCHEMA_3, _SCHEMA_4, exchange_tables.SCHEMA)


_TABLES_OF_A_HOST = (
    *("streams", "super_streams", "bindings", "standing_selectors", "permissions"),
    *exchange_tables.TABLES,
)


class CatalogError(Exception):
    """The catalog cannot be used; one sentence with the file and what to do."""


class StreamRow(NamedTuple):
    """One stream in the catalog.

    Attributes:
        virtual_host: where it is.
        name: of it.
        arguments: what it was declared with, and is declared with again.
        settings: what was changed since, by the same names; an empty text is the default.
    """

    virtual_host: str
    name: str
    arguments: Arguments
    settings: Arguments = MappingProxyType({})  # type: ignore[assignment] # nothing to change in it

    @property
    def effective(self) -> Arguments:
        """What holds for it now."""
        together = {**self.arguments, **self.settings}
        return {name: value for name, value in together.items() if value != ""}


class Binding(NamedTuple):
    """A routing key and the partition that it leads to.

    Attributes:
        key: of the route.
        stream: the partition.
        order: partitions are in this order; each has its own.
    """

    key: str
    stream: str
    order: int


class SuperStreamRow(NamedTuple):
    """One super stream; its partitions in their order."""

    virtual_host: str
    name: str
    bindings: tuple[Binding, ...]


class UserRow(NamedTuple):
    """One user; the hash is empty when no password lets in."""

    name: str
    password_hash: str
    tags: tuple[str, ...]

    def __repr__(self) -> str:
        return f"UserRow({self.name!r}, <secret>, {self.tags})"


class PermissionRow(NamedTuple):
    """What a user may do in a virtual host: patterns on the names of streams."""

    user: str
    virtual_host: str
    configure: str
    write: str
    read: str


class Contents(NamedTuple):
    """All that is stored of virtual hosts and their streams."""

    virtual_hosts: list[str]
    streams: list[StreamRow]
    super_streams: list[SuperStreamRow]
    selectors: dict[tuple[str, str], list[StandingSelector]]
    exchanges: list[ExchangeRow]
    routes: list[RouteRow]


class Catalog:
    """The open catalog in a data folder.

    Attributes:
        exchanges: the tables of exchanges and bindings.

    Raises:
        CatalogError: the file is damaged, of another version, or cannot be written.
    """

    def __init__(self, data: str) -> None:
        self._path = Path(data) / _FILE_NAME
        self.exchanges = ExchangeTables(self._change, self._rows)
        with self._errors():
            self._db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
            self._db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS}")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                raise CatalogError(
                    f"{self._path} has version {version}, this program knows {_VERSION}: "
                    "start the program that wrote it"
                )
            if version < _VERSION:
                missing = "".join(_SCHEMAS[version:])
                self._db.executescript(f"BEGIN; {missing} PRAGMA user_version = {_VERSION}; COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise CatalogError(f"cannot use the catalog {self._path}: {error}") from error

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing."""
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _rows(self, query: str) -> list[tuple[str, ...]]:
        with self._errors():
            return self._db.execute(query).fetchall()

    def contents(self) -> Contents:
        """What a server needs to begin."""
        hosts, streams = self.virtual_hosts(), self.streams()
        return Contents(
            hosts,
            streams,
            self.super_streams(),
            self.selectors(),
            self.exchanges.exchanges(),
            self.exchanges.routes(),
        )

    # -- streams

    def streams(self) -> list[StreamRow]:
        """All streams, by virtual host and name."""
        columns = "virtual_host, name, arguments, settings"
        rows = self._rows(f"SELECT {columns} FROM streams ORDER BY 1, 2")  # noqa: S608 - ours
        return [
            StreamRow(host, name, json.loads(arguments), json.loads(settings))
            for host, name, arguments, settings in rows
        ]

    def put_settings(self, row: StreamRow) -> None:
        """Replace a stream's settings."""
        with self._change() as db:
            values = (json.dumps(dict(row.settings)), row.virtual_host, row.name)
            where = "virtual_host = ? AND name = ?"
            db.execute(f"UPDATE streams SET settings = ? WHERE {where}", values)  # noqa: S608 - ours

    def super_streams(self) -> list[SuperStreamRow]:
        """All super streams, by virtual host and name."""
        bindings: dict[tuple[str, str], list[Binding]] = {}
        for host, name in self._rows("SELECT virtual_host, name FROM super_streams ORDER BY 1, 2"):
            bindings[host, name] = []
        columns = "virtual_host, super_stream, key, stream, position"
        for host, name, key, stream, order in self._rows(
            f"SELECT {columns} FROM bindings ORDER BY 1, 2, position"  # noqa: S608 - ours
        ):
            bindings[host, name].append(Binding(key, stream, int(order)))
        return [SuperStreamRow(*key, tuple(found)) for key, found in bindings.items()]

    def add_streams(
        self, rows: Iterable[StreamRow], super_stream: SuperStreamRow | None = None
    ) -> None:
        """Add streams, and the super stream whose partitions they are."""
        values = [(row.virtual_host, row.name, json.dumps(row.arguments)) for row in rows]
        with self._change() as db:
            columns = "virtual_host, name, arguments"
            db.executemany(f"INSERT INTO streams ({columns}) VALUES (?, ?, ?)", values)  # noqa: S608
            if super_stream is not None:
                _insert_super_stream(db, super_stream)

    def put_super_stream(self, super_stream: SuperStreamRow) -> None:
        """Add a super stream of streams that exist, or replace it."""
        with self._change() as db:
            _delete_super_stream(db, super_stream.virtual_host, super_stream.name)
            _insert_super_stream(db, super_stream)

    def remove_streams(
        self, virtual_host: str, names: Iterable[str], super_stream: str | None = None
    ) -> None:
        """Remove streams with the bindings that lead to them, and a super stream."""
        with self._change() as db:
            for name in names:
                where = (virtual_host, name)
                db.execute("DELETE FROM streams WHERE virtual_host = ? AND name = ?", where)
                for table in ("bindings", "standing_selectors"):
                    where_stream = "virtual_host = ? AND stream = ?"
                    db.execute(f"DELETE FROM {table} WHERE {where_stream}", where)  # noqa: S608
                exchange_tables.forget_destination(db, virtual_host, name, to_exchange=False)
            if super_stream is not None:
                _delete_super_stream(db, virtual_host, super_stream)
                exchange_tables.forget_source(db, virtual_host, super_stream)
                exchange_tables.forget_destination(db, virtual_host, super_stream, to_exchange=True)

    # -- standing selectors

    def selectors(self) -> dict[tuple[str, str], list[StandingSelector]]:
        """StandingSelectors selectors by virtual host and stream."""
        found: dict[tuple[str, str], list[StandingSelector]] = {}
        columns = "virtual_host, stream, consumers, dialect, text, since"
        rows = self._rows(f"SELECT {columns} FROM standing_selectors ORDER BY 1, 2, 3")  # noqa: S608
        for host, stream, group, dialect, text, since in rows:
            row = StandingSelector(group, dialect, text, int(since))
            found.setdefault((host, stream), []).append(row)
        return found

    def put_selector(self, virtual_host: str, stream: str, row: StandingSelector) -> None:
        """Add a group's selector or replace it."""
        with self._change() as db:
            values = (virtual_host, stream, *row)
            db.execute(
                "INSERT OR REPLACE INTO standing_selectors VALUES (?, ?, ?, ?, ?, ?)", values
            )

    def remove_selector(self, virtual_host: str, stream: str, group: str) -> None:
        """Remove a group's selector."""
        with self._change() as db:
            where = "virtual_host = ? AND stream = ? AND consumers = ?"
            values = (virtual_host, stream, group)
            db.execute(f"DELETE FROM standing_selectors WHERE {where}", values)  # noqa: S608

    # -- virtual hosts

    def virtual_hosts(self) -> list[str]:
        """All virtual hosts, by name."""
        return [name for (name,) in self._rows("SELECT name FROM virtual_hosts ORDER BY 1")]

    def add_virtual_host(self, name: str) -> None:
        """Add a virtual host."""
        with self._change() as db:
            db.execute("INSERT INTO virtual_hosts VALUES (?)", (name,))

    def remove_virtual_host(self, name: str) -> None:
        """Remove a virtual host with everything in it."""
        with self._change() as db:
            db.execute("DELETE FROM virtual_hosts WHERE name = ?", (name,))
            for table in _TABLES_OF_A_HOST:
                db.execute(f"DELETE FROM {table} WHERE virtual_host = ?", (name,))  # noqa: S608 - ours

    # -- users

    def users(self) -> list[UserRow]:
        """All users, by name."""
        rows = self._rows("SELECT name, password_hash, tags FROM users ORDER BY 1")
        return [UserRow(name, digest, tuple(json.loads(tags))) for name, digest, tags in rows]

    def permissions(self) -> list[PermissionRow]:
        """All permissions, by user and virtual host."""
        columns = "user, virtual_host, configure, write, read"
        rows = self._rows(f"SELECT {columns} FROM permissions ORDER BY 1, 2")  # noqa: S608 - ours
        return [PermissionRow(*row) for row in rows]

    def put_user(self, user: UserRow, permissions: Collection[PermissionRow] = ()) -> None:
        """Add a user or replace one, and set permissions."""
        with self._change() as db:
            values = (user.name, user.password_hash, json.dumps(user.tags))
            db.execute("INSERT OR REPLACE INTO users VALUES (?, ?, ?)", values)
            db.executemany("INSERT OR REPLACE INTO permissions VALUES (?, ?, ?, ?, ?)", permissions)

    def remove_user(self, name: str) -> None:
        """Remove a user and what it may do."""
        with self._change() as db:
            db.execute("DELETE FROM users WHERE name = ?", (name,))
            db.execute("DELETE FROM permissions WHERE user = ?", (name,))

    def put_permission(self, permission: PermissionRow) -> None:
        """Set what a user may do in a virtual host."""
        with self._change() as db:
            db.execute("INSERT OR REPLACE INTO permissions VALUES (?, ?, ?, ?, ?)", permission)

    def remove_permission(self, user: str, virtual_host: str) -> None:
        """Take from a user what it may do in a virtual host."""
        with self._change() as db:
            where = (user, virtual_host)
            db.execute("DELETE FROM permissions WHERE user = ? AND virtual_host = ?", where)

    def close(self) -> None:
        """Release the file."""
        self._db.close()


def _insert_super_stream(db: sqlite3.Connection, row: SuperStreamRow) -> None:
    host, name, bindings = row
    db.execute("INSERT INTO super_streams VALUES (?, ?)", (host, name))
    values = [(host, name, order, key, stream) for key, stream, order in bindings]
    db.executemany("INSERT INTO bindings VALUES (?, ?, ?, ?, ?)", values)


def _delete_super_stream(db: sqlite3.Connection, virtual_host: str, name: str) -> None:
    where = (virtual_host, name)
    db.execute("DELETE FROM super_streams WHERE virtual_host = ? AND name = ?", where)
    db.execute("DELETE FROM bindings WHERE virtual_host = ? AND super_stream = ?", where)
