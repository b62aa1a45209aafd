"""The catalog: streams, super streams, virtual hosts, users and their permissions, in SQLite.

SQLite because it is in the standard library, survives a kill at any point, and can be looked at
with any tool. Calls block on the disk: make them from a thread, one at a time. While the server
runs, changes go through writer.CatalogWriter, which sees to both.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from streamd.broker.catalog.schema import VERSION, migrate
from streamd.broker.catalog.transaction import Transaction
from streamd.broker.declared.partitions import partition_binding
from streamd.broker.declared.rows import PermissionRow, StreamRow, UserRow
from streamd.broker.declared.standing_selectors import StandingSelector
from streamd.operations.arguments import arguments_from_json
from streamd.operations.names import Name
from streamd.operations.routing import Binding, ExchangeRow

DEFAULT_HOST = Name("/")
CATALOG_FILE = "catalog.sqlite"
_MODE = 0o640  # as the files of streams
_SYNCHRONOUS = "FULL"  # what a call has changed is on disk when it returns
_BUSY_SECONDS = 1.0  # a statement waits this long for another program that uses the file
_PATIENCE_SECONDS = 10.0  # after which a change is not tried again
_ERROR_CODE = 0xFF  # the bits of an extended code that hold the plain one

Change: TypeAlias = Callable[[Transaction], None]


class CatalogError(Exception):
    """The catalog cannot be used; one sentence with the file and what to do."""


class Contents(NamedTuple):
    """Everything that is stored about virtual hosts and their streams."""

    virtual_hosts: list[Name]
    streams: list[StreamRow]
    selectors: dict[tuple[str, str], list[StandingSelector]]
    exchanges: list[ExchangeRow]
    bindings: list[Binding]


class Catalog:
    """The open catalog in a data folder.

    Raises:
        CatalogError: the file is damaged, of another version, or cannot be written.
    """

    def __init__(self, data: str) -> None:
        self._path = Path(data) / CATALOG_FILE
        with self._errors():
            # It holds hashes of passwords; SQLite gives its other files the same permissions.
            self._path.touch(_MODE)
            self._db = sqlite3.connect(
                self._path, timeout=_BUSY_SECONDS, check_same_thread=False, isolation_level=None
            )
            # First, since it says how the change to a log is synced, too.
            self._db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS}")
            # One sync for each change instead of three, and programs that read keep nobody waiting.
            self._db.execute("PRAGMA journal_mode = WAL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise CatalogError(
                    f"{self._path} has version {version}, this program knows {VERSION}: "
                    "start the program that wrote it"
                )
            if version < VERSION:
                migrate(self._db, version)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise CatalogError(f"cannot use the catalog {self._path}: {error}") from error

    def apply(self, *changes: Change) -> None:
        """Make changes, all of them or none; on return they are on the disk.

        Another program that reads the file at the moment keeps it from being written: it is tried
        again for some seconds.

        Raises:
            CatalogError: it cannot be written; it is unchanged.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        with self._errors():
            while True:
                try:
                    self._apply_once(changes)
                except sqlite3.OperationalError as error:
                    if not _is_busy(error) or time.monotonic() >= deadline:
                        raise
                else:
                    return

    def _apply_once(self, changes: tuple[Change, ...]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            transaction = Transaction(self._db)
            for change in changes:
                change(transaction)
            self._db.execute("COMMIT")
        except BaseException:
            # A commit that fails leaves the transaction open, a full disk may have ended it.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with self._errors():
            return self._db.execute(query).fetchall()

    def contents(self) -> Contents:
        """Everything that a server reads when it starts."""
        hosts, streams = self.virtual_hosts(), self.streams()
        return Contents(
            hosts,
            streams,
            self.selectors(),
            self.exchanges(),
            self.bindings(),
        )

    # -- streams

    def streams(self) -> list[StreamRow]:
        """All streams, by virtual host and name."""
        columns = "virtual_host, name, arguments, settings, has_files"
        rows = self._rows(f"SELECT {columns} FROM streams ORDER BY 1, 2")  # noqa: S608 - ours
        return [
            StreamRow(
                host,
                name,
                arguments_from_json(arguments),
                arguments_from_json(settings),
                bool(has_files),
            )
            for host, name, arguments, settings, has_files in rows
        ]

    def exchanges(self) -> list[ExchangeRow]:
        """Durable exchanges and super streams, by virtual host and name."""
        columns = "virtual_host, name, type, auto_delete, internal, alternate, super_stream"
        rows = self._rows(f"SELECT {columns} FROM exchanges ORDER BY 1, 2")  # noqa: S608 - ours
        return [
            ExchangeRow(host, name, how, True, bool(auto), bool(internal), alternate, bool(is_one))
            for host, name, how, auto, internal, alternate, is_one in rows
        ]

    def bindings(self) -> list[Binding]:
        """All bindings, by virtual host and source; partitions first, in their order."""
        columns = "virtual_host, source, destination, to_exchange, key, arguments, position"
        order = "1, 2, position IS NULL, position, 3, 5"
        return [
            Binding(host, source, destination, bool(to_exchange), key, json.loads(arguments))
            if position is None
            else partition_binding(host, source, destination, key, position)
            for host, source, destination, to_exchange, key, arguments, position in self._rows(
                f"SELECT {columns} FROM bindings ORDER BY {order}"  # noqa: S608 - ours
            )
        ]

    # -- standing selectors

    def selectors(self) -> dict[tuple[str, str], list[StandingSelector]]:
        """Standing selectors by virtual host and stream."""
        found: dict[tuple[str, str], list[StandingSelector]] = {}
        columns = "virtual_host, stream, consumers, dialect, text, since"
        rows = self._rows(f"SELECT {columns} FROM standing_selectors ORDER BY 1, 2, 3")  # noqa: S608
        for host, stream, group, dialect, text, since in rows:
            row = StandingSelector(group, dialect, text, int(since))
            found.setdefault((host, stream), []).append(row)
        return found

    # -- virtual hosts

    def virtual_hosts(self) -> list[Name]:
        """All virtual hosts, by name."""
        return [name for (name,) in self._rows("SELECT name FROM virtual_hosts ORDER BY 1")]

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

    def close(self) -> None:
        """Release the file."""
        self._db.close()


def _is_busy(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode & _ERROR_CODE == sqlite3.SQLITE_BUSY
