"""The list of streams, and creating one."""

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from segments.words import duration, size
from streamd.console.administering import host_names, hosts_chosen
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site
from streamd.console.stream_arguments import TITLES, given, groups
from streamd.operations import streams as s
from streamd.operations.argument_kinds import age_seconds
from streamd.operations.arguments import FILTER_PROPERTY, KEY_PROPERTIES, MAX_AGE, MAX_LENGTH
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.operations.stream_views import (
    DescribeStreams,
    ListStreams,
    StreamFigures,
    StreamSummary,
)

_BAD_REQUEST = 400
_FIRST = (MAX_AGE, MAX_LENGTH, KEY_PROPERTIES, FILTER_PROPERTY)  # what most want to say


class StreamsPages:
    """The list of streams, and creating one."""

    def __init__(self, site: Site) -> None:
        self._site, self._ask_engine = site, site.service.ask
        site.navigation.append(NavigationItem("Streams", "/streams"))
        self.routes = [
            site.page("/streams", self._list),
            site.page("/create-stream", self._ask),
            site.action("/create-stream", self._create),
        ]

    async def _list(self, request: Request) -> Response:
        hosts, chosen = await hosts_chosen(self._site, request)
        found = await self._ask_engine(request, ListStreams(vhost=chosen))
        columns = _columns(with_host=len(hosts) > 1)
        listing = await list_items(request, found, columns, lambda row: row.stream, ["vhost"])
        rows = await self._known(request, listing.items)
        return await self._site.show(
            request,
            "streams.html",
            listing=listing,
            rows=rows,
            hosts=hosts,
            chosen=request.query_params.get("vhost", ""),
        )

    async def _known(
        self, request: Request, rows: Sequence[StreamSummary]
    ) -> Sequence[StreamSummary]:
        """The same with the sizes that nobody has asked for since the start."""
        unknown = tuple((row.vhost, row.stream) for row in rows if row.messages < 0)
        if not unknown:
            return rows
        found = await self._ask_engine(request, DescribeStreams(streams=unknown))
        figures = {(one.vhost, one.stream): one.figures for one in found}
        return [_with_figures(row, figures.get((row.vhost, row.stream))) for row in rows]

    # -- creating

    async def _ask(self, request: Request) -> Response:
        values = {"vhost": request.query_params.get("vhost", "/")}
        return await self._show_form(request, values)

    async def _show_form(
        self, request: Request, values: dict[str, str], problem: str = "", status: int = 200
    ) -> Response:
        return await self._site.show(
            request,
            "create_stream.html",
            status,
            values=values,
            hosts=await host_names(self._site, request),
            problem=problem,
            groups=list(groups(lambda key: key not in _FIRST)),
            first=_FIRST,
            has_more=any(values.get(key) for key in TITLES if key not in _FIRST),
        )

    async def _create(self, request: Request, form: Form) -> Response:
        name, vhost = form.name("name"), form.name("vhost")
        arguments = given(form, TITLES)
        asked = s.CreateStream(vhost=vhost, stream=name, arguments=arguments)
        problem = f"there is a stream {name} already, with the same arguments"
        try:
            created = await self._ask_engine(request, asked)
        except Refused as refused:
            if refused.reason is Reason.ACCESS_REFUSED or isinstance(refused, NoSuch):
                raise
            return await self._show_form(request, form.values(), refused.details, _BAD_REQUEST)
        if not created.is_new:
            return await self._show_form(request, form.values(), problem, _BAD_REQUEST)
        notice = f"The stream {name} was created.{_kept(arguments)}"
        return self._site.go(request, self._site.url("streams", vhost, name), notice)


def _kept(arguments: Mapping[str, str]) -> str:
    """How long and how much is kept, as the server has understood it; empty for no limits."""
    limits = []
    if age := arguments.get(MAX_AGE):
        limits.append("for " + re.sub(r" 0 \w+$", "", duration(age_seconds(age))))
    if length := arguments.get(MAX_LENGTH):
        limits.append(f"up to {size(int(length))}")
    return f" It keeps messages {' and '.join(limits)}." if limits else ""


def _with_figures(row: StreamSummary, figures: StreamFigures | None) -> StreamSummary:
    if figures is None:
        return row
    return replace(
        row,
        messages=figures.num_messages,
        size=figures.size,
        last_ms=figures.last_timestamp_ms,
    )


def _columns(*, with_host: bool) -> list[Column[StreamSummary]]:
    columns: list[Column[StreamSummary]] = [
        Column("name", "Name", lambda row: (row.stream, row.vhost)),
        Column("messages", "Messages", lambda row: row.messages, is_number=True),
        Column("size", "Size", lambda row: row.size, is_number=True),
        Column("in", "Published/s", lambda row: row.messages_in, is_number=True),
        Column("out", "Delivered/s", lambda row: row.messages_out, is_number=True),
        Column("consumers", "Consumers", lambda row: row.consumers, is_number=True),
        Column("last", "Last message", lambda row: row.last_ms, is_number=True),
        Column("state", "State", lambda row: bool(row.trouble), is_number=True),
    ]
    if with_host:
        columns.insert(1, Column("vhost", "Virtual host", lambda row: (row.vhost, row.stream)))
    return columns
