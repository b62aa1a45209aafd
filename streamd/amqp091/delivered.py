"""From the AMQP 1.0 message that a stream keeps to what a consumer gets.

Nothing that a stream client may have written is an error here: what has no counterpart in 0-9-1
is left out, and bytes that are no message are delivered as they are.

Source: amqp091 reference, 4.2 to 4.4.
"""

import struct
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from segments.amqp10 import MAX_DEPTH, Opaque, decode_value, skip_value
from segments.errors import FormatError
from segments.message import MessageView, Section, walk_sections
from streamd.amqp091.errors import MAX_SHORT_TEXT
from streamd.amqp091.properties import Properties, encode_properties
from streamd.amqp091.stored import (
    CC,
    ENCODED_BODY,
    EXCHANGE,
    QUEUES,
    ROUTING_KEY,
    TYPE,
    UUID_PREFIX,
)
from streamd.amqp091.values import encode_long_text, encode_short_text

OFFSET = "x-stream-offset"
_CACHED_BYTES = 1024
_HIDDEN = frozenset((EXCHANGE, ROUTING_KEY, TYPE, CC, "x-death", OFFSET))
_HIDDEN_PREFIX = "x-basic-"
_RENAMED = {"x-opt-rabbitmq-received-time": "timestamp_in_ms", "x-opt-deaths": "x-death"}
_SHORT_DESCRIPTOR = b"\x00\x53"
_DATA_START = b"\x00\x53\x75"
_LISTS = {0x45: 0, 0xC0: 1, 0xD0: 4}  # width of size and count
_MAPS = {0xC1: 1, 0xD1: 4}
_BOOLEANS = {b"\x41": True, b"\x42": False, b"\x56\x01": True, b"\x56\x00": False}


class DeliveredHead(NamedTuple):
    """All of a message but its body, with room for the offset in the middle.

    Attributes:
        destination: the exchange it was published to and the routing key, as a method has them;
            None where that is not known.
        before, after: the properties, around the 8 bytes of the offset.
    """

    destination: bytes | None
    before: bytes
    after: bytes


class Delivered(NamedTuple):
    """A message for a consumer."""

    head: DeliveredHead
    body: bytes


def delivered(raw: bytes) -> Delivered:
    """What is delivered of a stored message."""
    try:
        at = _body_start(raw)
        if raw[at : at + 3] == _DATA_START:
            body = _only_data(raw, at + 3)
            if body is not None:
                read = _head_again if at <= _CACHED_BYTES else _head
                return Delivered(read(raw[:at]), body)
        view = MessageView(raw)
        if not view.is_amqp:
            return Delivered(_head_again(b""), raw)
        if any(code == Section.DATA for code, _, _ in walk_sections(raw, at)):
            return Delivered(_head(raw[:at]), view.body)
        return Delivered(_head(raw[:at], ENCODED_BODY), raw[at:])
    except FormatError:
        return Delivered(_head_again(b""), raw)


def _body_start(raw: bytes) -> int:
    """Where the first body section begins, or the end."""
    at, size = 0, len(raw)
    while at < size:
        if raw[at : at + 2] != _SHORT_DESCRIPTOR:
            return _body_start_slowly(raw, at)
        if at + 3 > size or raw[at + 2] >= Section.DATA:
            return at
        at = skip_value(raw, at + 3)
    return at


def _body_start_slowly(raw: bytes, at: int) -> int:
    sections = walk_sections(raw, at)
    return next((start for code, start, _ in sections if code >= Section.DATA), len(raw))


def _only_data(raw: bytes, at: int) -> bytes | None:
    """The bytes of the data section whose value is at `at`, when it is the last section."""
    end = skip_value(raw, at)
    if end != len(raw):
        return None
    code = raw[at]
    if code == 0xA0:  # noqa: PLR2004 - short binary
        return raw[at + 2 : end]
    return raw[at + 5 : end] if code == 0xB0 else None  # noqa: PLR2004 - long binary


# -- the head


