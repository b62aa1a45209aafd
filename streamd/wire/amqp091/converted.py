"""Messages as they go between a door and the engine: in the form in which streams keep them.

Three kinds of frames that no client sends or gets. `Run`, to the engine: messages that came one
after the other on a channel, for the same exchange and key. `Acks`, to it as well: acknowledgements
of one message each that followed each other. `Batch`, from it: messages for one consumer.
Everything else goes between the two as the client and the engine say it.
"""

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from segments.codec import simple_ends
from segments.errors import FormatError
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import FRAME_END, FRAME_HEAD, decode_method
from streamd.wire.amqp091.errors import frame_error
from streamd.wire.amqp091.values import decode_short_text, encode_short_text

RUN, BATCH, ACKS = 9, 10, 11  # types of frames
TO_ENGINE = (RUN, ACKS)
_RUN_HEAD = struct.Struct(">HII")  # bytes of the method, messages, bytes of entries
_BATCH_HEAD = struct.Struct(">IQI")  # frame size that was agreed, delivery tag, messages
_ACKS = struct.Struct(">QI")  # first tag, number
_SIZE = struct.Struct(">I")
NO_PROPERTIES = b"\0\0"
_END = bytes((FRAME_END,))

# Publishers send to the same few places again and again.
decode_publish = lru_cache(maxsize=1024)(decode_method)


class Stored(NamedTuple):
    """One message of a run.

    Attributes:
        raw: as a stream keeps it; it ends with the body.
        size: of the body.
        filter_value: that the publisher gives; empty for none.
        properties: as they came, where the engine may need them; else empty.
    """

    raw: bytes
    size: int
    filter_value: bytes
    properties: bytes

    @property
    def body(self) -> bytes:
        """As it was published."""
        return self.raw[len(self.raw) - self.size :]


class Run(NamedTuple):
    """Messages that were published one after the other.

    Attributes:
        channel: its number.
        method: of each of them.
        entries: the messages, each behind its size.
        sizes: of their bodies.
        values: filter values, empty for none; None where no message has one.
        properties: as they came; None where the engine needs none.
    """

    channel: int
    method: m.BasicPublish
    entries: bytes
    sizes: Sequence[int]
    values: Sequence[bytes] | None
    properties: Sequence[bytes] | None

    def messages(self) -> Iterator[Stored]:
        """Each of them."""
        at = 0
        for number, size in enumerate(self.sizes):
            (length,) = _SIZE.unpack_from(self.entries, at)
            at += _SIZE.size
            raw = self.entries[at : at + length]
            at += length
            value = self.values[number] if self.values else b""
            yield Stored(raw, size, value, self.properties[number] if self.properties else b"")


def run_frame(channel: int, publish: bytes, messages: Sequence[Stored]) -> bytes:
    """The frame of a run.

    Args:
        channel: its number.
        publish: payload of the method's frame.
        messages: at least one.
    """
    entries: list[bytes] = []
    for message in messages:
        entries += (_SIZE.pack(len(message.raw)), message.raw)
    joined = b"".join(entries)
    count = len(messages)
    parts = [
        _RUN_HEAD.pack(len(publish), count, len(joined)),
        publish,
        joined,
        struct.pack(f">{count}I", *[message.size for message in messages]),
    ]
    for texts in ([o.filter_value for o in messages], [o.properties for o in messages]):
        if any(texts):
            parts.append(b"\1")
            for text in texts:
                parts += (_SIZE.pack(len(text)), text)
        else:
            parts.append(b"\0")
    return _frame(RUN, channel, b"".join(parts))


def decode_run(channel: int, payload: bytes) -> Run:
    """The run in the payload of a frame, which comes from a door.

    Raises:
        ConnectionFault: it is none; streams keep the entries as they are.
    """
    try:
        size, count, length = _RUN_HEAD.unpack_from(payload)
        at = _RUN_HEAD.size
        method = decode_publish(payload[at : at + size])
        at += size
        entries = payload[at : at + length]
        ends = simple_ends(entries)
        at += length
        sizes = struct.unpack_from(f">{count}I", payload, at)
        values, at = _texts(payload, at + _SIZE.size * count, count)
        properties, at = _texts(payload, at, count)
    except (struct.error, IndexError, FormatError):
        ends = None
    if not ends or len(ends) != count or at != len(payload) or type(method) is not m.BasicPublish:
        raise frame_error("a door has sent no messages where it says so; that is a bug")
    return Run(channel, method, entries, sizes, values, properties)


def _texts(payload: bytes, at: int, count: int) -> tuple[list[bytes] | None, int]:
    is_there, at = payload[at], at + 1
    if not is_there:
        return None, at
    found = []
    for _ in range(count):
        (length,) = _SIZE.unpack_from(payload, at)
        at += _SIZE.size
        found.append(payload[at : at + length])
        at += length
    return found, at


class Acks(NamedTuple):
    """Acknowledgements that came one after the other, whoever has put them together.

    Attributes:
        channel: its number.
        method: the first.
        number: of them, each for the message behind that of the one before.
    """

    channel: int
    method: m.BasicAck
    number: int


def acks_frame(channel: int, first: int, count: int) -> bytes:
    """The frame of acknowledgements; `first` is the tag of the first."""
    return _frame(ACKS, channel, _ACKS.pack(first, count))


def decode_to_engine(kind: int, channel: int, payload: bytes) -> Run | Acks:
    """What is in a frame of a type in TO_ENGINE, which comes from a door.

    Raises:
        ConnectionFault: it is broken.
    """
    if kind == RUN:
        return decode_run(channel, payload)
    if len(payload) != _ACKS.size:
        raise frame_error("a door has sent no acknowledgements where it says so; that is a bug")
    first, count = _ACKS.unpack(payload)
    return Acks(channel, m.BasicAck(first, False), count)


class Batch(NamedTuple):
    """Messages for one consumer.

    Attributes:
        channel: number of its channel.
        tag: of the consumer.
        queue: that it reads.
        frame_max: bytes that a frame to the client may have.
        delivery_tag: of the first message; the others follow.
        messages: each with its offset.
    """

    channel: int
    tag: str
    queue: str
    frame_max: int
    delivery_tag: int
    messages: Sequence[tuple[int, bytes]]


def batch_frame(batch: Batch) -> bytes:
    """The frame of a batch."""
    offsets, stored = zip(*batch.messages, strict=True)
    count = len(offsets)
    head = (
        encode_short_text(batch.tag),
        encode_short_text(batch.queue),
        _BATCH_HEAD.pack(batch.frame_max, batch.delivery_tag, count),
        struct.pack(f">{count}Q{count}I", *offsets, *map(len, stored)),
    )
    return _frame(BATCH, batch.channel, b"".join((*head, *stored)))


def decode_batch(channel: int, payload: bytes) -> Batch:
    """The batch in the payload of a frame, which comes from the engine."""
    tag, at = decode_short_text(payload, 0)
    queue, at = decode_short_text(payload, at)
    frame_max, delivery_tag, count = _BATCH_HEAD.unpack_from(payload, at)
    at += _BATCH_HEAD.size
    numbers = struct.unpack_from(f">{count}Q{count}I", payload, at)
    at += 12 * count
    messages = []
    for offset, length in zip(numbers[:count], numbers[count:], strict=True):
        messages.append((offset, payload[at : at + length]))
        at += length
    return Batch(channel, tag, queue, frame_max, delivery_tag, messages)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + _END
