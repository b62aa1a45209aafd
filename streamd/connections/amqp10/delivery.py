"""From a stream to the links that read it: what a delivery is, and when it may be sent.

How messages are read and chosen is in message_delivery.py. A link sends as far as its credit goes,
and its session as far as the window of the client goes: of a message that takes more transfers than
that, the rest waits in the session, and nothing else is sent there before. What waits belongs to
its link, and goes with it.

Draining (drain=true in a flow): the client wants to know when there is no more. What is there is
sent, then a flow takes the rest of the credit back.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from streamd.broker.streams.stream import Stream
from streamd.broker.traffic import ProtocolTraffic
from streamd.connections.amqp10.source_filters import Filters
from streamd.connections.message_delivery import (
    HELD_BYTES,
    TURN_BYTES,
    MessageConsumer,
    MessageDeliveries,
)
from streamd.connections.ready_queue import ReadyQueue
from streamd.connections.unacked import MOST_SETTLED, Unacked
from streamd.connections.watch import Watch
from streamd.net.outbox import Outbox
from streamd.net.transport import Transport
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import frame
from streamd.wire.amqp10.deliver import Pieces, TransferWriter
from streamd.wire.amqp10.errors import Condition, SessionFault
from streamd.wire.amqp10.session import Link, Session, serial_gap


class OutgoingSession:
    """What a session sends besides answers.

    Args:
        unacked: of the connection.
    """

    def __init__(self, session: Session, deliveries: "Deliveries", unacked: Unacked) -> None:
        self.session = session
        self.unacked = unacked
        self._deliveries = deliveries
        self._outbox = deliveries.outbox
        self._unsettled: dict[int, LinkConsumer] = {}
        self._waiting: deque[tuple[Link, Pieces]] = deque()
        self._left: deque[set[int]] = deque()  # unsettled ids of links that are gone

    @property
    def has_waiting(self) -> bool:
        """Transfers wait for the client's window."""
        return bool(self._waiting)

    @property
    def is_blocked(self) -> bool:
        """No delivery can be sent now."""
        return self.has_waiting or self.session.outgoing <= 0 or self._deliveries.is_full

    @property
    def num_unsettled(self) -> int:
        """Messages that the client has not settled."""
        return len(self._unsettled)

    def waits_for(self, link: Link) -> bool:
        """Something of this link waits."""
        return any(one is link for one, _ in self._waiting)

    def begin(self, link: Link, message: Pieces, put: Callable[[bytes], None]) -> None:
        """Put what may be sent now of a message; the rest waits, behind what does already."""
        self._waiting.append((link, message))
        self._deliveries.waits(message.size)
        self._go_on(put)

    def _go_on(self, put: Callable[[bytes], None]) -> None:
        """Put what may be sent now of all that waits."""
        session, waiting = self.session, self._waiting
        size = 0
        while waiting and session.outgoing > 0:
            _, message = waiting[0]
            size += message.size
            data, count = message.take(session.outgoing)
            size -= message.size
            session.sent(count)
            put(data)
            if not message.size:
                waiting.popleft()
        self._deliveries.waits(-size)

    def send(self, link: Link, answer: Pieces) -> None:
        """Send what is no delivery of a stream, as soon as it may be.

        Raises:
            SessionFault: too much waits for the windows of the client.
        """
        if self._deliveries.is_full:
            text = f"more than {HELD_BYTES:,} bytes wait for windows to open"
            raise SessionFault(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        self.begin(link, answer, self._outbox.put)

    def opened(self) -> None:
        """The client's window may have opened."""
        self._go_on(self._outbox.put)

    # -- settling

    def delivered(self, consumer: "LinkConsumer", first: int, count: int) -> None:
        """The client has to settle so many messages."""
        ids = _ids(first, count)
        self._unsettled.update(dict.fromkeys(ids, consumer))
        consumer.unsettled.update(ids)
        self.unacked.count += count

    def settle(self, first: int, last: int) -> tuple[int, int | None]:
        """The client has settled these, of which at most MOST_SETTLED are looked at.

        Returns:
            how many it had to settle, and the first that is still to be looked at.
        """
        unsettled, span = self._unsettled, serial_gap(first, last) + 1
        if not unsettled:
            return 0, None
        if span > MOST_SETTLED:
            oldest, newest = next(iter(unsettled)), self.session.next_delivery_id - 1
            first += max(0, serial_gap(first, oldest))
            span = min(serial_gap(first, last), serial_gap(first, newest & p.MAX_UINT)) + 1
        count = min(span, MOST_SETTLED)
        known = [number for number in _ids(first & p.MAX_UINT, count) if number in unsettled]
        owners = list(map(unsettled.pop, known))
        for number, consumer in zip(known, owners, strict=True):
            consumer.unsettled.remove(number)
        for consumer, count in Counter(owners).items():
            consumer.stream.traffic.messages_acknowledged += count
        self.unacked.traffic.messages_acknowledged += len(known)
        self.unacked.settled(len(known))
        return len(known), (first + count) & p.MAX_UINT if span > count else None

    def forget(self, consumer: "LinkConsumer") -> None:
        """Its link is gone: nobody waits for its messages to be settled."""
        if consumer.unsettled:
            if not self._left:
                self._deliveries.tidies(self)
            self._left.append(consumer.unsettled)

    def tidy(self) -> bool:
        """Forget some of what links have left; whether there is more: half a million take 60 ms."""
        left = self._left
        count = min(len(left[0]), MOST_SETTLED) if left else 0
        for _ in range(count):
            del self._unsettled[left[0].pop()]
        if left and not left[0]:
            left.popleft()
        self.unacked.settled(count)
        return bool(left)

    def drop(self, link: Link) -> bool:
        """A link is gone: what waits of it is never sent. Whether that was something."""
        gone = [item for item in self._waiting if item[0] is link]
        if gone:
            self._waiting = deque(item for item in self._waiting if item[0] is not link)
            self._deliveries.waits(-sum(message.size for _, message in gone))
        return bool(gone)

    def close(self) -> None:
        """The session has ended."""
        count = len(self._unsettled)
        self._unsettled.clear()
        self._left.clear()
        size = sum(message.size for _, message in self._waiting)
        self._waiting.clear()
        self._deliveries.waits(-size)
        self.unacked.settled(count)


def _ids(first: int, count: int) -> Sequence[int]:
    """So many numbers of deliveries, which begin again after the largest."""
    ids = range(first, first + count)
    return ids if ids.stop <= p.MAX_UINT else [number & p.MAX_UINT for number in ids]


class LinkConsumer(MessageConsumer):
    """A link that reads a stream.

    Attributes:
        credit: messages that its client wants still.
        unsettled: delivery ids of those that it has to settle.
    """

    def __init__(
        self,
        deliveries: "Deliveries",
        sending: OutgoingSession,
        link: Link,
        stream: Stream,
        filters: Filters,
        arguments: Mapping[str, str],
        end: Callable[["LinkConsumer", str], None],
    ) -> None:
        self.link = link
        self.sending = sending
        self.is_settled = link.snd_settle_mode == p.SETTLED
        self.unsettled: set[int] = set()
        self._outbox = deliveries.outbox
        self._is_draining = False
        self.writer = TransferWriter(
            *(sending.session.channel, link.handle, stream.name, deliveries.frame_max),
            is_settled=self.is_settled,
        )
        super().__init__(deliveries, link.name, stream, filters.wanted, arguments)
        self._group, self._end = filters.group, end
        if self._group is not None:
            stream.standing.add_user(self._group, self._selector_has_changed)

    def _selector_has_changed(self) -> None:
        """Its group has another standing selector, or none."""
        self._end(self, f"the standing selector of group {self._group} has changed; attach again")

    def close(self) -> None:
        """See MessageConsumer."""
        if not self.is_closed and self._group is not None:
            self.stream.standing.remove_user(self._group, self._selector_has_changed)
        self._is_draining = False
        super().close()

    @property
    def credit(self) -> int:
        """See above."""
        return self.link.credit

    @property
    def room(self) -> int:
        """See MessageConsumer."""
        sending = self.sending
        if sending.is_blocked:
            return 0
        room = min(self.link.credit, sending.session.outgoing)
        return room if self.is_settled else min(room, sending.unacked.room)

    @property
    def available(self) -> int:
        """About how many messages are there for it."""
        log = self.stream.log
        return log.segments.gaps.num_between(self.next_offset, log.committed_offset) + len(
            self._read
        )

    def sent(self, count: int) -> None:
        """See MessageConsumer."""
        self.link.took(count)
        super().sent(count)

    def take_flow(self, flow: p.Flow) -> None:
        """The client says how much it wants."""
        self.link.take_flow(flow)
        self._is_draining = flow.drain
        self.check()
        if flow.echo and not self._is_draining:
            self._tell()

    def check(self) -> None:
        """See QueuedConsumer; who drains is told when there is no more."""
        super().check()
        if not self._is_draining or self.sending.waits_for(self.link):
            return
        is_at_end = self.is_at_end and not self._is_reading  # to know it takes no window
        if is_at_end or not self.link.credit:
            self._is_draining = False
            self.stop_waiting()
            self.link.drain()
            self._tell(drain=True)

    def _tell(self, *, drain: bool = False) -> None:
        """The state of the link."""
        session = self.sending.session
        flow = session.flow(self.link)._replace(available=self.available, drain=drain)
        self._outbox.put(frame(session.channel, flow))


class Deliveries(MessageDeliveries[LinkConsumer]):
    """The links of one connection that read; see MessageDeliveries.

    Attributes:
        waiting: bytes of messages that wait for windows, of all sessions.
    """

    def __init__(
        self,
        queue: ReadyQueue[LinkConsumer],
        frame_max: int,
        cannot_read: Callable[[Stream], None],
        traffic: ProtocolTraffic,
        watch: Watch,
        outbox: Outbox,
    ) -> None:
        super().__init__(queue, frame_max, cannot_read, traffic, watch)
        self.outbox = outbox
        self.waiting = 0
        self._untidy: deque[OutgoingSession] = deque()

    @property
    def has_pending(self) -> bool:
        """See MessageDeliveries."""
        return bool(self._untidy) or super().has_pending

    async def send_next(self, transport: Transport) -> None:
        """See MessageDeliveries; what links have left is forgotten in turns like these."""
        if not self._untidy:
            await super().send_next(transport)
        elif not self._untidy[0].tidy():
            self._untidy.popleft()

    def tidies(self, sending: OutgoingSession) -> None:
        """A session has something to forget."""
        self._untidy.append(sending)

    @property
    def is_full(self) -> bool:
        """So much waits for windows that nothing more is begun."""
        return self.waiting > HELD_BYTES

    def waits(self, size: int) -> None:
        """So many bytes more wait for windows, or fewer: then all sessions may send again."""
        was_full = self.is_full
        self.waiting += size
        if was_full and not self.is_full:
            for consumer in list(self._all):
                consumer.check()

    def add(
        self,
        sending: OutgoingSession,
        link: Link,
        stream: Stream,
        filters: Filters,
        arguments: Mapping[str, str],
        end: Callable[[LinkConsumer, str], None],
    ) -> LinkConsumer:
        """Add a consumer; it gets messages once its client gives credit.

        Raises:
            StorageError: the stream cannot be read.
            NoTierError: this server does not know the tier.
        """
        consumer = LinkConsumer(self, sending, link, stream, filters, arguments, end)
        self.take(consumer)
        return consumer

    def _frames(self, consumer: LinkConsumer) -> list[bytes]:
        """See MessageDeliveries."""
        sending, write = consumer.sending, consumer.writer.write
        session = sending.session
        frames: list[bytes] = []
        large: Pieces | None = None
        left, first = TURN_BYTES, session.next_delivery_id
        for delivery_id, (offset, raw) in enumerate(consumer.sendable(), first):
            found = write(delivery_id & p.MAX_UINT, offset, raw)
            if isinstance(found, Pieces):
                large = found  # the last of this turn: it may not go as a whole
                break
            frames.append(found)
            left -= len(found)
            if left <= 0:
                break
        count, size = len(frames), sum(map(len, frames))
        session.sent(count)
        if large is not None:
            count, size = count + 1, size + large.size
        if not count:
            return []
        session.deliver(count)
        if not consumer.is_settled:
            sending.delivered(consumer, first, count)
        self._count(consumer, count, size)
        if large is not None:
            sending.begin(consumer.link, large, frames.append)
        return frames
