"""Super streams: their partitions, creating and deleting them."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from segments.words import plural, whole_number
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
from streamd.console.stream_arguments import TITLES, given, groups
from streamd.http_api.messages import BadRequest, part
from streamd.operations import stream_views as v, streams as s
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.operations.names import Name
from streamd.operations.streams import MAX_PARTITIONS

_ONE = "/super-streams/{vhost}/{name}"
_PARTITIONS = "3"  # where nothing else is typed


class SuperStreamPages:
    """Super streams."""

    def __init__(self, site: Site) -> None:
        self._site = site
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
        hosts, chosen = await hosts_chosen(self._site, request)
        items = await self._ask_engine(request, v.ListSuperStreams(vhost=chosen))
        columns: list[Column[v.SuperStream]] = [
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
            hosts=hosts,
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
            hosts=await host_names(self._site, request),
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

    async def _find(self, request: Request, *, to_delete: bool = False) -> v.SuperStreamDetails:
        vhost, name = part(request, "vhost"), part(request, "name")
        asked = v.GetSuperStream(vhost=vhost, super_stream=name, to_delete=to_delete)
        return await self._ask_engine(request, asked)

    async def _one(self, request: Request) -> Response:
        found = await self._find(request)
        known = [figures for figures in found.figures if figures is not None]
        return await self._site.show(
            request,
            "super_stream.html",
            vhost=found.row.virtual_host,
            name=found.row.name,
            partitions=list(zip(found.row.partitions, found.figures, strict=True)),
            num_messages=sum(figures.num_messages for figures in known),
            size=sum(figures.size for figures in known),
            largest=max((figures.num_messages for figures in known), default=0),
            may_delete=found.may_delete,
        )

    # -- deleting

    async def _deletion(self, request: Request) -> tuple[v.SuperStreamDetails, Deletion]:
        found = await self._find(request, to_delete=True)
        row, url = found.row, self._site.url
        num_messages = sum(f.num_messages for f in found.figures if f is not None)
        many = len(row.partitions)
        consequences = [
            f"{plural(many, 'partition')} with {plural(num_messages, 'message')} go with it."
            if many
            else "It has no partitions."
        ]
        address = ("super-streams", row.virtual_host, row.name)
        here, back = url(*address, "delete"), url(*address)
        then = url("super-streams")
        return found, Deletion("super stream", row.name, consequences, here, back, then)

    async def _ask_delete(self, request: Request) -> Response:
        _, deletion = await self._deletion(request)
        return await deletion.ask(self._site, request)

    async def _delete(self, request: Request, form: Form) -> Response:
        found, deletion = await self._deletion(request)
        if not deletion.is_meant(form):
            return await deletion.ask(self._site, request, is_again=True)
        vhost, name = found.row.virtual_host, found.row.name
        try:
            await self._ask_engine(request, s.DeleteSuperStream(vhost=vhost, super_stream=name))
        except Refused as refused:
            if refused.reason is Reason.NOT_FOUND:
                raise gone("super stream", name) from None
            raise
        return deletion.done(self._site, request)


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
