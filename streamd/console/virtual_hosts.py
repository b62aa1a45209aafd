"""Virtual hosts: what is in them, who may enter, creating and deleting them."""

from collections import Counter
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from streamd.broker.errors import NoSuch, Refused
from streamd.broker.steps import in_turns
from streamd.broker.virtual_host import VirtualHost
from streamd.console.administering import BAD_REQUEST, Deletion, gone, hosts_seen, problem_of
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site
from streamd.console.users import MOST_PERMISSIONS, permissions_of
from streamd.console.words import plural
from streamd.http_api.caller import Caller, caller_of
from streamd.http_api.messages import part
from streamd.http_api.overview import count_messages
from streamd.http_api.users import put_host

_ONE = "/vhosts/{vhost}"
_HOSTS_A_TURN = 1


class Item(NamedTuple):
    """A virtual host in the list.

    Attributes:
        host: which one.
        num_streams, num_messages: in it.
        num_users: that may enter.
    """

    host: VirtualHost
    num_streams: int
    num_messages: int
    num_users: int


class VirtualHostPages:
    """Virtual hosts.

    Attributes:
        routes: for the paths of this class.
    """

    def __init__(self, site: Site) -> None:
        self._site, self._service = site, site.service
        self._hosts = site.service.broker.virtual_hosts
        self._directory = site.service.directory
        needs = Caller.require_administrator
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
        caller = caller_of(request)
        users = Counter(row.virtual_host for row in self._directory.permissions())
        items = [
            self._item(host, users[host.name])
            async for host in in_turns(hosts_seen(self._hosts, caller), _HOSTS_A_TURN)
        ]
        columns: list[Column[Item]] = [
            Column("name", "Name", lambda item: item.host.name),
            Column("streams", "Streams", lambda item: item.num_streams, is_number=True),
            Column("messages", "Messages", lambda item: item.num_messages, is_number=True),
        ]
        if caller.is_administrator:
            columns.append(Column("users", "Users", lambda item: item.num_users, is_number=True))
        listing = await list_items(request, items, columns, lambda item: item.host.name)
        return await self._site.show(
            request, "vhosts.html", listing=listing, is_administrator=caller.is_administrator
        )

    def _item(self, host: VirtualHost, num_users: int) -> Item:
        return Item(host, len(host.names()), count_messages(host), num_users)

    # -- creating

    async def _ask(self, request: Request) -> Response:
        return await self._show_form(request, "")

    async def _show_form(self, request: Request, name: str, problem: str = "") -> Response:
        status = BAD_REQUEST if problem else 200
        return await self._site.show(
            request, "create_vhost.html", status, name=name, problem=problem
        )

    async def _create(self, request: Request, form: Form) -> Response:
        caller, name = caller_of(request), form.name("name")
        try:
            is_new = await put_host(self._service, caller, name)
        except Refused as error:
            return await self._show_form(request, name, problem_of(error))
        if not is_new:
            return await self._show_form(request, name, f"there is a virtual host {name} already")
        notice = f"The virtual host {name} was created. You may do everything in it."
        return self._site.go(request, self._site.url("vhosts", name), notice)

    # -- one

    def _find(self, request: Request) -> VirtualHost:
        name = part(request, "vhost")
        caller_of(request).require_host(name)
        host = self._hosts.get(name)
        if host is None:
            raise gone("virtual host", name)
        return host

    async def _one(self, request: Request) -> Response:
        caller, host = caller_of(request), self._find(request)
        whose = None if caller.is_administrator else caller.name
        permissions = permissions_of(self._directory.permissions(), whose, host.name)
        return await self._site.show(
            request,
            "vhost.html",
            host=host,
            item=self._item(host, len(permissions)),
            num_exchanges=host.exchanges.num_exchanges() + 1,
            num_super_streams=sum(row.is_super_stream for row in host.exchanges.rows()),
            num_connections=sum(c.virtual_host == host.name for c in self._service.connections),
            permissions=permissions[:MOST_PERMISSIONS],
            num_more=max(0, len(permissions) - MOST_PERMISSIONS),
            is_administrator=caller.is_administrator,
            sees_all=caller.sees_all,
        )

    # -- deleting

    def _deletion(self, request: Request) -> Deletion:
        host = self._find(request)
        item = self._item(host, 0)
        streams, messages = plural(item.num_streams, "stream"), plural(item.num_messages, "message")
        consequences = [
            f"{streams} with {messages} go with it." if item.num_streams else "It has no streams.",
            "Its exchanges and everybody's permissions in it go with it.",
        ]
        num_connections = sum(c.virtual_host == host.name for c in self._service.connections)
        if num_connections:
            consequences.append(f"{plural(num_connections, 'connection')} to it will be closed.")
        url = self._site.url
        here, back = url("vhosts", host.name, "delete"), url("vhosts", host.name)
        return Deletion("virtual host", host.name, consequences, here, back, url("vhosts"))

    async def _ask_delete(self, request: Request) -> Response:
        return await self._deletion(request).ask(self._site, request)

    async def _delete(self, request: Request, form: Form) -> Response:
        deletion, name = self._deletion(request), part(request, "vhost")
        if not deletion.is_meant(form):
            return await deletion.ask(self._site, request, is_again=True)
        check = caller_of(request).require_administrator
        try:
            await self._service.administration.remove_virtual_host(name, check)
        except NoSuch:
            raise gone("virtual host", name) from None
        return deletion.done(self._site, request)
