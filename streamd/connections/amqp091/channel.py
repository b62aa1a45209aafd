"""One channel: its settings, its consumers, and the messages that await acknowledgement."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Protocol

from streamd.broker.streams.stream import Stream
from streamd.connections.amqp091.channel_publisher import ChannelPublisher
from streamd.connections.unacked import MOST_SETTLED, Unacked
from streamd.operations.connections import ConsumerFacts
from streamd.operations.names import Name
from streamd.wire.amqp091.errors import ChannelFault, ReplyCode


class Consumer(Protocol):
    """A consumer, as its channel and the connection's session see it."""

    stream: Stream
    channel: "Channel"
    tag: str

    @property
    def is_busy(self) -> bool:
        """Whether half of what its client may have is unacknowledged."""

    @property
    def is_closed(self) -> bool:
        """Whether it is closed and gets nothing more."""

    def settled(self, count: int) -> None:
        """This many of its messages are acknowledged, or count as such."""

    def check(self) -> None:
        """Get in line when there is something to send, else wait for the stream."""

    def facts(self, number: int) -> ConsumerFacts:
        """It as it is at the moment; `number` is its own on the channel."""

    def close(self) -> None:
        """Stop for good."""


class Channel:
    """One open channel.

    Args:
        publisher: receives the outcome of its messages.

    Attributes:
        prefetch: messages that each new consumer may have unacknowledged; 0 before basic.qos.
        queue: the last one that was declared, for methods that name none.
        consumers: by tag.
        is_closed: nothing more is sent on it.
    """

    def __init__(self, number: int, unacked: Unacked, publisher: ChannelPublisher) -> None:
        self.number = number
        self._all_unacked = unacked
        self.prefetch = 0
        self.queue = Name("")
        self.publisher = publisher
        self.consumers: dict[str, Consumer] = {}
        self.is_closed = False
        self._unacked: dict[int, Consumer] = {}
        self._last_delivery = 0
        self._next_tag = 0

    # -- consuming

    def make_tag(self) -> str:
        """A tag for a consumer whose client has not chosen one."""
        while True:
            self._next_tag += 1
            tag = f"amq.ctag-{self.number}.{self._next_tag}"
            if tag not in self.consumers:
                return tag

    @property
    def is_full(self) -> bool:
        """Whether so many messages are unacknowledged that no more are sent."""
        return self._all_unacked.is_full

    @property
    def room(self) -> int:
        """How many more messages may be sent, on all channels of the connection."""
        return self._all_unacked.room

    @property
    def num_unacked(self) -> int:
        """Messages that wait for an acknowledgement."""
        return len(self._unacked)

    @property
    def is_busy(self) -> bool:
        """Whether each of its consumers has half of what it may have unacknowledged."""
        return all(consumer.is_busy for consumer in self.consumers.values())

    def set_prefetch(self, prefetch: int) -> None:
        """Let each new consumer have this many messages unacknowledged."""
        self.prefetch = prefetch

    def use_queue(self, name: Name) -> None:
        """This queue was declared: methods that name none mean it."""
        self.queue = name

    @property
    def next_delivery(self) -> int:
        """The delivery tag for the next message; those of the ones behind it follow."""
        return self._last_delivery + 1

    def count_deliveries(self, consumer: Consumer, count: int) -> None:
        """So many messages are sent."""
        first = self._last_delivery + 1
        self._last_delivery += count
        self._unacked.update(dict.fromkeys(range(first, first + count), consumer))
        self._all_unacked.count += count

    def settle(self, tag: int, *, multiple: bool) -> int:
        """The client has dealt with a message, or with all up to it; tag 0 means all of them.

        Returns:
            How many messages that were, at most MOST_SETTLED; see `settle_up_to` for others.

        Raises:
            ChannelFault: no such message is unacknowledged.
        """
        if multiple:
            return self.settle_up_to(self.checked_tag(tag))
        consumer = self._unacked.pop(tag, None)
        if consumer is None:
            raise _unknown_tag(tag)
        self._acknowledged(consumer, 1)
        self._all_unacked.settled(1)
        consumer.settled(1)
        return 1

    def checked_tag(self, tag: int) -> int:
        """The tag of a message that is unacknowledged; for 0 the last one.

        Raises:
            ChannelFault: there is no such message.
        """
        if tag and tag not in self._unacked:
            raise _unknown_tag(tag)
        return tag or self._last_delivery

    def settle_up_to(self, tag: int) -> int:
        """Settle the oldest messages up to a tag; returns how many, at most MOST_SETTLED."""
        return self._settle(list(takewhile(tag.__ge__, islice(self._unacked, MOST_SETTLED))))

    def settle_run(self, first: int, count: int) -> None:
        """The client has dealt with so many messages, one after the other.

        Raises:
            ChannelFault: one of them is not unacknowledged; those before it were settled.
        """
        known = list(takewhile(self._unacked.__contains__, range(first, first + count)))
        self._settle(known)
        if len(known) < count:
            raise _unknown_tag(first + len(known))

    def _settle(self, tags: Sequence[int]) -> int:
        shares = Counter(map(self._unacked.pop, tags))
        for consumer, count in shares.items():
            self._acknowledged(consumer, count)
        self._all_unacked.settled(len(tags))
        for consumer, count in shares.items():
            consumer.settled(count)
        return len(tags)

    def _acknowledged(self, consumer: Consumer, count: int) -> None:
        self._all_unacked.traffic.messages_acknowledged += count
        consumer.stream.traffic.messages_acknowledged += count

    def close(self) -> None:
        """Nothing more is sent on it, nobody waits for acknowledgements."""
        self.is_closed = True
        for consumer in list(self.consumers.values()):
            consumer.close()
        self.consumers.clear()
        waited = len(self._unacked)
        self._unacked.clear()
        self._all_unacked.settled(waited)
        self.publisher.close()


def _unknown_tag(tag: int) -> ChannelFault:
    return ChannelFault(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
