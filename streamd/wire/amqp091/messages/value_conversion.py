"""One value of AMQP 1.0 as a tagged value of 0-9-1, from encoding to encoding.

Nothing in between: a value's width would be lost.

Source: rabbitmq/rabbitmq-server, deps/rabbit/src/mc_amqpl.erl; OASIS AMQP 1.0 part 1 (types), 1.6.
"""

import struct
import uuid
from collections.abc import Callable, Iterator

from segments import amqp10_codes as codes
from segments.amqp10 import MAX_DEPTH, Opaque, Value, decode_value, skip_value
from segments.errors import FormatError
from streamd.wire.amqp091.errors import MAX_SHORT_TEXT
from streamd.wire.amqp091.messages.to_amqp10 import UUID_PREFIX
from streamd.wire.amqp091.values import MAX_VALUES, Room, encode_long_text, encode_short_text
from streamd.wire.stored_messages import TooManyError

_WIDTHS_OF_PARTS = codes.LISTS | codes.MAPS


def items(raw: bytes, at: int, room: Room) -> list[bytes]:
    """The encoded items of the list or map at a position.

    Raises:
        FormatError: it is neither, or cut off.
        TooManyError: there is no room for so many.
    """
    width = _WIDTHS_OF_PARTS.get(raw[at])
    if width is None:
        raise FormatError("a section is neither a list nor a map")
    if not width:
        return []
    count = int.from_bytes(raw[at + 1 + width : at + 1 + 2 * width], "big")
    at += 1 + 2 * width
    _take(count, room, len(raw) - at)
    found = []
    for _ in range(count):
        end = skip_value(raw, at)
        found.append(raw[at:end])
        at = end
    return found


def _take(count: int, room: Room, most: int) -> None:
    if count > most:
        raise FormatError(f"a list or map of {count} items has {most} bytes")
    room.left -= count
    if room.left < 0:
        raise TooManyError(f"more than {MAX_VALUES:,} values")


def pairs(raw: bytes, room: Room) -> Iterator[tuple[str, bytes]]:
    """Name and encoded value of a map's entries; those not named by a string are left out."""
    found = items(raw, 0, room)
    for key, value in zip(found[::2], found[1::2], strict=False):
        name = text_of(key)
        if name is not None:
            yield name, value


def text_of(raw: bytes) -> str | None:
    """A short enough string or symbol."""
    if not raw or raw[0] not in codes.TEXTS:
        return None
    body = raw[2 if raw[0] < codes.FIRST_LONG else 5 :]
    if len(body) > MAX_SHORT_TEXT:
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def scalar(raw: bytes) -> Value:
    """One encoded value; None for what has parts."""
    is_scalar = codes.NULL <= raw[0] < codes.LIST_8
    return decode_value(raw)[0] if is_scalar else None


def delivered_field(raw: bytes, room: Room, depth: int = 0) -> bytes | None:
    """One encoded AMQP 1.0 value as a tagged value; None when it has no counterpart."""
    code = raw[0]
    if code in _SAME_BYTES:
        tag, size = _SAME_BYTES[code]
        return tag + raw[1 : 1 + size]
    convert = _CONVERTERS.get(code)
    if convert is None or depth > MAX_DEPTH:
        return None
    return convert(raw, room, depth)


# The bytes behind the code are those behind the tag.
_SAME_BYTES: dict[int, tuple[bytes, int]] = {
    codes.NULL: (b"V", 0),
    codes.UBYTE: (b"B", 1),
    codes.BYTE: (b"b", 1),
    codes.USHORT: (b"u", 2),
    codes.SHORT: (b"s", 2),
    codes.UINT: (b"i", 4),
    codes.INT: (b"I", 4),
    codes.LONG: (b"l", 8),
}
_Converter = Callable[[bytes, Room, int], bytes | None]


def _constant(field: bytes) -> _Converter:
    return lambda _raw, _room, _depth: field


def _signed(tag: bytes, size: int) -> _Converter:
    return lambda raw, _room, _depth: (
        tag + int.from_bytes(raw[1:2], "big", signed=True).to_bytes(size, "big", signed=True)
    )


def _unsigned(tag: bytes, size: int) -> _Converter:
    return lambda raw, _room, _depth: tag + raw[1:2].rjust(size, b"\0")


