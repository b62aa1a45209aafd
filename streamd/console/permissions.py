"""Permissions: who may configure, write and read what; trying them, setting and clearing them."""

import json

from starlette.requests import Request
from starlette.responses import Response

from streamd.auth.users import Right, Rights
from streamd.broker.declared.names import Name, as_sent
from streamd.broker.declared.rows import PermissionRow
from streamd.broker.errors import NoSuch, Reason, Refused
from streamd.console.administering import BAD_REQUEST, gone, problem_of
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site
from streamd.console.users import permissions_of
from streamd.http_api.caller import Caller, caller_of
from streamd.http_api.messages import part

_ONE = "/permissions/{vhost}/{user}"
_SEE_OTHER = 303


class PermissionPages:
    """Permissions.

    Attributes:
        routes: for the paths of this class.
    """

    def __init__(self, site: Site) -> None:
        self._site, self._service = site, site.service
        self._directory = site.service.directory
        self._hosts = site.service.broker.virtual_hosts
        needs = Caller.require_administrator
        site.navigation.append(NavigationItem("Permissions", "/permissions"))
        self.routes = [
            site.page("/permissions", self._list),
            site.page("/set-permissions", self._choose, needs),
            site.page(_ONE, self._one, needs),
            site.action(f"{_ONE}/set", self._set, needs),
            site.action(f"{_ONE}/clear", self._clear, needs),
        ]

    async def _list(self, request: Request) -> Response:
        caller = caller_of(request)
        whose = None if caller.is_administrator else caller.name
        rows = permissions_of(self._directory.permissions(), user=whose)
        columns: list[Column[PermissionRow]] = [
            Column("user", "User", lambda row: (row.user, row.virtual_host)),
            Column("vhost", "Virtual host", lambda row: (row.virtual_host, row.user)),
        ]
        listing = await list_items(
            request, rows, columns, lambda row: f"{row.user} {row.virtual_host}"
        )
        return await self._site.show(
            request,
            "permissions.html",
            listing=listing,
            is_administrator=caller.is_administrator,
            hosts=sorted(self._hosts)
            if caller.is_administrator
            else [r.virtual_host for r in rows],
            asked={key: request.query_params.get(key, "") for key in ("user", "vhost", "name")},
            answer=self._tried(request, caller) if "name" in request.query_params else None,
        )

    def _tried(self, request: Request, caller: Caller) -> dict[str, object]:
        """What a user may do with a name; others than administrators may ask for themselves."""
        user = request.query_params.get("user", "") if caller.is_administrator else caller.name
        host, name = (as_sent(request.query_params.get(key, "")) for key in ("vhost", "name"))
        account = self._directory.account(as_sent(user))
        if account is None:
            return {"problem": f"there is no user {user}"}
        rights = Rights(self._directory, account, host)
        return {
            "problem": "",
            "user": user,
            "vhost": host,
            "name": name,
            "may_enter": rights.may_enter,
            "allowed": [_verb(right) for right in Right if rights.allows(right, name)],
            "refused": [_verb(right) for right in Right if not rights.allows(right, name)],
        }

    async def _choose(self, request: Request) -> Response:
        """Which permissions are to be set; if that is said already, the page that sets them."""
        user, host = (as_sent(request.query_params.get(key, "")) for key in ("user", "vhost"))
        problem = ""
        if user and self._directory.find_user(user) is None:
            problem = f"there is no user {user}"
        elif host and host not in self._hosts:
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
            users=[row.name for row in self._directory.users()],
            hosts=sorted(self._hosts),
            problem=problem,
        )

    # -- one

    def _find(self, request: Request) -> tuple[Name, Name]:
        """User and virtual host in the path.

        Raises:
            Refused: one of them does not exist.
        """
        user, host = part(request, "user"), part(request, "vhost")
        if self._directory.find_user(user) is None:
            raise gone("user", user)
        if host not in self._hosts:
            raise gone("virtual host", host)
        return user, host

    async def _one(self, request: Request) -> Response:
        return await self._show(request)

    async def _show(
        self, request: Request, typed: dict[str, str] | None = None, problem: str = ""
    ) -> Response:
        user, host = self._find(request)
        row = self._directory.permission(user, host)
        return await self._site.show(
            request,
            "permission.html",
            BAD_REQUEST if problem else 200,
            user=user,
            vhost=host,
            row=row,
            was=_state(row),
            values=typed if typed is not None else row._asdict() if row is not None else {},
            problem=problem,
        )

    def _check_same(self, request: Request, user: Name, host: Name, form: Form) -> None:
        """Raise Refused when somebody has changed the permissions since the form was shown."""
        caller_of(request).require_administrator()
        row = self._directory.permission(user, host)
        if self._directory.find_user(user) is not None and _state(row) != form.raw("was"):
            raise Refused(
                Reason.PRECONDITION_FAILED,
                f"somebody else has changed what {user} may do in {host} meanwhile, to "
                f"{_shown(row)}: nothing was changed",
            )

    async def _set(self, request: Request, form: Form) -> Response:
        user, host = self._find(request)
        row = PermissionRow(user, host, *(form.text(_verb(right)) for right in Right))
        try:
            await self._service.administration.put_permission(
                row, lambda: self._check_same(request, user, host, form)
            )
        except NoSuch:
            self._find(request)  # says which of them
            raise
        except Refused as error:
            return await self._show(request, form.values(), problem_of(error))
        notice = f"The permissions of {user} in {host} are set."
        return self._site.go(request, self._site.url("users", user), notice)

    async def _clear(self, request: Request, form: Form) -> Response:
        user, host = self._find(request)
        try:
            await self._directory.remove_permission(
                user, host, lambda: self._check_same(request, user, host, form)
            )
        except NoSuch:
            self._find(request)
            raise
        except Refused as error:
            return await self._show(request, None, problem_of(error))
        notice = f"The user {user} may do nothing in {host} any more."
        return self._site.go(request, self._site.url("users", user), notice)


def _verb(right: Right) -> str:
    return right.name.lower()


def _state(row: PermissionRow | None) -> str:
    """Permissions as a form brings them back, to see whether they are still the same."""
    return json.dumps(row[2:]) if row is not None else ""


def _shown(row: PermissionRow | None) -> str:
    if row is None:
        return "nothing at all"
    return ", ".join(f"{_verb(right)} {row[2 + right]!r}" for right in Right)
