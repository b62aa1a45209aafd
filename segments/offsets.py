"""Where to begin reading a stream."""

from enum import IntEnum
from typing import NamedTuple


class Start(IntEnum):
    """Kinds of offset specification, numbered as in the stream protocol."""

    FIRST = 1  # the first chunk that is kept
    LAST = 2  # the last chunk
    NEXT = 3  # what is written from now on
    OFFSET = 4  # the chunk that holds an offset
    TIMESTAMP = 5  # the first chunk that is not older than a time


class OffsetSpec(NamedTuple):
    """An offset specification.

    Attributes:
        value: the offset, or the time in ms since 1970; 0 for the other kinds.
    """

    start: Start
    value: int = 0


FIRST = OffsetSpec(Start.FIRST)
LAST = OffsetSpec(Start.LAST)
NEXT = OffsetSpec(Start.NEXT)


def at_offset(offset: int) -> OffsetSpec:
    """Begin with the chunk that holds `offset`."""
    return OffsetSpec(Start.OFFSET, offset)


def at_time(timestamp_ms: int) -> OffsetSpec:
    """Begin with the first chunk that was written at `timestamp_ms` or later."""
    return OffsetSpec(Start.TIMESTAMP, timestamp_ms)