def _long(raw: bytes, _room: Room, _depth: int) -> bytes | None:
    return b"l" + raw[1:9] if raw[1] < 0x80 else None  # noqa: PLR2004 - does not fit


def _finite(tag: bytes, form: str) -> _Converter:
    def convert(raw: bytes, _room: Room, _depth: int) -> bytes | None:
        (value,) = struct.unpack_from(form, raw, 1)
        is_finite = value == value and value not in (float("inf"), float("-inf"))  # noqa: PLR0124
        return tag + raw[1:] if is_finite else None

    return convert


def _time(raw: bytes, _room: Room, _depth: int) -> bytes | None:
    ms = int.from_bytes(raw[1:9], "big", signed=True)
    return b"T" + (ms // 1000).to_bytes(8, "big") if ms >= 0 else None


def _uuid(raw: bytes, _room: Room, _depth: int) -> bytes:
    return b"S" + encode_long_text(f"{UUID_PREFIX}{uuid.UUID(bytes=raw[1:17])}".encode())


def _list(raw: bytes, room: Room, depth: int) -> bytes:
    fields = [delivered_field(item, room, depth + 1) for item in items(raw, 0, room)]
    return b"A" + encode_long_text(b"".join(field for field in fields if field is not None))


def _map(raw: bytes, room: Room, depth: int) -> bytes:
    parts: dict[str, bytes] = {}
    for name, value in pairs(raw, room):
        field = delivered_field(value, room, depth + 1)
        if field is not None:
            parts.setdefault(name, encode_short_text(name) + field)
    return b"F" + encode_long_text(b"".join(parts.values()))


def _array(raw: bytes, room: Room, depth: int) -> bytes | None:
    width = 1 if raw[0] == codes.ARRAY_8 else 4
    count = int.from_bytes(raw[1 + width : 1 + 2 * width], "big")
    if count > len(raw):  # of elements that have no width
        return None
    _take(count, room, len(raw))
    value, _ = decode_value(raw)
    if isinstance(value, Opaque):  # the same, or they are described
        return None
    at = 1 + 2 * width
    constructor, at = raw[at : at + 1], at + 1
    element = codes.WIDTHS[constructor[0] >> 4]
    if not element or constructor[0] >= codes.ARRAY_8:
        return None
    fields: list[bytes] = []
    for _ in range(count):
        size = element
        if element < 0:
            size = -element + int.from_bytes(raw[at : at - element], "big")
        field = delivered_field(constructor + raw[at : at + size], room, depth + 1)
        if field is not None:
            fields.append(field)
        at += size
    return b"A" + encode_long_text(b"".join(fields))


def _text(raw: bytes, _room: Room, _depth: int) -> bytes:
    body = raw[2:] if raw[0] < codes.FIRST_LONG else raw[5:]
    return b"S" + encode_long_text(body)


_CONVERTERS: dict[int, _Converter] = {
    codes.TRUE: _constant(b"t\1"),
    codes.FALSE: _constant(b"t\0"),
    codes.UINT_0: _constant(b"i" + bytes(4)),
    codes.ULONG_0: _constant(b"l" + bytes(8)),
    codes.LIST_0: _constant(b"A" + bytes(4)),
    codes.SMALL_UINT: _unsigned(b"i", 4),
    codes.SMALL_ULONG: _unsigned(b"l", 8),
    codes.SMALL_INT: _signed(b"I", 4),
    codes.SMALL_LONG: _signed(b"l", 8),
    codes.BOOLEAN: lambda raw, _room, _depth: b"t\1" if raw[1] else b"t\0",
    codes.FLOAT: _finite(b"f", ">f"),
    codes.ULONG: _long,
    codes.DOUBLE: _finite(b"d", ">d"),
    codes.TIMESTAMP: _time,
    codes.UUID: _uuid,
    codes.BINARY_8: _text,
    codes.STRING_8: _text,
    codes.SYMBOL_8: _text,
    codes.BINARY_32: _text,
    codes.STRING_32: _text,
    codes.SYMBOL_32: _text,
    codes.LIST_8: _list,
    codes.MAP_8: _map,
    codes.LIST_32: _list,
    codes.MAP_32: _map,
    codes.ARRAY_8: _array,
    codes.ARRAY_32: _array,
}
