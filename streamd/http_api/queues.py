"""/api/queues, where every queue is a stream, and /api/stream/super-streams."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segments.derived.key_schedule import KeyFigures
from streamd.auth.users import Rights
from streamd.broker.catalog.writer import Check
from streamd.broker.declared.arguments import Arguments, plain_arguments
from streamd.broker.declared.checks import MAX_PARTITIONS
from streamd.broker.declared.partitions import SuperStreamRow
from streamd.broker.steps import in_turns
from streamd.broker.streams.stream import Stream
from streamd.broker.virtual_host import VirtualHost
from streamd.engine import Caller
from streamd.http_api.caller import caller_of
from streamd.http_api.connections import amqp_consumer_row, pairs_of
from streamd.http_api.description import CREATED_OR_DONE, DONE, ENTER, Operation, described
from streamd.http_api.messages import (
    BadRequest,
    NotFound,
    Row,
    done,
    json_answer,
    large_answer,
    listing,
    mapping,
    part,
    read_body,
    texts,
)
from streamd.http_api.overview import message_counts, shown_trouble
from streamd.http_api.service import NODE, Service
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name, as_sent
from streamd.operations.rights import Right
from streamd.operations.tier_reports import TierReports, plain

TYPE = "x-queue-type"
STREAM = "stream"
_PREFIX = "x-"
_LOOKED_AT_ONCE = 8  # streams
_NAMES_A_TURN, _CONSUMERS_A_TURN, _SUPER_STREAMS_A_TURN = 100, 100, 5
_ONE = "/api/queues/{vhost}/{name}"
_SUPER = "/api/stream/super-streams"
_SUPER_RIGHTS = (
    "the rights to configure it and its partitions, to read it, and to write to its partitions"
)


class QueuePaths:
    """Streams and super streams."""

    TITLE = "Streams"

    def __init__(self, service: Service) -> None:
        self._broker = service.broker
        self._connections = service.connections
        self.routes = [
            Route("/api/queues", self._list),
            Route("/api/queues/{vhost}", self._list),
            Route(_ONE, self._one),
            Route(_ONE, self._create, methods=["PUT"]),
            Route(_ONE, self._delete, methods=["DELETE"]),
            Route(_SUPER, self._list_super_streams),
            Route(_SUPER + "/{vhost}", self._list_super_streams),
            Route(_SUPER + "/{vhost}/{name}", self._one_super_stream),
            Route(_SUPER + "/{vhost}/{name}", self._create_super_stream, methods=["PUT"]),
            Route(_SUPER + "/{vhost}/{name}", self._delete_super_stream, methods=["DELETE"]),
        ]

    # -- streams

    @described(Operation(rows="Stream", has_names=True))
    async def _list(self, request: Request) -> Response:
        """Streams: every queue is one."""
        readers = await self._readers()
        names = [
            (host, name)
            for host in hosts_of(self._broker.virtual_hosts, request)
            for name in host.names()
        ]

        caller = caller_of(request)

        def row(item: tuple[VirtualHost, Name]) -> Row | None:
            host, name = item
            if not host.has_stream(name):
                return None
            return self._row(caller, host, name, readers[host.name, name])

        await know_all(names)
        return await listing(request, names, row, lambda item: item[1])

    @described(Operation(answer="Stream", needs=ENTER))
    async def _one(self, request: Request) -> Response:
        """A stream, with its consumers."""
        host = host_of(self._broker.virtual_hosts, request)
        name = part(request, "name")
        if not host.has_stream(name):
            raise NotFound
        await know_all([(host, name)])
        if not host.has_stream(name):
            raise NotFound
        with suppress(Refused):  # its row says why
            await host.find(name).life.look_at_keys()
        consumers = [
            pair
            async for pair in pairs_of(self._connections, lambda c: c.consumers())
            if pair[0].virtual_host == host.name and pair[1].stream == name
        ]
        if not host.has_stream(name):  # deleted meanwhile
            raise NotFound
        row = self._row(caller_of(request), host, name, len(consumers))
        details = [amqp_consumer_row(pair) async for pair in in_turns(consumers, _CONSUMERS_A_TURN)]
        return await large_answer(row | {"consumer_details": details})

    @described(
        Operation(
            body="NewStream", statuses=CREATED_OR_DONE, needs="the right to configure the stream"
        )
    )
    async def _create(self, request: Request) -> Response:
        """Create a stream.

        One that exists with other arguments is refused.
        """
        host = host_of(self._broker.virtual_hosts, request)
        name = part(request, "name")
        check = partial(caller_of(request).rights(host.name).require, Right.CONFIGURE, name)
        check()
        is_new = await create_stream(host, name, await read_body(request), check)
        return done(is_new=is_new)

    @described(Operation(statuses=DONE, needs="the right to configure the stream"))
    async def _delete(self, request: Request) -> Response:
        """Delete a stream with all its messages."""
        host = host_of(self._broker.virtual_hosts, request)
        name = part(request, "name")
        check = partial(caller_of(request).rights(host.name).require, Right.CONFIGURE, name)
        await host.delete(name, lambda: None, check)
        return done()

    def _row(self, caller: Caller, host: VirtualHost, name: Name, num_consumers: int) -> Row:
        tier = tier_row(caller, self._broker.tier, host.name, name)
        row = _row(caller, host, name, num_consumers)
        return row if tier is None else row | {"tier": tier}

    async def _readers(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        async for connection, facts in pairs_of(self._connections, lambda c: c.consumers()):
            found[connection.virtual_host, facts.stream] += 1
        return found

    # -- super streams

    @described(Operation(rows="SuperStream", has_names=True))
    async def _list_super_streams(self, request: Request) -> Response:
        """Super streams."""
        rows = [
            row
            for host in hosts_of(self._broker.virtual_hosts, request)
            async for row in in_turns(host.super_streams.rows(), _SUPER_STREAMS_A_TURN)
        ]
        return await listing(request, rows, _super_stream_row, lambda row: row.name)

    @described(Operation(answer="SuperStream", needs=ENTER))
    async def _one_super_stream(self, request: Request) -> Response:
        """A super stream."""
        host = host_of(self._broker.virtual_hosts, request)
        return json_answer(_super_stream_row(host.super_streams.find(part(request, "name"))))

    @described(
        Operation(
            body="NewSuperStream",
            statuses=DONE,
            needs=_SUPER_RIGHTS,
        )
    )
    async def _create_super_stream(self, request: Request) -> Response:
        """Create a super stream and its partitions, NAME-KEY for each routing key."""
        host = host_of(self._broker.virtual_hosts, request)
        name = part(request, "name")
        rights = caller_of(request).rights(host.name)
        await create_super_stream(host, name, await read_body(request), rights)
        return done()

    @described(
        Operation(
            statuses=DONE,
            needs=_SUPER_RIGHTS,
        )
    )
    async def _delete_super_stream(self, request: Request) -> Response:
        """Delete a super stream and its partitions."""
        host = host_of(self._broker.virtual_hosts, request)
        name = part(request, "name")
        await delete_super_stream(host, name, caller_of(request).rights(host.name))
        return done()


def host_of(hosts: dict[Name, VirtualHost], request: Request) -> VirtualHost:
    """The virtual host in the path.

    Raises:
        NotFound: there is none.
        Refused: the caller may not enter it, or would not if there were one.
    """
    name = part(request, "vhost")
    caller_of(request).require_host(name)
    if name not in hosts:
        raise NotFound
    return hosts[name]


def hosts_of(hosts: dict[Name, VirtualHost], request: Request) -> list[VirtualHost]:
    """The virtual host in the path, or all that the caller may see.

    Raises:
        NotFound, Refused: see `host_of`.
    """
    if "vhost" in request.path_params:
        return [host_of(hosts, request)]
    caller = caller_of(request)
    return [hosts[name] for name in sorted(hosts) if caller.sees_host(name)]


async def create_stream(host: VirtualHost, name: Name, body: Row, check: Check) -> bool:
    """Create a stream as definitions and requests describe it; returns whether it is new.

    See CatalogWriter.turn for `check`.

    Raises:
        BadRequest: it would not be a stream.
        Refused: it cannot be created.
    """
    arguments = mapping(body, "arguments")
    kind = arguments.get(TYPE, body.get("type", STREAM))
    if kind != STREAM:
        raise BadRequest(f"{TYPE} is {kind!r}: this server has streams only")
    if not body.get("durable", True) or body.get("auto_delete", False):
        raise BadRequest(f"{name} cannot be a stream: streams are durable and not auto-delete")
    pairs = [
        (key.removeprefix(_PREFIX), _text(key, value))
        for key, value in arguments.items()
        if key.startswith(_PREFIX)
    ]
    try:
        await host.create(name, pairs, check)
    except Refused as refused:
        if refused.reason == Reason.ALREADY_EXISTS:
            return False
        raise
    return True


async def create_super_stream(host: VirtualHost, name: Name, body: Row, rights: Rights) -> None:
    """Create a super stream as requests describe it.

    Args:
        host: where.
        name: of the super stream; partitions are named NAME-KEY.
        body: has `partitions` or `binding-keys`, and `arguments`.
        rights: of whoever wants it.

    Raises:
        BadRequest: it cannot be understood.
        Refused: it cannot be created.
    """
    routes = [(key, as_sent(f"{name}-{key}")) for key in _keys(body)]
    check = partial(rights.require_super_stream, name, [stream for _, stream in routes])
    check()
    arguments = [
        (key.removeprefix(_PREFIX), _text(key, value))
        for key, value in mapping(body, "arguments").items()
    ]
    await host.create_super_stream(name, routes, arguments, check)


async def delete_super_stream(host: VirtualHost, name: Name, rights: Rights) -> None:
    """Delete a super stream and its partitions, for somebody with these rights.

    Raises:
        Refused: it does not exist, or cannot be deleted.
    """
    rights.require(Right.CONFIGURE, name)
    check = partial(rights.require_super_stream, name)
    await host.delete_super_stream(name, lambda: None, check)


def _text(name: str, value: object) -> str:
    """An argument as the stream protocol writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise BadRequest(f"{name} is neither a string nor a number")


