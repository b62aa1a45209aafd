"""The list of streams, creating one, and deleting one."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from streamd.auth.users import Right
from streamd.broker.errors import Reason, Refused
from streamd.broker.names import Name
from streamd.broker.virtual_host import VirtualHost
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site
from streamd.http_api.caller import caller_of
from streamd.http_api.messages import NotFound, part
from streamd.http_api.queues import host_of

_ONE = "/streams/{vhost}/{name}"


class StreamsPages:
    """The list of streams, creating one, and deleting one.

    Attributes:
        routes: for the paths of this class.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._hosts = site.service.broker.virtual_hosts
        site.navigation.append(NavigationItem("Streams", "/streams"))
        self.routes = [
            site.page("/streams", self._list),
            site.page("/create-stream", self._ask),
            site.action("/create-stream", self._create),
            site.page(_ONE, self._one),
            site.page(f"{_ONE}/delete", self._ask_delete),
            site.action(f"{_ONE}/delete", self._delete),
        ]

    def _visible(self, request: Request) -> list[VirtualHost]:
        caller = caller_of(request)
        return [self._hosts[name] for name in sorted(self._hosts) if caller.sees_host(name)]

    async def _list(self, request: Request) -> Response:
        hosts = self._visible(request)
        chosen = request.query_params.get("vhost", "")
        rows = [
            (host, name) for host in hosts if chosen in ("", host.name) for name in host.names()
        ]
        columns: list[Column[tuple[VirtualHost, Name]]] = [
            Column("name", "Name", lambda item: item[1]),
            Column("vhost", "Virtual host", lambda item: (item[0].name, item[1])),
        ]
        listing = await list_items(request, rows, columns, lambda item: item[1], ["vhost"])
        return await self._site.show(
            request, "streams.html", listing=listing, hosts=[h.name for h in hosts], chosen=chosen
        )

    # -- creating

    async def _ask(self, request: Request) -> Response:
        values = {"vhost": request.query_params.get("vhost", "/")}
        return await self._show_form(request, values)

    async def _show_form(
        self, request: Request, values: dict[str, str], problem: str = "", status: int = 200
    ) -> Response:
        hosts = [host.name for host in self._visible(request)]
        return await self._site.show(
            request, "create_stream.html", status, values=values, hosts=hosts, problem=problem
        )

    async def _create(self, request: Request, form: Form) -> Response:
        caller, name, host_name = caller_of(request), form.name("name"), form.name("vhost")
        caller.require_host(host_name)
        host = self._hosts.get(host_name)
        if host is None:
            raise NotFound
        check = partial(caller.rights(host_name).require, Right.CONFIGURE, name)
        try:
            await host.create(name, [], check)
        except Refused as refused:
            if refused.reason is Reason.ACCESS_REFUSED:
                raise
            problem = refused.details
            if refused.reason is Reason.ALREADY_EXISTS:
                problem = f"there is a stream {name} already, with the same arguments"
            return await self._show_form(request, form.values(), problem, 400)
        notice = f"The stream {name} was created."
        return self._site.go(request, self._site.url("streams", host_name, name), notice)

    # -- one

    def _found(self, request: Request) -> tuple[VirtualHost, Name]:
        host, name = host_of(self._hosts, request), part(request, "name")
        if not host.has_stream(name):
            raise NotFound
        return host, name

    async def _one(self, request: Request) -> Response:
        host, name = self._found(request)
        return await self._site.show(request, "stream.html", vhost=host.name, name=name)

    async def _ask_delete(self, request: Request) -> Response:
        host, name = self._found(request)
        return await self._site.show(
            request, "delete_stream.html", vhost=host.name, name=name, problem=""
        )

    async def _delete(self, request: Request, form: Form) -> Response:
        host, name = self._found(request)
        check = partial(caller_of(request).rights(host.name).require, Right.CONFIGURE, name)
        check()
        if form.raw("name") != name:
            problem = "the name is not that of the stream: nothing was deleted"
            return await self._site.show(
                request, "delete_stream.html", 400, vhost=host.name, name=name, problem=problem
            )
        await host.delete(name, lambda: None, check)
        return self._site.go(request, self._site.url("streams"), f"The stream {name} was deleted.")
