"""Super streams: one producer and one consumer for all partitions.

The partition of a message is chosen by the hash of its routing key, as RabbitMQ's clients do it,
so that messages of one key stay in order whichever client publishes them.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol, TypeAlias, TypedDict, Unpack

import mmh3

from clients.consumer import Consumer, Offset
from clients.errors import (
    ConnectionLost,
    DamagedChunk,
    PartitionsFailed,
    PublishFailed,
    StreamError,
)
from clients.filters import FilterValue as ReceivedFilterValue, ReceivedMessage
from clients.producer import FilterValue, Producer, as_message
from clients.signals import Signal
from segments.message import Message

RoutingKey: TypeAlias = Callable[[Message], str]

_SEED = 104_729  # of all RabbitMQ clients


class ProducerOptions(TypedDict, total=False):
    """Options of the producers of all partitions; see `Client.producer`."""

    name: str
    filter_value: FilterValue | None
    window: int


class ConsumerOptions(TypedDict, total=False):
    """Options of the consumers of all partitions; see `Client.consumer`."""

    offset: Offset
    name: str
    filter_values: Collection[str | bytes]
    match_unfiltered: bool
    filter_value: ReceivedFilterValue | None
    sql: str | None
    tags: str | None
    dialect: str
    filter_property: str | None
    group: str
    until_end: bool
    credit: int
    single_active: bool


class PartitionClient(Protocol):
    """What a super stream needs of a client; `Client` has all of it and more."""

    def producer(
        self, stream: str, **options: Unpack[ProducerOptions]
    ) -> AbstractAsyncContextManager[Producer]:
        """See `Client.producer`."""

    def consumer(
        self, stream: str, *, super_stream: str = "", **options: Unpack[ConsumerOptions]
    ) -> AbstractAsyncContextManager[Consumer]:
        """See `Client.consumer`."""

    async def partitions(self, super_stream: str) -> list[str]:
        """See `Administration.partitions`."""

    async def route(self, super_stream: str, routing_key: str) -> list[str]:
        """See `Administration.route`."""


class NoRoute(ValueError):
    """A routing key leads to no partition."""


def partition_number(routing_key: str, num_partitions: int) -> int:
    """The partition that a routing key's hash chooses."""
    return mmh3.hash(routing_key.encode(), _SEED, signed=False) % num_partitions


class SuperProducer:
    """Publishes to a super stream; made by `Client.super_producer`.

    Attributes:
        producers: of the partitions, by stream, in their order.
    """

    def __init__(
        self,
        client: PartitionClient,
        super_stream: str,
        routing_key: RoutingKey,
        producers: dict[str, Producer],
        *,
        by_key: bool,
    ) -> None:
        self.producers = producers
        self._client = client
        self._super_stream = super_stream
        self._routing_key = routing_key
        self._streams = list(producers)
        self._by_key = by_key
        self._routes: dict[str, list[str]] = {}

    async def send(self, message: Message | bytes) -> None:
        """Give a message to be published; see `Producer.send`.

        Of several partitions all take it or, when this fails or is cancelled, none.

        Raises:
            NoRoute: its key leads to no partition.
        """
        message = as_message(message)
        streams = await self._partitions(self._routing_key(message))
        producers = [self.producers[stream] for stream in streams]
        body, value = message.encode(), producers[0].value_of(message)
        for producer in producers:
            await producer.room()
        while full := [producer for producer in producers if producer.is_full]:
            await full[0].room()
        for producer in producers:
            producer.check()
        for producer in producers:
            producer.accept(body, value)

    async def _partitions(self, key: str) -> list[str]:
        if not self._by_key:
            return [self._streams[partition_number(key, len(self._streams))]]
        if key not in self._routes:
            self._routes[key] = await self._client.route(self._super_stream, key)
        if not self._routes[key]:
            raise NoRoute(f"routing key {key!r} leads to no partition of {self._super_stream}")
        return self._routes[key]

    async def flush(self) -> None:
        """Return when everything given so far is confirmed, or refused; see `Producer.flush`.

        What is wrong with one partition keeps nothing from the others.

        Raises:
            PartitionsFailed: messages to some partitions are not stored.
            ConnectionLost: the connection is gone for good; nothing was refused.
        """
        errors: dict[str, StreamError] = {}
        num_missing: dict[str, int] = {}
        for stream, producer in self.producers.items():
            try:
                await producer.flush()
            except StreamError as error:
                told = error.refused if isinstance(error, PublishFailed) else ()
                errors[stream], num_missing[stream] = error, producer.num_missing + len(told)
        found = list(errors.values())
        if found and all(isinstance(error, ConnectionLost) for error in found):
            raise found[0]
        if found:
            raise PartitionsFailed(errors, num_missing) from found[0]


class SuperConsumer:
    """Reads a super stream; made by `Client.super_consumer`. Iterate over it.

    Attributes:
        consumers: of the partitions, by stream, in their order.
    """

    def __init__(self, consumers: dict[str, Consumer]) -> None:
        self.consumers = consumers
        self._turns = deque(consumers.values())
        self._arrived = Signal()
        for consumer in self._turns:
            consumer.arrived = self._arrived

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        while (message := self._take()) is None:
            await self._arrived.wait()
        return message

    def _take(self) -> ReceivedMessage | None:
        """The next message of any partition; each has its turn with what is in one chunk."""
        for _ in range(len(self._turns)):
            consumer = self._turns[0]
            opened = consumer.counts.chunks
            try:
                message = consumer.take()
            except StopAsyncIteration:
                self._turns.popleft()
                continue
            except DamagedChunk:
                raise  # what follows it can be read
            except StreamError:
                self._turns.popleft()
                raise
            if message is None or consumer.counts.chunks != opened:  # else it has more of a chunk
                self._turns.rotate(-1)
            if message is not None:
                return message
        if not self._turns:
            raise StopAsyncIteration
        return None

    @property
    def active(self) -> list[str]:
        """The partitions that are this consumer's at the moment."""
        return [stream for stream, consumer in self.consumers.items() if consumer.is_active]

    async def store_offset(self, message: ReceivedMessage) -> None:
        """Remember on the server that `message` is done; see `Consumer.store_offset`."""
        await self.consumers[message.stream].store_offset(message.offset)


@asynccontextmanager
async def open_super_producer(
    client: PartitionClient,
    super_stream: str,
    routing_key: RoutingKey,
    *,
    by_key: bool,
    **options: Unpack[ProducerOptions],
) -> AsyncIterator[SuperProducer]:
    """See `Client.super_producer`."""
    async with AsyncExitStack() as stack:
        producers = {
            stream: await stack.enter_async_context(client.producer(stream, **options))
            for stream in await client.partitions(super_stream)
        }
        producer = SuperProducer(client, super_stream, routing_key, producers, by_key=by_key)
        try:
            yield producer
        except StreamError:  # of one partition, perhaps: what the others have taken is stored
            await producer.flush()
            raise
        await producer.flush()


@asynccontextmanager
async def open_super_consumer(
    client: PartitionClient, super_stream: str, **options: Unpack[ConsumerOptions]
) -> AsyncIterator[SuperConsumer]:
    """See `Client.super_consumer`."""
    async with AsyncExitStack() as stack:
        consumers = {
            stream: await stack.enter_async_context(
                client.consumer(stream, super_stream=super_stream, **options)
            )
            for stream in await client.partitions(super_stream)
        }
        yield SuperConsumer(consumers)
