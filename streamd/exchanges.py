"""The exchanges of one virtual host, their bindings, and where a message goes.

A super stream is a durable direct exchange here, its partitions are its bindings. Every virtual
host has the default exchange, which leads to each stream by its name, and five of RabbitMQ's.
"""

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from streamd import threads
from streamd.catalog import CatalogError
from streamd.errors import Refused
from streamd.routing import NO_HEADERS, ExchangeRow, Headers, Kind, RouteRow, follows
from streamd.shared import Shared
from streamd.wire import ResponseCode

if TYPE_CHECKING:
    from streamd.virtual_host import VirtualHost

DEFAULT_EXCHANGE = ""
RESERVED_PREFIX = "amq."
_BUILT_IN = (
    ("amq.direct", Kind.DIRECT),
    ("amq.fanout", Kind.FANOUT),
    ("amq.topic", Kind.TOPIC),
    ("amq.headers", Kind.HEADERS),
    ("amq.match", Kind.HEADERS),
)
MAX_EXCHANGES = 10_000  # of a virtual host, super streams included
MAX_ROUTES = 100_000  # bindings of all of them
_MAX_ROUTES_FROM_ONE = 10_000
MAX_ROUTE_BYTES = 1_024  # of a binding's arguments


class Exchanges:
    """Declared, bound, followed.

    Args:
        host: the virtual host.
        shared: the catalog, and who may change it.

    Attributes:
        version: another one after every change to where messages may go; streams included.
    """

    def __init__(self, host: "VirtualHost", shared: Shared) -> None:
        self.version = 0
        self._host = host
        self._shared = shared
        self._routes: dict[str, list[RouteRow]] = {}
        self._rows: dict[str, ExchangeRow] = {
            name: ExchangeRow(host.name, name, kind, True, False, False, "")
            for name, kind in _BUILT_IN
        }

    def load(self, rows: Iterable[ExchangeRow], routes: Iterable[RouteRow]) -> None:
        """Take what the catalog has."""
        self._rows |= {row.name: row for row in rows}
        for route in routes:
            self._routes.setdefault(route.source, []).append(route)

    def changed(self) -> None:
        """Where messages may go is not what it was."""
        self.version += 1

    # -- finding

    def find(self, name: str) -> ExchangeRow:
        """The exchange of that name; the default exchange has no row.

        Raises:
            Refused: there is none.
        """
        row = self._rows.get(name)
        if row is not None:
            return row
        if name in self._host.super_streams:
            return as_super_stream(self._host.name, name)
        details = f"no exchange '{name}' in vhost '{self._host.name}'"
        raise Refused(ResponseCode.STREAM_DOES_NOT_EXIST, details)

    def has(self, name: str) -> bool:
        """Whether there is an exchange of that name."""
        return name in self._rows or name in self._host.super_streams

    def routes_from(self, name: str) -> list[RouteRow]:
        """The bindings of an exchange, those of a super stream included."""
        found = list(self._routes.get(name, ()))
        super_stream = self._host.super_streams.get(name)
        if super_stream is not None:
            bindings = super_stream.bindings
            host = self._host.name
            found += [RouteRow(host, name, b.stream, False, b.key, NO_HEADERS) for b in bindings]
        return found

    def reach(self, name: str, keys: Collection[str], headers: Headers) -> list[str]:
        """The streams that a message published to an exchange goes to, each once.

        Raises:
            Refused: there is no such exchange.
        """
        if name == DEFAULT_EXCHANGE:
            return list(dict.fromkeys(keys))
        self.find(name)
        found: dict[str, None] = {}
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            current = waiting.pop()
            if current in seen:
                continue
            seen.add(current)
            kind, alternate = self._kind(current)
            followed = [r for r in self.routes_from(current) if follows(kind, r, keys, headers)]
            found.update(dict.fromkeys(r.destination for r in followed if not r.to_exchange))
            waiting += [r.destination for r in followed if r.to_exchange]
            if not followed and alternate:
                waiting.append(alternate)
        return list(found)

    def looks_at_headers(self, name: str) -> bool:
        """Whether it is not the routing key alone that tells where a message goes."""
        row = self._rows.get(name)
        if row is None:
            return False
        is_plain = not row.alternate and not any(r.to_exchange for r in self._routes.get(name, ()))
        return row.kind == Kind.HEADERS or not is_plain

    def _kind(self, name: str) -> tuple[str, str]:
        row = self._rows.get(name)
        return (row.kind, row.alternate) if row else (Kind.DIRECT, "")

    # -- changing

    async def declare(self, row: ExchangeRow) -> None:
        """Add an exchange; one that is there has to be the same.

        Raises:
            Refused: it is another one, there are too many, or the disk refused.
        """
        async with self._shared.changes:
            if self.has(row.name):
                self._check_same(self.find(row.name), row)
                return
            self.check_room()
            if row.is_durable:
                await self._write(self._shared.catalog.exchanges.add, row)
            self._rows[row.name] = row
            self.changed()

    def check_room(self) -> None:
        """Raise Refused when there cannot be another exchange or super stream."""
        if len(self._rows) + len(self._host.super_streams) >= MAX_EXCHANGES:
            details = f"there are {MAX_EXCHANGES:,} exchanges, the most of a virtual host"
            raise Refused(ResponseCode.PRECONDITION_FAILED, details)

    def check_room_for_routes(self, wanted: int) -> None:
        """Raise Refused when there cannot be so many more bindings."""
        of_super_streams = sum(len(row.bindings) for row in self._host.super_streams.values())
        if of_super_streams + sum(map(len, self._routes.values())) + wanted > MAX_ROUTES:
            details = (
                f"there would be more than {MAX_ROUTES:,} bindings, the most of a virtual host"
            )
            raise Refused(ResponseCode.PRECONDITION_FAILED, details)

    def _check_same(self, known: ExchangeRow, wanted: ExchangeRow) -> None:
        for field, was, now in zip(ExchangeRow._fields, known, wanted, strict=True):
            if was != now:
                name = {"kind": "type", "alternate": "alternate-exchange"}.get(field, field)
                details = (
                    f"inequivalent arg '{name.removeprefix('is_')}' for exchange '{known.name}' in "
                    f"vhost '{known.virtual_host}': received '{now}' but current is '{was}'"
                )
                raise Refused(ResponseCode.PRECONDITION_FAILED, details)

    async def delete(self, name: str, *, if_unused: bool) -> None:
        """Remove an exchange with its bindings; a super stream leaves its streams.

        Raises:
            Refused: it is in use, or the disk refused.
        """
        if if_unused and self.routes_from(name):
            details = f"exchange '{name}' in vhost '{self._host.name}' in use"
            raise Refused(ResponseCode.PRECONDITION_FAILED, details)
        if name in self._host.super_streams:
            await self._host.drop_super_stream(name)
            self.changed()
        async with self._shared.changes:
            if name in self._rows or name in self._routes:
                await self._remove(name)

    async def _remove(self, name: str) -> None:
        await self._write(self._shared.catalog.exchanges.remove, self._host.name, name)
        self._rows.pop(name, None)
        self._routes.pop(name, None)
        self._drop_routes_to({name}, to_exchange=True)
        self.changed()

    async def bind(self, route: RouteRow) -> None:
        """Add a binding between what exists; one that is there stays.

        Raises:
            Refused: there are too many, or the disk refused.
        """
        async with self._shared.changes:
            routes = self._routes.setdefault(route.source, [])
            if route in routes:
                return
            if len(routes) >= _MAX_ROUTES_FROM_ONE:
                details = (
                    f"{route.source} has {_MAX_ROUTES_FROM_ONE:,} bindings, the most there can be"
                )
                raise Refused(ResponseCode.PRECONDITION_FAILED, details)
            _check_size(route)
            self.check_room_for_routes(1)
            if self._is_kept(route):
                await self._write(self._shared.catalog.exchanges.add_route, route)
            routes.append(route)
            self.changed()

    async def unbind(self, route: RouteRow) -> None:
        """Remove a binding where there is one.

        Raises:
            Refused: the disk refused.
        """
        async with self._shared.changes:
            routes = self._routes.get(route.source, [])
            if route not in routes:
                return
            await self._write(self._shared.catalog.exchanges.remove_route, route)
            routes.remove(route)
            self.changed()
            row = self._rows.get(route.source)
            if row is not None and row.auto_delete and not routes:
                await self._remove(route.source)

    def _is_kept(self, route: RouteRow) -> bool:
        """Whether a binding is for longer than this run of the server: both its ends are."""
        ends = [route.source, *([route.destination] if route.to_exchange else [])]
        return all(self.find(name).is_durable for name in ends)

    async def _write(self, change: Callable[..., None], *values: Any) -> None:  # noqa: ANN401
        try:
            await threads.in_thread(change, *values)
        except CatalogError as error:
            raise Refused(ResponseCode.INTERNAL_ERROR, str(error)) from error

    def forget_streams(self, names: Collection[str], super_stream: str | None = None) -> None:
        """Streams are gone, and a super stream, in the catalog too."""
        if super_stream is not None and super_stream not in self._rows:
            self._routes.pop(super_stream, None)
        self._drop_routes_to(set(names), to_exchange=False)
        self.changed()

    def _drop_routes_to(self, names: set[str], *, to_exchange: bool) -> None:
        for source, routes in self._routes.items():
            self._routes[source] = [
                r for r in routes if r.to_exchange != to_exchange or r.destination not in names
            ]


def _check_size(route: RouteRow) -> None:
    size = sum(len(name) + len(str(value)) for name, value in route.arguments.items())
    if size > MAX_ROUTE_BYTES:
        details = (
            f"the binding's arguments have {size:,} characters, expected at most "
            f"{MAX_ROUTE_BYTES:,}"
        )
        raise Refused(ResponseCode.PRECONDITION_FAILED, details)


def as_super_stream(virtual_host: str, name: str) -> ExchangeRow:
    """A super stream as an exchange."""
    return ExchangeRow(virtual_host, name, Kind.DIRECT, True, False, False, "")
