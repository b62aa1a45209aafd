"""What a request reads, it gets as long as its user may have it: also while it is answered.

A request that changes something checks its right in the turn of the change (catalog_writer.py). One
that only reads may take long: rows are made in turns, and a peer may take its answer slowly. When
the tags or permissions of its user change meanwhile, or its login counts no more, it is begun again
as if it came now; where a part of its answer is out already, the connection is cut off. What is
complete is sent to its end.

Nothing is cancelled inside `send`: the server below would take an answer for sent that is not, or
never look for the next request. A part that is being sent ends first.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

import trio
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_READS = ("GET", "HEAD")
_READING = "streamd.reading"  # in the scope of a request


class Visitor(Protocol):
    """Whoever has entered."""

    def told(self, changed: Callable[[], None]) -> AbstractContextManager[None]:
        """In this block, call `changed` when it has ended, or its rights are others."""

    def leave(self) -> None:
        """Nothing more is asked for it."""


class _Reading:
    """One request, which reads as a rule.

    Args:
        stack: ends with the request.
        send: see ASGI.
        reads: it changes nothing.

    Attributes:
        limit: cancelled when its user may read less, or more.
        has_begun: a part of the answer is out.
    """

    def __init__(self, stack: ExitStack, send: Send, *, reads: bool) -> None:
        self.limit = trio.CancelScope()
        self.has_begun = False
        self._stack = stack
        self._told = stack.enter_context(ExitStack())
        self._send = send
        self._reads = reads
        self._head: Message | None = None
        self._is_sending = False
        self._is_over = False

    def entered(self, visitor: Visitor) -> None:
        """The user of the request is known."""
        if self._reads:
            self._told.enter_context(visitor.told(self._changed))

    def left_alone(self) -> None:
        """Changes of what the user may do do not end it."""
        self._told.close()

    def leave_at_end(self, leave: Callable[[], None]) -> None:
        """The user has entered for this request alone."""
        self._stack.callback(leave)

    async def send(self, message: Message) -> None:
        """See ASGI."""
        if not self._reads:
            await self._send(message)
            return
        if message["type"] == "http.response.start":
            self._head = message
            return
        if not message.get("more_body"):
            self._told.close()
        self._is_sending = True
        if not self.has_begun:
            assert self._head is not None  # noqa: S101 - by ASGI
            self.has_begun = True
            await self._send(self._head)  # nothing is out before a part of the body
        await self._send(message)
        self._is_sending = False
        if self._is_over:
            self.limit.cancel()

    def _changed(self) -> None:
        self._is_over = True
        if not self._is_sending:
            self.limit.cancel()


class Entitled:
    """Answers requests that read as long as their users may.

    Args:
        app: answers them, and calls `note_reader` when it knows the user.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        while await self._was_ended(scope, receive, send):
            pass

    async def _was_ended(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer once; whether that was ended, and is to be started again."""
        with ExitStack() as stack:
            reading = _Reading(stack, send, reads=scope.get("method") in _READS)
            with reading.limit:
                await self._app({**scope, _READING: reading}, receive, reading.send)
        return reading.limit.cancelled_caught and not reading.has_begun


def note_reader(conn: HTTPConnection, visitor: Visitor, *, leaves: bool = False) -> None:
    """The user of a request is known.

    Args:
        conn: the request.
        visitor: the user.
        leaves: when the request ends.
    """
    reading: _Reading | None = conn.scope.get(_READING)
    if reading is not None:
        reading.entered(visitor)
        if leaves:
            reading.leave_at_end(visitor.leave)


def checked_by_parts(conn: HTTPConnection) -> None:
    """Each part of the answer is asked for when its turn comes: nothing else ends the request."""
    reading: _Reading | None = conn.scope.get(_READING)
    if reading is not None:
        reading.left_alone()
