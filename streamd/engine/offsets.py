"""Stored offsets that people change: not under a consumer that is reading, and to be undone.

Theory of operation. A consumer that is connected goes on where it is and stores its own offset
again soon, so a change would be lost, or half of the messages would be read twice: it is refused
unless that is asked for. What an offset was is kept in memory for an hour, and in the log.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, TypeAlias

from segments.codec import MAX_REFERENCE_SIZE
from segments.offsets import at_time
from segments.segment import MAX_OFFSET
from streamd.broker.streams.stream import Stream
from streamd.engine.connections import connection_of, sees_connection
from streamd.engine.engine import Call, Parts
from streamd.engine.overview import consumer_name
from streamd.net.actor import CHANGE
from streamd.net.turns import in_turns
from streamd.operations import streams as s
from streamd.operations.declaration import OfStream
from streamd.operations.errors import NoSuch, Reason, Refused

logger = logging.getLogger(__name__)

Asked: TypeAlias = s.SetOffset | s.DeleteOffset
Opened: TypeAlias = Callable[[Call, OfStream[s.Moved]], AbstractAsyncContextManager[Stream]]

KEPT_MS = 3_600_000  # what an offset was
_MOST_KEPT = 1_000
_MOST_NAMED = 3  # consumers, in a refusal


class _Before(NamedTuple):
    """What an offset was before it was changed, and then; None where there was none."""

    offset: int | None
    changed_to: int | None
    at_ms: int
    life: str


class Offsets:
    """Changes of stored offsets.

    Args:
        opened: opens a stream for a request.
    """

    def __init__(self, parts: Parts, opened: Opened) -> None:
        self._parts, self._opened = parts, opened
        self._before: dict[tuple[str, str, str], _Before] = {}

    async def set(self, call: Call, request: s.SetOffset) -> s.Moved:
        """Handles SetOffset."""
        ways = (request.offset, request.timestamp, request.by, request.like, request.undo or None)
        if sum(way is not None for way in ways) != 1:
            details = "expected one of offset, timestamp, by, like and undo"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        if not request.undo:  # it had that name before
            check_reference("the name of a consumer", request.name)
        async with self._opened(call, request) as stream:
            was = _stored(stream, request.name)
            now = await self._wanted(stream, request, was)
            return await self._move(call, stream, request, was, now)

    async def delete(self, call: Call, request: s.DeleteOffset) -> s.Moved:
        """Handles DeleteOffset."""
        async with self._opened(call, request) as stream:
            was = _stored(stream, request.name)
            if was is None:
                raise _no_offset(stream, request.name)
            return await self._move(call, stream, request, was, None)

    async def _wanted(self, stream: Stream, request: s.SetOffset, was: int | None) -> int | None:
        if request.undo:
            before = self._before.get(_key(request))
            is_there = before is not None and before.life == stream.log.life
            if before is None or not is_there or self._age_ms(before) > KEPT_MS:
                details = f"nothing of {request.name} in {stream.name} was changed in the last hour"
                raise Refused(Reason.NOT_FOUND, details)
            if was not in (before.offset, before.changed_to) and not request.force:
                details = (
                    f"{request.name} has stored {_word(was)} since it was changed from "
                    f"{_word(before.offset)} to {_word(before.changed_to)}: "
                    "set it, or force the undoing"
                )
                raise Refused(Reason.PRECONDITION_FAILED, details)
            return before.offset
        if request.offset is not None:
            return request.offset
        if request.like is not None:
            found = _stored(stream, request.like)
            if found is None:
                raise _no_offset(stream, request.like)
            return found
        if request.timestamp is not None:
            spec = at_time(request.timestamp)
            wanted = (await stream.retry_cold_read(stream.log.segments.find, spec)).offset - 1
        else:
            if was is None:
                raise _no_offset(stream, request.name)
            wanted = stream.log.segments.gaps.moved(was, request.by or 0)
        if not 0 <= wanted <= MAX_OFFSET:
            details = (
                f"{request.name} would begin with the first message of {stream.name}, and no "
                "stored offset says that: delete it, and start the consumer at first"
            )
            raise Refused(Reason.PRECONDITION_FAILED, details)
        return wanted

    async def _move(
        self, call: Call, stream: Stream, request: Asked, was: int | None, now: int | None
    ) -> s.Moved:
        readers = await self._readers(call, request)
        moved = s.Moved(was, now, readers)
        if request.dry_run:
            return moved
        if readers and not request.force:
            named = ", ".join(readers[:_MOST_NAMED])
            more = f" and {len(readers) - _MOST_NAMED} more" if len(readers) > _MOST_NAMED else ""
            details = (
                f"{request.name} is reading {request.stream} ({named}{more}) and stores its own "
                "offset again: stop it first, or force the change"
            )
            raise Refused(Reason.PRECONDITION_FAILED, details)
        call.check()  # it may have taken a while to find the place
        # Before: it may take effect although nobody hears of it.
        self._keep(request, _Before(was, now, self._parts.broker.now_ms(), stream.log.life))
        text = "stream %s: the stored offset of %s was %s and is %s"
        logger.info(text, stream.name, request.name, _word(was), _word(now), extra=CHANGE)
        if now is None:
            await stream.delete_offset(request.name)
        else:
            await stream.set_offset(request.name, now)
        return moved

    async def _readers(self, call: Call, request: Asked) -> tuple[str, ...]:
        """Consumers of that name that are connected, and where."""
        found = []
        async for connection in in_turns(self._parts.connections):
            if connection.virtual_host != request.vhost:
                continue
            for facts in connection.consumers():
                shown = connection_of(connection)
                if (facts.stream, consumer_name(shown, facts)) == (request.stream, request.name):
                    sees = call.caller.tags or sees_connection(call.caller, connection)
                    found.append(f"{shown.user}, {shown.peer}" if sees else "another user")
        return tuple(found)

    def _keep(self, request: Asked, before: _Before) -> None:
        self._before.pop(_key(request), None)
        self._before[_key(request)] = before
        while len(self._before) > _MOST_KEPT:
            del self._before[next(iter(self._before))]

    def _age_ms(self, before: _Before) -> int:
        return self._parts.broker.now_ms() - before.at_ms


def _key(request: Asked) -> tuple[str, str, str]:
    return request.vhost, request.stream, request.name


def check_reference(what: str, name: str) -> None:
    """Raise Refused unless consumers may be kept under this name."""
    size = len(name.encode(errors="replace"))
    if not 0 < size <= MAX_REFERENCE_SIZE or not name.isprintable():
        found = f"{what}, {name[:40]!r}, is empty, too long or not printable"
        details = f"{found}: expected 1 to {MAX_REFERENCE_SIZE} bytes"
        raise Refused(Reason.PRECONDITION_FAILED, details)


def _stored(stream: Stream, name: str) -> int | None:
    return stream.log.journal.tracking.offset(name.encode(errors="replace"))


def _no_offset(stream: Stream, name: str) -> NoSuch:
    return NoSuch(f"{name} has stored no offset in {stream.name}")


def _word(offset: int | None) -> str:
    return "none" if offset is None else f"{offset:,}"
