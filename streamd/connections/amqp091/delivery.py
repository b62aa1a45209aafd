"""From a stream to its AMQP consumers: what a delivery is, and when it is sent.

How messages are read and chosen is in message_delivery.py.
"""

from collections.abc import Callable, Mapping
from itertools import islice

import trio

from streamd.broker.streams.stream import Stream
from streamd.broker.traffic import ProtocolTraffic
from streamd.connections.amqp091.channel import Channel
from streamd.connections.amqp091.pacing import DELAY_SECONDS, may_gather
from streamd.connections.consumer_choice import ConsumerArguments
from streamd.connections.message_delivery import TURN_BYTES, MessageConsumer, MessageDeliveries
from streamd.connections.ready_queue import ConsumerState, ReadyQueue
from streamd.connections.watch import Watch
from streamd.net.wakeup import Wakeup
from streamd.wire.amqp091.converted import Batch, batch_frame
from streamd.wire.amqp091.deliver import DeliverWriter
from streamd.wire.amqp091.messages.from_amqp10 import delivered, is_dear

_BATCH_MESSAGES = 1_000  # that a door is given at a time


class AmqpConsumer(MessageConsumer):
    """One consumer on a channel."""

    _deliveries: "Deliveries"

    def __init__(
        self,
        deliveries: "Deliveries",
        channel: Channel,
        tag: str,
        stream: Stream,
        wanted: ConsumerArguments,
        arguments: Mapping[str, str],
    ) -> None:
        self.channel = channel
        self.tag = tag
        self._credit = self._prefetch = channel.prefetch
        self.writer = DeliverWriter(channel.number, tag, stream.name, deliveries.frame_max)
        super().__init__(deliveries, tag, stream, wanted, arguments)

    @property
    def credit(self) -> int:
        """See MessageConsumer."""
        return self._credit

    @property
    def is_busy(self) -> bool:
        """Whether half of what its client may have is unacknowledged."""
        return 2 * self._credit <= self._prefetch

    def settled(self, count: int) -> None:
        """This many of its messages are acknowledged, or count as such."""
        self._credit += count
        self.check()

    @property
    def room(self) -> int:
        """See MessageConsumer."""
        return min(self._credit, self.channel.room)

    def check(self) -> None:
        """See QueuedConsumer; one that waits for more to gather may be in a hurry now."""
        if self.state is ConsumerState.DELAYED and not may_gather(self._credit, self._prefetch):
            if not self._is_reading:
                self.get_in_line()
        else:
            super().check()

    def get_in_line(self) -> None:
        """See QueuedConsumer; what may gather waits a moment."""
        if may_gather(self._credit, self._prefetch):
            self._deliveries.enqueue_delayed(self)
        else:
            self._deliveries.enqueue(self)

    @property
    def is_dear(self) -> bool:
        """See MessageConsumer."""
        return bool(self._read) and is_dear(self._read[0][1])

    def sent(self, count: int) -> None:
        """See MessageConsumer."""
        self._credit -= count
        self.channel.count_deliveries(self, count)
        super().sent(count)


class Deliveries(MessageDeliveries[AmqpConsumer]):
    """The consumers of one connection; see MessageDeliveries."""

    def __init__(
        self,
        queue: ReadyQueue[AmqpConsumer],
        frame_max: int,
        cannot_read: Callable[[Stream], None],
        traffic: ProtocolTraffic,
        watch: Watch,
    ) -> None:
        super().__init__(queue, frame_max, cannot_read, traffic, watch)
        self._delayed: dict[AmqpConsumer, None] = {}
        self._has_delayed = Wakeup()

    def add(
        self,
        channel: Channel,
        tag: str,
        stream: Stream,
        wanted: ConsumerArguments,
        arguments: Mapping[str, str],
    ) -> AmqpConsumer:
        """Add a consumer; it gets messages once it is checked.

        Raises:
            StorageError: the stream cannot be read.
            NoTierError: this server does not know the tier.
        """
        consumer = AmqpConsumer(self, channel, tag, stream, wanted, arguments)
        channel.consumers[tag] = consumer
        self.take(consumer)
        return consumer

    def forget(self, consumer: AmqpConsumer) -> None:
        """A consumer is closed."""
        super().forget(consumer)
        self._delayed.pop(consumer, None)
        consumer.channel.consumers.pop(consumer.tag, None)

    def enqueue(self, consumer: AmqpConsumer) -> None:
        """Put a consumer in line."""
        self._delayed.pop(consumer, None)
        self.queue.enqueue(consumer)

    def enqueue_delayed(self, consumer: AmqpConsumer) -> None:
        """Put a consumer in line in a moment, when there may be more to send."""
        consumer.state = ConsumerState.DELAYED
        self._delayed[consumer] = None
        self._has_delayed.set()

    async def flush_delayed(self) -> None:
        """Put those in line whose moment has come, until cancelled."""
        while True:
            await self._has_delayed.wait()
            await trio.sleep(DELAY_SECONDS)
            for consumer in list(self._delayed):
                self.enqueue(consumer)

    def _frames(self, consumer: AmqpConsumer) -> list[bytes]:
        """See MessageDeliveries."""
        frames: list[bytes] = []
        left, write = TURN_BYTES, consumer.writer.frames
        for tag, (offset, raw) in enumerate(consumer.sendable(), consumer.channel.next_delivery):
            message = delivered(raw)
            frame = write(tag, offset, message)
            frames.append(frame)
            left -= len(frame) + message.head.price
            if left <= 0:
                break
        if frames:
            self._count(consumer, len(frames), sum(map(len, frames)))
        return frames


class DoorDeliveries(Deliveries):
    """The consumers of a connection behind a door, which makes deliveries of stored messages."""

    def _frames(self, consumer: AmqpConsumer) -> list[bytes]:
        messages: list[tuple[int, bytes]] = []
        left = TURN_BYTES
        for message in islice(consumer.sendable(), _BATCH_MESSAGES):
            messages.append(message)
            left -= len(message[1])
            if left <= 0:
                break
        if not messages:
            return []
        channel, name = consumer.channel, consumer.stream.name
        place = channel.number, consumer.tag, name, self.frame_max, channel.next_delivery
        frame = batch_frame(Batch(*place, messages))
        self._count(consumer, len(messages), len(frame))
        return [frame]
