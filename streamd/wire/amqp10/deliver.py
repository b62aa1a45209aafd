"""The transfers of a delivery, put together in one go: what the server sends most."""

import struct
from collections.abc import Callable

from segments import amqp10_codes as codes
from segments.amqp10_codes import SHORT_DESCRIPTOR
from segments.errors import FormatError
from streamd.wire.amqp10.codec import FRAME_HEAD, FrameType, encode_composite
from streamd.wire.amqp10.errors import LinkFault
from streamd.wire.amqp10.messages import (
    BARE_STARTS,
    around_offset,
    as_body,
    bare_position,
    is_section,
)
from streamd.wire.amqp10.performatives import CODES, Transfer
from streamd.wire.amqp10.values import encode_uint

_pack_offset = struct.Struct(">Q").pack
_SHORT_TAGS = 1 << 32  # offsets from here on take eight bytes
_FIELDS = 6  # handle, id, tag, format, settled, more
_BEFORE_ID = FRAME_HEAD.size - 4  # bytes of a frame's head behind its size
_REMEMBERED_BYTES = 512  # of the beginning of a message
_MOST_REMEMBERED = 16  # for each link


class Pieces:
    """A message that takes several transfers: it is cut as they are sent.

    Args:
        head: makes the head of a transfer's frame, for so many bytes of the message, and whether
            there are more.
        message: with all its sections.
        room: bytes of it in a frame.
    """

    def __init__(self, head: Callable[[int, bool], bytes], message: bytes, room: int) -> None:
        self._head = head
        self._message = message
        self._room = room
        self._at = 0

    @property
    def size(self) -> int:
        """Bytes that are left."""
        return len(self._message) - self._at

    def take(self, most: int) -> tuple[bytes, int]:
        """At most so many of the next transfers; their bytes and their number."""
        message, room = self._message, self._room
        end = min(self._at + most * room, len(message))
        parts = [message[at : at + room] for at in range(self._at, end, room)] or [b""]
        self._at, count, last = end, len(parts), parts.pop()
        head = self._head(room, True)
        rest = self._head(len(last), end < len(message))
        return head.join((b"", *parts)) + rest + last, count


class TransferWriter:
    """Writes deliveries to one link.

    Args:
        channel: number of its session.
        handle: of the link.
        queue: what it reads; the routing key of messages that have none.
        frame_max: bytes that a frame may have.
        is_settled: the receiver need not settle what it gets.
    """

    def __init__(
        self, channel: int, handle: int, queue: str, frame_max: int, *, is_settled: bool
    ) -> None:
        self._queue = queue
        self._frame_max = frame_max
        settled = codes.TRUE if is_settled else codes.FALSE
        self._last, self._more = (
            bytes((codes.UINT_0, settled, more)) for more in (codes.FALSE, codes.TRUE)
        )
        where = FRAME_HEAD.pack(0, 2, FrameType.AMQP, channel)[-_BEFORE_ID:]
        number = encode_uint(handle)
        self._short, self._long = (
            _Head(where, number, form, tag_size) for form, tag_size in (("I", 4), ("Q", 8))
        )
        self._known: dict[bytes, tuple[bytes, bytes]] = {}  # see _around
        # Of the last message: where its bare message began, what stood before it, what it became.
        self._at, self._beginning, self._found = 0, b"", around_offset(b"", queue)

    def write(self, delivery_id: int, offset: int, raw: bytes) -> bytes | Pieces:
        """A message in its frame, or cut for those that it takes; its tag is its offset."""
        try:
            at = self._at
            if raw[:at] == self._beginning and raw[at : at + 3] in BARE_STARTS:
                before, after = self._found
            else:  # another beginning than the message before had
                at = bare_position(raw)
                before, after = self._around(raw, at)
            body = raw[at:]
        except (FormatError, LinkFault, IndexError):  # no message: it becomes the body of one
            before, after = around_offset(b"", self._queue)
            body = as_body(raw)
        head = self._short if offset < _SHORT_TAGS else self._long
        whole = head.size + len(before) + 8 + len(after) + len(body)
        if whole <= self._frame_max:
            start = head.pack(whole, delivery_id, offset, self._last)
            return b"".join((start, before, _pack_offset(offset), after, body))

        def head_of(size: int, more: bool) -> bytes:
            rest = self._more if more else self._last
            return head.pack(head.size + size, delivery_id, offset, rest)

        message = b"".join((before, _pack_offset(offset), after, body))
        return Pieces(head_of, message, self._frame_max - head.size)

    def _around(self, raw: bytes, at: int) -> tuple[bytes, bytes]:
        """What stands around the offset; most messages of a stream begin alike."""
        beginning = raw[:at]
        found = self._known.get(beginning)
        if found is None or raw[at : at + 3] not in BARE_STARTS:
            if not is_section(raw, at):
                raise FormatError("no section")
            found = around_offset(beginning, self._queue)
            if at > _REMEMBERED_BYTES:
                return found
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[beginning] = found
        self._at, self._beginning, self._found = at, beginning, found
        return found


class _Head:
    """Head of a frame and a transfer, up to its payload.

    Args:
        where: the frame's head without its size.
        handle: encoded.
        form: of the tag, as the module struct has it; `tag_size` is how many bytes that takes.

    Attributes:
        size: in bytes.
    """

    def __init__(self, where: bytes, handle: bytes, form: str, tag_size: int) -> None:
        fields = struct.Struct(f">BIBB{form}3s")
        transfer = bytes((CODES[Transfer], codes.LIST_8, 1 + len(handle) + fields.size, _FIELDS))
        self._constant = where + SHORT_DESCRIPTOR + transfer + handle
        layout = struct.Struct(f">I{len(self._constant)}sBIBB{form}3s")
        self.size = layout.size
        self._pack = layout.pack
        self._tag_size = tag_size

    def pack(self, size: int, delivery_id: int, offset: int, rest: bytes) -> bytes:
        """For a frame of that size; `rest` are the fields behind the tag."""
        return self._pack(
            *(size, self._constant, codes.UINT, delivery_id),
            *(codes.BINARY_8, self._tag_size, offset, rest),
        )


def pieces_of(channel: int, transfer: Transfer, message: bytes, frame_max: int) -> Pieces:
    """What cuts a message, whatever its transfer says."""

    def head_of(size: int, more: bool) -> bytes:
        body = encode_composite(transfer._replace(more=more))
        return (
            FRAME_HEAD.pack(FRAME_HEAD.size + len(body) + size, 2, FrameType.AMQP, channel) + body
        )

    return Pieces(head_of, message, frame_max - len(head_of(0, True)))
