"""Exchanges and bindings, and declarations of many things at once."""

from functools import partial
from typing import Any

import msgspec

from streamd.broker.virtual_host import VirtualHost
from streamd.engine.caller import Caller
from streamd.engine.engine import Call, Handler, Handlers, Parts
from streamd.net.turns import in_turns
from streamd.operations import definitions as d, routing as r
from streamd.operations.declaration import Created
from streamd.operations.errors import NoSuch, Reason, Refused, ReservedName
from streamd.operations.names import Name
from streamd.operations.rights import Right

_SHOWN = 100  # bindings to an exchange


class Routing:
    """Exchanges and bindings.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.handlers: Handlers = {
            r.ListExchanges: self._list,
            r.GetExchange: self._get,
            r.PutExchange: self._put,
            r.DeleteExchange: self._delete,
            r.ListBindings: self._bindings,
            r.Bind: self._bind,
            r.Unbind: self._unbind,
            r.ListWritable: self._writable,
        }

    # -- exchanges

    async def _list(self, call: Call, request: r.ListExchanges) -> list[r.Exchange]:
        found = [
            (host, row)
            for host in hosts_seen(self._parts, call.caller, request.vhost)
            for row in host.topology.rows()
        ]
        return [
            r.Exchange(row, len(host.topology.bindings_from(row.name)))
            async for host, row in in_turns(found)
        ]

    async def _get(self, call: Call, request: r.GetExchange) -> r.ExchangeDetails:
        host, name = self._parts.host(request.vhost), request.exchange
        row = host.topology.find(name)
        leading: list[r.Binding] = []
        if name != r.DEFAULT_EXCHANGE:
            leading = await self._found(host, r.ListBindings(destination=name, to_exchange=True))
        rights = call.caller.rights(host.name)
        return r.ExchangeDetails(
            row,
            len(host.topology.bindings_from(name)),
            tuple(leading[:_SHOWN]),
            len(leading),
            rights.allows(Right.READ, name) and name != r.DEFAULT_EXCHANGE,
            rights.allows(Right.CONFIGURE, name) and not r.is_built_in(name),
        )

    async def _put(self, call: Call, request: r.PutExchange) -> Created:
        host = self._parts.host(request.vhost)
        row = r.ExchangeRow(
            host.name,
            request.exchange,
            request.type,
            request.is_durable,
            request.auto_delete,
            request.is_internal,
            request.alternate,
        )
        is_super_stream = request.is_super_stream
        if is_super_stream is None and not host.topology.has(request.exchange):
            is_super_stream = r.could_be_super_stream(row)
        check = partial(_check_alternate, call, request)
        check()
        return Created(await host.exchanges.declare(row, check, super_stream=is_super_stream))

    async def _delete(self, call: Call, request: r.DeleteExchange) -> None:
        host = self._parts.host(request.vhost)
        host.topology.find(request.exchange)
        await host.exchanges.delete(request.exchange, call.check, if_unused=request.if_unused)

    # -- bindings

    async def _bindings(self, call: Call, request: r.ListBindings) -> list[r.Binding]:
        hosts = hosts_seen(self._parts, call.caller, request.vhost)
        return [binding for host in hosts for binding in await self._found(host, request)]

    async def _found(self, host: VirtualHost, request: r.ListBindings) -> list[r.Binding]:
        topology, ends = host.topology, (request.destination, request.to_exchange)
        every = (row.name for row in topology.rows())
        names = every if request.source is None else [request.source]
        found: list[r.Binding] = []
        async for name in in_turns(names):
            bindings = topology.bindings_from(name)
            if request.destination is None and not request.kept:
                found += bindings
                continue
            found += [
                binding
                async for binding in in_turns(bindings)
                if request.destination is None or (binding.destination, binding.to_exchange) == ends
                if not request.kept or topology.is_kept(binding)
            ]
        return found

    async def _bind(self, call: Call, request: r.Bind) -> r.Bound:
        host, wanted = self._parts.host(request.vhost), _wanted(request)
        is_new = host.topology.binding(wanted) is None
        return r.Bound(is_new, await host.exchanges.bind(wanted, call.check))

    async def _unbind(self, call: Call, request: r.Unbind) -> None:
        host = self._parts.host(request.vhost)
        ends = request.source, request.destination, request.to_exchange
        found = host.topology.bindings_from(host.topology.find(request.source).name)
        binding = await r.binding_with([b for b in found if b[1:4] == ends], request.binding)
        if binding is None:
            raise NoSuch(f"there is no binding to {request.destination} with that key")
        await host.exchanges.unbind(binding, call.check)

    async def _writable(self, call: Call, request: r.ListWritable) -> list[Name]:
        rights = call.caller.rights(request.vhost)
        names = in_turns(request.names)
        return [name async for name in names if rights.allows(Right.WRITE, name)]


def hosts_seen(parts: Parts, caller: Caller, name: Name | None) -> list[VirtualHost]:
    """The virtual host of that name, or all that the caller may look into, by name.

    Raises:
        Refused: the caller may not look into it, or there is none.
    """
    if name is not None:
        caller.require_host(name)
        return [parts.host(name)]
    hosts = parts.broker.virtual_hosts
    return [hosts[found] for found in sorted(hosts) if caller.sees_host(found)]


def _check_alternate(call: Call, request: r.PutExchange) -> None:
    call.check()
    if request.alternate and not call.may_all:  # messages go on from here to there
        call.caller.require(Right.READ, request.vhost, request.exchange)
        call.caller.require(Right.WRITE, request.vhost, request.alternate)


def _wanted(request: r.Bind) -> r.Binding:
    return r.Binding(
        request.vhost,
        request.source,
        request.destination,
        request.to_exchange,
        request.key,
        request.arguments,
    )


class Definitions:
    """Declarations of many things at once.

    Args:
        handlers: of the operations that declare.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, handlers: Handlers) -> None:
        self._declaring = {kind.NAME: (kind, handlers[kind]) for kind in d.DECLARING}
        self.handlers: Handlers = {d.Declare: self._declare}

    async def _declare(self, call: Call, request: d.Declare) -> list[d.Outcome]:
        outcomes: list[d.Outcome] = []
        async for declaration in in_turns(request.declarations):
            found = self._declaring.get(declaration.operation)
            if found is None:
                details = f"{declaration.operation[:40]!r} declares nothing"
                raise Refused(Reason.PRECONDITION_FAILED, details)
            outcomes.append(await _outcome(call, *found, declaration.fields))
            if outcomes[-1].reason:
                break
        return outcomes


async def _outcome(call: Call, kind: type[Any], handler: Handler, fields: msgspec.Raw) -> d.Outcome:
    try:
        request = msgspec.msgpack.decode(fields, type=kind)
        created = await handler(call._replace(may_all=True), request)
    except msgspec.MsgspecError as error:
        return d.Outcome(is_new=False, reason=Reason.PRECONDITION_FAILED.name, details=str(error))
    except Refused as refused:
        is_reserved = isinstance(refused, ReservedName)
        if refused.reason is Reason.ACCESS_REFUSED and not is_reserved:
            raise  # not about this one: the caller may not do it any more
        return d.Outcome(is_new=False, reason=refused.reason.name, details=refused.details)
    return d.Outcome(created.is_new)
