"""Reading a stream forward, chunk by chunk, with the filter test before any data is touched.

A reader keeps the segment it stands in open, so that retention cannot take it away. It goes as
far as the log's committed offset and can be asked again when that has moved. Small chunks come
with their data, from one read for many; of large ones only the header is read, and the data is
for `os.sendfile`. What was appended last need not be read where it is little: it is in memory.

Of a cold segment some bytes are here, and others have to be fetched before (ColdError): then it is
as if `read` had not been called, and `missing` says what to fetch. What was read stays here until
the next `read`, so that it can be sent.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from segments import codec
from segments.bloom import ChunkMatcher
from segments.codec import (
    CHECKED_HEADER_SIZE,
    CHUNK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    ChunkHeader,
    Damage,
)
from segments.columns import Columns, has_columns, read_columns, sound_columns
from segments.disk import File, Readable
from segments.errors import FormatError, SegmentsError, StorageError, UnreadableError
from segments.filter_index import Index, chunks_at_once, matching, next_match
from segments.format_constants import USER
from segments.gaps import num_lost
from segments.log import Log
from segments.offset_lookup import Position
from segments.offsets import at_offset
from segments.row_run import OpenedRows, RowRun, Screen
from segments.runs import Runs
from segments.segment import FILTER_SUFFIX, Segment
from segments.store.cache import ColdError, ColdFile, Pin
from segments.tier.plan import ReadAhead, Request
from segments.window import HEAD_READ, Window

_READ_AHEAD = 1 << 18  # read at once while chunks are small
# Of `catch_up`: more than a filter with one clause needs; one with several may go on for ever.
_CATCH_UP_STEPS = 8
_MOST_ROW_CHUNKS = 256  # that an index is asked about at once
SMALL_CHUNK = 1 << 16  # up to this size, copying costs less than the calls of a sendfile


class StoredChunk(NamedTuple):
    """A chunk as it stands in its segment file.

    Attributes:
        header: decoded.
        raw_header: its 48 bytes.
        whole: all of it when it was read along, else None. Keeps what was read with it in memory
            while it lives.
        file: the segment file, open at least until the reader's next `read`.
        data_position: where the data section starts in it.
    """

    header: ChunkHeader
    raw_header: bytes
    whole: memoryview | None
    file: File
    data_position: int

    @property
    def data(self) -> memoryview | None:
        """The data section where it was read along."""
        if self.whole is None:
            return None
        start = self.header.data_start
        return self.whole[start : start + self.header.data_size]

    def columns(self) -> Columns | None:
        """Which of its messages have which filter value; None where it does not say, soundly.

        Raises:
            StorageError: the system refused.
        """
        header, whole = self.header, self.whole
        if not has_columns(header):
            return None
        end = header.data_start + header.data_size
        if whole is None:
            return read_columns(self.file, self.data_position - header.data_start, header)
        return sound_columns(whole[: header.data_start], bytes(whole[end:]), header)


class ReadCounts:
    """How far a reader has come.

    Attributes:
        chunks, records: handed out.
        skipped_chunks, skipped_bytes: ruled out by the filter.
        unfiltered_chunks: of those, chunks in which no message has a filter value.
        lost_records: offsets that were damaged, or removed by retention before they were read.
        data_bytes: of the data of chunks handed out.
        last_timestamp_ms: of the last chunk handed out, 0 before the first.
    """

    def __init__(self) -> None:
        self.chunks = 0
        self.records = 0
        self.skipped_chunks = 0
        self.skipped_bytes = 0
        self.unfiltered_chunks = 0
        self.lost_records = 0
        self.data_bytes = 0
        self.last_timestamp_ms = 0


class Held:
    """Keeps a cold segment open, and the bytes of some chunks."""

    def __init__(self, segment: Segment, pins: Sequence[Pin]) -> None:
        self._segment = segment
        self._pins = pins

    def mark_damaged(self, file: Readable, position: int, offset: int) -> Damage:
        """See Segment."""
        return self._segment.mark_damaged(file, position, offset)

    def release(self) -> None:
        """They are sent."""
        for pin in self._pins:
            pin.release()
        self._segment.release()


class Reader:
    """Reads a log from a position on.

    Args:
        start: where to begin, from `SegmentList.find`.
        matcher: which chunks to hand out, None for all.

    Attributes:
        counts: how far it has come.
        next_offset: offset of the chunk it stands before.
    """

    def __init__(self, log: Log, start: Position, matcher: ChunkMatcher | None = None) -> None:
        self.counts = ReadCounts()
        self.next_offset = start.offset
        self._log = log
        self._matcher = matcher
        self._plan: ReadAhead | None = None
        self._segment, self._file = self._acquire(start.segment)
        is_there = self._segment is start.segment
        self._position = start.position if is_there else FILE_HEADER_SIZE
        self._window = Window(self._segment, self._file, self._position)

    @property
    def at_end(self) -> bool:
        """Everything committed has been read."""
        return self.next_offset >= self._log.committed_offset

    @property
    def reached_ms(self) -> int:
        """The time of the last chunk handed out, or of its segment's first one if that is later."""
        return max(self.counts.last_timestamp_ms, self._segment.first_timestamp_ms or 0)

    @property
    def has_little_left(self) -> bool:
        """There is more, in this segment alone, and it comes with its data."""
        is_newest = self._segment is self._log.segments.shown[-1]
        return is_newest and 0 < self._segment.size - self._position <= SMALL_CHUNK

    def read(
        self, max_chunks: int, max_bytes: int, max_steps: int, runs: Runs | None = None
    ) -> list[StoredChunk]:
        """The next chunks that match, possibly none although `at_end` is not reached.

        Args:
            max_chunks: hand out at most this many.
            max_bytes: stop after the chunk whose data passes this. A chunk that comes without
                its data ends the list.
            max_steps: look at no more chunks than this, so that a call stays short.
            runs: takes the chunks, and hand out no more runs than it allows.

        Raises:
            ColdError: bytes have to be fetched before, see `missing`.
            StorageError: the system refused to read.
        """
        chunks: list[StoredChunk] = []
        size = 0
        if self._window.pins or self.next_offset < self._log.segments.begins_at:
            self._prepare()
        for _ in range(max_steps):
            ends_file = chunks and self._position >= self._segment.size
            if ends_file or self.at_end or not self._enter_segment():
                break  # all of one call are in one file, see `pin_segment`
            most = max_chunks if runs is None else min(max_chunks, runs.num_wanted)
            try:
                size += self._advance(chunks, most, max_bytes - size)
            except (StorageError, ColdError) as error:
                if not chunks and not self._is_gone(error):
                    raise
                break  # what was read is handed out first; the next call meets it again
            if runs is not None and not runs.take(chunks):
                size -= self._give_back(chunks.pop())
                break
            is_full = len(chunks) >= max_chunks or size >= max_bytes
            if is_full or (chunks and chunks[-1].data is None):
                break
        if chunks:
            self.counts.data_bytes += size
            self.counts.last_timestamp_ms = chunks[-1].header.timestamp_ms
        if self.at_end:
            self._window.data = b""  # readers that wait at the end keep no memory
        return chunks

    def _give_back(self, chunk: StoredChunk) -> int:
        """Stand before the chunk that was read last; returns bytes of its data."""
        header = chunk.header
        self._position = chunk.data_position - header.data_start
        self.next_offset = header.chunk_id
        self.counts.chunks -= 1
        self.counts.records -= header.num_records
        return header.data_size

    def _advance(self, chunks: list[StoredChunk], max_chunks: int, max_bytes: int) -> int:
        """Go on by one chunk, or by many small ones; returns bytes of the data handed out."""
        newest, window = self._segment.newest, self._window
        if newest is not None and self._position >= max(newest.position, window.end):
            window.data = b"".join([part for chunk in newest.chunks for part in chunk.parts])
            window.start = newest.position
        if self._matcher is None:
            size = self._read_run(chunks, max_chunks, max_bytes)
            if size:
                return size
        elif self._skip_by_index(self._matcher):
            return 0
        elif window.cold is not None:
            self._check_filters(window.cold, self._matcher)
        chunk = self._step()
        if chunk is None:
            return 0
        chunks.append(chunk)
        return chunk.header.data_size

    def catch_up(self) -> None:
        """Skip what does not match, as far as the filter index tells soon; reads nothing."""
        matcher = self._matcher
        if self.next_offset < self._log.segments.begins_at:
            return  # the next `read` finds the way
        for _ in range(_CATCH_UP_STEPS):
            if matcher is None or self.at_end or not self._may_enter_segment():
                break
            if not self._skip_by_index(matcher):
                break

    def drop_readahead(self) -> None:
        """Free what was read ahead; the next `read` reads it again."""
        self._window.drop()

    def rest(self) -> None:
        """Nothing is read for a while: what is kept of a cold segment may go."""
        if self._window.pins:
            self._window.drop()

    def pin_segment(self) -> Segment | Held:
        """Keep the file of the chunks from the last `read` open until `release` on the result."""
        self._segment.acquire()
        if not self._window.pins:
            return self._segment
        return Held(self._segment, [pin.again() for pin in self._window.pins])

    def close(self) -> None:
        """Release the segment."""
        self._window.let_go()
        self._segment.release()

    # -- cold segments

    def missing(self, error: ColdError) -> list[Request]:
        """What to fetch so that it can go on, and what it will need soon; the first comes first.

        Args:
            error: that `read` has raised.

        Raises:
            SegmentsError: the index of the segment cannot be read.
        """
        if self._plan is None:
            self._plan = ReadAhead(self._log, self._matcher)
        return self._plan.missed(self._segment, error)

    def ahead(self) -> list[Request]:
        """What should be fetched now, as it will be needed soon; to be asked after each `read`."""
        if self._plan is None:
            return []
        return self._plan.passed(self._segment, self._position)

    def _is_gone(self, error: SegmentsError) -> bool:
        """Whether a cold segment is not in the store any more: then it goes on behind it.

        Where the segment was truncated in its middle, that is in the one that has its rest.
        """
        cold = self._window.cold
        if cold is None or not cold.cached.is_gone or isinstance(error, ColdError):
            return False
        if self._log.segments.holding(self.next_offset) is self._segment:
            self._position = self._segment.size
            self._lose_until(self._segment.next_offset)
        else:
            self._go_to(self._log.segments.find(at_offset(self.next_offset)))
        return True

    def _go_to(self, start: Position) -> None:
        segment, file = self._acquire(start.segment)
        self._segment.release()
        self._enter(segment, file)
        if segment is start.segment:
            self._position = self._window.start = start.position
            self._lose_until(start.offset)

    def _check_filters(self, cold: ColdFile, matcher: ChunkMatcher) -> None:
        """Raise ColdError where a filter index will tell, so that not all chunks are fetched."""
        segment = self._segment
        is_certain = segment.is_indexable and not segment.damage and not cold.cached.is_gone
        if is_certain and segment.filters is None and self.next_offset >= matcher.since:
            raise ColdError(cold.cached, suffix=FILTER_SUFFIX)

    def _prepare(self) -> None:
        """What was read before may go, but for the window; the log may begin later by now."""
        self._window.let_go(keeps_data=True)
        if self.next_offset < self._log.segments.begins_at:
            self._begin_again()

    def _begin_again(self) -> None:
        """The log was truncated behind this place: go on where it begins now."""
        segment, file = self._acquire(self._log.segments.holding(self._log.segments.begins_at))
        self._segment.release()
        self._enter(segment, file)

    def _enter(self, segment: Segment, file: File) -> None:
        self._segment, self._file = segment, file
        self._window.let_go()
        self._window = Window(segment, file, read_size=self._window.read_size)
        self._position = FILE_HEADER_SIZE
        self._lose_until(segment.base_offset)

    def _enter_segment(self) -> bool:
        """Move on to the next segment where this one ends; False when there is none yet."""
        while self._position >= self._segment.size:
            following = self._log.segments.holding(max(self.next_offset, self._segment.next_offset))
            if following is self._segment:
                return False
            if following.base_offset < self.next_offset:  # has what it has read, see `Log.follow`
                self._go_to(self._log.segments.find(at_offset(self.next_offset)))
                continue
            following, file = self._acquire(following)
            self._segment.release()
            self._enter(following, file)
        return True

    def _may_enter_segment(self) -> bool:
        """The same; False also where `read` has to have something fetched before."""
        try:
            return self._enter_segment()
        except ColdError:
            return False

    def _acquire(self, segment: Segment) -> tuple[Segment, File]:
        """A segment to be read, or the one after it when its file has been removed."""
        while True:
            try:
                return segment, segment.acquire()
            except StorageError as error:
                if not error.is_missing or segment is self._log.segments.shown[-1]:
                    raise
                segment.mark_all_damaged()
                self._lose_until(segment.next_offset)
                segment = self._log.segments.holding(segment.next_offset)

    def _lose_until(self, offset: int) -> None:
        self.counts.lost_records += num_lost(self.next_offset, offset)
        self.next_offset = offset

    def read_rows(self, screen: Screen, max_bytes: int, max_units: int) -> OpenedRows | None:
        """Messages of the next chunks that match, as far as the chunks' columns choose them.

        Their data is not read but for those messages.

        Args:
            screen: says which messages of a chunk are opened.
            max_bytes: stop after the chunk with whose messages there are so many.
            max_units: stop after so much work; chunks that take more each are for `read`.

        Returns:
            None where the next chunk is one for `read`.
        """
        if self._window.pins or self.next_offset < self._log.segments.begins_at:
            self._prepare()
        if self.at_end or not self._may_enter_segment() or self._is_unusual():
            return None
        start = self._position
        run = RowRun(self._file, self._segment.size, screen, max_bytes, max_units)
        if self._matcher is None:
            while self._position < self._segment.size and self._take_rows(run):
                if run.is_full:
                    break
        else:
            self._take_matching(run, self._matcher)
        if self._position == start:
            return None
        self._window.data = b""  # which is of what lies behind
        return run.opened()

    def _is_unusual(self) -> bool:
        """Whether what comes next is for those who read whole chunks: it is here, or may not be."""
        segment = self._segment
        is_here = segment.newest is not None and self._position >= segment.newest.position
        return is_here or bool(segment.damage) or self._window.cold is not None

    def _take_matching(self, run: RowRun, matcher: ChunkMatcher) -> None:
        filters = self._segment.filters
        if filters is None or self.next_offset < matcher.since:
            return
        first = bisect_left(filters.positions, self._position)
        last = min(first + min(_MOST_ROW_CHUNKS, chunks_at_once([matcher])), len(filters.positions))
        ordinal = first
        for target in matching(filters, matcher, range(first, last)):
            if target > ordinal:
                self._skip_to(filters, ordinal, target)
            if not self._take_rows(run):
                return
            ordinal = target + 1
            if run.is_full:
                return
        if ordinal < last:
            self._skip_to(filters, ordinal, last)
            if last == len(filters.positions):
                self._skip_segments(matcher)

    def _take_rows(self, run: RowRun) -> bool:
        """Go on by one chunk; False where that is not one for a run."""
        header = run.take(self._position, self.next_offset)
        if header is None:
            return False
        counts = self.counts
        counts.chunks += 1
        counts.records += header.num_records
        counts.last_timestamp_ms = header.timestamp_ms
        self._position += header.total_size
        self.next_offset = header.next_offset
        return True

    def _skip_by_index(self, matcher: ChunkMatcher) -> bool:
        """Go to the next chunk that may match, where the segment's index tells; True if it moved.

        Nothing is read for what lies between.
        """
        segment = self._segment
        filters = segment.filters
        if filters is None or segment.damage or self.next_offset < matcher.since:
            if filters is None:
                self._log.indexes.request(segment)
            return False
        ordinal = bisect_left(filters.positions, self._position)
        target = next_match(filters, matcher, ordinal)
        if target == ordinal:
            return False
        self._skip_to(filters, ordinal, target)
        if target == len(filters.positions):
            self._skip_segments(matcher)
        return True

    def _skip_to(self, filters: Index, ordinal: int, target: int) -> None:
        """Pass over the chunks from one number up to another, by which nothing is wanted."""
        start, segment = self._position, self._segment
        if target < len(filters.positions):
            self._position, self.next_offset = filters.positions[target], filters.chunk_ids[target]
        else:
            self._position, self.next_offset = segment.size, segment.next_offset
        counts = self.counts
        counts.skipped_chunks += target - ordinal
        counts.skipped_bytes += self._position - start
        bare = filters.bare
        counts.unfiltered_chunks += bisect_left(bare, target) - bisect_left(bare, ordinal)

    def _skip_segments(self, matcher: ChunkMatcher) -> None:
        """Skip whole segments in which nothing matches; their files are not even opened.

        The newest one is entered: a reader that waits must not keep an old file open.
        """
        counts = self.counts
        while True:
            segment = self._log.segments.holding(max(self.next_offset, self._segment.next_offset))
            filters = segment.filters
            is_newest = segment is self._log.segments.shown[-1] or segment is self._segment
            if is_newest or filters is None or segment.damage:
                return
            is_next = self.next_offset == segment.base_offset and matcher.since <= self.next_offset
            if not is_next or next_match(filters, matcher, 0) < len(filters.positions):
                return
            counts.skipped_chunks += len(filters.positions)
            counts.skipped_bytes += segment.size - FILE_HEADER_SIZE
            counts.unfiltered_chunks += len(filters.bare)
            self.next_offset = segment.next_offset

    def _read_run(self, chunks: list[StoredChunk], max_chunks: int, max_bytes: int) -> int:
        """Take small chunks that were read ahead; returns how many bytes of data they have.

        Does what `_step` does, without a call for each chunk. Everything unusual is left to that:
        large chunks, tracking, damage.
        """
        window, start, file = self._window.data, self._window.start, self._file
        limit = min(self._window.end, self._segment.size)
        if self._segment.damage:
            return 0
        view = memoryview(window)
        position, offset, size, first = self._position, self.next_offset, 0, len(chunks)
        last = limit - CHUNK_HEADER_SIZE
        while len(chunks) < max_chunks and size < max_bytes and position <= last:
            at = position - start
            header = codec.plain_chunk_header(window, at, offset)
            if header is None:
                break
            body = at + CHUNK_HEADER_SIZE + header.filter_size
            end = body + header.data_size
            following = start + end + header.trailer_size
            if following > limit or following - position > SMALL_CHUNK:
                break
            raw_header = window[at : at + CHUNK_HEADER_SIZE]
            whole = view[at : following - start]
            chunks.append(StoredChunk(header, raw_header, whole, file, start + body))
            size += header.data_size
            position = following
            offset += header.num_records
        if len(chunks) == first:
            return 0
        self.counts.chunks += len(chunks) - first
        self.counts.records += offset - self.next_offset
        self._position = position
        self.next_offset = self._offset_behind(offset)
        return size

    def _offset_behind(self, offset: int) -> int:
        """The offset at the position, by the chunk before it, as far as that can be.

        The count of a header that is damaged would leave the reader before the end, or behind it.
        """
        end = self._segment.next_offset
        return end if self._position >= self._segment.size else min(offset, end - 1)

    def _step(self) -> StoredChunk | None:
        """Read the chunk at the position and move behind it; None when it is not wanted."""
        position = self._position
        header = self._header()
        if header is None:
            return None
        size = header.total_size
        window = self._window
        if window.cold is not None and position + size > window.end:
            window.hold(window.cold, position, size)
        self._position = position + size
        self.next_offset = self._offset_behind(header.next_offset)
        if header.chunk_type != USER:
            return None
        if self._matcher is not None and not _is_wanted(window, self._matcher, position, header):
            self.counts.skipped_chunks += 1
            self.counts.unfiltered_chunks += not header.filter_size
            self.counts.skipped_bytes += size
            return None
        self.counts.chunks += 1
        self.counts.records += header.num_records
        data_position = position + header.data_start
        whole = None
        if size <= SMALL_CHUNK and window.end >= self._position:
            start = position - window.start
            whole = memoryview(window.data)[start : start + size]
        raw_header = window.bytes_at(position, CHUNK_HEADER_SIZE)
        return StoredChunk(header, raw_header, whole, self._file, data_position)

    def _header(self) -> ChunkHeader | None:
        """The header at the position; None after stepping over damage there."""
        position, window = self._position, self._window
        try:
            header = self._decode_header(position)
            size = header.total_size
            if position + size > self._segment.size:
                raise FormatError("chunk reaches beyond the segment's end")
            is_small = size <= SMALL_CHUNK
            window.read_size = _READ_AHEAD if is_small else HEAD_READ
            if is_small and position + size > window.end:
                window.fill(position, size)
        except FormatError:
            damage = self._segment.mark_damaged(self._file, position, self.next_offset)
            self._position = damage.end
            if damage.end > position:
                self._lose_until(damage.next_offset)
            else:  # the chunk before had a wrong count
                self.next_offset = damage.next_offset
            return None
        return header

    def _decode_header(self, position: int) -> ChunkHeader:
        if position in self._segment.damage:
            raise FormatError("known damage")
        window = self._window
        if position + CHUNK_HEADER_SIZE > window.end:
            window.fill(position, CHUNK_HEADER_SIZE)
        header = codec.decode_chunk_header(window.data, position - window.start)
        if header.chunk_id != self.next_offset:
            raise FormatError(f"chunk id is {header.chunk_id}, expected {self.next_offset}")
        return header


def _is_wanted(window: Window, matcher: ChunkMatcher, position: int, header: ChunkHeader) -> bool:
    """The filter test. A chunk is skipped only if its filter can be trusted."""
    if header.chunk_id < matcher.since:
        return True
    try:
        return _may_match(window, matcher, position, header)
    except UnreadableError:
        return True


def _may_match(window: Window, matcher: ChunkMatcher, position: int, header: ChunkHeader) -> bool:
    filter_bytes = window.bytes_at(position + CHUNK_HEADER_SIZE, header.filter_size)
    if matcher.matches(header.filter_scheme, header.filter_size, filter_bytes):
        return True
    checked = window.bytes_at(position, CHECKED_HEADER_SIZE)
    trailer_position = position + header.data_start + header.data_size
    trailer = window.bytes_at(trailer_position, header.trailer_size)
    if codec.header_check(checked, filter_bytes, trailer) != header.header_check:
        return True
    return matcher.is_doubtful(filter_bytes, trailer)
