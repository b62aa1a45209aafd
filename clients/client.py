"""A client of one server: where a program begins."""

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Unpack

import anyio

from clients.administration import Administration
from clients.consumer import Consumer, Offset, SingleActiveGroup, offset_specification
from clients.errors import NoOffset, Unsupported
from clients.filters import (
    ConsumerFilter,
    Filter,
    FilterValue as ReceivedFilterValue,
    SelectorRequest,
)
from clients.finding import DEFAULT_SECONDS, Finding, SearchOptions, words_of
from clients.position import Place
from clients.producer import FilterValue, Producer
from clients.reconnecting import ReconnectingConnection, open_reconnecting
from clients.selection import declared_by, selector_filter
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
from streamd.wire.stream.fields import OffsetSpecification

_STORED = "stored"
_HEARTBEAT_SECONDS = 60
_WINDOW = 10_000
_CREDIT, _MAX_CREDIT = 10, 65_535
_CLOSE_SECONDS = 10
_RETRY_SECONDS = 60


class Client(Administration):
    """A client of one server; made by `connect`."""

    def __init__(self, connection: ReconnectingConnection) -> None:
        super().__init__(connection)
        self._searching = anyio.Lock(fast_acquire=True)  # asking yields

    @asynccontextmanager
    async def producer(
        self,
        stream: str,
        *,
        name: str = "",
        filter_value: FilterValue | None = None,
        window: int = _WINDOW,
    ) -> AsyncIterator[Producer]:
        """A producer, for `async with`; leaving the block waits until everything is confirmed.

        Args:
            stream: the stream to publish to.
            name: a durable name. Messages are then stored once however often they are sent, and
                numbers go on where the last producer of that name ended.
            filter_value: a function that gives the filter value of a message, None for none.
                Messages without one get that of the stream's filter property, if it has one.
            window: how many messages may be unconfirmed before `send` waits.

        Raises:
            StreamDoesNotExist: there is no such stream.
            ValueError: `window` is less than 1.
        """
        connection = self._connection
        producer = Producer(stream, name, filter_value, window)
        async with connection.opened(connection.publishers, producer):
            connection.tasks.start_soon(producer.pump)
            yield producer
            await producer.flush()

    @asynccontextmanager
    async def consumer(  # noqa: PLR0913 - each by its name, and all have defaults
        self,
        stream: str,
        *,
        offset: Offset = "next",
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
        """A consumer, for `async with`; iterate over it for its messages.

        Args:
            stream: the stream to read.
            offset: where to begin: "first", "last" (the last chunk), "next", an offset, a time,
                or "stored": after the offset that `name` has stored, else with the first. With a
                time come messages that were stored then or later; of the first chunk those are
                left out whose `properties.creation_time` is before it.
            name: a durable name, under which `Consumer.store_offset` remembers.
            filter_values: deliver only chunks in which some message may have one of these.
            match_unfiltered: with `filter_values`, also messages without a filter value.
            filter_value: a function that gives the filter value of a message, as the producer's, or
                the name of the property that has it, such as "region" or "properties.subject".
                Then only messages that match exactly come out. A number or a boolean is its JSON
                text: 5, 2.5, true. Of a further filter property of the stream it is no value.
            sql: a SQL92 selector: only messages whose properties it is true for come out, and only
                chunks that can hold one are asked for.
            tags: a tag expression instead, "a || b", for the property TAGS.
            dialect: the rules for `sql`: union, rocketmq or amqp.
            filter_property: the property whose values are the filter values, for a selector; only
                needed with a server that does not say so, as a streamd does.
            group: whose standing selector to use; see `register_selector`.
            until_end: end the iteration with what was there at the beginning.
            credit: chunks that may be on their way or in memory.
            single_active: of all consumers of this `name` on the stream only one at a time gets
                messages; another takes over when it leaves. Begin at "stored" and store offsets
                to continue where the previous one ended.
            super_stream: whose partition the stream is; see `super_consumer`.

        Raises:
            StreamDoesNotExist: there is no such stream.
            Unsupported: `until_end`, and the server is not a streamd.
            ValueError: `offset` is none of the above, single_active has no name or an end,
                `filter_values` is one value, `credit` is not 1 to 65,535, or `sql` or `tags` is
                not a selector, or `filter_value` names no property (a SelectorError, which shows
                the place).
        """
        _check_filter_values(filter_values)
        if not 1 <= credit <= _MAX_CREDIT:
            raise ValueError(f"credit is {credit}, expected 1 to {_MAX_CREDIT} chunks")
        if single_active and (until_end or not name):
            raise ValueError("a single active consumer needs a name and has no end")
        connection = self._connection
        if until_end and not connection.is_streamd:
            raise Unsupported("only a streamd server tells when a filter has come to the end")
        start = await self._start(stream, offset, name)
        by_value = Filter(filter_values, match_unfiltered, filter_value)
        if by_value.follows:
            by_value.learn(await declared_by(self, stream))
        wanted: ConsumerFilter = by_value
        if sql is not None or tags is not None or group:
            if filter_values:
                raise ValueError("filter values or a selector, not both")
            asked = SelectorRequest(sql, tags, dialect, filter_property, group)
            wanted = await selector_filter(self, stream, asked)
        members = None
        if single_active:
            members = SingleActiveGroup(partial(self._start, stream, offset, name), super_stream)
        end = {"end_offset": await self._end(stream)} if until_end else {}
        place = Place(stream, name if offset == _STORED else "", start)
        consumer = Consumer(connection, stream, name, place, wanted, credit, members, **end)
        async with connection.opened(connection.consumers, consumer):
            connection.tasks.start_soon(consumer.grant)
            try:
                yield consumer
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_SECONDS):
                    await consumer.settle()

    def find(
        self,
        stream: str,
        *,
        limit: int | None = None,
        after: str = "",
        seconds: float = DEFAULT_SECONDS,
        **wanted: Unpack[SearchOptions],
    ) -> Finding:
        """Single messages of a stream, found by the server; iterate over them.

        What is found is exact. A search sees what was there when it began, whatever is published
        while it goes on, and continues when a lost connection is back.

        Args:
            stream: where to search.
            limit: messages at most; None for all.
            after: of an earlier search for the same, `Finding.after`: go on there.
            seconds: that the server may take for it, together; then the iteration ends.
            wanted: what is looked for; without any of these, all messages. `key`, one or several:
                a text also finds the number, boolean, UUID or time that it spells. `properties`
                in which keys are looked for, as order_id or properties.message_id; default are the
                key properties of the stream. `start` and `end`, times, both inclusive: a datetime,
                ms since 1970, or a text as 2026-11-21T09:00:00Z; of when messages were stored, or
                with `by_creation_time` of their property creation_time. `sql` (with `dialect`),
                `tags`, `filter_values`, as for `consumer`. `offset`, to begin with. `newest`: the
                newest first. `latest`: only the newest message of each key.

        Raises:
            Unsupported: the server is not a streamd.
            ValueError: `sql` or `tags` is not a selector (a SelectorError), or `limit` is below 1.
        """
        if not self.is_streamd:
            raise Unsupported("only a streamd server finds single messages")
        if limit is not None and limit < 1:
            raise ValueError(f"limit is {limit}, expected 1 or more")
        words = words_of(**wanted)
        connection, searching = self._connection, self._searching
        return Finding(connection, searching, stream, words, limit, after, seconds)

    def super_producer(
        self,
        super_stream: str,
        routing_key: RoutingKey,
        *,
        by_key: bool = False,
        **options: Unpack[ProducerOptions],
    ) -> AbstractAsyncContextManager[SuperProducer]:
        """A producer for all partitions of a super stream, for `async with`.

        Args:
            super_stream: its name.
            routing_key: a function that gives the routing key of a message. By its hash one of the
                partitions is chosen, the same one as by RabbitMQ's clients.
            by_key: ask the server where a key leads instead, as the super stream was created.
            options: `name`, `filter_value` and `window`, as for `producer`.

        Raises:
            StreamDoesNotExist: there is no such super stream.
        """
        return open_super_producer(self, super_stream, routing_key, by_key=by_key, **options)

    def super_consumer(
        self, super_stream: str, **options: Unpack[ConsumerOptions]
    ) -> AbstractAsyncContextManager[SuperConsumer]:
        """A consumer of all partitions of a super stream, for `async with`.

        Messages are in order within each partition.

        Args:
            super_stream: its name.
            options: as for `consumer`. With single_active the partitions are shared out among
                all consumers of the same name.

        Raises:
            StreamDoesNotExist: there is no such super stream.
        """
        return open_super_consumer(self, super_stream, **options)

    async def _end(self, stream: str) -> int:
        """The offset behind the last message that there is."""
        return (await self.stats(stream))["committed_offset"] + 1

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
    """A client of the server at `uri`, for `async with`; the connection ends with the block.

    A lost connection is made again, after pauses that grow to five seconds. Producers then resend
    what was not confirmed, consumers continue after what has arrived, queries are repeated. Only
    requests that change something, as create and delete do, fail with ConnectionLost when they were
    on their way: they may have been carried out.

    Args:
        uri: rabbitmq-stream://user:password@host:port/virtual-host.
        name: the name of the connection, as the server lists it.
        heartbeat: seconds between heartbeats, 0 for none.
        retry_seconds: how long to try to get a lost connection back before everything fails with
            ConnectionLost; 0 does not try, math.inf for ever.

    Raises:
        ValueError: `uri` is not an address.
        ConnectionLost: nobody answers there.
        LoginRefused: the server does not let this user in.
    """
    async with open_reconnecting(parse_uri(uri), name, heartbeat, retry_seconds) as connection:
        yield Client(connection)


def _check_filter_values(values: Collection[str | bytes]) -> None:
    if isinstance(values, str | bytes):
        raise ValueError(f"filter_values is {values!r}, expected [{values!r}]")
    for value in values:
        if not isinstance(value, str | bytes):
            raise TypeError(f"filter value is {value!r}, expected text or bytes")
