"""One channel: what it was told to keep in mind, its consumers, what it has to acknowledge."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from streamd.connections.amqp091.confirms import Confirms
from streamd.wire.amqp091.errors import ChannelFault, ReplyCode

if TYPE_CHECKING:
    from streamd.connections.amqp091.delivery import Consumer
    from streamd.connections.amqp091.publishing import ChannelPublisher

# Of one connection. A consumer that is cancelled leaves its unacknowledged messages behind: without
# a limit, consuming and cancelling in turn would pile them up. Far above the 65,535 of one
# consumer's prefetch.
MAX_UNACKED = 500_000
_PLENTY = 128  # unacknowledged messages
_LEAST_SECONDS = 1e-5  # that any client takes for a message
_MAX_BUSY_SECONDS = 0.005


class Unacked:
    """How many messages of a connection wait for an acknowledgement, on all its channels.

    Attributes:
        count: that many.
        on_room: called when more may be sent again.
    """

    def __init__(self) -> None:
        self.count = 0
        self.on_room: Callable[[], None] = lambda: None

    @property
    def is_full(self) -> bool:
        """So many that no more are sent."""
        return self.count >= MAX_UNACKED

    def settled(self, count: int) -> None:
        """So many wait no longer."""
        was_full = self.is_full
        self.count -= count
        if was_full and count:
            self.on_room()


class Channel:
    """One open channel.

    Args:
        number: on the connection.
        unacked: of the connection.

    Attributes:
        number: on the connection.
        prefetch: messages that each new consumer may have unacknowledged; 0 before basic.qos.
        queue: the last one that was declared, for methods that name none.
        confirms: tags of published messages; None before confirm.select.
        publisher: who streams tell what is stored.
        consumers: by tag.
    """

    def __init__(self, number: int, unacked: Unacked) -> None:
        self.number = number
        self._all_unacked = unacked
        self.prefetch = 0
        self.queue = ""
        self.confirms: Confirms | None = None
        self.publisher: ChannelPublisher | None = None
        self.consumers: dict[str, Consumer] = {}
        self._unacked: dict[int, Consumer] = {}
        self._last_delivery = 0
        self._next_tag = 0

    # -- consuming

    def make_tag(self) -> str:
        """A tag for a consumer whose client wants none of its own."""
        while True:
            self._next_tag += 1
            tag = f"amq.ctag-{self.number}.{self._next_tag}"
            if tag not in self.consumers:
                return tag

    @property
    def is_full(self) -> bool:
        """So many messages are unacknowledged that no more are sent."""
        return self._all_unacked.is_full

    @property
    def busy_seconds(self) -> float:
        """How long its client is sure to be busy, whichever consumers its messages are for."""
        count = len(self._unacked)
        if count < _PLENTY or not all(consumer.is_busy for consumer in self.consumers.values()):
            return 0.0
        return min(count * _LEAST_SECONDS, _MAX_BUSY_SECONDS)

    def count_delivery(self, consumer: "Consumer") -> int:
        """The delivery tag for the next message."""
        self._last_delivery += 1
        self._unacked[self._last_delivery] = consumer
        self._all_unacked.count += 1
        return self._last_delivery

    def settle(self, tag: int, *, multiple: bool) -> None:
        """The client has dealt with a message, or with all up to it; tag 0 means all there are.

        Raises:
            ChannelFault: no such message waits for that.
        """
        if multiple:
            self._settle_up_to(tag)
        else:
            consumer = self._unacked.pop(tag, None)
            if consumer is None:
                raise _unknown_tag(tag)
            self._all_unacked.settled(1)
            consumer.settled(1)

    def _settle_up_to(self, tag: int) -> None:
        if tag and tag not in self._unacked:
            raise _unknown_tag(tag)
        shares: dict[Consumer, int] = {}
        found = []
        for number, consumer in self._unacked.items():
            if tag and number > tag:
                break
            found.append(number)
            shares[consumer] = shares.get(consumer, 0) + 1
        for number in found:
            del self._unacked[number]
        self._all_unacked.settled(len(found))
        for consumer, count in shares.items():
            consumer.settled(count)

    def close(self) -> None:
        """Nothing more is sent on it, nobody waits for acknowledgements."""
        for consumer in list(self.consumers.values()):
            consumer.close()
        self.consumers.clear()
        waited = len(self._unacked)
        self._unacked.clear()
        self._all_unacked.settled(waited)
        self.confirms = None
        if self.publisher is not None:
            self.publisher.is_deleted = True


def _unknown_tag(tag: int) -> ChannelFault:
    return ChannelFault(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
