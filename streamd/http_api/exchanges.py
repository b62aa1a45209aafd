"""/api/exchanges: the default one, RabbitMQ's five, super streams, and declared ones.

A super stream is a durable direct exchange. Such an exchange, declared here, becomes a super stream
unless the argument x-super-stream is false, because scripts and client suites build super streams
from exchanges and bindings. Programs that speak AMQP have to set the argument to true.
"""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.http_api.description import CREATED_OR_DONE, DONE, Operation, described
from streamd.http_api.messages import (
    NotServed,
    Row,
    done,
    flag,
    json_answer,
    listing,
    mapping,
    name_in,
    part,
    read_body,
    text,
)
from streamd.http_api.schemas import FLAG, about
from streamd.http_api.service import Service
from streamd.operations import routing as r
from streamd.operations.errors import Refused
from streamd.operations.names import Name
from streamd.operations.routing import ALTERNATE, DEFAULT_EXCHANGE, SUPER_STREAM, ExchangeType

DEFAULT_IN_PATHS = "amq.default"  # RabbitMQ's name for it where an empty name cannot be written
_ONE = "/api/exchanges/{vhost}/{name}"
_IF_UNUSED = about(FLAG, "Only if no binding begins at it.")


class ExchangePaths:
    """Exchanges listed, declared and deleted."""

    TITLE = "Exchanges"

    def __init__(self, service: Service) -> None:
        self._ask = service.ask
        self.routes = [
            Route("/api/exchanges", self._list),
            Route("/api/exchanges/{vhost}", self._list),
            Route(_ONE, self._one),
            Route(_ONE, self._create, methods=["PUT"]),
            Route(_ONE, self._delete, methods=["DELETE"]),
        ]

    @described(Operation(rows="Exchange", has_names=True, asks=r.ListExchanges))
    async def _list(self, request: Request) -> Response:
        """Exchanges, super streams among them."""
        found = await self._ask(request, r.ListExchanges(vhost=host_part(request)))
        return await listing(
            request, found, lambda item: exchange_row(item.row), lambda item: item.row.name
        )

    @described(Operation(answer="Exchange", asks=r.GetExchange))
    async def _one(self, request: Request) -> Response:
        """An exchange."""
        vhost, name = part(request, "vhost"), exchange_part(request, "name")
        found = await self._ask(request, r.GetExchange(vhost=vhost, exchange=name))
        return json_answer(exchange_row(found.row))

    @described(Operation(body="NewExchange", statuses=CREATED_OR_DONE, asks=r.PutExchange))
    async def _create(self, request: Request) -> Response:
        """Declare an exchange.

        With an alternate exchange, the rights to read it and to write to that one are needed, too.
        """
        vhost, name = part(request, "vhost"), exchange_part(request, "name")
        created = await self._ask(request, put_exchange(vhost, name, await read_body(request)))
        return done(is_new=created.is_new)

    @described(Operation(statuses=DONE, query={"if-unused": _IF_UNUSED}, asks=r.DeleteExchange))
    async def _delete(self, request: Request) -> Response:
        """Delete an exchange."""
        vhost, name = part(request, "vhost"), exchange_part(request, "name")
        if_unused = flag(request.query_params, "if-unused", default=False)
        asked = r.DeleteExchange(vhost=vhost, exchange=name, if_unused=if_unused)
        await self._ask(request, asked)
        return done()


def host_part(request: Request) -> Name | None:
    """The virtual host in the path; None where there is none in it."""
    return part(request, "vhost") if "vhost" in request.path_params else None


def exchange_part(request: Request, name: str) -> Name:
    """The name of an exchange in the path."""
    found = part(request, name)
    return DEFAULT_EXCHANGE if found == DEFAULT_IN_PATHS else found


def put_exchange(virtual_host: Name, name: Name, body: Row) -> r.PutExchange:
    """Declare an exchange as definitions and requests describe it.

    Raises:
        NotServed: its type, or its properties as a super stream, do not exist here.
        BadRequest: it cannot be understood.
    """
    arguments = mapping(body, "arguments")
    row = r.ExchangeRow(
        virtual_host,
        name,
        _type(body),
        flag(body, "durable", default=True),
        flag(body, "auto_delete", default=False),
        flag(body, "internal", default=False),
        name_in(arguments, ALTERNATE, ""),
    )
    is_super_stream: bool | None = None
    if SUPER_STREAM in arguments:
        is_super_stream = flag(arguments, SUPER_STREAM, default=True)
    if is_super_stream and not r.could_be_super_stream(row):
        raise NotServed(
            f"{SUPER_STREAM} is true: a super stream is direct and durable, neither auto-delete "
            f"nor internal, and has no {ALTERNATE}"
        )
    return r.PutExchange(
        vhost=virtual_host,
        exchange=name,
        type=ExchangeType(row.type),
        is_durable=row.is_durable,
        auto_delete=row.auto_delete,
        is_internal=row.is_internal,
        alternate=row.alternate,
        is_super_stream=is_super_stream,
    )


def _type(body: Row) -> ExchangeType:
    try:
        return r.exchange_type(text(body, "type", ExchangeType.DIRECT))
    except Refused as refused:
        raise NotServed(refused.details) from refused


def exchange_row(row: r.ExchangeRow) -> Row:
    """An exchange as RabbitMQ shows it."""
    name = row.name
    arguments: Row = {ALTERNATE: row.alternate} if row.alternate else {}
    if r.could_be_super_stream(row) and not r.is_built_in(name):
        arguments[SUPER_STREAM] = row.is_super_stream
    return {
        "name": name,
        "vhost": row.virtual_host,
        "type": row.type,
        "durable": row.is_durable,
        "auto_delete": row.auto_delete,
        "internal": row.is_internal,
        "arguments": arguments,
    }
