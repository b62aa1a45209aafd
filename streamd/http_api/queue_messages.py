"""RabbitMQ's paths for single messages: published to an exchange, and got from a stream."""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from segments.search.page import FoundMessage
from segments.search.request import MAX_LIMIT
from streamd.http_api.caller import visitor_of
from streamd.http_api.description import Operation, described
from streamd.http_api.exchanges import exchange_part
from streamd.http_api.messages import (
    BadRequest,
    Row,
    encoded,
    encoded_in_pieces,
    error_answer,
    json_answer,
    listed_answer,
    mapping,
    part,
    read_body,
    text,
)
from streamd.http_api.schemas import some
from streamd.http_api.service import Service
from streamd.http_api.unsent import while_there
from streamd.net import threads
from streamd.net.turns import in_turns
from streamd.operations.errors import Busy
from streamd.operations.names import Name
from streamd.operations.publishing import DEFAULT_IN_RIGHTS, PublishToExchange
from streamd.operations.routing import DEFAULT_EXCHANGE, Scalar
from streamd.operations.searching import FindMessages, FoundPage
from streamd.wire.amqp091.errors import MAX_SHORT_TEXT, Fault
from streamd.wire.amqp091.messages.from_amqp10 import delivered
from streamd.wire.amqp091.messages.to_amqp10 import stored_body, stored_head
from streamd.wire.amqp091.properties import (
    FIELDS,
    FieldKind,
    Properties,
    decode_properties,
    encode_properties,
)
from streamd.wire.amqp091.values import MAX_DEPTH, Field, decode_short_text, text_field

_SECONDS = 10.0  # of searching
_LARGE = 2 << 10  # bytes of a message that is worked on in a thread
_MOST_TIME, _MOST_OCTET = 1 << 63, 1 << 8
_TOO_MANY = 429
_FIRST, _LAST = "first", "last"
_STRING, _BASE64, _AUTO = "string", "base64", "auto"
_KEPT = ("ack_requeue_true", "reject_requeue_true")
_DESTRUCTIVE = ("ack_requeue_false", "reject_requeue_false")
_KINDS = {name: kind for _, name, kind in FIELDS}


class QueueMessagePaths:
    """Single messages, as RabbitMQ's management has them."""

    TITLE = "Messages"

    def __init__(self, service: Service) -> None:
        self._ask, self._unsent = service.ask, service.unsent
        self.routes = [
            Route("/api/exchanges/{vhost}/{name}/publish", self._publish, methods=["POST"]),
            Route("/api/queues/{vhost}/{name}/get", self._get, methods=["POST"]),
        ]

    @described(Operation(answer="RoutedMessage", body="NewMessage", asks=PublishToExchange))
    async def _publish(self, request: Request) -> Response:
        """Publish a message to an exchange.

        It is answered when the message is stored. `amq.default` leads to the stream that the
        routing key names. For single messages: programs publish over the stream protocol or AMQP.
        """
        vhost, exchange = part(request, "vhost"), exchange_part(request, "name")
        body = await read_body(request)
        user = visitor_of(request).name
        asked = await threads.compute(_publication, vhost, exchange, user, body)
        return json_answer({"routed": (await self._ask(request, asked)).streams > 0})

    @described(
        Operation(
            answer=some("GotMessage"),
            body="NewGet",
            failures={_TOO_MANY: "Error"},
            needs="the right to read the stream",
        )
    )
    async def _get(self, request: Request) -> Response:
        """Messages of a stream from an offset on; they stay there.

        A user has one search at a time, of which this is one.
        """
        asked = await read_body(request)
        user = visitor_of(request).name
        try:
            self._unsent.check(user)
            found = await while_there(request, partial(self._got, request, asked))
            return self._unsent.counted(found, user)
        except Busy as busy:
            return error_answer(_TOO_MANY, "too_many_requests", busy.details)

    async def _got(self, request: Request, body: Row) -> Response:
        vhost, name = part(request, "vhost"), part(request, "name")
        wanted = _read_get(body)
        asked = FindMessages(vhost=vhost, stream=name, words=wanted.words, seconds=_SECONDS)
        page = await self._ask(request, asked)
        messages = page.messages[::-1] if wanted.is_last else page.messages
        make = partial(_row, name, page, wanted)
        return listed_answer(
            [
                encoded(make(message))
                if len(message.raw) < _LARGE
                else await threads.compute(_large_row, make, message)
                async for message in in_turns(messages)
            ]
        )


