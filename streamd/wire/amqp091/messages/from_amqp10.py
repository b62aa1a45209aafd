"""From the AMQP 1.0 message that a stream keeps to what a consumer gets.

Nothing that a stream client may have written is an error here: parts without counterpart in 0-9-1
are left out, as are headers when they have more than MAX_VALUES together. Bytes that are not a
message are delivered as they are, and so is one with more than MAX_SECTIONS.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/mc_amqpl.erl and deps/rabbit/src/mc_amqp.erl.
"""

import struct
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from segments import amqp10_codes as codes
from segments.amqp10 import skip_value
from segments.amqp10_codes import SHORT_DESCRIPTOR, Section
from segments.errors import FormatError
from segments.message import MessageView
from streamd.wire.amqp091.errors import MAX_SHORT_TEXT
from streamd.wire.amqp091.messages.simple_headers import Layout, Names, layout_of, simple_headers
from streamd.wire.amqp091.messages.to_amqp10 import ENCODED_BODY, QUEUES, TYPE, UUID_PREFIX
from streamd.wire.amqp091.messages.value_conversion import (
    delivered_field,
    items,
    pairs,
    scalar,
    text_of,
)
from streamd.wire.amqp091.properties import Properties, decode_properties, encode_present
from streamd.wire.amqp091.values import MAX_VALUES, Room, encode_long_text, encode_short_text
from streamd.wire.stored_messages import (
    CC,
    EXCHANGE,
    MAX_SECTIONS,
    OFFSET,
    ROUTING_KEY,
    TooManyError,
    some_sections,
)

_OFFSET_ENTRY = encode_short_text(OFFSET) + b"l" + bytes(8)
_OFFSET_NAME = OFFSET.encode()
_CACHED_BYTES = 1024
_USUAL_VALUES = 16  # of properties and headers: more of them cost more
_PART_PRICE = 64  # bytes that take as long to send as a value or a section takes to read
_HIDDEN = frozenset((EXCHANGE, ROUTING_KEY, TYPE, CC, "x-death", OFFSET))
_HIDDEN_PREFIX = "x-basic-"
_RENAMED = {"x-opt-rabbitmq-received-time": "timestamp_in_ms", "x-opt-deaths": "x-death"}
_DATA, _APPLICATION = int(Section.DATA), int(Section.APPLICATION_PROPERTIES)
_DATA_START = SHORT_DESCRIPTOR + bytes((_DATA,))
_TABLE_SIZE = struct.Struct(">I")
_BOOLEANS = {
    bytes((codes.TRUE,)): True,
    bytes((codes.FALSE,)): False,
    bytes((codes.BOOLEAN, 1)): True,
    bytes((codes.BOOLEAN, 0)): False,
}


_Span: TypeAlias = tuple[int, int]


class DeliveredHead(NamedTuple):
    """All of a message except its body, with room for the offset in the middle.

    Attributes:
        destination: the exchange it was published to and the routing key, as a method has them;
            None where that is not known.
        before, after: the properties, around the 8 bytes of the offset.
        price: of reading it, in bytes that would have taken as long to send.
    """

    destination: bytes | None
    before: bytes
    after: bytes
    price: int


class Delivered(NamedTuple):
    """A message for a consumer."""

    head: DeliveredHead
    body: bytes


def delivered(raw: bytes) -> Delivered:
    """What is delivered of a stored message."""
    try:
        at, application = _outline(raw)
        if raw[at : at + 3] == _DATA_START:
            body = _only_data(raw, at + 3)
            if body is not None:
                read = _usual_head_again if at <= _CACHED_BYTES else _usual_head
                return Delivered(read(raw[:at], application), body)
        found = [(code, value) for code, _, value in some_sections(raw)]
        if not MessageView(raw).is_amqp:
            return Delivered(_NO_HEAD, raw)
        if any(code == Section.DATA for code, _ in found):
            parts = [_binary(raw, value) for code, value in found if code == Section.DATA]
            head, body = _head(raw[:at]), b"".join(parts)
        else:
            head, body = _head(raw[:at], ENCODED_BODY), raw[at:]
        return Delivered(head._replace(price=head.price + len(found) * _PART_PRICE), body)
    except FormatError:
        return Delivered(_NO_HEAD, raw)


def is_dear(raw: bytes) -> bool:
    """Whether delivering a stored message may take much longer than sending it."""
    if len(raw) <= _CACHED_BYTES:
        return False
    try:
        return _outline(raw)[0] > _CACHED_BYTES
    except FormatError:
        return False


