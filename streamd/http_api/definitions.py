"""/api/definitions: everything that was declared, exported and imported as one JSON document.

The document is RabbitMQ's, so a cluster's users, virtual hosts, streams, exchanges and bindings
can be carried over as they are. Whatever this server does not support is left out and named in the
answer. Exchanges that are not durable, and bindings from or to them, are not exported.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.broker.virtual_host import VirtualHost
from streamd.engine import Caller
from streamd.http_api.bindings import bind, declared_binding
from streamd.http_api.caller import caller_of
from streamd.http_api.description import ADMINISTRATOR, Operation, described
from streamd.http_api.exchanges import create_exchange, exchange_row, is_built_in
from streamd.http_api.messages import (
    MAX_BODY_BYTES,
    MAX_DEFINITIONS_BYTES,
    BadRequest,
    NotServed,
    Row,
    decoded,
    done,
    large_answer,
    name_in,
    read_bytes,
)
from streamd.http_api.overview import PRODUCT_FIELDS
from streamd.http_api.queues import STREAM, TYPE, host_of, shown_arguments, stream_arguments
from streamd.http_api.service import NODE, Service
from streamd.http_api.users import (
    permission_row,
    put_permission,
    put_user,
    user_row,
)
from streamd.net.turns import in_turns
from streamd.operations import users as u, virtual_hosts as v
from streamd.operations.declaration import Created, Operation as Asked
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.routing import DEFAULT_EXCHANGE, NO_HEADERS, Binding

_ROWS_A_TURN, _VISITED_A_TURN = 20, 1_000
_MOST_COMMAS = 750_000  # in rows of one kind, which are told apart in one go: 40 ms
_NONE = msgspec.Raw(b"[]")
_LEFT_OUT = ("topic_permissions", "parameters", "global_parameters", "policies")


class Definitions(msgspec.Struct):
    """Those that are imported: values as they are in the JSON, of which each is read in its turn.

    To find where each ends takes 30 ms for MAX_DEFINITIONS_BYTES; other fields are skipped.
    """

    vhosts: msgspec.Raw = _NONE
    users: msgspec.Raw = _NONE
    permissions: msgspec.Raw = _NONE
    queues: msgspec.Raw = _NONE
    exchanges: msgspec.Raw = _NONE
    bindings: msgspec.Raw = _NONE
    topic_permissions: msgspec.Raw = _NONE
    parameters: msgspec.Raw = _NONE
    global_parameters: msgspec.Raw = _NONE
    policies: msgspec.Raw = _NONE

    def rows(self, kind: str) -> list[msgspec.Raw]:
        """Those of a kind.

        Raises:
            BadRequest: it is no list, or there is too much.
        """
        data = bytes(getattr(self, kind))
        if data.count(b",") > _MOST_COMMAS:
            raise BadRequest(f"{kind} has more than {_MOST_COMMAS:,} commas: import it in parts")
        return decoded(data, list[msgspec.Raw], _expected(kind))


def _row(kind: str, raw: msgspec.Raw) -> Row:
    data = bytes(raw)
    if len(data) > MAX_BODY_BYTES:
        raise BadRequest(f"a row of {kind} has more than {MAX_BODY_BYTES:,} bytes")
    return decoded(data, Row, _expected(kind))


def _expected(kind: str) -> str:
    return f"{kind} is not a list of JSON objects"


class DefinitionPaths:
    """Export and import."""

    TITLE = "Definitions"

    def __init__(self, service: Service) -> None:
        self._service = service
        self.routes = [
            Route("/api/definitions", self._export),
            Route("/api/definitions", self._import, methods=["POST"]),
            Route("/api/definitions/{vhost}", self._export_host),
            Route("/api/definitions/{vhost}", self._import_host, methods=["POST"]),
        ]

    # -- export

    @described(Operation(answer="Definitions", needs=ADMINISTRATOR))
    async def _export(self, request: Request) -> Response:
        """Everything durable that was declared: export."""
        caller_of(request).require_administrator()
        return await large_answer(await all_definitions(self._service, caller_of(request)))

    @described(Operation(answer="HostDefinitions", needs=ADMINISTRATOR))
    async def _export_host(self, request: Request) -> Response:
        """Everything durable in a virtual host: export."""
        caller_of(request).require_administrator()
        host = host_of(self._service.broker.virtual_hosts, request)
        return await large_answer(await definitions_of(host))

    # -- import

    @described(
        Operation(
            body="NewDefinitions",
            answer="LeftOut",
            statuses={204: "Everything was taken over."},
            needs=ADMINISTRATOR,
        )
    )
    async def _import(self, request: Request) -> Response:
        """Import definitions: create what is missing.

        What the server does not have is left out and named.
        """
        caller = caller_of(request)
        caller.require_administrator()
        return await self._take(caller, request, None)

    @described(
        Operation(
            body="NewDefinitions",
            answer="LeftOut",
            statuses={204: "Everything was taken over."},
            needs=ADMINISTRATOR,
        )
    )
    async def _import_host(self, request: Request) -> Response:
        """Import definitions into a virtual host."""
        caller = caller_of(request)
        caller.require_administrator()
        host = host_of(self._service.broker.virtual_hosts, request)
        return await self._take(caller, request, host.name)

    async def _take(self, caller: Caller, request: Request, virtual_host: Name | None) -> Response:
        document = decoded(await read_bytes(request, MAX_DEFINITIONS_BYTES), Definitions)
        taken = Taken()
        await take_definitions(self._service, caller, document, virtual_host, taken)
        return await large_answer({"left_out": taken.left_out}) if taken.left_out else done()


async def all_definitions(service: Service, caller: Caller) -> Row:
    """Everything durable that was declared, for an administrator."""
    ask = service.engine.ask
    hosts = [service.broker.virtual_hosts[n] for n in sorted(service.broker.virtual_hosts)]
    document: Row = {
        **PRODUCT_FIELDS,
        "rabbitmq_definition_format": "cluster",
        "original_cluster_name": NODE,
        "users": [user_row(user) for user in await ask(caller, u.ListUsers())],
        "vhosts": [{"name": host.name} for host in hosts],
        "permissions": [permission_row(row) for row in await ask(caller, u.ListPermissions())],
        **{name: [] for name in _LEFT_OUT},
        "queues": [],
        "exchanges": [],
        "bindings": [],
    }
    for host in hosts:
        for name, rows in (await _declared(host)).items():
            document[name] += rows
    return document


async def definitions_of(host: VirtualHost) -> Row:
    """Everything durable that was declared in a virtual host."""
    rows = await _declared(host)
    all_rows = (row for part_of in rows.values() for row in part_of)
    async for row in in_turns(all_rows, _VISITED_A_TURN):
        del row["vhost"]
    about: Row = {
        "rabbitmq_definition_format": "single_virtual_host",
        "original_vhost_name": host.name,
    }
    about |= {"parameters": [], "policies": []}
    return {**PRODUCT_FIELDS, **about, **rows}


@dataclass(slots=True)
class Taken:
    """What became of definitions.

    Attributes:
        new, known: how many were made, and were there already, of each kind.
        left_out: what the server does not have, a sentence each.
    """

    new: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    left_out: list[str] = field(default_factory=list)


async def take_definitions(
    service: Service,
    caller: Caller,
    document: Definitions,
    virtual_host: Name | None,
    taken: Taken,
) -> None:
    """Create whatever is missing, each kind after those that it needs.

    The caller itself comes last: with another password, or fewer tags, it may do no more.

    Args:
        service: where.
        caller: who wants it, an administrator.
        document: the definitions.
        virtual_host: where everything goes; None where each row says that.
        taken: is told what becomes of them; also of those before one that is wrong.

    Raises:
        BadRequest: one of them is wrong; what came before it has been created.
        Refused: the caller is not an administrator any more.
    """
    taken.left_out += [name for name in _LEFT_OUT if bytes(getattr(document, name)) != b"[]"]
    takers = _Takers(service, caller)
    itself: list[Row] = []
    for kind in takers.by_kind:
        await trio.lowlevel.checkpoint()  # telling its rows apart is a turn
        async for raw in in_turns(document.rows(kind), _ROWS_A_TURN):
            row = _row(kind, raw)
            if virtual_host is not None:
                row["vhost"] = virtual_host
            if kind == "users" and row.get("name") == caller.name:
                itself.append(row)
            else:
                await takers.take(kind, row, taken)
    for row in itself:
        await takers.take("users", row, taken)


class _Takers:
    """Take over rows of definitions, one at a time.

    Attributes:
        by_kind: says whether a row is new; raises NotServed where the server does not have it.
    """

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service = service
        self._caller = caller
        self._check = caller.require_administrator
        # In the order in which they need each other.
        self.by_kind: dict[str, Callable[[Row], Awaitable[bool]]] = {
            "vhosts": self._take_host,
            "users": self._take_user,
            "permissions": self._take_permission,
            "queues": self._take_queue,
            "exchanges": self._take_exchange,
            "bindings": self._take_binding,
        }

    async def take(self, kind: str, row: Row, taken: Taken) -> None:
        """Take over one row; see `take_definitions`."""
        try:
            is_new = await self.by_kind[kind](row)
        except NotServed as reason:
            taken.left_out.append(str(reason))
        except (BadRequest, Refused) as error:
            if isinstance(error, Refused) and error.reason == Reason.ACCESS_REFUSED:
                raise  # not about this row: the caller may not do it any more
            reason_text = error.details if isinstance(error, Refused) else error
            raise BadRequest(f"{kind}, {_shown(row)!r}: {reason_text}") from error
        else:
            (taken.new if is_new else taken.known)[kind] += 1

    async def _take_host(self, row: Row) -> bool:
        return await self._ask(v.AddVirtualHost(name=name_in(row, "name")))

    async def _take_user(self, row: Row) -> bool:
        return await self._ask(put_user(name_in(row, "name"), row))

    async def _take_permission(self, row: Row) -> bool:
        return await self._ask(put_permission(name_in(row, "user"), name_in(row, "vhost"), row))

    async def _ask(self, operation: Asked[Created]) -> bool:
        return (await self._service.engine.ask(self._caller, operation)).is_new

    async def _take_queue(self, row: Row) -> bool:
        name, host = name_in(row, "name"), self._host(row)
        arguments = row.get("arguments") or {}
        kind = row.get("type") or (arguments.get(TYPE) if isinstance(arguments, dict) else None)
        if (kind or "classic") != STREAM:
            raise NotServed(f"queue {name}: not a stream")
        try:
            await host.create(name, stream_arguments(name, row).items(), self._check)
        except Refused as refused:
            if refused.reason is Reason.ALREADY_EXISTS:
                return False
            raise
        return True

    async def _take_exchange(self, row: Row) -> bool:
        name, host = name_in(row, "name"), self._host(row)
        if is_built_in(name):
            return False
        try:
            return await create_exchange(host, name, row, self._check)
        except NotServed as reason:
            raise NotServed(f"exchange {name}: {reason}") from None

    async def _take_binding(self, row: Row) -> bool:
        host = self._host(row)
        source, destination = name_in(row, "source"), name_in(row, "destination")
        if source == DEFAULT_EXCHANGE:  # every stream has this binding
            return False
        about = f"binding {source} to {destination}"
        kind = row.get("destination_type")
        if kind not in ("queue", "exchange"):
            raise NotServed(f"{about}: its destination_type is neither queue nor exchange")
        to_exchange = kind == "exchange"
        ends = Binding(host.name, source, destination, to_exchange, "", NO_HEADERS)
        if not host.exchanges.has(source):
            raise NotServed(f"{about}: there is no exchange {source}")
        if not (host.exchanges.has if to_exchange else host.has_stream)(destination):
            raise NotServed(f"{about}: there is no {kind} {destination}")
        try:
            _, is_new = await bind(host, ends, row, self._check)
        except NotServed as reason:
            raise NotServed(f"{about}: {reason}") from None
        return is_new

    def _host(self, row: Row) -> VirtualHost:
        name = name_in(row, "vhost")
        host = self._service.broker.virtual_hosts.get(name)
        if host is None:
            raise BadRequest(f"there is no virtual host {name[:40]!r}")
        return host


def _shown(row: Row) -> object:
    """The row's name, or the row without its secrets."""
    return row.get("name") or {k: v for k, v in row.items() if not k.startswith("password")}


async def _declared(host: VirtualHost) -> dict[str, list[Row]]:
    queues = [
        _queue_row(host, name)
        async for name in in_turns(host.names(), _ROWS_A_TURN)
        if host.has_stream(name)  # not deleted meanwhile
    ]
    exchanges: list[Row] = []
    bindings: list[Row] = []
    for exchange in host.exchanges.rows():
        if exchange.is_durable and not is_built_in(exchange.name):
            exchanges.append(exchange_row(host, exchange))
        if exchange.name != DEFAULT_EXCHANGE:
            found = host.exchanges.bindings_from(exchange.name)
            bindings += [
                declared_binding(binding)
                async for binding in in_turns(found, _ROWS_A_TURN)
                if host.exchanges.is_kept(binding)  # its end may be deleted meanwhile
            ]
        await trio.lowlevel.checkpoint()
    return {"queues": queues, "exchanges": exchanges, "bindings": bindings}


def _queue_row(host: VirtualHost, name: Name) -> Row:
    return {
        "name": name,
        "vhost": host.name,
        "type": STREAM,
        "durable": True,
        "auto_delete": False,
        "arguments": shown_arguments(host.arguments(name)),
    }