# -- publishing


def _publication(vhost: Name, exchange: Name, user: Name, body: Row) -> PublishToExchange:
    """What is to be published.

    Raises:
        BadRequest: it cannot be understood, or cannot be published.
    """
    key, payload = text(body, "routing_key"), text(body, "payload")
    properties = mapping(body, "properties")
    try:
        data = _payload(payload, text(body, "payload_encoding"))
        _check_key(key)
        raw = encode_properties(_properties(properties))
        head = stored_head(exchange, key, raw)
        message = head.sections + stored_body(data, is_encoded=head.is_encoded)
    except UnicodeEncodeError:
        raise BadRequest("a text has half a character (a lone surrogate)") from None
    except ValueError as error:
        raise BadRequest(f"a name or a short text is too long: {error}") from None
    except Fault as fault:
        raise BadRequest(fault.reason) from None
    if head.user_id not in (None, user):
        raise BadRequest(f"the property user_id is {head.user_id!r}, but you are {user}")
    headers: dict[str, Scalar] = {
        name: value
        for name, value in mapping(properties, "headers").items()
        if value is None or isinstance(value, str | int | float)
    }
    return PublishToExchange(
        vhost=vhost,
        exchange=DEFAULT_IN_RIGHTS if exchange == DEFAULT_EXCHANGE else exchange,
        keys=(key, *head.more_keys),
        message=message,
        filter_value=head.filter_value,
        headers=headers,
    )


def _check_key(key: str) -> None:
    size = len(key.encode())
    if size > MAX_SHORT_TEXT:
        raise BadRequest(f"routing_key has {size:,} bytes, expected at most {MAX_SHORT_TEXT}")


def _payload(payload: str, encoding: str) -> bytes:
    if encoding == _STRING:
        return payload.encode()
    if encoding != _BASE64:
        raise BadRequest(f"payload_encoding is {encoding[:40]!r}, expected string or base64")
    try:
        return b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("the payload is not base64, as payload_encoding says") from None


def _properties(given: Mapping[str, Any]) -> Properties:
    found = Properties()
    for name, value in given.items():
        if name not in _KINDS:
            known = ", ".join(_KINDS)
            raise BadRequest(f"{name[:40]!r} is no property of a message; those are {known}")
        if value is not None:
            setattr(found, name, _property(name, value))
    return found


def _property(name: str, value: object) -> object:
    kind = _KINDS[name]
    if kind is FieldKind.TABLE:
        table = _field(value)
        if table.tag != "F":
            raise BadRequest(f"{name} is not a JSON object")
        return table.value
    if kind is FieldKind.TEXT:
        if isinstance(value, str):
            return value
        raise BadRequest(f"the property {name} is not a string")
    most = _MOST_TIME if kind is FieldKind.TIME else _MOST_OCTET
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < most:
        return value
    raise BadRequest(f"the property {name} is not a whole number from 0 to {most - 1:,}")


def _field(value: object, depth: int = 0) -> Field:
    """A JSON value as a header."""
    if depth > MAX_DEPTH:
        raise BadRequest(f"the headers are nested more than {MAX_DEPTH} deep")
    match value:
        case bool():
            found = Field("t", value)
        case int() if -_MOST_TIME <= value < _MOST_TIME:
            found = Field("l", value)
        case int():
            raise BadRequest("a header is a number that does not fit into 64 bits")
        case float():
            found = Field("d", value)
        case str():
            found = text_field(value)
        case list():
            found = Field("A", [_field(item, depth + 1) for item in value])
        case dict():
            found = Field("F", {name: _field(item, depth + 1) for name, item in value.items()})
        case _:
            found = Field("V", None)
    return found


