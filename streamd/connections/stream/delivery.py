"""From a stream to its consumers: subscriptions, their credit, and whose turn it is.

One `Delivery` per connection. The connection's writer asks it for one turn at a time, so answers
and heartbeats get in between, and several subscriptions take turns. A turn sends either a few
small chunks together, copied from one read, or large chunks by sendfile. A subscription at the end
of its stream gets what is little and new without a turn, at the end of the round.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from contextlib import suppress
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import trio

from segments import ChunkMatcher, OffsetSpec, Reader, StorageError, StoredChunk
from segments.disk import Buffer, File
from segments.errors import SegmentsError
from segments.policy import BUSY_CHUNK_RECORDS, IDLE_CHUNK_RECORDS
from segments.runs import Runs
from segments.store.cache import ColdError
from streamd.broker.streams.fetcher import NoTierError
from streamd.broker.streams.stream import Stream
from streamd.broker.traffic import ProtocolTraffic
from streamd.connections.ready_queue import ConsumerState, QueuedConsumer, ReadyQueue
from streamd.net.outbox import Outbox
from streamd.net.transport import FileUnreadable, Transport
from streamd.operations.errors import Reason, Refused
from streamd.wire.stream.deliver import (
    CHUNK_HEADER_SIZE,
    encode_deliver_head,
    encode_stored_head,
)

logger = logging.getLogger(__name__)

_MAX_WATCHERS = 16  # of one subscription
_HEAD = attrgetter("raw_header", "header.data_size")  # of a chunk that is sent alone
_TURN_CHUNKS = 256
_TURN_BYTES = 1 << 20  # sent in a turn, while the peer takes them
_READ_BYTES = 256 << 10  # of small chunks that are in memory at once
# With so much credit it does no harm to read more of it a moment later; with so little it would.
_MUCH_CREDIT, _LITTLE_CREDIT = 5, 1
_MOST_PATIENT = 16  # subscriptions that are looked at for that
_TURN_STEPS = 300  # chunks looked at, delivered or not: bounds the time between other frames


class Interest(NamedTuple):
    """What a subscription asks for.

    Attributes:
        start: where to begin.
        matcher: which chunks, None for all.
        group: whose standing selector it uses, None for none.
        is_stored: chunks are sent as they are stored, see `DeliverStored`.
        properties_size: bytes that the properties count for.
    """

    start: OffsetSpec
    matcher: ChunkMatcher | None
    properties: Mapping[str, str] = MappingProxyType({})
    group: str | None = None
    is_stored: bool = False
    properties_size: int = 0


class Subscription(QueuedConsumer):
    """One consumer on one connection; its states are those of ready_queue.py.

    Args:
        credit: chunks that may be sent.
        on_close: called once, when it is closed.

    Attributes:
        reader: where it is; None while it is not active.
    """

    def __init__(
        self,
        delivery: "Delivery",
        subscription_id: int,
        stream: Stream,
        interest: Interest,
        credit: int,
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(stream, delivery.queue)
        self.subscription_id = subscription_id
        self.interest = interest
        self.credit = credit
        self.reader: Reader | None = None
        self._start: OffsetSpec | None = None  # where it begins when that is known
        self._delivery = delivery
        self._on_close = on_close
        self._has_warned = self._waits_for_all = False
        if interest.group is not None:
            stream.standing.add_user(interest.group, self.selector_has_changed)
        self._watchers: list[tuple[int, Callable[[], None]]] = []
        stream.life.hold()
        delivery.traffic.consumers += 1

    def activate(self, start: OffsetSpec) -> None:
        """Begin to read at `start`; call `check` once the client knows.

        Where that is known only when something was fetched, it begins then.

        Raises:
            StorageError: the stream cannot be read.
            NoTierError: this server does not know the tier.
        """
        try:
            self.reader = self.stream.reader(start, self.interest.matcher)
        except ColdError as error:
            self.fetch(error)
            self._start = start
            return
        self._start = None
        self.stream.traffic.begin_reading(self.reader.counts, sends=True)

    @property
    def is_active(self) -> bool:
        """Whether it reads, or is about to."""
        return self.reader is not None or self._start is not None

    def read_on(self) -> None:
        """See QueuedConsumer."""
        if self._start is not None:
            try:
                self.activate(self._start)
            except (StorageError, NoTierError) as error:
                self._delivery.cannot_read(self, error)
                return
        self.check()

    def deactivate(self) -> None:
        """Send nothing more until it is activated again; credit is kept."""
        self.stop_waiting()
        self._start = None
        if self.reader is not None:
            self.stream.traffic.end_reading(self.reader.counts)
            self.reader.close()
            self.reader = None

    def add_credit(self, credit: int) -> None:
        """Allow more chunks."""
        self.credit += credit
        self.check()

    def use_credit(self, chunks: int) -> None:
        """This many chunks are sent."""
        self.credit -= chunks
        if self.credit <= _LITTLE_CREDIT:
            self._delivery.hurry()

    @property
    def may_send(self) -> bool:
        """See QueuedConsumer."""
        return self.reader is not None and self.credit > 0

    @property
    def is_at_end(self) -> bool:
        """See QueuedConsumer."""
        reader = self.reader
        if reader is None or not reader.at_end:
            return False
        self._warn_of_nothing(reader)
        return True

    def _warn_of_nothing(self, reader: Reader) -> None:
        """Log once that a filter has matched nothing, as no message has a filter value."""
        counts, matcher = reader.counts, self.interest.matcher
        if self._has_warned or matcher is None or counts.chunks or not counts.skipped_chunks:
            return
        if not matcher.values or self.interest.group is not None:
            return
        self._has_warned = True
        if counts.unfiltered_chunks == counts.skipped_chunks:
            logger.warning(
                "stream %s: a consumer asks for filter values, but no message in the %d chunks "
                "that were skipped for it has one; were they published without?",
                self.stream.name,
                counts.skipped_chunks,
            )

    def catch_up(self) -> None:
        """See QueuedConsumer."""
        if self.reader is not None:
            self.reader.catch_up()

    def send_now(self) -> None:
        """See QueuedConsumer."""
        self._delivery.send_now(self)

    @property
    def keys(self) -> Collection[bytes] | None:
        """See waiters.Waiter."""
        matcher = self.interest.matcher
        return None if matcher is None or self._waits_for_all else matcher.keys

    @property
    def other_keys(self) -> Sequence[AbstractSet[bytes]]:
        """See waiters.Waiter."""
        matcher = self.interest.matcher
        return () if matcher is None else matcher.other_keys

    @property
    def is_far_behind(self) -> bool:
        """Its credit for small chunks does not reach to the end of the stream by far."""
        if self.reader is None or self.interest.is_stored:
            return False
        lag = self.stream.log.committed_offset - self.reader.next_offset
        return lag > BUSY_CHUNK_RECORDS and lag > self.credit * IDLE_CHUNK_RECORDS

    @property
    def position(self) -> int:
        """Everything before this offset was sent or skipped."""
        if self.reader is None:
            return 0
        return self.stream.log.committed_offset if self.is_waiting else self.reader.next_offset

    def watch(self, offset: int, tell: Callable[[], None]) -> None:
        """Call `tell` once everything before `offset` was sent or skipped, or on closing.

        Raises:
            Refused: too many are watching already.
        """
        if len(self._watchers) >= _MAX_WATCHERS:
            raise Refused(Reason.PRECONDITION_FAILED, "too many are watching")
        if self.is_waiting and self.reader is not None:
            self.reader.catch_up()  # chunks that are not for it did not wake it
        self._watchers.append((offset, tell))
        self.tell_watchers()
        if not self._watchers or self._waits_for_all:
            return
        if not self.is_waiting:
            self._waits_for_all = True  # once it waits
            return
        self.stream.waiters.remove(self)  # from now on every chunk has to wake it
        self._waits_for_all = True
        self.stream.waiters.add(self)

    def tell_watchers(self) -> None:
        """Tell the watchers whose offset is reached."""
        if self._watchers:
            position = self.position
            told = [w for w in self._watchers if w[0] <= position or self.is_closed]
            self._watchers = [w for w in self._watchers if w not in told]
            for _, tell in told:
                tell()
        if self._waits_for_all and not self._watchers and not self.is_waiting:
            self._waits_for_all = False

    def forget_watchers(self) -> None:
        """Tell nobody: the connection ends, and its client asks again on the next one."""
        self._watchers.clear()

    def selector_has_changed(self) -> None:
        """Its group's selector is another one on the server that writes: the client asks again."""
        if not self.is_closed:  # with another one of its connection
            self._delivery.begin_anew(self)

    def close(self) -> None:
        """Stop for good."""
        if not self.is_closed:
            if self.interest.group is not None:
                self.stream.standing.remove_user(self.interest.group, self.selector_has_changed)
            self._delivery.traffic.consumers -= 1
            self.deactivate()
            self.end_state()
            self.stream.life.release()
            self.tell_watchers()
            self._on_close()


