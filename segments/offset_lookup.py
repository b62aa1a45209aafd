"""Where in a stream's segments a reader begins."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from segments.chunk_search import (
    Place,
    chunk_holding,
    first_chunk_at_or_after,
    last_user_chunk,
)
from segments.offsets import OffsetSpec, Start
from segments.segment import Segment


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
    number = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    segment = segments[max(number, 0)]
    return _position(segment, chunk_holding(segment, offset))


def _position(segment: Segment, place: Place) -> Position:
    return Position(segment, place.position, place.offset)


def _find_last(segments: Sequence[Segment]) -> Position:
    for segment in reversed(segments):
        found = last_user_chunk(segment)
        if found is not None:
            return _position(segment, found)
    return _end(segments)


def _find_time(segments: Sequence[Segment], timestamp_ms: int) -> Position:
    number = bisect_left(segments, timestamp_ms, key=_last_time)
    for segment in segments[number:]:
        found = first_chunk_at_or_after(segment, timestamp_ms)
        if found is not None:
            return _position(segment, found)
    return _end(segments)


def _last_time(segment: Segment) -> int:
    """For a search by time; an empty segment is the newest and sorts last."""
    return 1 << 63 if segment.last_timestamp_ms is None else segment.last_timestamp_ms
