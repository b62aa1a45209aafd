"""/api/exchanges and bindings: super streams, as AMQP sees them.

A super stream is a direct exchange, a partition is a stream bound to it, and the argument
x-stream-partition-order says at which place. Client suites build super streams from these.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.access import Right
from streamd.catalog import Binding, SuperStreamRow
from streamd.http_api.caller import caller_of
from streamd.http_api.messages import (
    BadRequest,
    Row,
    done,
    json_answer,
    listing,
    part,
    read_body,
    text,
)
from streamd.http_api.queues import host_of
from streamd.http_api.service import Service
from streamd.virtual_host import VirtualHost

SUPER_STREAM = "x-super-stream"
ORDER = "x-stream-partition-order"
DIRECT = "direct"
_ONE = "/api/exchanges/{vhost}/{name}"
_BETWEEN = "/api/bindings/{vhost}/e/{name}/q/{stream}"
_MAX_ORDER = (1 << 31) - 1


class ExchangePaths:
    """Super streams as exchanges, their partitions as bindings.

    Attributes:
        routes: of the paths.
    """

    def __init__(self, service: Service) -> None:
        self._broker = service.broker
        self.routes = [
            Route("/api/exchanges", self._list),
            Route("/api/exchanges/{vhost}", self._list),
            Route(_ONE, self._one),
            Route(_ONE, self._create, methods=["PUT"]),
            Route(_ONE, self._delete, methods=["DELETE"]),
            Route(_ONE + "/bindings/source", self._bindings),
            Route("/api/queues/{vhost}/{stream}/bindings", self._bindings),
            Route("/api/bindings", self._bindings),
            Route("/api/bindings/{vhost}", self._bindings),
            Route(_BETWEEN, self._bindings),
            Route(_BETWEEN, self._bind, methods=["POST"]),
            Route(_BETWEEN + "/{key}", self._unbind, methods=["DELETE"]),
        ]

    def _hosts(self, request: Request) -> list[VirtualHost]:
        hosts = self._broker.virtual_hosts
        if "vhost" in request.path_params:
            return [host_of(hosts, request)]
        caller = caller_of(request)
        return [hosts[name] for name in sorted(hosts) if caller.sees_host(name)]

    async def _list(self, request: Request) -> Response:
        rows = [row for host in self._hosts(request) for row in host.super_streams.values()]
        return await listing(request, sorted(rows), exchange_row, lambda row: row.name)

    async def _one(self, request: Request) -> Response:
        host = host_of(self._broker.virtual_hosts, request)
        return json_answer(exchange_row(host.find_super_stream(part(request, "name"))))

    async def _create(self, request: Request) -> Response:
        host = host_of(self._broker.virtual_hosts, request)
        name = part(request, "name")
        caller_of(request).require(Right.CONFIGURE, host.name, name)
        return done(is_new=await create_exchange(host, name, await read_body(request)))

    async def _delete(self, request: Request) -> Response:
        host = host_of(self._broker.virtual_hosts, request)
        name = part(request, "name")
        caller_of(request).require(Right.CONFIGURE, host.name, name)
        await host.drop_super_stream(name)
        return done()

    # -- bindings

    async def _bindings(self, request: Request) -> Response:
        wanted = {
            key: part(request, key) for key in ("name", "stream") if key in request.path_params
        }
        rows = [
            (row, binding)
            for host in self._hosts(request)
            for row in sorted(host.super_streams.values())
            for binding in row.bindings
            if wanted.get("name", row.name) == row.name
            and wanted.get("stream", binding.stream) == binding.stream
        ]
        return await listing(request, rows, lambda item: binding_row(*item))

    async def _bind(self, request: Request) -> Response:
        host = host_of(self._broker.virtual_hosts, request)
        name, stream = part(request, "name"), part(request, "stream")
        self._require_binding(request, host, name, stream)
        await bind(host, name, stream, await read_body(request))
        return done(is_new=True)

    async def _unbind(self, request: Request) -> Response:
        host = host_of(self._broker.virtual_hosts, request)
        name, stream = part(request, "name"), part(request, "stream")
        self._require_binding(request, host, name, stream)
        await host.unbind(name, part(request, "key"), stream)
        return done()

    def _require_binding(self, request: Request, host: VirtualHost, name: str, stream: str) -> None:
        caller = caller_of(request)
        caller.require(Right.READ, host.name, name)
        caller.require(Right.WRITE, host.name, stream)


async def create_exchange(host: VirtualHost, name: str, body: Row) -> bool:
    """Create a super stream without partitions; whether it is new.

    Raises:
        BadRequest: it is no exchange of a super stream.
        Refused: it cannot be created.
    """
    kind = text(body, "type", DIRECT)
    if kind != DIRECT:
        raise BadRequest(f"type is {kind[:40]!r}: this server has direct exchanges only")
    return await host.declare_super_stream(name)


async def bind(host: VirtualHost, name: str, stream: str, body: Row) -> None:
    """Make a stream a partition as definitions and requests describe it.

    Raises:
        BadRequest: the order is no number.
        Refused: no such super stream or stream, or too many partitions.
    """
    arguments = body.get("arguments") or {}
    order = arguments.get(ORDER) if isinstance(arguments, dict) else None
    await host.bind(name, text(body, "routing_key", ""), stream, _order(order))


def _order(order: Any) -> int | None:  # noqa: ANN401 - as JSON has it
    if order is None:
        return None
    try:
        return min(max(0, int(order)), _MAX_ORDER)
    except (TypeError, ValueError, OverflowError):  # JSON has numbers without end
        raise BadRequest(f"{ORDER} is {order!r}, expected a number") from None


def exchange_row(row: SuperStreamRow) -> Row:
    """A super stream as an exchange."""
    return {
        "name": row.name,
        "vhost": row.virtual_host,
        "type": DIRECT,
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {SUPER_STREAM: True},
    }


def binding_row(row: SuperStreamRow, binding: Binding) -> Row:
    """A partition as a binding."""
    return {
        "source": row.name,
        "vhost": row.virtual_host,
        "destination": binding.stream,
        "destination_type": "queue",
        "routing_key": binding.key,
        "arguments": {ORDER: binding.order},
        "properties_key": binding.key,
    }