def _outline(raw: bytes) -> tuple[int, _Span | None]:
    """Where the first body section begins, or the end; and where the application properties are.

    Those are only told where they are one section, of the usual form.
    """
    at, size = 0, len(raw)
    found: _Span | None = None
    num_found = 0
    for _ in range(MAX_SECTIONS):
        if at >= size:
            break
        if raw[at : at + 2] != SHORT_DESCRIPTOR:
            return _body_start_slowly(raw, at), None
        if at + 3 > size or raw[at + 2] >= _DATA:
            break
        begin, at = at, skip_value(raw, at + 3)
        if raw[begin + 2] == _APPLICATION:
            num_found += 1
            found = (begin, at) if raw[begin + 3] == codes.MAP_8 else None
    else:
        raise TooManyError(f"more than {MAX_SECTIONS:,} sections")
    return at, found if num_found == 1 else None


def _body_start_slowly(raw: bytes, at: int) -> int:
    sections = some_sections(raw, at)
    return next((start for code, start, _ in sections if code >= Section.DATA), len(raw))


def _only_data(raw: bytes, at: int) -> bytes | None:
    """The bytes of the data section whose value is at `at`, when it is the last section."""
    is_last = skip_value(raw, at) == len(raw)
    return _binary(raw, at) if is_last and raw[at] in codes.BINARIES else None


def _binary(raw: bytes, at: int) -> bytes:
    """The bytes of a data section whose value is at `at`; none where it is something else."""
    if raw[at] not in codes.BINARIES:
        return b""
    return raw[at + (2 if raw[at] == codes.BINARY_8 else 5) : skip_value(raw, at)]


# -- the head


class _Noted(NamedTuple):
    """The contents of one section: properties, headers in order, destination, values read."""

    properties: tuple[tuple[str, Any], ...] = ()
    headers: tuple[tuple[str, bytes], ...] = ()
    destination: bytes | None = None
    num_values: int = 0


class _Frame(NamedTuple):
    """What all sections but the body say.

    Attributes:
        properties: by name, but for the headers.
        headers: in the form in which they are sent, by name.
        destination: see DeliveredHead.
        num_values: that were read.
    """

    properties: dict[str, Any]
    headers: dict[str, bytes]
    destination: bytes | None
    num_values: int

    def head(self) -> DeliveredHead:
        """As a consumer gets it."""
        price = max(self.num_values - _USUAL_VALUES, 0) * _PART_PRICE
        return DeliveredHead(
            self.destination, *_around_offset(self.properties, self.headers), price
        )


def _head(sections: bytes, kind: str | None = None) -> DeliveredHead:
    """The head of a message of any form, from the sections before its body."""
    frame = _frame(sections)
    if kind is not None:
        frame.properties["type"] = kind
    elif frame.properties.get("type") == ENCODED_BODY:
        del frame.properties["type"]
    return frame.head()


def _frame(sections: bytes) -> _Frame:
    noted: dict[int, _Noted] = {}
    for code, at, end in _sections(sections):
        reader = _READERS.get(code)
        if reader is not None and code not in noted:
            read, read_again = reader
            # If anything differs from message to message, it is the properties.
            try:
                noted[code] = (read_again if end - at <= _CACHED_BYTES else read)(sections[at:end])
            except TooManyError:
                noted[code] = _Noted(num_values=MAX_VALUES)
    found: dict[str, Any] = {}
    headers: dict[str, bytes] = {}
    # Annotations first: what they say of priorities and the like counts where no header does.
    for code in (Section.MESSAGE_ANNOTATIONS, Section.HEADER, *_FREE):
        part = noted.get(code)
        if part is not None:
            found.update(part.properties)
            for name, field in part.headers:
                headers.setdefault(name, field)
    num_values = sum(part.num_values for part in noted.values())
    if num_values > MAX_VALUES:  # no table may have so many
        headers.clear()
    annotations = noted.get(Section.MESSAGE_ANNOTATIONS)
    destination = annotations.destination if annotations else None
    return _Frame(found, headers, destination, num_values)


_FREE = (Section.PROPERTIES, Section.APPLICATION_PROPERTIES)