def _head(sections: bytes, kind: str | None = None) -> DeliveredHead:
    found = Properties()
    headers: dict[str, bytes] = {}
    places: dict[int, int] = {}
    for code, _, at in walk_sections(sections):
        places.setdefault(code, at)
    destination = None
    if Section.MESSAGE_ANNOTATIONS in places:
        routing = _read_annotations(sections, places[Section.MESSAGE_ANNOTATIONS], found, headers)
        if ROUTING_KEY in routing:
            parts = (routing.get(EXCHANGE, ""), routing[ROUTING_KEY])
            destination = b"".join(map(encode_short_text, parts))
    if Section.HEADER in places:
        _read_header(_items(sections, places[Section.HEADER]), found)
    if Section.PROPERTIES in places:
        _read_properties(_items(sections, places[Section.PROPERTIES]), found, headers)
    if Section.APPLICATION_PROPERTIES in places:
        _read_application(sections, places[Section.APPLICATION_PROPERTIES], headers)
    if kind is not None:
        found.type = kind
    elif found.type == ENCODED_BODY:
        found.type = None
    return DeliveredHead(destination, *_around_offset(found, headers))


_head_again = lru_cache(maxsize=2048)(_head)


def _around_offset(properties: Properties, headers: dict[str, bytes]) -> tuple[bytes, bytes]:
    """Encoded properties, cut where the offset goes; headers stand in the order of their names."""
    headers[OFFSET] = b"l" + bytes(8)
    entries = {name: encode_short_text(name) + field for name, field in headers.items()}
    names = sorted(headers)
    own = names.index(OFFSET)
    first = b"".join(entries[name] for name in names[: own + 1])
    table = encode_long_text(first + b"".join(entries[name] for name in names[own + 1 :]))
    encoded = encode_properties(properties, table)
    # Before the table stand the flags and two short texts at most: found by its length.
    start = encoded.index(table) + 4 + len(first)
    return encoded[: start - 8], encoded[start:]


def _items(raw: bytes, at: int) -> list[bytes]:
    """The encoded items of the list or map at a position."""
    width = {**_LISTS, **_MAPS}.get(raw[at])
    if width is None:
        raise FormatError("a section is neither a list nor a map")
    if not width:
        return []
    count = int.from_bytes(raw[at + 1 + width : at + 1 + 2 * width], "big")
    at += 1 + 2 * width
    items = []
    for _ in range(count):
        end = skip_value(raw, at)
        items.append(raw[at:end])
        at = end
    return items


def _pairs(raw: bytes, at: int) -> Iterator[tuple[str, bytes, bytes]]:
    """Name, encoded key and encoded value of a map; what is not named by a text is left out."""
    items = _items(raw, at)
    for key, value in zip(items[::2], items[1::2], strict=False):
        name = _text_of(key)
        if name is not None:
            yield name, key, value


def _text_of(raw: bytes) -> str | None:
    """A short enough text or symbol."""
    if raw[:1] not in (b"\xa1", b"\xb1", b"\xa3", b"\xb3"):
        return None
    body = raw[2 if raw[0] < 0xB0 else 5 :]  # noqa: PLR2004 - of a short one
    if len(body) > MAX_SHORT_TEXT:
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _read_annotations(
    raw: bytes, at: int, found: Properties, headers: dict[str, bytes]
) -> dict[str, str]:
    """Fill in what annotations say; returns the exchange and routing key among them."""
    routing: dict[str, str] = {}
    for name, _, value in _pairs(raw, at):
        text = _text_of(value)
        if name in (EXCHANGE, ROUTING_KEY):
            if text is not None:
                routing.setdefault(name, text)
        elif name == TYPE:
            found.type = text
        elif name == "x-basic-delivery-mode":
            found.delivery_mode = _octet(value)
        elif name == "x-basic-priority":
            found.priority = _octet(value)
        elif name == "x-basic-expiration":
            found.expiration = text
        else:
            _add_annotation(name, value, headers)
    return routing


def _add_annotation(name: str, value: bytes, headers: dict[str, bytes]) -> None:
    shown = "CC" if name == CC else _RENAMED.get(name)
    if shown is None:
        is_hidden = name in _HIDDEN or name.startswith(_HIDDEN_PREFIX)
        if is_hidden or not name.startswith("x-"):
            return
        shown = name
    field = delivered_field(value)
    if field is not None:
        if shown == "timestamp_in_ms" and field[:1] == b"T":
            field = b"l" + value[1:9]
        headers.setdefault(shown, field)