def _keys(body: Row) -> list[str]:
    partitions = body.get("partitions")
    if isinstance(partitions, int) and not isinstance(partitions, bool):
        if not 0 < partitions <= MAX_PARTITIONS:
            raise BadRequest(f"partitions is {partitions}, expected 1 to {MAX_PARTITIONS}")
        return [str(n) for n in range(partitions)]
    keys = texts(body, "binding-keys")
    if not keys:
        raise BadRequest("Must specify partitions or binding keys")
    return keys


def shown_arguments(arguments: Arguments) -> Row:
    """A stream's arguments under their AMQP names."""
    plain = plain_arguments(arguments)
    return {TYPE: STREAM} | {_PREFIX + key: value for key, value in plain.items()}


def _row(caller: Caller, host: VirtualHost, name: Name, num_consumers: int) -> Row:
    row: Row = {
        "name": name,
        "vhost": host.name,
        "type": STREAM,
        "arguments": shown_arguments(host.arguments(name)),
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "node": NODE,
        "leader": NODE,
        "members": [NODE],
        "online": [NODE],
        "policy": None,
        "consumers": num_consumers,
        "readers": {NODE: num_consumers},
    }
    try:
        stream = host.find(name)
    except Refused as refused:
        return row | {
            "state": "down",
            "reason": shown_trouble(caller, refused.details),
            "online": [],
        }
    return row | _figures(caller, stream)


