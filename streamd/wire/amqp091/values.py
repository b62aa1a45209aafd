"""Field tables: values that keep their tags, because messages must be delivered as they were sent.

A value is a `Field`, its one-letter tag and what stands behind it: bool for t, int for b B s u I
i l L T, float for f d, bytes for S x, the 5 raw bytes of a decimal for D, a list of fields for A,
a table for F, None for V. Text stays bytes: publishers may put anything there.

Source: rabbitmq/rabbitmq-server, deps/rabbit_common/src/rabbit_binary_parser.erl and
deps/rabbit_common/src/rabbit_binary_generator.erl.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from streamd.wire.amqp091.errors import MAX_SHORT_TEXT, frame_error

# Tables in tables; RabbitMQ has no limit. Stored, with the sections around them, they have to stay
# within the 32 levels that our readers of AMQP 1.0 accept.
MAX_DEPTH = 16
# Values of a table, with those in its tables and arrays. A frame could hold 130,000, each of which
# costs as much as a frame does.
MAX_VALUES = 4_096


class Room:
    """What may still be read of a table.

    Attributes:
        depth: how many tables and arrays are around.
        left: values.
    """

    __slots__ = ("depth", "left")

    def __init__(self) -> None:
        self.depth, self.left = 0, MAX_VALUES

    @property
    def taken(self) -> int:
        """How many values were read."""
        return MAX_VALUES - self.left


class Field(NamedTuple):
    """A tagged value; see the module."""

    tag: str
    value: Any


Table: TypeAlias = Mapping[str, Field]

INTEGER_TAGS = frozenset("bBsuIilL")
_U32 = struct.Struct(">I")
_DECIMAL_SIZE = 5


def text_field(text: str) -> Field:
    """A string as a field."""
    return Field("S", text.encode())


# -- reading: each decoder takes the bytes, the position after the tag, and what may be read

_Decoder: TypeAlias = Callable[[bytes, int, Room], tuple[Any, int]]


def _number(form: str) -> _Decoder:
    layout = struct.Struct(f">{form}")

    def decode(raw: bytes, at: int, _room: Room) -> tuple[Any, int]:
        return layout.unpack_from(raw, at)[0], at + layout.size

    return decode


def decode_long_text(raw: bytes, at: int, _room: Room | None = None) -> tuple[bytes, int]:
    """Bytes behind a length of 4."""
    start = at + _U32.size
    end = start + _U32.unpack_from(raw, at)[0]
    if end > len(raw):
        raise frame_error(f"a long string at byte {at} reaches beyond its frame")
    return raw[start:end], end


def decode_short_text(raw: bytes, at: int) -> tuple[str, int]:
    """Text behind a length of 1.

    Raises:
        ConnectionFault: it is cut off or not UTF-8.
        IndexError: nothing is there.
    """
    end = at + 1 + raw[at]
    if end > len(raw):
        raise frame_error(f"a short string at byte {at} reaches beyond its frame")
    try:
        return raw[at + 1 : end].decode(), end
    except UnicodeDecodeError:
        raise frame_error(f"the short string at byte {at} is not UTF-8") from None


def _decimal(raw: bytes, at: int, _room: Room) -> tuple[bytes, int]:
    end = at + _DECIMAL_SIZE
    if end > len(raw):
        raise frame_error(f"a decimal at byte {at} is cut off")
    return raw[at:end], end


def _array(raw: bytes, at: int, room: Room) -> tuple[list[Field], int]:
    body, end = decode_long_text(raw, at)
    _go_deeper(room)
    fields, position = [], 0
    while position < len(body):
        field, position = _field(body, position, room)
        fields.append(field)
    room.depth -= 1
    return fields, end


def _table(raw: bytes, at: int, room: Room) -> tuple[dict[str, Field], int]:
    body, end = decode_long_text(raw, at)
    _go_deeper(room)
    fields: dict[str, Field] = {}
    position = 0
    while position < len(body):
        name, position = decode_short_text(body, position)
        field, position = _field(body, position, room)
        fields.setdefault(name, field)  # of duplicates the first one counts
    room.depth -= 1
    return fields, end


def _go_deeper(room: Room) -> None:
    if room.depth >= MAX_DEPTH:
        raise frame_error(f"tables are nested more than {MAX_DEPTH} deep")
    room.depth += 1


_DECODERS: dict[int, tuple[str, _Decoder]] = {
    ord(tag): (tag, decoder)
    for tag, decoder in (
        ("t", _number("?")),
        ("b", _number("b")),
        ("B", _number("B")),
        ("s", _number("h")),
        ("u", _number("H")),
        ("I", _number("i")),
        ("i", _number("I")),
        ("l", _number("q")),
        ("L", _number("q")),
        ("f", _number("f")),
        ("d", _number("d")),
        ("D", _decimal),
        ("S", decode_long_text),
        ("x", decode_long_text),
        ("T", _number("Q")),
        ("A", _array),
        ("F", _table),
        ("V", lambda _raw, at, _room: (None, at)),
    )
}


def decode_field(raw: bytes, at: int) -> tuple[Field, int]:
    """The field at a position, and the position after it.

    Raises:
        ConnectionFault: it is malformed, nested too deeply, or has too many values.
    """
    return _field(raw, at, Room())


def _field(raw: bytes, at: int, room: Room) -> tuple[Field, int]:
    room.left -= 1
    if room.left < 0:
        raise frame_error(
            f"a table has more than {MAX_VALUES:,} values; send large data in the body"
        )
    try:
        tag, decode = _DECODERS[raw[at]]
    except KeyError:
        raise frame_error(f"a table has a value of the unknown type {raw[at]:#04x}") from None
    value, end = decode(raw, at + 1, room)
    return Field(tag, value), end


def decode_table(raw: bytes, at: int, room: Room | None = None) -> tuple[dict[str, Field], int]:
    """The table at a position, and the position after it.

    Args:
        raw: holds it.
        at: where it begins.
        room: counts the values; by default up to MAX_VALUES.

    Raises:
        ConnectionFault: it is malformed, nested too deeply, or has too many values.
        IndexError, struct.error: it is cut off.
    """
    return _table(raw, at, room or Room())


# -- writing


def encode_long_text(value: bytes) -> bytes:
    """Bytes behind a length of 4."""
    return _U32.pack(len(value)) + value


def encode_short_text(value: str) -> bytes:
    """Text behind a length of 1.

    Raises:
        ValueError: it is longer than 255 bytes.
    """
    raw = value.encode()
    if len(raw) > MAX_SHORT_TEXT:
        raise ValueError(f"a short string has {len(raw)} bytes, at most {MAX_SHORT_TEXT} fit")
    return bytes((len(raw),)) + raw


def encode_array(fields: Sequence[Field]) -> bytes:
    """Fields one after the other."""
    return encode_long_text(b"".join(map(encode_field, fields)))


def encode_table(table: Table) -> bytes:
    """Names and fields."""
    items = [encode_short_text(name) + encode_field(field) for name, field in table.items()]
    return encode_long_text(b"".join(items))


def encode_field(field: Field) -> bytes:
    """A tag and what stands behind it."""
    return field.tag.encode() + _ENCODERS[field.tag](field.value)


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "t": struct.Struct(">?").pack,
    "b": struct.Struct(">b").pack,
    "B": struct.Struct(">B").pack,
    "s": struct.Struct(">h").pack,
    "u": struct.Struct(">H").pack,
    "I": struct.Struct(">i").pack,
    "i": struct.Struct(">I").pack,
    "l": struct.Struct(">q").pack,
    "L": struct.Struct(">q").pack,
    "f": struct.Struct(">f").pack,
    "d": struct.Struct(">d").pack,
    "D": bytes,
    "S": encode_long_text,
    "x": encode_long_text,
    "T": struct.Struct(">Q").pack,
    "A": encode_array,
    "F": encode_table,
    "V": lambda _: b"",
}
