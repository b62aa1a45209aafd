"""Users, permissions and virtual hosts."""

from collections import Counter
from collections.abc import Sequence

from streamd.auth.users import Rights
from streamd.broker.catalog.writer import Check
from streamd.broker.declared.rows import PermissionRow
from streamd.broker.virtual_host import VirtualHost
from streamd.engine.engine import Call, Handlers, Parts
from streamd.net.turns import in_turns
from streamd.operations import users as u, virtual_hosts as v
from streamd.operations.declaration import Created
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.operations.names import Name
from streamd.operations.rights import Right


class Users:
    """Users and their permissions.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._directory = parts, parts.directory
        self.handlers: Handlers = {
            u.ListUsers: self._list,
            u.ListOwnTags: self._own_tags,
            u.GetUser: self._get,
            u.PutUser: self._put,
            u.DeleteUser: self._delete,
            u.ListPermissions: self._permissions,
            u.PutPermission: self._put_permission,
            u.ClearPermission: self._clear_permission,
            u.TryPermission: self._try_permission,
        }

    async def _list(self, _call: Call, _request: u.ListUsers) -> list[u.User]:
        hosts = Counter(row.user for row in self._directory.permissions())
        connections = Counter(connection.user for connection in self._parts.connections.of_clients)
        return [
            u.User(row.name, row.tags, row.password_hash, hosts[row.name], connections[row.name])
            async for row in in_turns(self._directory.users())
        ]

    async def _own_tags(self, call: Call, _request: u.ListOwnTags) -> tuple[str, ...]:
        return call.caller.tags

    async def _get(self, _call: Call, request: u.GetUser) -> u.User:
        row = self._directory.find_user(request.name)
        if row is None:
            raise NoSuch(f"there is no user {request.name}")
        hosts = sum(permission.user == row.name for permission in self._directory.permissions())
        connections = sum(c.user == row.name for c in self._parts.connections.of_clients)
        return u.User(row.name, row.tags, row.password_hash, hosts, connections)

    async def _put(self, call: Call, request: u.PutUser) -> Created:
        name = request.name

        def check() -> None:
            call.check()
            row = self._directory.find_user(name)
            if row is not None and request.was is not None and row.tags != request.was:
                _changed_meanwhile(f"the tags of {name}", ", ".join(row.tags))

        if request.is_new is not None:  # said before a password takes its time
            d = self._directory
            (d.check_no_user if request.is_new else d.check_user)(name)
        if request.tags is not None:
            self._directory.check_tags(name, request.tags)
        is_new = await self._directory.put_user(
            name,
            request.password,
            request.tags,
            request.password_hash,
            check,
            is_new=request.is_new,
        )
        return Created(is_new)

    async def _delete(self, call: Call, request: u.DeleteUser) -> None:
        await self._directory.remove_user(request.name, call.check)

    async def _permissions(self, _call: Call, request: u.ListPermissions) -> list[u.Permission]:
        if request.user is not None:
            self._directory.check_user(request.user)
        if request.vhost is not None:
            self._parts.host(request.vhost)
        rows = in_turns(self._directory.permissions())
        return [
            u.Permission(*row)
            async for row in rows
            if request.user in (None, row.user) and request.vhost in (None, row.virtual_host)
        ]

    async def _put_permission(self, call: Call, request: u.PutPermission) -> Created:
        patterns = request.configure, request.write, request.read
        row = PermissionRow(request.user, request.vhost, *patterns)
        check = self._unchanged(call.check, request.user, request.vhost, request.was)
        return Created(await self._parts.administration.put_permission(row, check))

    async def _clear_permission(self, call: Call, request: u.ClearPermission) -> None:
        self._directory.check_user(request.user)
        self._parts.host(request.vhost)
        check = self._unchanged(call.check, request.user, request.vhost, request.was)
        await self._directory.remove_permission(request.user, request.vhost, check)

    def _unchanged(self, check: Check, user: Name, host: Name, was: Sequence[str] | None) -> Check:
        """Check that a permission is what somebody has seen."""

        def check_same() -> None:
            check()
            row = self._directory.permission(user, host)
            now = () if row is None else row[2:]
            if was is not None and now != was and self._directory.find_user(user) is not None:
                shown = ", ".join(
                    f"{r.name.lower()} {p!r}" for r, p in zip(Right, now, strict=False)
                )
                _changed_meanwhile(f"what {user} may do in {host}", shown or "nothing at all")

        return check_same

    async def _try_permission(self, _call: Call, request: u.TryPermission) -> u.Trial:
        account = self._directory.account(request.user)
        if account is None:
            raise NoSuch(f"there is no user {request.user}")
        rights = Rights(self._directory, account, request.vhost)
        verbs = {right.name.lower(): rights.allows(right, request.name) for right in Right}
        return u.Trial(
            rights.may_enter,
            tuple(verb for verb, is_allowed in verbs.items() if is_allowed),
            tuple(verb for verb, is_allowed in verbs.items() if not is_allowed),
        )


def _changed_meanwhile(what: str, now: str) -> None:
    details = f"somebody else has changed {what} meanwhile, to {now or 'none'}: nothing was changed"
    raise Refused(Reason.PRECONDITION_FAILED, details)


class VirtualHosts:
    """Virtual hosts.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._hosts = parts.broker.virtual_hosts
        self.handlers: Handlers = {
            v.ListVirtualHosts: self._list,
            v.ListHostNames: self._names,
            v.GetVirtualHost: self._get,
            v.AddVirtualHost: self._add,
            v.DeleteVirtualHost: self._delete,
        }

    async def _list(self, call: Call, _request: v.ListVirtualHosts) -> list[v.VirtualHost]:
        seen = [self._hosts[name] for name in sorted(self._hosts) if call.caller.sees_host(name)]
        users = Counter(row.virtual_host for row in self._parts.directory.permissions())
        connections = Counter(c.virtual_host for c in self._parts.connections.of_clients)
        sees_users = call.caller.is_administrator
        return [
            v.VirtualHost(
                host.name,
                len(host.names()),
                count_messages(host),
                connections[host.name],
                users[host.name] if sees_users else None,
            )
            async for host in in_turns(seen)
        ]

    async def _names(self, call: Call, _request: v.ListHostNames) -> list[Name]:
        return [name for name in sorted(self._hosts) if call.caller.sees_host(name)]

    async def _get(self, call: Call, request: v.GetVirtualHost) -> v.HostDetails:
        host = self._parts.host(request.vhost)
        permissions = self._parts.directory.permissions()
        users = sum(row.virtual_host == host.name for row in permissions)
        return v.HostDetails(
            host.name,
            len(host.names()),
            count_messages(host),
            sum(c.virtual_host == host.name for c in self._parts.connections.of_clients),
            users if call.caller.is_administrator else None,
            host.topology.num_exchanges() + 1,
            sum(row.is_super_stream for row in host.topology.rows()),
        )

    async def _add(self, call: Call, request: v.AddVirtualHost) -> Created:
        add = self._parts.administration.add_virtual_host
        is_new = await add(request.name, call.caller.name, call.check)
        if request.is_new and not is_new:
            details = f"there is a virtual host {request.name} already"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        return Created(is_new)

    async def _delete(self, call: Call, request: v.DeleteVirtualHost) -> None:
        await self._parts.administration.remove_virtual_host(request.name, call.check)


def count_messages(host: VirtualHost) -> int:
    """Messages in all streams of a virtual host, as far as they were looked at since the start."""
    figures = (stream.figures for stream in host.streams())
    return sum(known.num_messages for known in figures if known is not None)
