"""Large answers: made as long as somebody waits for them, and counted until they are taken."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from streamd.http_api.messages import BadRequest, NotFound
from streamd.operations.errors import Busy, Refused
from streamd.operations.names import Name

# Of answers that a user has not taken yet; with more than that, nothing more is searched. Who takes
# one at a time never gets there, but by a message that is larger itself.
_MOST_UNSENT_BYTES = 32 << 20
_NOBODY = 499  # reads this answer


class Unsent:
    """Answers that users have not taken yet: a peer may read slowly, or not at all."""

    def __init__(self) -> None:
        self._bytes: Counter[Name] = Counter()

    def check(self, user: Name) -> None:
        """Raise Busy while a user has left too much unread."""
        if self._bytes[user] > _MOST_UNSENT_BYTES:
            raise Busy(f"{user} has not read the answers to earlier searches: read them first")

    def counted(self, answer: Response, user: Name) -> Response:
        """An answer to a user that is counted while it is sent."""
        return _Counted(answer, partial(self.held, user, len(answer.body)))

    @contextmanager
    def held(self, user: Name, size: int) -> Iterator[None]:
        """Count bytes for a user as long as they are not sent."""
        self._bytes[user] += size
        try:
            yield
        finally:
            self._bytes[user] -= size
            if not self._bytes[user]:
                del self._bytes[user]


class _Counted(Response):
    """An answer that is counted while it is sent."""

    def __init__(self, answer: Response, held: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(answer.body, answer.status_code, dict(answer.headers))
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Starlette."""
        with self._held():
            await super().__call__(scope, receive, send)


async def while_there(request: Request, answer: Callable[[], Awaitable[Response]]) -> Response:
    """Answer a request, unless its client goes away: then nobody needs the rest of the work.

    Args:
        request: the request, whose body was read.
        answer: makes the answer; may refuse.
    """
    response = Response(status_code=_NOBODY)
    refused: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_when_gone, request, nursery.cancel_scope)
        try:
            response = await answer()
        except (Refused, NotFound, BadRequest) as error:  # not as a group
            refused = error
        nursery.cancel_scope.cancel()
    if refused is not None:
        raise refused
    return response


async def _cancel_when_gone(request: Request, scope: trio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        await trio.lowlevel.checkpoint()
    scope.cancel()
