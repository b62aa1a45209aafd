"""Where in a stream's segments a reader begins."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from segments.codec import FILE_HEADER_SIZE
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
        StorageError: an index cannot be read.
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
    if offset <= segment.base_offset:
        return Position(segment, FILE_HEADER_SIZE, segment.base_offset)
    with segment.index() as index:
        found = index.last_at_or_before(offset)
    if found is None:
        return Position(segment, FILE_HEADER_SIZE, segment.base_offset)
    return Position(segment, found.position, found.chunk_id)


def _find_last(segments: Sequence[Segment]) -> Position:
    for segment in reversed(segments):
        with segment.index() as index:
            found = index.last_user_chunk()
        if found is not None:
            return Position(segment, found.position, found.chunk_id)
    return _end(segments)


def _find_time(segments: Sequence[Segment], timestamp_ms: int) -> Position:
    number = bisect_left(segments, timestamp_ms, key=_last_time)
    for segment in segments[number:]:
        with segment.index() as index:
            found = index.first_at_or_after_time(timestamp_ms)
        if found is not None:
            return Position(segment, found.position, found.chunk_id)
    return _end(segments)


def _last_time(segment: Segment) -> int:
    """For a search by time; an empty segment is the newest and sorts last."""
    return 1 << 63 if segment.last_timestamp_ms is None else segment.last_timestamp_ms
