"""From a published message to the AMQP 1.0 message that a stream keeps.

Types are kept as far as AMQP 1.0 has them: an int of 16 bits comes back as one.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/mc_amqpl.erl; OASIS AMQP 1.0 part 3 (messaging),
3.2.
"""

import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

from segments import amqp10_codes as codes
from segments.amqp10 import encode_binary, encode_list, encode_map, encode_symbol, encode_text
from segments.amqp10_codes import SHORT_DESCRIPTOR, Section
from segments.errors import FormatError
from segments.words import whole_number
from streamd.config import MAX_NAME_BYTES
from streamd.wire.amqp091.errors import Fault, precondition_failed
from streamd.wire.amqp091.messages.property_templates import Kind, kind_of
from streamd.wire.amqp091.properties import Properties, decode_properties
from streamd.wire.amqp091.values import Field, Room
from streamd.wire.stored_messages import (
    BODY_SECTIONS,
    CC,
    EXCHANGE,
    FILTER_VALUE,
    MAX_KEYS,
    ROUTING_KEY,
    TooManyError,
    some_sections,
)

TYPE = "x-basic-type"
ENCODED_BODY = "amqp-1.0"  # a type that says: the body is sections already
QUEUES = "/queues/"
UUID_PREFIX, UUID_SIZE = "urn:uuid:", 36

_MAX_TEXT = 4096  # longer ones, and what is not UTF-8, are kept as bytes
_MAX_EXPIRATION = 315_360_000_000  # 10 years in ms
_MAX_TTL = (1 << 32) - 1
_MAX_TIME = (1 << 63) // 1000
_CACHED_BYTES = 512
_USUAL_VALUES = 16  # of headers: more of them cost more
_VALUES_A_MESSAGE = 4  # that take as long as a message
_NULL, _TRUE, _FALSE, _UINT_0, _UINT = (
    bytes((code,)) for code in (codes.NULL, codes.TRUE, codes.FALSE, codes.UINT_0, codes.UINT)
)
_DATA_START = SHORT_DESCRIPTOR + bytes((Section.DATA,))
_NUM_FIELDS, _MESSAGE_ID, _CORRELATION_ID, _TIMESTAMP = 11, 0, 5, 9  # of a properties section
_ENCODED = BODY_SECTIONS | {Section.FOOTER}


class StoredHead(NamedTuple):
    """All of a message except its body.

    Attributes:
        sections: header, annotations, properties, application properties.
        filter_value: empty for none.
        more_keys: routing keys besides the one of the publish, from CC and BCC.
        user_id: the user that the publisher claims to be; None without a claim.
        is_encoded: the body is sections already.
        has_hidden_keys: there is a BCC header, which nobody but the server may see.
        price: of the headers, in messages that would have taken as long.
    """

    sections: bytes
    filter_value: bytes
    more_keys: tuple[str, ...]
    user_id: str | None
    is_encoded: bool
    has_hidden_keys: bool
    price: int


def stored_head(exchange: str, key: str, properties: bytes) -> StoredHead:
    """The parts of a message that are kept besides its body.

    Raises:
        ConnectionFault: the properties are malformed.
        ChannelFault: one of them cannot be used.
    """
    if len(properties) > _CACHED_BYTES:  # large ones are not remembered
        return _convert(exchange, key, properties).head
    kind = kind_of(properties)
    if kind is None:
        return _convert_again(exchange, key, properties).head
    try:
        converted = _convert_again(exchange, key, kind.common)
        fields = _with_differing(converted.fields, kind)
    except (Fault, UnicodeDecodeError):
        return _convert(exchange, key, properties).head  # raises a fault that says where
    section = _section(Section.PROPERTIES, encode_list(fields))
    sections = b"".join((converted.before, section, converted.after))
    return converted.head._replace(sections=sections)


class _Converted(NamedTuple):
    """A message's head, and its parts around the properties.

    Attributes:
        head: whole.
        before: sections.
        fields: of the properties section, without the missing ones at the end.
        after: sections.
    """

    head: StoredHead
    before: bytes
    fields: list[bytes]
    after: bytes


def _convert(exchange: str, key: str, raw: bytes) -> _Converted:
    room = Room()
    given = decode_properties(raw, room)
    headers = given.headers or {}
    copies = [*_keys(headers, "CC"), *_keys(headers, "BCC")]
    _check_keys(copies)
    annotations = _annotations(exchange, key, given.type, headers)
    before = _section(Section.HEADER, _header(given)) + _section(
        Section.MESSAGE_ANNOTATIONS, annotations
    )
    fields = _properties(given)
    properties = _section(Section.PROPERTIES, encode_list(fields)) if fields else b""
    free = list(_application_properties(headers))
    after = _section(Section.APPLICATION_PROPERTIES, encode_map(free)) if free else b""
    head = StoredHead(
        before + properties + after,
        _filter_value(headers),
        tuple(copies),
        given.user_id,
        given.type == ENCODED_BODY,
        "BCC" in headers,
        max(room.taken - _USUAL_VALUES, 0) // _VALUES_A_MESSAGE,
    )
    return _Converted(head, before, fields, after)


