"""What a request reads, it gets as long as its user may have it: also while it is answered.

A request that changes something checks its right in the turn of the change (catalog_writer.py). One
that only reads may take long: rows are made in turns, and a peer may take its answer slowly. When
the tags or permissions of its user change meanwhile, or its login counts no more, it is begun anew
as if it came now; where a part of its answer is out already, the connection is cut off. What is
complete is sent to its end.

Nothing is cancelled inside `send`: the server below would take an answer for sent that is not, or
never look for the next request. A part that is being sent ends first.
"""

from contextlib import ExitStack

import trio
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamd.auth.users import Account
from streamd.broker.catalog.writer import Check
from streamd.operations.errors import Refused

_READS = ("GET", "HEAD")
_READING = "streamd.reading"  # in the scope of a request


class _Reading:
    """One request that reads.

    Args:
        stack: ends with the request.

    Attributes:
        limit: cancelled when its user may read less, or more.
        check: raises Refused when it is to end; None: it ends with any change.
        has_begun: a part of the answer is out.
    """

    def __init__(self, stack: ExitStack, send: Send) -> None:
        self.limit = trio.CancelScope()
        self.check: Check | None = None
        self.has_begun = False
        self._stack = stack
        self._send = send
        self._head: Message | None = None
        self._is_sending = False
        self._is_over = False

    def entered(self, account: Account) -> None:
        """The user of the request is known."""
        self._stack.enter_context(account.told(self._changed))

    def leave(self) -> None:
        """The request looks after itself, or has read everything."""
        self._stack.close()

    async def send(self, message: Message) -> None:
        """See ASGI."""
        if message["type"] == "http.response.start":
            self._head = message
            return
        if not message.get("more_body"):
            self.leave()
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
        if self.check is not None:
            try:
                self.check()
            except Refused:
                pass
            else:
                return
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
        if scope.get("method") not in _READS:
            await self._app(scope, receive, send)
            return
        while await self._was_ended(scope, receive, send):
            pass

    async def _was_ended(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer once; whether that was ended, and is to be begun anew."""
        with ExitStack() as stack:
            reading = _Reading(stack, send)
            with reading.limit:
                await self._app({**scope, _READING: reading}, receive, reading.send)
        return reading.limit.cancelled_caught and not reading.has_begun


def note_reader(conn: HTTPConnection, account: Account) -> None:
    """The user of a request is known."""
    reading: _Reading | None = conn.scope.get(_READING)
    if reading is not None:
        reading.entered(account)


def read_while(check: Check, conn: HTTPConnection) -> None:
    """A request that reads ends from here on as soon as one right is gone, whatever else changes.

    Args:
        check: raises Refused when it is.
        conn: the request.

    Raises:
        Refused: the right is gone.
    """
    check()
    reading: _Reading | None = conn.scope.get(_READING)
    if reading is not None:
        reading.check = check
