"""The segments of one log: which readers find, whose files are kept, and their sums.

There may be tens of thousands, so what is done with each of them looks at few others: sums are kept
as sealed segments, which do not change any more, come and go. And as segments are stored and leave
the disk in order, nearly all that are cold, or stored, are the oldest: of so many that is known.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count, pairwise
from operator import attrgetter

from segments.codec import Damage
from segments.gaps import Gap, Gaps
from segments.offset_lookup import Position, find, segment_holding
from segments.offsets import OffsetSpec
from segments.segment import Segment

_base_offset = attrgetter("base_offset")


def _between(segments: Sequence[Segment]) -> list[Gap]:
    """The gaps between segments that follow each other."""
    pairs = pairwise(segments)
    return [Gap.between(one.next_offset, following.base_offset) for one, following in pairs]


class SegmentList:
    """The segments of a log; at least one.

    Attributes:
        shown: that readers may read, oldest first; the last one grows. Others are put in its place
            and at its end alone, so any thread may iterate over it.
        outlived: before those; readers do not find them, and their files are kept as yet.
        gone: out of the log; their files are still there.
        gaps: offsets in the log that no message has.
        begins_at: readers before this offset go on with it, as the log was truncated; 0 if it was
            not.
    """

    def __init__(
        self,
        segments: list[Segment],
        gaps: Iterable[Gap],
        damage_found: Callable[[Segment, Damage], None],
    ) -> None:
        self.shown = segments
        self.outlived: list[Segment] = []
        self.gone: list[Segment] = []
        self.gaps = Gaps(_between(segments)).and_more(gaps)
        self.begins_at = 0
        self._sealed_size = self._sealed_chunks = self._num_cold = self._num_stored = 0
        self._count(segments[:-1])
        self._damage_found = damage_found
        for segment in segments:
            segment.report_damage_to(damage_found)

    def _count(self, sealed: Collection[Segment], sign: int = 1) -> None:
        """Segments have been sealed or, with -1, are not shown any more."""
        self._sealed_size += sign * sum(segment.size for segment in sealed)
        self._sealed_chunks += sign * sum(segment.num_chunks for segment in sealed)

    @property
    def first_offset(self) -> int:
        """First offset that is kept; equal to `Log.committed_offset` when the log is empty."""
        return self.shown[0].base_offset

    @property
    def kept_from(self) -> int:
        """First offset whose segment file is kept: `first_offset`, or before, until `Log.expire`.

        Any thread may ask.
        """
        shown = self.shown  # read first: what is hidden meanwhile is in one of the two
        return (self.outlived or shown)[0].base_offset

    @property
    def kept(self) -> list[Segment]:
        """Segments whose files are kept, oldest first, those that have outlived the policy too."""
        return self.outlived + self.shown if self.outlived else self.shown

    @property
    def is_empty(self) -> bool:
        """No chunk is kept."""
        return self.last_chunk_id is None

    @property
    def last_chunk_id(self) -> int | None:
        """Id of the newest chunk, None when the log is empty."""
        ids = (segment.last_chunk_id for segment in reversed(self.shown))
        return next((found for found in ids if found is not None), None)

    @property
    def last_timestamp_ms(self) -> int | None:
        """Timestamp of the newest chunk, None when the log is empty."""
        times = (segment.last_timestamp_ms for segment in reversed(self.shown))
        return next((found for found in times if found is not None), None)

    @property
    def size(self) -> int:
        """Bytes of all segment files."""
        return self._sealed_size + self.shown[-1].size

    @property
    def num_chunks(self) -> int:
        """Chunks that are kept."""
        return self._sealed_chunks + self.shown[-1].num_chunks

    @property
    def damaged(self) -> list[Segment]:
        """Segments of which some cannot be read."""
        return [segment for segment in self.shown if segment.damage]

    @property
    def num_lost(self) -> int:
        """Records that are kept, and damaged as far as that is known."""
        return sum(segment.num_lost for segment in self.damaged)

    @property
    def local(self) -> list[Segment]:
        """Segments whose file is on this disk, oldest first; the newest one always is."""
        segments = self.kept
        self._num_cold = next(n for n in count(self._num_cold) if segments[n].cold is None)
        return [segment for segment in segments[self._num_cold :] if segment.cold is None]

    @property
    def local_size(self) -> int:
        """Bytes of segment files that are on this disk, the cache not counted."""
        return sum(segment.size for segment in self.local)

    @property
    def unstored(self) -> list[Segment]:
        """Sealed segments that hold something and that no store has, oldest first."""
        segments = self.kept
        # No store has the newest one.
        self._num_stored = next(n for n in count(self._num_stored) if segments[n].stored is None)
        found = segments[self._num_stored : -1]
        return [one for one in found if one.stored is None and one.num_chunks]

    def forget_stored(self, segment: Segment) -> None:
        """A store does not have one any more, or not as it is here: it is to be stored again."""
        segment.stored, self._num_stored = None, 0

    def at(self, base_offset: int) -> Segment | None:
        """The segment that begins there, and whose file is kept."""
        segments = self.kept
        number = bisect_left(segments, base_offset, key=_base_offset)
        found = segments[number : number + 1]
        return found[0] if found and found[0].base_offset == base_offset else None

    def holding(self, offset: int) -> Segment:
        """The segment with `offset`, or the first one after it where none has it."""
        return segment_holding(self.shown, offset)

    def following(self, segment: Segment, number: int) -> list[Segment]:
        """A segment that is shown and those after it, so many in all."""
        first = bisect_left(self.shown, segment.base_offset, key=_base_offset)
        return self.shown[first : first + number]

    def find(self, spec: OffsetSpec) -> Position:
        """The chunk boundary at which a reader with `spec` begins; see `offset_lookup.find`."""
        return find(self.shown, spec)

    def is_sealed(self, segment: Segment) -> bool:
        """Nothing is added any more to what readers see of it.

        A segment that is full, and not yet flushed, is not: where what is appended is committed by
        a flush, readers see less of it than its file holds.
        """
        return segment is not self.shown[-1]

    def add(self, segment: Segment) -> None:
        """The newest one is sealed, and this one grows."""
        sealed = self.shown[-1]
        if segment.base_offset > sealed.next_offset:
            self.gaps = self.gaps.and_more(_between([sealed, segment]))
        sealed.newest = None
        segment.report_damage_to(self._damage_found)
        self.shown.append(segment)
        self._count([sealed])

    def hide(self, number: int) -> None:
        """Let readers find so many of the oldest ones no more."""
        if number:
            hidden = self.shown[:number]
            self.outlived += hidden  # before they leave the others, see `kept_from`
            self.shown = self.shown[number:]
            self._count(hidden, -1)

    def drop(self, number: int, rest: Segment | None = None) -> list[Segment]:
        """Take so many of the oldest ones whose files are kept out of the log; returns them.

        Args:
            number: how many.
            rest: a segment in the place of the last of them.
        """
        num_shown = number - len(self.outlived)
        self.hide(max(0, num_shown))
        dropped, self.outlived = self.outlived[:number], self.outlived[number:]
        self._num_cold = max(0, self._num_cold - number)
        self._num_stored = max(0, self._num_stored - number)
        if rest is not None:
            rest.report_damage_to(self._damage_found)
            self._num_cold = self._num_stored = 0
            if num_shown > 0:
                self.shown = [rest, *self.shown]
                self._count([rest])
            else:  # the policy was faster
                self.outlived.insert(0, rest)
        _release(dropped)
        self.gone += dropped
        return dropped

    def exchange(
        self, bases: Collection[int], new: Collection[Segment], tail: Sequence[Segment]
    ) -> list[Segment]:
        """Put other cold segments in; readers of one that goes go on where the log begins.

        Args:
            bases: base offsets of those that go.
            new: those that come.
            tail: the last ones from now on, in place of those that are on this disk.

        Returns:
            Cold ones that have gone.
        """
        before = self.local
        segments = self.shown[: -len(before)]
        at = bisect_right(segments, max(bases, default=-1), key=_base_offset)
        gone = [one for one in segments[:at] if one.base_offset in bases]
        segments[:at] = [one for one in segments[:at] if one.base_offset not in bases]
        for segment in (*new, *tail):
            segment.report_damage_to(self._damage_found)
        for segment in new:
            insort(segments, segment, key=_base_offset)
        segments += tail
        for base in {*bases, *map(_base_offset, (*new, tail[0]))}:  # where others meet than before
            at = bisect_left(segments, base, key=_base_offset)
            near = segments[max(0, at - 1) : at + 2]
            for segment, following in pairwise(near):
                segment.reaches_to(following.base_offset)
            self.gaps = self.gaps.and_more(_between(near))
        self.shown = segments
        self._num_cold = self._num_stored = 0
        self._count([*gone, *before[:-1]], -1)
        self._count([*new, *tail[:-1]])
        _release(gone)
        if gone:
            self.begins_at = self.first_offset
        return gone


def _release(gone: Iterable[Segment]) -> None:
    """Segments are not part of the log any more."""
    for segment in gone:
        segment.drop_filters()
        segment.drop_keys()
        if segment.cold is not None:
            segment.cold.forget()
