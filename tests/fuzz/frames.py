"""Inputs and what is in them: an input is one octet that says how it arrives, and the bytes.

So the files of the corpus are what was sent, and a fuzzer that knows nothing of protocols may
change them, too. What is cut off at the end is a frame of its own.
"""

import re
from itertools import pairwise
from random import Random

from streamd.wire.amqp091.codec import FRAME_HEAD

_ARRIVALS = 5
_SOME_TINY = 60
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,7})\r\n", re.IGNORECASE)
_END_OF_HEAD = b"\r\n\r\n"


def stream_frames(data: bytes) -> list[bytes]:
    """Frames of the stream protocol."""
    found, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(data[at:end])
        at = end
    return found


def amqp_frames(data: bytes) -> list[bytes]:
    """Frames of AMQP 0-9-1; a protocol header is one."""
    found, at = [], 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            end = at + 8
        elif at + FRAME_HEAD.size > len(data):
            end = len(data)
        else:
            end = at + FRAME_HEAD.size + FRAME_HEAD.unpack_from(data, at)[2] + 1
        found.append(data[at:end])
        at = end
    return found


def amqp10_frames(data: bytes) -> list[bytes]:
    """Frames of AMQP 1.0; a protocol header is one."""
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        end = at + (8 if data[at : at + 4] == b"AMQP" else max(size, 8))
        found.append(data[at:end])
        at = end
    return found


def with_whole_size(frame: bytes) -> bytes:
    """A frame of AMQP 1.0 whose size is right."""
    if len(frame) < 8 or frame.startswith(b"AMQP"):
        return frame
    return len(frame).to_bytes(4, "big") + frame[4:]


def http_requests(data: bytes) -> list[bytes]:
    """Requests."""
    found, at = [], 0
    while at < len(data):
        head = data.find(_END_OF_HEAD, at)
        if head < 0:
            end = len(data)
        else:
            length = _LENGTH.search(data, at, head + 2)
            end = head + len(_END_OF_HEAD) + (int(length[1]) if length else 0)
        found.append(data[at:end])
        at = end
    return found


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