def _nothing() -> None:
    """The default for `on_close`."""


class Delivery:
    """All subscriptions of one connection.

    Args:
        is_clear: tells whether what is put into the outbox would be on its way at once.
        hurry: called when credit is getting short: what the client sends is to be read soon.
        cannot_read: called with a stream that cannot be read; ends its subscriptions.

    Attributes:
        subscriptions: by id.
        with_committed: the client understands Deliver version 2.
    """

    def __init__(
        self,
        queue: ReadyQueue[Subscription],
        outbox: Outbox,
        is_clear: Callable[[], bool],
        hurry: Callable[[], None],
        cannot_read: Callable[[Stream], None],
        traffic: ProtocolTraffic,
    ) -> None:
        self.queue = queue
        self.traffic = traffic
        self.subscriptions: dict[int, Subscription] = {}
        self.with_committed = False
        self._outbox = outbox
        self._is_clear = is_clear
        self.hurry = hurry
        self._cannot_read = cannot_read

    def add(
        self,
        subscription_id: int,
        stream: Stream,
        interest: Interest,
        credit: int,
        on_close: Callable[[], None] = _nothing,
    ) -> Subscription:
        """Add a subscription; it gets chunks once it is active."""
        subscription = Subscription(self, subscription_id, stream, interest, credit, on_close)
        self.subscriptions[subscription_id] = subscription
        return subscription

    def remove(self, subscription_id: int) -> None:
        """End a subscription: nothing of it is sent after this."""
        self.subscriptions.pop(subscription_id).close()

    def close(self) -> None:
        """End all subscriptions, as the connection ends."""
        while self.subscriptions:
            number, subscription = next(iter(self.subscriptions.items()))
            subscription.forget_watchers()
            self.remove(number)

    @property
    def has_pending(self) -> bool:
        """Somebody is in line."""
        return self.queue.has_pending

    @property
    def is_patient(self) -> bool:
        """All have read everything, and have credit for a while."""
        subscriptions = self.subscriptions
        return len(subscriptions) <= _MOST_PATIENT and all(
            one.is_waiting and one.credit >= _MUCH_CREDIT for one in subscriptions.values()
        )

    def send_now(self, subscription: Subscription) -> None:
        """Send what a subscription has not got, if it is little and nothing else is to be sent."""
        reader = subscription.reader
        if reader is None or subscription.credit <= 0:
            return
        if self.queue.has_pending or not self._is_clear():
            return
        if subscription.interest.matcher is not None:
            with suppress(StorageError):  # its turn will meet it again
                reader.catch_up()  # what came before it and is for others does not count
        if reader.has_little_left:
            chunks = self._read(subscription, reader)
            if chunks:
                subscription.use_credit(len(chunks))
                self._outbox.put_now(*_in_memory(self._pieces(subscription, chunks)))
        subscription.tell_watchers()  # also where all was skipped: it may wait now

    def cannot_read(self, subscription: Subscription, error: SegmentsError) -> None:
        """The stream of a subscription cannot be read: all that read it on this connection end."""
        logger.error("stream %s cannot be read: %s", subscription.stream.name, error)
        self._cannot_read(subscription.stream)

    def begin_anew(self, subscription: Subscription) -> None:
        """What a subscription was told does not hold any more: it ends, and its client is told.

        So do all that read the stream on this connection: no client is told of one alone.
        """
        logger.info(
            "stream %s: group %s has another standing selector; its consumers subscribe again",
            subscription.stream.name,
            subscription.interest.group,
        )
        self._cannot_read(subscription.stream)

    def _read(
        self, subscription: Subscription, reader: Reader, runs: Runs | None = None
    ) -> list[StoredChunk] | None:
        """The next chunks of a subscription; None when they cannot be read now.

        Then it waits until they are fetched, or is ended.
        """
        before = reader.counts.records
        try:
            most = _TURN_CHUNKS if runs is not None else min(subscription.credit, _TURN_CHUNKS)
            chunks = reader.read(most, _READ_BYTES, _TURN_STEPS, runs)
        except ColdError as error:
            self._fetch(subscription, reader, error)
            return None
        except StorageError as error:
            self.cannot_read(subscription, error)
            return None
        subscription.fetch_ahead(reader)
        self.traffic.messages_delivered += reader.counts.records - before
        return chunks

    def _fetch(self, subscription: Subscription, reader: Reader, error: ColdError) -> None:
        try:
            subscription.fetch(error, reader.missing(error))
        except SegmentsError as refusal:
            self.cannot_read(subscription, refusal)

    def _pieces(
        self, subscription: Subscription, chunks: Sequence[StoredChunk], runs: Runs | None = None
    ) -> "list[_Piece]":
        """What is sent of chunks."""
        number = subscription.subscription_id
        if subscription.interest.is_stored:
            return [_stored_piece(number, chunk) for chunk in chunks]
        committed = subscription.stream.log.segments.last_chunk_id if self.with_committed else None
        heads: Iterable[tuple[bytes, int] | None] = (
            map(_HEAD, chunks) if runs is None else runs.heads()
        )
        return [
            _Piece(
                b"" if head is None else encode_deliver_head(number, *head, committed),
                chunk,
                chunk.data,
                chunk.data_position,
                chunk.header.data_size,
            )
            for head, chunk in zip(heads, chunks, strict=True)
        ]

    def _next(self) -> Subscription | None:
        """The next in turn; None when that one has nothing to send now."""
        subscription = self.queue.next()
        if subscription is None or subscription.may_send:
            return subscription
        subscription.read_on()  # one that was in line when it was to begin has asked nobody
        return None

    async def send_next(self, transport: Transport) -> None:
        """Send what is next in line, or wait until the peer has taken what it was sent.

        Raises:
            TransportClosed: the peer is gone.
        """
        if transport.is_congested:
            for waiting in self.subscriptions.values():  # a peer that never reads holds nothing
                if waiting.reader is not None:
                    waiting.reader.drop_readahead()
                waiting.rest(waiting.reader)
            await transport.drained()
            return
        subscription = self._next()
        if subscription is None:
            return
        reader = subscription.reader
        assert reader is not None  # noqa: S101 - else it could not send
        size = 0
        while size < _TURN_BYTES:
            runs = Runs(subscription.credit) if subscription.is_far_behind else None
            chunks = self._read(subscription, reader, runs)
            if not chunks:
                if not size:
                    await trio.lowlevel.checkpoint()  # all were skipped: others have a turn
                break
            subscription.use_credit(len(chunks if runs is None else runs))
            size += sum(chunk.header.data_size for chunk in chunks)
            await self._send(transport, subscription, reader, chunks, runs)
            is_done = subscription.reader is not reader or subscription.credit <= 0
            if is_done or self._outbox.has_frames or transport.is_congested:
                break
        subscription.tell_watchers()
        subscription.check()
        if subscription.state is not ConsumerState.READY:
            subscription.rest(subscription.reader)

    async def _send(
        self,
        transport: Transport,
        subscription: Subscription,
        reader: Reader,
        chunks: list[StoredChunk],
        runs: Runs | None,
    ) -> None:
        """Send chunks; `chunks` and `runs` are empty afterwards."""
        pieces = self._pieces(subscription, chunks, runs)
        segment = reader.pin_segment()  # the reader may be closed while this is sent
        try:
            parts = _in_memory(pieces)
            sent = transport.send_some(parts) if parts else 0
            if sent < sum(map(len, parts)) or chunks[-1].whole is None:
                rest = _unsent(pieces, sent)
                # A peer that takes its time, or never reads, holds files open, not memory.
                parts.clear()
                pieces.clear()
                chunks.clear()
                if runs is not None:
                    runs.clear()
                reader.drop_readahead()
                for number, (head, file, position, size, chunk_id, start) in enumerate(rest):
                    if number and head and subscription.is_closed:
                        break  # what had begun is whole; nothing follows, see `Delivery.remove`
                    await transport.send(head, more=True)
                    try:
                        await transport.send_file(file, position, size)
                    except FileUnreadable:
                        with suppress(StorageError, ColdError):
                            segment.mark_damaged(file, start, chunk_id)  # for who comes again
                        raise
        finally:
            segment.release()


