"""What is asked of streams and super streams: to be there, or not; and what one stream has."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from segments import at_offset, at_time
from streamd.broker.declared.checks import check_number
from streamd.broker.declared.standing_selectors import parse_standing
from streamd.broker.streams.stored_offsets import stored_offsets
from streamd.broker.streams.stream import Stream
from streamd.engine.engine import Call, Handlers, Parts
from streamd.engine.offsets import Offsets, check_reference
from streamd.net.turns import in_turns
from streamd.operations import streams as s
from streamd.operations.arguments import as_text, plain_arguments
from streamd.operations.declaration import Created, OfStream
from streamd.operations.errors import Reason, Refused
from streamd.operations.names import Name, as_sent


class Streams:
    """What is asked of streams and super streams.

    Attributes:
        handlers: one for each operation.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        offsets = Offsets(parts, self._opened)
        self.handlers: Handlers = {
            s.CreateStream: self._create,
            s.ListDeclared: self._declared,
            s.DeleteStream: self._delete,
            s.CreateSuperStream: self._create_super_stream,
            s.DeleteSuperStream: self._delete_super_stream,
            s.SetArguments: self._set_arguments,
            s.TruncateStream: self._truncate,
            s.ListOffsets: self._list_offsets,
            s.GetTracking: self._tracking,
            s.SetOffset: offsets.set,
            s.DeleteOffset: offsets.delete,
            s.ListSelectors: self._list_selectors,
            s.AddSelector: self._add_selector,
            s.DeleteSelector: self._delete_selector,
        }

    # -- to be there, or not

    async def _create(self, call: Call, request: s.CreateStream) -> Created:
        create = self._parts.host(request.vhost).create
        try:
            await create(request.stream, request.arguments.items(), call.check)
        except Refused as refused:
            if refused.reason is Reason.ALREADY_EXISTS:
                return Created(is_new=False)
            raise
        return Created(is_new=True)

    async def _declared(self, _call: Call, request: s.ListDeclared) -> list[s.Declared]:
        host = self._parts.host(request.vhost)
        return [
            s.Declared(name, plain_arguments(host.arguments(name)))
            async for name in in_turns(host.names())
            if host.has_stream(name)  # not deleted meanwhile
        ]

    async def _delete(self, call: Call, request: s.DeleteStream) -> None:
        await self._parts.host(request.vhost).delete(request.stream, _nothing, call.check)

    async def _create_super_stream(self, call: Call, request: s.CreateSuperStream) -> None:
        name, host = request.super_stream, self._parts.host(request.vhost)
        check_number(len(request.keys) or request.partitions)
        keys = request.keys or map(str, range(request.partitions))
        routes = [(key, as_sent(f"{name}-{key}")) for key in keys]
        check = partial(_check_super_stream, call, request, [stream for _, stream in routes])
        check()
        await host.create_super_stream(name, routes, request.arguments.items(), check)

    async def _delete_super_stream(self, call: Call, request: s.DeleteSuperStream) -> None:
        host = self._parts.host(request.vhost)
        check = partial(_check_super_stream, call, request)
        await host.delete_super_stream(request.super_stream, _nothing, check)

    # -- one stream

    @asynccontextmanager
    async def _opened(self, call: Call, request: OfStream[Any]) -> AsyncIterator[Stream]:
        """The stream, whose log stays open in this block; the right is there at both its ends."""
        stream = self._parts.host(request.vhost).find(request.stream)
        async with stream.opened():
            call.check()
            yield stream

    async def _set_arguments(self, call: Call, request: s.SetArguments) -> None:
        host = self._parts.host(request.vhost)

        def check() -> None:
            call.check()
            if request.was:
                _check_same(request, as_text(plain_arguments(host.row(request.stream).effective)))

        await host.settings.set_arguments(request.stream, request.arguments.items(), check)

    async def _truncate(self, call: Call, request: s.TruncateStream) -> s.Beginning:
        if (request.offset is None) == (request.timestamp is None):
            details = "expected either offset, the first to keep, or timestamp, in ms"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        if request.offset is not None:
            spec = at_offset(request.offset)
        else:
            spec = at_time(request.timestamp or 0)
        async with self._opened(call, request) as stream:
            return s.Beginning(await stream.truncate(spec, call.check))

    # -- stored offsets

    async def _list_offsets(self, call: Call, request: s.ListOffsets) -> list[s.StoredOffset]:
        async with self._opened(call, request) as stream:
            return await stored_offsets(stream, self._parts.broker.now_ms)

    async def _tracking(self, call: Call, request: s.GetTracking) -> s.Tracking:
        async with self._opened(call, request) as stream:
            offsets = {_text(name): at for name, at in stream.stored_offsets().items()}
            sequences = stream.log.journal.tracking.sequences()
            writers = {_text(name): at for name, at in sequences.items()}
            consumers = None
            if request.details:
                consumers = await stored_offsets(stream, self._parts.broker.now_ms)
            return s.Tracking(offsets, writers, consumers)

    # -- standing selectors

    async def _list_selectors(self, call: Call, request: s.ListSelectors) -> list[s.Selector]:
        async with self._opened(call, request) as stream:
            return selectors_of(stream)

    async def _add_selector(self, call: Call, request: s.AddSelector) -> None:
        check_reference("the name of a group", request.group)
        row = parse_standing(request.group, request.dialect, request.text)
        settings = self._parts.host(request.vhost).settings
        await settings.put_selector(request.stream, row, call.check)

    async def _delete_selector(self, call: Call, request: s.DeleteSelector) -> None:
        settings = self._parts.host(request.vhost).settings
        await settings.remove_selector(request.stream, request.group, call.check)


def selectors_of(stream: Stream) -> list[s.Selector]:
    """The standing selectors of an open stream, by group."""
    standing = stream.standing
    return [
        s.Selector(row.group, row.dialect, row.text, row.since, standing.num_users(row.group))
        for row in standing.rows()
    ]


def _nothing() -> None:
    """For changes that nobody has to hear of before they are answered."""


def _check_super_stream(
    call: Call, request: s.CreateSuperStream | s.DeleteSuperStream, partitions: Sequence[Name]
) -> None:
    """Raise Refused unless the user may still create or delete it with these partitions."""
    call.check()
    rights = call.caller.rights(request.vhost)
    rights.require_super_stream(request.super_stream, partitions)


def _check_same(request: s.SetArguments, now: dict[str, str]) -> None:
    """Raise Refused where somebody else has changed what is to be changed."""
    for key, seen in request.was.items():
        found = now.get(key, "")
        if found not in (seen, request.arguments.get(key, seen)):
            raise Refused(
                Reason.PRECONDITION_FAILED,
                f"somebody else has changed {key} meanwhile, to {found or 'the default'}: "
                "nothing was changed",
            )


def _text(reference: bytes) -> str:
    return reference.decode("utf-8", "backslashreplace")
