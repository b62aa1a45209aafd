"""How single fields are written: integers, strings, arrays, maps, offset specifications.

A command declares its fields with the annotated types at the end of this module; `codec.py`
derives encoding and decoding from them. All integers are big-endian. Decoding takes a frame and a
position and returns the value and the position after it; a cut-off field raises `Truncated`.

Source: rabbitmq/rabbitmq-server, deps/rabbitmq_stream/docs/PROTOCOL.adoc and
deps/rabbitmq_stream_common/src/rabbit_stream_core.erl, which wins where they differ.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from streamd.wire.stream.subscribe_properties import FILTER_PREFIX, text_of, value_of

Value = TypeVar("Value")


# Of an array in a request. No client of RabbitMQ sends a tenth of it; tiny items take many times
# their bytes in memory.
MAX_ITEMS = 4_000


class Truncated(Exception):
    """A field reaches beyond the frame."""


class TooMany(Exception):
    """An array in a request has more than MAX_ITEMS items."""


@dataclass(frozen=True)
class Field(Generic[Value]):
    """One field type: value to bytes, and (frame, position) to (value, next position).

    Attributes:
        encode: value to bytes.
        decode: (frame, position) to (value, next position).
        item: the type of the items where the value is an array.
    """

    encode: Callable[[Value], bytes]
    decode: Callable[[bytes, int], tuple[Value, int]]
    item: "Field[Any] | None" = None


def _number(code: str) -> Field[int]:
    form = struct.Struct(f">{code}")

    def decode(frame: bytes, position: int) -> tuple[int, int]:
        end = position + form.size
        if end > len(frame):
            raise Truncated
        return form.unpack_from(frame, position)[0], end

    return Field(form.pack, decode)


_u8, _u16, _u32, _u64, _i64 = map(_number, "BHIQq")
_LENGTH16, _LENGTH32 = struct.Struct(">H"), struct.Struct(">i")
_NULL16 = 0xFFFF  # -1: no string


def _sized(raw: bytes) -> bytes:
    if len(raw) >= _NULL16:
        raise ValueError(f"text is {len(raw)} bytes long, at most {_NULL16 - 1} can be sent")
    return _LENGTH16.pack(len(raw)) + raw


def _encode_string(value: str) -> bytes:
    return _sized(value.encode())


def _decode_sized(frame: bytes, position: int) -> tuple[bytes, int]:
    length, start = _u16.decode(frame, position)
    if length == _NULL16:
        return b"", start
    end = start + length
    if end > len(frame):
        raise Truncated
    return frame[start:end], end


def _decode_string(frame: bytes, position: int) -> tuple[str, int]:
    """A missing string (length -1) reads as an empty one: no command tells them apart."""
    raw, end = _decode_sized(frame, position)
    try:
        return raw.decode(), end
    except UnicodeDecodeError as error:
        raise Truncated from error


def _encode_bytes(value: bytes) -> bytes:
    return _LENGTH32.pack(len(value)) + value


def _decode_bytes(frame: bytes, position: int) -> tuple[bytes, int]:
    if position + _LENGTH32.size > len(frame):
        raise Truncated
    (length,) = _LENGTH32.unpack_from(frame, position)
    start = position + _LENGTH32.size
    end = start + max(length, 0)
    if end > len(frame):
        raise Truncated
    return frame[start:end], end


_string = Field(_encode_string, _decode_string)
_bytes = Field(_encode_bytes, _decode_bytes)


def _array(item: Field[Value], most: int | None = None) -> Field[tuple[Value, ...]]:
    """Items after their number, `most` of them."""

    def encode(values: tuple[Value, ...]) -> bytes:
        return _u32.encode(len(values)) + b"".join(map(item.encode, values))

    def decode(frame: bytes, position: int) -> tuple[tuple[Value, ...], int]:
        count, position = _u32.decode(frame, position)
        if count > len(frame):  # every item takes a byte at least
            raise Truncated
        if most is not None and count > most:
            raise TooMany
        values = []
        for _ in range(count):
            value, position = item.decode(frame, position)
            values.append(value)
        return tuple(values), position

    return Field(encode, decode, item)


def _to_end(item: Field[Value]) -> Field[tuple[Value, ...]]:
    """An array in a request whose count is ignored: items fill the frame, as RabbitMQ reads it."""

    def decode(frame: bytes, position: int) -> tuple[tuple[Value, ...], int]:
        _, position = _u32.decode(frame, position)
        values: list[Value] = []
        while position < len(frame):
            if len(values) == MAX_ITEMS:
                raise TooMany
            value, position = item.decode(frame, position)
            values.append(value)
        return tuple(values), position

    return Field(_array(item).encode, decode, item)


def record(kind: type[Value], *fields: Field[Any]) -> Field[Value]:
    """Several fields after one another, as the named tuple `kind`."""

    def encode(value: Value) -> bytes:
        values: Any = value
        return b"".join(f.encode(v) for f, v in zip(fields, values, strict=True))

    def decode(frame: bytes, position: int) -> tuple[Value, int]:
        values = []
        for field in fields:
            value, position = field.decode(frame, position)
            values.append(value)
        return kind(*values), position

    return Field(encode, decode)


class Pair(NamedTuple):
    """One entry of a map."""

    key: str
    value: str


class CommandVersions(NamedTuple):
    """The versions of one command that a side understands."""

    key: int
    min_version: int
    max_version: int


class BrokerAddress(NamedTuple):
    """An address that streams can be reached at, and the number that Metadata calls it by."""

    reference: int
    host: str
    port: int


class StreamMetadata(NamedTuple):
    """Where one stream is; `leader` is NO_LEADER when it is nowhere."""

    stream: str
    code: int
    leader: int
    replicas: tuple[int, ...]


class Statistic(NamedTuple):
    """One figure about a stream."""

    name: str
    value: int


class StreamDescription(NamedTuple):
    """What a streamd server reports about one stream."""

    stream: str
    code: int
    arguments: tuple[Pair, ...]
    statistics: tuple[Statistic, ...]


class FoundMessage(NamedTuple):
    """A message that a search has found: its offset, the time of its chunk in ms, its bytes."""

    offset: int
    timestamp_ms: int
    raw: bytes


class PublishFault(NamedTuple):
    """A message that was not taken, and why."""

    publishing_id: int
    code: int


class OffsetSpecification(NamedTuple):
    """Where to begin reading: 1 first, 2 last, 3 next, 4 offset, 5 timestamp; 0 says nothing."""

    type: int
    value: int = 0


NO_LEADER = 0xFFFF
NO_OFFSET = OffsetSpecification(4)
_OFFSET, _TIMESTAMP = 4, 5


def _encode_offset(value: OffsetSpecification) -> bytes:
    raw = _u16.encode(value.type)
    if value.type == _OFFSET:
        return raw + _u64.encode(value.value)
    return raw + _i64.encode(value.value) if value.type == _TIMESTAMP else raw


def _decode_offset(frame: bytes, position: int) -> tuple[OffsetSpecification, int]:
    kind, position = _u16.decode(frame, position)
    if kind not in (_OFFSET, _TIMESTAMP):
        return OffsetSpecification(kind), position
    value, position = (_u64 if kind == _OFFSET else _i64).decode(frame, position)
    return OffsetSpecification(kind, value), position


_pair = record(Pair, _string, _string)


def _optional_map(pair: Field[Pair]) -> Field[tuple[Pair, ...]]:
    """Properties at the end of a request: absent or not readable means none."""
    pairs = _array(pair, MAX_ITEMS)

    def decode(frame: bytes, position: int) -> tuple[tuple[Pair, ...], int]:
        try:
            return pairs.decode(frame, position)
        except Truncated:
            return (), len(frame)

    return Field(pairs.encode, decode, pair)


def _encode_subscribe_pair(pair: Pair) -> bytes:
    key, value = pair
    if key.startswith(FILTER_PREFIX):
        return _string.encode(key) + _sized(value_of(value))
    return _pair.encode(pair)


def _decode_subscribe_pair(frame: bytes, position: int) -> tuple[Pair, int]:
    """A property of a Subscribe: a filter value may be any bytes, all else is UTF-8."""
    key, position = _string.decode(frame, position)
    if not key.startswith(FILTER_PREFIX):
        value, position = _string.decode(frame, position)
        return Pair(key, value), position
    raw, position = _decode_sized(frame, position)
    return Pair(key, text_of(raw)), position


_subscribe_pair = Field(_encode_subscribe_pair, _decode_subscribe_pair)


def _encode_ids(values: tuple[int, ...]) -> bytes:
    return struct.pack(f">I{len(values)}Q", len(values), *values)


def _decode_ids(frame: bytes, position: int) -> tuple[tuple[int, ...], int]:
    """An array of u64 in one go: confirms bring thousands of them."""
    count, start = _u32.decode(frame, position)
    end = start + 8 * count
    if end > len(frame):
        raise Truncated
    return struct.unpack_from(f">{count}Q", frame, start), end


def _decode_rest(frame: bytes, position: int) -> tuple[bytes, int]:
    return frame[position:], len(frame)


U8 = Annotated[int, _u8]
U16 = Annotated[int, _u16]
U32 = Annotated[int, _u32]
U64 = Annotated[int, _u64]
String = Annotated[str, _string]
Bytes = Annotated[bytes, _bytes]
Rest = Annotated[bytes, Field[bytes](bytes, _decode_rest)]
Strings = Annotated[tuple[str, ...], _array(_string)]
Names = Annotated[tuple[str, ...], _array(_string, MAX_ITEMS)]
StringsToEnd = Annotated[tuple[str, ...], _to_end(_string)]
Map = Annotated[tuple[Pair, ...], _array(_pair, MAX_ITEMS)]
MapToEnd = Annotated[tuple[Pair, ...], _to_end(_pair)]
Maps = Annotated[tuple[tuple[Pair, ...], ...], _array(_array(_pair))]
OptionalMap = Annotated[tuple[Pair, ...], _optional_map(_pair)]
SubscribeMap = Annotated[tuple[Pair, ...], _optional_map(_subscribe_pair)]
OffsetSpec = Annotated[OffsetSpecification, Field(_encode_offset, _decode_offset)]
Versions = Annotated[
    tuple[CommandVersions, ...], _to_end(record(CommandVersions, _u16, _u16, _u16))
]
Brokers = Annotated[tuple[BrokerAddress, ...], _array(record(BrokerAddress, _u16, _string, _u32))]
StreamsMetadata = Annotated[
    tuple[StreamMetadata, ...],
    _array(record(StreamMetadata, _string, _u16, _u16, _array(_u16))),
]
_statistics = _array(record(Statistic, _string, _i64))
Statistics = Annotated[tuple[Statistic, ...], _statistics]
Descriptions = Annotated[
    tuple[StreamDescription, ...],
    _array(record(StreamDescription, _string, _u16, _array(_pair), _statistics)),
]
FoundMessages = Annotated[
    tuple[FoundMessage, ...], _array(record(FoundMessage, _u64, _i64, _bytes))
]
PublishingIds = Annotated[tuple[int, ...], Field(_encode_ids, _decode_ids)]
PublishFaults = Annotated[tuple[PublishFault, ...], _array(record(PublishFault, _u64, _u16))]
