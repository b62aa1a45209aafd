"""Super streams: their partitions, creating and deleting them."""

from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from segments.words import plural, whole_number
from streamd.broker.declared.checks import MAX_PARTITIONS
from streamd.broker.declared.partitions import SuperStreamRow, partitions_of
from streamd.broker.streams.log_figures import LogFigures
from streamd.broker.virtual_host import VirtualHost
from streamd.console.administering import (
    BAD_REQUEST,
    Deletion,
    gone,
    hosts_chosen,
    hosts_seen,
    problem_of,
)
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site
from streamd.console.stream_arguments import TITLES, given, groups
from streamd.http_api.caller import caller_of
from streamd.http_api.messages import BadRequest, part
from streamd.http_api.queues import host_of, know_all
from streamd.net.turns import in_turns
from streamd.operations import streams as s
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.operations.names import Name
from streamd.operations.rights import Right

_ONE = "/super-streams/{vhost}/{name}"
_SUPER_STREAMS_A_TURN = 5
_PARTITIONS = "3"  # where nothing else is typed


class Item(NamedTuple):
    """A super stream in the list.

    Attributes:
        num_messages, size: of all of them, as far as that is known.
    """

    row: SuperStreamRow
    num_messages: int
    size: int


class PartitionRow(NamedTuple):
    """A partition on the page of its super stream."""

    key: str
    stream: Name
    figures: LogFigures | None


