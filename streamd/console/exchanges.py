"""Exchanges and bindings: where messages go that programs publish over AMQP."""

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from segments.words import plural
from streamd.console.administering import (
    BAD_REQUEST,
    Deletion,
    gone,
    host_names,
    hosts_chosen,
    problem_of,
)
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site
from streamd.http_api.bindings import binding_fields
from streamd.http_api.exchanges import DEFAULT_IN_PATHS, exchange_part, put_exchange
from streamd.http_api.messages import BadRequest, Row, part
from streamd.operations import routing as r
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.operations.names import Name, as_sent
from streamd.operations.routing import (
    ALTERNATE,
    DEFAULT_EXCHANGE,
    SUPER_STREAM,
    Binding,
    Exchange,
    ExchangeType,
    is_built_in,
    properties_key,
)

_ONE = "/exchanges/{vhost}/{name}"
_STREAM, _EXCHANGE = "stream", "exchange"
# What each type does with a message.
TYPES = (
    (ExchangeType.DIRECT, "to what is bound with the same routing key"),
    (ExchangeType.FANOUT, "to everything that is bound"),
    (ExchangeType.TOPIC, "by patterns: * is a word, # any number of words"),
    (ExchangeType.HEADERS, "by headers"),
)


class ExchangePages:
    """Exchanges and bindings."""

    def __init__(self, site: Site) -> None:
        self._site, self._ask_engine = site, site.service.ask
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
        hosts, chosen = await hosts_chosen(self._site, request)
        found = await self._ask_engine(request, r.ListExchanges(vhost=chosen))
        columns: list[Column[Exchange]] = [
            Column("name", "Name", _order),
            Column("type", "Type", lambda item: (item.row.type, item.row.name)),
            Column("about", "Properties"),
            Column("alternate", "Alternate", lambda item: item.row.alternate),
            Column("bindings", "Bindings", lambda item: item.bindings, is_number=True),
        ]
        if len(hosts) > 1:
            columns.insert(1, Column("vhost", "Virtual host", lambda i: i.row.virtual_host))
        listing = await list_items(request, found, columns, lambda i: i.row.name, ["vhost"])
        return await self._site.show(
            request,
            "exchanges.html",
            listing=listing,
            hosts=hosts,
            chosen=request.query_params.get("vhost", ""),
            in_path=in_path,
        )

    async def _list_bindings(self, request: Request) -> Response:
        hosts, chosen = await hosts_chosen(self._site, request)
        bindings = await self._ask_engine(request, r.ListBindings(vhost=chosen))
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
            hosts=hosts,
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
            hosts=await host_names(self._site, request),
            types=TYPES,
            problem=problem,
        )

    async def _create(self, request: Request, form: Form) -> Response:
        host, name = form.name("vhost"), form.name("name")
        alternate = form.name("alternate")
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
            created = await self._ask_engine(request, put_exchange(host, name, body))
            if created.is_new:
                address = self._site.url("exchanges", host, in_path(name))
                return self._site.go(request, address, f"The exchange {name} was created.")
        except (Refused, BadRequest) as error:
            problem = problem_of(error)
        return await self._show_form(request, form.values(), problem)

    # -- one

    async def _find(self, request: Request) -> r.ExchangeDetails:
        host, name = part(request, "vhost"), exchange_part(request, "name")
        try:
            return await self._ask_engine(request, r.GetExchange(vhost=host, exchange=name))
        except Refused as refused:
            if refused.reason is Reason.NOT_FOUND:
                raise gone("exchange", name) from None
            raise

    async def _one(self, request: Request) -> Response:
        return await self._show(request, {})

    async def _show(self, request: Request, values: dict[str, str], problem: str = "") -> Response:
        found = await self._find(request)
        row = found.row
        columns: list[Column[Binding]] = [
            Column("destination", "To", lambda b: (b.destination, b.key)),
            Column("key", "Routing key", lambda b: (b.key, b.destination)),
            Column("arguments", "Arguments"),
        ]
        if found.may_bind:
            columns.append(Column("unbind", "Remove"))
        asked = r.ListBindings(vhost=row.virtual_host, source=row.name)
        bindings = await self._ask_engine(request, asked)
        listing = await list_items(request, bindings, columns, _searched)
        ends = tuple({binding.destination for binding in listing.items})
        may_write = r.ListWritable(vhost=row.virtual_host, names=ends)
        writable = await self._ask_engine(request, may_write) if found.may_bind else []
        return await self._site.show(
            request,
            "exchange.html",
            BAD_REQUEST if problem else 200,
            vhost=row.virtual_host,
            row=row,
            listing=listing,
            leading=found.leading,
            num_leading=found.num_leading,
            in_path=in_path,
            properties_key=properties_key,
            may_unbind=dict.fromkeys(ends, False) | dict.fromkeys(writable, True),
            may_bind=found.may_bind,
            may_delete=found.may_delete,
            what=dict(TYPES)[ExchangeType(row.type)],
            values=values,
            problem=problem,
        )

    async def _bind(self, request: Request, form: Form) -> Response:
        await self._find(request)
        host, ends = part(request, "vhost"), self._ends(request, form)
        try:
            fields = binding_fields({"routing_key": form.raw("key"), "arguments": _arguments(form)})
            bound = await self._ask_engine(request, r.Bind(vhost=host, **ends, **fields))
        except (Refused, BadRequest) as error:
            problem = problem_of(error)
            return await self._show(request, form.values(), problem)
        already = "" if bound.is_new else " already"
        notice = f"{ends['destination']} is bound to {ends['source']}{already}."
        return await self._back(request, notice)

    def _ends(self, request: Request, form: Form) -> dict[str, Any]:
        return {
            "source": exchange_part(request, "name"),
            "destination": form.name("destination"),
            "to_exchange": form.text("kind") == _EXCHANGE,
        }

    async def _unbind(self, request: Request, form: Form) -> Response:
        await self._find(request)
        host, ends = part(request, "vhost"), self._ends(request, form)
        asked = r.Unbind(vhost=host, **ends, binding=form.raw("binding"))
        await self._ask_engine(request, asked)
        notice = f"{ends['destination']} is no longer bound to {ends['source']} in that way."
        return await self._back(request, notice)

    async def _back(self, request: Request, notice: str) -> Response:
        """To the exchange, or to all of them: one that is auto-delete may be gone now."""
        url, name = self._site.url, exchange_part(request, "name")
        try:
            await self._find(request)
        except NoSuch:
            return self._site.go(request, url("exchanges"), notice)
        address = url("exchanges", part(request, "vhost"), in_path(name))
        return self._site.go(request, address, notice)

    # -- deleting

    async def _deletion(self, request: Request) -> tuple[r.ExchangeRow, Deletion]:
        found = await self._find(request)
        row, count = found.row, found.bindings
        if not found.may_delete:
            details = f"you may not delete the exchange {row.name or '(default)'}"
            raise Refused(Reason.ACCESS_REFUSED, details)
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
        address = ("exchanges", row.virtual_host, in_path(row.name))
        here, back = url(*address, "delete"), url(*address)
        then = url("exchanges")
        return row, Deletion("exchange", row.name, consequences, here, back, then)

    async def _ask_delete(self, request: Request) -> Response:
        _, deletion = await self._deletion(request)
        return await deletion.ask(self._site, request)

    async def _delete(self, request: Request, form: Form) -> Response:
        row, deletion = await self._deletion(request)
        if not deletion.is_meant(form):
            return await deletion.ask(self._site, request, is_again=True)
        asked = r.DeleteExchange(vhost=row.virtual_host, exchange=row.name)
        await self._ask_engine(request, asked)
        return deletion.done(self._site, request)


def in_path(name: Name) -> Name:
    """The name of an exchange as a part of a path."""
    return as_sent(DEFAULT_IN_PATHS) if name == DEFAULT_EXCHANGE else name


def _order(item: Exchange) -> tuple[bool, Name, Name]:
    """Those that every virtual host has come last."""
    return is_built_in(item.row.name), item.row.name, item.row.virtual_host


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
