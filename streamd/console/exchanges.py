"""Exchanges and bindings: where messages go that programs publish over AMQP."""

import json
from functools import partial
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from segments.words import plural
from streamd.auth.users import Rights
from streamd.broker.virtual_host import VirtualHost
from streamd.console.administering import (
    BAD_REQUEST,
    Deletion,
    gone,
    host_named,
    hosts_chosen,
    hosts_seen,
    problem_of,
)
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site
from streamd.http_api.bindings import bind, bindings_of, check_ends, find_binding, properties_key
from streamd.http_api.caller import caller_of
from streamd.http_api.exchanges import (
    DEFAULT_IN_PATHS,
    check_declare,
    create_exchange,
    exchange_part,
    is_built_in,
)
from streamd.http_api.messages import BadRequest, NotFound, Row
from streamd.http_api.queues import host_of
from streamd.net.turns import in_turns
from streamd.operations.errors import Refused
from streamd.operations.names import Name, as_sent
from streamd.operations.rights import Right
from streamd.operations.routing import (
    ALTERNATE,
    DEFAULT_EXCHANGE,
    SUPER_STREAM,
    Binding,
    ExchangeRow,
    ExchangeType,
)

_ONE = "/exchanges/{vhost}/{name}"
_EXCHANGES_A_TURN = 50
_STREAM, _EXCHANGE = "stream", "exchange"
# What each type does with a message.
TYPES = (
    (ExchangeType.DIRECT, "to what is bound with the same routing key"),
    (ExchangeType.FANOUT, "to everything that is bound"),
    (ExchangeType.TOPIC, "by patterns: * is a word, # any number of words"),
    (ExchangeType.HEADERS, "by headers"),
)


class Item(NamedTuple):
    """An exchange in the list.

    Attributes:
        num_bindings: that begin at it.
    """

    row: ExchangeRow
    num_bindings: int