class SuperStreamPages:
    """Super streams."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._hosts = site.service.broker.virtual_hosts
        self._ask_engine = site.service.ask
        site.navigation.append(NavigationItem("Super streams", "/super-streams"))
        self.routes = [
            site.page("/super-streams", self._list),
            site.page("/create-super-stream", self._ask),
            site.action("/create-super-stream", self._create),
            site.page(_ONE, self._one),
            site.page(f"{_ONE}/delete", self._ask_delete),
            site.action(f"{_ONE}/delete", self._delete),
        ]

    async def _list(self, request: Request) -> Response:
        hosts, chosen = hosts_chosen(self._hosts, request)
        items = [
            _item(host, row)
            for host in chosen
            async for row in in_turns(host.super_streams.rows(), _SUPER_STREAMS_A_TURN)
        ]
        columns: list[Column[Item]] = [
            Column("name", "Name", lambda item: (item.row.name, item.row.virtual_host)),
            Column("partitions", "Partitions", lambda i: len(i.row.partitions), is_number=True),
            Column("messages", "Messages", lambda item: item.num_messages, is_number=True),
            Column("size", "Size", lambda item: item.size, is_number=True),
        ]
        if len(hosts) > 1:
            columns.insert(1, Column("vhost", "Virtual host", lambda i: i.row.virtual_host))
        listing = await list_items(request, items, columns, lambda i: i.row.name, ["vhost"])
        return await self._site.show(
            request,
            "super_streams.html",
            listing=listing,
            hosts=[host.name for host in hosts],
            chosen=request.query_params.get("vhost", ""),
        )

    # -- creating

    async def _ask(self, request: Request) -> Response:
        values = {"vhost": request.query_params.get("vhost", "/"), "partitions": _PARTITIONS}
        return await self._show_form(request, values)

    async def _show_form(
        self, request: Request, values: dict[str, str], problem: str = ""
    ) -> Response:
        return await self._site.show(
            request,
            "create_super_stream.html",
            BAD_REQUEST if problem else 200,
            values=values,
            hosts=[host.name for host in hosts_seen(self._hosts, caller_of(request))],
            problem=problem,
            groups=list(groups(lambda _: True)),
            most=MAX_PARTITIONS,
        )

    async def _create(self, request: Request, form: Form) -> Response:
        vhost, name = form.name("vhost"), form.name("name")
        try:
            await self._ask_engine(request, _asked(vhost, name, form))
        except NoSuch:
            raise
        except (Refused, BadRequest) as error:
            problem = problem_of(error)
            if isinstance(error, Refused) and error.reason is Reason.ALREADY_EXISTS:
                problem = f"there is a stream or an exchange {error.details} already"
            return await self._show_form(request, form.values(), problem)
        address = self._site.url("super-streams", vhost, name)
        return self._site.go(request, address, f"The super stream {name} was created.")

    # -- one

    def _find(self, request: Request) -> tuple[VirtualHost, SuperStreamRow]:
        host, name = host_of(self._hosts, request), part(request, "name")
        if name not in host.super_streams:
            raise gone("super stream", name)
        return host, host.super_streams.find(name)

    async def _one(self, request: Request) -> Response:
        host, row = self._find(request)
        await know_all((host, name) for name in partitions_of(row))
        partitions = [_partition(host, p.key, p.stream) for p in row.partitions]
        known = [p.figures for p in partitions if p.figures is not None]
        rights = caller_of(request).rights(host.name)
        return await self._site.show(
            request,
            "super_stream.html",
            vhost=host.name,
            name=row.name,
            partitions=partitions,
            num_messages=sum(figures.num_messages for figures in known),
            size=sum(figures.size for figures in known),
            largest=max((figures.num_messages for figures in known), default=0),
            may_delete=rights.allows(Right.CONFIGURE, row.name),
        )

    # -- deleting

    def _deletion(self, request: Request) -> tuple[VirtualHost, SuperStreamRow, Deletion]:
        host, row = self._find(request)
        rights = caller_of(request).rights(host.name)
        rights.require_super_stream(row.name, partitions_of(row))
        item, url = _item(host, row), self._site.url
        many = len(row.partitions)
        consequences = [
            f"{plural(many, 'partition')} with {plural(item.num_messages, 'message')} go with it."
            if many
            else "It has no partitions."
        ]
        address = ("super-streams", host.name, row.name)
        here, back = url(*address, "delete"), url(*address)
        then = url("super-streams")
        return host, row, Deletion("super stream", row.name, consequences, here, back, then)

    async def _ask_delete(self, request: Request) -> Response:
        *_, deletion = self._deletion(request)
        return await deletion.ask(self._site, request)

    async def _delete(self, request: Request, form: Form) -> Response:
        host, row, deletion = self._deletion(request)
        if not deletion.is_meant(form):
            return await deletion.ask(self._site, request, is_again=True)
        try:
            asked = s.DeleteSuperStream(vhost=host.name, super_stream=row.name)
            await self._ask_engine(request, asked)
        except Refused as refused:
            if refused.reason is Reason.NOT_FOUND:
                raise gone("super stream", row.name) from None
            raise
        return deletion.done(self._site, request)


def _item(host: VirtualHost, row: SuperStreamRow) -> Item:
    figures = [_partition(host, p.key, p.stream).figures for p in row.partitions]
    known = [found for found in figures if found is not None]
    return Item(row, sum(f.num_messages for f in known), sum(f.size for f in known))


def _partition(host: VirtualHost, key: str, name: Name) -> PartitionRow:
    stream = host.get_stream(name)
    return PartitionRow(key, name, stream.figures if stream is not None else None)


def _asked(vhost: Name, name: Name, form: Form) -> s.CreateSuperStream:
    """The super stream that a form asks for.

    Raises:
        BadRequest: the number is none.
    """
    keys = tuple(key for line in form.raw("keys").split("\n") if (key := line.strip()))
    count = form.text("partitions")
    asked = s.CreateSuperStream(
        vhost=vhost, super_stream=name, keys=keys, arguments=given(form, TITLES)
    )
    if keys:
        return asked
    number = whole_number(count)
    if number is None:
        raise BadRequest(
            f"partitions is {count[:40]!r}, expected a number up to {MAX_PARTITIONS:,}"
        )
    return msgspec.structs.replace(asked, partitions=number)
