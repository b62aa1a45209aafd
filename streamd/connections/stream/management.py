"""Users, permissions and virtual hosts, for administrators; changes to streams, for their users."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from segments import OffsetSpec, at_offset, at_time
from segments.segment import MAX_OFFSET
from segments.selector import Dialect
from streamd.auth.administration import Administration
from streamd.auth.users import Right
from streamd.broker.catalog.writer import Check
from streamd.broker.declared.names import Name, as_sent
from streamd.broker.declared.rows import PermissionRow
from streamd.broker.declared.standing_selectors import parse_standing
from streamd.broker.errors import Reason, Refused
from streamd.broker.steps import in_turns
from streamd.broker.streams.stored_offsets import stored_offsets
from streamd.connections.stream.context import Context, Handlers
from streamd.connections.stream.response_codes import OK, code_of
from streamd.connections.stream.tier import TierOperations
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair

logger = logging.getLogger(__name__)

Arguments: TypeAlias = Mapping[str, str]
Row: TypeAlias = dict[str, str]
MAX_NAME_BYTES = 255
_ROWS_A_TURN = 200


class Management:
    """What administrators may ask for.

    Attributes:
        handlers: one for each command.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._directory = context.directory
        self._broker = context.broker
        self._administration = Administration(context.broker, context.directory)
        self.handlers: Handlers = {c.Manage: self._manage}
        self._operations: dict[str, Callable[[Arguments], Awaitable[Iterable[Row]]]] = {
            "user.add": self._add_user,
            "user.list": self._list_users,
            "user.delete": self._delete_user,
            "user.tags": self._set_tags,
            "user.passwd": self._change_password,
            "vhost.add": self._add_host,
            "vhost.list": self._list_hosts,
            "vhost.delete": self._delete_host,
            "permission.set": self._set_permission,
            "permission.list": self._list_permissions,
            "permission.clear": self._clear_permission,
        }
        self._open_operations: dict[str, Callable[[Arguments], Awaitable[Iterable[Row]]]] = {
            "selector.add": self._add_selector,
            "selector.list": self._list_selectors,
            "selector.delete": self._delete_selector,
            "stream.set": self._set_stream,
            "stream.truncate": self._truncate_stream,
            "offset.list": self._list_offsets,
            "offset.set": self._set_offset,
            "offset.delete": self._delete_offset,
            **TierOperations(context).operations,
        }

    async def _manage(self, command: c.Manage) -> None:
        rows: Iterable[Row] = ()
        code, reason = OK, ""
        user = self._context.rights.user
        try:
            operation = self._open_operations.get(command.operation)
            if operation is None:
                self._check()
                operation = self._operations.get(command.operation)
            if operation is None:
                details = f"there is no operation {command.operation[:40]!r}"
                raise Refused(Reason.PRECONDITION_FAILED, details)
            rows = await operation(dict(command.arguments))
        except Refused as refused:
            code, reason = code_of(refused), refused.details
        logger.info("%s by %s: %s", command.operation[:40], user, reason or "done")
        answer = [
            tuple(map(Pair, row.keys(), row.values())) async for row in in_turns(rows, _ROWS_A_TURN)
        ]
        response = c.ManageResponse(command.correlation_id, code, reason, tuple(answer))
        await self._context.answer_in_turns(response)

    def _check(self) -> None:
        """Raise Refused unless the user is an administrator."""
        self._context.rights.require_administrator()

    def _configures(self, stream: Name) -> Check:
        return partial(self._context.rights.require, Right.CONFIGURE, stream)

    # -- users

    async def _add_user(self, arguments: Arguments) -> Iterable[Row]:
        name, tags = _name(arguments, "name"), arguments.get("tags", "").split()
        self._directory.check_no_user(name)
        password = _text(arguments, "password").encode()
        await self._directory.put_user(name, password, tags, check=self._check, is_new=True)
        return ()

    async def _list_users(self, _arguments: Arguments) -> Iterable[Row]:
        return [{"name": u.name, "tags": " ".join(u.tags)} for u in self._directory.users()]

    async def _delete_user(self, arguments: Arguments) -> Iterable[Row]:
        await self._directory.remove_user(_name(arguments, "name"), self._check)
        return ()

    async def _set_tags(self, arguments: Arguments) -> Iterable[Row]:
        name = _name(arguments, "name")
        tags = arguments.get("tags", "").split()
        await self._directory.put_user(name, tags=tags, check=self._check, is_new=False)
        return ()

    async def _change_password(self, arguments: Arguments) -> Iterable[Row]:
        name = _name(arguments, "name")
        self._directory.check_user(name)
        password = _text(arguments, "password").encode()
        await self._directory.put_user(name, password, check=self._check, is_new=False)
        return ()

    # -- virtual hosts

    async def _add_host(self, arguments: Arguments) -> Iterable[Row]:
        name = _name(arguments, "name")
        user = self._context.rights.user
        if not await self._administration.add_virtual_host(name, user, self._check):
            details = f"there is a virtual host {name} already"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        return ()

    async def _list_hosts(self, _arguments: Arguments) -> Iterable[Row]:
        hosts = self._broker.virtual_hosts
        return [{"name": name, "streams": str(len(hosts[name].names()))} for name in sorted(hosts)]

    async def _delete_host(self, arguments: Arguments) -> Iterable[Row]:
        await self._administration.remove_virtual_host(_name(arguments, "name"), self._check)
        return ()

    # -- permissions

    async def _set_permission(self, arguments: Arguments) -> Iterable[Row]:
        user, host = _name(arguments, "user"), _name(arguments, "vhost")
        patterns = (arguments.get(name, "") for name in ("configure", "write", "read"))
        await self._administration.put_permission(PermissionRow(user, host, *patterns), self._check)
        return ()

    async def _list_permissions(self, _arguments: Arguments) -> Iterable[Row]:
        names = {"virtual_host": "vhost"}
        return [
            {names.get(key, key): value for key, value in row._asdict().items()}
            for row in self._directory.permissions()
        ]

    async def _clear_permission(self, arguments: Arguments) -> Iterable[Row]:
        user, host = _name(arguments, "user"), _name(arguments, "vhost")
        await self._directory.remove_permission(user, host, self._check)
        return ()

    # -- streams: their selectors can be seen with the right to read, changed with configure

    async def _add_selector(self, arguments: Arguments) -> Iterable[Row]:
        stream, group = _name(arguments, "stream"), _text(arguments, "group")
        check = self._configures(stream)
        check()
        dialect = arguments.get("dialect", Dialect.UNION)
        row = parse_standing(group, dialect, arguments.get("text", ""))
        await self._context.host.settings.put_selector(stream, row, check)
        return ()

    async def _set_stream(self, arguments: Arguments) -> Iterable[Row]:
        stream = _name(arguments, "stream")
        pairs = [(name, text) for name, text in arguments.items() if name != "stream"]
        await self._context.host.settings.set_arguments(stream, pairs, self._configures(stream))
        return ()

    async def _truncate_stream(self, arguments: Arguments) -> Iterable[Row]:
        name = _name(arguments, "stream")
        check = self._configures(name)
        check()
        spec = _beginning(arguments)
        stream = self._context.host.find(name)
        async with stream.opened():
            check()
            return [{"first_offset": str(await stream.truncate(spec, check))}]

    # -- stored offsets: with the right to read, as consumers store theirs

    async def _list_offsets(self, arguments: Arguments) -> Iterable[Row]:
        async with self._context.readable(_name(arguments, "stream")) as (stream, _):
            return [
                {
                    "name": row.reference,
                    "offset": str(row.offset),
                    "messages_behind": str(row.messages_behind),
                    "seconds_behind": "" if row.seconds_behind is None else f"{row.seconds_behind}",
                }
                for row in await stored_offsets(stream, self._broker.now_ms)
            ]

    async def _set_offset(self, arguments: Arguments) -> Iterable[Row]:
        reference, offset = _text(arguments, "name"), _number(arguments, "offset")
        async with self._context.readable(_name(arguments, "stream")) as (stream, _):
            await stream.set_offset(reference, offset)
        return ()

    async def _delete_offset(self, arguments: Arguments) -> Iterable[Row]:
        reference = _text(arguments, "name")
        async with self._context.readable(_name(arguments, "stream")) as (stream, _):
            if not await stream.delete_offset(reference):
                details = f"{reference} has stored no offset in {stream.name}"
                raise Refused(Reason.PRECONDITION_FAILED, details)
        return ()

    async def _list_selectors(self, arguments: Arguments) -> Iterable[Row]:
        async with self._context.readable(_name(arguments, "stream")) as (stream, _):
            standing = stream.standing
            return [
                {
                    "group": row.group,
                    "dialect": row.dialect,
                    "text": row.text,
                    "since": str(row.since),
                    "consumers": str(standing.num_users(row.group)),
                }
                for row in standing.rows()
            ]

    async def _delete_selector(self, arguments: Arguments) -> Iterable[Row]:
        stream, group = _name(arguments, "stream"), _text(arguments, "group")
        await self._context.host.settings.remove_selector(stream, group, self._configures(stream))
        return ()


def _beginning(arguments: Arguments) -> OffsetSpec:
    """Where a stream is to begin: before an offset or a time."""
    if "timestamp" in arguments:
        return at_time(_number(arguments, "timestamp"))
    return at_offset(_number(arguments, "offset"))


def _number(arguments: Arguments, name: str) -> int:
    text = arguments.get(name, "")
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= MAX_OFFSET):
        details = f"{name} is {text[:40]!r}, expected a whole number up to {MAX_OFFSET}"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    return int(text)


def _name(arguments: Arguments, name: str) -> Name:
    return as_sent(_text(arguments, name))


def _text(arguments: Arguments, name: str) -> str:
    text = arguments.get(name, "")
    limit = 0 < len(text.encode()) <= MAX_NAME_BYTES
    if not limit or not text.isprintable():
        details = f"{name} is missing, too long or not printable: expected 1 to 255 bytes"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    return text
