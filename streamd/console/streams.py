"""The list of streams, and creating one."""

from collections import Counter
from functools import partial
from typing import NamedTuple, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from streamd.broker.streams.history import History, StreamMoment
from streamd.broker.streams.log_figures import LogFigures
from streamd.broker.virtual_host import VirtualHost
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site
from streamd.console.stream_arguments import TITLES, given, groups
from streamd.http_api.caller import caller_of
from streamd.http_api.connections import pairs_of
from streamd.http_api.overview import shown_trouble
from streamd.http_api.queues import know_all
from streamd.operations import streams as s
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.operations.names import Name

_BAD_REQUEST = 400
Readers: TypeAlias = Counter[tuple[str, str]]  # by virtual host and stream


class StreamRow(NamedTuple):
    """A stream in the list.

    Attributes:
        figures: its size; None while that is not known.
        now: messages and bytes a second; None when nothing has happened in it.
        num_consumers: that read it.
        trouble: why it takes no messages, or cannot be opened; empty while all is well.
        last_ms: when its last message was stored, 0 for never.
    """

    vhost: Name
    name: Name
    figures: LogFigures | None
    now: StreamMoment | None
    num_consumers: int
    trouble: str
    last_ms: int


class StreamsPages:
    """The list of streams, and creating one."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._service = site.service
        self._hosts = site.service.broker.virtual_hosts
        self._history: History = site.service.broker.history
        site.navigation.append(NavigationItem("Streams", "/streams"))
        self.routes = [
            site.page("/streams", self._list),
            site.page("/create-stream", self._ask),
            site.action("/create-stream", self._create),
        ]

    def _visible(self, request: Request) -> list[VirtualHost]:
        caller = caller_of(request)
        return [self._hosts[name] for name in sorted(self._hosts) if caller.sees_host(name)]

    async def _list(self, request: Request) -> Response:
        hosts = self._visible(request)
        chosen = request.query_params.get("vhost", "")
        items = [(h, name) for h in hosts if chosen in ("", h.name) for name in h.names()]
        readers: Readers = Counter()
        async for connection, facts in pairs_of(self._service.connections, lambda c: c.consumers()):
            readers[connection.virtual_host, facts.stream] += 1
        columns = self._columns(readers, with_host=len(hosts) > 1)
        listing = await list_items(request, items, columns, lambda item: item[1], ["vhost"])
        await know_all(listing.items)
        caller = caller_of(request)
        rows = [self._row(host, name, readers) for host, name in listing.items]
        return await self._site.show(
            request,
            "streams.html",
            listing=listing,
            rows=[
                row._replace(trouble=shown_trouble(caller, row.trouble)) if row.trouble else row
                for row in rows
                if row
            ],
            hosts=[host.name for host in hosts],
            chosen=chosen,
        )

    def _row(self, host: VirtualHost, name: Name, readers: Readers) -> StreamRow | None:
        stream = host.get_stream(name)
        if stream is None:  # deleted meanwhile
            return None
        figures = stream.figures
        return StreamRow(
            host.name,
            name,
            figures,
            self._history.latest(stream),
            readers[host.name, name],
            stream.alarm,
            figures.last_timestamp_ms if figures else 0,
        )

    def _columns(
        self, readers: Readers, *, with_host: bool
    ) -> list[Column[tuple[VirtualHost, Name]]]:
        def num_consumers(item: tuple[VirtualHost, Name]) -> int:
            return readers[item[0].name, item[1]]

        def figure(name: str) -> partial[int]:
            return partial(_figure, name)

        columns: list[Column[tuple[VirtualHost, Name]]] = [
            Column("name", "Name", lambda item: (item[1], item[0].name)),
            Column("messages", "Messages", figure("num_messages"), is_number=True),
            Column("size", "Size", figure("size"), is_number=True),
            Column("in", "Published", self._rate, is_number=True),
            Column("out", "Delivered", self._rate_out, is_number=True),
            Column("consumers", "Consumers", num_consumers, is_number=True),
            Column("last", "Last message", figure("last_timestamp_ms"), is_number=True),
            Column("state", "State", _trouble, is_number=True),
        ]
        if with_host:
            columns.insert(1, Column("vhost", "Virtual host", lambda item: (item[0].name, item[1])))
        return columns

    def _rate(self, item: tuple[VirtualHost, Name]) -> float:
        now = self._now(item)
        return now.messages_in if now else 0.0

    def _rate_out(self, item: tuple[VirtualHost, Name]) -> float:
        now = self._now(item)
        return now.messages_out if now else 0.0

    def _now(self, item: tuple[VirtualHost, Name]) -> StreamMoment | None:
        stream = item[0].get_stream(item[1])
        return None if stream is None else self._history.latest(stream)

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
            hosts=[host.name for host in self._visible(request)],
            problem=problem,
            groups=list(groups(lambda _: True)),
        )

    async def _create(self, request: Request, form: Form) -> Response:
        name, vhost = form.name("name"), form.name("vhost")
        asked = s.CreateStream(vhost=vhost, stream=name, arguments=given(form, TITLES))
        problem = f"there is a stream {name} already, with the same arguments"
        try:
            created = await self._service.ask(request, asked)
        except Refused as refused:
            if refused.reason is Reason.ACCESS_REFUSED or isinstance(refused, NoSuch):
                raise
            return await self._show_form(request, form.values(), refused.details, _BAD_REQUEST)
        if not created.is_new:
            return await self._show_form(request, form.values(), problem, _BAD_REQUEST)
        notice = f"The stream {name} was created."
        return self._site.go(request, self._site.url("streams", vhost, name), notice)


def _figure(name: str, item: tuple[VirtualHost, Name]) -> int:
    stream = item[0].get_stream(item[1])
    figures = stream.figures if stream is not None else None
    return -1 if figures is None else getattr(figures, name)


def _trouble(item: tuple[VirtualHost, Name]) -> bool:
    stream = item[0].get_stream(item[1])
    return stream is not None and bool(stream.alarm)
