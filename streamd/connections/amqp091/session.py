"""The requests of an open connection: its channels, and who carries out which method."""

from collections.abc import Callable
from functools import partial

from streamd.broker.streams.stream import Stream
from streamd.connections.amqp091.channel import Channel
from streamd.connections.amqp091.consumer_methods import Consuming
from streamd.connections.amqp091.context import Context, Handlers
from streamd.connections.amqp091.exchange_methods import ExchangeMethods
from streamd.connections.amqp091.faults import not_implemented
from streamd.connections.amqp091.pacing import AckPacer
from streamd.connections.amqp091.queue_methods import Queues
from streamd.connections.unacked import MOST_SETTLED, Unacked
from streamd.net.turns import next_turn
from streamd.operations.connections import ConsumerFacts, PublisherFacts
from streamd.operations.rights import Right
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.connection import Content, Request
from streamd.wire.amqp091.converted import Acks, Run
from streamd.wire.amqp091.errors import ChannelFault, Fault

_UNITS_A_TURN = 512  # messages of a run, and what takes as long, before others have a turn
_SETTLED_A_MESSAGE = 32  # that take as long as publishing a message


class Session:
    """The channels of one connection.

    Args:
        close_channel: makes the frame that closes a channel.
        end: ends the connection, for the reason given.
        is_relayed: acknowledgements have gathered in a door.
    """

    def __init__(
        self,
        context: Context,
        close_channel: Callable[[int, ChannelFault], bytes],
        end: Callable[[str], None],
        *,
        is_relayed: bool = False,
    ) -> None:
        self._context = context
        self._is_relayed = is_relayed
        self._end = end
        self._close_channel = close_channel
        self._channels: dict[int, Channel] = {}
        self._traffic = context.traffic
        publishing = context.publishing
        self.flush, self.settled = publishing.flush, publishing.settled
        self.has_room, self.room = publishing.has_room, publishing.room
        self._unacked = Unacked(self._check_consumers, self._traffic)
        self._pacer = AckPacer()
        self._consuming = Consuming(context)
        own: Handlers = {
            m.ChannelFlow: self._flow,
            m.ChannelClose: self._close_by_client,
            m.ConfirmSelect: self._select_confirms,
            m.BasicAck: self._settle_many,
            m.BasicNack: self._settle_many,
            m.AccessRequest: self._grant_access,
            m.TxSelect: _refuse_transaction,
            m.TxCommit: _refuse_transaction,
            m.TxRollback: _refuse_transaction,
        }
        parts = (self._consuming, Queues(context), ExchangeMethods(context))
        self._handlers: Handlers = {k: h for part in parts for k, h in part.handlers.items()} | own
        context.host.add_observer(self)

    async def handle(self, request: Request) -> None:
        """Carry out one method of a channel; answers are in the outbox on return.

        Raises:
            ConnectionFault: it ends the connection.
        """
        number, method = request
        self.flush()
        if type(method) is m.ChannelOpen:
            channel = self._channels[number] = self._new_channel(number)
            self._traffic.channels_opened += 1
            self._context.answer(channel, m.ChannelOpenOk())
            return
        # Else it is one that the server has closed already.
        channel = self._channels.get(number) or self._new_channel(number)
        handler = self._handlers.get(type(method))
        if handler is None:  # answers to what the server has sent
            return
        try:
            await handler(channel, method)
        except Fault as fault:
            self._fail(channel, method, fault)

    def _new_channel(self, number: int) -> Channel:
        return Channel(number, self._unacked, self._context.publishing.new_publisher(number))

    def handle_at_once(self, request: Request | Run | Acks) -> int:
        """Carry out what needs no waiting: acknowledgements, and runs that a door sends.

        Returns:
            How much work that was, see `publish`; 0 for a method that `handle` has to carry out,
            and for a run whose messages `go_on` has to publish.

        Raises:
            ConnectionFault: it ends the connection.
        """
        if isinstance(request, Run):
            return self._publish_run(request)
        if isinstance(request, Acks):
            return self._settle_run(request)
        number, method = request
        channel = self._channels.get(number)
        if channel is None or not isinstance(method, m.BasicAck | m.BasicNack):
            return 0
        if method.multiple and channel.num_unacked > MOST_SETTLED:
            return 0
        self._pacer.acked(channel)
        try:
            num_settled = channel.settle(method.delivery_tag, multiple=method.multiple)
        except Fault as fault:
            self._fail(channel, method, fault)
            return 1
        return 1 + num_settled // _SETTLED_A_MESSAGE

    def _settle_run(self, acks: Acks) -> int:
        channel = self._channels.get(acks.channel)
        if channel is not None:  # else the server has closed it
            if not self._is_relayed:
                self._pacer.acked(channel)
            try:
                channel.settle_run(acks.method.delivery_tag, acks.number)
            except Fault as fault:
                self._fail(channel, acks.method, fault)
        return 1 + acks.number // _SETTLED_A_MESSAGE

    async def _settle_many(self, channel: Channel, method: m.BasicAck | m.BasicNack) -> None:
        if self._channels.get(channel.number) is not channel:
            return  # the server has closed it
        self._pacer.acked(channel)
        tag = channel.checked_tag(method.delivery_tag)
        while channel.settle_up_to(tag) == MOST_SETTLED:
            await next_turn()

    def take_pause(self) -> float:
        """How long acknowledgements are left to gather before more is read, in seconds."""
        return self._pacer.take_pause()

    def publish(self, content: Content) -> int:
        """Take a message; `flush` hands it on.

        Returns:
            How much work that was, 0 when `go_on` has to do the rest; see Publishing.

        Raises:
            ConnectionFault: it ends the connection.
        """
        channel = self._channels[content.channel]
        self._pacer.published()
        try:
            return self._context.publishing.publish(channel, content)
        except Fault as fault:
            self._fail(channel, content.method, fault)
            return 1

    def _publish_run(self, run: Run) -> int:
        channel = self._channels[run.channel]
        self._pacer.published()
        try:
            return self._context.publishing.publish_run(channel, run)
        except Fault as fault:
            self._fail(channel, run.method, fault)
            return 1

    async def go_on(self, content: Content | Run) -> None:
        """Do the rest of what `publish` has begun.

        Raises:
            ConnectionFault: it ends the connection.
        """
        if isinstance(content, Run):
            await self._publish_each(content)
            return
        channel = self._channels.get(content.channel)
        if channel is None:
            return  # the connection was closed meanwhile
        try:
            await self._context.publishing.go_on()
        except Fault as fault:
            self._fail(channel, content.method, fault)

    async def _publish_each(self, run: Run) -> None:
        publishing, units = self._context.publishing, 0
        for message in run.messages():
            channel = self._channels.get(run.channel)
            if channel is None:
                return  # it has failed, or the connection was closed meanwhile
            try:
                work = publishing.publish_stored(channel, run.method, message)
                if not work:
                    await publishing.go_on()
            except Fault as fault:
                self._fail(channel, run.method, fault)
                return
            units += work
            if units >= _UNITS_A_TURN:
                units = 0
                self.flush()
                await self.room()
                await next_turn()
        self.flush()

    def _fail(self, channel: Channel, method: m.Method, fault: Fault) -> None:
        """End the channel; raise what ends the connection. What was published before is stored."""
        fault.method = m.IDS[type(method)]
        self.flush()
        if not isinstance(fault, ChannelFault):
            raise fault
        if channel.is_closed:
            return  # the connection was closed while this was carried out
        self._end_channel(channel, fault)

    def _end_channel(self, channel: Channel, fault: ChannelFault) -> None:
        self._close(channel)
        self._context.outbox.put(self._close_channel(channel.number, fault))

    def _close(self, channel: Channel) -> None:
        if self._channels.pop(channel.number, None) is not None:
            self._traffic.channels_closed += 1
        channel.close()

    def _check_consumers(self) -> None:
        """More may be sent again."""
        for channel in self._channels.values():
            for consumer in channel.consumers.values():
                consumer.check()

    def publishers(self) -> list[PublisherFacts]:
        """None: channels publish without declaring a publisher."""
        return []

    def consumers(self) -> list[ConsumerFacts]:
        """The consumers at the moment."""
        return [
            consumer.facts(number)
            for channel in self._channels.values()
            for number, consumer in enumerate(channel.consumers.values())
        ]

    def close(self) -> None:
        """The connection ended: give everything back."""
        self._context.host.remove_observer(self)
        for channel in self._channels.values():
            channel.close()
        self._traffic.channels_closed += len(self._channels)
        self._channels.clear()

    # -- see virtual_host.StreamObserver

    def stream_is_gone(self, stream: Stream) -> None:
        """Its consumers end; what is published there from now on is not routed."""
        self._end_consumers(lambda used: used is stream)

    def host_is_gone(self) -> None:
        """See virtual_host.StreamObserver."""
        self._end(f"vhost '{self._context.host.name}' is deleted")

    def check_rights(self) -> None:
        """Rights may have changed: end the consumers that are not allowed any more."""
        allows = partial(self._context.rights.allows, Right.READ)
        self._end_consumers(lambda used: not allows(used.name))

    def _end_consumers(self, is_over: Callable[[Stream], bool]) -> None:
        for channel in self._channels.values():
            for consumer in list(channel.consumers.values()):
                if is_over(consumer.stream):
                    self._consuming.end(consumer)

    # -- channels

    async def _close_by_client(self, channel: Channel, _method: m.ChannelClose) -> None:
        self._close(channel)
        self._context.answer(channel, m.ChannelCloseOk())

    async def _flow(self, channel: Channel, method: m.ChannelFlow) -> None:
        if not method.active:
            raise not_implemented("active=false in channel.flow; cancel consumers instead")
        self._context.answer(channel, m.ChannelFlowOk(True))

    async def _select_confirms(self, channel: Channel, method: m.ConfirmSelect) -> None:
        channel.publisher.select_confirms()
        self._context.answer(channel, m.ConfirmSelectOk(), nowait=method.nowait)

    async def _grant_access(self, channel: Channel, _method: m.AccessRequest) -> None:
        self._context.answer(channel, m.AccessRequestOk())


async def _refuse_transaction(_channel: Channel, method: m.Method) -> None:
    name = type(method).__name__
    raise not_implemented(f"{name}: there are no transactions; use publisher confirms")
