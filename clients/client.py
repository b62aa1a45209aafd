"""What a program begins with: a client of one server."""

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Unpack

import anyio

from clients.consumer import NEXT, Consumer, Group, Offset, offset_specification
from clients.errors import (
    NoOffset,
    PreconditionFailed,
    StreamDoesNotExist,
    Unsupported,
    refusal,
)
from clients.filters import Filter, FilterValue as ReceivedFilterValue, Wanted
from clients.link import Link, open_link
from clients.producer import FilterValue, Producer
from clients.selection import Asked, StandingSelector, selector_filter
from clients.super_stream import (
    ConsumerOptions,
    ProducerOptions,
    RoutingKey,
    SuperConsumer,
    SuperProducer,
    open_super_consumer,
    open_super_producer,
)
from clients.uri import DEFAULT_URI, parse_uri
from segments.selector import Dialect
from streamd.wire import ResponseCode, commands as c
from streamd.wire.fields import OffsetSpecification, Pair

OK = ResponseCode.OK
_STORED = "stored"
_HEARTBEAT_SECONDS = 60
_WINDOW = 10_000
_CREDIT = 10
_CLOSE_SECONDS = 10
_RETRY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What a streamd server tells about a stream.

    Attributes:
        name: of the stream.
        code: 1 when it can be used, else the reason.
        arguments: what it was declared with.
        figures: messages, chunks, bytes, segments, first_chunk_id, last_chunk_id,
            committed_offset, first_timestamp_ms, last_timestamp_ms.
    """

    name: str
    code: int
    arguments: dict[str, str]
    figures: dict[str, int]


class Client:
    """A client of one server; made by `connect`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def is_streamd(self) -> bool:
        """The server knows what only a streamd knows."""
        return self._link.is_streamd

    @property
    def server_properties(self) -> dict[str, str]:
        """What the server says of itself."""
        return dict(self._link.server)

    # -- streams

    async def create(
        self,
        stream: str,
        *,
        filter_size: int | str | None = None,
        max_length_bytes: int | None = None,
        max_age: str | None = None,
        segment_size: int | None = None,
        arguments: dict[str, str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create a stream.

        Args:
            stream: its name.
            filter_size: bytes of a chunk's filter, 16 to 255, or "auto".
            max_length_bytes: drop the oldest segments while it is larger.
            max_age: drop segments that are older; a number and Y, M, D, h, m or s, as in "7D".
            segment_size: bytes after which a new segment begins.
            arguments: further ones, by their name in the protocol.
            exist_ok: it may be there already, declared with the same arguments.

        Raises:
            StreamExists: it is there already.
            PreconditionFailed: bad name or argument, or it is there with other arguments.
        """
        given = {
            "stream-filter-size-bytes": filter_size,
            "max-length-bytes": max_length_bytes,
            "max-age": max_age,
            "stream-max-segment-size-bytes": segment_size,
        }
        merged = {name: str(value) for name, value in given.items() if value is not None}
        merged |= arguments or {}
        pairs = tuple(Pair(*item) for item in merged.items())
        code = (await self._link.request(c.Create, stream, pairs)).code
        if code == ResponseCode.PRECONDITION_FAILED:  # the protocol does not say which
            reason = "a stream of that name exists with other arguments"
            if not await self.exists(stream):
                given_text = ", ".join(f"{name}={value}" for name, value in merged.items())
                reason = f"bad name or argument ({given_text or 'no arguments'})"
            raise PreconditionFailed(code, f"cannot create {stream!r}: {reason}")
        if code != OK and not (exist_ok and code == ResponseCode.STREAM_EXISTS):
            raise refusal(code, f"cannot create {stream}")

    async def delete(self, stream: str, *, missing_ok: bool = False) -> None:
        """Delete a stream with everything in it.

        Raises:
            StreamDoesNotExist: there is none.
        """
        code = (await self._link.request(c.Delete, stream)).code
        if code != OK and not (missing_ok and code == ResponseCode.STREAM_DOES_NOT_EXIST):
            raise refusal(code, f"cannot delete {stream}")

    async def exists(self, stream: str) -> bool:
        """Whether there is a stream of that name."""
        answer = await self._link.ask(c.Metadata, (stream,))
        return any(found.code == OK for found in answer.streams)

    async def stats(self, stream: str) -> dict[str, int]:
        """first_chunk_id, last_chunk_id, committed_chunk_id, committed_offset; -1 when empty.

        Raises:
            StreamDoesNotExist: there is none.
        """
        answer = await self._link.ask(c.StreamStats, stream)
        if answer.code != OK:
            raise refusal(answer.code, f"cannot look at {stream}")
        return dict(answer.statistics)

    async def describe(self, *streams: str) -> list[StreamInfo]:
        """What the server knows of streams, by name; of all when none is named.

        Raises:
            Unsupported: the server is not a streamd.
            StreamDoesNotExist: one that was named does not exist.
        """
        if not self._link.is_streamd:
            raise Unsupported("only a streamd server describes its streams")
        answer = await self._link.ask(c.DescribeStreams, streams)
        found = [
            StreamInfo(name, code, dict(arguments), dict(figures))
            for name, code, arguments, figures in answer.streams
        ]
        for info in found:
            if info.code == ResponseCode.STREAM_DOES_NOT_EXIST:
                raise StreamDoesNotExist(info.code, f"cannot look at {info.name}")
        return found

    async def describe_filters(self, stream: str) -> dict[str, int]:
        """How well the filters of the newest chunks of a stream do.

        Returns:
            The number of `chunks` with a filter and of different `values` in them, and in parts
            per million how many bits are set (`fill_ppm`) and how many chunks a value passes that
            they do not hold, `predicted_ppm` by the bits and `observed_ppm` as counted. Empty
            where no chunk has a filter.

        Raises:
            Unsupported: the server is not a streamd.
            ServerError: the server refused.
        """
        if not self._link.is_streamd:
            raise Unsupported("only a streamd server describes its filters")
        answer = await self._link.ask(c.DescribeFilters, stream)
        if answer.code != OK:
            raise refusal(answer.code, f"cannot look at the filters of {stream}")
        return dict(answer.statistics)

    async def query_offset(self, stream: str, name: str) -> int:
        """The offset that the consumer `name` has stored.

        Raises:
            NoOffset: it has stored none.
        """
        answer = await self._link.ask(c.QueryOffset, name, stream)
        if answer.code != OK:
            raise refusal(answer.code, f"no offset of {name} in {stream}")
        offset: int = answer.offset
        return offset

    # -- super streams

    async def create_super_stream(
        self,
        name: str,
        partitions: int | Collection[str],
        *,
        arguments: dict[str, str] | None = None,
    ) -> None:
        """Create a super stream: streams that together are one.

        Args:
            name: of it; partitions are called name-0, name-1, …, or after their routing keys.
            partitions: how many, or a routing key for each.
            arguments: of each partition, by their name in the protocol.

        Raises:
            StreamExists: it, or a stream of a partition's name, is there already.
            PreconditionFailed: bad name or argument, no partitions or too many.
        """
        keys = list(map(str, range(partitions))) if isinstance(partitions, int) else partitions
        streams = tuple(f"{name}-{key}" for key in keys)
        pairs = tuple(Pair(*item) for item in (arguments or {}).items())
        answer = await self._link.request(c.CreateSuperStream, name, streams, tuple(keys), pairs)
        if answer.code != OK:
            raise refusal(answer.code, f"cannot create super stream {name}")

    async def delete_super_stream(self, name: str) -> None:
        """Delete a super stream with everything in its partitions.

        Raises:
            StreamDoesNotExist: there is none.
        """
        code = (await self._link.request(c.DeleteSuperStream, name)).code
        if code != OK:
            raise refusal(code, f"cannot delete super stream {name}")

    async def partitions(self, super_stream: str) -> list[str]:
        """The streams of a super stream, in their order.

        Raises:
            StreamDoesNotExist: there is no such super stream.
        """
        answer = await self._link.ask(c.Partitions, super_stream)
        if answer.code != OK:
            raise refusal(answer.code, f"cannot look at super stream {super_stream}")
        return list(answer.streams)

    async def route(self, super_stream: str, routing_key: str) -> list[str]:
        """The streams of a super stream that a routing key leads to, possibly none.

        Raises:
            StreamDoesNotExist: there is no such super stream.
        """
        answer = await self._link.ask(c.Route, routing_key, super_stream)
        if answer.code != OK:
            raise refusal(answer.code, f"cannot look at super stream {super_stream}")
        return list(answer.streams)

    # -- users, permissions, virtual hosts

    async def manage(self, operation: str, **arguments: str) -> list[dict[str, str]]:
        """Look at or change users, permissions and virtual hosts, as an administrator.

        Args:
            operation: user.add, user.list, user.delete, user.passwd, vhost.add, vhost.list,
                vhost.delete, permission.set, permission.list or permission.clear.
            arguments: name, password and tags of a user; name of a virtual host; user, vhost,
                configure, write and read of a permission.

        Returns:
            What a list found.

        Raises:
            Unsupported: the server is not a streamd.
            AccessRefused: the user is no administrator.
            PreconditionFailed: it does not fit; says why.
        """
        if not self._link.is_streamd:
            raise Unsupported("only a streamd server is managed over the stream protocol")
        pairs = tuple(Pair(*item) for item in arguments.items())
        answer = await self._link.request(c.Manage, operation, pairs)
        if answer.code != OK:
            raise refusal(answer.code, f"{operation} is refused", answer.reason)
        return [dict(row) for row in answer.rows]

    async def set_arguments(self, stream: str, arguments: dict[str, str]) -> None:
        """Change what a stream was declared with; holds from the next chunk on.

        Args:
            stream: its name.
            arguments: by their name in the protocol, as of a filter, chunks, segments or
                retention; an empty text is the default.

        Raises:
            PreconditionFailed: one of them cannot be changed or read; says which.
            StreamDoesNotExist: there is no such stream.
        """
        await self.manage("stream.set", stream=stream, **arguments)

    # -- standing selectors

    async def register_selector(
        self,
        stream: str,
        group: str,
        *,
        sql: str | None = None,
        tags: str | None = None,
        dialect: str = Dialect.UNION,
    ) -> None:
        """Have the server find a group's messages while they are published.

        From now on each chunk that holds a match is marked for the group, and its consumers
        (`consumer(…, group=…)`) pass over all others, whatever the selector says. Registering
        the same selector again changes nothing.

        Raises:
            PreconditionFailed: it is no selector, it uses UTC(), too many groups, or the group's
                consumers rely on another one.
            StreamDoesNotExist: there is no such stream.
        """
        kind, text = Asked(sql, tags, dialect).kind_and_text()
        arguments = {"stream": stream, "group": group, "dialect": kind, "text": text}
        await self.manage("selector.add", **arguments)

    async def unregister_selector(self, stream: str, group: str) -> None:
        """Take a group's selector back; its consumers must be gone.

        Raises:
            PreconditionFailed: the group has none, or its consumers rely on it.
        """
        await self.manage("selector.delete", stream=stream, group=group)

    async def selectors(self, stream: str) -> list[StandingSelector]:
        """The standing selectors of a stream, by group."""
        rows = await self.manage("selector.list", stream=stream)
        return [
            StandingSelector(
                row["group"], row["dialect"], row["text"], int(row["since"]), int(row["consumers"])
            )
            for row in rows
        ]

    # -- publishing and consuming

    @asynccontextmanager
    async def producer(
        self,
        stream: str,
        *,
        name: str = "",
        filter_value: FilterValue | None = None,
        window: int = _WINDOW,
    ) -> AsyncIterator[Producer]:
        """A producer; leaving the context waits until everything is confirmed.

        Args:
            stream: where its messages go.
            name: a durable name. Messages are then stored once however often they are sent, and
                numbers go on where the last producer of that name ended.
            filter_value: finds the filter value of a message, None for none.
            window: how many messages may be unconfirmed before `send` waits.

        Raises:
            StreamDoesNotExist: there is no such stream.
        """
        link = self._link
        producer = Producer(stream, name, filter_value, window)
        async with link.opened(link.publishers, producer):
            link.tasks.start_soon(producer.pump)
            try:
                yield producer
                await producer.flush()
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS):
                    await producer.close()

    @asynccontextmanager
    async def consumer(  # noqa: PLR0913 - each by its name, and all have defaults
        self,
        stream: str,
        *,
        offset: Offset = NEXT,
        name: str = "",
        filter_values: Collection[str | bytes] = (),
        match_unfiltered: bool = False,
        filter_value: ReceivedFilterValue | None = None,
        sql: str | None = None,
        tags: str | None = None,
        dialect: str = Dialect.UNION,
        filter_property: str | None = None,
        group: str = "",
        until_end: bool = False,
        credit: int = _CREDIT,
        single_active: bool = False,
        super_stream: str = "",
    ) -> AsyncIterator[Consumer]:
        """A consumer; iterate over it for its messages.

        Args:
            stream: what to read.
            offset: where to begin: "first", "last" (the last chunk), "next", an offset, a time,
                or "stored": after the offset that `name` has stored, else with the first.
            name: under which `store_offset` remembers.
            filter_values: deliver only chunks in which some message may have one of these.
            match_unfiltered: and messages without a filter value.
            filter_value: finds the filter value of a message, as the producer did; with it only
                messages come out that match exactly.
            sql: a SQL92 selector: just the messages come out whose properties it is true for, and
                of the chunks just those are asked for that can hold one.
            tags: a tag expression instead, "a || b", for the property TAGS.
            dialect: of `sql`: union, rocketmq or amqp.
            filter_property: whose values the filter values are, for a selector and a server that
                does not tell; a streamd does.
            group: whose standing selector to use; see `register_selector`.
            until_end: end the iteration with what was there at the beginning.
            credit: chunks that may be on their way or in memory.
            single_active: of all consumers of this `name` on the stream one at a time gets
                messages; another takes over when it leaves. Begin at "stored" and store offsets
                to go on where the one before ended.
            super_stream: whose partition the stream is; see `super_consumer`.

        Raises:
            StreamDoesNotExist: there is no such stream.
            Unsupported: `until_end`, and the server is not a streamd.
            ValueError: `offset` is none of the above, single_active has no name or an end, or
                `sql` or `tags` is no selector (a SelectorError, which shows the place).
        """
        if single_active and (until_end or not name):
            raise ValueError("a single active consumer needs a name and has no end")
        link = self._link
        if until_end and not link.is_streamd:
            raise Unsupported("only a streamd server tells when a filter has come to the end")
        start = await self._start(stream, offset, name)
        wanted: Wanted = Filter(filter_values, match_unfiltered, filter_value)
        if sql is not None or tags is not None or group:
            if filter_values:
                raise ValueError("filter values or a selector, not both")
            asked = Asked(sql, tags, dialect, filter_property, group)
            wanted = await selector_filter(self, stream, asked)
        members = None
        if single_active:
            members = Group(partial(self._start, stream, offset, name), super_stream)
        consumer = Consumer(link, stream, name, start, wanted, credit, members)
        end = (await self.stats(stream))["committed_offset"] + 1 if until_end else None
        async with link.opened(link.consumers, consumer):
            if end is not None:
                link.tasks.start_soon(consumer.stop_at, end)
            try:
                yield consumer
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS):
                    await consumer.settle()
                    await consumer.close()

    def super_producer(
        self,
        super_stream: str,
        routing_key: RoutingKey,
        *,
        by_key: bool = False,
        **options: Unpack[ProducerOptions],
    ) -> AbstractAsyncContextManager[SuperProducer]:
        """A producer for all partitions of a super stream.

        Args:
            super_stream: its name.
            routing_key: finds the routing key of a message. By its hash one of the partitions
                is chosen, the same one as by RabbitMQ's clients.
            by_key: the server says instead where a key leads, as the super stream was created.
            options: name, filter_value and window, as for `producer`.

        Raises:
            StreamDoesNotExist: there is no such super stream.
        """
        return open_super_producer(self, super_stream, routing_key, by_key=by_key, **options)

    def super_consumer(
        self, super_stream: str, **options: Unpack[ConsumerOptions]
    ) -> AbstractAsyncContextManager[SuperConsumer]:
        """A consumer of all partitions of a super stream; in order within each of them.

        Args:
            super_stream: its name.
            options: as for `consumer`. With single_active the partitions are shared out among
                all consumers of the same name.

        Raises:
            StreamDoesNotExist: there is no such super stream.
        """
        return open_super_consumer(self, super_stream, **options)

    async def _start(self, stream: str, offset: Offset, name: str) -> OffsetSpecification:
        if offset != _STORED:
            return offset_specification(offset)
        if not name:
            raise ValueError("offset 'stored' needs the name under which it was stored")
        try:
            return offset_specification(await self.query_offset(stream, name) + 1)
        except NoOffset:
            return offset_specification("first")


@asynccontextmanager
async def connect(
    uri: str = DEFAULT_URI,
    *,
    name: str = "streamd",
    heartbeat: int = _HEARTBEAT_SECONDS,
    retry_seconds: float = _RETRY_SECONDS,
) -> AsyncIterator[Client]:
    """A client of the server at `uri`; the connection ends with the context.

    A connection that is lost is made again, after pauses that grow to five seconds. Producers then
    send again what was not confirmed, consumers go on behind what has arrived, questions are asked
    again. Only what would change something, create or delete, fails with ConnectionLost when it was
    on its way: it may have been done.

    Args:
        uri: rabbitmq-stream://user:password@host:port/virtual-host.
        name: of the connection, for whoever looks at the server.
        heartbeat: seconds between signs of life, 0 for none.
        retry_seconds: how long to try to get a lost connection back before everything fails with
            ConnectionLost; 0 does not try, math.inf for ever.

    Raises:
        ValueError: `uri` is not an address.
        ConnectionLost: nobody answers there.
        LoginRefused: the server does not let this user in.
    """
    async with open_link(parse_uri(uri), name, heartbeat, retry_seconds) as link:
        yield Client(link)