class ExchangePages:
    """Exchanges and bindings."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._hosts = site.service.broker.virtual_hosts
        site.navigation.append(NavigationItem("Exchanges", "/exchanges"))
        self.routes = [
            site.page("/exchanges", self._list),
            site.page("/bindings", self._list_bindings),
            site.page("/create-exchange", self._ask),
            site.action("/create-exchange", self._create),
            site.page(_ONE, self._one),
            site.action(f"{_ONE}/bind", self._bind),
            site.action(f"{_ONE}/unbind", self._unbind),
            site.page(f"{_ONE}/delete", self._ask_delete),
            site.action(f"{_ONE}/delete", self._delete),
        ]

    async def _list(self, request: Request) -> Response:
        hosts, chosen = hosts_chosen(self._hosts, request)
        found = [(host, row) for host in chosen for row in host.exchanges.rows()]
        items = [
            Item(row, len(host.exchanges.bindings_from(row.name)))
            async for host, row in in_turns(found, _EXCHANGES_A_TURN)
        ]
        columns: list[Column[Item]] = [
            Column("name", "Name", _order),
            Column("type", "Type", lambda item: (item.row.type, item.row.name)),
            Column("about", "Properties"),
            Column("alternate", "Alternate", lambda item: item.row.alternate),
            Column("bindings", "Bindings", lambda item: item.num_bindings, is_number=True),
        ]
        if len(hosts) > 1:
            columns.insert(1, Column("vhost", "Virtual host", lambda i: i.row.virtual_host))
        listing = await list_items(request, items, columns, lambda i: i.row.name, ["vhost"])
        return await self._site.show(
            request,
            "exchanges.html",
            listing=listing,
            hosts=[host.name for host in hosts],
            chosen=request.query_params.get("vhost", ""),
            in_path=in_path,
        )

    async def _list_bindings(self, request: Request) -> Response:
        hosts, chosen = hosts_chosen(self._hosts, request)
        bindings = [binding for host in chosen for binding in await bindings_of(host)]
        declared = [binding for binding in bindings if binding.source != DEFAULT_EXCHANGE]
        columns: list[Column[Binding]] = [
            Column("source", "From", lambda b: (b.source, b.destination, b.key)),
            Column("destination", "To", lambda b: (b.destination, b.source, b.key)),
            Column("key", "Routing key", lambda b: b.key),
            Column("arguments", "Arguments"),
        ]
        if len(hosts) > 1:
            columns.insert(0, Column("vhost", "Virtual host", lambda b: b.virtual_host))
        listing = await list_items(request, declared, columns, _searched, ["vhost"])
        return await self._site.show(
            request,
            "bindings.html",
            listing=listing,
            hosts=[host.name for host in hosts],
            chosen=request.query_params.get("vhost", ""),
            in_path=in_path,
        )

    # -- creating

    async def _ask(self, request: Request) -> Response:
        values = {"vhost": request.query_params.get("vhost", "/"), "durable": "1"}
        return await self._show_form(request, values)

    async def _show_form(
        self, request: Request, values: dict[str, str], problem: str = ""
    ) -> Response:
        return await self._site.show(
            request,
            "create_exchange.html",
            BAD_REQUEST if problem else 200,
            values=values,
            hosts=[host.name for host in hosts_seen(self._hosts, caller_of(request))],
            types=TYPES,
            problem=problem,
        )

    async def _create(self, request: Request, form: Form) -> Response:
        caller, name = caller_of(request), form.name("name")
        host = host_named(self._hosts, caller, form.name("vhost"))
        alternate = form.name("alternate")
        check = partial(check_declare, caller.rights(host.name), name, alternate)
        check()
        arguments: Row = {SUPER_STREAM: False}  # there is a form of their own for those
        if alternate:
            arguments[ALTERNATE] = alternate
        body: Row = {
            "type": form.text("type"),
            "durable": form.has("durable"),
            "auto_delete": form.has("auto_delete"),
            "internal": form.has("internal"),
            "arguments": arguments,
        }
        problem = f"there is an exchange {name} already, with the same properties"
        try:
            if await create_exchange(host, name, body, check):
                address = self._site.url("exchanges", host.name, in_path(name))
                return self._site.go(request, address, f"The exchange {name} was created.")
        except (Refused, BadRequest) as error:
            problem = problem_of(error)
        return await self._show_form(request, form.values(), problem)

    # -- one

    def _find(self, request: Request) -> tuple[VirtualHost, ExchangeRow]:
        host, name = host_of(self._hosts, request), exchange_part(request, "name")
        if not host.exchanges.has(name):
            raise gone("exchange", name)
        return host, host.exchanges.find(name)

    async def _one(self, request: Request) -> Response:
        return await self._show(request, {})

    async def _show(self, request: Request, values: dict[str, str], problem: str = "") -> Response:
        host, row = self._find(request)
        rights = caller_of(request).rights(host.name)
        columns: list[Column[Binding]] = [
            Column("destination", "To", lambda b: (b.destination, b.key)),
            Column("key", "Routing key", lambda b: (b.key, b.destination)),
            Column("arguments", "Arguments"),
        ]
        may_read = rights.allows(Right.READ, row.name) and row.name != DEFAULT_EXCHANGE
        if may_read:
            columns.append(Column("unbind", "Remove"))
        listing = await list_items(
            request, host.exchanges.bindings_from(row.name), columns, _searched
        )
        leading: list[Binding] = []
        if row.name != DEFAULT_EXCHANGE:
            leading = await bindings_of(host, lambda b: b.to_exchange and b.destination == row.name)
        return await self._site.show(
            request,
            "exchange.html",
            BAD_REQUEST if problem else 200,
            vhost=host.name,
            row=row,
            listing=listing,
            leading=leading,
            in_path=in_path,
            properties_key=properties_key,
            may_unbind={b.destination: _may_write(rights, b) for b in listing.items},
            may_bind=may_read,
            may_delete=rights.allows(Right.CONFIGURE, row.name) and not is_built_in(row.name),
            what=dict(TYPES)[ExchangeType(row.type)],
            values=values,
            problem=problem,
        )

    def _ends(self, host: VirtualHost, row: ExchangeRow, form: Form) -> Binding:
        to_exchange = form.text("kind") == _EXCHANGE
        destination = form.name("destination")
        return Binding(host.name, row.name, destination, to_exchange, "", {})

    async def _bind(self, request: Request, form: Form) -> Response:
        host, row = self._find(request)
        ends = self._ends(host, row, form)
        check = partial(check_ends, caller_of(request).rights(host.name), ends)
        check()
        try:
            body = {"routing_key": form.raw("key"), "arguments": _arguments(form)}
            _, is_new = await bind(host, ends, body, check)
        except (Refused, BadRequest) as error:
            if not host.exchanges.has(row.name):
                raise gone("exchange", row.name) from None
            return await self._show(request, form.values(), problem_of(error))
        notice = f"{ends.destination} is bound to {row.name}{'' if is_new else ' already'}."
        return self._back(request, host, row.name, notice)

    async def _unbind(self, request: Request, form: Form) -> Response:
        host, row = self._find(request)
        ends = self._ends(host, row, form)
        check = partial(check_ends, caller_of(request).rights(host.name), ends)
        check()
        try:
            binding = await find_binding(host, ends, form.raw("binding"))
        except NotFound:
            raise gone("binding to", ends.destination) from None
        await host.exchanges.unbind(binding, check)
        notice = f"{ends.destination} is no longer bound to {row.name} in that way."
        return self._back(request, host, row.name, notice)

    def _back(self, request: Request, host: VirtualHost, name: Name, notice: str) -> Response:
        """To the exchange, or to all of them: one that is auto-delete may be gone now."""
        url = self._site.url
        there = host.exchanges.has(name)
        address = url("exchanges", host.name, in_path(name)) if there else url("exchanges")
        return self._site.go(request, address, notice)

    # -- deleting

    def _deletion(self, request: Request) -> tuple[VirtualHost, ExchangeRow, Deletion]:
        host, row = self._find(request)
        caller_of(request).rights(host.name).require(Right.CONFIGURE, row.name)
        count = len(host.exchanges.bindings_from(row.name))
        consequences = [
            "Messages that are published to it are refused from then on.",
            f"{plural(count, 'binding')} from it go with it; what they lead to stays."
            if count
            else "Nothing is bound to it.",
        ]
        if row.is_super_stream:
            consequences.append(
                "It is a super stream, which ends, too; its partitions stay. To delete them with "
                "it, use the page of the super stream."
            )
        url = self._site.url
        address = ("exchanges", host.name, in_path(row.name))
        here, back = url(*address, "delete"), url(*address)
        then = url("exchanges")
        return host, row, Deletion("exchange", row.name, consequences, here, back, then)

    async def _ask_delete(self, request: Request) -> Response:
        *_, deletion = self._deletion(request)
        return await deletion.ask(self._site, request)

    async def _delete(self, request: Request, form: Form) -> Response:
        host, row, deletion = self._deletion(request)
        if not deletion.is_meant(form):
            return await deletion.ask(self._site, request, is_again=True)
        check = partial(caller_of(request).rights(host.name).require, Right.CONFIGURE, row.name)
        await host.exchanges.delete(row.name, check)
        return deletion.done(self._site, request)


def in_path(name: Name) -> Name:
    """The name of an exchange as a part of a path."""
    return as_sent(DEFAULT_IN_PATHS) if name == DEFAULT_EXCHANGE else name


def _order(item: Item) -> tuple[bool, Name, Name]:
    """Those that every virtual host has come last."""
    return is_built_in(item.row.name), item.row.name, item.row.virtual_host


def _may_write(rights: Rights, binding: Binding) -> bool:
    return rights.allows(Right.WRITE, binding.destination)


def _searched(binding: Binding) -> str:
    return f"{binding.source} {binding.destination} {binding.key}"


def _arguments(form: Form) -> Row:
    """The arguments of a binding that a form asks for.

    Raises:
        BadRequest: they are not a JSON object.
    """
    typed = form.text("arguments")
    if not typed:
        return {}
    try:
        found = json.loads(typed)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadRequest('the arguments are not a JSON object, as in {"region": "EU", "n": 1}')
    return found
