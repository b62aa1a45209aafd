"""The catalog: which streams there are and what they were declared with, in SQLite.

SQLite because it is in the standard library, survives a kill at any point, and can be looked at
with any tool. Calls block on the disk: make them from a thread, one at a time.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from streamd.arguments import Arguments

_FILE_NAME = "catalog.sqlite"
_VERSION = 1
_SCHEMA = """
CREATE TABLE streams (
    virtual_host TEXT NOT NULL,
    name TEXT NOT NULL,
    arguments TEXT NOT NULL,
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID
"""


class CatalogError(Exception):
    """The catalog cannot be used; one sentence with the file and what to do."""


class StreamRow(NamedTuple):
    """One stream in the catalog."""

    virtual_host: str
    name: str
    arguments: Arguments


class Catalog:
    """The open catalog in a data folder.

    Raises:
        CatalogError: the file is damaged, of another version, or cannot be written.
    """

    def __init__(self, data: str) -> None:
        self._path = Path(data) / _FILE_NAME
        with self._errors():
            self._db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA synchronous = FULL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._db.executescript(
                    f"BEGIN; {_SCHEMA}; PRAGMA user_version = {_VERSION}; COMMIT"
                )
            elif version != _VERSION:
                raise CatalogError(
                    f"{self._path} has version {version}, this program knows {_VERSION}: "
                    "start the program that wrote it"
                )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise CatalogError(f"cannot use the catalog {self._path}: {error}") from error

    def streams(self) -> list[StreamRow]:
        """All streams, by virtual host and name."""
        with self._errors():
            rows = self._db.execute(
                "SELECT virtual_host, name, arguments FROM streams ORDER BY 1, 2"
            )
            return [StreamRow(host, name, json.loads(text)) for host, name, text in rows]

    def add_stream(self, row: StreamRow) -> None:
        """Add a stream; on disk when this returns."""
        arguments = json.dumps(row.arguments)
        with self._errors():
            self._db.execute(
                "INSERT INTO streams VALUES (?, ?, ?)", (row.virtual_host, row.name, arguments)
            )

    def remove_stream(self, virtual_host: str, name: str) -> None:
        """Remove a stream; on disk when this returns."""
        with self._errors():
            self._db.execute(
                "DELETE FROM streams WHERE virtual_host = ? AND name = ?", (virtual_host, name)
            )

    def close(self) -> None:
        """Release the file."""
        self._db.close()
