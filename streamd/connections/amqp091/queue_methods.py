"""queue.*: streams declared, deleted and bound as queues.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_channel.erl and
deps/rabbit/src/rabbit_amqqueue.erl.
"""

from functools import partial

from streamd.connections.amqp091.channel import Channel
from streamd.connections.amqp091.context import Context, Handlers
from streamd.connections.amqp091.faults import not_implemented, refusals
from streamd.connections.amqp091.publishing import argument_values, plain_table
from streamd.connections.declaring import Flags
from streamd.operations.names import Name, as_sent
from streamd.operations.rights import Right
from streamd.operations.routing import Binding
from streamd.wire.amqp091 import methods as m

_MAX_COUNT = (1 << 32) - 1  # that fits into the answer


class Queues:
    """Queues declared, bound and deleted by one connection."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._host = context.host
        self._declaring = context.declaring
        self.handlers: Handlers = {
            m.QueueDeclare: self._declare,
            m.QueueBind: self._bind,
            m.QueueUnbind: self._unbind,
            m.QueuePurge: self._purge,
            m.QueueDelete: self._delete,
            m.BasicGet: self._get,
        }

    # -- declaring

    async def _declare(self, channel: Channel, method: m.QueueDeclare) -> None:
        name = as_sent(method.queue)
        if method.passive:
            self._check_passive(name)
            with refusals():
                await self._host.tell_of(name)
        else:
            flags = Flags(method.durable, method.exclusive, method.auto_delete)
            with refusals():
                await self._declaring.declare_queue(name, flags, argument_values(method.arguments))
        channel.use_queue(name)
        count = min(await self._declaring.num_messages(name), _MAX_COUNT)
        answer = m.QueueDeclareOk(name, count, 0)
        self._context.answer(channel, answer, nowait=method.nowait)

    def _check_passive(self, name: Name) -> None:
        self._context.require_any("queue", name)
        self._context.require_queue(name)

    # -- deleting

    async def _delete(self, channel: Channel, method: m.QueueDelete) -> None:
        name = self._context.queue_name(channel, method.queue)
        answer = partial(self._context.answer, channel, m.QueueDeleteOk(0), nowait=method.nowait)
        with refusals():
            await self._declaring.delete_queue(name, answer)

    async def _purge(self, channel: Channel, method: m.QueuePurge) -> None:
        name = self._context.queue_name(channel, method.queue)
        self._context.require(Right.READ, "queue", name)
        self._context.require_queue(name)
        raise not_implemented(f"queue.purge not supported by stream queues, queue '{name}'")

    async def _get(self, channel: Channel, method: m.BasicGet) -> None:
        name = self._context.queue_name(channel, method.queue)
        self._context.require(Right.READ, "queue", name)
        self._context.require_queue(name)
        raise not_implemented(
            f"basic.get not supported by stream queues, queue '{name}'; use basic.consume"
        )

    # -- binding

    async def _bind(self, channel: Channel, method: m.QueueBind) -> None:
        with refusals():
            await self._declaring.bind(self._binding(channel, method))
        self._context.answer(channel, m.QueueBindOk(), nowait=method.nowait)

    async def _unbind(self, channel: Channel, method: m.QueueUnbind) -> None:
        with refusals():
            await self._declaring.unbind(self._binding(channel, method))
        self._context.answer(channel, m.QueueUnbindOk())

    def _binding(self, channel: Channel, method: m.QueueBind | m.QueueUnbind) -> Binding:
        """The binding that a method names."""
        host, source = self._host, as_sent(method.exchange)
        name = self._context.queue_name(channel, method.queue)
        key = method.key
        if not method.queue and not key:
            key = name
        return Binding(host.name, source, name, False, key, plain_table(method.arguments))
