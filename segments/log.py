"""The log of one stream: segments, tracking and their files, in one folder. Synchronous.

One owner appends; any number of readers follow. `committed_offset` is how far readers may go:
everything before it is whole, and nothing before it changes except that retention drops the
oldest segments. Time comes from the caller.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from segments import recovery
from segments.asked import Asked
from segments.chunk import ChunkBuilder, EncodedChunk
from segments.codec import FILE_HEADER_SIZE
from segments.disk import Disk, OsDisk
from segments.filter_index import FilterIndex, Index as FilterIndexForm
from segments.journal import Journal
from segments.offsets import OffsetSpec, Start
from segments.policy import LogPolicy
from segments.restore import restore_tracking
from segments.retention import expired
from segments.segment import MAX_GROUP, Segment, SegmentWriter

_SEGMENTS_AHEAD = 32  # whose filter indexes are made ready for a reader


class Position(NamedTuple):
    """A chunk boundary: a segment, a byte position in it, the offset of what stands there."""

    segment: Segment
    position: int
    offset: int


@dataclass(frozen=True)
class RecoveryReport:
    """What opening a log found and did.

    Attributes:
        steps: repairs, a sentence each.
        losses: what cannot be read any more, a sentence each.
    """

    steps: tuple[str, ...]
    losses: tuple[str, ...]


class Log:
    """A stream's log, open for appending and reading. Made by `Log.open`.

    Attributes:
        folder: where its files are.
        policy: its limits; may be replaced, and counts from the next chunk on.
        segments: oldest first; the last one grows.
        epoch: the writer's generation; one more than the newest chunk that was found.
        tracking: publisher sequences and stored offsets.
        asked: which filter values consumers ask for.
        report: what opening it found.
        is_closed: nothing is written into its folder any more.
        on_wanted: called when a segment wants a filter index; see `take_wanted`.
    """

    def __init__(self, disk: Disk, folder: str, policy: LogPolicy, plan: recovery.Plan) -> None:
        self._disk = disk
        self.folder = folder
        self.policy = policy
        self.segments = plan.segments
        self.epoch = plan.last_epoch + 1
        if self.segments:
            self._writer = SegmentWriter.resume(self.segments[-1])
        else:
            self._writer = SegmentWriter.create(disk, folder, 0)
            self.segments.append(self._writer.segment)
        self.is_closed = False
        self._wanted: list[Segment] = []
        self.on_wanted: Callable[[Log], None] = lambda _log: None
        self.asked = Asked(disk, folder)
        self._journal = Journal.open(disk, folder)
        self.tracking, notes = restore_tracking(self._journal, self.segments)
        self.report = RecoveryReport((*map(str, plan.steps), *notes), tuple(map(str, plan.losses)))

    @classmethod
    def open(cls, folder: str, policy: LogPolicy | None = None, disk: Disk | None = None) -> "Log":
        """Open the log in `folder`, creating it where there is none, repairing what a crash left.

        Raises:
            CorruptError: a segment file is not one.
            StorageError: the system refused.
        """
        disk = disk or OsDisk()
        disk.make_folder(folder)
        plan = recovery.examine(disk, folder)
        plan.apply(disk)
        return cls(disk, folder, policy or LogPolicy(), plan)

    @property
    def committed_offset(self) -> int:
        """Offset that the next record will get; readers may read everything before it."""
        return self.segments[-1].next_offset

    @property
    def first_offset(self) -> int:
        """First offset that is kept; equal to `committed_offset` when the log is empty."""
        return self.segments[0].base_offset

    @property
    def is_empty(self) -> bool:
        """No chunk is kept."""
        return all(segment.last_chunk_id is None for segment in self.segments)

    @property
    def last_chunk_id(self) -> int | None:
        """Id of the newest chunk, None when the log is empty."""
        for segment in reversed(self.segments):
            if segment.last_chunk_id is not None:
                return segment.last_chunk_id
        return None

    @property
    def last_timestamp_ms(self) -> int | None:
        """Timestamp of the newest chunk, None when the log is empty."""
        for segment in reversed(self.segments):
            if segment.last_timestamp_ms is not None:
                return segment.last_timestamp_ms
        return None

    @property
    def size(self) -> int:
        """Bytes of all segment files."""
        return sum(segment.size for segment in self.segments)

    @property
    def num_chunks(self) -> int:
        """Chunks that are kept."""
        return sum(segment.num_chunks for segment in self.segments)

    def append(self, builders: Sequence[ChunkBuilder], now_ms: int) -> None:
        """Write chunks, sealing segments that are full; committed on return.

        Args:
            builders: what each chunk holds, at least one entry.
            now_ms: wall clock. Chunk timestamps never decrease, whatever it does.

        Raises:
            StorageError: the system refused. `committed_offset` says how many chunks, from the
                first on, were appended nevertheless.
        """
        timestamp_ms = max(now_ms, self.last_timestamp_ms or 0)
        chunk_id = self.committed_offset
        group: list[tuple[EncodedChunk, ChunkBuilder]] = []
        for builder in builders:
            if self._is_full(group):
                self._write(group)
                self._roll()
            elif len(group) == MAX_GROUP:
                self._write(group)
            chunk = builder.encode(
                chunk_id=chunk_id, timestamp_ms=timestamp_ms, epoch=self.epoch, policy=self.policy
            )
            group.append((chunk, builder))
            chunk_id = chunk.header.next_offset
        self._write(group)

    def _is_full(self, group: Sequence[tuple[EncodedChunk, ChunkBuilder]]) -> bool:
        """Whether the newest segment, with `group` in it, takes no more."""
        segment, policy = self._writer.segment, self.policy
        num_chunks = segment.num_chunks + len(group)
        size = segment.size + sum(chunk.header.total_size for chunk, _ in group)
        if not num_chunks:
            return False  # an empty segment would be rolled for ever
        return size >= policy.max_segment_bytes or num_chunks >= policy.max_segment_chunks

    def _write(self, group: list[tuple[EncodedChunk, ChunkBuilder]]) -> None:
        """Append a group to the newest segment, and empty it."""
        if group:
            self._writer.append([chunk for chunk, _ in group])
            for chunk, builder in group:
                self.tracking.set_sequences(chunk.header.chunk_id, builder.sequences.items())
            group.clear()

    def _roll(self) -> None:
        """Seal the newest segment and start the next.

        The snapshot holds the sequences of chunks that are written, never of one to come: a crash
        right after it cannot make a message that is sent again look like a duplicate.
        """
        next_offset = self.committed_offset
        self.tracking.forget_offsets_below(self.first_offset)
        if self._journal.exists or not self.tracking.is_empty:
            self._journal.write_snapshot(self.tracking, next_offset)
        writer = SegmentWriter.create(self._disk, self.folder, next_offset)
        sealed = self._writer.segment
        self._writer.close()
        self._writer = writer
        self.segments.append(writer.segment)
        if sealed.filters is not None:
            self.want_filters(sealed)  # from memory to a file

    def store_offset(self, reference: bytes, offset: int) -> None:
        """Remember how far a consumer has come; on disk after the next `write_tracking`.

        Raises:
            ValueError: the reference is empty or longer than 255 bytes.
        """
        self.tracking.store_offset(reference, offset)

    def write_tracking(self) -> None:
        """Put stored offsets that are not on disk yet into the journal.

        Raises:
            StorageError: the system refused; they stay pending.
        """
        if self.tracking.has_pending:
            self._journal.write_pending(self.tracking, self.committed_offset)

    def expire(self, now_ms: int) -> list[Segment]:
        """Take segments that have outlived the policy out of the log.

        Returns:
            The segments, oldest first. Readers on them can finish; the caller removes the files
            with `Segment.remove`, in this order, from a thread if it likes.
        """
        number = expired(self.segments, self.policy, now_ms)
        gone, self.segments = self.segments[:number], self.segments[number:]
        return gone

    def find(self, spec: OffsetSpec) -> Position:
        """The chunk boundary at which a reader with `spec` begins.

        Offsets before the first and times before the first chunk give the first chunk; offsets
        and times after the last give the end.

        Raises:
            StorageError: an index cannot be read.
        """
        match spec.start:
            case Start.FIRST:
                return self._find_offset(0)
            case Start.LAST:
                return self._find_last()
            case Start.OFFSET:
                return self._find_offset(spec.value)
            case Start.TIMESTAMP:
                return self._find_time(spec.value)
            case Start.NEXT:
                return self._end()

    def _end(self) -> Position:
        tail = self.segments[-1]
        return Position(tail, tail.size, tail.next_offset)

    def _find_offset(self, offset: int) -> Position:
        if offset >= self.committed_offset:
            return self._end()
        number = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        segment = self.segments[max(number, 0)]
        if offset <= segment.base_offset:
            return Position(segment, FILE_HEADER_SIZE, segment.base_offset)
        with segment.index() as index:
            found = index.last_at_or_before(offset)
        if found is None:
            return Position(segment, FILE_HEADER_SIZE, segment.base_offset)
        return Position(segment, found.position, found.chunk_id)

    def _find_last(self) -> Position:
        for segment in reversed(self.segments):
            with segment.index() as index:
                found = index.last_user_chunk()
            if found is not None:
                return Position(segment, found.position, found.chunk_id)
        return self._end()

    def _find_time(self, timestamp_ms: int) -> Position:
        number = bisect_left(self.segments, timestamp_ms, key=_last_time)
        for segment in self.segments[number:]:
            with segment.index() as index:
                found = index.first_at_or_after_time(timestamp_ms)
            if found is not None:
                return Position(segment, found.position, found.chunk_id)
        return self._end()

    def segment_holding(self, offset: int) -> Segment:
        """The segment with `offset`, or the first one after it when that is gone."""
        number = bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        return self.segments[max(number, 0)]

    def want_filters(self, segment: Segment) -> None:
        """A reader could pass over chunks of this segment if its filter index were there.

        It will soon ask for those of the next segments, so they are wanted as well.
        """
        if segment.is_wanted or not segment.is_indexable or segment.damage:
            return  # asked for once for every chunk
        number = bisect_left(self.segments, segment.base_offset, key=lambda s: s.base_offset)
        for one in self.segments[number : number + _SEGMENTS_AHEAD]:
            is_possible = one.is_indexable and not one.damage and not one.is_wanted
            if is_possible and (one is segment or one.filters is None):
                one.is_wanted = True
                self._wanted.append(one)
        if self._wanted:
            self.on_wanted(self)

    def take_wanted(self) -> list[Segment]:
        """Segments that want a filter index, or have one in memory that can be written."""
        wanted, self._wanted = self._wanted, []
        return [segment for segment in wanted if self.keeps(segment)]

    def keeps(self, segment: Segment) -> bool:
        """Its files are this log's: it has not been dropped, nor the log closed or deleted."""
        return not self.is_closed and segment in self.segments

    def is_sealed(self, segment: Segment) -> bool:
        """Nothing is appended to it any more."""
        return segment is not self._writer.segment

    def indexed_size(self, segment: Segment) -> int:
        """Bytes of a segment that an index has to be made for; the writer knows the rest."""
        return segment.size if self.is_sealed(segment) else self._writer.start_size

    def adopt_filters(self, segment: Segment, filters: FilterIndexForm, size: int) -> None:
        """Give readers the filter index of a segment's first `size` bytes."""
        if self.is_sealed(segment):
            if size == segment.size:
                segment.filters = filters
        elif isinstance(filters, FilterIndex) and segment.filters is None:
            self._writer.adopt(filters)

    def sync(self) -> None:
        """Return once everything appended so far is on the device. May run in a thread."""
        self._writer.sync()
        self._journal.sync()

    def close(self) -> None:
        """Write stored offsets and release the files; readers keep what they have open."""
        self.is_closed = True
        try:
            self.write_tracking()
            self.asked.write()
        finally:
            self._journal.close()
            self._writer.close()


def _last_time(segment: Segment) -> int:
    """For a search by time; an empty segment is the newest and sorts last."""
    return 1 << 63 if segment.last_timestamp_ms is None else segment.last_timestamp_ms