_convert_again = lru_cache(maxsize=2048)(_convert)


def _with_differing(common: list[bytes], kind: Kind) -> list[bytes]:
    """The fields of a properties section, completed."""
    correlation_id, message_id, timestamp = kind.differing
    fields = [*common, *[_NULL] * (_NUM_FIELDS - len(common))]
    if message_id is not None:
        fields[_MESSAGE_ID] = _id(message_id.decode())
    if correlation_id is not None:
        fields[_CORRELATION_ID] = _id(correlation_id.decode())
    if timestamp is not None:
        fields[_TIMESTAMP] = _time(int.from_bytes(timestamp, "big"))
    return _without_missing(fields)


def stored_body(body: bytes, *, is_encoded: bool) -> bytes:
    """The body section or sections.

    Raises:
        ChannelFault: it should be sections and is not, or has too many.
    """
    if not is_encoded:
        return _DATA_START + encode_binary(body)
    try:
        found = [code for code, _, _ in some_sections(body)]
    except TooManyError as error:
        raise precondition_failed(f"a message of type {ENCODED_BODY} has {error}") from error
    except FormatError:
        found = []
    if not found or found[0] not in BODY_SECTIONS or not _ENCODED.issuperset(found):
        raise precondition_failed(
            f"a message of type {ENCODED_BODY} has a body that is not an AMQP 1.0 body section"
        )
    return body


def _section(section: Section, value: bytes) -> bytes:
    return SHORT_DESCRIPTOR + bytes((section,)) + value


def _header(given: Properties) -> bytes:
    priority = _NULL if given.priority is None else bytes((codes.UBYTE, given.priority))
    durable = _TRUE if given.delivery_mode == 2 else _FALSE  # noqa: PLR2004 - 2 is persistent
    return encode_list([durable, priority, _ttl(given.expiration), _TRUE, _UINT_0])


def _ttl(expiration: str | None) -> bytes:
    if expiration is None:
        return _NULL
    ttl = whole_number(expiration, most=_MAX_EXPIRATION)
    if ttl is None:
        raise precondition_failed(
            f"expiration is {expiration[:40]!r}, expected milliseconds from 0 to {_MAX_EXPIRATION}"
        )
    return _NULL if ttl > _MAX_TTL else _uint(ttl)


def _uint(value: int) -> bytes:
    if not value:
        return _UINT_0
    if value < 1 << 8:
        return bytes((codes.SMALL_UINT, value))
    return _UINT + value.to_bytes(4, "big")


def _annotations(exchange: str, key: str, kind: str | None, headers: dict[str, Field]) -> bytes:
    items = [encode_symbol(EXCHANGE), encode_text(exchange)]
    items += [encode_symbol(ROUTING_KEY), encode_text(key)]
    if kind is not None and kind != ENCODED_BODY:
        items += [encode_symbol(TYPE), encode_text(kind)]
    for name, field in headers.items():
        if name == "CC":
            keys = [encode_text(copy) for copy in _keys(headers, "CC")]
            items += [encode_symbol(CC), encode_list(keys)]
        elif _is_annotation(name):
            value = encode_stored(field)
            if value is not None:
                items += [encode_symbol(name), value]
    return encode_map(items)


_OURS = frozenset((EXCHANGE, ROUTING_KEY, TYPE, CC))


def _is_annotation(name: str) -> bool:
    return name.startswith("x-") and name.isascii() and name not in _OURS


def _application_properties(headers: dict[str, Field]) -> Iterator[bytes]:
    for name, field in headers.items():
        if name in ("CC", "BCC") or field.tag in "AF" or name.startswith("x-"):
            continue
        value = encode_stored(field)
        if value is not None:
            yield encode_text(name)
            yield value


def _properties(given: Properties) -> list[bytes]:
    """The fields in order, without the missing ones at the end."""
    return _without_missing(
        [
            _id(given.message_id),
            _NULL if given.user_id is None else encode_binary(given.user_id.encode()),
            _NULL,
            _NULL,
            _NULL
            if given.reply_to is None
            else encode_text(QUEUES + quote(given.reply_to, safe="")),
            _id(given.correlation_id),
            _symbol(given.content_type),
            _symbol(given.content_encoding),
            _NULL,
            _NULL if given.timestamp is None else _time(given.timestamp),
            _NULL if given.app_id is None else encode_text(given.app_id),
        ]
    )


