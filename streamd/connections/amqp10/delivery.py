"""From a stream to the links that read it: what a delivery is, and when it may be sent.

How messages are read and chosen is in message_delivery.py. A link sends as far as its credit goes,
and its session as far as the window of the client goes: of a message that takes more transfers than
that, those that are left wait in the session, and nothing else is sent there before.

Draining (drain=true in a flow): the client wants to know when there is no more. What is there is
sent, then a flow takes the rest of the credit back.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

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
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import frame
from streamd.wire.amqp10.deliver import TransferWriter
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
        self._waiting: list[bytes] = []

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

    def allowed(self, frames: list[bytes]) -> list[bytes]:
        """Those of these transfers that may be sent now; the others wait."""
        now = max(0, min(self.session.outgoing, len(frames)))
        self._wait(frames[now:])
        self.session.sent(now)
        return frames[:now]

    def _wait(self, frames: list[bytes]) -> None:
        self._waiting += frames
        self._deliveries.waiting += sum(map(len, frames))

    def _take_waiting(self) -> list[bytes]:
        waiting, self._waiting = self._waiting, []
        self._deliveries.waiting -= sum(map(len, waiting))
        return waiting

    def send(self, frames: list[bytes]) -> None:
        """Send what is no delivery of a stream, as soon as it may be.

        Raises:
            SessionFault: too much waits for the windows of the client.
        """
        if self._deliveries.is_full:
            text = f"more than {HELD_BYTES:,} bytes wait for windows to open"
            raise SessionFault(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        if self._waiting:
            self._wait(frames)
        else:
            self._put(frames)

    def opened(self) -> None:
        """The client's window may have opened."""
        self._put(self._take_waiting())

    def _put(self, frames: list[bytes]) -> None:
        now = self.allowed(frames)
        if now:
            self._outbox.put(b"".join(now))

    # -- settling

    def delivered(self, consumer: "LinkConsumer", first: int, count: int) -> None:
        """The client has to settle so many messages."""
        self._unsettled.update(dict.fromkeys(_ids(first, count), consumer))
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
        shares = Counter(map(unsettled.pop, known))
        for consumer, count in shares.items():
            consumer.stream.traffic.messages_acknowledged += count
        self.unacked.traffic.messages_acknowledged += len(known)
        self.unacked.settled(len(known))
        return len(known), (first + count) & p.MAX_UINT if span > count else None

    def forget(self, consumers: Iterable["LinkConsumer"]) -> None:
        """These links are gone: nobody waits for their messages to be settled."""
        gone = set(consumers)
        left = {n: consumer for n, consumer in self._unsettled.items() if consumer not in gone}
        count = len(self._unsettled) - len(left)
        self._unsettled = left
        self.unacked.settled(count)

    def close(self) -> None:
        """The session has ended."""
        count = len(self._unsettled)
        self._unsettled.clear()
        self._take_waiting()
        self.unacked.settled(count)


def _ids(first: int, count: int) -> Sequence[int]:
    """So many numbers of deliveries, which begin again after the largest."""
    ids = range(first, first + count)
    return ids if ids.stop <= p.MAX_UINT else [number & p.MAX_UINT for number in ids]


class LinkConsumer(MessageConsumer):
    """A link that reads a stream.

    Attributes:
        credit: messages that its client wants still.
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
        if self._is_draining and (self.is_waiting or not self.link.credit):
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
        waiting: bytes of transfers that wait for windows, of all sessions.
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

    @property
    def is_full(self) -> bool:
        """So much waits for windows that nothing more is cut into transfers."""
        return self.waiting > HELD_BYTES

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
        sending, write = consumer.sending, consumer.writer.frames
        frames: list[bytes] = []
        left, count, room = TURN_BYTES, 0, sending.session.outgoing
        first = sending.session.next_delivery_id
        for delivery_id, (offset, raw) in enumerate(consumer.sendable(), first):
            parts = write(delivery_id & p.MAX_UINT, offset, raw)
            frames += parts
            count += 1
            left -= sum(map(len, parts))
            if left <= 0 or len(frames) >= room:
                break
        if not count:
            return []
        sending.session.deliver(count)
        if not consumer.is_settled:
            sending.delivered(consumer, first, count)
        self._count(consumer, count, sum(map(len, frames)))
        return sending.allowed(frames)
