"""Changes to what frames say: a command or method is read, one of its values becomes another, and
it is written again. Sizes, counts and keys around it stay right, so that it is looked at."""

import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from msgspec.structs import replace

from segments.errors import FormatError
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import (
    CONTENT_HEAD_SIZE,
    FRAME_HEAD,
    FrameType,
    decode_method,
    encode_frame,
    encode_method,
)
from streamd.wire.amqp091.errors import Fault
from streamd.wire.amqp091.properties import Properties, decode_properties, encode_properties
from streamd.wire.amqp091.values import Field
from streamd.wire.amqp10 import codec as amqp10_codec
from streamd.wire.stream import RemoteProtocolError, codec
from streamd.wire.stream.fields import Pair

NUMBERS = (0, 1, 2, 3, 5, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000)
_LARGE = (0xFFFFFFFF, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
TEXTS = (
    *("", "s", "f", "p", "p-0", "p-1", "new", "none", "x", "y", "k", "k.z", "k.#", "*", "#", "1"),
    *("amq.topic", "amq.direct", "amq.fanout", "amq.headers", "amq.rabbitmq.trace", "amq.x", "/"),
    *("guest", "app", "group", "g", "c", "d", "a", "kind", "direct", "fanout", "topic"),
    *("headers", "x-consistent-hash", "first", "last", "next", "1h", "5D", "-1", "0", "2000", "b"),
    *("18446744073709551615", "9223372036854775808", "strict", "true", "false", "a = 1", "a || b"),
    *("a IS NULL OR b LIKE '%x_' ESCAPE '!'", "a BETWEEN 1 AND 2", "properties.subject = 'x'"),
    *("\0", "é", "\U0001f600", "a" * 255, "é" * 128, "%" * 40, "(" * 60, "a" * 2000),
)
KEYS = (
    *("max-length-bytes", "max-age", "stream-max-segment-size-bytes", "stream-filter-size-bytes"),
    *("stream-chunk-max-records", "stream-filter-property", "stream-filter-contract"),
    *("queue-leader-locator", "initial-cluster-size", "filter.1", "filter.2", "match-unfiltered"),
    *("name", "super-stream", "single-active-consumer", "filter-mode", "selector", "stream"),
    *("group", "text", "user", "vhost", "read", "write", "configure", "password", "tags", "sql"),
)
HEADERS = (
    *("x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered", "x-stream-sql"),
    *("x-stream-tags", "x-stream-filter-value", "x-queue-type", "x-max-age", "x-max-length-bytes"),
    *("x-stream-filter-property", "x-stream-filter-size-bytes", "x-single-active-consumer", "CC"),
    *("BCC", "x-match", "alternate-exchange", "x-expires", "x-priority", "x-cancel-on-ha-failover"),
    *("x-stream-max-segment-size-bytes", "x-stream-partition-order", "x-super-stream", "a", ""),
)
_FIELDS: tuple[Field, ...] = (
    Field("t", True), Field("b", -1), Field("B", 255), Field("s", -2), Field("u", 65_535),
    Field("I", 5), Field("i", 5), Field("l", -(1 << 63)), Field("l", 1 << 40), Field("L", 7),
    Field("f", float("nan")), Field("d", 1.5), Field("d", float("inf")), Field("D", bytes(5)),
    Field("S", b"first"), Field("S", b"s"), Field("S", b"1h"), Field("S", b"\xff"), Field("S", b""),
    Field("S", b"a = 1"), Field("x", b"\0\1"), Field("T", 1_700_000_000), Field("T", (1 << 64) - 1),
    Field("A", []), Field("A", [Field("S", b"s"), Field("I", 1)]), Field("F", {}),
    Field("F", {"a": Field("S", b"x")}), Field("V", None),
)  # fmt: skip
_NOT_WRITTEN = (ValueError, TypeError, struct.error, OverflowError, KeyError, AttributeError)


def another(value: Any, chance: Random) -> Any:
    """Another value of the same kind, or one beside it."""
    for kind, change in _CHANGES:
        if isinstance(value, kind):
            return change(value, chance)
    return value


def _another_number(value: int, chance: Random) -> int:
    if chance.random() < 0.4:
        return value + chance.choice((-1, 1))
    return chance.choice(NUMBERS if chance.random() < 0.8 else _LARGE)


def _another_text(value: str, chance: Random) -> str:
    if value and chance.random() < 0.3:
        at = chance.randrange(len(value))
        part = chance.choice(TEXTS)
        return value[:at] + part + value[at + chance.randint(0, 2) :]
    return chance.choice(TEXTS + KEYS)


def _other_bytes(value: bytes, chance: Random) -> bytes:
    made = bytearray(value)
    at = chance.randint(0, len(made))
    match chance.randrange(5):
        case 0:
            made[at : at + 1] = chance.randbytes(1)
        case 1:
            del made[at : at + chance.randint(1, 20)]
        case 2:
            made[at:at] = made[at : at + chance.randint(1, 20)] * chance.choice((1, 1, 2, 50))
        case 3:
            made[at : at + 4] = chance.choice(NUMBERS).to_bytes(4, "big")
        case _:
            made[at:at] = chance.choice(TEXTS).encode()
    return bytes(made)


def _another_sequence(value: Sequence[Any], chance: Random) -> Any:
    if hasattr(value, "_fields"):  # a named tuple: one of its values
        name = chance.choice(value._fields)
        if isinstance(value, Pair) and name == "key" and chance.random() < 0.8:
            return value._replace(key=chance.choice(KEYS))
        return value._replace(**{name: another(getattr(value, name), chance)})
    made = list(value)
    at = chance.randint(0, len(made))
    match chance.randrange(4):
        case 0:
            made[at:at] = made[at : at + 1] * chance.choice((1, 1, 1, 300))
        case 1 if made:
            del made[at:][:1]
        case 2 if made and isinstance(made[0], Pair):
            made.insert(at, Pair(chance.choice(KEYS), chance.choice(TEXTS)))
        case _ if made:
            at %= len(made)
            made[at] = another(made[at], chance)
    return type(value)(made)


def _another_table(value: dict[str, Field], chance: Random) -> dict[str, Field]:
    made = dict(value)
    if made and chance.random() < 0.5:
        name = chance.choice(list(made))
        if chance.random() < 0.2:
            del made[name]
        else:
            made[name] = another(made[name], chance)
    else:
        made[chance.choice(HEADERS)] = chance.choice(_FIELDS)
    return made


def _another_field(value: Field, chance: Random) -> Field:
    if chance.random() < 0.5:
        return chance.choice(_FIELDS)
    return Field(value.tag, another(value.value, chance))


_CHANGES: tuple[tuple[type[Any], Callable[[Any, Random], Any]], ...] = (
    (bool, lambda value, _: not value),
    (int, _another_number),
    (float, lambda _, chance: chance.choice((0.0, -1.5, float("nan"), float("inf")))),
    (str, _another_text),
    (bytes, _other_bytes),
    (Field, _another_field),
    (tuple, _another_sequence),
    (list, _another_sequence),
    (dict, _another_table),
)


def change_stream(frame: bytes, chance: Random) -> bytes:
    """A frame of the stream protocol that says something else; the same if it says nothing."""
    try:
        command = codec.decode(frame[codec.SIZE_BYTES :])
        names = command.__struct_fields__
        for _ in range(chance.randint(1, 2)):
            name = chance.choice(names)
            command = replace(command, **{name: another(getattr(command, name), chance)})
        return codec.encode(command)
    except (RemoteProtocolError, IndexError, *_NOT_WRITTEN):
        return frame


def change_amqp(frame: bytes, chance: Random) -> bytes:
    """A frame of AMQP that says something else; the same if it says nothing."""
    try:
        kind, channel, _ = FRAME_HEAD.unpack_from(frame)
        payload = frame[FRAME_HEAD.size : -1]
        if chance.random() < 0.05:
            channel = chance.choice((0, 1, 2, 3, 2047, 2048, 65_535))
        elif kind == FrameType.METHOD:
            payload = encode_method(_another_method(decode_method(payload), chance))
        elif kind == FrameType.HEADER:
            found = decode_properties(payload[CONTENT_HEAD_SIZE:])
            _change_property(found, chance)
            payload = payload[:CONTENT_HEAD_SIZE] + encode_properties(found)
        else:
            payload = _other_bytes(payload, chance)
        return encode_frame(kind, channel, payload)
    except (Fault, *_NOT_WRITTEN):
        return frame


def change_amqp10(frame: bytes, chance: Random) -> bytes:
    """A frame of AMQP 1.0 that says something else; the same if it says nothing."""
    try:
        _, words, kind, channel = amqp10_codec.FRAME_HEAD.unpack_from(frame)
        performative, end = amqp10_codec.decode_composite(frame[4 * words :])
        payload = frame[4 * words + end :]
        if chance.random() < 0.05:
            channel = chance.choice((0, 1, 63, 64, 65_535))
        elif payload and chance.random() < 0.5:
            payload = _other_bytes(payload, chance)
        else:
            performative = _another_method(performative, chance)
        body = amqp10_codec.encode_composite(performative) + payload
        return amqp10_codec.FRAME_HEAD.pack(8 + len(body), 2, kind, channel) + body
    except (FormatError, IndexError, *_NOT_WRITTEN):
        return frame


def _another_method(method: m.Method, chance: Random) -> m.Method:
    if not method._fields:
        return method
    for _ in range(chance.randint(1, 2)):
        name = chance.choice(method._fields)
        method = method._replace(**{name: another(getattr(method, name), chance)})
    return method


_NEW_VALUES: dict[str, Any] = {"headers": {}, "delivery_mode": 2, "priority": 3, "timestamp": 1}


def _change_property(found: Properties, chance: Random) -> None:
    name = chance.choice(Properties.__slots__)
    value = getattr(found, name)
    if value is None:
        value = _NEW_VALUES.get(name, "x")
    elif chance.random() < 0.1:
        setattr(found, name, None)
        return
    setattr(found, name, another(value, chance))
