"""queue.*: streams declared, deleted and bound as queues.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_channel.erl and
deps/rabbit/src/rabbit_amqqueue.erl.
"""

import logging
from functools import partial

from streamd.connections.amqp091.channel import Channel
from streamd.connections.amqp091.context import Context, Handlers
from streamd.connections.amqp091.faults import access_refused, fault_of, not_implemented, refusals
from streamd.connections.amqp091.publishing import plain_table
from streamd.connections.amqp091.queue_arguments import Declaration, inequivalent
from streamd.operations.arguments import as_kept
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name, as_sent
from streamd.operations.rights import Right
from streamd.operations.routing import RESERVED_PREFIX, Binding
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.errors import ChannelFault, ReplyCode, precondition_failed

logger = logging.getLogger(__name__)

_MAX_COUNT = (1 << 32) - 1
_MAX_WARNINGS = 4  # for one declaration


class Queues:
    """Queues declared, bound and deleted by one connection."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._host = context.host
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
            await self._declare_active(name, method)
        channel.use_queue(name)
        answer = m.QueueDeclareOk(name, await self._count(name), 0)
        self._context.answer(channel, answer, nowait=method.nowait)

    def _check_passive(self, name: Name) -> None:
        self._context.require_any("queue", name)
        self._context.require_queue(name)

    async def _declare_active(self, name: Name, method: m.QueueDeclare) -> None:
        if not name:
            raise precondition_failed(
                "a stream needs a name: server-named queues are not supported"
            )
        if name.startswith(RESERVED_PREFIX):
            raise access_refused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        check = partial(self._context.require, Right.CONFIGURE, "queue", name)
        check()
        declaration = Declaration(name, self._host.name, method.arguments)
        if self._host.has_stream(name):
            self._check_same(name, method, declaration)
            try:
                await self._host.declared_again(name)
            except Refused as refused:
                raise fault_of(refused) from refused
            return
        declaration.check_type(self._context.default_queue_type)
        declaration.pairs()
        _check_flags(name, method)
        declaration.canonical()
        try:
            await self._host.create(name, declaration.pairs(), check)
            for key in declaration.passed_over()[:_MAX_WARNINGS]:
                logger.warning("stream %s: the argument %r is ignored", name, key[:40])
        except Refused as refused:
            # Another client may have created it meanwhile.
            if refused.reason != Reason.ALREADY_EXISTS:
                raise fault_of(refused) from refused

    def _check_same(self, name: Name, method: m.QueueDeclare, declaration: Declaration) -> None:
        host = self._host.name
        where = f"for queue '{name}' in vhost '{host}'"
        if method.exclusive:
            raise ChannelFault(
                ReplyCode.RESOURCE_LOCKED,
                f"cannot obtain exclusive access to locked queue '{name}' in vhost '{host}'",
            )
        for arg, received, current in (
            ("durable", method.durable, True),
            ("auto_delete", method.auto_delete, False),
        ):
            if received != current:
                shown = f"received '{received}' but current is '{current}'".lower()
                raise precondition_failed(f"inequivalent arg '{arg}' {where}: {shown}")
        declaration.check_type(self._context.default_queue_type)
        current_arguments = self._host.arguments(name)
        wanted = as_kept(declaration.canonical(), current_arguments)
        reason = inequivalent(name, host, wanted, current_arguments)
        if reason is not None:
            raise precondition_failed(reason)

    async def _count(self, name: Name) -> int:
        """Messages in a stream, at most the number that fits into the answer."""
        try:
            figures = await self._host.find(name).read_figures()
        except Refused:
            return 0
        return min(figures.num_messages, _MAX_COUNT)

    # -- deleting

    async def _delete(self, channel: Channel, method: m.QueueDelete) -> None:
        name = self._context.queue_name(channel, method.queue)
        check = partial(self._context.require, Right.CONFIGURE, "queue", name)
        try:
            await self._host.delete(name, lambda: None, check)
        except Refused as refused:
            if refused.reason != Reason.NOT_FOUND:
                raise fault_of(refused) from refused
        self._context.answer(channel, m.QueueDeleteOk(0), nowait=method.nowait)

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
            binding = self._binding(channel, method)
            await self._host.exchanges.bind(binding, partial(self._check_ends, binding))
        self._context.answer(channel, m.QueueBindOk(), nowait=method.nowait)

    async def _unbind(self, channel: Channel, method: m.QueueUnbind) -> None:
        with refusals():
            binding = self._binding(channel, method)
            await self._host.exchanges.unbind(binding, partial(self._check_ends, binding))
        self._context.answer(channel, m.QueueUnbindOk())

    def _binding(self, channel: Channel, method: m.QueueBind | m.QueueUnbind) -> Binding:
        """The binding that a method names."""
        host, source = self._host, as_sent(method.exchange)
        name = self._context.queue_name(channel, method.queue)
        key = method.key
        if not method.queue and not key:
            key = name
        return Binding(host.name, source, name, False, key, plain_table(method.arguments))

    def _check_ends(self, binding: Binding) -> None:
        self._context.require(Right.WRITE, "queue", binding.destination)
        self._context.require(Right.READ, "exchange", binding.source)


def _check_flags(name: str, method: m.QueueDeclare) -> None:
    """Raise ChannelFault unless the flags are those that a stream has."""
    for flag, found, wanted in (
        ("auto-delete", method.auto_delete, False),
        ("exclusive", method.exclusive, False),
        ("durable", method.durable, True),
    ):
        if found != wanted:
            shown = f"{flag}={str(found).lower()}"
            raise precondition_failed(
                f"invalid property {shown} for stream '{name}': streams are durable, not exclusive "
                "and not auto-delete"
            )
