"""A picture of a stream: its segments as blocks, and where consumers stand in it."""

from collections.abc import Iterable, Sequence

from segments.gaps import Gaps
from segments.segment import Segment
from streamd.operations.stream_views import Block, Mark, SegmentMap

WIDTH = 100.0  # per cent
MAX_BLOCKS = 100


def segment_map(
    segments: Sequence[Segment],
    gaps: Gaps,
    next_offset: int,
    consumers: Iterable[tuple[int, str]],
    stored: Iterable[tuple[int, str]],
) -> SegmentMap:
    """The picture of a stream.

    Args:
        segments: all of them, the oldest first; there is at least one.
        gaps: between them, which take no room.
        next_offset: after the last message.
        consumers: where they stand, and who they are.
        stored: offsets that consumers have stored, and who they are.
    """
    first = segments[0].base_offset
    scale = WIDTH / max(1, gaps.num_between(first, next_offset))
    size = -(-len(segments) // MAX_BLOCKS)
    blocks = [
        _block(segments[n : n + size], first, gaps, scale, is_last=n + size >= len(segments))
        for n in range(0, len(segments), size)
    ]

    def marks(places: Iterable[tuple[int, str]]) -> list[Mark]:
        return [
            Mark(round(min(WIDTH, gaps.num_between(first, offset) * scale), 3), offset, title)
            for offset, title in places
        ]

    return SegmentMap(blocks, first, next_offset, marks(consumers), marks(stored))


def _block(
    segments: Sequence[Segment], first: int, gaps: Gaps, scale: float, *, is_last: bool
) -> Block:
    begin, end = segments[0].base_offset, segments[-1].next_offset
    num_messages = gaps.num_between(begin, end)
    return Block(
        round(gaps.num_between(first, begin) * scale, 3),
        round(num_messages * scale, 3),
        begin,
        end,
        num_messages,
        len(segments),
        sum(segment.num_chunks for segment in segments),
        sum(segment.size for segment in segments),
        next((s.first_timestamp_ms for s in segments if s.first_timestamp_ms), 0),
        next((s.last_timestamp_ms for s in reversed(segments) if s.last_timestamp_ms), 0),
        sum(segment.filters is not None for segment in segments),
        sum(segment.num_lost for segment in segments),
        is_last,
    )
