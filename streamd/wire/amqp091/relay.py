"""A door's half of an AMQP 0-9-1 connection: what the client says for the engine, and back.

Theory of operation. The engine serves the connection as any other: login, methods, rights, faults.
What costs most of its time is done here: a published message becomes what a stream keeps, and a
stored message what a client is delivered. Nothing is judged here: whatever is not a whole message
of the usual kind goes to the engine as it came, also what breaks the protocol; so the engine
answers as if there were no door. Nothing is held here but the head of a frame: of a message that
has not arrived as a whole, all frames go as they are.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import (
    FRAME_END,
    FRAME_HEAD,
    MIN_FRAME_MAX,
    PROTOCOL_HEADER,
    FrameType,
    WholeContent,
    decode_whole_content,
)
from streamd.wire.amqp091.connection import FRAME_MAX, LOGIN_FRAME_MAX
from streamd.wire.amqp091.converted import (
    BATCH,
    TO_ENGINE,
    Stored,
    acks_frame,
    decode_batch,
    decode_publish,
    run_frame,
)
from streamd.wire.amqp091.deliver import DeliverWriter
from streamd.wire.amqp091.errors import Fault
from streamd.wire.amqp091.messages.from_amqp10 import delivered
from streamd.wire.amqp091.messages.to_amqp10 import stored_body, stored_head
from streamd.wire.amqp091.pacing import ack_pause

_PUBLISH = struct.pack(">HH", *m.IDS[m.BasicPublish])
_ACK = struct.pack(">HH", *m.IDS[m.BasicAck])
_ACK_FIELDS = struct.Struct(">4xQB")  # of an acknowledgement: tag, and whether of several
_TUNE_OK = struct.pack(">HH", *m.IDS[m.ConnectionTuneOk])
_LIMITS = struct.Struct(">4xHIH")  # of a TuneOk: channels, bytes of a frame, seconds
_HAS_HEADERS = 0x20  # in the first byte of properties
_NO_TYPE = b"\0"  # of a frame
_MOST_AT_ONCE = 512  # messages, and what takes as long, between two places where others may go on
_MOST_BYTES = 256 << 10  # of a run, and of what is made of a batch at once
_MAX_WRITERS = 1_024
_BYTES_A_UNIT = 128  # of the price of a delivery


class _Found(NamedTuple):
    """What is next in the bytes of a client.

    Attributes:
        end: of it, perhaps beyond what has arrived.
        units: of work that it took, in messages.
        place: channel, and method of a message or tag of an acknowledgement; None for what goes as
            it is.
        message: None for an acknowledgement.
    """

    end: int
    units: int = 1
    place: tuple[int, bytes | int] | None = None
    message: Stored | None = None


class Inward:
    """From a client to the engine.

    Args:
        delivered: by channel, the tag of the last message that went to the client.

    Attributes:
        pause: seconds to wait before more is taken, so that acknowledgements gather.
    """

    def __init__(self, delivered: Mapping[int, int]) -> None:
        self.pause = 0.0
        self._delivered = delivered
        self._last_acked = 0, 0  # channel and tag
        self._has_published = False
        self._kept = b""  # the beginning of a frame
        self._passing = len(PROTOCOL_HEADER)  # bytes that go as they are
        self._frame_max = LOGIN_FRAME_MAX
        # Channel, and the method of the run or the tag that follows those of the acknowledgements.
        self._place: tuple[int, bytes | int] = (0, b"")
        self._run: list[Stored] = []
        self._run_bytes = self._num_acks = 0

    def take(self, data: bytes) -> Iterator[bytes]:
        """What to send to the engine, in pieces between which others may have their turn."""
        buffer = self._kept + data
        at = min(self._passing, len(buffer))
        self._passing -= at
        begin = units = 0  # what goes as it is begins there
        while at + FRAME_HEAD.size <= len(buffer):
            found = self._find(buffer, at)
            units += found.units
            if found.place is None:
                yield from self._end_run()
                if buffer[at] in TO_ENGINE:  # which clients have no right to
                    yield buffer[begin:at] + _NO_TYPE
                    begin = at + 1
                at = min(found.end, len(buffer))
                self._passing = found.end - at
            else:
                if begin < at:
                    yield buffer[begin:at]
                if found.place != self._place:
                    yield from self._end_run()
                    self._place = found.place
                self._gather(found.message)
                begin = at = found.end
            if units >= _MOST_AT_ONCE or self._run_bytes >= _MOST_BYTES:
                yield from self._end_run()
                yield buffer[begin:at]
                begin, units = at, 0
        self._kept = buffer[at:]
        if begin < at:
            yield buffer[begin:at]
        yield from self._end_run()
        (channel, tag), self._last_acked = self._last_acked, (0, 0)
        waits = tag and not self._has_published
        self.pause = ack_pause(self._delivered.get(channel, 0) - tag) if waits else 0.0

    def _gather(self, message: Stored | None) -> None:
        if message is not None:
            self._run.append(message)
            self._run_bytes += len(message.raw)
        else:
            channel, tag = self._place
            self._last_acked = channel, int(tag)
            self._num_acks, self._place = self._num_acks + 1, (channel, int(tag) + 1)

    def _end_run(self) -> Iterator[bytes]:
        channel, what = self._place
        if isinstance(what, bytes):
            if self._run:
                run, self._run, self._run_bytes = self._run, [], 0
                yield run_frame(channel, what, run)
        elif self._num_acks:
            count, self._num_acks = self._num_acks, 0
            yield acks_frame(channel, what - count, count)

    def _find(self, buffer: bytes, at: int) -> _Found:
        kind, number, size = FRAME_HEAD.unpack_from(buffer, at)
        begin = at + FRAME_HEAD.size
        end = begin + size + 1
        if kind != FrameType.METHOD or end > len(buffer) or buffer[end - 1] != FRAME_END:
            return _Found(end)
        payload = buffer[begin : end - 1]
        if payload[:4] == _TUNE_OK and len(payload) == _LIMITS.size and not number:
            self._tune(payload)
        if payload[:4] == _ACK and len(payload) == _ACK_FIELDS.size:
            tag, is_multiple = _ACK_FIELDS.unpack(payload)
            return _Found(end, place=None if is_multiple else (number, tag))
        if payload[:4] != _PUBLISH:
            return _Found(end)
        self._has_published = True
        content = decode_whole_content(buffer, end, number, self._frame_max)
        if content is None:
            return _Found(end)
        message, price = _converted(payload, content)
        place = None if message is None else (number, payload)
        return _Found(content.end, 1 + price, place, message)

    def _tune(self, payload: bytes) -> None:
        _, frame_max, _ = _LIMITS.unpack(payload)
        if MIN_FRAME_MAX <= frame_max <= FRAME_MAX:  # else it is refused
            self._frame_max = frame_max


def _converted(publish: bytes, content: WholeContent) -> tuple[Stored | None, int]:
    """A message as streams keep it, and how much work that was; None for what is not usual."""
    properties, body, _ = content
    try:
        method = decode_publish(publish)
        if type(method) is not m.BasicPublish or method.immediate:
            return None, 0
        head = stored_head(method.exchange, method.key, properties)
        if head.more_keys or head.is_encoded or head.user_id is not None:
            return None, head.price
        raw = head.sections + stored_body(body, is_encoded=False)
    except Fault:  # the engine finds the same
        return None, 0
    may_need = method.mandatory or (method.exchange and properties[0] & _HAS_HEADERS)
    kept = properties if may_need else b""
    return Stored(raw, len(body), head.filter_value, kept), head.price


class Outward:
    """From the engine to a client.

    Attributes:
        pause: as for Inward: none.
        delivered: as for Inward.
    """

    pause = 0.0

    def __init__(self) -> None:
        self.delivered: dict[int, int] = {}
        self._kept: list[bytes] = []  # the beginning of a frame
        self._missing = 0  # bytes of it without which nothing can be done
        self._passing = 0  # bytes that go as they are
        self._writers: dict[tuple[int, str, str], DeliverWriter] = {}

    def take(self, data: bytes) -> Iterator[bytes]:
        """What to send to the client, in pieces between which others may have their turn."""
        self._kept.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return
        buffer, self._kept = b"".join(self._kept), []
        at = min(self._passing, len(buffer))
        self._passing -= at
        begin = units = 0
        while at < len(buffer):
            if at + FRAME_HEAD.size > len(buffer):
                self._keep(buffer, at, at + FRAME_HEAD.size)
                break
            kind, number, size = FRAME_HEAD.unpack_from(buffer, at)
            end = at + FRAME_HEAD.size + size + 1
            if kind != BATCH:
                at = min(end, len(buffer))
                self._passing = end - at
                units += 1
                if units >= _MOST_AT_ONCE:
                    yield buffer[begin:at]
                    begin, units = at, 0
                continue
            if end > len(buffer):
                self._keep(buffer, at, end)
                break
            if begin < at:
                yield buffer[begin:at]
            yield from self._deliveries(number, buffer[at + FRAME_HEAD.size : end - 1])
            begin = at = end
        if begin < at:
            yield buffer[begin:at]

    def _keep(self, buffer: bytes, at: int, end: int) -> None:
        self._kept, self._missing = [buffer[at:]], end - len(buffer)

    def _deliveries(self, channel: int, payload: bytes) -> Iterator[bytes]:
        batch = decode_batch(channel, payload)
        place = channel, batch.tag, batch.queue
        writer = self._writers.get(place)
        if writer is None:
            if len(self._writers) >= _MAX_WRITERS:
                self._writers.clear()
            writer = DeliverWriter(channel, batch.tag, batch.queue, batch.frame_max)
            self._writers[place] = writer
        self.delivered[channel] = batch.delivery_tag + len(batch.messages) - 1
        frames: list[bytes] = []
        units = size = 0
        for number, (offset, raw) in enumerate(batch.messages, batch.delivery_tag):
            message = delivered(raw)
            frames.append(writer.frames(number, offset, message))
            units += 1 + message.head.price // _BYTES_A_UNIT
            size += len(frames[-1])
            if units >= _MOST_AT_ONCE or size >= _MOST_BYTES:
                yield b"".join(frames)
                frames, units, size = [], 0, 0
        if frames:
            yield b"".join(frames)
