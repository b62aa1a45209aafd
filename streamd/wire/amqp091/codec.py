"""Methods to bytes and back, frames around them, and content cut into frames.

Why not pamqp, the library for this: it makes an object of every frame and of every property. A
message here is passed on as the bytes it came in, its frames are found by one compiled struct, and
its properties are kept encoded: reading a published message of 100 bytes with one header takes
pamqp almost four times as long, without the order of frames checked. Here it is the oracle of
tests/wire/amqp091/test_codec.py instead.

Source: AMQP 0-9-1 specification, 4.2 (wire-level format).
"""

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple, get_type_hints

from streamd.wire.amqp091.errors import ConnectionFault, Fault, MethodId, ReplyCode, frame_error
from streamd.wire.amqp091.methods import IDS, METHODS, Method
from streamd.wire.amqp091.values import (
    decode_long_text,
    decode_short_text,
    decode_table,
    encode_long_text,
    encode_short_text,
    encode_table,
)


class FrameType(IntEnum):
    """What a frame carries."""

    METHOD = 1
    HEADER = 2
    BODY = 3
    HEARTBEAT = 8


FRAME_HEAD = struct.Struct(">BHI")
FRAME_END = 0xCE
FRAME_OVERHEAD = FRAME_HEAD.size + 1
MIN_FRAME_MAX = 4096  # older amqplib asks for that; RabbitMQ 4.1 raised it to 8,192
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = bytes((8, 0, 0, 0, 0, 0, 0, FRAME_END))
BASIC = 60

_METHOD_ID = struct.Struct(">HH")
_END = bytes((FRAME_END,))


