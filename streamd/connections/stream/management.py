"""`Manage`: operations, for programs that speak the stream protocol.

A request names an operation. It gives the fields as strings, and rows of strings answer; some names
stand for an operation with fields that are set already. Or it gives them in msgpack, in base64, as
"fields", and where they are long further parts as "fields.1" and so on; then the answer comes as
"answer" in the same way, cut into as many rows as it takes. So any operation can be asked for.
"""

import base64
import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import msgspec
import trio

from streamd.connections.stream.context import Context, Handlers
from streamd.connections.stream.response_codes import OK, code_of
from streamd.engine import Caller
from streamd.engine.by_name import carry_out
from streamd.hop.declared import by_name
from streamd.hop.messages import kind_of
from streamd.net.turns import in_turns
from streamd.operations import streams as s, tier as t, users as u, virtual_hosts as v
from streamd.operations.declaration import Created, Operation
from streamd.operations.errors import Reason, Refused
from streamd.operations.reading import read_operation
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair

logger = logging.getLogger(__name__)

_MOST_DIGITS = 20  # of a number; those of 64 bits have fewer
_NAMED = "stream."  # begins what names one of several streams
_FIELDS, _ANSWER = "fields", "answer"  # see the module
KIND = "kind"  # of what is refused to a node, see hop.messages
_MOST_ANSWER, _MOST_NODE_ANSWER = 16 << 20, 32 << 20  # bytes, in one frame; a message has 17 MiB
_PART = 24_000  # bytes of an answer in one row: 32,000 characters, of 32,767 in a string


class _Form(NamedTuple):
    """An operation as it is asked for here.

    Attributes:
        needs: fields that have to be given, not empty.
        fields: those that are set already.
        shown: what rows have; all fields of the answer where it is empty.
    """

    kind: type[Operation[Any]]
    needs: tuple[str, ...] = ()
    fields: Mapping[str, Any] = {}
    shown: tuple[str, ...] = ()


_FORMS = {
    "user.add": _Form(u.PutUser, ("password",), {"is_new": True, "tags": ""}),
    "user.tags": _Form(u.PutUser, fields={"is_new": False, "tags": ""}),
    "user.passwd": _Form(u.PutUser, ("password",), {"is_new": False}),
    "user.list": _Form(u.ListUsers, shown=("name", "tags")),
    "vhost.add": _Form(v.AddVirtualHost, fields={"is_new": True}),
    "vhost.list": _Form(v.ListVirtualHosts, shown=("name", "streams")),
    "tier.status": _Form(t.GetTier),
} | {
    kind.NAME: _Form(kind)
    for kind in (
        *(u.DeleteUser, u.ListPermissions, u.PutPermission, u.ClearPermission),
        v.DeleteVirtualHost,
        *(s.SetArguments, s.TruncateStream, s.ListOffsets, s.SetOffset, s.DeleteOffset),
        *(s.ListSelectors, s.AddSelector, s.DeleteSelector),
        *(t.GetStreamTier, t.VerifyTier, t.CollectTier, t.UploadTier),
    )
}