def _octet(raw: bytes) -> int | None:
    value, _ = decode_value(raw)
    return value if isinstance(value, int) and 0 <= value < 1 << 8 else None


def _read_application(raw: bytes, at: int, headers: dict[str, bytes]) -> None:
    for name, _, value in _pairs(raw, at):
        field = delivered_field(value)
        if field is not None:
            headers.setdefault(name, field)


def _read_header(items: list[bytes], found: Properties) -> None:
    durable, priority, ttl = (*items[:3], b"\x40", b"\x40", b"\x40")[:3]
    is_durable = _BOOLEANS.get(durable)
    if is_durable is not None:
        found.delivery_mode = 2 if is_durable else 1
    if priority != b"\x40":
        found.priority = _octet(priority)
    if ttl != b"\x40":
        value, _ = decode_value(ttl)
        found.expiration = str(value) if isinstance(value, int) else None


_MESSAGE_ID, _USER_ID, _REPLY_TO, _CORRELATION_ID = 0, 1, 4, 5
_CONTENT_TYPE, _CONTENT_ENCODING, _CREATION_TIME, _GROUP_ID = 6, 7, 9, 10
_FIELD_COUNT = 13


def _read_properties(items: list[bytes], found: Properties, headers: dict[str, bytes]) -> None:
    items = items + [b"\x40"] * (_FIELD_COUNT - len(items))
    found.message_id = _id_text(items[_MESSAGE_ID], "x-message-id", headers)
    found.correlation_id = _id_text(items[_CORRELATION_ID], "x-correlation-id", headers)
    found.user_id = _user(items[_USER_ID])
    found.reply_to = _reply_to(_text_of(items[_REPLY_TO]))
    found.content_type = _text_of(items[_CONTENT_TYPE])
    found.content_encoding = _text_of(items[_CONTENT_ENCODING])
    found.app_id = _text_of(items[_GROUP_ID])
    created = items[_CREATION_TIME]
    if created[0] == 0x83:  # noqa: PLR2004 - timestamp
        ms = int.from_bytes(created[1:], "big", signed=True)
        found.timestamp = ms // 1000 if ms >= 0 else None


def _id_text(raw: bytes, long_name: str, headers: dict[str, bytes]) -> str | None:
    """An id as a short text; one that does not fit becomes a header."""
    value, _ = decode_value(raw)
    if isinstance(value, uuid.UUID):
        return f"{UUID_PREFIX}{value}"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bytes):
        headers.setdefault(long_name, b"x" + encode_long_text(value))
    elif isinstance(value, str):
        if len(value.encode()) <= MAX_SHORT_TEXT:
            return value
        headers.setdefault(long_name, b"S" + encode_long_text(value.encode()))
    return None


def _user(raw: bytes) -> str | None:
    value, _ = decode_value(raw)
    if not isinstance(value, bytes) or len(value) > MAX_SHORT_TEXT or b"\0" in value:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _reply_to(text: str | None) -> str | None:
    if text is None or not text.startswith(QUEUES):
        return text
    try:
        plain = unquote(text[len(QUEUES) :], errors="strict")
    except UnicodeDecodeError:
        return text
    return plain if len(plain.encode()) <= MAX_SHORT_TEXT else text


# -- values, by type code


def delivered_field(raw: bytes, depth: int = 0) -> bytes | None:
    """One encoded AMQP 1.0 value as a tagged value; None when it has no counterpart."""
    code = raw[0]
    if code in _SAME_BYTES:
        tag, size = _SAME_BYTES[code]
        return tag + raw[1 : 1 + size]
    convert = _CONVERTERS.get(code)
    if convert is None or depth > MAX_DEPTH:
        return None
    return convert(raw, depth)


# The bytes behind the code are those behind the tag.
_SAME_BYTES: dict[int, tuple[bytes, int]] = {
    0x40: (b"V", 0),
    0x50: (b"B", 1),
    0x51: (b"b", 1),
    0x60: (b"u", 2),
    0x61: (b"s", 2),
    0x70: (b"i", 4),
    0x71: (b"I", 4),
    0x81: (b"l", 8),
}
_Converter = Callable[[bytes, int], bytes | None]


def _constant(field: bytes) -> _Converter:
    return lambda _raw, _depth: field


