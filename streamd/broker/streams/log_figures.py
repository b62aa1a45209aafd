"""What people and programs want to know of a stream's log, also while it is not open."""

from typing import NamedTuple

from segments import FIRST, Log
from segments.derived.key_schedule import KeyFigures
from segments.gaps import NO_GAPS, Gaps


class LogFigures(NamedTuple):
    """A log at one moment.

    Attributes:
        first_offset: of the first message that is kept.
        next_offset: after the last message.
        first_chunk_id: of the first chunk, None for an empty log.
        last_chunk_id: of the last chunk, None for an empty log.
        num_lost: messages known to be damaged.
        num_chunks, num_segments: that are kept.
        size: of all segment files, in bytes.
        first_timestamp_ms, last_timestamp_ms: of chunks, in ms since 1970; 0 for an empty log.
        oldest_ends_ms: the last chunk of the oldest segment, None while that is the only one.
        raised_segment_bytes: at which new segments begin, where that is more than was declared,
            because there are so many; else 0.
        keys: of its key index; None where it has no key properties.
        life: see segments/marks.py; empty where it is not known.
        gaps: offsets that no message has, see segments/gaps.py.
    """

    first_offset: int
    next_offset: int
    first_chunk_id: int | None
    last_chunk_id: int | None
    num_lost: int
    num_chunks: int
    num_segments: int
    size: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    oldest_ends_ms: int | None
    raised_segment_bytes: int
    keys: KeyFigures | None = None
    life: str = ""
    gaps: Gaps = NO_GAPS

    @classmethod
    def of(cls, log: Log) -> "LogFigures":
        """The figures of an open log."""
        last = log.segments.last_chunk_id
        times = (
            s.first_timestamp_ms for s in log.segments.shown if s.first_timestamp_ms is not None
        )
        return cls(
            log.segments.first_offset,
            log.committed_offset,
            None if last is None else log.segments.find(FIRST).offset,
            last,
            log.segments.num_lost,
            log.segments.num_chunks,
            len(log.segments.shown),
            log.segments.size,
            next(times, 0),
            log.segments.last_timestamp_ms or 0,
            _oldest_ends_ms(log),
            log.segment_bytes if log.segment_bytes > log.policy.max_segment_bytes else 0,
            KeyFigures.of(log),
            log.life,
            log.segments.gaps,
        )

    @property
    def num_messages(self) -> int:
        """Messages that are kept."""
        return self.gaps.num_between(self.first_offset, self.next_offset)

    @property
    def last_offset(self) -> int:
        """The offset of the last message, which may be gone; -1 where there never was one."""
        return self.gaps.before(self.next_offset) - 1


def _oldest_ends_ms(log: Log) -> int | None:
    if len(log.segments.shown) == 1:
        return None
    oldest, following = log.segments.shown[:2]
    ends, begins = oldest.last_timestamp_ms, following.first_timestamp_ms
    if ends is None or begins is None:
        return ends
    return min(ends, begins)  # the clock was ahead if the next one begins before


NO_FIGURES = LogFigures(0, 0, None, None, 0, 0, 1, 0, 0, 0, None, 0)  # of a stream without files
