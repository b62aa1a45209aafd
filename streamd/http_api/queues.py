"""/api/queues, where every queue is a stream, and /api/stream/super-streams."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segments.derived.key_schedule import KeyFigures
from streamd.broker.declared.arguments import plain_arguments
from streamd.broker.declared.partitions import SuperStreamRow
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
from streamd.net.turns import in_turns
from streamd.operations import streams as s
from streamd.operations.errors import Refused
from streamd.operations.names import Name
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
        self._broker, self._ask = service.broker, service.ask
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

    @described(Operation(body="NewStream", statuses=CREATED_OR_DONE, asks=s.CreateStream))
    async def _create(self, request: Request) -> Response:
        """Create a stream.

        One that exists with other arguments is refused.
        """
        vhost, name = part(request, "vhost"), part(request, "name")
        arguments = stream_arguments(name, await read_body(request))
        asked = s.CreateStream(vhost=vhost, stream=name, arguments=arguments)
        return done(is_new=(await self._ask(request, asked)).is_new)

    @described(Operation(statuses=DONE, asks=s.DeleteStream))
    async def _delete(self, request: Request) -> Response:
        """Delete a stream with all its messages."""
        vhost, name = part(request, "vhost"), part(request, "name")
        await self._ask(request, s.DeleteStream(vhost=vhost, stream=name))
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
        vhost, name, body = part(request, "vhost"), part(request, "name"), await read_body(request)
        number: Any = body.get("partitions")
        keys: tuple[str, ...] = ()
        if not isinstance(number, int) or isinstance(number, bool):
            number, keys = 0, tuple(texts(body, "binding-keys"))
            if not keys:
                raise BadRequest("Must specify partitions or binding keys")
        asked = s.CreateSuperStream(
            vhost=vhost,
            super_stream=name,
            partitions=number,
            keys=keys,
            arguments={
                key.removeprefix(_PREFIX): _text(key, value)
                for key, value in mapping(body, "arguments").items()
            },
        )
        await self._ask(request, asked)
        return done()

    @described(
        Operation(
            statuses=DONE,
            needs=_SUPER_RIGHTS,
        )
    )
    async def _delete_super_stream(self, request: Request) -> Response:
        """Delete a super stream and its partitions."""
        vhost, name = part(request, "vhost"), part(request, "name")
        await self._ask(request, s.DeleteSuperStream(vhost=vhost, super_stream=name))
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


def stream_arguments(name: Name, body: Row) -> dict[str, str]:
    """The arguments of a stream that definitions and requests describe, by their own names.

    Raises:
        BadRequest: it would not be a stream.
    """
    arguments = mapping(body, "arguments")
    kind = arguments.get(TYPE, body.get("type", STREAM))
    if kind != STREAM:
        raise BadRequest(f"{TYPE} is {kind!r}: this server has streams only")
    if not body.get("durable", True) or body.get("auto_delete", False):
        raise BadRequest(f"{name} cannot be a stream: streams are durable and not auto-delete")
    return {
        key.removeprefix(_PREFIX): _text(key, value)
        for key, value in arguments.items()
        if key.startswith(_PREFIX)
    }


def _text(name: str, value: object) -> str:
    """An argument as the stream protocol writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise BadRequest(f"{name} is neither a string nor a number")


def shown_arguments(arguments: Mapping[str, s.Plain]) -> Row:
    """A stream's arguments under their AMQP names."""
    return {TYPE: STREAM} | {_PREFIX + key: value for key, value in arguments.items()}


def _row(caller: Caller, host: VirtualHost, name: Name, num_consumers: int) -> Row:
    row: Row = {
        "name": name,
        "vhost": host.name,
        "type": STREAM,
        "arguments": shown_arguments(plain_arguments(host.arguments(name))),
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
