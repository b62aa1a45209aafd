"""/api/definitions: everything that was declared, exported and imported as one JSON document.

The document is RabbitMQ's, so a cluster's users, virtual hosts, streams, exchanges and bindings
can be carried over as they are. Whatever this server does not support is left out and named in the
answer. Exchanges that are not durable, and bindings from or to them, are not exported.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.hop.messages import encode
from streamd.http_api.bindings import binding_fields, declared_binding
from streamd.http_api.caller import visitor_of
from streamd.http_api.description import Operation, described
from streamd.http_api.exchanges import exchange_row, put_exchange
from streamd.http_api.messages import (
    MAX_BODY_BYTES,
    MAX_DEFINITIONS_BYTES,
    BadRequest,
    NotFound,
    NotServed,
    Row,
    decoded,
    done,
    large_answer,
    name_in,
    part,
    read_bytes,
)
from streamd.http_api.overview import PRODUCT_FIELDS
from streamd.http_api.queues import STREAM, TYPE, shown_arguments, stream_arguments
from streamd.http_api.service import Service
from streamd.http_api.users import (
    permission_row,
    put_permission,
    put_user,
    user_row,
)
from streamd.net.turns import in_turns
from streamd.operations import (
    definitions as d,
    routing as r,
    streams as s,
    users as u,
    virtual_hosts as v,
)
from streamd.operations.declaration import Asker, Operation as Asked
from streamd.operations.errors import Reason
from streamd.operations.names import Name
from streamd.operations.server import NODE

_MOST_SHOWN = 300  # characters of a row that is wrong
_DECLARED_AT_ONCE = 200
# And so many bytes, with a row of MAX_BODY_BYTES behind them: in base64 they fit into a frame of
# the stream protocol, in which the command line asks.
_DECLARED_BYTES = 256 << 10
_MOST_COMMAS = 750_000  # in rows of one kind, which are told apart in one go: 40 ms
_NONE = msgspec.Raw(b"[]")
_LEFT_OUT = ("topic_permissions", "parameters", "global_parameters", "policies")


class Definitions(msgspec.Struct):
    """The definitions to import: values as they are in the JSON, each read in its turn.

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
        """The rows of a kind.

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

    def __init__(self, _service: Service) -> None:
        self.routes = [
            Route("/api/definitions", self._export),
            Route("/api/definitions", self._import, methods=["POST"]),
            Route("/api/definitions/{vhost}", self._export_host),
            Route("/api/definitions/{vhost}", self._import_host, methods=["POST"]),
        ]

    # -- export

    @described(Operation(answer="Definitions", asks=d.Declare))
    async def _export(self, request: Request) -> Response:
        """Everything durable that was declared: export."""
        return await large_answer(await all_definitions(visitor_of(request)))

    @described(Operation(answer="HostDefinitions", asks=d.Declare))
    async def _export_host(self, request: Request) -> Response:
        """Everything durable in a virtual host: export."""
        host = part(request, "vhost")
        return await large_answer(await definitions_of(visitor_of(request), host))

    # -- import

    @described(
        Operation(
            body="NewDefinitions",
            answer="LeftOut",
            statuses={204: "Everything was taken over."},
            asks=d.Declare,
        )
    )
    async def _import(self, request: Request) -> Response:
        """Import definitions: create what is missing.

        What the server does not have is left out and named.
        """
        return await self._take(request, None)

    @described(
        Operation(
            body="NewDefinitions",
            answer="LeftOut",
            statuses={204: "Everything was taken over."},
            asks=d.Declare,
        )
    )
    async def _import_host(self, request: Request) -> Response:
        """Import definitions into a virtual host."""
        return await self._take(request, part(request, "vhost"))

    async def _take(self, request: Request, host: Name | None) -> Response:
        visitor = visitor_of(request)
        await check_may_declare(visitor, host)  # before so much is read
        document = decoded(await read_bytes(request, MAX_DEFINITIONS_BYTES), Definitions)
        taken = Taken()
        await take_definitions(visitor, document, host, taken)
        return await large_answer({"left_out": taken.left_out}) if taken.left_out else done()


async def check_may_declare(asker: Asker, host: Name | None) -> None:
    """Raise Refused unless the user may import and export, and there is this virtual host."""
    await asker.ask(d.Declare(declarations=[]))
    if host is not None and host not in await asker.ask(v.ListHostNames()):
        raise NotFound


async def all_definitions(asker: Asker) -> Row:
    """Everything durable that was declared, for an administrator."""
    users = await asker.ask(u.ListUsers())
    permissions = await asker.ask(u.ListPermissions())
    hosts = await asker.ask(v.ListHostNames())
    document: Row = {
        **PRODUCT_FIELDS,
        "rabbitmq_definition_format": "cluster",
        "original_cluster_name": NODE,
        "users": [user_row(user) async for user in in_turns(users)],
        "vhosts": [{"name": host} for host in hosts],
        "permissions": [permission_row(row) async for row in in_turns(permissions)],
        **{name: [] for name in _LEFT_OUT},
        "queues": [],
        "exchanges": [],
        "bindings": [],
    }
    for host in hosts:
        try:
            declared = await _declared(asker, host)
        except Exception:  # each asker has its own for what is not there
            if host in await asker.ask(v.ListHostNames()):
                raise
            document["vhosts"].remove({"name": host})  # it was deleted meanwhile
            rows = document["permissions"]
            document["permissions"] = [row for row in rows if row["vhost"] != host]
            continue
        for name, rows in declared.items():
            document[name] += rows
    return document


async def definitions_of(asker: Asker, host: Name) -> Row:
    """Everything durable that was declared in a virtual host, for an administrator."""
    await check_may_declare(asker, host)
    rows = await _declared(asker, host)
    all_rows = (row for part_of in rows.values() for row in part_of)
    async for row in in_turns(all_rows):
        del row["vhost"]
    about: Row = {
        "rabbitmq_definition_format": "single_virtual_host",
        "original_vhost_name": host,
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
    asker: Asker,
    document: Definitions,
    virtual_host: Name | None,
    taken: Taken,
) -> None:
    """Create whatever is missing, each kind after those that it needs.

    The user itself comes last: with another password, or fewer tags, it may do no more.

    Args:
        asker: an administrator.
        document: the definitions.
        virtual_host: where everything goes; None where each row says that.
        taken: is told what becomes of them; also of those before one that is wrong.

    Raises:
        BadRequest: one of them is wrong; what came before it has been created.
        Refused: the user is not an administrator any more.
    """
    taken.left_out += [name for name in _LEFT_OUT if bytes(getattr(document, name)) != b"[]"]
    batch = _Batch(asker, taken)
    name, itself = asker.name, list[Row]()
    for kind in _READERS:
        await trio.lowlevel.checkpoint()  # telling its rows apart is a turn
        async for raw in in_turns(document.rows(kind)):
            row = _row(kind, raw)
            if virtual_host is not None:
                row["vhost"] = virtual_host
            if kind == "users" and row.get("name") == name:
                itself.append(row)
            else:
                await batch.add(kind, row)
    for row in itself:
        await batch.add("users", row)
    await batch.carry_out()


class _Batch:
    """Rows of definitions that are declared together; see `take_definitions`."""

    def __init__(self, asker: Asker, taken: Taken) -> None:
        self._asker, self._taken = asker, taken
        self._rows: list[tuple[str, Row, Asked[Any], d.Declaration]] = []
        self._size = 0

    async def add(self, kind: str, row: Row) -> None:
        """One more row."""
        try:
            asked = _READERS[kind](row)
        except NotServed as reason:
            await self.carry_out()
            self._taken.left_out.append(str(reason))
        except BadRequest as error:
            await self.carry_out()
            raise _wrong(kind, row, str(error)) from error
        else:
            if asked is None:
                self._taken.known[kind] += 1
                return
            encoded = msgspec.Raw(encode(asked))
            self._rows.append((kind, row, asked, d.Declaration(asked.NAME, encoded)))
            self._size += len(bytes(encoded))
            if len(self._rows) >= _DECLARED_AT_ONCE or self._size >= _DECLARED_BYTES:
                await self.carry_out()

    async def carry_out(self) -> None:
        """Declare what has come together."""
        while self._rows:
            declarations = [declaration for *_, declaration in self._rows]
            outcomes = await self._asker.ask(d.Declare(declarations=declarations))
            done_with, self._rows = self._rows[: len(outcomes)], self._rows[len(outcomes) :]
            for (kind, row, asked, _), outcome in zip(done_with, outcomes, strict=True):
                if not outcome.reason:
                    (self._taken.new if outcome.is_new else self._taken.known)[kind] += 1
                elif isinstance(asked, r.Bind) and outcome.reason == Reason.NOT_FOUND.name:
                    self._taken.left_out.append(f"{_about(asked)}: {outcome.details}")
                else:
                    raise _wrong(kind, row, outcome.details)
        self._size = 0


def _wrong(kind: str, row: Row, why: str) -> BadRequest:
    return BadRequest(f"{kind}, {_shown(row)!r:.{_MOST_SHOWN}}: {why}")


def _read_host(row: Row) -> v.AddVirtualHost:
    return v.AddVirtualHost(name=name_in(row, "name"))


def _read_user(row: Row) -> u.PutUser:
    return put_user(name_in(row, "name"), row)


def _read_permission(row: Row) -> u.PutPermission:
    return put_permission(name_in(row, "user"), name_in(row, "vhost"), row)


def _read_queue(row: Row) -> s.CreateStream:
    name, host = name_in(row, "name"), name_in(row, "vhost")
    arguments = row.get("arguments") or {}
    kind = row.get("type") or (arguments.get(TYPE) if isinstance(arguments, dict) else None)
    if (kind or "classic") != STREAM:
        raise NotServed(f"queue {name}: not a stream")
    return s.CreateStream(vhost=host, stream=name, arguments=stream_arguments(name, row))


def _read_exchange(row: Row) -> r.PutExchange | None:
    name, host = name_in(row, "name"), name_in(row, "vhost")
    if r.is_built_in(name):
        return None
    try:
        return put_exchange(host, name, row)
    except NotServed as reason:
        raise NotServed(f"exchange {name}: {reason}") from None


def _read_binding(row: Row) -> r.Bind | None:
    source, destination = name_in(row, "source"), name_in(row, "destination")
    if source == r.DEFAULT_EXCHANGE:  # every stream has this binding
        return None
    kind = row.get("destination_type")
    ends = r.Bind(
        vhost=name_in(row, "vhost"),
        source=source,
        destination=destination,
        to_exchange=kind == "exchange",
    )
    try:
        if kind not in ("queue", "exchange"):
            raise NotServed("its destination_type is neither queue nor exchange")
        return msgspec.structs.replace(ends, **binding_fields(row))
    except NotServed as reason:
        raise NotServed(f"{_about(ends)}: {reason}") from None


def _about(bind: r.Bind) -> str:
    return f"binding {bind.source} to {bind.destination}"


# What each row of a kind declares, None for what is there always; in the order in which they need
# each other.
_READERS: dict[str, Callable[[Row], Asked[Any] | None]] = {
    "vhosts": _read_host,
    "users": _read_user,
    "permissions": _read_permission,
    "queues": _read_queue,
    "exchanges": _read_exchange,
    "bindings": _read_binding,
}


def _shown(row: Row) -> object:
    """The row's name, or the row without its secrets."""
    return row.get("name") or {k: v for k, v in row.items() if not k.startswith("password")}


async def _declared(asker: Asker, host: Name) -> dict[str, list[Row]]:
    streams = await asker.ask(s.ListDeclared(vhost=host))
    exchanges = await asker.ask(r.ListExchanges(vhost=host))
    bindings = await asker.ask(r.ListBindings(vhost=host, kept=True))
    return {
        "queues": [_queue_row(host, row) async for row in in_turns(streams)],
        "exchanges": [
            exchange_row(row)
            async for row in in_turns(found.row for found in exchanges)
            if row.is_durable and not r.is_built_in(row.name)
        ],
        "bindings": [
            declared_binding(binding)
            async for binding in in_turns(bindings)
            if binding.source != r.DEFAULT_EXCHANGE
        ],
    }


def _queue_row(host: Name, stream: s.Declared) -> Row:
    return {
        "name": stream.stream,
        "vhost": host,
        "type": STREAM,
        "durable": True,
        "auto_delete": False,
        "arguments": shown_arguments(stream.arguments),
    }
