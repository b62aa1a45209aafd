"""Users: their tags, passwords and permissions."""

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response

from streamd.console.administering import BAD_REQUEST, Deletion, problem_of
from streamd.console.forms import Form
from streamd.console.listing import Column, list_items
from streamd.console.site import NavigationItem, Site
from streamd.http_api.caller import visitor_of
from streamd.http_api.messages import BadRequest, part, texts
from streamd.operations import users as u, virtual_hosts as v
from streamd.operations.errors import NoSuch, Refused
from streamd.operations.names import Name
from streamd.operations.rights import (
    ADMINISTRATOR,
    LOOPBACK_ONLY,
    MANAGEMENT,
    MONITORING,
    POLICYMAKER,
    TagHolder,
)

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


class UserPages:
    """Users."""

    def __init__(self, site: Site) -> None:
        self._site, self._ask_engine = site, site.service.ask
        needs = TagHolder.require_administrator
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
        users = await self._ask_engine(request, u.ListUsers())
        columns: list[Column[u.User]] = [
            Column("name", "Name", lambda user: user.name),
            Column("tags", "Tags", lambda user: (user.tags, user.name)),
            Column("login", "Password", lambda user: bool(user.password_hash)),
            Column("hosts", "Virtual hosts", lambda user: user.hosts, is_number=True),
            Column("connections", "Connections", lambda user: user.connections, is_number=True),
        ]
        listing = await list_items(request, users, columns, lambda user: user.name)
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
        name = form.name("name")
        try:
            user = u.PutUser(name=name, password=_password(form), tags=_tags(form), is_new=True)
            await self._ask_engine(request, user)
        except (Refused, BadRequest) as error:
            problem = problem_of(error)
            return await self._show_form(request, form.values(), form.texts("tag"), problem)
        notice = f"The user {name} was created. It may do nothing yet: give it permissions."
        return self._site.go(request, self._site.url("users", name), notice)

    # -- one

    async def _one(self, request: Request) -> Response:
        return await self._show(request)

    async def _show(self, request: Request, problem: str = "") -> Response:
        row = await self._ask_engine(request, u.GetUser(name=part(request, "user")))
        hosts = await self._ask_engine(request, v.ListVirtualHosts())
        permissions = await self._ask_engine(request, u.ListPermissions(user=row.name))
        entered = {permission.vhost for permission in permissions}
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
            hosts_without=[host.name for host in hosts if host.name not in entered],
            is_self=visitor_of(request).name == row.name,
            is_local_only=row.name == LOOPBACK_ONLY,
        )

    async def _after(self, request: Request, name: Name, notice: str) -> Response:
        """Back to a user's page; elsewhere if whoever changed it may not see that any more."""
        visitor = visitor_of(request)
        await visitor.look()  # it may be the user itself whose tags these were
        is_still = visitor.is_administrator
        address = self._site.url("users", name) if is_still else self._site.url()
        return self._site.go(request, address, notice)

    async def _set_tags(self, request: Request, form: Form) -> Response:
        name, tags = part(request, "user"), _tags(form)
        shown = tuple(form.texts("was"))
        try:
            user = u.PutUser(name=name, tags=tags, is_new=False, was=shown)
            await self._ask_engine(request, user)
        except NoSuch:
            raise
        except Refused as error:
            return await self._show(request, problem_of(error))
        return await self._after(request, name, f"The tags of {name} are {_listed(tags)} now.")

    async def _set_password(self, request: Request, form: Form) -> Response:
        name = part(request, "user")
        try:
            password = _password(form)
            user = u.PutUser(name=name, password=password, is_new=False)
            await self._ask_engine(request, user)
        except NoSuch:
            raise
        except (Refused, BadRequest) as error:
            return await self._show(request, problem_of(error))
        notice = f"The password of {name} was changed." if password else _NO_PASSWORD
        return await self._after(request, name, notice.format(name))

    # -- deleting

    async def _deletion(self, request: Request) -> Deletion:
        row = await self._ask_engine(request, u.GetUser(name=part(request, "user")))
        consequences = ["Its permissions go with it, and its connections are closed."]
        if visitor_of(request).name == row.name:
            consequences.insert(0, "This is you: you will be logged out.")
        url = self._site.url
        here, back = url("users", row.name, "delete"), url("users", row.name)
        return Deletion("user", row.name, consequences, here, back, url("users"))

    async def _ask_delete(self, request: Request) -> Response:
        return await (await self._deletion(request)).ask(self._site, request)

    async def _delete(self, request: Request, form: Form) -> Response:
        deletion, name = await self._deletion(request), part(request, "user")
        if not deletion.is_meant(form):
            return await deletion.ask(self._site, request, is_again=True)
        await self._ask_engine(request, u.DeleteUser(name=name))
        return deletion.done(self._site, request)


_NO_PASSWORD = "{} has no password now: nobody can log in as this user with one."  # noqa: S105


def _listed(tags: Iterable[str]) -> str:
    return ", ".join(sorted(tags)) or "none"


def _tags(form: Form) -> tuple[str, ...]:
    return tuple(sorted({*form.texts("tag"), *texts({"tags": form.text("others")}, "tags")}))


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
