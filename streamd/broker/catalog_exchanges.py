"""The catalog's tables of exchanges and bindings; see catalog.py for how they are changed."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from streamd.broker.routing.matching import ExchangeRow, RouteRow, arguments_text

SCHEMA = """
CREATE TABLE exchanges (
    virtual_host TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    auto_delete INTEGER NOT NULL,
    internal INTEGER NOT NULL,
    alternate TEXT NOT NULL,
    PRIMARY KEY (virtual_host, name)
) WITHOUT ROWID;
CREATE TABLE routes (
    virtual_host TEXT NOT NULL,
    source TEXT NOT NULL,
    destination TEXT NOT NULL,
    to_exchange INTEGER NOT NULL,
    key TEXT NOT NULL,
    arguments TEXT NOT NULL,
    PRIMARY KEY (virtual_host, source, destination, to_exchange, key, arguments)
) WITHOUT ROWID;
"""
TABLES = ("exchanges", "routes")

_Change = Callable[[], AbstractContextManager[sqlite3.Connection]]


class ExchangeTables:
    """Durable exchanges, and the bindings from them.

    Args:
        change: begins a change of the catalog.
        rows: the rows that a query finds.
    """

    def __init__(self, change: _Change, rows: Callable[[str], list[Any]]) -> None:
        self._change = change
        self._rows = rows

    def exchanges(self) -> list[ExchangeRow]:
        """All of them, by virtual host and name."""
        columns = "virtual_host, name, kind, auto_delete, internal, alternate"
        found = self._rows(f"SELECT {columns} FROM exchanges ORDER BY 1, 2")  # noqa: S608 - ours
        return [
            ExchangeRow(host, name, kind, True, bool(auto_delete), bool(internal), alternate)
            for host, name, kind, auto_delete, internal, alternate in found
        ]

    def routes(self) -> list[RouteRow]:
        """All bindings, by virtual host and source."""
        columns = "virtual_host, source, destination, to_exchange, key, arguments"
        return [
            RouteRow(host, source, destination, bool(to_exchange), key, json.loads(arguments))
            for host, source, destination, to_exchange, key, arguments in self._rows(
                f"SELECT {columns} FROM routes ORDER BY 1, 2, 3, 5"  # noqa: S608 - ours
            )
        ]

    def add(self, row: ExchangeRow) -> None:
        """Add an exchange."""
        host, name, kind, _, auto_delete, internal, alternate = row
        values = (host, name, kind, auto_delete, internal, alternate)
        with self._change() as db:
            db.execute("INSERT INTO exchanges VALUES (?, ?, ?, ?, ?, ?)", values)

    def remove(self, virtual_host: str, name: str) -> None:
        """Remove an exchange with the bindings from it and to it."""
        with self._change() as db:
            where = (virtual_host, name)
            db.execute("DELETE FROM exchanges WHERE virtual_host = ? AND name = ?", where)
            forget_source(db, virtual_host, name)
            forget_destination(db, virtual_host, name, to_exchange=True)

    def add_route(self, row: RouteRow) -> None:
        """Add a binding."""
        with self._change() as db:
            db.execute("INSERT OR IGNORE INTO routes VALUES (?, ?, ?, ?, ?, ?)", _values(row))

    def remove_route(self, row: RouteRow) -> None:
        """Remove a binding."""
        columns = ("virtual_host", "source", "destination", "to_exchange", "key", "arguments")
        where = " AND ".join(f"{column} = ?" for column in columns)
        with self._change() as db:
            db.execute(f"DELETE FROM routes WHERE {where}", _values(row))  # noqa: S608 - ours


def _values(row: RouteRow) -> tuple[object, ...]:
    return (*row[:5], arguments_text(row.arguments))


def forget_source(db: sqlite3.Connection, virtual_host: str, name: str) -> None:
    """Remove the bindings from an exchange that is gone."""
    where = (virtual_host, name)
    db.execute("DELETE FROM routes WHERE virtual_host = ? AND source = ?", where)


def forget_destination(
    db: sqlite3.Connection, virtual_host: str, name: str, *, to_exchange: bool
) -> None:
    """Remove the bindings that lead to what is gone."""
    where = "virtual_host = ? AND destination = ? AND to_exchange = ?"
    db.execute(f"DELETE FROM routes WHERE {where}", (virtual_host, name, to_exchange))  # noqa: S608
