"""/api/queues, where every queue is a stream, and /api/stream/super-streams."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.http_api.connections import amqp_consumer_row
from streamd.http_api.description import CREATED_OR_DONE, DONE, ENTER, Operation, described
from streamd.http_api.exchanges import host_part
from streamd.http_api.messages import (
    BadRequest,
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
from streamd.http_api.overview import message_counts
from streamd.http_api.service import Service
from streamd.operations import stream_views as v, streams as s
from streamd.operations.connections import ListReaders
from streamd.operations.names import Name
from streamd.operations.server import NODE
from streamd.operations.tier_reports import plain

Item: TypeAlias = tuple[v.StreamSummary, v.StreamDetails | None]

TYPE = "x-queue-type"
STREAM = "stream"
_PREFIX = "x-"
_ONE = "/api/queues/{vhost}/{name}"
_SUPER = "/api/stream/super-streams"
_SUPER_RIGHTS = (
    "the rights to configure it and its partitions, to read it, and to write to its partitions"
)


class QueuePaths:
    """Streams and super streams."""

    TITLE = "Streams"

    def __init__(self, service: Service) -> None:
        self._ask = service.ask
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
        found = await self._ask(request, v.ListStreams(vhost=host_part(request)))
        items: list[Item] = [(one, None) for one in found]

        async def describe(chosen: Sequence[Item]) -> list[Item]:
            described: list[Item] = []
            for at in range(0, len(chosen), v.MOST_DESCRIBED):
                some = {
                    (one.vhost, one.stream): one for one, _ in chosen[at : at + v.MOST_DESCRIBED]
                }
                details = await self._ask(request, v.DescribeStreams(streams=tuple(some)))
                described += [(some[one.vhost, one.stream], one) for one in details]
            return described

        return await listing(request, items, _item_row, lambda item: item[0].stream, describe)

    @described(Operation(answer="Stream", needs=ENTER))
    async def _one(self, request: Request) -> Response:
        """A stream, with its consumers."""
        vhost, name = part(request, "vhost"), part(request, "name")
        consumers = await self._ask(request, ListReaders(vhost=vhost, stream=name))
        details = await self._ask(request, v.GetStream(vhost=vhost, stream=name))
        rows = [amqp_consumer_row((one.connection, one.facts)) for one in consumers]
        return await large_answer(_row(details, len(consumers)) | {"consumer_details": rows})

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

    # -- super streams

    @described(Operation(rows="SuperStream", has_names=True))
    async def _list_super_streams(self, request: Request) -> Response:
        """Super streams."""
        found = await self._ask(request, v.ListSuperStreams(vhost=host_part(request)))
        rows = [one.row for one in found]
        return await listing(request, rows, _super_stream_row, lambda row: row.name)

    @described(Operation(answer="SuperStream", needs=ENTER))
    async def _one_super_stream(self, request: Request) -> Response:
        """A super stream."""
        vhost, name = part(request, "vhost"), part(request, "name")
        found = await self._ask(request, v.GetSuperStream(vhost=vhost, super_stream=name))
        return json_answer(_super_stream_row(found.row))

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


def _item_row(item: Item) -> Row | None:
    summary, details = item
    return None if details is None else _row(details, summary.consumers)


def _row(details: v.StreamDetails, num_consumers: int) -> Row:
    row: Row = {
        "name": details.stream,
        "vhost": details.vhost,
        "type": STREAM,
        "arguments": shown_arguments(details.arguments),
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
        "state": "running",
    }
    if details.trouble:
        row["reason"] = details.trouble
    if not details.is_open:
        row |= {"state": "down", "online": []}
    elif details.figures is not None:
        row |= _figures(details.figures)
    return row if details.tier is None else row | {"tier": plain(details.tier)}


def _figures(figures: v.StreamFigures) -> Row:
    raised, keys = figures.raised_segment_bytes, figures.keys
    return {
        **message_counts(figures.num_messages),
        "message_bytes": figures.size,
        "segments": figures.num_segments,
        **({"segment_bytes_raised_to": raised} if raised else {}),
        "chunks": figures.num_chunks,
        "first_offset": figures.first_offset,
        "next_offset": figures.next_offset,
        "first_timestamp": figures.first_timestamp_ms,
        **({"key_index": _key_row(keys)} if keys is not None else {}),
    }


def _key_row(keys: v.KeyIndex) -> Row:
    return {
        "sealed_segments": keys.num_sealed,
        "indexed_segments": keys.num_indexed,
        "unknown_segments": keys.num_unknown,
        "bytes": keys.size,
    }


def _super_stream_row(row: s.SuperStreamRow) -> Row:
    partitions = [{"routing_key": p.key, "stream": p.stream} for p in row.partitions]
    return {"name": row.name, "vhost": row.virtual_host, "partitions": partitions}
