"""The frames of a delivery, put together in one go: what the server sends most."""

import struct

from streamd.wire.amqp091.codec import (
    BASIC,
    CONTENT_HEAD_SIZE,
    FRAME_END,
    FRAME_OVERHEAD,
    FrameType,
)
from streamd.wire.amqp091.messages.from_amqp10 import Delivered, without_headers
from streamd.wire.amqp091.methods import IDS, BasicDeliver
from streamd.wire.amqp091.values import encode_short_text

_END = bytes((FRAME_END,))
_TAG_AND_FLAG = struct.Struct(">QB")  # delivery tag, redelivered
# End of the method's frame; start of the header's frame: type, channel, size; class, weight, size.
_HEADER = struct.Struct(">BBHIHHQ")
_BODY = struct.Struct(">BBHI")
_OFFSET = struct.Struct(">Q")


class DeliverWriter:
    """Writes deliveries to one consumer.

    Args:
        channel: number of its channel.
        queue: what it reads; the routing key of messages that have none.
        frame_max: bytes that a frame may have.
    """

    def __init__(self, channel: int, tag: str, queue: str, frame_max: int) -> None:
        self._channel = channel
        self._most = frame_max - FRAME_OVERHEAD
        self._most_around = self._most - CONTENT_HEAD_SIZE - _OFFSET.size
        self._start = struct.pack(">HH", *IDS[BasicDeliver]) + encode_short_text(tag)
        self._size = len(self._start) + _TAG_AND_FLAG.size
        self._head = struct.Struct(">BHI")
        self._queue = encode_short_text("") + encode_short_text(queue)

    def frames(self, delivery_tag: int, offset: int, message: Delivered) -> bytes:
        """Method, header, and the body cut to the frame size; an empty body has no frame.

        The header has to fit into one frame: if it does not, the message comes without headers.
        """
        (destination, before, after, _), body = message
        if len(before) + len(after) > self._most_around:
            before, after = without_headers(before, after)
        if destination is None:
            destination = self._queue
        channel, size = self._channel, len(body)
        start = (
            self._head.pack(FrameType.METHOD, channel, self._size + len(destination))
            + self._start
            + _TAG_AND_FLAG.pack(delivery_tag, 0)
            + destination
            + _HEADER.pack(
                FRAME_END,
                FrameType.HEADER,
                channel,
                CONTENT_HEAD_SIZE + len(before) + 8 + len(after),
                BASIC,
                0,
                size,
            )
            + before
            + _OFFSET.pack(offset)
            + after
        )
        if 0 < size <= self._most:
            return start + _BODY.pack(FRAME_END, FrameType.BODY, channel, size) + body + _END
        parts = [start]
        for at in range(0, size, self._most):
            piece = body[at : at + self._most]
            parts += (_BODY.pack(FRAME_END, FrameType.BODY, channel, len(piece)), piece)
        return b"".join(parts) + _END
