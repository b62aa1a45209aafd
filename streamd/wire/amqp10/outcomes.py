"""Dispositions for many deliveries at once: one for each run of ids that follow each other."""

import struct
from collections.abc import Iterator, Sequence

from segments import amqp10_codes as codes
from segments.amqp10_codes import SHORT_DESCRIPTOR
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import FRAME_HEAD, FrameType, encode_composite

_HEAD = SHORT_DESCRIPTOR + bytes((p.CODES[p.Disposition], codes.LIST_32))
_FIELDS = struct.Struct(">IIBBIBIB")  # size, count; role; first, last, with their codes; settled
ACCEPTED, RELEASED = encode_composite(p.Accepted()), encode_composite(p.Released())


def settled_frames(channel: int, delivery_ids: Sequence[int], outcome: bytes) -> bytes:
    """The frames that tell a sender about deliveries, which are settled.

    Args:
        channel: of the session.
        delivery_ids: in any order.
        outcome: of all of them, encoded.
    """
    return b"".join(_frame(channel, first, last, outcome) for first, last in runs(delivery_ids))


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of numbers that follow each other."""
    if not numbers:
        return
    ordered = sorted(numbers)
    first, last = ordered[0], ordered[-1]
    if last - first + 1 == len(ordered):  # as mostly
        yield first, last
        return
    last = first
    for number in ordered[1:]:
        if number > last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


def _frame(channel: int, first: int, last: int, outcome: bytes) -> bytes:
    size = FRAME_HEAD.size + len(_HEAD) + _FIELDS.size + len(outcome)
    listed = _FIELDS.size - 4 + len(outcome)
    role, settled = codes.TRUE, codes.TRUE
    fields = _FIELDS.pack(listed, 5, role, codes.UINT, first, codes.UINT, last, settled)
    return FRAME_HEAD.pack(size, 2, FrameType.AMQP, channel) + _HEAD + fields + outcome