class _Piece(NamedTuple):
    """A chunk on the wire: what stands before it, then bytes of its segment file.

    Attributes:
        head: empty for a chunk that follows another one in a run.
        data: those bytes where they are in memory.
        position, size: where they are in the file.
    """

    head: bytes
    chunk: StoredChunk
    data: memoryview | None
    position: int
    size: int


def _stored_piece(number: int, chunk: StoredChunk) -> _Piece:
    """All of a chunk, for the subscription of that number."""
    header, whole = chunk.header, chunk.whole
    size = header.filter_size + header.data_size + header.trailer_size
    return _Piece(
        encode_stored_head(number, chunk.raw_header, size),
        chunk,
        None if whole is None else whole[CHUNK_HEADER_SIZE:],
        chunk.data_position - header.filter_size,
        size,
    )


def _in_memory(pieces: Sequence[_Piece]) -> list[Buffer]:
    """What can be sent in one call: all but the bytes of a large chunk, which is the last one."""
    parts: list[Buffer] = []
    for piece in pieces:
        if piece.data is not None:
            parts += (piece.head, piece.data)
    return parts


class _Rest(NamedTuple):
    """What is left to send of one chunk: bytes, then a piece of a file.

    Attributes:
        chunk_id, start: of the chunk, and where it begins in the file.
    """

    head: bytes
    file: File
    position: int
    size: int
    chunk_id: int
    start: int


def _unsent(pieces: Sequence[_Piece], sent: int) -> list[_Rest]:
    """What follows the first `sent` bytes of the pieces."""
    rest = []
    for head, chunk, _, position, size in pieces:
        of_head = min(sent, len(head))
        of_data = min(sent - of_head, size)
        sent -= of_head + of_data
        if of_data < size:
            start, chunk_id = chunk.data_position - chunk.header.data_start, chunk.header.chunk_id
            left = size - of_data
            rest.append(
                _Rest(head[of_head:], chunk.file, position + of_data, left, chunk_id, start)
            )
    return rest
