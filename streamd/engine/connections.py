"""The open connections with their publishers and consumers."""

import logging
from collections.abc import Iterator

from streamd.engine.caller import Caller
from streamd.engine.engine import Call, Handlers, Parts
from streamd.engine.registry import LiveConnection
from streamd.net.turns import in_turns
from streamd.operations import connections as c
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.operations.names import Name

logger = logging.getLogger(__name__)


class Connections:
    """The open connections.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.handlers: Handlers = {
            c.ListConnections: self._list,
            c.GetConnection: self._get,
            c.CloseConnections: self._close,
            c.ListReaders: self._readers,
        }

    async def _list(self, call: Call, request: c.ListConnections) -> list[c.ConnectionDetails]:
        seen = self._seen(call.caller, request.vhost, request.user)
        chosen = (one for one in seen if request.protocol in ("", one.protocol))
        return [_details(call.caller, one) async for one in in_turns(chosen)]

    async def _get(self, call: Call, request: c.GetConnection) -> c.ConnectionDetails:
        return _details(call.caller, self._find(call.caller, request.name, request.vhost))

    async def _close(self, call: Call, request: c.CloseConnections) -> int:
        caller = call.caller
        if request.name:
            chosen = [self._find(caller, request.name, request.vhost)]
        else:
            chosen = list(self._seen(caller, request.vhost, request.user))
        shown = "".join(letter for letter in request.reason if letter.isprintable())
        for connection in chosen:
            if not _may_end(caller, connection):
                caller.require_administrator()
            logger.info("%s: %s ends the connection", connection.peer, caller.name)
            connection.end(shown[: c.MAX_REASON])
        return len(chosen)

    async def _readers(self, call: Call, request: c.ListReaders) -> list[c.Reader]:
        self._parts.host(request.vhost)
        return [
            c.Reader(connection_of(connection), facts)
            async for connection in in_turns(self._parts.connections)
            if connection.virtual_host == request.vhost  # also what another node reads for its own
            and (call.caller.tags or sees_connection(call.caller, connection))
            for facts in connection.consumers()
            if facts.stream == request.stream
        ]

    def _seen(
        self, caller: Caller, vhost: Name | None, user: Name | None
    ) -> Iterator[LiveConnection]:
        self._check_host(caller, vhost)
        for connection in self._parts.connections:
            is_chosen = vhost in (None, connection.virtual_host) and user in (None, connection.user)
            if is_chosen and not connection.is_node and sees_connection(caller, connection):
                yield connection

    def _check_host(self, caller: Caller, vhost: Name | None) -> None:
        if vhost is not None:
            caller.require_host(vhost)
            self._parts.host(vhost)

    def _find(self, caller: Caller, name: str, vhost: Name | None) -> LiveConnection:
        self._check_host(caller, vhost)
        connection = self._parts.connections.find(name)
        if connection is None or connection.is_node or vhost not in (None, connection.virtual_host):
            raise NoSuch(f"there is no connection {name}: it was closed")
        if not sees_connection(caller, connection):
            raise Refused(Reason.ACCESS_REFUSED, "the connection belongs to another user")
        return connection


def sees_connection(caller: Caller, connection: LiveConnection) -> bool:
    """Whether a user may look at a connection."""
    return caller.sees_all or connection.user == caller.name


def _may_end(caller: Caller, connection: LiveConnection) -> bool:
    return caller.is_administrator or connection.user == caller.name


def _details(caller: Caller, connection: LiveConnection) -> c.ConnectionDetails:
    return c.ConnectionDetails(
        connection_of(connection),
        tuple(connection.publishers()),
        tuple(connection.consumers()),
        _may_end(caller, connection),
    )


def connection_of(connection: LiveConnection) -> c.Connection:
    """A connection as it is shown."""
    return c.Connection(
        connection.peer,
        connection.local,
        connection.protocol,
        connection.is_tls,
        connection.user,
        connection.mechanism,
        Name(connection.virtual_host),
        dict(connection.properties),
        connection.frame_max,
        connection.heartbeat_seconds,
        connection.connected_at_ms,
    )