# -- getting


class _Get(NamedTuple):
    """What is asked for.

    Attributes:
        words: of the search.
        is_last: the newest ones are wanted.
        is_base64: of every payload.
        truncate: bytes of a payload, at most.
    """

    words: tuple[tuple[str, str], ...]
    is_last: bool
    is_base64: bool
    truncate: int | None


def _read_get(body: Row) -> _Get:
    mode = body.get("ackmode", _KEPT[0])
    if mode in _DESTRUCTIVE:
        raise BadRequest(
            f"ackmode is {mode}, but a stream keeps its messages whoever reads them: say "
            f"{' or '.join(_KEPT)}"
        )
    if mode not in _KEPT:
        raise BadRequest(f"ackmode is {str(mode)[:40]!r}, expected {' or '.join(_KEPT)}")
    encoding = body.get("encoding", _AUTO)
    if encoding not in (_AUTO, _BASE64):
        raise BadRequest(f"encoding is {str(encoding)[:40]!r}, expected auto or base64")
    words = [("limit", str(_whole(body, "count", 1, 1, MAX_LIMIT)))]
    begin = body.get("offset", _FIRST)
    if isinstance(begin, int) and not isinstance(begin, bool) and begin >= 0:
        begin = str(begin)
    if not isinstance(begin, str):
        raise BadRequest("offset is neither first, last, an offset nor a time")
    if begin == _LAST:
        words.append(("order", "newest"))
    elif begin.isdecimal():
        words.append(("offset", begin))
    elif begin != _FIRST:
        words.append(("from", begin))
    most = _whole(body, "truncate", 0, 0, _MOST_TIME) if "truncate" in body else None
    return _Get(tuple(words), begin == _LAST, encoding == _BASE64, most)


def _whole(body: Row, name: str, default: int, least: int, most: int) -> int:
    value: object = body.get(name, default)
    if (
        isinstance(value, str)
        and value.isascii()
        and value.isdecimal()
        and len(value) < len(str(most))
    ):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise BadRequest(f"{name} is {str(value)[:40]!r}, expected a number from {least:,} to {most:,}")


def _large_row(make: partial[Row], message: FoundMessage) -> bytes:
    return encoded_in_pieces(make(message))


def _row(stream: Name, page: FoundPage, wanted: _Get, message: FoundMessage) -> Row:
    """A message as RabbitMQ answers it, with its offset."""
    found = delivered(message.raw)
    head, body = found.head, found.body[: wanted.truncate]
    exchange, key = "", str(stream)
    if head.destination is not None:
        exchange, at = decode_short_text(head.destination, 0)
        key, _ = decode_short_text(head.destination, at)
    properties = decode_properties(head.before + message.offset.to_bytes(8, "big") + head.after)
    return {
        "offset": message.offset,
        "payload_bytes": len(found.body),
        "redelivered": False,
        "exchange": exchange,
        "routing_key": key,
        "message_count": max(0, page.end - message.offset - 1),
        "properties": {
            name: {header: _plain(value) for header, value in field.items()}
            if name == "headers"
            else field
            for name in _KINDS
            if (field := getattr(properties, name)) is not None
        },
        **_shown(body, is_base64=wanted.is_base64),
    }


def _shown(body: bytes, *, is_base64: bool) -> Row:
    if not is_base64:
        try:
            return {"payload": body.decode(), "payload_encoding": _STRING}
        except UnicodeDecodeError:
            pass
    return {"payload": b64encode(body).decode(), "payload_encoding": _BASE64}


def _plain(field: Field) -> Any:  # noqa: ANN401 - whatever JSON holds
    """A header as a JSON value."""
    match field.value:
        case bytes() as value:
            return value.decode(errors="replace")
        case list() as items:
            return [_plain(item) for item in items]
        case dict() as table:
            return {name: _plain(item) for name, item in table.items()}
    return field.value
