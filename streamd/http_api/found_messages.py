"""/api/stream/{vhost}/{name}/messages: single messages of a stream, found or browsed."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from urllib.parse import parse_qsl

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from segments.message import MessageView
from segments.message_json import message_json
from segments.search import FoundMessage, Page
from segments.search.request import MAX_LIMIT
from segments.selector import Dialect
from streamd.broker.searches import Busy, Searches
from streamd.http_api.caller import caller_of
from streamd.http_api.description import Operation, described
from streamd.http_api.messages import (
    BadRequest,
    NotFound,
    encoded,
    encoded_in_pieces,
    error_answer,
    joined_answer,
    part,
)
from streamd.http_api.queues import host_of
from streamd.http_api.schemas import FLAG, NUMBER, TEXT, about, text
from streamd.http_api.service import Service
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.operations.errors import Refused
from streamd.operations.names import Name
from streamd.operations.rights import Right

SECONDS = 10.0  # for a page
_PATH = "/api/stream/{vhost}/{name}/messages"
# A byte may be a value, which takes 5 µs: larger messages are decoded in a thread.
_MESSAGES_A_TURN = 2
_LARGE = 2 << 10  # bytes of a message
_PIECE_BYTES = 4 << 20  # of an answer, copied at once
_TOO_MANY = 429
_MANY = {"type": "array", "items": TEXT}
_WORDS = {
    "key": about(_MANY, "A message has one of these keys; a key finds the number that it spells."),
    "property": about(
        _MANY,
        "In which keys are looked for, as `order_id` or `properties.message_id`; the key "
        "properties of the stream where none is named.",
    ),
    "from": text("Not before this time: ms since 1970, or as 2026-11-21T09:00:00Z."),
    "to": text("Not after this time."),
    "by": about(
        {**TEXT, "enum": ["chunk-time", "creation-time"], "default": "chunk-time"},
        "Which times those are: when messages were stored, or their own `creation_time`.",
    ),
    "sql": text("A SQL92 selector that is true of the message."),
    "dialect": about({**TEXT, "enum": list(Dialect), "default": "union"}, "Of `sql`."),
    "tags": text("Tags, with `||` between them, of which one is the message's property `TAGS`."),
    "filter": about(_MANY, "Filter values, on a stream with a filter property."),
    "offset": about({**NUMBER, "minimum": 0}, "The message to begin with."),
    "order": about(
        {**TEXT, "enum": ["oldest", "newest"], "default": "oldest"}, "Which message is the first."
    ),
    "limit": about(
        {**NUMBER, "minimum": 1, "maximum": MAX_LIMIT, "default": 100}, "Messages at most."
    ),
    "after": text("The token `next` of the page before, for the same search."),
    "latest": about({**FLAG, "default": False}, "Of each key only the newest message."),
}
# Of answers that a user has not taken yet; with more than that, nothing more is searched. Who takes
# one at a time never gets there, but by a message that is larger itself.
_MOST_UNSENT_BYTES = 32 << 20
_NOBODY = 499  # reads this answer


class MessagePaths:
    """Messages of streams."""

    TITLE = "Messages"

    def __init__(self, service: Service) -> None:
        self._broker = service.broker
        self._unsent = Unsent(service.broker.searches)
        self.routes = [Route(_PATH, self._find)]

    @described(
        Operation(
            answer="FoundMessages",
            query=_WORDS,
            failures={_TOO_MANY: "Error"},
            needs="the right to read the stream",
        )
    )
    async def _find(self, request: Request) -> Response:
        """Single messages of a stream, found by a key, or browsed.

        A user has one search at a time. It ends when its client goes away. Virtual hosts named
        `connections`, `publishers`, `consumers` and `super-streams` cannot be searched here:
        their paths are those of RabbitMQ.
        """
        user = caller_of(request).name
        try:
            self._unsent.check(user)
            async with self._broker.searches.alone(user):
                found = await while_there(request, partial(self._search, request))
            return self._unsent.counted(found, user)
        except Busy as busy:
            return error_answer(_TOO_MANY, "too_many_requests", str(busy))

    async def _search(self, request: Request) -> Response:
        host, name = host_of(self._broker.virtual_hosts, request), part(request, "name")
        may_read = partial(caller_of(request).rights(host.name).require, Right.READ, name)
        may_read()
        if not host.has_stream(name):
            raise NotFound
        try:
            query = request.scope["query_string"].decode("ascii")
            words = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=1_000)
        except ValueError:
            raise BadRequest("the query is not UTF-8 in percent encoding, or too long") from None
        page = await self._broker.searches.find(host, name, words, may_read, SECONDS)
        return await _answer(page)


class Unsent:
    """Answers that users have not taken yet: a peer may read slowly, or not at all.

    Args:
        searches: of the server, which counts the bytes.
    """

    def __init__(self, searches: Searches) -> None:
        self._bytes = searches.unsent

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


async def _answer(page: Page) -> Response:
    rows = [
        _row(message) if len(message.raw) < _LARGE else await threads.compute(_large_row, message)
        async for message in in_turns(page.messages, _MESSAGES_A_TURN)
    ]
    rest = {
        "complete": page.cut is None,
        "cut_by": page.cut,
        "next": page.after or None,
        "looked_at": page.looked_at.as_dict(),
    }
    if sum(map(len, rows)) < _PIECE_BYTES:
        return joined_answer("messages", rows, rest)
    return await threads.compute(joined_answer, "messages", rows, rest)


def _row(message: FoundMessage) -> bytes:
    return encoded(message_json(MessageView(message.raw), message.offset, message.timestamp_ms))


def _large_row(message: FoundMessage) -> bytes:
    found = message_json(MessageView(message.raw), message.offset, message.timestamp_ms)
    return encoded_in_pieces(found)
