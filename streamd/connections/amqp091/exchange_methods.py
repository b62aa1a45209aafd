"""exchange.*: declared, deleted, bound to each other.

Source: rabbitmq/rabbitmq-server, rabbit_channel.erl and rabbit_exchange.erl.
"""

from streamd.auth.users import Right
from streamd.broker.routing.matching import Binding, ExchangeRow
from streamd.broker.routing.rules import ALTERNATE, SUPER_STREAM, check_not_default, exchange_type
from streamd.connections.amqp091.channel import Channel
from streamd.connections.amqp091.context import Context, Handlers, without_line_ends
from streamd.connections.amqp091.faults import refusals
from streamd.connections.amqp091.publishing import plain_table
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.values import Field


class ExchangeMethods:
    """Exchanges declared, bound and deleted by one connection.

    Attributes:
        handlers: one for each method.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._host = context.host
        self.handlers: Handlers = {
            m.ExchangeDeclare: self._declare,
            m.ExchangeDelete: self._delete,
            m.ExchangeBind: self._bind,
            m.ExchangeUnbind: self._unbind,
        }

    async def _declare(self, channel: Channel, method: m.ExchangeDeclare) -> None:
        name = without_line_ends(method.exchange)
        with refusals():
            if method.passive:
                check_not_default(name)
                self._host.exchanges.find(name)
            else:
                await self._declare_active(name, method)
        self._context.answer(channel, m.ExchangeDeclareOk(), nowait=method.nowait)

    async def _declare_active(self, name: str, method: m.ExchangeDeclare) -> None:
        self._context.require(Right.CONFIGURE, "exchange", name)
        alternate = _text(method.arguments.get(ALTERNATE))
        if alternate:  # messages go on from here to there
            self._context.require(Right.READ, "exchange", name)
            self._context.require(Right.WRITE, "exchange", alternate)
        row = ExchangeRow(
            self._host.name,
            name,
            exchange_type(method.kind),
            method.durable,
            method.auto_delete,
            method.internal,
            alternate,
        )
        flag = method.arguments.get(SUPER_STREAM)
        is_super_stream = flag.value if flag is not None and flag.tag == "t" else None
        await self._host.exchanges.declare(row, super_stream=is_super_stream)

    async def _delete(self, channel: Channel, method: m.ExchangeDelete) -> None:
        name = without_line_ends(method.exchange)
        self._context.require(Right.CONFIGURE, "exchange", name)
        with refusals():
            await self._host.exchanges.delete(name, if_unused=method.if_unused)
        self._context.answer(channel, m.ExchangeDeleteOk(), nowait=method.nowait)

    async def _bind(self, channel: Channel, method: m.ExchangeBind) -> None:
        with refusals():
            await self._host.exchanges.bind(self._binding(method))
        self._context.answer(channel, m.ExchangeBindOk(), nowait=method.nowait)

    async def _unbind(self, channel: Channel, method: m.ExchangeUnbind) -> None:
        with refusals():
            await self._host.exchanges.unbind(self._binding(method))
        self._context.answer(channel, m.ExchangeUnbindOk(), nowait=method.nowait)

    def _binding(self, method: m.ExchangeBind | m.ExchangeUnbind) -> Binding:
        """The binding that a method names, once the user's rights are checked."""
        source, destination = map(without_line_ends, (method.source, method.destination))
        self._context.require(Right.WRITE, "exchange", destination)
        self._context.require(Right.READ, "exchange", source)
        arguments = plain_table(method.arguments)
        return Binding(self._host.name, source, destination, True, method.key, arguments)


def _text(field: Field | None) -> str:
    return field.value.decode(errors="replace") if field is not None and field.tag == "S" else ""
