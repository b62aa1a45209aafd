"""exchange.*: declared, deleted, bound to each other.

Source: amqp091 reference, 1.9 and 1.10.
"""

from streamd.access import Right
from streamd.amqp.channel import Channel
from streamd.amqp.context import Context, Handlers, without_line_ends
from streamd.amqp.faults import access_refused, fault_of, not_found
from streamd.amqp.publishing import plain_table
from streamd.amqp091 import methods as m
from streamd.amqp091.errors import precondition_failed
from streamd.amqp091.values import Field
from streamd.errors import Refused
from streamd.exchanges import DEFAULT_EXCHANGE, RESERVED_PREFIX, as_super_stream
from streamd.routing import ExchangeRow, Kind, RouteRow

_ALTERNATE, _SUPER_STREAM = "alternate-exchange", "x-super-stream"


class ExchangeMethods:
    """Declared, bound, deleted.

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
        self._check_not_default(name)
        if method.passive:
            self._find(name)
        else:
            await self._declare_active(name, method)
        self._context.answer(channel, m.ExchangeDeclareOk(), nowait=method.nowait)

    async def _declare_active(self, name: str, method: m.ExchangeDeclare) -> None:
        exchanges = self._host.exchanges
        if method.kind not in set(Kind):
            kinds = ", ".join(Kind)
            raise precondition_failed(
                f"invalid exchange type '{method.kind[:40]}'; there are {kinds}"
            )
        if name.startswith(RESERVED_PREFIX) and not exchanges.has(name):
            raise access_refused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        self._context.require(Right.CONFIGURE, "exchange", name)
        row = ExchangeRow(
            self._host.name,
            name,
            Kind(method.kind),
            method.durable,
            method.auto_delete,
            method.internal,
            _text(method.arguments.get(_ALTERNATE)),
        )
        is_super_stream = method.arguments.get(_SUPER_STREAM) == Field("t", True)
        try:
            as_declared = as_super_stream(self._host.name, name)
            if is_super_stream and not exchanges.has(name) and row == as_declared:
                await self._host.declare_super_stream(name)
            else:
                await exchanges.declare(row)
        except Refused as refused:
            raise fault_of(refused) from refused

    async def _delete(self, channel: Channel, method: m.ExchangeDelete) -> None:
        name = without_line_ends(method.exchange)
        self._check_not_default(name)
        if name.startswith(RESERVED_PREFIX):
            raise access_refused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        self._context.require(Right.CONFIGURE, "exchange", name)
        try:
            await self._host.exchanges.delete(name, if_unused=method.if_unused)
        except Refused as refused:
            raise fault_of(refused) from refused
        self._context.answer(channel, m.ExchangeDeleteOk(), nowait=method.nowait)

    async def _bind(self, channel: Channel, method: m.ExchangeBind) -> None:
        route = self._route(method)
        try:
            await self._host.exchanges.bind(route)
        except Refused as refused:
            raise fault_of(refused) from refused
        self._context.answer(channel, m.ExchangeBindOk(), nowait=method.nowait)

    async def _unbind(self, channel: Channel, method: m.ExchangeUnbind) -> None:
        route = self._route(method)
        try:
            await self._host.exchanges.unbind(route)
        except Refused as refused:
            raise fault_of(refused) from refused
        self._context.answer(channel, m.ExchangeUnbindOk(), nowait=method.nowait)

    def _route(self, method: m.ExchangeBind | m.ExchangeUnbind) -> RouteRow:
        source, destination = map(without_line_ends, (method.source, method.destination))
        for name in (source, destination):
            self._check_not_default(name)
        self._context.require(Right.WRITE, "exchange", destination)
        self._context.require(Right.READ, "exchange", source)
        self._find(source)
        self._find(destination)
        arguments = plain_table(method.arguments)
        return RouteRow(self._host.name, source, destination, True, method.key, arguments)

    def _find(self, name: str) -> ExchangeRow:
        try:
            return self._host.exchanges.find(name)
        except Refused:
            raise not_found("exchange", name, self._host.name) from None

    def _check_not_default(self, name: str) -> None:
        if name == DEFAULT_EXCHANGE:
            raise access_refused("operation not permitted on the default exchange")


def _text(field: Field | None) -> str:
    return field.value.decode(errors="replace") if field is not None and field.tag == "S" else ""