class _Around:
    """What messages have in common that differ in their application properties alone.

    Args:
        sections: all but the application properties and the body.

    Attributes:
        front, back: the properties before the headers and behind them.
        destination, num_values: see _Frame.
    """

    __slots__ = ("_headers", "back", "destination", "front", "num_values")

    def __init__(self, sections: bytes) -> None:
        found, headers, self.destination, self.num_values = _frame(sections)
        if found.get("type") == ENCODED_BODY:
            del found["type"]
        before, self.back = _around_offset(found, {})
        self.front = before[: 8 - len(_OFFSET_ENTRY) - _TABLE_SIZE.size]
        self._headers = {name.encode(): encode_short_text(name) + headers[name] for name in headers}
        self._headers[_OFFSET_NAME] = _OFFSET_ENTRY

    def layout(self, names: Names) -> Layout | None:
        """Where headers of some names go; None where that is for the general reader."""
        return layout_of(names, self._headers, _OFFSET_NAME)


_around_again = lru_cache(maxsize=1024)(_Around)
_layout_again = lru_cache(maxsize=1024)(_Around.layout)


def _usual_head(sections: bytes, application: _Span | None) -> DeliveredHead:
    """The head of a message whose body is one data section; see `_outline`."""
    if application is None:
        return _head(sections)
    begin, end = application
    rest = sections[:begin] + sections[end:]
    is_short = len(rest) <= _CACHED_BYTES
    around = (_around_again if is_short else _Around)(rest)
    num_values = around.num_values + sections[begin + 5]
    headers = simple_headers(sections, begin + 3, end)
    if headers is None or num_values > MAX_VALUES:
        return _head(sections)
    names, fields = headers
    layout = (_layout_again if is_short else _Around.layout)(around, names)
    if layout is None:
        return _head(sections)
    first, last = layout.before.fill(fields), layout.after.fill(fields)
    before = around.front + _TABLE_SIZE.pack(len(first) + len(last)) + first[:-8]
    price = max(num_values - _USUAL_VALUES, 0) * _PART_PRICE
    return DeliveredHead(around.destination, before, last + around.back, price)


_usual_head_again = lru_cache(maxsize=2048)(_usual_head)


def _sections(raw: bytes) -> Iterator[tuple[int, int, int]]:
    """Code, and where the value begins and ends, of each section."""
    at, size = 0, len(raw)
    while at < size:
        if raw[at : at + 2] != SHORT_DESCRIPTOR or at + 2 >= size:
            for code, _, value in some_sections(raw, at):
                yield code, value, skip_value(raw, value)
            return
        end = skip_value(raw, at + 3)
        yield raw[at + 2], at + 3, end
        at = end


def _around_offset(properties: dict[str, Any], headers: dict[str, bytes]) -> tuple[bytes, bytes]:
    """Encoded properties, cut where the offset goes; headers stand in the order of their names."""
    first, last = _OFFSET_ENTRY, b""
    if headers:
        entries = [(name, encode_short_text(name) + headers[name]) for name in sorted(headers)]
        first = b"".join([entry for name, entry in entries if name < OFFSET]) + _OFFSET_ENTRY
        last = b"".join([entry for name, entry in entries if name > OFFSET])
    encoded = encode_present(properties, encode_long_text(first + last))
    start = 2 + 4 + len(first)  # flags, and the length of the table
    for name in ("content_type", "content_encoding"):  # what stands before it
        text = properties.get(name)
        if text is not None:
            start += 1 + len(text.encode())
    return encoded[: start - 8], encoded[start:]


_NO_HEAD = _Frame({}, {}, None, 0).head()


def without_headers(before: bytes, after: bytes) -> tuple[bytes, bytes]:
    """A head's parts around the offset, with no header but that: the rest is some kilobytes."""
    room = Room()
    room.left = sys.maxsize
    given = decode_properties(before + bytes(8) + after, room)
    properties = {name: getattr(given, name) for name in Properties.__slots__ if name != "headers"}
    return _around_offset(properties, {})


def _read_annotations(raw: bytes) -> _Noted:
    """The contents of annotations: also the exchange and the routing key."""
    routing: dict[str, str] = {}
    properties: list[tuple[str, Any]] = []
    headers: list[tuple[str, bytes]] = []
    room = Room()
    for name, value in pairs(raw, room):
        text = text_of(value)
        if name in (EXCHANGE, ROUTING_KEY):
            if text is not None:
                routing.setdefault(name, text)
        elif name in (TYPE, "x-basic-expiration"):
            properties.append(("type" if name == TYPE else "expiration", text))
        elif name in _OLD_OCTETS:
            properties.append((_OLD_OCTETS[name], _octet(value)))
        else:
            headers += _annotation(name, value, room)
    destination = None
    if ROUTING_KEY in routing:
        parts = (routing.get(EXCHANGE, ""), routing[ROUTING_KEY])
        destination = b"".join(map(encode_short_text, parts))
    return _Noted(tuple(properties), tuple(headers), destination, room.taken)


