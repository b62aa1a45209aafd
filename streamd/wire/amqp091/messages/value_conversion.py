"""One value of AMQP 1.0 as a tagged value of 0-9-1, from encoding to encoding.

Nothing in between: a value's width would be lost.

Source: amqp091 reference, 4.2 and 5.1.
"""

import struct
import uuid
from collections.abc import Callable, Iterator

from segments.amqp10 import MAX_DEPTH, Opaque, decode_value, skip_value
from segments.errors import FormatError
from streamd.wire.amqp091.errors import MAX_SHORT_TEXT
from streamd.wire.amqp091.messages.to_amqp10 import UUID_PREFIX
from streamd.wire.amqp091.values import encode_long_text, encode_short_text

# Width of size and count: lists and maps.
_WIDTHS_OF_PARTS = {0x45: 0, 0xC0: 1, 0xD0: 4, 0xC1: 1, 0xD1: 4}


def items(raw: bytes, at: int) -> list[bytes]:
    """The encoded items of the list or map at a position."""
    width = _WIDTHS_OF_PARTS.get(raw[at])
    if width is None:
        raise FormatError("a section is neither a list nor a map")
    if not width:
        return []
    count = int.from_bytes(raw[at + 1 + width : at + 1 + 2 * width], "big")
    at += 1 + 2 * width
    found = []
    for _ in range(count):
        end = skip_value(raw, at)
        found.append(raw[at:end])
        at = end
    return found


def pairs(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and encoded value of a map's entries; what is not named by a text is left out."""
    found = items(raw, 0)
    for key, value in zip(found[::2], found[1::2], strict=False):
        name = text_of(key)
        if name is not None:
            yield name, value


def text_of(raw: bytes) -> str | None:
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
    fields = [delivered_field(item, depth + 1) for item in items(raw, 0)]
    return b"A" + encode_long_text(b"".join(field for field in fields if field is not None))


def _map(raw: bytes, depth: int) -> bytes:
    parts: dict[str, bytes] = {}
    for name, value in pairs(raw):
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
    body = raw[2:] if raw[0] < 0xB0 else raw[5:]  # noqa: PLR2004 - of a short one
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
