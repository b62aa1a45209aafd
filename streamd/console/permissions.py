"""Permissions: who may configure, write and read what; trying them, setting and clearing them."""

import json
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from streamd.console.administering import BAD_REQUEST, problem_of
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site
from streamd.hop.door import Session
from streamd.http_api.caller import visitor_of
from streamd.http_api.messages import part
from streamd.operations import users as u, virtual_hosts as v
from streamd.operations.declaration import Operation
from streamd.operations.errors import NoSuch, Refused
from streamd.operations.names import Name, as_sent
from streamd.operations.rights import Right, TagHolder

_ONE = "/permissions/{vhost}/{user}"
_SEE_OTHER = 303


class PermissionPages:
    """Permissions."""

    def __init__(self, site: Site) -> None:
        self._site, self._ask_engine = site, site.service.ask
        needs = TagHolder.require_administrator
        site.navigation.append(NavigationItem("Permissions", "/permissions"))
        self.routes = [
            site.page("/permissions", self._list),
            site.page("/set-permissions", self._choose, needs),
            site.page(_ONE, self._one, needs),
            site.action(f"{_ONE}/set", self._set, needs),
            site.action(f"{_ONE}/clear", self._clear, needs),
        ]

    async def _list(self, request: Request) -> Response:
        caller = visitor_of(request)
        whose = None if caller.is_administrator else caller.name
        rows = await self._ask_engine(request, u.ListPermissions(user=whose))
        columns: list[Column[u.Permission]] = [
            Column("user", "User", lambda row: (row.user, row.vhost)),
            Column("vhost", "Virtual host", lambda row: (row.vhost, row.user)),
        ]
        listing = await list_items(request, rows, columns, lambda row: f"{row.user} {row.vhost}")
        return await self._site.show(
            request,
            "permissions.html",
            listing=listing,
            is_administrator=caller.is_administrator,
            hosts=await self._host_names(request)
            if caller.is_administrator
            else [row.vhost for row in rows],
            asked={key: request.query_params.get(key, "") for key in ("user", "vhost", "name")},
            answer=await self._tried(request, caller) if "name" in request.query_params else None,
        )

    async def _host_names(self, request: Request) -> list[Name]:
        return [host.name for host in await self._ask_engine(request, v.ListVirtualHosts())]

    async def _tried(self, request: Request, caller: Session) -> dict[str, object]:
        """What a user may do with a name; others than administrators may ask for themselves."""
        user = request.query_params.get("user", "") if caller.is_administrator else caller.name
        host, name = (as_sent(request.query_params.get(key, "")) for key in ("vhost", "name"))
        try:
            asked = u.TryPermission(user=as_sent(user), vhost=host, name=name)
            trial = await self._ask_engine(request, asked)
        except NoSuch as error:
            return {"problem": error.details}
        shown = {"problem": "", "user": user, "vhost": host, "name": name}
        return shown | msgspec.structs.asdict(trial)

    async def _choose(self, request: Request) -> Response:
        """Which permissions are to be set; if that is said already, the page that sets them."""
        user, host = (as_sent(request.query_params.get(key, "")) for key in ("user", "vhost"))
        problem = ""
        users = [row.name for row in await self._ask_engine(request, u.ListUsers())]
        hosts = await self._host_names(request)
        if user and user not in users:
            problem = f"there is no user {user}"
        elif host and host not in hosts:
            problem = f"there is no virtual host {host}"
        elif user and host:
            address = self._site.url("permissions", host, user)
            return Response(status_code=_SEE_OTHER, headers={"location": address})
        return await self._site.show(
            request,
            "choose_permissions.html",
            BAD_REQUEST if problem else 200,
            user=user,
            vhost=host,
            users=users,
            hosts=hosts,
            problem=problem,
        )

    # -- one

    async def _one(self, request: Request) -> Response:
        return await self._show(request)

    async def _show(
        self, request: Request, typed: dict[str, str] | None = None, problem: str = ""
    ) -> Response:
        user, host = part(request, "user"), part(request, "vhost")
        rows = await self._ask_engine(request, u.ListPermissions(user=user, vhost=host))
        row = rows[0] if rows else None
        return await self._site.show(
            request,
            "permission.html",
            BAD_REQUEST if problem else 200,
            user=user,
            vhost=host,
            row=row,
            was=json.dumps(row.patterns if row is not None else ()),
            values=typed if typed is not None else msgspec.structs.asdict(row) if row else {},
            problem=problem,
        )

    async def _set(self, request: Request, form: Form) -> Response:
        patterns = {_verb(right): form.text(_verb(right)) for right in Right}
        notice = "The permissions of {} in {} are set."
        return await self._change(request, u.PutPermission, form, notice, **patterns)

    async def _clear(self, request: Request, form: Form) -> Response:
        notice = "The user {} may do nothing in {} any more."
        return await self._change(request, u.ClearPermission, form, notice)

    async def _change(
        self,
        request: Request,
        kind: type[u.PutPermission] | type[u.ClearPermission],
        form: Form,
        notice: str,
        **patterns: str,
    ) -> Response:
        """Change what the form has shown, unless somebody else has changed it since."""
        user, host = part(request, "user"), part(request, "vhost")
        try:
            was = msgspec.json.decode(form.raw("was"), type=tuple[str, ...])
        except msgspec.DecodeError:
            was = ("",)  # no permission is like that
        try:
            asked: Operation[Any] = kind(user=user, vhost=host, was=was, **patterns)
            await self._ask_engine(request, asked)
        except NoSuch:
            raise
        except Refused as error:
            return await self._show(request, form.values() if patterns else None, problem_of(error))
        return self._site.go(request, self._site.url("users", user), notice.format(user, host))


def _verb(right: Right) -> str:
    return right.name.lower()
