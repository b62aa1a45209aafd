"""From a stream to consumers that get messages one by one, as far as their credit goes.

One `MessageDeliveries` per connection, asked for one turn at a time by the connection's writer, so
that answers and heartbeats get in between and consumers take turns. A consumer keeps what it has
read and may not send yet, at most one read of small chunks or one large chunk; all of a connection
keep HELD_BYTES, and a consumer that finds these used up reads again later.

A consumer that begins with a time gets the first chunk that was stored then or later, without the
messages in it that say that they were created before.
"""

import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set as AbstractSet
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import trio

from segments import Reader, Start, StorageError, StoredChunk, at_offset
from segments.codec import ChunkHeader, simple_ends, walk_entries
from segments.columns import Columns, Opened, open_rows
from segments.compression import entry_bodies
from segments.errors import FormatError, SegmentsError
from segments.format_constants import NO_COMPRESSION
from segments.row_run import OpenedRows
from segments.selector import Budget, body_at
from segments.store.cache import ColdError
from streamd.broker.declared.checks import properties_size
from streamd.broker.streams.fetcher import NoTierError
from streamd.broker.streams.stream import Stream
from streamd.broker.traffic import ProtocolTraffic
from streamd.connections.consumer_choice import Choice, ConsumerArguments
from streamd.connections.ready_queue import ConsumerState, QueuedConsumer, ReadyQueue
from streamd.connections.watch import Watch
from streamd.net import threads
from streamd.net.transport import Transport
from streamd.net.turns import next_turn
from streamd.operations.connections import ConsumerFacts

logger = logging.getLogger(__name__)

TURN_BYTES = 64 << 10
_READ_CHUNKS = 64
_READ_BYTES = 128 << 10
_READ_STEPS = 300  # chunks looked at in a turn, delivered or not
_CHOICE_UNITS = 50_000  # of work in a turn, some 20 ms; the rest is done in a thread
_ROW_UNITS = 10_000  # of them, where columns choose messages of many chunks, some 4 ms
_MESSAGES_A_TURN = 5_000  # taken out of a chunk, some 5 ms
HELD_BYTES = 32 << 20  # what consumers of one connection have read and not sent
_MESSAGE_BYTES = 160  # a message takes in memory besides its own