def _without_missing(fields: list[bytes]) -> list[bytes]:
    while fields and fields[-1] == _NULL:
        fields.pop()
    return fields


def _id(text: str | None) -> bytes:
    if text is None:
        return _NULL
    if text.startswith(UUID_PREFIX) and len(text) == len(UUID_PREFIX) + UUID_SIZE:
        try:
            return bytes((codes.UUID,)) + uuid.UUID(text[len(UUID_PREFIX) :]).bytes
        except ValueError:
            pass
    return encode_text(text)


def _symbol(text: str | None) -> bytes:
    if text is None:
        return _NULL
    if not text.isascii():
        raise precondition_failed(f"a content type or encoding is {text[:40]!r}, expected ASCII")
    return encode_symbol(text)


def _time(seconds: int) -> bytes:
    if seconds >= _MAX_TIME:
        raise precondition_failed(f"the timestamp {seconds} is too large, expected seconds")
    return bytes((codes.TIMESTAMP,)) + (seconds * 1000).to_bytes(8, "big")


def _keys(headers: dict[str, Field], name: str) -> list[str]:
    field = headers.get(name)
    if field is None:
        return []
    if field.tag != "A":
        raise precondition_failed(f"the header {name} is not an array; expected routing keys")
    keys = (item.value for item in field.value if item.tag == "S")
    return [key.decode() for key in keys if _is_text(key)]


def _check_keys(keys: Sequence[str]) -> None:
    """Raise ChannelFault when a message has too many routing keys, or one that is too long."""
    if len(keys) > MAX_KEYS:
        raise precondition_failed(
            f"CC and BCC have {len(keys):,} routing keys, expected at most {MAX_KEYS:,}"
        )
    for key in keys:
        size = len(key.encode())
        if size > MAX_NAME_BYTES:
            raise precondition_failed(
                f"a routing key in CC or BCC has {size:,} bytes, expected at most {MAX_NAME_BYTES}"
            )


def _is_text(value: bytes) -> bool:
    if len(value) > _MAX_TEXT or b"\0" in value:
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _filter_value(headers: dict[str, Field]) -> bytes:
    field = headers.get(FILTER_VALUE)
    if field is None:
        return b""
    if field.tag != "S" or not _is_text(field.value):
        found = "not text" if field.tag != "S" else "not UTF-8 of at most 4096 bytes without NUL"
        raise precondition_failed(f"the header {FILTER_VALUE} is {found}; expected a string")
    value: bytes = field.value
    return value


# -- values, by tag


def encode_stored(field: Field) -> bytes | None:
    """A header's value in AMQP 1.0; None when it has no counterpart."""
    encode = _ENCODERS.get(field.tag)
    return None if encode is None else encode(field.value)


def _text(value: bytes) -> bytes:
    return encode_text(value.decode()) if _is_text(value) else encode_binary(value)


def _small(short: int, long: int, form: str) -> Callable[[int], bytes]:
    layout = struct.Struct(f">B{form}")

    def encode(value: int) -> bytes:
        if -128 <= value <= 127:  # noqa: PLR2004 - one signed byte
            return struct.pack(">Bb", short, value)
        return layout.pack(long, value)

    return encode


def _fixed(code: int, form: str) -> Callable[[Any], bytes]:
    layout = struct.Struct(f">B{form}")
    return lambda value: layout.pack(code, value)


def _list(fields: list[Field]) -> bytes:
    return encode_list([value for item in fields if (value := encode_stored(item)) is not None])


def _map(table: dict[str, Field]) -> bytes:
    items: list[bytes] = []
    for name, field in table.items():
        value = encode_stored(field)
        if value is not None and name.isascii():
            items += [encode_symbol(name), value]
    return encode_map(items)


_ENCODERS: dict[str, Callable[[Any], bytes | None]] = {
    "S": _text,
    "x": encode_binary,
    "t": lambda value: bytes((codes.BOOLEAN, bool(value))),
    "b": _fixed(codes.BYTE, "b"),
    "B": _fixed(codes.UBYTE, "B"),
    "s": _fixed(codes.SHORT, "h"),
    "u": _fixed(codes.USHORT, "H"),
    "I": _small(codes.SMALL_INT, codes.INT, "i"),
    "i": _uint,
    "l": _small(codes.SMALL_LONG, codes.LONG, "q"),
    "L": _small(codes.SMALL_LONG, codes.LONG, "q"),
    "f": _fixed(codes.FLOAT, "f"),
    "d": _fixed(codes.DOUBLE, "d"),
    "T": lambda value: _time(value) if value < _MAX_TIME else None,
    "V": lambda _: _NULL,
    "A": _list,
    "F": _map,
}