def _figures(caller: Caller, stream: Stream) -> Row:
    figures = stream.figures
    if figures is None:  # it was created, or its log closed, just now
        return {"state": "running"}
    return {
        "state": "running",
        **message_counts(figures.num_messages),
        "message_bytes": figures.size,
        "segments": figures.num_segments,
        **({"segment_bytes_raised_to": raised} if (raised := figures.raised_segment_bytes) else {}),
        "chunks": figures.num_chunks,
        "first_offset": figures.first_offset,
        "next_offset": figures.next_offset,
        "first_timestamp": figures.first_timestamp_ms,
        **({"key_index": _key_row(figures.keys)} if figures.keys is not None else {}),
        **({"reason": shown_trouble(caller, stream.alarm)} if stream.alarm else {}),
    }


def _key_row(keys: KeyFigures) -> Row:
    return {
        "sealed_segments": keys.num_sealed,
        "indexed_segments": keys.num_indexed,
        "unknown_segments": keys.num_unknown,
        "bytes": keys.size,
    }


def tier_row(
    caller: Caller, tier: TierReports | None, virtual_host: Name, name: Name
) -> Row | None:
    """What is in the tier of a stream; None without a tier, or for one that is not there."""
    found = tier.stream(virtual_host, name) if tier is not None else None
    if found is None:
        return None
    trouble = {"sentence": shown_trouble(caller, found.sentence)} if found.sentence else {}
    return plain(found) | trouble


async def know_all(names: Iterable[tuple[VirtualHost, Name]]) -> None:
    """Look at streams whose size nobody knows since the start, some at a time."""
    left = iter(names)

    async def know() -> None:
        async for host, name in in_turns(left, _NAMES_A_TURN):
            stream = host.get_stream(name)
            if stream is not None and stream.figures is None:
                with suppress(Refused):  # its row says why
                    await stream.read_figures()

    async with trio.open_nursery() as nursery:
        for _ in range(_LOOKED_AT_ONCE):
            nursery.start_soon(know)


def _super_stream_row(row: SuperStreamRow) -> Row:
    partitions = [{"routing_key": p.key, "stream": p.stream} for p in row.partitions]
    return {"name": row.name, "vhost": row.virtual_host, "partitions": partitions}
