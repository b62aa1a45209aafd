"""/api/connections and /api/stream: connections, publishers, consumers; ending connections."""

from collections.abc import Iterator
from itertools import chain

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.http_api.description import DONE, Operation, described
from streamd.http_api.exchanges import host_part
from streamd.http_api.messages import Row, done, json_answer, listing, part
from streamd.http_api.service import Service
from streamd.operations import connections as c
from streamd.operations.connections import STREAM_PROTOCOL, Connection, ConsumerFacts
from streamd.operations.server import NODE

_ONE = "/api/stream/connections/{vhost}/{name}"


class ConnectionPaths:
    """The open connections with their publishers and consumers."""

    TITLE = "Connections"

    def __init__(self, service: Service) -> None:
        self._ask = service.ask
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
        found = await self._visible(request)
        return await listing(request, found, _connection_row, lambda found: found.connection.name)

    @described(Operation(answer="Connection"))
    async def _one(self, request: Request) -> Response:
        """An open connection.

        Those of other users need the tag `monitoring` or `administrator`.
        """
        return json_answer(_connection_row(await self._find(request)))

    @described(Operation(statuses=DONE))
    async def _end(self, request: Request) -> Response:
        """End a connection.

        The header `X-Reason` says why. Those of other users need the tag `administrator`.
        """
        asked = c.CloseConnections(
            name=part(request, "name"), vhost=host_part(request), reason=_reason(request)
        )
        await self._ask(request, asked)
        return done()

    @described(Operation(statuses=DONE))
    async def _end_many(self, request: Request) -> Response:
        """End all connections of a user.

        The header `X-Reason` says why. Those of other users need the tag `administrator`.
        """
        asked = c.CloseConnections(user=part(request, "user"), reason=_reason(request))
        await self._ask(request, asked)
        return done()

    async def _visible(self, request: Request) -> list[c.ConnectionDetails]:
        """The connections that the user may see, of the virtual host or user in the path."""
        user = part(request, "user") if "user" in request.path_params else None
        is_stream = request.url.path.startswith("/api/stream/")
        asked = c.ListConnections(
            vhost=host_part(request), user=user, protocol=STREAM_PROTOCOL if is_stream else ""
        )
        return await self._ask(request, asked)

    async def _find(self, request: Request) -> c.ConnectionDetails:
        asked = c.GetConnection(name=part(request, "name"), vhost=host_part(request))
        return await self._ask(request, asked)

    # -- publishers and consumers

    @described(Operation(rows="Publisher", has_names=True))
    async def _publishers(self, request: Request) -> Response:
        """Publishers of the stream protocol."""
        stream = part(request, "stream") if "stream" in request.path_params else None
        pairs = chain.from_iterable(map(_publishers, await self._visible(request)))
        chosen = (pair for pair in pairs if stream in (None, pair[1].stream))
        return await listing(request, chosen, _publisher_row, lambda pair: pair[1].reference)

    @described(Operation(rows="Publisher", has_names=True))
    async def _publishers_of_one(self, request: Request) -> Response:
        """The publishers of a connection.

        Those of other users need the tag `monitoring` or `administrator`.
        """
        pairs = _publishers(await self._find(request))
        return await listing(request, pairs, _publisher_row, lambda pair: pair[1].reference)

    @described(Operation(rows="Consumer", has_names=True))
    async def _consumers(self, request: Request) -> Response:
        """Subscriptions of the stream protocol, with credit, offset and lag."""
        pairs = chain.from_iterable(map(_consumers, await self._visible(request)))
        return await listing(request, pairs, _consumer_row, lambda pair: pair[1].stream)

    @described(Operation(rows="Consumer", has_names=True))
    async def _consumers_of_one(self, request: Request) -> Response:
        """The subscriptions of a connection.

        Those of other users need the tag `monitoring` or `administrator`.
        """
        pairs = _consumers(await self._find(request))
        return await listing(request, pairs, _consumer_row, lambda pair: pair[1].stream)

    @described(Operation(rows="QueueConsumer", has_names=True))
    async def _amqp_consumers(self, request: Request) -> Response:
        """Consumers of all protocols."""
        pairs = chain.from_iterable(map(_consumers, await self._visible(request)))
        return await listing(request, pairs, amqp_consumer_row, lambda pair: pair[1].stream)


def _reason(request: Request) -> str:
    return request.headers.get("x-reason", "closed through the HTTP API")


def _publishers(found: c.ConnectionDetails) -> Iterator[tuple[Connection, c.PublisherFacts]]:
    return ((found.connection, facts) for facts in found.publishers)


def _consumers(found: c.ConnectionDetails) -> Iterator[tuple[Connection, ConsumerFacts]]:
    return ((found.connection, facts) for facts in found.consumers)


def _connection_row(found: c.ConnectionDetails) -> Row:
    connection = found.connection
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
        "publishers": len(found.publishers),
        "consumers": len(found.consumers),
    }


def _details(connection: Connection) -> Row:
    return {
        "name": connection.name,
        "node": NODE,
        "peer_host": connection.peer.host,
        "peer_port": connection.peer.port,
        "user": connection.user,
    }


def _publisher_row(pair: tuple[Connection, c.PublisherFacts]) -> Row:
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


def _consumer_row(pair: tuple[Connection, ConsumerFacts]) -> Row:
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


def amqp_consumer_row(pair: tuple[Connection, ConsumerFacts]) -> Row:
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
