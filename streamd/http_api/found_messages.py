"""/api/stream/{vhost}/{name}/messages: single messages of a stream, found or browsed."""

from functools import partial
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segments.message import MessageView
from segments.message_json import message_json
from segments.search.page import FoundMessage
from segments.search.request import MAX_LIMIT
from segments.selector import Dialect
from streamd.http_api.caller import visitor_of
from streamd.http_api.description import Operation, described
from streamd.http_api.messages import (
    BadRequest,
    encoded,
    encoded_in_pieces,
    error_answer,
    joined_answer,
    part,
)
from streamd.http_api.schemas import FLAG, NUMBER, TEXT, about, text
from streamd.http_api.service import Service
from streamd.http_api.unsent import while_there
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.operations.errors import Busy
from streamd.operations.searching import FindMessages, FoundPage

SECONDS = 10.0  # for a page
_PATH = "/api/stream/{vhost}/{name}/messages"
# A byte may be a value, which takes 5 µs: larger messages are decoded in a thread.
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
    "latest": about({**FLAG, "default": False}, "Only the newest message of each key."),
}


class MessagePaths:
    """Messages of streams."""

    TITLE = "Messages"

    def __init__(self, service: Service) -> None:
        self._ask, self._unsent = service.ask, service.unsent
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
        user = visitor_of(request).name
        try:
            self._unsent.check(user)
            found = await while_there(request, partial(self._search, request))
            return self._unsent.counted(found, user)
        except Busy as busy:
            return error_answer(_TOO_MANY, "too_many_requests", busy.details)

    async def _search(self, request: Request) -> Response:
        vhost, name = part(request, "vhost"), part(request, "name")
        try:
            query = request.scope["query_string"].decode("ascii")
            words = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=1_000)
        except ValueError:
            raise BadRequest("the query is not UTF-8 in percent encoding, or too long") from None
        asked = FindMessages(vhost=vhost, stream=name, words=tuple(words), seconds=SECONDS)
        return await _answer(await self._ask(request, asked))


async def _answer(page: FoundPage) -> Response:
    rows = [
        _row(message) if len(message.raw) < _LARGE else await threads.compute(_large_row, message)
        async for message in in_turns(page.messages)
    ]
    rest = {
        "complete": page.cut is None,
        "cut_by": page.cut,
        "next": page.after or None,
        "looked_at": page.looked_at.as_dict(),
        "hint": page.hint or None,
    }
    if sum(map(len, rows)) < _PIECE_BYTES:
        return joined_answer("messages", rows, rest)
    return await threads.compute(joined_answer, "messages", rows, rest)


def _row(message: FoundMessage) -> bytes:
    return encoded(message_json(MessageView(message.raw), message.offset, message.timestamp_ms))


def _large_row(message: FoundMessage) -> bytes:
    found = message_json(MessageView(message.raw), message.offset, message.timestamp_ms)
    return encoded_in_pieces(found)
