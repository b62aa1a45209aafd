"""The rows that one change of the catalog writes; catalog.Catalog commits them."""

import json
import sqlite3
from collections.abc import Iterable

from streamd.broker.declared.rows import PermissionRow, StreamRow, UserRow
from streamd.broker.declared.standing_selectors import StandingSelector
from streamd.operations.arguments import arguments_to_json
from streamd.operations.routing import NO_HEADERS, Binding, ExchangeRow, arguments_text

_TABLES_OF_A_HOST = ("streams", "exchanges", "bindings", "standing_selectors", "permissions")


class Transaction:
    """Writes rows: either all of them are committed, or none."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    # -- streams

    def add_streams(self, rows: Iterable[StreamRow]) -> None:
        """Add streams, which have no files yet."""
        values = [
            (
                row.virtual_host,
                row.name,
                arguments_to_json(row.arguments),
                arguments_to_json(row.settings),
            )
            for row in rows
        ]
        insert = "INSERT INTO streams (virtual_host, name, arguments, settings, has_files)"
        self._db.executemany(f"{insert} VALUES (?, ?, ?, ?, 0)", values)

    def put_files(self, virtual_host: str, name: str) -> None:
        """A stream has its files from now on."""
        update = "UPDATE streams SET has_files = 1 WHERE virtual_host = ? AND name = ?"
        self._db.execute(update, (virtual_host, name))

    def put_all_files(self, names: Iterable[tuple[str, str]]) -> None:
        """Streams, by virtual host and name, that have files; all others have none."""
        self._db.execute("UPDATE streams SET has_files = 0")
        for virtual_host, name in names:
            self.put_files(virtual_host, name)

    def put_arguments(self, row: StreamRow) -> None:
        """Replace a stream's arguments and settings."""
        arguments, settings = map(arguments_to_json, (row.arguments, row.settings))
        update = "UPDATE streams SET arguments = ?, settings = ?"
        where = "WHERE virtual_host = ? AND name = ?"
        self._db.execute(f"{update} {where}", (arguments, settings, row.virtual_host, row.name))

    def remove_streams(self, virtual_host: str, names: Iterable[str]) -> None:
        """Remove streams with their selectors and the bindings that lead to them."""
        for name in names:
            self._delete("streams", virtual_host=virtual_host, name=name)
            self._delete("standing_selectors", virtual_host=virtual_host, stream=name)
            self._remove_bindings_to(virtual_host, name, to_exchange=False)

    def put_selector(self, virtual_host: str, stream: str, row: StandingSelector) -> None:
        """Add a group's selector or replace it."""
        insert = "INSERT OR REPLACE INTO standing_selectors VALUES (?, ?, ?, ?, ?, ?)"
        self._db.execute(insert, (virtual_host, stream, *row))

    def remove_selector(self, virtual_host: str, stream: str, group: str) -> None:
        """Remove a group's selector."""
        where = {"virtual_host": virtual_host, "stream": stream, "consumers": group}
        self._delete("standing_selectors", **where)

    # -- exchanges and bindings, super streams and partitions

    def add_exchange(self, row: ExchangeRow) -> None:
        """Add a durable exchange."""
        host, name, exchange_type, _, auto_delete, internal, alternate, super_stream = row
        values = (host, name, exchange_type, auto_delete, internal, alternate, super_stream)
        self._db.execute("INSERT INTO exchanges VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def remove_exchanges(self, virtual_host: str, names: Iterable[str]) -> None:
        """Remove exchanges with the bindings from them and to them."""
        for name in names:
            self._delete("exchanges", virtual_host=virtual_host, name=name)
            self._delete("bindings", virtual_host=virtual_host, source=name)
            self._remove_bindings_to(virtual_host, name, to_exchange=True)

    def put_binding(self, row: Binding) -> None:
        """Add a binding; an existing partition moves to this position."""
        values = (*_key_of(row).values(), row.position)
        insert = "INSERT OR REPLACE INTO bindings VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._db.execute(insert, values)

    def remove_binding(self, row: Binding) -> None:
        """Remove a binding."""
        self._delete("bindings", **_key_of(row))

    def _remove_bindings_to(self, virtual_host: str, name: str, *, to_exchange: bool) -> None:
        where = {"virtual_host": virtual_host, "destination": name, "to_exchange": to_exchange}
        self._delete("bindings", **where)

    # -- virtual hosts

    def add_virtual_host(self, name: str) -> None:
        """Add a virtual host."""
        self._db.execute("INSERT INTO virtual_hosts VALUES (?)", (name,))

    def remove_virtual_host(self, name: str) -> None:
        """Remove a virtual host with everything in it, and the permissions of users there."""
        self._delete("virtual_hosts", name=name)
        for table in _TABLES_OF_A_HOST:
            self._delete(table, virtual_host=name)

    # -- users

    def put_user(self, user: UserRow) -> None:
        """Add a user or replace one."""
        values = (user.name, user.password_hash, json.dumps(user.tags))
        self._db.execute("INSERT OR REPLACE INTO users VALUES (?, ?, ?)", values)

    def remove_user(self, name: str) -> None:
        """Remove a user and its permissions."""
        self._delete("users", name=name)
        self._delete("permissions", user=name)

    def put_permission(self, permission: PermissionRow) -> None:
        """Set the rights of a user in a virtual host."""
        self._db.execute("INSERT OR REPLACE INTO permissions VALUES (?, ?, ?, ?, ?)", permission)

    def remove_permission(self, user: str, virtual_host: str) -> None:
        """Remove the rights of a user in a virtual host."""
        self._delete("permissions", user=user, virtual_host=virtual_host)

    def _delete(self, table: str, **where: object) -> None:
        condition = " AND ".join(f"{column} = ?" for column in where)
        statement = f"DELETE FROM {table} WHERE {condition}"  # noqa: S608 - names of ours alone
        self._db.execute(statement, tuple(where.values()))


def _key_of(row: Binding) -> dict[str, object]:
    """The columns that tell bindings apart, in their order; a partition may change its position."""
    arguments = row.arguments if row.position is None else NO_HEADERS
    return {
        "virtual_host": row.virtual_host,
        "source": row.source,
        "destination": row.destination,
        "to_exchange": row.to_exchange,
        "key": row.key,
        "arguments": arguments_text(arguments),
    }