class Management:
    """Operations for the user of one connection, in its virtual host."""

    OPERATIONS = frozenset(_FORMS)

    def __init__(self, context: Context) -> None:
        self._context = context
        self._caller = Caller(context.directory, context.rights.account)
        self._caller.is_node = context.is_node
        self._asked: set[trio.CancelScope] = set()
        self.handlers: Handlers = {c.Manage: self._manage}

    def close(self) -> None:
        """The connection has ended: so does what was only looked at for it."""
        for scope in self._asked:
            scope.cancel()

    async def _manage(self, command: c.Manage) -> None:
        kind = by_name().get(command.operation)
        if self._context.is_node and kind is not None and not kind.CHANGES:
            scope = trio.CancelScope()
            self._asked.add(scope)
            look = partial(self._look, command, scope)  # beside what says that the node has gone
            self._context.broker.supervisor.start_once("answering a node", look)
        else:
            await self._do(command)

    async def _look(self, command: c.Manage, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._do(command)
        finally:
            self._asked.discard(scope)

    async def _do(self, command: c.Manage) -> None:
        rows: Iterable[Mapping[str, str]] = ()
        code, reason = OK, ""
        try:
            words = dict(command.arguments)
            if _FIELDS in words:
                fields = "".join(t for key, t in words.items() if key.startswith(_FIELDS))
                rows = await self._carry_out(command.operation, fields)
            else:
                rows = await self._ask(command.operation, words)
        except Refused as refused:
            code, reason = code_of(refused), refused.details
            rows = ({KIND: kind_of(refused)},) if self._context.is_node else ()
        answer = [tuple(map(Pair, row.keys(), row.values())) async for row in in_turns(rows)]
        response = c.ManageResponse(command.correlation_id, code, reason, tuple(answer))
        await self._context.answer_in_turns(response)

    async def _ask(self, name: str, words: dict[str, Any]) -> Iterable[Mapping[str, str]]:
        form = _FORMS.get(name)
        if form is None:
            raise Refused(Reason.PRECONDITION_FAILED, f"there is no operation {name[:40]!r}")
        rows = _rows(
            await self._context.engine.ask(self._caller, self._read(form, words)), form.shown
        )
        if form.kind is t.GetTier:
            streams = await self._context.engine.ask(self._caller, t.ListTier())
            rows = chain(rows, _rows(streams))
        return rows

    async def _carry_out(self, name: str, fields: str) -> Iterator[Mapping[str, str]]:
        try:
            given = base64.b64decode(fields, validate=True)
        except ValueError:
            details = f"{_FIELDS} is not base64"
            raise Refused(Reason.PRECONDITION_FAILED, details) from None
        answer = await carry_out(self._context.engine, self._caller, name, given)
        most = _MOST_NODE_ANSWER if self._context.is_node else _MOST_ANSWER
        if len(answer) > most:
            details = f"the answer has {len(answer):,} bytes, expected at most {most:,}"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        parts = (answer[at : at + _PART] for at in range(0, len(answer), _PART))
        return ({_ANSWER: base64.b64encode(part).decode("ascii")} for part in parts)

    def _read(self, form: _Form, words: dict[str, Any]) -> Operation[Any]:
        """The request.

        Raises:
            Refused: a field is missing, or is not what it has to be.
        """
        for name in (*form.needs, *_required(form.kind)):
            if not words.get(name) and name not in form.fields:
                raise Refused(Reason.PRECONDITION_FAILED, f"{name} is missing")
        for name in _numbers(form.kind):
            if name in words:
                words[name] = _whole(name, words[name])
        fields: dict[str, Any] = {"vhost": self._context.host.name, **form.fields, **words}
        if form.kind is s.SetArguments:
            fields["arguments"] = {k: text for k, text in words.items() if k != "stream"}
        if form.kind is t.UploadTier:
            fields["streams"] = [text for k, text in words.items() if k.startswith(_NAMED)]
            if "seconds" in words:
                fields["timeout_seconds"] = _whole("timeout_seconds", words["seconds"])
        if "tags" in fields:
            fields["tags"] = fields["tags"].split()
        if "password" in fields:
            fields["password"] = fields["password"].encode()
        return read_operation(form.kind, fields, strict=False)


@functools.cache
def _required(kind: type[Operation[Any]]) -> tuple[str, ...]:
    """Fields of an operation that are given here as they are, and have to be."""
    apart = ("vhost", "arguments")
    return tuple(f.name for f in msgspec.structs.fields(kind) if f.required and f.name not in apart)


@functools.cache
def _numbers(kind: type[Operation[Any]]) -> tuple[str, ...]:
    """Fields of an operation that are whole numbers."""
    return tuple(
        field.name
        for field in msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]
        if any(isinstance(one, msgspec.inspect.IntType) for one in _alternatives(field.type))
    )


def _alternatives(found: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    return found.types if isinstance(found, msgspec.inspect.UnionType) else (found,)


def _whole(name: str, text: str) -> int:
    """A whole number; msgspec would take 1e3 and 5.0 as well."""
    if not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS:
        details = f"{name} is {text[:40]!r}, expected a whole number"
        raise Refused(Reason.PRECONDITION_FAILED, details)
    return int(text)


def _rows(answer: object, shown: tuple[str, ...] = ()) -> Iterator[Mapping[str, str]]:
    """An answer as rows; of one record, each item of its lists is a row behind it."""
    if isinstance(answer, list | tuple):
        for item in answer:
            yield from _rows(item, shown)
    elif answer is not None and not isinstance(answer, Created):
        row: dict[str, str] = {}
        behind: list[object] = []
        for name in shown or _names(cast("Any", answer).__class__):
            value = getattr(answer, name)
            if isinstance(value, Mapping):
                row |= {f"{name}.{key}": str(count) for key, count in value.items()}
            elif isinstance(value, tuple) and not shown:
                behind += value
            else:
                row[name] = _text(value)
        yield row
        yield from _rows(behind)


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - a record's class
    """The fields of a record."""
    is_struct = issubclass(kind, msgspec.Struct)
    return tuple(
        f.name for f in (msgspec.structs.fields if is_struct else dataclasses.fields)(kind)
    )


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
