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
from streamd.wire.amqp10.connection import error_of
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
        self._stored: set[int] = set()  # of these, what one of several streams has stored
        self._is_closed = False
        traffic.publishers += 1

    def publishes(self) -> None:
        """See CountedPublisher: it is one from the start."""

    # -- credit

    def begin(self) -> None:
        """Grant the first credit."""
        self.link.credit = CREDIT
        self._outbox.put(self._flow())

    def grant(self) -> bytes:
        """What gives it more credit, where there is little left."""
        is_short = self.link.credit <= CREDIT // 2 and len(self._open) < CREDIT
        if self._is_closed or self.session.is_blocked or not is_short:
            return b""
        self.link.credit = CREDIT
        return self._flow()

    def _flow(self) -> bytes:
        return frame(self.session.channel, self.session.flow(self.link))

    # -- outcomes

    def expect(self, delivery_id: int, copies: int = 1) -> int:
        """The number of a message that goes to this many streams."""
        self._open[delivery_id] = copies
        return delivery_id

    def expect_all(self, delivery_ids: Sequence[int]) -> None:
        """The same for messages that go to one stream each."""
        self._open.update(dict.fromkeys(delivery_ids, 1))

    def confirm(self, publishing_ids: bytes) -> None:
        """See Publisher."""
        self._accept(self._dealt_with(_read_numbers(publishing_ids), is_stored=True))

    def _dealt_with(self, numbers: Sequence[int], *, is_stored: bool) -> list[int]:
        """A stream has stored these, or never will; those for which it was the last one."""
        open_, ready = self._open, []
        for number in numbers:
            left = open_.get(number)
            if left == 1:
                del open_[number]
                ready.append(number)
            elif left is not None:
                open_[number] = left - 1
                if is_stored:
                    self._stored.add(number)
        return ready

    def _accept(self, delivery_ids: Sequence[int]) -> None:
        if self._stored:
            self._stored.difference_update(delivery_ids)
        self._traffic.messages_confirmed += len(delivery_ids)
        self.confirmed += len(delivery_ids)
        self._tell(delivery_ids, ACCEPTED)

    def refuse(self, publishing_ids: bytes, reason: Reason) -> None:
        """See Publisher.

        What went to a stream that was deleted meanwhile may be sent elsewhere, unless another one
        has stored it: that would have it twice.
        """
        numbers = _read_numbers(publishing_ids)
        if reason is Reason.NOT_FOUND:
            ready = self._dealt_with(numbers, is_stored=False)
            self.release([number for number in ready if number not in self._stored])
            self._accept([number for number in ready if number in self._stored])
            return
        known = [number for number in numbers if self._open.pop(number, None) is not None]
        self._stored.difference_update(known)
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
        self._tell(delivery_ids, encode_composite(p.Rejected(error_of(fault))))

    def _tell(self, delivery_ids: Sequence[int], outcome: bytes) -> None:
        if delivery_ids and not self._is_closed:
            frames = settled_frames(self.session.channel, delivery_ids, outcome)
            self._outbox.put_now(frames + self.grant())

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
        self._stored.clear()


def _read_numbers(publishing_ids: bytes) -> Sequence[int]:
    return struct.unpack(f">{len(publishing_ids) // ID_SIZE}Q", publishing_ids)
