"""The fourteen properties of a message, as they stand in a content header.

Source: AMQP 0-9-1 specification, 4.2.6.1 (the content header); rabbitmq/rabbitmq-server,
deps/rabbitmq_codegen/amqp-rabbitmq-0.9.1.json.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from streamd.wire.amqp091.errors import frame_error
from streamd.wire.amqp091.values import (
    Field,
    Room,
    decode_short_text,
    decode_table,
    encode_short_text,
    encode_table,
)

_FLAGS = struct.Struct(">H")
_HIGHEST = 15
MORE_FLAGS = 0x0003  # no properties have these


@dataclass(slots=True)
class Properties:
    """The properties of a message; None for those that are missing."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Field] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


class FieldKind(Enum):
    """How a property is written."""

    TABLE = auto()
    OCTET = auto()
    TIME = auto()
    TEXT = auto()


_TABLE, _OCTET, _TIME, _TEXT = FieldKind
_KINDS = (
    *(_TEXT, _TEXT, _TABLE, _OCTET, _OCTET, _TEXT, _TEXT),
    *(_TEXT, _TEXT, _TIME, _TEXT, _TEXT, _TEXT, _TEXT),
)
_NAMES = tuple(Properties.__slots__)
# Flag, name and kind of each, in the order in which they stand.
FIELDS = tuple(
    (1 << (_HIGHEST - n), name, kind)
    for n, (name, kind) in enumerate(zip(_NAMES, _KINDS, strict=True))
)
_HEADERS_BIT = 1 << (_HIGHEST - _NAMES.index("headers"))


def decode_properties(raw: bytes, room: Room | None = None) -> Properties:
    """Flags and properties.

    Args:
        raw: as they stand in a content header.
        room: counts the values of the headers.

    Raises:
        ConnectionFault: they are malformed, or have too many values.
    """
    found = Properties()
    try:
        (flags,) = _FLAGS.unpack_from(raw)
        at = _FLAGS.size
        if flags & MORE_FLAGS:
            raise frame_error("a content header has flags beyond the 14 properties")
        for bit, name, kind in FIELDS:
            if flags & bit:
                value, at = _decode(kind, raw, at, room)
                setattr(found, name, value)
    except (IndexError, struct.error):
        raise frame_error("the properties in a content header are cut off") from None
    if at != len(raw):
        raise frame_error(f"{len(raw) - at} bytes follow the properties in a content header")
    return found


def _decode(kind: FieldKind, raw: bytes, at: int, room: Room | None) -> tuple[Any, int]:
    if kind is _TEXT:
        return decode_short_text(raw, at)
    if kind is _OCTET:
        return raw[at], at + 1
    if kind is _TABLE:
        return decode_table(raw, at, room)
    return struct.unpack_from(">Q", raw, at)[0], at + 8


def encode_properties(properties: Properties) -> bytes:
    """Flags and properties.

    Raises:
        ValueError: a string is longer than 255 bytes.
    """
    found = {name: getattr(properties, name) for name in _NAMES}
    table = found.pop("headers")
    return encode_present(found, None if table is None else encode_table(table))


def encode_present(values: Mapping[str, Any], table: bytes | None) -> bytes:
    """The same from properties by name, those that are None left out, and encoded headers.

    Raises:
        ValueError: a string is longer than 255 bytes.
    """
    flags, parts = 0, {}
    if table is not None:
        flags, parts[_HEADERS_BIT] = _HEADERS_BIT, table
    for name, value in values.items():
        if value is not None:
            bit, encode = _WRITTEN[name]
            flags |= bit
            parts[bit] = encode(value)
    return _FLAGS.pack(flags) + b"".join([parts[bit] for bit in sorted(parts, reverse=True)])


_ENCODERS: dict[FieldKind, Callable[[Any], bytes]] = {
    _TEXT: encode_short_text,
    _OCTET: struct.Struct(">B").pack,
    _TIME: struct.Struct(">Q").pack,
}
_WRITTEN = {name: (bit, _ENCODERS[kind]) for bit, name, kind in FIELDS if kind != _TABLE}
