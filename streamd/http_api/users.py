"""/api/users, permissions and vhosts."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.auth.passwords import RABBITMQ_DEFAULT, algorithm_of, read_hash
from streamd.broker.declared.names import Name
from streamd.broker.declared.rows import PermissionRow, UserRow
from streamd.broker.virtual_host import VirtualHost
from streamd.http_api.caller import Caller, caller_of
from streamd.http_api.description import (
    ADMINISTRATOR,
    CREATED_OR_DONE,
    DONE,
    ENTER,
    Operation,
    described,
)
from streamd.http_api.messages import (
    BadRequest,
    Row,
    done,
    found,
    json_answer,
    listing,
    part,
    read_body,
    text,
    texts,
)
from streamd.http_api.overview import count_messages, message_counts
from streamd.http_api.service import NODE, Service

_PERMISSION = "/api/permissions/{vhost}/{user}"


class UserPaths:
    """Users, their permissions, and virtual hosts.

    Attributes:
        routes: for the paths of this class.
    """

    TITLE = "Users and virtual hosts"

    def __init__(self, service: Service) -> None:
        self._service = service
        self._directory = service.directory
        self.routes = [
            Route("/api/users", self._list),
            Route("/api/users/{user}", self._one),
            Route("/api/users/{user}", self._put, methods=["PUT"]),
            Route("/api/users/{user}", self._delete, methods=["DELETE"]),
            Route("/api/users/{user}/permissions", self._permissions),
            Route("/api/permissions", self._permissions),
            Route(_PERMISSION, self._permission),
            Route(_PERMISSION, self._put_permission, methods=["PUT"]),
            Route(_PERMISSION, self._delete_permission, methods=["DELETE"]),
            Route("/api/vhosts", self._hosts),
            Route("/api/vhosts/{vhost}", self._host),
            Route("/api/vhosts/{vhost}", self._put_host, methods=["PUT"]),
            Route("/api/vhosts/{vhost}", self._delete_host, methods=["DELETE"]),
            Route("/api/vhosts/{vhost}/permissions", self._permissions),
        ]

    # -- users

    @described(Operation(rows="User", has_names=True, needs=ADMINISTRATOR))
    async def _list(self, request: Request) -> Response:
        """Users."""
        caller_of(request).require_administrator()
        return await listing(request, self._directory.users(), user_row, lambda user: user.name)

    @described(Operation(answer="User", needs=ADMINISTRATOR))
    async def _one(self, request: Request) -> Response:
        """A user."""
        caller_of(request).require_administrator()
        return json_answer(user_row(found(self._directory.find_user(part(request, "user")))))

    @described(Operation(body="NewUser", statuses=CREATED_OR_DONE, needs=ADMINISTRATOR))
    async def _put(self, request: Request) -> Response:
        """Add a user, or change one.

        With neither a password nor a hash of one, no password is accepted.
        """
        caller = caller_of(request)
        caller.require_administrator()
        name = part(request, "user")
        is_new = await put_user(self._service, caller, name, await read_body(request))
        return done(is_new=is_new)

    @described(Operation(statuses=DONE, needs=ADMINISTRATOR))
    async def _delete(self, request: Request) -> Response:
        """Delete a user."""
        check = caller_of(request).require_administrator
        check()
        name = part(request, "user")
        found(self._directory.find_user(name))
        await self._service.directory.remove_user(name, check)
        return done()

    # -- permissions

    @described(Operation(rows="Permission", needs="the tag `administrator`, except for one's own"))
    async def _permissions(self, request: Request) -> Response:
        """All permissions, or those of the user or virtual host in the path."""
        caller = caller_of(request)
        user, host = (
            part(request, key) if key in request.path_params else None for key in ("user", "vhost")
        )
        if user != caller.name:
            caller.require_administrator()
        if user is not None:
            found(self._directory.find_user(user))
        if host is not None:
            found(self._service.broker.virtual_hosts.get(host))
        rows = [
            row
            for row in self._directory.permissions()
            if user in (None, row.user) and host in (None, row.virtual_host)
        ]
        return await listing(request, rows, permission_row)

    @described(Operation(answer="Permission", needs=ADMINISTRATOR))
    async def _permission(self, request: Request) -> Response:
        """The permissions of a user in a virtual host."""
        caller_of(request).require_administrator()
        row = self._directory.permission(part(request, "user"), part(request, "vhost"))
        return json_answer(permission_row(found(row)))

    @described(Operation(body="NewPermission", statuses=CREATED_OR_DONE, needs=ADMINISTRATOR))
    async def _put_permission(self, request: Request) -> Response:
        """Set the permissions of a user in a virtual host."""
        check = caller_of(request).require_administrator
        check()
        user, host = part(request, "user"), part(request, "vhost")
        found(self._directory.find_user(user))
        found(self._service.broker.virtual_hosts.get(host))
        row = read_permission(user, host, await read_body(request))
        is_new = await self._service.administration.put_permission(row, check)
        return done(is_new=is_new)

    @described(Operation(statuses=DONE, needs=ADMINISTRATOR))
    async def _delete_permission(self, request: Request) -> Response:
        """Take away the permissions of a user in a virtual host."""
        check = caller_of(request).require_administrator
        check()
        user, host = part(request, "user"), part(request, "vhost")
        found(self._directory.permission(user, host))
        await self._directory.remove_permission(user, host, check)
        return done()

    # -- virtual hosts

    @described(Operation(rows="VirtualHost", has_names=True))
    async def _hosts(self, request: Request) -> Response:
        """Virtual hosts that the user may enter."""
        caller = caller_of(request)
        hosts = self._service.broker.virtual_hosts
        visible = [hosts[name] for name in sorted(hosts) if caller.sees_host(name)]
        return await listing(request, visible, _host_row, lambda host: host.name)

    @described(Operation(answer="VirtualHost", needs=ENTER))
    async def _host(self, request: Request) -> Response:
        """A virtual host."""
        name = part(request, "vhost")
        caller_of(request).require_host(name)
        host = found(self._service.broker.virtual_hosts.get(name))
        return json_answer(_host_row(host))

    @described(Operation(body="NewVirtualHost", statuses=CREATED_OR_DONE, needs=ADMINISTRATOR))
    async def _put_host(self, request: Request) -> Response:
        """Add a virtual host."""
        caller = caller_of(request)
        caller.require_administrator()
        is_new = await put_host(self._service, caller, part(request, "vhost"))
        return done(is_new=is_new)

    @described(Operation(statuses=DONE, needs=ADMINISTRATOR))
    async def _delete_host(self, request: Request) -> Response:
        """Delete a virtual host with all its streams."""
        check = caller_of(request).require_administrator
        check()
        name = part(request, "vhost")
        found(self._service.broker.virtual_hosts.get(name))
        await self._service.administration.remove_virtual_host(name, check)
        return done()


async def put_host(service: Service, caller: Caller, name: Name) -> bool:
    """Add a virtual host unless it exists; returns whether it is new."""
    add = service.administration.add_virtual_host
    return await add(name, caller.name, caller.require_administrator)


async def put_user(service: Service, caller: Caller, name: Name, body: Row) -> bool:
    """Add a user or change one as definitions and requests describe it.

    Returns:
        Whether it is new.

    Raises:
        BadRequest: tags are missing, or the password hash is invalid.
        Refused: the name is bad, no administrator would be left, or the catalog cannot be written.
    """
    if "tags" not in body:
        raise BadRequest("tags_not_present")
    tags = texts(body, "tags")
    service.directory.check_tags(name, tags)
    password_hash = password = None
    if "password" in body:
        password = text(body, "password").encode()
    elif "password_hash" in body:
        algorithm = text(body, "hashing_algorithm", RABBITMQ_DEFAULT)
        try:
            password_hash = read_hash(algorithm, text(body, "password_hash"))
        except ValueError as error:
            raise BadRequest(str(error)) from error
    else:
        password_hash = ""  # as in RabbitMQ: no password is accepted
    check = caller.require_administrator
    return await service.directory.put_user(name, password, tags, password_hash, check)


def read_permission(user: Name, virtual_host: Name, body: Row) -> PermissionRow:
    """A user's permissions as definitions and requests describe them.

    Raises:
        BadRequest: a pattern is missing.
    """
    patterns = (text(body, name) for name in ("configure", "write", "read"))
    return PermissionRow(user, virtual_host, *patterns)


def user_row(user: UserRow) -> Row:
    """A user as definitions have it."""
    algorithm, password_hash = algorithm_of(user.password_hash)
    return {
        "name": user.name,
        "password_hash": password_hash,
        "hashing_algorithm": algorithm,
        "tags": list(user.tags),
        "limits": {},
    }


def permission_row(row: PermissionRow) -> Row:
    """A user's permissions as definitions have them."""
    return {
        "user": row.user,
        "vhost": row.virtual_host,
        "configure": row.configure,
        "write": row.write,
        "read": row.read,
    }


def _host_row(host: VirtualHost) -> Row:
    return {
        "name": host.name,
        "description": "",
        "tags": [],
        "metadata": {"description": "", "tags": [], "default_queue_type": "stream"},
        "default_queue_type": "stream",
        "cluster_state": {NODE: "running"},
        "tracing": False,
        **message_counts(count_messages(host)),
    }
