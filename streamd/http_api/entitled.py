"""What a request reads, it gets as long as its user may have it: also while it is answered.

A request that changes something checks its right in the turn of the change (catalog_writer.py). One
that only reads may take long: rows are made in turns, and a peer may take its answer slowly. When
the tags or permissions of its user change meanwhile, or its login counts no more, it is begun anew
as if it came now; where a part of its answer is out already, the connection is cut off.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import trio
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamd.auth.users import Account
from streamd.broker.catalog_writer import Check
from streamd.broker.errors import Reason, Refused

_READS = ("GET", "HEAD")
_READING = "streamd.reading"  # in the scope of a request


class _Reading:
    """One request that reads.

    Attributes:
        limit: cancelled when its user may read less, or more.
        head: of the answer; sent with the first part of its body.
        has_begun: a part of the answer is out.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.limit = trio.CancelScope()
        self.head: Message | None = None
        self.has_begun = False
        self._stack = stack

    def entered(self, account: Account) -> None:
        """The user of the request is known."""
        self._stack.enter_context(account.told(self.limit.cancel))

    def leave(self) -> None:
        """The request looks after itself."""
        self._stack.close()


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
            reading = _Reading(stack)

            async def answer(message: Message) -> None:
                if message["type"] == "http.response.start":
                    reading.head = message
                    return
                if not reading.has_begun:
                    assert reading.head is not None  # noqa: S101 - by ASGI
                    await send(reading.head)  # nothing is out before a part of the body
                    reading.has_begun = True
                await send(message)

            with reading.limit:
                await self._app({**scope, _READING: reading}, receive, answer)
        return reading.limit.cancelled_caught and not reading.has_begun


def note_reader(conn: HTTPConnection, account: Account) -> None:
    """The user of a request is known."""
    reading: _Reading | None = conn.scope.get(_READING)
    if reading is not None:
        reading.entered(account)


@contextmanager
def as_long_as(check: Check, account: Account, scope: Scope) -> Iterator[None]:
    """A block of a request that ends as soon as one right is gone, whatever else changes.

    Args:
        check: raises Refused when it is.
        account: who asks.
        scope: of the request.

    Raises:
        Refused: the right is gone.
    """

    def look() -> None:
        try:
            check()
        except Refused:
            limit.cancel()

    check()
    reading: _Reading | None = scope.get(_READING)
    if reading is not None:
        reading.leave()
    with trio.CancelScope() as limit, account.told(look):
        yield
    if limit.cancelled_caught:
        raise Refused(Reason.ACCESS_REFUSED, f"{account.name} has lost the right to this meanwhile")
