"""Values of AMQP 1.0 with their types, as performatives, filters and requests need them.

`segments.amqp10` reads and writes values; widths of numbers do not matter there. Here they do: a
field has one type, and what a peer has sent goes back as it was. So unsigned numbers keep their
type, a described value its descriptor, and an array is no list. All else looks as it does there:
None, bool, int (signed, of any width), float, str, Symbol, Char, bytes, datetime, UUID, list, dict,
and Opaque for what has no counterpart (decimals, times beyond datetime, arrays of compounds).

Source: OASIS AMQP 1.0 part 1 (types).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from segments import amqp10_codes as codes
from segments.amqp10 import (
    MAX_DEPTH,
    Opaque,
    decode_value,
    encode_list,
    encode_map,
    encode_text,
    encode_value,
    skip_value,
)
from segments.errors import FormatError

Exact: TypeAlias = Any  # see the module


class Ubyte(int):
    """An unsigned number of 8 bits."""

    __slots__ = ()


class Ushort(int):
    """An unsigned number of 16 bits."""

    __slots__ = ()


class Uint(int):
    """An unsigned number of 32 bits."""

    __slots__ = ()


class Ulong(int):
    """An unsigned number of 64 bits."""

    __slots__ = ()


class Described(NamedTuple):
    """A value with a descriptor, which says what it is."""

    descriptor: Exact
    value: Exact


class Array(tuple[Exact, ...]):
    """Values of one type."""

    __slots__ = ()


class Entry(NamedTuple):
    """A key of a map and its value.

    Attributes:
        raw: the encoding of both, to be sent back as it is.
    """

    key: Exact
    value: Exact
    raw: bytes


_UNSIGNED: dict[int, type[int]] = {
    codes.UBYTE: Ubyte,
    codes.USHORT: Ushort,
    codes.UINT_0: Uint,
    codes.SMALL_UINT: Uint,
    codes.UINT: Uint,
    codes.ULONG_0: Ulong,
    codes.SMALL_ULONG: Ulong,
    codes.ULONG: Ulong,
}
_LISTS, _MAPS = codes.LISTS, codes.MAPS
_ARRAYS = {codes.ARRAY_8: 1, codes.ARRAY_32: 4}


def read_value(raw: bytes, position: int = 0, depth: int = 0) -> tuple[Exact, int]:
    """Read the value at `position`; returns it and the position after it.

    Raises:
        FormatError: cut off, nested too deeply, or of a type code that does not exist.
    """
    code = raw[position] if position < len(raw) else None
    if code in _UNSIGNED:
        value, end = decode_value(raw, position)
        return _UNSIGNED[code](value), end  # type: ignore[arg-type]
    if code == codes.DESCRIBED:
        depth = _deeper(depth)
        descriptor, middle = read_value(raw, position + 1, depth)
        value, end = read_value(raw, middle, depth)
        return Described(descriptor, value), end
    if code in _LISTS:
        depth = _deeper(depth)
        values = []
        count, position, end = _bounds(raw, position, _LISTS[code])
        for _ in range(count):
            value, position = read_value(raw, position, depth)
            values.append(value)
        return values, _checked(position, end)
    if code in _MAPS:
        return _read_map(raw, position, _deeper(depth))
    if code in _ARRAYS:
        return _read_array(raw, position, _ARRAYS[code])
    return decode_value(raw, position, depth)


def _read_map(raw: bytes, position: int, depth: int) -> tuple[dict[Exact, Exact], int]:
    values: dict[Exact, Exact] = {}
    end = skip_value(raw, position)
    try:
        for key, value, _ in _walk_map(raw, position, depth):
            values.setdefault(key, value)
    except TypeError:
        raise FormatError("a map has a list or a map as a key") from None
    return values, end


def read_entries(raw: bytes, position: int = 0) -> list[Entry]:
    """The entries of the map at `position`, in their order; null has none.

    Raises:
        FormatError: it is no map, or cut off.
    """
    if raw[position : position + 1] == _NULL:
        return []
    if not raw or raw[position] not in _MAPS:
        raise FormatError(f"byte {position} begins no map")
    return list(_walk_map(raw, position, 1))


def map_of(entries: Sequence[Entry]) -> Opaque:
    """The map that has these entries, as they are encoded."""
    data = b"".join([entry.raw for entry in entries])
    return Opaque(encode_map([data, *[b""] * (2 * len(entries) - 1)] if entries else []))


def _walk_map(raw: bytes, position: int, depth: int) -> Iterator[Entry]:
    count, at, end = _bounds(raw, position, _MAPS[raw[position]])
    if count % 2:
        raise FormatError(f"the map at byte {position} has {count} keys and values")
    for _ in range(count // 2):
        begin = at
        key, at = read_value(raw, at, depth)
        value, at = read_value(raw, at, depth)
        yield Entry(key, value, raw[begin:at])
    _checked(at, end)


def _read_array(raw: bytes, position: int, width: int) -> tuple[Array | Opaque, int]:
    count, at, end = _bounds(raw, position, width)
    if at >= end or count > end - at:
        return Opaque(raw[position:end]), end
    values, _ = decode_value(raw, position)
    if isinstance(values, Opaque):
        return values, end
    kind = _UNSIGNED.get(raw[at])
    return Array(map(kind, values) if kind else values), end  # type: ignore[arg-type]


def _bounds(raw: bytes, position: int, width: int) -> tuple[int, int, int]:
    """Number of items, start of the first, end of the last, of a list, map or array."""
    end = skip_value(raw, position)
    if not width:
        return 0, end, end
    at = position + 1 + width
    start = at + width
    if start > end:
        raise FormatError(f"value at byte {position} is cut off")
    return int.from_bytes(raw[at:start], "big"), start, end


def _checked(position: int, end: int) -> int:
    if position != end:
        raise FormatError(f"a list or map announces to end at byte {end}, it ends at {position}")
    return end


def _deeper(depth: int) -> int:
    if depth >= MAX_DEPTH:
        raise FormatError(f"values are nested more than {MAX_DEPTH} deep")
    return depth + 1


# -- writing

_NULL = bytes((codes.NULL,))


def write_value(value: Exact) -> bytes:
    """The shortest encoding of a value; an int that is none of the types here is a long.

    Raises:
        TypeError: its type has no AMQP type.
        ValueError: a number or a time is out of range.
    """
    encode = _ENCODERS.get(type(value))
    return encode_value(value) if encode is None else encode(value)


def _unsigned(zero: int | None, small: int | None, code: int, size: int) -> Callable[[int], bytes]:
    def encode(value: int) -> bytes:
        if not 0 <= value < 1 << 8 * size:
            raise ValueError(f"{value} does not fit into {8 * size} bits")
        if not value and zero is not None:
            return bytes((zero,))
        if value < 1 << 8 and small is not None:
            return bytes((small, value))
        return bytes((code,)) + value.to_bytes(size, "big")

    return encode


encode_uint = _unsigned(codes.UINT_0, codes.SMALL_UINT, codes.UINT, 4)
encode_ulong = _unsigned(codes.ULONG_0, codes.SMALL_ULONG, codes.ULONG, 8)


def _write_array(values: Sequence[Exact]) -> bytes:
    """All in the long form, which they have in common; an empty one is of texts."""
    parts = [_in_long_form(write_value(value)) for value in values]
    code = parts[0][:1] if parts else bytes((codes.STRING_32,))
    data = len(parts).to_bytes(4, "big") + code + b"".join(part[1:] for part in parts)
    return bytes((codes.ARRAY_32,)) + len(data).to_bytes(4, "big") + data


_LONG_FORMS = {
    codes.TRUE: bytes((codes.BOOLEAN, 1)),
    codes.FALSE: bytes((codes.BOOLEAN, 0)),
    codes.UINT_0: bytes((codes.UINT, 0, 0, 0, 0)),
    codes.ULONG_0: bytes((codes.ULONG, *bytes(8))),
    codes.LIST_0: bytes((codes.LIST_32, 0, 0, 0, 4, *bytes(4))),
}
_LONG_NUMBERS = {  # code, and how many bytes stand before the one of the short form
    codes.SMALL_UINT: (codes.UINT, 3),
    codes.SMALL_ULONG: (codes.ULONG, 7),
}
_COMPOUNDS_8 = (codes.LIST_8, codes.MAP_8, codes.ARRAY_8)


def _in_long_form(raw: bytes) -> bytes:
    """The same value, as wide as the widest of its type."""
    code = raw[0]
    if code in _LONG_FORMS:
        return _LONG_FORMS[code]
    if code in _LONG_NUMBERS:
        long, more = _LONG_NUMBERS[code]
        return bytes((long, *bytes(more))) + raw[1:]
    if code in _COMPOUNDS_8:
        size, count = raw[1] + 3, raw[2]
        return bytes((code + 16,)) + size.to_bytes(4, "big") + count.to_bytes(4, "big") + raw[3:]
    if code in codes.SIZED_8:
        return bytes((code + 16,)) + (len(raw) - 2).to_bytes(4, "big") + raw[2:]
    return raw


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Ubyte: _unsigned(None, None, codes.UBYTE, 1),
    Ushort: _unsigned(None, None, codes.USHORT, 2),
    Uint: encode_uint,
    Ulong: encode_ulong,
    Described: lambda it: b"\0" + write_value(it.descriptor) + write_value(it.value),
    Array: _write_array,
    list: lambda values: encode_list([write_value(value) for value in values]),
    dict: lambda values: encode_map([write_value(p) for item in values.items() for p in item]),
    str: encode_text,
}