def _signed(tag: bytes, size: int) -> _Converter:
    return lambda raw, _depth: (
        tag + int.from_bytes(raw[1:2], "big", signed=True).to_bytes(size, "big", signed=True)
    )


def _unsigned(tag: bytes, size: int) -> _Converter:
    return lambda raw, _depth: tag + raw[1:2].rjust(size, b"\0")


def _long(raw: bytes, _depth: int) -> bytes | None:
    return b"l" + raw[1:9] if raw[1] < 0x80 else None  # noqa: PLR2004 - does not fit


def _finite(tag: bytes, form: str) -> _Converter:
    def convert(raw: bytes, _depth: int) -> bytes | None:
        (value,) = struct.unpack_from(form, raw, 1)
        is_finite = value == value and value not in (float("inf"), float("-inf"))  # noqa: PLR0124
        return tag + raw[1:] if is_finite else None

    return convert


def _time(raw: bytes, _depth: int) -> bytes | None:
    ms = int.from_bytes(raw[1:9], "big", signed=True)
    return b"T" + (ms // 1000).to_bytes(8, "big") if ms >= 0 else None


def _uuid(raw: bytes, _depth: int) -> bytes:
    return b"S" + encode_long_text(f"{UUID_PREFIX}{uuid.UUID(bytes=raw[1:17])}".encode())


def _list(raw: bytes, depth: int) -> bytes:
    fields = [delivered_field(item, depth + 1) for item in _items(raw, 0)]
    return b"A" + encode_long_text(b"".join(field for field in fields if field is not None))


def _map(raw: bytes, depth: int) -> bytes:
    parts: dict[str, bytes] = {}
    for name, _, value in _pairs(raw, 0):
        field = delivered_field(value, depth + 1)
        if field is not None:
            parts.setdefault(name, encode_short_text(name) + field)
    return b"F" + encode_long_text(b"".join(parts.values()))


# How many bytes an element has, by the high half of its code; below 0 the width of its length.
_WIDTHS = {0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16, 0xA: -1, 0xB: -4, 0xC: -1, 0xD: -4}


def _array(raw: bytes, depth: int) -> bytes | None:
    value, _ = decode_value(raw)
    if isinstance(value, Opaque):  # of elements that have no width, or are described
        return None
    width = 1 if raw[0] < 0xF0 else 4  # noqa: PLR2004 - the long form
    count = int.from_bytes(raw[1 + width : 1 + 2 * width], "big")
    at = 1 + 2 * width
    constructor, at = raw[at : at + 1], at + 1
    element = _WIDTHS.get(constructor[0] >> 4)
    if element is None:
        return None
    fields: list[bytes] = []
    for _ in range(count):
        size = element
        if element < 0:
            size = -element + int.from_bytes(raw[at : at - element], "big")
        field = delivered_field(constructor + raw[at : at + size], depth + 1)
        if field is not None:
            fields.append(field)
        at += size
    return b"A" + encode_long_text(b"".join(fields))


def _text(raw: bytes, _depth: int) -> bytes:
    body: Any = raw[2:] if raw[0] < 0xB0 else raw[5:]  # noqa: PLR2004 - of a short one
    return b"S" + encode_long_text(body)


_CONVERTERS: dict[int, _Converter] = {
    0x41: _constant(b"t\1"),
    0x42: _constant(b"t\0"),
    0x43: _constant(b"i" + bytes(4)),
    0x44: _constant(b"l" + bytes(8)),
    0x45: _constant(b"A" + bytes(4)),
    0x52: _unsigned(b"i", 4),
    0x53: _unsigned(b"l", 8),
    0x54: _signed(b"I", 4),
    0x55: _signed(b"l", 8),
    0x56: lambda raw, _depth: b"t\1" if raw[1] else b"t\0",
    0x72: _finite(b"f", ">f"),
    0x80: _long,
    0x82: _finite(b"d", ">d"),
    0x83: _time,
    0x98: _uuid,
    0xA0: _text,
    0xA1: _text,
    0xA3: _text,
    0xB0: _text,
    0xB1: _text,
    0xB3: _text,
    0xC0: _list,
    0xC1: _map,
    0xD0: _list,
    0xD1: _map,
    0xE0: _array,
    0xF0: _array,
}
