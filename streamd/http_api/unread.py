"""What an answer leaves unread of its request.

An answer may be ready before the request's body has come: a wrong password, no such path, a method
that takes no body. Hypercorn then closes the connection without having said so, and the peer's
next request, or this answer itself, is lost with it.
"""

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_MOST = 1 << 20  # bytes that are read and thrown away so that the connection can go on
_SECONDS = 1.0  # and for how long


class UnreadBodies:
    """Reads what the application has left of a request's body before it answers.

    A body that is too large or too slow for that ends its connection, which the answer says.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and not await body.read_rest():
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
                nursery.start_soon(body.throw_away)
            await send(message)

        async with trio.open_nursery() as nursery:
            await self._app(scope, body.receive, answer)
            nursery.cancel_scope.cancel()


class _Body:
    """A request's body; knows whether all of it has come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_over = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._is_over = True
        return message

    async def read_rest(self) -> bool:
        """Read to the end; False if that is far."""
        size = 0
        with trio.move_on_after(_SECONDS):
            while not self._is_over and size <= _MOST:
                size += len((await self.receive()).get("body", b""))
                await trio.lowlevel.checkpoint()
        return self._is_over

    async def throw_away(self) -> None:
        """Read until the connection ends: while nobody reads, Hypercorn cannot end it."""
        while not self._is_over:
            await self.receive()
            await trio.lowlevel.checkpoint()
