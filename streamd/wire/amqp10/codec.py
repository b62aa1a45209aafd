"""Performatives to bytes and back, and frames around them.

Why no library: the engine of Qpid Proton has no wheels for Linux, its server does not know PLAIN
without another library, and it makes an object of each delivery; the others are clients. They are
the peers of tests/interop instead.

Source: OASIS AMQP 1.0 part 2 (transport), 2.3; part 1 (types), 1.4.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple, get_type_hints

from segments import amqp10_codes as codes
from segments.amqp10 import (
    Opaque,
    Symbol,
    encode_binary,
    encode_list,
    encode_symbol,
    encode_text,
    skip_value,
)
from segments.errors import FormatError
from streamd.wire.amqp10 import performatives as p, values
from streamd.wire.amqp10.performatives import BY_CODE, BY_NAME, CODES, Performative
from streamd.wire.amqp10.values import Array, Described, Exact, read_value, write_value


class FrameType(IntEnum):
    """What a frame carries."""

    AMQP = 0
    SASL = 1


FRAME_HEAD = struct.Struct(">IBBH")  # size with all, words before the body, type, channel
MIN_FRAME_SIZE = 512  # that each side must take
HEARTBEAT_FRAME = FRAME_HEAD.pack(FRAME_HEAD.size, 2, FrameType.AMQP, 0)
AMQP_HEADER, TLS_HEADER, SASL_HEADER = (b"AMQP%c\x01\x00\x00" % number for number in (0, 2, 3))
_HEADERS = (AMQP_HEADER, TLS_HEADER, SASL_HEADER)
_NULL = bytes((codes.NULL,))
_DESCRIPTORS = frozenset(
    bytes((code,)) for code in (codes.SMALL_ULONG, codes.ULONG, codes.ULONG_0, *codes.SYMBOLS)
)


def is_amqp10(start: bytes) -> bool | None:
    """Whether a connection that begins like this is one of AMQP 1.0; None while that is open."""
    if start.startswith(_HEADERS):
        return True
    return None if any(header.startswith(start) for header in _HEADERS) else False


class _Kind(NamedTuple):
    """How one type of field is written, and which values it may have when read."""

    encode: Callable[[Any], bytes]
    type: type[Any]


def _write_symbols(names: tuple[str, ...]) -> bytes:
    return write_value(Array(map(Symbol, names))) if names else _NULL


def _write_composite(value: Performative) -> bytes:
    return write_value(value) if isinstance(value, Described) else encode_composite(value)


_KINDS = {
    "ubyte": _Kind(lambda value: write_value(values.Ubyte(value)), values.Ubyte),
    "ushort": _Kind(lambda value: write_value(values.Ushort(value)), values.Ushort),
    "uint": _Kind(values.encode_uint, values.Uint),
    "ulong": _Kind(values.encode_ulong, values.Ulong),
    "boolean": _Kind(write_value, bool),
    "string": _Kind(encode_text, str),
    "symbol": _Kind(encode_symbol, Symbol),
    "symbols": _Kind(_write_symbols, tuple),
    "binary": _Kind(encode_binary, bytes),
    "map": _Kind(write_value, dict),
    "raw": _Kind(lambda value: value.raw, Opaque),
    "value": _Kind(write_value, object),
    "composite": _Kind(_write_composite, tuple),
}


# What the field says of its type need not be kept in its value.
_PLAIN: dict[str, type[Any]] = dict.fromkeys(("ubyte", "ushort", "uint", "ulong"), int)
_PLAIN["symbol"] = str


class Field(NamedTuple):
    """A field of a performative; the default stands for null."""

    name: str
    kind: str
    is_mandatory: bool
    default: Exact


def layout_of(composite: type[Any]) -> tuple[Field, ...]:
    """The fields of a performative, or of what is part of one."""
    defaults = composite._field_defaults
    found = []
    for name, hint in get_type_hints(composite, include_extras=True).items():
        options = (hint, *getattr(hint, "__args__", ()))
        is_optional = type(None) in options
        (kind,) = next(o.__metadata__ for o in options if hasattr(o, "__metadata__"))
        is_mandatory = name not in defaults and not is_optional
        found.append(Field(name, kind, is_mandatory, defaults.get(name)))
    return tuple(found)


_LAYOUTS: dict[type[Any], tuple[Field, ...]] = {kind: layout_of(kind) for kind in CODES}


def encode_composite(composite: Performative) -> bytes:
    """A performative, or what is part of one; nulls at the end are left out."""
    kind = type(composite)
    fields = [
        _NULL if value is None else _KINDS[field.kind].encode(value)
        for field, value in zip(_LAYOUTS[kind], composite, strict=True)
    ]
    while fields and fields[-1] == _NULL:
        fields.pop()
    head = bytes((codes.DESCRIBED, codes.SMALL_ULONG, CODES[kind]))
    return head + encode_list(fields) if fields else head + bytes((codes.LIST_0,))


def frame(channel: int, performative: Performative, payload: bytes = b"") -> bytes:
    """A performative in its frame."""
    body = encode_composite(performative)
    size = FRAME_HEAD.size + len(body) + len(payload)
    return FRAME_HEAD.pack(size, 2, FrameType.AMQP, channel) + body + payload


def sasl_frame(performative: Performative) -> bytes:
    """A performative of SASL in its frame."""
    body = encode_composite(performative)
    return FRAME_HEAD.pack(FRAME_HEAD.size + len(body), 2, FrameType.SASL, 0) + body


def decode_composite(raw: bytes, position: int = 0) -> tuple[Performative, int]:
    """What is described at `position`, and where it ends.

    Raises:
        FormatError: it is none of the composite types, or its fields are malformed.
    """
    kind, at = _kind_at(raw, position)
    if kind is None:
        raise FormatError(f"byte {position} begins nothing that is known")
    return _decode_fields(kind, raw, at)


def _kind_at(raw: bytes, position: int) -> tuple[type[Any] | None, int]:
    if raw[position : position + 1] != b"\0":
        raise FormatError(f"byte {position} begins no composite value")
    if raw[position + 1 : position + 2] not in _DESCRIPTORS:  # which may be large
        return None, position
    descriptor, at = read_value(raw, position + 1)
    table: dict[Any, type[Any]] = BY_NAME if isinstance(descriptor, str) else BY_CODE
    return table.get(descriptor), at


def _decode_fields(kind: type[Any], raw: bytes, position: int) -> tuple[Performative, int]:
    end = skip_value(raw, position)
    width = codes.LISTS.get(raw[position])
    if width is None:
        raise FormatError(f"{kind.__name__} at byte {position} is no list")
    at = position + 1 + width
    count = int.from_bytes(raw[at : at + width], "big")
    at += width
    layout = _LAYOUTS[kind]
    if count > len(layout):
        raise FormatError(f"{kind.__name__} has {count} fields, expected at most {len(layout)}")
    found: list[Exact] = []
    for number, field in enumerate(layout):
        value = None
        if number < count:
            if at >= end:
                raise FormatError(f"{kind.__name__} is cut off")
            value, at = _decode_field(kind, field, raw, at)
        if value is None and field.is_mandatory:
            raise FormatError(f"{kind.__name__} has no {field.name}, which is mandatory")
        found.append(field.default if value is None else value)
    if at != end and width:
        raise FormatError(f"{kind.__name__} ends at byte {at}, its list at {end}")
    return kind(*found), end


def _decode_field(composite: type[Any], field: Field, raw: bytes, at: int) -> tuple[Exact, int]:
    kind = field.kind
    if raw[at] == codes.NULL:
        return None, at + 1
    if kind == "raw":
        read_value(raw, at)  # or what is sent back would be malformed, too
        end = skip_value(raw, at)
        return Opaque(raw[at:end]), end
    if kind == "composite":
        inner, position = _kind_at(raw, at)
        if inner is None:
            return read_value(raw, at)
        return _decode_fields(inner, raw, position)
    value, end = read_value(raw, at)
    if kind == "symbols" and isinstance(value, Symbol):
        value = (value,)
    if type(value) is Array and kind == "symbols":
        value = tuple(value)
    if kind != "value" and type(value) is not _KINDS[kind].type:
        raise FormatError(f"{field.name} of {composite.__name__} is no {kind}")
    plain = _PLAIN.get(kind)
    return (value if plain is None else plain(value)), end


# -- what comes and goes most

_TRANSFER = bytes((codes.DESCRIBED, codes.SMALL_ULONG, CODES[p.Transfer], codes.LIST_8))
_SIZE = 4  # bytes, of the size of a frame
_MOST_OF_A_TRANSFER = 4_096  # bytes: it has a state that may say a lot
_FIELDS_READ = 3  # handle, id, tag: those that differ between the transfers of a link
_NO_FIELDS_READ = bytes((codes.UINT_0, codes.UINT_0, codes.NULL))


class TransferHead(NamedTuple):
    """What a receiver needs of a transfer.

    Attributes:
        delivery_id, settled: None where they are not given.
        end: of the performative; the payload begins there.
    """

    handle: int
    delivery_id: int | None
    settled: bool | None
    more: bool
    is_aborted: bool
    end: int


class TransferRun:
    """Transfers of one link, each a whole message, that differ in nothing but id, tag and payload.

    One by one they would cost three times as much.

    Args:
        raw: has the first of them.
        start: where its frame begins.
        head: of it.

    Attributes:
        is_whole: the first is such a message.
    """

    def __init__(self, raw: bytes, start: int, head: TransferHead) -> None:
        at = start + FRAME_HEAD.size
        _, number = _read_uint(raw, at + 6)  # where the id is
        _, tag = _read_uint(raw, number)
        rest = tag + (2 + raw[tag + 1] if raw[tag] == codes.BINARY_8 else 1)
        self._before = raw[start + _SIZE : number + 1]
        self._tag_head = raw[tag : tag + 2]
        self._rest = raw[rest : head.end]
        self._offsets = [position - start for position in (number + 1, tag, rest, head.end)]
        self.is_whole = not head.more and not head.is_aborted and head.delivery_id is not None

    def take(
        self, raw: bytes, start: int, most: int, largest: int
    ) -> tuple[list[int], list[bytes], int]:
        """Those that follow each other.

        Args:
            raw: of whole frames.
            start: where the first of them may begin.
            most: how many are taken.
            largest: bytes that a frame may have.

        Returns:
            ids, payloads, and where what follows begins.
        """
        number, tag, rest, end = self._offsets
        before, tag_head, tail = self._before, self._tag_head, self._rest
        ids: list[int] = []
        payloads: list[bytes] = []
        size, from_bytes = len(raw), int.from_bytes
        while len(ids) < most and start + end <= size:
            stop = start + from_bytes(raw[start : start + _SIZE], "big")
            if (
                raw[start + _SIZE : start + number] != before
                or raw[start + tag : start + tag + 2] != tag_head
                or raw[start + rest : start + end] != tail
                or not start + end <= stop <= size
                or stop - start > largest
            ):
                break
            ids.append(from_bytes(raw[start + number : start + tag], "big"))
            payloads.append(raw[start + end : stop])
            start = stop
        return ids, payloads, start


def is_transfer(raw: bytes) -> bool:
    """Whether what comes with a message begins there, in whichever form; that is short itself."""
    try:
        kind, at = _kind_at(raw, 0)
        return kind is p.Transfer and skip_value(raw, at) < _MOST_OF_A_TRANSFER
    except FormatError:
        return False


def is_close(raw: bytes) -> bool:
    """Whether the end of a connection begins there, whatever it says."""
    try:
        return _kind_at(raw, 0)[0] is p.Close
    except FormatError:
        return False


def head_of(transfer: p.Transfer) -> TransferHead:
    """The same of one that was decoded; its payload is somewhere else."""
    number, settled, more = transfer.delivery_id, transfer.settled, transfer.more
    return TransferHead(transfer.handle, number, settled, more, transfer.aborted, 0)


def read_transfer(raw: bytes, position: int) -> TransferHead | None:
    """The transfer that begins there, if it has its usual form; None for anything else.

    All that differs between transfers of a link stands in front; what follows is remembered.
    """
    if raw[position : position + 4] != _TRANSFER:
        return None
    try:
        end = position + 5 + raw[position + 4]
        count = raw[position + 5]
        handle, at = _read_uint(raw, position + 6)
        delivery_id, at = _read_uint(raw, at)
        if raw[at] == codes.BINARY_8:
            at += 2 + raw[at + 1]
        elif raw[at] == codes.NULL:
            at += 1
        else:
            return None
    except IndexError:
        return None
    if handle is None or count < _FIELDS_READ or at > end or end > len(raw):
        return None
    rest = _rest_of_transfer(raw[at:end], count - _FIELDS_READ)
    return None if rest is None else TransferHead(handle, delivery_id, *rest, end)


def _read_uint(raw: bytes, at: int) -> tuple[int | None, int]:
    """As read_value; IndexError for what is neither an uint nor null."""
    code = raw[at]
    if code == codes.SMALL_UINT:
        return raw[at + 1], at + 2
    if code == codes.UINT:
        return int.from_bytes(raw[at + 1 : at + 5], "big"), at + 5
    if code == codes.UINT_0:
        return 0, at + 1
    if code == codes.NULL:
        return None, at + 1
    raise IndexError


@lru_cache(maxsize=256)
def _rest_of_transfer(raw: bytes, count: int) -> tuple[bool | None, bool, bool] | None:
    """Whether it is settled, has more, is aborted; None where that is malformed."""
    fields = _NO_FIELDS_READ + raw
    size = len(fields) + 1
    if size >= 1 << 8:
        return None
    whole = bytes((codes.LIST_8, size, count + _FIELDS_READ)) + fields
    try:
        found, _ = _decode_fields(p.Transfer, whole, 0)
    except (FormatError, ValueError):
        return None
    return found.settled, found.more, found.aborted