class Kind(NamedTuple):
    """How one type of field is written and read."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes, int], tuple[Any, int]]


def _number(form: str) -> Kind:
    layout = struct.Struct(f">{form}")

    def decode(raw: bytes, at: int) -> tuple[int, int]:
        return layout.unpack_from(raw, at)[0], at + layout.size

    return Kind(layout.pack, decode)


_KINDS = {
    "octet": _number("B"),
    "short": _number("H"),
    "long": _number("I"),
    "longlong": _number("Q"),
    "shortstr": Kind(encode_short_text, decode_short_text),
    "longstr": Kind(encode_long_text, decode_long_text),
    "table": Kind(encode_table, decode_table),
}
_BITS_PER_OCTET = 8


def _layout(kind: type[Any]) -> tuple[Kind | int, ...]:
    """The fields of a method; a run of bits, which share an octet, as their number."""
    found: list[Kind | int] = []
    for hint in get_type_hints(kind, include_extras=True).values():
        (name,) = hint.__metadata__
        if name != "bit":
            found.append(_KINDS[name])
        elif found and isinstance(found[-1], int) and found[-1] < _BITS_PER_OCTET:
            found[-1] += 1
        else:
            found.append(1)
    return tuple(found)


_LAYOUTS: dict[type[Any], tuple[Kind | int, ...]] = {kind: _layout(kind) for kind in IDS}


def encode_method(method: Method) -> bytes:
    """The payload of a method frame.

    Raises:
        ValueError: a string is too long.
    """
    parts = [_METHOD_ID.pack(*IDS[type(method)])]
    values: Iterator[Any] = iter(method)
    for kind in _LAYOUTS[type(method)]:
        if isinstance(kind, int):
            bits = sum(bool(next(values)) << n for n in range(kind))
            parts.append(bytes((bits,)))
        else:
            parts.append(kind.encode(next(values)))
    return b"".join(parts)


def decode_method(payload: bytes) -> Method:
    """The method in the payload of a frame.

    Raises:
        ConnectionFault: there is no such method, or its fields are malformed.
    """
    if len(payload) < _METHOD_ID.size:
        raise frame_error("a method frame is too short to name its method")
    number = MethodId(*_METHOD_ID.unpack_from(payload))
    kind = METHODS.get(number)
    if kind is None:
        reason = f"there is no method {number.class_id}.{number.method_id}"
        raise ConnectionFault(ReplyCode.NOT_IMPLEMENTED, reason, number)
    try:
        values, at = _decode_fields(_LAYOUTS[kind], payload)
    except Fault as fault:
        fault.method = number
        raise
    except (IndexError, struct.error):
        raise frame_error(f"the fields of {kind.__name__} are cut off", number) from None
    if at != len(payload):
        raise frame_error(f"{len(payload) - at} bytes follow {kind.__name__}", number)
    return kind(*values)


def _decode_fields(layout: tuple[Kind | int, ...], payload: bytes) -> tuple[list[Any], int]:
    values: list[Any] = []
    at = _METHOD_ID.size
    for kind in layout:
        if isinstance(kind, int):
            values += (bool(payload[at] >> n & 1) for n in range(kind))
            at += 1
        else:
            value, at = kind.decode(payload, at)
            values.append(value)
    return values, at


def encode_frame(kind: FrameType, channel: int, payload: bytes) -> bytes:
    """A whole frame."""
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + _END


def method_frame(channel: int, method: Method) -> bytes:
    """A method in its frame."""
    return encode_frame(FrameType.METHOD, channel, encode_method(method))


_CONTENT_HEAD = struct.Struct(">HHQ")
CONTENT_HEAD_SIZE = _CONTENT_HEAD.size


def content_frames(
    channel: int, method: bytes, properties: bytes, body: bytes, frame_max: int
) -> bytes:
    """A method that carries content, its header, and its body in as many frames as it takes.

    Args:
        channel: its number.
        method: payload of the method frame.
        properties: flags and properties as they stand in the header.
        body: of the message; an empty one has no frame.
        frame_max: bytes that a frame may have.
    """
    size, most = len(body), frame_max - FRAME_OVERHEAD
    parts = [
        FRAME_HEAD.pack(FrameType.METHOD, channel, len(method)),
        method,
        _END,
        FRAME_HEAD.pack(FrameType.HEADER, channel, CONTENT_HEAD_SIZE + len(properties)),
        _CONTENT_HEAD.pack(BASIC, 0, size),
        properties,
        _END,
    ]
    for at in range(0, size, most):
        piece = body[at : at + most]
        parts += (FRAME_HEAD.pack(FrameType.BODY, channel, len(piece)), piece, _END)
    return b"".join(parts)


class ContentHead(NamedTuple):
    """A content header: how many bytes of body follow, and the properties as encoded there."""

    body_size: int
    properties: bytes


def decode_content_head(payload: bytes) -> ContentHead:
    """The payload of a header frame; properties are looked at later.

    Raises:
        ConnectionFault: it is malformed.
    """
    if len(payload) < CONTENT_HEAD_SIZE + 2:
        raise frame_error("a content header is cut off")
    class_id, weight, body_size = _CONTENT_HEAD.unpack_from(payload)
    if class_id != BASIC or weight:
        raise frame_error(f"a content header is of class {class_id}, weight {weight}, not 60, 0")
    return ContentHead(body_size, payload[CONTENT_HEAD_SIZE:])


class WholeContent(NamedTuple):
    """A message's properties and body, and where its last frame ends."""

    properties: bytes
    body: bytes
    end: int


_HEADER_FRAME = struct.Struct(">BHIHHQ")  # frame head; class, weight, size of the body


def decode_whole_content(
    buffer: bytes, start: int, channel: int, frame_max: int
) -> WholeContent | None:
    """A message whose header and only body frame are all there; None for anything else.

    Frame by frame it would cost three times as much.

    Args:
        buffer: of frames.
        start: where the header frame begins.
        channel: the number that its frames must have.
        frame_max: bytes that a frame may have.
    """
    try:
        kind, number, size, class_id, weight, body_size = _HEADER_FRAME.unpack_from(buffer, start)
        head_end = start + FRAME_HEAD.size + size
        body_frame = FRAME_HEAD.unpack_from(buffer, head_end + 1)
        body_start = head_end + 1 + FRAME_HEAD.size
        end = body_start + body_size
        is_whole = buffer[head_end] == buffer[end] == FRAME_END
    except (struct.error, IndexError):
        return None
    is_header = (kind, number, class_id, weight) == (FrameType.HEADER, channel, BASIC, 0)
    # An empty message ends with its header, and a body after it is a fault.
    is_in_bounds = CONTENT_HEAD_SIZE + 2 <= size <= frame_max >= body_size > 0
    if not (
        is_whole
        and is_header
        and is_in_bounds
        and body_frame == (FrameType.BODY, channel, body_size)
    ):
        return None
    properties = buffer[start + FRAME_HEAD.size + CONTENT_HEAD_SIZE : head_end]
    return WholeContent(properties, buffer[body_start:end], end + 1)
