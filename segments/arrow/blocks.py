"""The messages of many chunks in one buffer, and where each is."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from segments import compression
from segments.arrow.parts import Part
from segments.errors import FormatError
from segments.format_constants import NO_COMPRESSION
from segments.spark.headers import Bytes, Numbers
from segments.spark.messages import PADDING
from segments.spark.walk import message_ends

_LENGTH_SIZE = 4


class Block(NamedTuple):
    """The wanted messages of some parts.

    Attributes:
        buffer: holds their bytes, with PADDING more behind them.
        starts, ends: of the messages in it.
        offsets: of the messages in their stream.
        timestamps: when their chunks were written, in ms since 1970.
    """

    buffer: Bytes
    starts: Numbers
    ends: Numbers
    offsets: Numbers
    timestamps: Numbers

    def raw(self, row: int) -> bytes:
        """One message."""
        return self.buffer[self.starts[row] : self.ends[row]].tobytes()


class DamagedPart(FormatError):
    """A part does not hold what its header counts.

    Attributes:
        number: of the part, counted from 0.
    """

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


def block_of(parts: Sequence[Part]) -> Block:
    """Put the messages of some parts together, sub-batches unpacked.

    Raises:
        DamagedPart: see there; of several, the first.
    """
    buffer = np.frombuffer(b"".join((*(part.data for part in parts), bytes(PADDING))), np.uint8)
    limits = np.cumsum([len(part.data) for part in parts])
    first = np.append(0, limits[:-1])
    found = message_ends(buffer, first, limits, parts)
    others = np.flatnonzero(~found.is_simple | (found.counts != [p.num_records for p in parts]))
    if len(others):
        sound = list(parts)
        for number in others.tolist():
            sound[number] = _unpacked(number, parts[number])
        return block_of(sound)
    starts = np.append(0, found.ends[:-1]) + _LENGTH_SIZE
    offsets = np.concatenate([np.array(part.offsets, np.int64) for part in parts])
    times = np.array([part.timestamp_ms for part in parts], np.int64)
    timestamps = np.repeat(times, [len(part) for part in parts])
    if len(offsets) == len(starts):
        return Block(buffer, starts, found.ends, offsets, timestamps)
    shifts = np.cumsum(found.counts) - found.counts
    ranges = [np.arange(part.rows.start, part.rows.stop) for part in parts]
    rows = np.concatenate([places + shift for places, shift in zip(ranges, shifts, strict=True)])
    return Block(buffer, starts[rows], found.ends[rows], offsets, timestamps)


def _unpacked(number: int, part: Part) -> Part:
    """A part with sub-batches, without them."""
    try:
        bodies = compression.bodies(part.data)
    except FormatError as error:
        raise DamagedPart(number, str(error)) from error
    if len(bodies) != part.num_records:
        reason = f"its header counts {part.num_records} messages, it holds {len(bodies)}"
        raise DamagedPart(number, reason)
    data, _ = compression.pack(bodies, NO_COMPRESSION)
    return replace(part, data=data)
