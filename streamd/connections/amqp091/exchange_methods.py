"""exchange.*: declared, deleted, bound to each other.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/rabbit_channel.erl and
deps/rabbit/src/rabbit_exchange.erl.
"""

from streamd.broker.routing.rules import check_not_default
from streamd.connections.amqp091.channel import Channel
from streamd.connections.amqp091.context import Context, Handlers
from streamd.connections.amqp091.faults import refusals
from streamd.connections.amqp091.publishing import plain_table
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name, as_sent
from streamd.operations.routing import ALTERNATE, SUPER_STREAM, Binding, ExchangeRow, exchange_type
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.values import Field


class ExchangeMethods:
    """Exchanges declared, bound and deleted by one connection."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._host = context.host
        self._declaring = context.declaring
        self.handlers: Handlers = {
            m.ExchangeDeclare: self._declare,
            m.ExchangeDelete: self._delete,
            m.ExchangeBind: self._bind,
            m.ExchangeUnbind: self._unbind,
        }

    async def _declare(self, channel: Channel, method: m.ExchangeDeclare) -> None:
        name = as_sent(method.exchange)
        with refusals():
            if method.passive:
                check_not_default(name)
                self._context.require_any("exchange", name)
                self._host.topology.find(name)
                await self._host.tell_of(name)
            else:
                await self._declare_active(name, method)
        self._context.answer(channel, m.ExchangeDeclareOk(), nowait=method.nowait)

    async def _declare_active(self, name: Name, method: m.ExchangeDeclare) -> None:
        alternate = _name(method.arguments.get(ALTERNATE))
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
        await self._declaring.declare_exchange(row, is_super_stream=is_super_stream)

    async def _delete(self, channel: Channel, method: m.ExchangeDelete) -> None:
        name = as_sent(method.exchange)
        with refusals():
            await self._declaring.delete_exchange(name, if_unused=method.if_unused)
        self._context.answer(channel, m.ExchangeDeleteOk(), nowait=method.nowait)

    async def _bind(self, channel: Channel, method: m.ExchangeBind) -> None:
        with refusals():
            await self._declaring.bind(self._binding(method))
        self._context.answer(channel, m.ExchangeBindOk(), nowait=method.nowait)

    async def _unbind(self, channel: Channel, method: m.ExchangeUnbind) -> None:
        with refusals():
            await self._declaring.unbind(self._binding(method))
        self._context.answer(channel, m.ExchangeUnbindOk(), nowait=method.nowait)

    def _binding(self, method: m.ExchangeBind | m.ExchangeUnbind) -> Binding:
        """The binding that a method names."""
        source, destination = as_sent(method.source), as_sent(method.destination)
        arguments = plain_table(method.arguments)
        return Binding(self._host.name, source, destination, True, method.key, arguments)


def _name(field: Field | None) -> Name:
    """The name in an argument; empty when there is none.

    Raises:
        Refused: it is not text.
    """
    if field is None or field.tag != "S":
        return as_sent("")
    try:
        return as_sent(field.value.decode())
    except UnicodeDecodeError as error:
        details = f"{ALTERNATE} is {field.value[:40]!r}, expected a name in UTF-8"
        raise Refused(Reason.PRECONDITION_FAILED, details) from error
