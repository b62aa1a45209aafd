"""/api/exchanges: the default one, RabbitMQ's five, super streams, and declared ones.

A super stream is a durable direct exchange. Such an exchange, declared here, becomes a super stream
unless the argument x-super-stream is false, because scripts and client suites build super streams
from exchanges and bindings. Programs that speak AMQP have to set the argument to true.
"""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.auth.users import Rights
from streamd.broker.catalog.writer import Check
from streamd.broker.virtual_host import VirtualHost
from streamd.http_api.caller import caller_of
from streamd.http_api.description import CREATED_OR_DONE, DONE, ENTER, Operation, described
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
from streamd.http_api.queues import host_of, hosts_of
from streamd.http_api.schemas import FLAG, about
from streamd.http_api.service import Service
from streamd.operations.errors import Refused
from streamd.operations.names import Name
from streamd.operations.rights import Right
from streamd.operations.routing import (
    ALTERNATE,
    DEFAULT_EXCHANGE,
    RESERVED_PREFIX,
    SUPER_STREAM,
    ExchangeRow,
    ExchangeType,
    could_be_super_stream,
    exchange_type,
)

DEFAULT_IN_PATHS = "amq.default"  # RabbitMQ's name for it where an empty name cannot be written
_ONE = "/api/exchanges/{vhost}/{name}"
_IF_UNUSED = about(FLAG, "Only if no binding begins at it.")


class ExchangePaths:
    """Exchanges listed, declared and deleted."""

    TITLE = "Exchanges"

    def __init__(self, service: Service) -> None:
        self._hosts = service.broker.virtual_hosts
        self.routes = [
            Route("/api/exchanges", self._list),
            Route("/api/exchanges/{vhost}", self._list),
            Route(_ONE, self._one),
            Route(_ONE, self._create, methods=["PUT"]),
            Route(_ONE, self._delete, methods=["DELETE"]),
        ]

    @described(Operation(rows="Exchange", has_names=True))
    async def _list(self, request: Request) -> Response:
        """Exchanges, super streams among them."""
        hosts = hosts_of(self._hosts, request)
        found = [(host, row) for host in hosts for row in host.exchanges.rows()]
        return await listing(
            request, found, lambda item: exchange_row(*item), lambda item: item[1].name
        )

    @described(Operation(answer="Exchange", needs=ENTER))
    async def _one(self, request: Request) -> Response:
        """An exchange."""
        host = host_of(self._hosts, request)
        row = host.exchanges.find(exchange_part(request, "name"))
        return json_answer(exchange_row(host, row))

    @described(
        Operation(
            body="NewExchange",
            statuses=CREATED_OR_DONE,
            needs="the right to configure it; with an alternate exchange, to read it and to write "
            "to that one",
        )
    )
    async def _create(self, request: Request) -> Response:
        """Declare an exchange."""
        host, name = host_of(self._hosts, request), exchange_part(request, "name")
        rights, body = caller_of(request).rights(host.name), await read_body(request)
        alternate = name_in(mapping(body, "arguments"), ALTERNATE, "")
        check = partial(check_declare, rights, name, alternate)
        check()
        return done(is_new=await create_exchange(host, name, body, check))

    @described(
        Operation(statuses=DONE, query={"if-unused": _IF_UNUSED}, needs="the right to configure it")
    )
    async def _delete(self, request: Request) -> Response:
        """Delete an exchange."""
        host, name = host_of(self._hosts, request), exchange_part(request, "name")
        check = partial(caller_of(request).rights(host.name).require, Right.CONFIGURE, name)
        check()
        host.exchanges.find(name)
        if_unused = flag(request.query_params, "if-unused", default=False)
        await host.exchanges.delete(name, check, if_unused=if_unused)
        return done()


def check_declare(rights: Rights, name: Name, alternate: Name) -> None:
    """Raise Refused unless somebody with these rights may declare an exchange."""
    rights.require(Right.CONFIGURE, name)
    if alternate:  # messages go on from here to there
        rights.require(Right.READ, name)
        rights.require(Right.WRITE, alternate)


def exchange_part(request: Request, name: str) -> Name:
    """The name of an exchange in the path."""
    found = part(request, name)
    return DEFAULT_EXCHANGE if found == DEFAULT_IN_PATHS else found


async def create_exchange(host: VirtualHost, name: Name, body: Row, check: Check) -> bool:
    """Declare an exchange as definitions and requests describe it; returns whether it is new.

    See CatalogWriter.turn for `check`.

    Raises:
        NotServed: its type, or its properties as a super stream, do not exist here.
        BadRequest: it cannot be understood.
        Refused: it cannot be declared.
    """
    arguments = mapping(body, "arguments")
    row = ExchangeRow(
        host.name,
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
    elif not host.exchanges.has(name):
        is_super_stream = could_be_super_stream(row)
    if is_super_stream and not could_be_super_stream(row):
        raise NotServed(
            f"{SUPER_STREAM} is true: a super stream is direct and durable, neither auto-delete "
            f"nor internal, and has no {ALTERNATE}"
        )
    return await host.exchanges.declare(row, check, super_stream=is_super_stream)


def _type(body: Row) -> ExchangeType:
    try:
        return exchange_type(text(body, "type", ExchangeType.DIRECT))
    except Refused as refused:
        raise NotServed(refused.details) from refused


def exchange_row(host: VirtualHost, row: ExchangeRow) -> Row:
    """An exchange as RabbitMQ shows it."""
    name = row.name
    arguments: Row = {ALTERNATE: row.alternate} if row.alternate else {}
    if could_be_super_stream(row) and not is_built_in(name):
        arguments[SUPER_STREAM] = row.is_super_stream
    return {
        "name": name,
        "vhost": host.name,
        "type": row.type,
        "durable": row.is_durable,
        "auto_delete": row.auto_delete,
        "internal": row.is_internal,
        "arguments": arguments,
    }


def is_built_in(name: Name) -> bool:
    """Whether every virtual host has this exchange, in RabbitMQ if not here."""
    return name == DEFAULT_EXCHANGE or name.startswith(RESERVED_PREFIX)
