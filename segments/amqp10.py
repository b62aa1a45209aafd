"""AMQP 1.0 values: the types that messages in a stream are made of.

Python types stand for AMQP types both ways: None, bool, int, float, str, bytes, datetime
(timestamp), UUID, Symbol, list and dict. An int is written as long, or as ulong where it does not
fit, a Char as string; widths of numbers are not kept. Values of other types (decimals, described
values) are read as Opaque and written back unchanged.

Source: OASIS AMQP 1.0 part 1 (types).
"""

import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, TypeAlias, Union

from segments import amqp10_codes as codes
from segments.amqp10_codes import Section
from segments.errors import FormatError
from segments.times import whole_ms

MAX_DEPTH = 32  # lists in lists: deeper nesting is an attack on the stack


class Symbol(str):
    """A name from a fixed vocabulary, in ASCII."""

    __slots__ = ()


class Char(str):
    """A single character; half of one is read as U+FFFD."""

    __slots__ = ()


class Opaque(NamedTuple):
    """A value of a type that has no counterpart here, as its encoding."""

    raw: bytes


Value: TypeAlias = Union[  # noqa: UP007 - a recursive alias has to be quoted
    bool,
    int,
    float,
    str,
    bytes,
    datetime,
    uuid.UUID,
    Opaque,
    Sequence["Value"],
    Mapping["Value", "Value"],
    None,
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MAX_U8 = 255
_SURROGATES = range(0xD800, 0xE000)  # halves of characters: a str may hold one, no encoding can
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_U32 = struct.Struct(">I")


# -- reading: each decoder takes the bytes and the position after the type code

_Decoder: TypeAlias = Callable[[bytes, int, int], tuple[Value, int]]
_DECODERS: dict[int, _Decoder] = {}  # by type code; filled below


def decode_value(raw: bytes, position: int = 0, depth: int = 0) -> tuple[Value, int]:
    """Read the value at `position`; returns it and the position after it.

    Raises:
        FormatError: cut off, nested too deeply, or of a type code that does not exist.
    """
    try:
        return _DECODERS[raw[position]](raw, position + 1, depth)
    except IndexError:
        raise FormatError(f"value at byte {position} is cut off") from None
    except KeyError as code:
        raise FormatError(f"type code {code} in the value at byte {position}") from None


def _constant(value: Value) -> _Decoder:
    return lambda _raw, position, _depth: (value, position)


def _number(code: str) -> _Decoder:
    form = struct.Struct(f">{code}")

    def decode(raw: bytes, position: int, _depth: int) -> tuple[Value, int]:
        end = position + form.size
        if end > len(raw):
            raise IndexError
        return form.unpack_from(raw, position)[0], end

    return decode


def _span(raw: bytes, position: int, width: int) -> tuple[int, int]:
    """Start and end of what a length of 1 or 4 bytes announces."""
    if width == 1:
        start = position + 1
        end = start + raw[position]
    else:
        start = position + _U32.size
        if start > len(raw):
            raise IndexError
        end = start + _U32.unpack_from(raw, position)[0]
    if end > len(raw):
        raise IndexError
    return start, end


def _binary(width: int) -> _Decoder:
    def decode(raw: bytes, position: int, _depth: int) -> tuple[Value, int]:
        start, end = _span(raw, position, width)
        return raw[start:end], end

    return decode


def _text(width: int, kind: type[str], encoding: str) -> _Decoder:
    def decode(raw: bytes, position: int, _depth: int) -> tuple[Value, int]:
        start, end = _span(raw, position, width)
        try:
            return kind(raw[start:end].decode(encoding)), end
        except UnicodeDecodeError:
            raise _not_text(start, encoding) from None

    return decode


def _short_text(raw: bytes, position: int, _depth: int) -> tuple[Value, int]:
    """A short string, as most keys and values are, without the detours of `_text`."""
    start = position + 1
    end = start + raw[position]
    if end > len(raw):
        raise IndexError
    try:
        return raw[start:end].decode(), end
    except UnicodeDecodeError:
        raise _not_text(start, "utf-8") from None


def _not_text(position: int, encoding: str) -> FormatError:
    return FormatError(f"text at byte {position} is not {encoding}")


def _boolean(raw: bytes, position: int, _depth: int) -> tuple[Value, int]:
    return raw[position] != 0, position + 1


def _timestamp(raw: bytes, position: int, _depth: int) -> tuple[Value, int]:
    milliseconds, end = _number("q")(raw, position, 0)
    try:
        return _EPOCH + milliseconds * _MILLISECOND, end  # type: ignore[operator]
    except OverflowError:  # beyond what datetime can say: keep it as it is
        return Opaque(raw[position - 1 : end]), end


def _uuid(raw: bytes, position: int, _depth: int) -> tuple[Value, int]:
    end = position + 16
    if end > len(raw):
        raise IndexError
    return uuid.UUID(bytes=raw[position:end]), end


def _character(raw: bytes, position: int, _depth: int) -> tuple[Value, int]:
    code, end = _number("I")(raw, position, 0)
    if code in _SURROGATES:
        return Char(_REPLACEMENT), end
    try:
        return Char(chr(code)), end  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        raise FormatError(f"character at byte {position} is {code!r}") from None


def _opaque(size: int) -> _Decoder:
    def decode(raw: bytes, position: int, _depth: int) -> tuple[Value, int]:
        end = position + size
        if end > len(raw):
            raise IndexError
        return Opaque(raw[position - 1 : end]), end

    return decode


def _described(raw: bytes, position: int, depth: int) -> tuple[Value, int]:
    _, middle = decode_value(raw, position, _deeper(depth))
    _, end = decode_value(raw, middle, _deeper(depth))
    return Opaque(raw[position - 1 : end]), end


def _deeper(depth: int) -> int:
    if depth >= MAX_DEPTH:
        raise FormatError(f"values are nested more than {MAX_DEPTH} deep")
    return depth + 1


def _items(raw: bytes, position: int, width: int) -> tuple[int, int, int]:
    """Number of items, start of the first, end of the last, of a list, map or array."""
    start, end = _span(raw, position, width)
    if width == 1:
        return raw[start], start + 1, end
    if start + _U32.size > end:
        raise IndexError
    return _U32.unpack_from(raw, start)[0], start + _U32.size, end


def _list(width: int) -> _Decoder:
    def decode(raw: bytes, position: int, depth: int) -> tuple[Value, int]:
        count, position, end = _items(raw, position, width)
        depth = _deeper(depth)
        values: list[Value] = []
        for _ in range(count):
            value, position = decode_value(raw, position, depth)
            values.append(value)
        return values, _checked_end(position, end)

    return decode


def _map(width: int) -> _Decoder:
    decoders = _DECODERS  # the outer decode_value turns their errors into a FormatError

    def decode(raw: bytes, position: int, depth: int) -> tuple[Value, int]:
        count, position, end = _items(raw, position, width)
        if count % 2:
            raise FormatError(f"map at byte {position} has {count} keys and values")
        depth = _deeper(depth)
        first = position
        values: dict[Value, Value] = {}
        try:
            for _ in range(count // 2):
                key, position = decoders[raw[position]](raw, position + 1, depth)
                values[key], position = decoders[raw[position]](raw, position + 1, depth)
        except TypeError:
            raise FormatError("a map has a list or a map as a key") from None
        if len(values) != count // 2:
            values = _first_of_each(raw, first, count // 2, depth)
        return values, _checked_end(position, end)

    return decode


def _first_of_each(raw: bytes, position: int, count: int, depth: int) -> dict[Value, Value]:
    """A map in which a key comes twice: as `find_in_map`, the first value that is not null."""
    values: dict[Value, Value] = {}
    for _ in range(count):
        key, position = decode_value(raw, position, depth)
        value, position = decode_value(raw, position, depth)
        if values.get(key) is None:
            values[key] = value
    return values


def _checked_end(position: int, end: int) -> int:
    if position != end:
        raise FormatError(f"a list or map announces to end at byte {end}, it ends at {position}")
    return end


def _array(width: int) -> _Decoder:
    def decode(raw: bytes, position: int, depth: int) -> tuple[Value, int]:
        code_position = position - 1
        count, position, end = _items(raw, position, width)
        if position >= end or count > end - position or raw[position] == codes.DESCRIBED:
            # Elements without a width, or described ones: not used in messages here.
            return Opaque(raw[code_position:end]), end
        element, position = raw[position], position + 1
        depth = _deeper(depth)
        values: list[Value] = []
        for _ in range(count):
            value, position = _DECODERS[element](raw, position, depth)
            values.append(value)
        return values, end

    return decode


_DECODERS |= {code: _number(form) for code, form in (codes.INTEGERS | codes.FRACTIONS).items()} | {
    codes.DESCRIBED: _described,
    codes.NULL: _constant(None),
    codes.TRUE: _constant(True),
    codes.FALSE: _constant(False),
    codes.UINT_0: _constant(0),
    codes.ULONG_0: _constant(0),
    codes.LIST_0: lambda _raw, position, _depth: ([], position),
    codes.BOOLEAN: _boolean,
    codes.CHAR: _character,
    codes.DECIMAL32: _opaque(4),
    codes.TIMESTAMP: _timestamp,
    codes.DECIMAL64: _opaque(8),
    codes.DECIMAL128: _opaque(16),
    codes.UUID: _uuid,
    codes.BINARY_8: _binary(1),
    codes.STRING_8: _short_text,
    codes.SYMBOL_8: _text(1, Symbol, "ascii"),
    codes.BINARY_32: _binary(4),
    codes.STRING_32: _text(4, str, "utf-8"),
    codes.SYMBOL_32: _text(4, Symbol, "ascii"),
    codes.LIST_8: _list(1),
    codes.MAP_8: _map(1),
    codes.LIST_32: _list(4),
    codes.MAP_32: _map(4),
    codes.ARRAY_8: _array(1),
    codes.ARRAY_32: _array(4),
}


# Globals of this module, because skip_value and find_in_map run for every property skipped.
_WIDTHS = codes.WIDTHS
_STRING_8, _MAP_8, _MAP_32 = codes.STRING_8, codes.MAP_8, codes.MAP_32
_TEXTS = frozenset(codes.TEXTS)


def skip_value(raw: bytes, position: int) -> int:
    """The position after the value at `position`, which is not decoded.

    Raises:
        FormatError: it is cut off.
    """
    try:
        width = _WIDTHS[raw[position] >> 4]
        if width is None:
            return _skip_described(raw, position)
        if width >= 0:
            end = position + 1 + width
        elif width == -1:
            end = position + 2 + raw[position + 1]
        else:
            end = position + 5 + int.from_bytes(raw[position + 1 : position + 5], "big")
    except IndexError:
        end = len(raw) + 1
    if end > len(raw):
        raise FormatError(f"value at byte {position} is cut off")
    return end


def _skip_described(raw: bytes, position: int) -> int:
    """The same for a value with descriptors, which may be described themselves."""
    left = 1
    for _ in range(2 * MAX_DEPTH):
        if raw[position] == codes.DESCRIBED:
            left += 1  # a descriptor and a value instead of a value
            position += 1
        else:
            if _WIDTHS[raw[position] >> 4] is None:
                raise FormatError(f"type code {raw[position]} in the value at byte {position}")
            left -= 1
            position = skip_value(raw, position)
        if not left:
            return position
    raise FormatError(f"the value that ends at byte {position} has too many descriptors")


def section_code(raw: bytes, position: int) -> tuple[int, int]:
    """Code of the message section at `position`, and the position of its value.

    Understands every form of descriptor. Callers test for the short form, which everybody writes,
    before they call this. The code is not checked against those that exist.

    Raises:
        FormatError: no section begins there.
    """
    if raw[position] != codes.DESCRIBED:
        raise FormatError(f"byte {position} begins no section")
    if raw[position + 1 : position + 2] not in _DESCRIPTORS:
        raise FormatError(f"byte {position} begins no section")
    value, end = decode_value(raw, position + 1)
    if isinstance(value, str):
        value = _SECTION_CODES.get(value)
    if not isinstance(value, int):
        raise FormatError(f"byte {position} begins no section")
    return value, end


_DESCRIPTORS = frozenset(
    bytes((code,)) for code in (*codes.INTEGERS, *codes.TEXTS, codes.ULONG_0, codes.UINT_0)
)
_SECTION_CODES = {
    "amqp:header:list": Section.HEADER,
    "amqp:delivery-annotations:map": Section.DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": Section.MESSAGE_ANNOTATIONS,
    "amqp:properties:list": Section.PROPERTIES,
    "amqp:application-properties:map": Section.APPLICATION_PROPERTIES,
    "amqp:data:binary": Section.DATA,
    "amqp:amqp-sequence:list": Section.SEQUENCE,
    "amqp:amqp-value:*": Section.VALUE,
    "amqp:footer:map": Section.FOOTER,
}


def find_in_map(raw: bytes, position: int, key: str) -> Value:
    """The value of `key` in the map at `position`, None when it has none; decodes no other.

    Where a key comes twice, the first value that is not null counts.

    Raises:
        FormatError: the map is cut off before the key was found.
    """
    try:
        code = raw[position]
        if code not in (_MAP_8, _MAP_32):
            return None
        count, at, _ = _items(raw, position + 1, 1 if code == _MAP_8 else 4)
        wanted = _encoded_key(key)
        for _ in range(count // 2):
            if raw[at] == _STRING_8:
                is_wanted = raw[at : at + len(wanted)] == wanted
                at = skip_value(raw, at)
            else:  # a longer one, or written in a longer form
                is_text = raw[at] in _TEXTS
                found, at = decode_value(raw, at)
                is_wanted = is_text and found == key
            if is_wanted and raw[at] != codes.NULL:
                return decode_value(raw, at)[0]
            at = skip_value(raw, at)
    except IndexError:
        raise FormatError(f"the map at byte {position} is cut off") from None
    return None


def find_in_list(raw: bytes, position: int, index: int) -> Value:
    """The value at an index of the list at `position`, None when it has none; decodes no other.

    Raises:
        FormatError: the list is cut off before it.
    """
    try:
        width = codes.LISTS.get(raw[position])
        if not width:
            return None
        count, at, _ = _items(raw, position + 1, width)
    except IndexError:
        raise FormatError(f"the list at byte {position} is cut off") from None
    if index >= count:
        return None
    for _ in range(index):
        at = skip_value(raw, at)
    return decode_value(raw, at)[0]


# -- writing

_NULL, _TRUE, _FALSE = bytes((codes.NULL,)), bytes((codes.TRUE,)), bytes((codes.FALSE,))
_SMALL_LONG, _LONG, _ULONG = bytes((codes.SMALL_LONG,)), codes.LONG, bytes((codes.ULONG,))
_DOUBLE, _TIMESTAMP, _UUID = (
    bytes((code,)) for code in (codes.DOUBLE, codes.TIMESTAMP, codes.UUID)
)
# How short values begin, by their size: made once, because every property of a message has one.
_BINARY_HEADS, _STRING_HEADS, _SYMBOL_HEADS = (
    [bytes((short, size)) for size in range(_MAX_U8 + 1)]
    for short, _ in (codes.BINARIES, codes.STRINGS, codes.SYMBOLS)
)
(_, _BINARY_32), (_, _STRING_32), (_, _SYMBOL_32) = codes.BINARIES, codes.STRINGS, codes.SYMBOLS
_SMALLEST_LONG, _MAX_LONG = -(1 << 63), (1 << 63) - 1
_SMALL_LONGS = {n: _SMALL_LONG + n.to_bytes(1, "big", signed=True) for n in range(-128, 128)}
_pack_long, _pack_size = struct.Struct(">Bq").pack, struct.Struct(">BI").pack


def encode_value(value: Value) -> bytes:
    """The shortest encoding of a value.

    Raises:
        TypeError: its type has no AMQP type.
        ValueError: a number or a time is out of range.
    """
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
    for kind, encode in _ENCODERS.items():  # subclasses, as of str or int
        if isinstance(value, kind):
            return encode(value)
    raise TypeError(f"{type(value).__name__} has no AMQP type")


def _encode_int(value: int) -> bytes:
    small = _SMALL_LONGS.get(value)
    if small is not None:
        return small
    if _SMALLEST_LONG <= value <= _MAX_LONG:
        return _pack_long(_LONG, value)
    if value < 1 << 64 and value > 0:
        return _ULONG + value.to_bytes(8, "big")
    raise ValueError(f"{value} does not fit into 64 bits")


def binary_head(size: int) -> bytes:
    """What stands before the bytes of a byte string."""
    return _BINARY_HEADS[size] if size <= _MAX_U8 else _pack_size(_BINARY_32, size)


def encode_binary(value: bytes) -> bytes:
    """A byte string."""
    return binary_head(len(value)) + value


def encode_text(value: str) -> bytes:
    """A string."""
    raw = value.encode()
    size = len(raw)
    return (_STRING_HEADS[size] if size <= _MAX_U8 else _pack_size(_STRING_32, size)) + raw


_encoded_key = lru_cache(maxsize=1024)(encode_text)  # keys that are looked up again and again


def encode_symbol(value: str) -> bytes:
    """A symbol.

    Raises:
        ValueError: it is not ASCII.
    """
    raw = value.encode("ascii")
    size = len(raw)
    return (_SYMBOL_HEADS[size] if size <= _MAX_U8 else _pack_size(_SYMBOL_32, size)) + raw


def encode_list(
    items: Sequence[bytes], short: int = codes.LIST_8, long: int = codes.LIST_32
) -> bytes:
    """A list of values that are encoded already; with other codes a map."""
    return _compound(b"".join(items), len(items), short, long)


def _compound(data: bytes, count: int, short: int, long: int) -> bytes:
    if len(data) < _MAX_U8 and count <= _MAX_U8:
        return b"%c%c%c%b" % (short, len(data) + 1, count, data)
    return _pack_size(long, len(data) + 4) + _U32.pack(count) + data


def encode_map(items: Sequence[bytes]) -> bytes:
    """A map of keys and values, in turn, that are encoded already."""
    return encode_list(items, _MAP_8, _MAP_32)


def encode_named(values: Mapping[str, Value]) -> bytes:
    """A map of values by name: as `encode_map` of their encodings, at a quarter of the cost.

    Every message that is published with properties comes along here: keys are encoded once, usual
    values without a call.

    Raises:
        TypeError, ValueError: see `encode_value`.
    """
    parts: list[bytes] = []
    for name, value in values.items():
        if type(value) is str:
            raw = value.encode()
            size = len(raw)
            head = _STRING_HEADS[size] if size <= _MAX_U8 else _pack_size(_STRING_32, size)
            parts += (_encoded_key(name), head, raw)
        elif type(value) is int and _SMALLEST_LONG <= value <= _MAX_LONG:
            head = _SMALL_LONGS.get(value) or _pack_long(_LONG, value)
            parts += (_encoded_key(name), head)
        else:
            parts += (_encoded_key(name), encode_value(value))
    return _compound(b"".join(parts), 2 * len(values), _MAP_8, _MAP_32)


def encode_timestamp(value: datetime) -> bytes:
    """A time, to the millisecond; for one without a zone see times.py."""
    return _TIMESTAMP + whole_ms(value).to_bytes(8, "big", signed=True)


def _encode_mapping(value: Mapping[Value, Value]) -> bytes:
    return encode_map([encode_value(part) for item in value.items() for part in item])


_ENCODERS: dict[type, Callable[..., bytes]] = {
    type(None): lambda _: _NULL,
    bool: lambda value: _TRUE if value else _FALSE,
    Symbol: encode_symbol,
    Opaque: lambda value: value.raw,
    int: _encode_int,
    float: lambda value: _DOUBLE + struct.pack(">d", value),
    str: encode_text,
    bytes: encode_binary,
    bytearray: lambda value: encode_binary(bytes(value)),
    datetime: encode_timestamp,
    uuid.UUID: lambda value: _UUID + value.bytes,
    list: lambda value: encode_list(list(map(encode_value, value))),
    tuple: lambda value: encode_list(list(map(encode_value, value))),
    dict: _encode_mapping,
}
