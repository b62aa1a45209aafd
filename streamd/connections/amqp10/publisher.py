"""A link on which a client publishes: its credit, and the outcome of its messages."""

import struct
from collections.abc import Callable, Sequence

from segments.entries import ID_SIZE
from streamd.broker.traffic import ProtocolTraffic
from streamd.connections.amqp10.addresses import Destination
from streamd.net.outbox import Outbox
from streamd.operations.connections import PublisherFacts
from streamd.operations.errors import Reason
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import encode_composite, frame
from streamd.wire.amqp10.errors import Condition, Fault, LinkFault
from streamd.wire.amqp10.outcomes import ACCEPTED, RELEASED, settled_frames
from streamd.wire.amqp10.session import Link, Session

CREDIT = 170  # as RabbitMQ grants it; again when half of it is used
NOBODY = 1 << 32  # a number no delivery has, for messages whose publishers want no outcome


class PublisherLink:
    """See gathering.CountedPublisher; the ids are delivery ids in 8 bytes.

    Args:
        destination: of its messages; None where each names its own.
        detach: ends the link.

    Attributes:
        reference: none.
        published, confirmed, refused: messages.
    """

    reference = b""

    def __init__(
        self,
        session: Session,
        link: Link,
        destination: Destination | None,
        outbox: Outbox,
        detach: Callable[["PublisherLink", Fault], None],
        traffic: ProtocolTraffic,
    ) -> None:
        self.session = session
        self.link = link
        self.destination = destination
        self.published = self.confirmed = self.refused = 0
        self._outbox = outbox
        self._detach = detach
        self._traffic = traffic
        self._open: dict[int, int] = {}  # by delivery id, streams that have to store it
        self._is_closed = self._is_blocked = False
        traffic.publishers += 1

    def publishes(self) -> None:
        """See CountedPublisher: it is one from the start."""

    # -- credit

    def begin(self) -> None:
        """Grant the first credit."""
        self.link.credit = CREDIT
        self._outbox.put(self._flow())

    def grant(self) -> bytes:
        """What gives it more credit, or its session more room, where there is little left."""
        link = self.link
        is_short = link.credit <= CREDIT // 2 and len(self._open) < CREDIT
        if self._is_closed or self._is_blocked or not (is_short or self.session.needs_window):
            return b""
        if is_short:
            link.credit = CREDIT
        return self._flow()

    def _flow(self) -> bytes:
        return frame(self.session.channel, self.session.flow(self.link))

    # -- outcomes

    def expect(self, delivery_id: int, copies: int = 1) -> int:
        """The number of a message that goes to this many streams."""
        self._open[delivery_id] = copies
        return delivery_id

    def confirm(self, publishing_ids: bytes) -> None:
        """See Publisher."""
        open_, ready = self._open, []
        for number in struct.unpack(f">{len(publishing_ids) // ID_SIZE}Q", publishing_ids):
            left = open_.get(number)
            if left == 1:
                del open_[number]
                ready.append(number)
            elif left is not None:
                open_[number] = left - 1
        self._traffic.messages_confirmed += len(ready)
        self.confirmed += len(ready)
        self._tell(ready, ACCEPTED)

    def refuse(self, publishing_ids: bytes, reason: Reason) -> None:
        """See Publisher: those for a stream that was deleted meanwhile may be sent elsewhere."""
        numbers = struct.unpack(f">{len(publishing_ids) // ID_SIZE}Q", publishing_ids)
        known = [number for number in numbers if self._open.pop(number, None) is not None]
        if reason is Reason.NOT_FOUND:
            self.release(known)
            return
        self.refused += len(numbers)
        text = "a stream accepts no more messages; see the server's log"
        fault = LinkFault(Condition.RESOURCE_LIMIT_EXCEEDED, text)
        self.reject(known, fault)
        if NOBODY in numbers and not self._is_closed:
            self._detach(self, fault)

    def release(self, delivery_ids: Sequence[int]) -> None:
        """Messages went nowhere."""
        self._tell(delivery_ids, RELEASED)

    def reject(self, delivery_ids: Sequence[int], fault: Fault) -> None:
        """Messages cannot be taken, for the reason given."""
        error = p.Error(fault.condition.value, fault.text)
        self._tell(delivery_ids, encode_composite(p.Rejected(error)))

    def _tell(self, delivery_ids: Sequence[int], outcome: bytes) -> None:
        if delivery_ids and not self._is_closed:
            frames = settled_frames(self.session.channel, delivery_ids, outcome)
            self._outbox.put_now(frames + self.grant())

    def block(self, is_blocked: bool) -> None:
        """Nothing more is wanted for now, or it is again."""
        self._is_blocked = is_blocked

    def facts(self, number: int) -> PublisherFacts:
        """It as it is at the moment."""
        to = self.destination
        where = "" if to is None else to.queue or to.exchange
        counts = self.published, self.confirmed, self.refused
        return PublisherFacts(number, self.link.name, where, *counts)

    def close(self) -> None:
        """The link is detached: nothing more is sent on it."""
        if not self._is_closed:
            self._traffic.publishers -= 1
        self._is_closed = True
        self._open.clear()
