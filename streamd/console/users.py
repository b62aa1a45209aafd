"""Users: their tags, passwords and permissions."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from streamd.auth.users import ADMINISTRATOR, LOOPBACK_ONLY, MONITORING
from streamd.broker.declared.names import Name
from streamd.broker.declared.rows import PermissionRow, UserRow
from streamd.broker.errors import NoSuch, Reason, Refused
from streamd.console.administering import BAD_REQUEST, Deletion, gone, problem_of
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site
from streamd.http_api.caller import MANAGEMENT, POLICYMAKER, Caller, caller_of
from streamd.http_api.messages import BadRequest, part, texts

_ONE = "/users/{user}"
MOST_PERMISSIONS = 100  # on the page of a user or a virtual host
# What each tag lets a user do here and over HTTP.
TAGS = (
    (MANAGEMENT, "logs in here and over HTTP; sees its virtual hosts and its own connections"),
    (POLICYMAKER, "the same; it is there for programs that know RabbitMQ"),
    (MONITORING, "sees everything, and the connections of others, too"),
    (ADMINISTRATOR, "sees everything; manages users, virtual hosts and permissions"),
)
_KNOWN_TAGS = tuple(tag for tag, _ in TAGS)


class Item(NamedTuple):
    """A user in the list.

    Attributes:
        row: the user.
        num_hosts: virtual hosts that it may enter.
        num_connections: that it has open.
    """

    row: UserRow
    num_hosts: int
    num_connections: int


class UserPages:
    """Users.

    Attributes:
        routes: for the paths of this class.
    """

    def __init__(self, site: Site) -> None:
        self._site, self._service = site, site.service
        self._directory = site.service.directory
        needs = Caller.require_administrator
        site.navigation.append(NavigationItem("Users", "/users", needs))
        self.routes = [
            site.page("/users", self._list, needs),
            site.page("/create-user", self._ask, needs),
            site.action("/create-user", self._create, needs),
            site.page(_ONE, self._one, needs),
            site.action(f"{_ONE}/tags", self._set_tags, needs),
            site.action(f"{_ONE}/password", self._set_password, needs),
            site.page(f"{_ONE}/delete", self._ask_delete, needs),
            site.action(f"{_ONE}/delete", self._delete, needs),
        ]

    async def _list(self, request: Request) -> Response:
        hosts = Counter(row.user for row in self._directory.permissions())
        connections = Counter(connection.user for connection in self._service.connections)
        items = [
            Item(row, hosts[row.name], connections[row.name]) for row in self._directory.users()
        ]
        columns: list[Column[Item]] = [
            Column("name", "Name", lambda item: item.row.name),
            Column("tags", "Tags", lambda item: (item.row.tags, item.row.name)),
            Column("login", "Password", lambda item: bool(item.row.password_hash)),
            Column("hosts", "Virtual hosts", lambda item: item.num_hosts, is_number=True),
            Column("connections", "Connections", lambda i: i.num_connections, is_number=True),
        ]
        listing = await list_items(request, items, columns, lambda item: item.row.name)
        return await self._site.show(request, "users.html", listing=listing)

    # -- creating

    async def _ask(self, request: Request) -> Response:
        return await self._show_form(request, {}, [MANAGEMENT])

    async def _show_form(
        self, request: Request, values: dict[str, str], chosen: Iterable[str], problem: str = ""
    ) -> Response:
        return await self._site.show(
            request,
            "create_user.html",
            BAD_REQUEST if problem else 200,
            values=values,
            tags=TAGS,
            chosen=chosen,
            problem=problem,
        )

    async def _create(self, request: Request, form: Form) -> Response:
        caller, name = caller_of(request), form.name("name")
        try:
            await self._directory.put_user(
                name,
                _password(form),
                _tags(form),
                check=caller.require_administrator,
                is_new=True,
            )
        except (Refused, BadRequest) as error:
            problem = problem_of(error)
            return await self._show_form(request, form.values(), form.texts("tag"), problem)
        notice = f"The user {name} was created. It may do nothing yet: give it permissions."
        return self._site.go(request, self._site.url("users", name), notice)

    # -- one

    def _find(self, request: Request) -> UserRow:
        name = part(request, "user")
        row = self._directory.find_user(name)
        if row is None:
            raise gone("user", name)
        return row

    async def _one(self, request: Request) -> Response:
        return await self._show(request, self._find(request))

    async def _show(self, request: Request, row: UserRow, problem: str = "") -> Response:
        hosts = sorted(self._service.broker.virtual_hosts)
        permissions = permissions_of(self._directory.permissions(), user=row.name)
        entered = {permission.virtual_host for permission in permissions}
        return await self._site.show(
            request,
            "user.html",
            BAD_REQUEST if problem else 200,
            user=row,
            problem=problem,
            tags=TAGS,
            others=", ".join(tag for tag in row.tags if tag not in _KNOWN_TAGS),
            permissions=permissions[:MOST_PERMISSIONS],
            num_more=max(0, len(permissions) - MOST_PERMISSIONS),
            hosts_without=[name for name in hosts if name not in entered],
            num_connections=sum(c.user == row.name for c in self._service.connections),
            is_self=caller_of(request).name == row.name,
            is_local_only=row.name == LOOPBACK_ONLY,
        )

    def _after(self, request: Request, name: Name, notice: str) -> Response:
        """Back to a user's page; elsewhere if whoever changed it may not see that any more."""
        is_still = caller_of(request).is_administrator
        address = self._site.url("users", name) if is_still else self._site.url()
        return self._site.go(request, address, notice)

    async def _set_tags(self, request: Request, form: Form) -> Response:
        row, check = self._find(request), caller_of(request).require_administrator
        shown = tuple(form.texts("was"))

        def check_same() -> None:
            check()
            now = self._directory.find_user(row.name)
            if now is not None and now.tags != shown:
                raise Refused(
                    Reason.PRECONDITION_FAILED,
                    f"somebody else has changed the tags meanwhile, to {_listed(now.tags)}: "
                    "nothing was changed",
                )

        try:
            tags = _tags(form)
            await self._directory.put_user(row.name, tags=tags, check=check_same, is_new=False)
        except NoSuch:
            raise gone("user", row.name) from None
        except (Refused, BadRequest) as error:
            problem = problem_of(error)
            return await self._show(request, self._find(request), problem)
        notice = f"The tags of {row.name} are {_listed(tags)} now."
        return self._after(request, row.name, notice)

    async def _set_password(self, request: Request, form: Form) -> Response:
        row, check = self._find(request), caller_of(request).require_administrator
        try:
            password = _password(form)
            await self._directory.put_user(row.name, password, check=check, is_new=False)
        except NoSuch:
            raise gone("user", row.name) from None
        except (Refused, BadRequest) as error:
            return await self._show(request, self._find(request), problem_of(error))
        notice = f"The password of {row.name} was changed." if password else _NO_PASSWORD
        return self._after(request, row.name, notice.format(row.name))

    # -- deleting

    def _deletion(self, request: Request) -> Deletion:
        row = self._find(request)
        consequences = ["Its permissions go with it, and its connections are closed."]
        if caller_of(request).name == row.name:
            consequences.insert(0, "This is you: you will be logged out.")
        url = self._site.url
        here, back = url("users", row.name, "delete"), url("users", row.name)
        return Deletion("user", row.name, consequences, here, back, url("users"))

    async def _ask_delete(self, request: Request) -> Response:
        return await self._deletion(request).ask(self._site, request)

    async def _delete(self, request: Request, form: Form) -> Response:
        deletion, name = self._deletion(request), part(request, "user")
        if not deletion.is_meant(form):
            return await deletion.ask(self._site, request, is_again=True)
        try:
            await self._directory.remove_user(name, caller_of(request).require_administrator)
        except NoSuch:
            raise gone("user", name) from None
        return deletion.done(self._site, request)


_NO_PASSWORD = "{} has no password now: nobody can log in as this user with one."  # noqa: S105


def permissions_of(
    rows: Iterable[PermissionRow], user: str | None = None, virtual_host: str | None = None
) -> list[PermissionRow]:
    """The permissions of a user, in a virtual host, or of all."""
    return [
        row for row in rows if user in (None, row.user) and virtual_host in (None, row.virtual_host)
    ]


def _listed(tags: Iterable[str]) -> str:
    return ", ".join(sorted(tags)) or "none"


def _tags(form: Form) -> list[str]:
    return sorted({*form.texts("tag"), *texts({"tags": form.text("others")}, "tags")})


def _password(form: Form) -> bytes:
    """The password that a form asks for; empty for none.

    Raises:
        BadRequest: the two fields differ, or none is given without saying that none is meant.
    """
    password = form.raw("password")
    if form.has("none"):
        if password:
            raise BadRequest("there is a password, and the box says that there is to be none")
        return b""
    if not password:
        raise BadRequest("the password is missing: type one, or tick the box")
    if password != form.raw("again"):
        raise BadRequest("the two passwords are not the same")
    return password.encode()
