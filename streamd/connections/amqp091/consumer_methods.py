"""basic.qos, consume, cancel, and acknowledgements.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_channel.erl and
deps/rabbit/src/rabbit_stream_queue.erl.
"""

import logging
from itertools import islice

from segments import StorageError
from streamd.broker.declared.checks import check_properties, properties_size, recorded
from streamd.broker.streams.fetcher import NoTierError
from streamd.broker.streams.stream import Stream
from streamd.connections.amqp091.channel import Channel, Consumer
from streamd.connections.amqp091.consumer_arguments import (
    FOREIGN,
    OFFSET,
    ignored,
    read_offset,
    read_wanted,
    shown_arguments,
)
from streamd.connections.amqp091.context import Context, Handlers
from streamd.connections.amqp091.faults import not_found, not_implemented
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name
from streamd.operations.rights import Right
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.errors import (
    ChannelFault,
    ConnectionFault,
    ReplyCode,
    precondition_failed,
)

logger = logging.getLogger(__name__)

_MAX_WARNINGS = 4  # for one consumer

MAX_CONSUMERS = 1_024  # of one connection: each may hold a chunk and its prefetch


class Consuming:
    """Consumers of one connection."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.handlers: Handlers = {
            m.BasicQos: self._qos,
            m.BasicConsume: self._consume,
            m.BasicCancel: self._cancel,
            m.BasicAck: self._ack,
            m.BasicNack: self._ack,
            m.BasicReject: self._reject,
            m.BasicRecover: self._recover,
            m.BasicRecoverAsync: self._recover,
        }

    async def _qos(self, channel: Channel, method: m.BasicQos) -> None:
        if method.size:
            raise not_implemented(f"prefetch_size!=0 ({method.size})")
        channel.set_prefetch(method.prefetch)
        self._context.answer(channel, m.BasicQosOk())

    async def _consume(self, channel: Channel, method: m.BasicConsume) -> None:
        name = self._context.queue_name(channel, method.queue)
        if method.tag in channel.consumers:
            reason = f"attempt to reuse consumer tag '{method.tag}'"
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, reason)
        if self._context.deliveries.num_consumers >= MAX_CONSUMERS:
            reason = f"the connection has {MAX_CONSUMERS} consumers, the most there can be"
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, reason)
        self._context.require(Right.READ, "queue", name)
        stream = self._find(name)
        try:
            async with stream.opened():
                if channel.is_closed:
                    return  # the connection has failed meanwhile: nobody would close the consumer
                self._context.require(Right.READ, "queue", name)  # it may have gone meanwhile
                consumer = self._open(channel, method, stream)
        except Refused as refused:
            raise self._not_readable(name, refused) from refused
        answer = m.BasicConsumeOk(consumer.tag)
        self._context.answer(channel, answer, nowait=method.nowait)
        consumer.check()  # only now: nothing is delivered before the answer

    def _find(self, name: Name) -> Stream:
        try:
            return self._context.host.find(name)
        except Refused as refused:
            raise self._not_readable(name, refused) from refused

    def _not_readable(self, name: Name, refused: Refused) -> ChannelFault:
        if refused.reason == Reason.NOT_FOUND:
            return not_found("queue", name, self._context.host.name)
        return precondition_failed(f"queue '{name}' is not available: {refused.details}")

    def _open(self, channel: Channel, method: m.BasicConsume, stream: Stream) -> Consumer:
        host = self._context.host
        arguments = method.arguments
        start = read_offset(arguments.get(OFFSET), self._context.now_ms())
        for key in FOREIGN:
            if key in arguments:
                raise precondition_failed(
                    f"invalid arg '{key}' for queue '{stream.name}' in vhost '{host.name}' of "
                    "queue type rabbit_stream_queue"
                )
        if not channel.prefetch:
            raise precondition_failed(
                f"consumer prefetch count is not set for stream queue '{stream.name}' in vhost "
                f"'{host.name}'; set one with basic.qos before basic.consume"
            )
        if method.no_ack:
            raise not_implemented(
                f"automatic acknowledgement not supported by stream queues, queue '{stream.name}'; "
                "acknowledge messages"
            )
        shown, deliveries = shown_arguments(arguments), self._context.deliveries
        try:
            check_properties(properties_size(shown.items()), deliveries.properties_size)
        except Refused as refused:
            raise precondition_failed(refused.details) from refused
        wanted = read_wanted(arguments, start, host.arguments(stream.name), self._context.now_ms)
        if wanted.matcher is not None:
            stream.log.filter_demand.add(recorded(wanted.matcher.asked))
        tag = method.tag or channel.make_tag()
        for sentence in islice(ignored(arguments), _MAX_WARNINGS):
            logger.warning("stream %s, consumer %r: %s", stream.name, tag, sentence)
        try:
            return deliveries.add(channel, tag, stream, wanted, shown)
        except (StorageError, NoTierError) as error:
            logger.error("stream %s cannot be read: %s", stream.name, error)
            raise precondition_failed(f"queue '{stream.name}' cannot be read") from error

    async def _cancel(self, channel: Channel, method: m.BasicCancel) -> None:
        consumer = channel.consumers.get(method.tag)
        if consumer is not None:
            consumer.close()
        self._context.answer(channel, m.BasicCancelOk(method.tag), nowait=method.nowait)

    def end(self, consumer: Consumer) -> None:
        """End a consumer on the server's side, and tell the client if it wants to know."""
        if not consumer.is_closed:
            consumer.close()
            if self._context.hears_of_cancel:
                self._context.answer(consumer.channel, m.BasicCancel(consumer.tag, True))

    # -- acknowledgements: nothing is ever delivered again, so all kinds mean the same

    async def _ack(self, channel: Channel, method: m.BasicAck | m.BasicNack) -> None:
        channel.settle(method.delivery_tag, multiple=method.multiple)

    async def _reject(self, channel: Channel, method: m.BasicReject) -> None:
        channel.settle(method.delivery_tag, multiple=False)

    async def _recover(
        self, channel: Channel, method: m.BasicRecover | m.BasicRecoverAsync
    ) -> None:
        if not method.requeue:
            raise not_implemented("requeue=false in basic.recover")
        channel.settle(0, multiple=True)
        if isinstance(method, m.BasicRecover):
            self._context.answer(channel, m.BasicRecoverOk())
