"""The exchanges of one virtual host, their bindings, and where a message goes.

A super stream is a durable direct exchange here, its partitions are its bindings. Every virtual
host has the default exchange, which leads to each stream by its name, and five of RabbitMQ's.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, TypeAlias

from streamd.broker.catalog_writer import Turn
from streamd.broker.checks import checked_key
from streamd.broker.errors import Reason, Refused
from streamd.broker.resources import ServerResources
from streamd.broker.routing.matching import (
    NO_HEADERS,
    ExchangeRow,
    Headers,
    Kind,
    RouteRow,
    arguments_text,
    follows,
)
from streamd.broker.routing.rules import (
    DEFAULT_EXCHANGE,
    as_super_stream,
    check_arguments,
    check_lengths,
    check_not_default,
    check_not_reserved,
    check_same,
    check_same_super,
)

if TYPE_CHECKING:
    from streamd.broker.virtual_host import VirtualHost

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

_Identity: TypeAlias = tuple[str, bool, str, str]


class Exchanges:
    """Declared, bound, followed.

    Args:
        host: the virtual host.
        resources: the catalog, and who may change it.

    Attributes:
        version: another one after every change to where messages may go; streams included.
    """

    def __init__(self, host: "VirtualHost", resources: ServerResources) -> None:
        self.version = 0
        self._host = host
        self._resources = resources
        self._routes: dict[str, dict[_Identity, RouteRow]] = {}
        self._rows: dict[str, ExchangeRow] = {
            name: ExchangeRow(host.name, name, kind, True, False, False, "")
            for name, kind in _BUILT_IN
        }

    def load(self, rows: Iterable[ExchangeRow], routes: Iterable[RouteRow]) -> None:
        """Take what the catalog has."""
        self._rows |= {row.name: row for row in rows}
        for route in routes:
            # Versions before this one left bindings to super streams that were deleted.
            if not route.to_exchange or self.has(route.destination):
                self._routes.setdefault(route.source, {})[_identity(route)] = route

    def changed(self) -> None:
        """Where messages may go is not what it was."""
        self.version += 1

    # -- finding

    def find(self, name: str) -> ExchangeRow:
        """The exchange of that name.

        Raises:
            Refused: there is none.
        """
        row = self._rows.get(name)
        if row is not None:
            return row
        if name in self._host.super_streams:
            return as_super_stream(self._host.name, name)
        if name == DEFAULT_EXCHANGE:
            return ExchangeRow(self._host.name, name, Kind.DIRECT, True, False, False, "")
        details = f"no exchange '{name}' in vhost '{self._host.name}'"
        raise Refused(Reason.NOT_FOUND, details)

    def has(self, name: str) -> bool:
        """Whether there is an exchange of that name."""
        return name in self._rows or name in self._host.super_streams or name == DEFAULT_EXCHANGE

    def rows(self) -> list[ExchangeRow]:
        """All of them, the default exchange and super streams too, by name."""
        super_streams = (row.name for row in self._host.super_streams.rows())
        return [self.find(name) for name in sorted([DEFAULT_EXCHANGE, *self._rows, *super_streams])]

    def num_exchanges(self) -> int:
        """How many there are, but for the default exchange."""
        return len(self._rows) + len(self._host.super_streams)

    def routes_from(self, name: str) -> list[RouteRow]:
        """The bindings of an exchange; partitions, and each stream's to the default one, too."""
        if name == DEFAULT_EXCHANGE:
            host = self._host
            return [RouteRow(host.name, name, s, False, s, NO_HEADERS) for s in host.names()]
        found = self._host.super_streams.routes_from(name)
        return [*found, *self._routes.get(name, {}).values()]

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
        if row is not None and (row.alternate or row.kind == Kind.HEADERS):
            return True
        return any(route.to_exchange for route in self._routes.get(name, {}).values())

    def _kind(self, name: str) -> tuple[str, str]:
        row = self._rows.get(name)
        return (row.kind, row.alternate) if row else (Kind.DIRECT, "")

    # -- changing

    async def declare(self, row: ExchangeRow, *, super_stream: bool | None = None) -> bool:
        """Add an exchange; one that is there has to be the same.

        Args:
            row: what it is to be.
            super_stream: whether it is to be a super stream, where it can be one; None when that
                was not said: a new one is none then, one that is there stays what it is.

        Returns:
            Whether it is new.

        Raises:
            Refused: it is another one, nobody may have that name, there are too many, or the disk
                refused.
        """
        check_lengths(row)
        can_be_super = row == as_super_stream(self._host.name, row.name)
        async with self._resources.catalog.turn() as turn:
            self._host.check_there()
            check_not_default(row.name)
            if self.has(row.name):
                check_same(self.find(row.name), row)
                if can_be_super and super_stream is not None:
                    check_same_super(row, row.name in self._host.super_streams, super_stream)
                return False
            check_not_reserved(row.name)
            self.check_room()
            if can_be_super and super_stream:
                await self._host.super_streams.declare(turn, row.name)
                return True
            if row.is_durable:
                await turn.commit(lambda catalog: catalog.add_exchange(row))
            self._rows[row.name] = row
            self.changed()
            return True

    def check_room(self) -> None:
        """Raise Refused when there cannot be another exchange or super stream."""
        if self.num_exchanges() >= MAX_EXCHANGES:
            details = f"there are {MAX_EXCHANGES:,} exchanges, the most of a virtual host"
            raise Refused(Reason.PRECONDITION_FAILED, details)

    def check_room_for_routes(self, wanted: int) -> None:
        """Raise Refused when there cannot be so many more bindings."""
        used = self._host.super_streams.num_partitions() + sum(map(len, self._routes.values()))
        if used + wanted > MAX_ROUTES:
            details = (
                f"there would be more than {MAX_ROUTES:,} bindings, the most of a virtual host"
            )
            raise Refused(Reason.PRECONDITION_FAILED, details)

    async def delete(self, name: str, *, if_unused: bool) -> None:
        """Remove an exchange with its bindings, where there is one.

        A super stream leaves its streams.

        Raises:
            Refused: it is in use, is there in every virtual host, or the disk refused.
        """
        async with self._resources.catalog.turn() as turn:
            check_not_default(name)
            check_not_reserved(name)
            if if_unused and self.routes_from(name):
                details = f"exchange '{name}' in vhost '{self._host.name}' in use"
                raise Refused(Reason.PRECONDITION_FAILED, details)
            if name in self._host.super_streams:
                await self._host.super_streams.drop(turn, name)
            elif name in self._rows:
                await self._remove(turn, name)

    async def _remove(self, turn: Turn, name: str) -> None:
        host = self._host.name
        await turn.commit(lambda catalog: catalog.remove_exchange(host, name))
        self._rows.pop(name, None)
        self._routes.pop(name, None)
        self._drop_routes_to({name}, to_exchange=True)
        self.changed()

    async def bind(self, route: RouteRow) -> RouteRow:
        """Add a binding; one that is there stays. A stream bound to a super stream is a partition.

        Returns:
            The binding as it is kept: a partition's has its order.

        Raises:
            Refused: one of its ends is missing or may not be bound, it has bad arguments, there
                are too many, or the disk refused.
        """
        async with self._resources.catalog.turn() as turn:
            self._host.check_there()
            self._check_ends(route)
            if self._is_partition(route):
                return await self._host.super_streams.bind(turn, route)
            routes = self._routes.setdefault(route.source, {})
            if _identity(route) in routes:
                return route
            if len(routes) >= _MAX_ROUTES_FROM_ONE:
                details = (
                    f"{route.source} has {_MAX_ROUTES_FROM_ONE:,} bindings, the most there can be"
                )
                raise Refused(Reason.PRECONDITION_FAILED, details)
            checked_key(route.key)
            check_arguments(route)
            self.check_room_for_routes(1)
            if self.is_kept(route):
                await turn.commit(lambda catalog: catalog.add_route(route))
            routes[_identity(route)] = route
            self.changed()
            return route

    async def unbind(self, route: RouteRow) -> None:
        """Remove a binding where there is one between these ends.

        Raises:
            Refused: one of its ends is missing or cannot be unbound, or the disk refused.
        """
        async with self._resources.catalog.turn() as turn:
            self._check_ends(route)
            if self._is_partition(route):
                await self._host.super_streams.unbind(turn, route)
                return
            routes = self._routes.get(route.source, {})
            if _identity(route) not in routes:
                return
            await turn.commit(lambda catalog: catalog.remove_route(route))
            del routes[_identity(route)]
            self.changed()
            row = self._rows.get(route.source)
            if row is not None and row.auto_delete and not routes:
                await self._remove(turn, route.source)

    def _check_ends(self, route: RouteRow) -> None:
        check_not_default(route.source)
        self.find(route.source)
        if route.to_exchange:
            check_not_default(route.destination)
            self.find(route.destination)
        elif not self._host.has_stream(route.destination):
            details = f"no queue '{route.destination}' in vhost '{self._host.name}'"
            raise Refused(Reason.NOT_FOUND, details)

    def _is_partition(self, route: RouteRow) -> bool:
        return route.source in self._host.super_streams and not route.to_exchange

    def is_kept(self, route: RouteRow) -> bool:
        """Whether a binding is for longer than this run of the server: both its ends are."""
        ends = [route.source, *([route.destination] if route.to_exchange else [])]
        return all(self.find(name).is_durable for name in ends)

    def forget_streams(self, names: Collection[str], super_stream: str | None = None) -> None:
        """Streams are gone, and a super stream, in the catalog too."""
        if super_stream is not None:
            self._routes.pop(super_stream, None)
            self._drop_routes_to({super_stream}, to_exchange=True)
        self._drop_routes_to(set(names), to_exchange=False)
        self.changed()

    def _drop_routes_to(self, names: set[str], *, to_exchange: bool) -> None:
        for source, routes in self._routes.items():
            self._routes[source] = {
                identity: route
                for identity, route in routes.items()
                if route.to_exchange != to_exchange or route.destination not in names
            }


def _identity(route: RouteRow) -> _Identity:
    """What tells the bindings of one exchange apart."""
    return route.destination, route.to_exchange, route.key, arguments_text(route.arguments)
