"""Where in a stream's segments a reader begins."""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from segments.chunk_search import (
    Place,
    chunk_holding,
    first_chunk_at_or_after,
    last_user_chunk,
)
from segments.offsets import OffsetSpec, Start
from segments.segment import Segment

_base_offset = attrgetter("base_offset")


class Position(NamedTuple):
    """A chunk boundary: a segment, a byte position in it, the offset of what stands there."""

    segment: Segment
    position: int
    offset: int


def find(segments: Sequence[Segment], spec: OffsetSpec) -> Position:
    """The chunk boundary at which a reader with `spec` begins.

    Offsets before the first and times before the first chunk give the first chunk; offsets and
    times after the last give the end.

    Args:
        segments: of the stream, at least one.
        spec: where to begin.

    Raises:
        StorageError: the system refused to read.
    """
    match spec.start:
        case Start.FIRST:
            return _find_offset(segments, 0)
        case Start.LAST:
            return _find_last(segments)
        case Start.OFFSET:
            return _find_offset(segments, spec.value)
        case Start.TIMESTAMP:
            return _find_time(segments, spec.value)
        case Start.NEXT:
            return _end(segments)


def _end(segments: Sequence[Segment]) -> Position:
    tail = segments[-1]
    return Position(tail, tail.size, tail.next_offset)


def _find_offset(segments: Sequence[Segment], offset: int) -> Position:
    if offset >= segments[-1].next_offset:
        return _end(segments)
    segment = segment_holding(segments, offset)
    return _position(segment, chunk_holding(segment, offset))


def segment_holding(segments: Sequence[Segment], offset: int) -> Segment:
    """The segment with `offset`, or the first one after it where none has it; the last at the end.

    Args:
        segments: of the stream, at least one.
        offset: the offset.
    """
    number = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
    if offset >= segments[number].next_offset:  # in a gap behind it, or at the end
        number = min(number + 1, len(segments) - 1)
    return segments[number]


def _position(segment: Segment, place: Place) -> Position:
    return Position(segment, place.position, place.offset)


def _find_last(segments: Sequence[Segment]) -> Position:
    for segment in reversed(segments):
        found = last_user_chunk(segment)
        if found is not None:
            return _position(segment, found)
    return _end(segments)


def _find_time(segments: Sequence[Segment], timestamp_ms: int) -> Position:
    for segment in segments[_first_ending_at(segments, timestamp_ms) :]:
        found = first_chunk_at_or_after(segment, timestamp_ms)
        if found is not None:
            return _position(segment, found)
    return _end(segments)


def _first_ending_at(segments: Sequence[Segment], timestamp_ms: int) -> int:
    """Number of the first segment that ends at this time or later.

    Times increase within a segment. From one to the next they may go back, where the clock was
    ahead or behind: a segment counts as ending no later than the latest of those after it, so that
    times after all of them give the end, and no message is missed for any other.
    """
    found, latest = len(segments), None
    for number in range(len(segments) - 1, -1, -1):
        ends = segments[number].last_timestamp_ms
        if ends is None:
            continue  # it is empty
        if (ends if latest is None else min(ends, latest)) >= timestamp_ms:
            found = number
        latest = ends if latest is None else max(ends, latest)
    return found