# Where RabbitMQ 3 kept them.
_OLD_OCTETS = {"x-basic-delivery-mode": "delivery_mode", "x-basic-priority": "priority"}


def _annotation(name: str, value: bytes, room: Room) -> Iterator[tuple[str, bytes]]:
    """The header that an annotation becomes, if it becomes one."""
    shown = "CC" if name == CC else _RENAMED.get(name)
    if shown is None:
        is_hidden = name in _HIDDEN or name.startswith(_HIDDEN_PREFIX)
        if is_hidden or not name.startswith("x-"):
            return
        shown = name
    field = delivered_field(value, room)
    if field is not None:
        if shown == "timestamp_in_ms" and field[:1] == b"T":
            field = b"l" + value[1:9]
        yield shown, field


def _octet(raw: bytes) -> int | None:
    value = scalar(raw)
    return value if isinstance(value, int) and 0 <= value < 1 << 8 else None


def _read_application(raw: bytes) -> _Noted:
    room = Room()
    given = [(name, delivered_field(value, room)) for name, value in pairs(raw, room)]
    headers = tuple((name, field) for name, field in given if field is not None)
    return _Noted(headers=headers, num_values=room.taken)


def _read_header(raw: bytes) -> _Noted:
    durable, priority, ttl = (*items(raw, 0, Room()), _NULL, _NULL, _NULL)[:3]
    found: list[tuple[str, Any]] = []
    is_durable = _BOOLEANS.get(durable)
    if is_durable is not None:
        found.append(("delivery_mode", 2 if is_durable else 1))
    if priority != _NULL:
        found.append(("priority", _octet(priority)))
    if ttl != _NULL:
        value = scalar(ttl)
        found.append(("expiration", str(value) if isinstance(value, int) else None))
    return _Noted(tuple(found))


def _read_properties(raw: bytes) -> _Noted:
    properties: list[tuple[str, Any]] = []
    headers: dict[str, bytes] = {}
    room = Room()
    for index, item in enumerate(items(raw, 0, room)):
        if item == _NULL or index not in _FIELDS:
            continue
        name = _FIELDS[index]
        if index in _IDS:
            properties.append((name, _id_text(item, _IDS[index], headers)))
        else:
            properties.append((name, _CONVERT_FIELD.get(name, text_of)(item)))
    return _Noted(tuple(properties), tuple(headers.items()), num_values=room.taken)


_NULL = bytes((codes.NULL,))
_FIELDS = {
    0: "message_id",
    1: "user_id",
    4: "reply_to",
    5: "correlation_id",
    6: "content_type",
    7: "content_encoding",
    9: "timestamp",
    10: "app_id",
}
_IDS = {0: "x-message-id", 5: "x-correlation-id"}  # the headers that long ones become


def _seconds(raw: bytes) -> int | None:
    if raw[0] != codes.TIMESTAMP:
        return None
    ms = int.from_bytes(raw[1:], "big", signed=True)
    return ms // 1000 if ms >= 0 else None


def _id_text(raw: bytes, long_name: str, headers: dict[str, bytes]) -> str | None:
    """An id as a short string; one that does not fit becomes a header."""
    value = scalar(raw)
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
    value = scalar(raw)
    if not isinstance(value, bytes) or len(value) > MAX_SHORT_TEXT or b"\0" in value:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _reply_to(raw: bytes) -> str | None:
    text = text_of(raw)
    if text is None or not text.startswith(QUEUES):
        return text
    try:
        plain = unquote(text[len(QUEUES) :], errors="strict")
    except UnicodeDecodeError:
        return text
    return plain if len(plain.encode()) <= MAX_SHORT_TEXT else text


_CONVERT_FIELD: dict[str, Callable[[bytes], Any]] = {
    "user_id": _user,
    "reply_to": _reply_to,
    "timestamp": _seconds,
}
_Reader = Callable[[bytes], _Noted]
_READERS: dict[int, tuple[_Reader, _Reader]] = {
    code: (read, lru_cache(maxsize=1024)(read))
    for code, read in (
        (Section.HEADER, _read_header),
        (Section.MESSAGE_ANNOTATIONS, _read_annotations),
        (Section.APPLICATION_PROPERTIES, _read_application),
    )
} | {Section.PROPERTIES: (_read_properties, _read_properties)}
