"""The outcome of the messages that were published on one channel: acks, or a failure."""

import struct
from collections.abc import Callable, Iterable

from segments.entries import ID_SIZE
from streamd.broker.traffic import ProtocolTraffic
from streamd.connections.amqp091.confirms import Confirms
from streamd.net.outbox import Outbox
from streamd.operations.errors import Reason
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import method_frame
from streamd.wire.amqp091.errors import ConnectionFault, MethodId, ReplyCode

_PUBLISH: MethodId = m.IDS[m.BasicPublish]
Fail = Callable[[ConnectionFault], None]


class ChannelPublisher:
    """See broker.publication.Publisher; the ids are delivery tags of 8 bytes.

    Args:
        fail: ends the connection.

    Attributes:
        reference: none.
        confirms: tags of published messages; None before confirm.select.
        has_published: something was published on its channel.
    """

    reference = b""

    def __init__(
        self, channel_number: int, outbox: Outbox, fail: Fail, traffic: ProtocolTraffic
    ) -> None:
        self.confirms: Confirms | None = None
        self._number = channel_number
        self._outbox = outbox
        self._fail = fail
        self._traffic = traffic
        self.has_published = False
        self._is_closed = False

    def select_confirms(self) -> None:
        """Confirm messages from now on."""
        if self.confirms is None:
            self.confirms = Confirms()

    def publishes(self) -> None:
        """Something is published on its channel: it counts as a publisher from now on."""
        if not self.has_published and not self._is_closed:
            self.has_published = True
            self._traffic.publishers += 1

    def confirm(self, publishing_ids: bytes) -> None:
        """See Publisher."""
        self.settle(struct.unpack(f">{len(publishing_ids) // ID_SIZE}Q", publishing_ids))

    def settle(self, tags: Iterable[int]) -> None:
        """Messages are stored, or need not be."""
        confirms = self.confirms
        if confirms is None or self._is_closed:
            return
        before = confirms.num_settled
        acks = [method_frame(self._number, ack) for ack in confirms.settle(filter(None, tags))]
        self._traffic.messages_confirmed += confirms.num_settled - before
        if acks:
            self._outbox.put_now(b"".join(acks))

    def refuse(self, publishing_ids: bytes, reason: Reason) -> None:
        """See Publisher. Messages for a stream that was deleted meanwhile count as dealt with."""
        if reason is Reason.NOT_FOUND:
            self.confirm(publishing_ids)
        elif not self._is_closed:
            text = "a stream accepts no more messages; see the server's log"
            self._fail(ConnectionFault(ReplyCode.RESOURCE_ERROR, text, _PUBLISH))

    def close(self) -> None:
        """The channel is closed: nothing more is sent on it."""
        if self.has_published and not self._is_closed:
            self._traffic.publishers -= 1
        self._is_closed = True
        self.confirms = None
