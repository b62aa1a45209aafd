"""Inputs and what is in them: an input is one octet that says how it arrives, and the bytes.

So the files of the corpus are what was sent, and a fuzzer that knows nothing of protocols may
change them, too. What is cut off at the end is a frame of its own.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from random import Random

from streamd.wire.amqp091.codec import FRAME_HEAD

_ARRIVALS = 5
_SOME_TINY = 60
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,7})\r\n", re.IGNORECASE)
_END_OF_HEAD = b"\r\n\r\n"


def _parts(data: bytes, end_of: Callable[[bytes, int], int]) -> list[bytes]:
    """What `data` consists of; `end_of` says where the part ends that begins at a place."""
    found, at = [], 0
    while at < len(data):
        end = end_of(data, at)
        found.append(data[at:end])
        at = end
    return found


def stream_frames(data: bytes) -> list[bytes]:
    """Frames of the stream protocol, or entries of a chunk."""
    return _parts(data, lambda raw, at: at + 4 + int.from_bytes(raw[at : at + 4], "big"))


def amqp_frames(data: bytes) -> list[bytes]:
    """Frames of AMQP 0-9-1; a protocol header is one."""

    def end_of(raw: bytes, at: int) -> int:
        if raw[at : at + 4] == b"AMQP":
            return at + 8
        if at + FRAME_HEAD.size > len(raw):
            return len(raw)
        return at + FRAME_HEAD.size + FRAME_HEAD.unpack_from(raw, at)[2] + 1

    return _parts(data, end_of)


def amqp10_frames(data: bytes) -> list[bytes]:
    """Frames of AMQP 1.0; a protocol header is one."""

    def end_of(raw: bytes, at: int) -> int:
        size = int.from_bytes(raw[at : at + 4], "big")
        return at + (8 if raw[at : at + 4] == b"AMQP" else max(size, 8))

    return _parts(data, end_of)


def with_whole_size(frame: bytes) -> bytes:
    """A frame of AMQP 1.0 whose size is right."""
    if len(frame) < 8 or frame.startswith(b"AMQP"):
        return frame
    return len(frame).to_bytes(4, "big") + frame[4:]


def http_requests(data: bytes) -> list[bytes]:
    """Requests."""

    def end_of(raw: bytes, at: int) -> int:
        head = raw.find(_END_OF_HEAD, at)
        if head < 0:
            return len(raw)
        length = _LENGTH.search(raw, at, head + 2)
        return head + len(_END_OF_HEAD) + (int(length[1]) if length else 0)

    return _parts(data, end_of)


def with_size(frame: bytes) -> bytes:
    """A frame of the stream protocol whose size is right."""
    return (len(frame) - 4).to_bytes(4, "big") + frame[4:] if len(frame) > 4 else frame


def with_size_and_end(frame: bytes) -> bytes:
    """A frame of AMQP whose size and last octet are right."""
    if len(frame) <= FRAME_HEAD.size or frame.startswith(b"AMQP"):
        return frame
    return frame[:3] + (len(frame) - 8).to_bytes(4, "big") + frame[7:-1] + b"\xce"


def in_pieces(frames: list[bytes], arrival: int) -> list[bytes]:
    """How bytes arrive: frame by frame, each when the one before is dealt with; all at once;
    in a few pieces; or in tiny ones for a while."""
    data = b"".join(frames)
    chance = Random(arrival)
    kind = arrival % _ARRIVALS
    if kind < 2:
        return [frame for frame in frames if frame]
    places: list[int] = []
    if kind == 2:
        places = sorted(chance.randint(0, len(data)) for _ in range(chance.randint(1, 6)))
    elif kind == 3:
        start = chance.randint(0, len(data))
        places = list(range(start, min(len(data), start + _SOME_TINY)))
    return [data[a:b] for a, b in pairwise([0, *places, len(data)]) if b > a]
