"""Virtual hosts: what is in them, who may enter, creating and deleting them."""

from starlette.requests import Request
from starlette.responses import Response

from segments.words import plural
from streamd.console.administering import BAD_REQUEST, Deletion, problem_of
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site
from streamd.console.users import MOST_PERMISSIONS
from streamd.http_api.caller import visitor_of
from streamd.http_api.messages import part
from streamd.operations import users as u, virtual_hosts as v
from streamd.operations.errors import Refused
from streamd.operations.rights import TagHolder

_ONE = "/vhosts/{vhost}"


class VirtualHostPages:
    """Virtual hosts."""

    def __init__(self, site: Site) -> None:
        self._site, self._ask_engine = site, site.service.ask
        needs = TagHolder.require_administrator
        site.navigation.append(NavigationItem("Virtual hosts", "/vhosts"))
        self.routes = [
            site.page("/vhosts", self._list),
            site.page("/create-vhost", self._ask, needs),
            site.action("/create-vhost", self._create, needs),
            site.page(_ONE, self._one),
            site.page(f"{_ONE}/delete", self._ask_delete, needs),
            site.action(f"{_ONE}/delete", self._delete, needs),
        ]

    async def _list(self, request: Request) -> Response:
        caller = visitor_of(request)
        hosts = await self._ask_engine(request, v.ListVirtualHosts())
        columns: list[Column[v.VirtualHost]] = [
            Column("name", "Name", lambda host: host.name),
            Column("streams", "Streams", lambda host: host.streams, is_number=True),
            Column("messages", "Messages", lambda host: host.messages, is_number=True),
        ]
        if caller.is_administrator:
            columns.append(Column("users", "Users", lambda host: host.users or 0, is_number=True))
        listing = await list_items(request, hosts, columns, lambda host: host.name)
        return await self._site.show(
            request, "vhosts.html", listing=listing, is_administrator=caller.is_administrator
        )

    # -- creating

    async def _ask(self, request: Request) -> Response:
        return await self._show_form(request, "")

    async def _show_form(self, request: Request, name: str, problem: str = "") -> Response:
        status = BAD_REQUEST if problem else 200
        return await self._site.show(
            request, "create_vhost.html", status, name=name, problem=problem
        )

    async def _create(self, request: Request, form: Form) -> Response:
        name = form.name("name")
        try:
            await self._ask_engine(request, v.AddVirtualHost(name=name, is_new=True))
        except Refused as error:
            return await self._show_form(request, name, problem_of(error))
        notice = f"The virtual host {name} was created. You may do everything in it."
        return self._site.go(request, self._site.url("vhosts", name), notice)

    # -- one

    async def _find(self, request: Request) -> v.HostDetails:
        return await self._ask_engine(request, v.GetVirtualHost(vhost=part(request, "vhost")))

    async def _one(self, request: Request) -> Response:
        caller, host = visitor_of(request), await self._find(request)
        whose = None if caller.is_administrator else caller.name
        asked = u.ListPermissions(user=whose, vhost=host.name)
        permissions = await self._ask_engine(request, asked)
        return await self._site.show(
            request,
            "vhost.html",
            host=host,
            permissions=permissions[:MOST_PERMISSIONS],
            num_more=max(0, len(permissions) - MOST_PERMISSIONS),
            is_administrator=caller.is_administrator,
            sees_all=caller.sees_all,
        )

    # -- deleting

    async def _deletion(self, request: Request) -> Deletion:
        host = await self._find(request)
        streams, messages = plural(host.streams, "stream"), plural(host.messages, "message")
        consequences = [
            f"{streams} with {messages} go with it." if host.streams else "It has no streams.",
            "Its exchanges and everybody's permissions in it go with it.",
        ]
        if host.connections:
            consequences.append(f"{plural(host.connections, 'connection')} to it will be closed.")
        url = self._site.url
        here, back = url("vhosts", host.name, "delete"), url("vhosts", host.name)
        return Deletion("virtual host", host.name, consequences, here, back, url("vhosts"))

    async def _ask_delete(self, request: Request) -> Response:
        return await (await self._deletion(request)).ask(self._site, request)

    async def _delete(self, request: Request, form: Form) -> Response:
        deletion, name = await self._deletion(request), part(request, "vhost")
        if not deletion.is_meant(form):
            return await deletion.ask(self._site, request, is_again=True)
        await self._ask_engine(request, v.DeleteVirtualHost(name=name))
        return deletion.done(self._site, request)
