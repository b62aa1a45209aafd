"""/api/connections and /api/stream: connections, publishers, consumers; ending connections."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.engine import Caller
from streamd.engine.registry import (
    STREAM_PROTOCOL,
    ConsumerFacts,
    LiveConnection,
    PublisherFacts,
)
from streamd.http_api.caller import caller_of
from streamd.http_api.description import DONE, Operation, described
from streamd.http_api.messages import NotFound, Row, done, json_answer, listing, part
from streamd.http_api.service import NODE, Service
from streamd.net.turns import in_turns
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name

logger = logging.getLogger(__name__)

Facts = TypeVar("Facts")

MAX_REASON = 200  # characters that a client is told
_CONNECTIONS_A_TURN = 10
_ONE = "/api/stream/connections/{vhost}/{name}"


class ConnectionPaths:
    """The open connections with their publishers and consumers."""

    TITLE = "Connections"

    def __init__(self, service: Service) -> None:
        self._connections = service.connections
        self._broker = service.broker
        self.routes = [
            Route("/api/connections", self._list),
            Route("/api/connections/username/{user}", self._list),
            Route("/api/connections/username/{user}", self._end_many, methods=["DELETE"]),
            Route("/api/connections/{name}", self._one),
            Route("/api/connections/{name}", self._end, methods=["DELETE"]),
            Route("/api/vhosts/{vhost}/connections", self._list),
            Route("/api/stream/connections", self._list),
            Route("/api/stream/connections/{vhost}", self._list),
            Route(_ONE, self._one),
            Route(_ONE, self._end, methods=["DELETE"]),
            Route(f"{_ONE}/publishers", self._publishers_of_one),
            Route(f"{_ONE}/consumers", self._consumers_of_one),
            Route("/api/stream/publishers", self._publishers),
            Route("/api/stream/publishers/{vhost}", self._publishers),
            Route("/api/stream/publishers/{vhost}/{stream}", self._publishers),
            Route("/api/stream/consumers", self._consumers),
            Route("/api/stream/consumers/{vhost}", self._consumers),
            Route("/api/consumers", self._amqp_consumers),
            Route("/api/consumers/{vhost}", self._amqp_consumers),
        ]

    # -- connections

    @described(Operation(rows="Connection", has_names=True))
    async def _list(self, request: Request) -> Response:
        """Open connections.

        Without the tag `monitoring` or `administrator`, the user's own. Paths with `stream` list
        those of the stream protocol.
        """
        return await listing(request, self._visible(request), _connection_row, lambda c: c.name)

    @described(Operation(answer="Connection"))
    async def _one(self, request: Request) -> Response:
        """An open connection.

        Those of other users need the tag `monitoring` or `administrator`.
        """
        return json_answer(_connection_row(self._find(request)))

    @described(Operation(statuses=DONE))
    async def _end(self, request: Request) -> Response:
        """End a connection.

        The header `X-Reason` says why. Those of other users need the tag `administrator`.
        """
        end_connection(caller_of(request), self._find(request), request.headers.get("x-reason"))
        return done()

    @described(Operation(statuses=DONE))
    async def _end_many(self, request: Request) -> Response:
        """End all connections of a user.

        The header `X-Reason` says why. Those of other users need the tag `administrator`.
        """
        for connection in self._visible(request):
            end_connection(caller_of(request), connection, request.headers.get("x-reason"))
        return done()

    def _visible(self, request: Request) -> Iterator[LiveConnection]:
        """The connections that the caller may see, of the virtual host or user in the path."""
        caller = caller_of(request)
        chosen = self._chosen_host(request, caller)
        user = part(request, "user") if "user" in request.path_params else None
        streams_only = request.url.path.startswith("/api/stream/")
        for connection in self._connections:
            if streams_only and connection.protocol != STREAM_PROTOCOL:
                continue
            if chosen not in (None, connection.virtual_host) or user not in (None, connection.user):
                continue
            if sees_connection(caller, connection):
                yield connection

    def _chosen_host(self, request: Request, caller: Caller) -> Name | None:
        if "vhost" not in request.path_params:
            return None
        host = part(request, "vhost")
        caller.require_host(host)
        if host not in self._broker.virtual_hosts:
            raise NotFound
        return host

    def _find(self, request: Request) -> LiveConnection:
        caller = caller_of(request)
        connection = self._connections.find(part(request, "name"))
        host = self._chosen_host(request, caller)
        if connection is None or host not in (None, connection.virtual_host):
            raise NotFound
        require_connection(caller, connection)
        return connection

    # -- publishers and consumers

    @described(Operation(rows="Publisher", has_names=True))
    async def _publishers(self, request: Request) -> Response:
        """Publishers of the stream protocol."""
        stream = part(request, "stream") if "stream" in request.path_params else None
        pairs = pairs_of(self._visible(request), lambda c: c.publishers())
        chosen = (pair async for pair in pairs if stream in (None, pair[1].stream))
        return await listing(request, chosen, _publisher_row, lambda pair: pair[1].reference)

    @described(Operation(rows="Publisher", has_names=True))
    async def _publishers_of_one(self, request: Request) -> Response:
        """The publishers of a connection.

        Those of other users need the tag `monitoring` or `administrator`.
        """
        pairs = pairs_of([self._find(request)], lambda c: c.publishers())
        return await listing(request, pairs, _publisher_row, lambda pair: pair[1].reference)

    @described(Operation(rows="Consumer", has_names=True))
    async def _consumers(self, request: Request) -> Response:
        """Subscriptions of the stream protocol, with credit, offset and lag."""
        pairs = pairs_of(self._visible(request), lambda c: c.consumers())
        return await listing(request, pairs, _consumer_row, lambda pair: pair[1].stream)

    @described(Operation(rows="Consumer", has_names=True))
    async def _consumers_of_one(self, request: Request) -> Response:
        """The subscriptions of a connection.

        Those of other users need the tag `monitoring` or `administrator`.
        """
        pairs = pairs_of([self._find(request)], lambda c: c.consumers())
        return await listing(request, pairs, _consumer_row, lambda pair: pair[1].stream)

    @described(Operation(rows="QueueConsumer", has_names=True))
    async def _amqp_consumers(self, request: Request) -> Response:
        """Consumers of all protocols."""
        pairs = pairs_of(self._visible(request), lambda c: c.consumers())
        return await listing(request, pairs, amqp_consumer_row, lambda pair: pair[1].stream)


def sees_connection(caller: Caller, connection: LiveConnection) -> bool:
    """Whether a user may look at a connection."""
    return caller.sees_all or connection.user == caller.name


def require_connection(caller: Caller, connection: LiveConnection) -> None:
    """Raise Refused unless a user may look at a connection."""
    if not sees_connection(caller, connection):
        raise Refused(Reason.ACCESS_REFUSED, "the connection belongs to another user")


def may_end(caller: Caller, connection: LiveConnection) -> bool:
    """Whether a user may end a connection."""
    return caller.is_administrator or connection.user == caller.name


def end_connection(
    caller: Caller,
    connection: LiveConnection,
    reason: str | None,
    default: str = "closed through the HTTP API",
) -> None:
    """End a connection.

    Args:
        caller: who wants it.
        connection: which one.
        reason: what its client is told; what is not printable is left out.
        default: the reason where none is given.

    Raises:
        Refused: it is another user's, and the caller is not an administrator.
    """
    if not may_end(caller, connection):
        caller.require_administrator()
    shown = "".join(c for c in (reason or default)[:MAX_REASON] if c.isprintable())
    logger.info("%s: %s ends the connection", connection.peer, caller.name)
    connection.end(shown)


async def pairs_of(
    connections: Iterable[LiveConnection], facts_of: Callable[[LiveConnection], list[Facts]]
) -> AsyncIterator[tuple[LiveConnection, Facts]]:
    """Publishers or consumers of some connections, each with its connection."""
    async for connection in in_turns(connections, _CONNECTIONS_A_TURN):
        for facts in facts_of(connection):
            yield connection, facts


def _connection_row(connection: LiveConnection) -> Row:
    return {
        "name": connection.name,
        "user_provided_name": connection.properties.get("connection_name"),
        "node": NODE,
        "type": "network",
        "protocol": connection.protocol,
        "state": "running",
        "user": connection.user,
        "user_who_performed_action": connection.user,
        "vhost": connection.virtual_host,
        "auth_mechanism": connection.mechanism,
        "client_properties": {"connection_name": "", **connection.properties},
        "host": connection.local.host,
        "port": connection.local.port,
        "peer_host": connection.peer.host,
        "peer_port": connection.peer.port,
        "ssl": connection.is_tls,
        "frame_max": connection.frame_max,
        "timeout": connection.heartbeat_seconds,
        "channel_max": 0,
        "channels": 0,
        "connected_at": connection.connected_at_ms,
        "publishers": len(connection.publishers()),
        "consumers": len(connection.consumers()),
    }


def _details(connection: LiveConnection) -> Row:
    return {
        "name": connection.name,
        "node": NODE,
        "peer_host": connection.peer.host,
        "peer_port": connection.peer.port,
        "user": connection.user,
    }


def _publisher_row(pair: tuple[LiveConnection, PublisherFacts]) -> Row:
    connection, facts = pair
    return {
        "connection_details": _details(connection),
        "queue": {"name": facts.stream, "vhost": connection.virtual_host},
        "publisher_id": facts.publisher_id,
        "reference": facts.reference,
        "published": facts.published,
        "confirmed": facts.confirmed,
        "errored": facts.refused,
    }


def _activity(facts: ConsumerFacts) -> str:
    if not facts.is_single_active:
        return "up"
    return "single_active" if facts.is_active else "waiting"


def _consumer_row(pair: tuple[LiveConnection, ConsumerFacts]) -> Row:
    connection, facts = pair
    return {
        "connection_details": _details(connection),
        "queue": {"name": facts.stream, "vhost": connection.virtual_host},
        "subscription_id": facts.subscription_id,
        "credits": facts.credit,
        "consumed": facts.consumed,
        "offset": max(0, facts.next_offset - 1),
        "offset_lag": facts.lag,
        "active": facts.is_active,
        "activity_status": _activity(facts),
        "properties": dict(facts.properties),
    }


def amqp_consumer_row(pair: tuple[LiveConnection, ConsumerFacts]) -> Row:
    """A subscription as /api/consumers shows it."""
    connection, facts = pair
    details = _details(connection)
    details["connection_name"] = details.pop("name")
    return {
        "queue": {"name": facts.stream, "vhost": connection.virtual_host},
        "consumer_tag": facts.properties.get("identifier", f"stream.subid-{facts.subscription_id}"),
        "channel_details": {**details, "name": "", "number": 0},
        "arguments": dict(facts.properties),
        "ack_required": connection.protocol != STREAM_PROTOCOL,
        "exclusive": False,
        "prefetch_count": 0,
        "active": facts.is_active,
        "activity_status": _activity(facts),
    }
