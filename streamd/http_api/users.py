"""/api/users, permissions and vhosts."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamd.http_api.description import CREATED_OR_DONE, DONE, Operation, described
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
from streamd.http_api.overview import message_counts
from streamd.http_api.service import Service
from streamd.operations import users as u, virtual_hosts as v
from streamd.operations.names import Name
from streamd.operations.passwords import RABBITMQ_DEFAULT, algorithm_of, read_hash
from streamd.operations.server import NODE

_PERMISSION = "/api/permissions/{vhost}/{user}"


class UserPaths:
    """Users, their permissions, and virtual hosts."""

    TITLE = "Users and virtual hosts"

    def __init__(self, service: Service) -> None:
        self._ask = service.ask
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

    @described(Operation(rows="User", has_names=True, asks=u.ListUsers))
    async def _list(self, request: Request) -> Response:
        """Users."""
        users = await self._ask(request, u.ListUsers())
        return await listing(request, users, user_row, lambda user: user.name)

    @described(Operation(answer="User", asks=u.GetUser))
    async def _one(self, request: Request) -> Response:
        """A user."""
        return json_answer(user_row(await self._ask(request, u.GetUser(name=_user(request)))))

    @described(Operation(body="NewUser", statuses=CREATED_OR_DONE, asks=u.PutUser))
    async def _put(self, request: Request) -> Response:
        """Add a user, or change one.

        With neither a password nor a hash of one, no password is accepted.
        """
        body = await read_body(request)
        created = await self._ask(request, put_user(_user(request), body))
        return done(is_new=created.is_new)

    @described(Operation(statuses=DONE, asks=u.DeleteUser))
    async def _delete(self, request: Request) -> Response:
        """Delete a user."""
        await self._ask(request, u.DeleteUser(name=_user(request)))
        return done()

    # -- permissions

    @described(Operation(rows="Permission", asks=u.ListPermissions))
    async def _permissions(self, request: Request) -> Response:
        """All permissions, or those of the user or virtual host in the path."""
        user, host = (
            part(request, key) if key in request.path_params else None for key in ("user", "vhost")
        )
        rows = await self._ask(request, u.ListPermissions(user=user, vhost=host))
        return await listing(request, rows, permission_row)

    @described(Operation(answer="Permission", asks=u.ListPermissions))
    async def _permission(self, request: Request) -> Response:
        """The permissions of a user in a virtual host."""
        user, host = _user(request), part(request, "vhost")
        rows = await self._ask(request, u.ListPermissions(user=user, vhost=host))
        return json_answer(permission_row(found(next(iter(rows), None))))

    @described(Operation(body="NewPermission", statuses=CREATED_OR_DONE, asks=u.PutPermission))
    async def _put_permission(self, request: Request) -> Response:
        """Set the permissions of a user in a virtual host."""
        user, host = _user(request), part(request, "vhost")
        asked = put_permission(user, host, await read_body(request))
        return done(is_new=(await self._ask(request, asked)).is_new)

    @described(Operation(statuses=DONE, asks=u.ClearPermission))
    async def _delete_permission(self, request: Request) -> Response:
        """Take away the permissions of a user in a virtual host."""
        user, host = _user(request), part(request, "vhost")
        await self._ask(request, u.ClearPermission(user=user, vhost=host))
        return done()

    # -- virtual hosts

    @described(Operation(rows="VirtualHost", has_names=True, asks=v.ListVirtualHosts))
    async def _hosts(self, request: Request) -> Response:
        """Virtual hosts that the user may enter."""
        hosts = await self._ask(request, v.ListVirtualHosts())
        return await listing(request, hosts, _host_row, lambda host: host.name)

    @described(Operation(answer="VirtualHost", asks=v.GetVirtualHost))
    async def _host(self, request: Request) -> Response:
        """A virtual host."""
        host = await self._ask(request, v.GetVirtualHost(vhost=part(request, "vhost")))
        return json_answer(_host_row(host))

    @described(Operation(body="NewVirtualHost", statuses=CREATED_OR_DONE, asks=v.AddVirtualHost))
    async def _put_host(self, request: Request) -> Response:
        """Add a virtual host."""
        asked = v.AddVirtualHost(name=part(request, "vhost"))
        return done(is_new=(await self._ask(request, asked)).is_new)

    @described(Operation(statuses=DONE, asks=v.DeleteVirtualHost))
    async def _delete_host(self, request: Request) -> Response:
        """Delete a virtual host with all its streams."""
        await self._ask(request, v.DeleteVirtualHost(name=part(request, "vhost")))
        return done()


def _user(request: Request) -> Name:
    return part(request, "user")


def put_user(name: Name, body: Row) -> u.PutUser:
    """Add a user or change one, as definitions and requests describe it.

    Raises:
        BadRequest: tags are missing, or the password hash is invalid.
    """
    if "tags" not in body:
        raise BadRequest("tags_not_present")
    tags = tuple(texts(body, "tags"))
    if "password" in body:
        return u.PutUser(name=name, tags=tags, password=text(body, "password").encode())
    password_hash = ""  # as in RabbitMQ: no password is accepted
    if "password_hash" in body:
        algorithm = text(body, "hashing_algorithm", RABBITMQ_DEFAULT)
        try:
            password_hash = read_hash(algorithm, text(body, "password_hash"))
        except ValueError as error:
            raise BadRequest(str(error)) from error
    return u.PutUser(name=name, tags=tags, password_hash=password_hash)


def put_permission(user: Name, virtual_host: Name, body: Row) -> u.PutPermission:
    """Set a user's permissions, as definitions and requests describe them.

    Raises:
        BadRequest: a pattern is missing.
    """
    configure, write, read = (text(body, name) for name in ("configure", "write", "read"))
    return u.PutPermission(
        user=user, vhost=virtual_host, configure=configure, write=write, read=read
    )


def user_row(user: u.User) -> Row:
    """A user as definitions have it."""
    algorithm, password_hash = algorithm_of(user.password_hash)
    return {
        "name": user.name,
        "password_hash": password_hash,
        "hashing_algorithm": algorithm,
        "tags": list(user.tags),
        "limits": {},
    }


def permission_row(row: u.Permission) -> Row:
    """A user's permissions as definitions have them."""
    return msgspec.structs.asdict(row)


def _host_row(host: v.VirtualHost) -> Row:
    return {
        "name": host.name,
        "description": "",
        "tags": [],
        "metadata": {"description": "", "tags": [], "default_queue_type": "stream"},
        "default_queue_type": "stream",
        "cluster_state": {NODE: "running"},
        "tracing": False,
        **message_counts(host.messages),
    }