class MessageConsumer(QueuedConsumer):
    """One consumer; its states are those of ready_queue.py.

    Args:
        name: for the log, as its client knows it.

    Attributes:
        arguments: what it asked for, in readable form.
        consumed: messages sent.
        held: bytes of memory that what it has read and not sent takes.
        reader: where it is in the stream; None before it knows where it begins.
    """

    def __init__(
        self,
        deliveries: "MessageDeliveries[Any]",
        name: str,
        stream: Stream,
        wanted: ConsumerArguments,
        arguments: Mapping[str, str],
    ) -> None:
        super().__init__(stream, deliveries.queue)
        self.name = name
        self.wanted = wanted
        self.arguments = arguments
        self.consumed = 0
        self.held = 0
        self._first_offset = wanted.first_offset
        self._first_chunk_id: int | None = None
        self.reader: Reader | None = None
        self._deliveries = deliveries
        self._has_warned = self._is_reading = False
        self._read: deque[tuple[int, bytes]] = deque()  # offset and message
        self._start = wanted.start
        self._begin()
        stream.life.hold()

    @property
    @abstractmethod
    def room(self) -> int:
        """How many messages its client lets it send now."""

    def _begin(self) -> None:
        """Begin to read at `_start`; where that has to be fetched, it begins when it is there.

        Raises:
            StorageError: the stream cannot be read.
            NoTierError: this server does not know the tier.
        """
        try:
            self.reader = self.stream.reader(self._start, self.wanted.matcher)
        except ColdError as error:
            self.fetch(error)
            return
        if self._start.start is Start.TIMESTAMP:
            self._first_chunk_id = self.reader.next_offset
        self.stream.traffic.begin_reading(self.reader.counts, sends=False)

    def read_on(self) -> None:
        """See QueuedConsumer."""
        if self.reader is None:
            try:
                self._begin()
            except (StorageError, NoTierError) as error:
                self._deliveries.cannot_read(self, error)
                return
        self.check()

    @property
    def keys(self) -> Collection[bytes] | None:
        """See stream.Waiter."""
        matcher = self.wanted.matcher
        return None if matcher is None else matcher.keys

    @property
    def other_keys(self) -> Sequence[AbstractSet[bytes]]:
        """See waiters.Waiter."""
        matcher = self.wanted.matcher
        return () if matcher is None else matcher.other_keys

    @property
    def may_send(self) -> bool:
        """See QueuedConsumer."""
        return self.reader is not None and self.room > 0

    @property
    def is_at_end(self) -> bool:
        """See QueuedConsumer."""
        return not self._read and self.reader is not None and self.reader.at_end

    @property
    def next_offset(self) -> int:
        """Everything before it was read."""
        return self.reader.next_offset if self.reader is not None else self._first_offset

    def catch_up(self) -> None:
        """See QueuedConsumer."""
        if self.reader is not None:
            self.reader.catch_up()

    def check(self) -> None:
        """See QueuedConsumer."""
        if not self._is_reading:  # else it is checked when its turn is over
            super().check()

    @property
    @abstractmethod
    def credit(self) -> int:
        """How many messages its client wants still."""

    def facts(self, number: int) -> ConsumerFacts:
        """It as it is at the moment; `number` is its own on the connection."""
        position, log, reader = self.next_offset, self.stream.log, self.reader
        return ConsumerFacts(
            number,
            self.stream.name,
            {"identifier": self.name, **self.arguments},
            self.credit,
            consumed=self.consumed,
            next_offset=position,
            lag=log.segments.gaps.num_between(position, log.committed_offset),
            lag_seconds=self.stream.lag_seconds(reader, position) if reader else 0.0,
            is_single_active=False,
            is_active=True,
        )

    def describe(self) -> str:
        """For the log."""
        return f"what is stored in '{self.stream.name}', for the consumer {self.name},"

    @property
    def is_dear(self) -> bool:
        """Whether its next message may take much longer than sending it."""
        return False

    def sendable(self) -> Iterator[tuple[int, bytes]]:
        """The messages that may be sent now, of those that were read, and their offsets."""
        is_allowed = self.may_send and not self.is_closed
        return islice(self._read, self.room if is_allowed else 0)

    def sent(self, count: int) -> None:
        """So many of them are sent."""
        self.consumed += count
        pop = self._read.popleft
        self._hold(-_MESSAGE_BYTES * count - sum([len(pop()[1]) for _ in range(count)]))

    def _hold(self, size: int) -> None:
        self.held += size
        self._deliveries.hold(size)

    def drop_read(self) -> None:
        """Discard what was read: it is read again when it may be sent.

        Raises:
            StorageError: the stream cannot be read.
            NoTierError: this server does not know the tier.
        """
        if self._read:
            self._first_offset = self._read[0][0]
            self._forget_read()
            self._close_reader()
            self._start = at_offset(self._first_offset)
            self._begin()

    def _close_reader(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            self.stream.traffic.end_reading(reader.counts)
            reader.close()

    def _forget_read(self) -> None:
        self._read.clear()
        self._hold(-self.held)

    async def read(self) -> None:
        """Read on if everything that was read has been sent.

        Raises:
            StorageError: the system refused.
            NoTierError: this server does not know the tier.
        """
        reader = self.reader
        if self._read or reader is None:
            return
        budget = Budget(_CHOICE_UNITS)
        chunks: Sequence[StoredChunk] = ()
        try:
            rows = self._read_rows(reader)
            if rows is None:
                chunks = reader.read(_READ_CHUNKS, _READ_BYTES, _READ_STEPS)
        except ColdError as error:
            self.fetch(error, reader.missing(error))
            return
        self.fetch_ahead(reader)
        self._is_reading = True
        try:
            if rows is None:
                await self._choose_all(chunks, budget)
            else:
                await self._choose_among(rows, self.wanted, budget)
        finally:
            self._is_reading = False

    def _read_rows(self, reader: Reader) -> OpenedRows | None:
        """See `Reader.read_rows`; None also where more is asked of a chunk than columns tell."""
        wanted = self.wanted
        if not wanted.screens or reader.next_offset == self._first_chunk_id:
            return None
        return reader.read_rows(wanted, _READ_BYTES, _ROW_UNITS)

    async def _choose_all(self, chunks: Sequence[StoredChunk], budget: Budget) -> None:
        for chunk in chunks:
            try:
                await self._choose(chunk, budget)
            except FormatError as error:
                logger.error("stream %s: a chunk is skipped: %s", self.stream.name, error)
            if self.is_closed:  # meanwhile
                return

    async def _choose(self, chunk: StoredChunk, budget: Budget) -> None:
        wanted = self.wanted
        if self._is_first(chunk.header):
            wanted = wanted.of_first_chunk()
        rows = await self._rows(chunk, wanted, budget) if wanted.screens else None
        if self.is_closed:  # meanwhile, and the file with it
            return
        opened = None if rows is None else _opened(chunk, *rows)
        if opened is None:
            raw = _read(chunk, chunk.header.data_size, 0)
            plain, ends, offsets = await self._messages(raw, chunk.header)
        else:
            plain, ends = opened.data, opened.ends
            offsets = [chunk.header.chunk_id + place for place in opened.places]
        found = OpenedRows(plain, ends, offsets, [chunk.header.chunk_id])
        await self._choose_among(found, wanted, budget)

    async def _choose_among(
        self, rows: OpenedRows, wanted: ConsumerArguments, budget: Budget
    ) -> None:
        plain, ends, offsets, chunk_ids = rows
        if not wanted.choices:
            places: Collection[int] = range(len(ends))
        elif budget.take(wanted.cost.units(len(plain), len(ends))):
            places = _chosen(wanted.choices, plain, ends)
        else:
            places = await threads.compute(_chosen, wanted.choices, plain, ends)
        hit = {bisect_right(chunk_ids, offsets[place]) for place in places}
        if len(hit) < len(chunk_ids):
            self.stream.traffic.in_vain(len(chunk_ids) - len(hit))
        await self._keep(plain, ends, offsets, places)

    async def _rows(
        self, chunk: StoredChunk, wanted: ConsumerArguments, budget: Budget
    ) -> tuple[Columns, int] | None:
        """The chunk's columns, and the messages that may be wanted; None where they do not tell."""
        columns = chunk.columns()
        if columns is None:
            return None
        if budget.take(wanted.screening_units(columns.num_records)):
            rows = wanted.rows(columns)
        else:
            rows = await threads.compute(wanted.rows, columns)
        return None if rows is None else (columns, rows)

    def _is_first(self, header: ChunkHeader) -> bool:
        """Whether it is the first chunk that is not older than the time that was asked for.

        Where all that was stored was older, the next one may be as well: that is not it.
        """
        is_first = header.chunk_id == self._first_chunk_id
        return is_first and header.timestamp_ms >= self.wanted.start.value

    async def _messages(
        self, plain: bytes, header: ChunkHeader
    ) -> tuple[bytes, list[int], Sequence[int]]:
        """The data, where each message ends in it, and its offset."""
        ends = simple_ends(plain)
        if ends is not None:
            return plain, ends, range(header.chunk_id, header.next_offset)
        if header.num_records > _MESSAGES_A_TURN:
            return await threads.compute(self._unpack, plain, header.chunk_id)
        return self._unpack(plain, header.chunk_id)

    async def _keep(
        self, plain: bytes, ends: list[int], offsets: Sequence[int], places: Collection[int]
    ) -> None:
        first = self._first_offset
        left = iter(places)
        for number in range(0, len(places), _MESSAGES_A_TURN):
            if number:
                await trio.lowlevel.checkpoint()
            if self.is_closed:
                return
            found = [
                (offsets[place], body_at(plain, ends, place))
                for place in islice(left, _MESSAGES_A_TURN)
                if offsets[place] >= first
            ]
            self._read.extend(found)
            self._hold(sum([len(body) for _, body in found]) + _MESSAGE_BYTES * len(found))

    def _unpack(self, data: bytes, offset: int) -> tuple[bytes, list[int], list[int]]:
        """Messages as if there were no sub-batches; compressed ones are left out, as RabbitMQ does.

        Returns:
            the data, where each message ends in it, and its offset.
        """
        parts: list[bytes] = []
        ends: list[int] = []
        offsets: list[int] = []
        size = 0
        for entry in walk_entries(data):
            is_plain = entry.compression in (None, NO_COMPRESSION)
            if not is_plain:
                self._warn_of_compression()
            bodies = entry_bodies(data, entry) if is_plain else ()
            for n, message in enumerate(bodies):
                parts += (len(message).to_bytes(4, "big"), message)
                size += 4 + len(message)
                ends.append(size)
                offsets.append(offset + n)
            offset += entry.num_records
        return b"".join(parts), ends, offsets

    def _warn_of_compression(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "stream %s: compressed sub-batches are skipped for the AMQP consumer %s; "
                "only clients of the stream protocol read them",
                self.stream.name,
                self.name,
            )

    def close(self) -> None:
        """Stop for good; what was sent can still be acknowledged."""
        if not self.is_closed:
            self.end_state()
            self.stream.life.release()
            self._close_reader()
            self._forget_read()
            self._deliveries.forget(self)


def _read(chunk: StoredChunk, size: int, position: int) -> bytes:
    """Some bytes of a chunk's data."""
    data = chunk.data
    if data is not None:
        return bytes(data[position : position + size])
    return chunk.file.read(size, chunk.data_position + position)


def _opened(chunk: StoredChunk, columns: Columns, rows: int) -> Opened | None:
    """Some messages of a chunk; None where its data is damaged: then what can be read of it."""
    try:
        return open_rows(columns, rows, chunk.header.data_size, partial(_read, chunk))
    except FormatError:
        return None


def _chosen(choices: Sequence[Choice], plain: bytes, ends: list[int]) -> Collection[int]:
    """The places of messages that all choices agree on."""
    places: Collection[int] = range(len(ends))
    for number, choice in enumerate(choices):
        chosen = choice(plain, ends)
        places = chosen if not number else sorted(set(places).intersection(chosen))
    return places


Consumer = TypeVar("Consumer", bound=MessageConsumer)


class MessageDeliveries(ABC, Generic[Consumer]):
    """The consumers of one connection.

    Args:
        frame_max: bytes that a frame may have.
        cannot_read: called with a stream that cannot be read; ends its consumers.

    Attributes:
        num_consumers: how many are not closed.
        held: what they hold together, in bytes of memory.
        properties_size: bytes counted for what they asked for.
    """

    def __init__(
        self,
        queue: ReadyQueue[Consumer],
        frame_max: int,
        cannot_read: Callable[[Stream], None],
        traffic: ProtocolTraffic,
        watch: Watch,
    ) -> None:
        self._watch = watch
        self.queue = queue
        self.frame_max = frame_max
        self.traffic = traffic
        self.num_consumers = 0
        self.held = self.properties_size = 0
        self._cannot_read = cannot_read
        self._all: dict[Consumer, None] = {}

    def take(self, consumer: Consumer) -> None:
        """There is one consumer more; it gets messages once it is checked."""
        self._all[consumer] = None
        self.num_consumers += 1
        self.traffic.consumers += 1
        self.properties_size += properties_size(consumer.arguments.items())

    def forget(self, consumer: Consumer) -> None:
        """A consumer is closed."""
        self.num_consumers -= 1
        self.traffic.consumers -= 1
        self.properties_size -= properties_size(consumer.arguments.items())
        self._all.pop(consumer, None)

    def hold(self, size: int) -> None:
        """A consumer holds this many bytes more, or fewer."""
        self.held += size

    @property
    def has_pending(self) -> bool:
        """Somebody is in line."""
        return self.queue.has_pending

    async def send_next(self, transport: Transport) -> None:
        """Send what is next in line, or wait until the peer has taken what it was sent.

        Raises:
            TransportClosed: the peer is gone.
        """
        if transport.is_congested:
            for waiting in self._all:  # a peer that never reads holds nothing in the cache
                waiting.rest(waiting.reader)
            await transport.drained()
            return
        consumer = self.queue.next()
        if consumer is None:
            return
        try:
            await consumer.read()
            if consumer.is_dear:
                await next_turn()
            began = self._watch.begin()
            frames = self._frames(consumer)
            self._watch.check(began, consumer.describe, is_asked_for=False)
            if self.held > HELD_BYTES:
                consumer.drop_read()
        except SegmentsError as error:
            self.cannot_read(consumer, error)
            return
        if self._watch.pause:
            await trio.sleep(self._watch.take_pause())
        if frames:
            await transport.send(b"".join(frames))
        else:
            await trio.lowlevel.checkpoint()  # all were skipped: others have a turn
        consumer.check()
        if consumer.state not in (ConsumerState.READY, ConsumerState.DELAYED):
            consumer.rest(consumer.reader)

    def cannot_read(self, consumer: Consumer, error: SegmentsError) -> None:
        """The stream of a consumer cannot be read: all that read it on this connection end."""
        logger.error("stream %s cannot be read: %s", consumer.stream.name, error)
        self._cannot_read(consumer.stream)

    @abstractmethod
    def _frames(self, consumer: Consumer) -> list[bytes]:
        """The next messages, counted against the credit before they are sent."""

    def _count(self, consumer: Consumer, messages: int, size: int) -> None:
        consumer.sent(messages)
        self.traffic.messages_delivered += messages
        consumer.stream.traffic.sent_to_amqp(messages, size)
