"""One segment: a file of chunks, its index and its side files, all named by the base offset.

`Segment` says what is valid in the files and opens them for readers; `SegmentWriter` appends to
the newest one. Everything up to `Segment.size` is whole chunks and known damage, and no reader
looks beyond it, so a failed append can be cut away while readers are at work, and what is appended
can be held back from them until it is on the device.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from segments import codec
from segments.checksum import crc32
from segments.chunk import EncodedChunk
from segments.codec import (
    CHUNK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    ChunkHeader,
    Damage,
    IndexRecord,
)
from segments.disk import Disk, File, Readable
from segments.errors import FormatError, StorageError, UnreadableError
from segments.filter_index import FilterIndex, Index as FilterIndexForm
from segments.gaps import end_before
from segments.index import Index, record_position
from segments.store.cache import CachedSegment, ColdError, TierCache
from segments.store.manifest import StoredSegment
from segments.store.object_names import StreamKey

if TYPE_CHECKING:
    from segments.keys.index import KeyIndex

SEGMENT_SUFFIX, INDEX_SUFFIX, DAMAGE_SUFFIX = ".segment", ".index", ".damage"
FILTER_SUFFIX, KEYS_SUFFIX = ".filter", ".keys"
GROWING_KEYS_SUFFIX = ".keys.growing.tmp"  # while the segment grows; of no use after that
DERIVED_SUFFIXES = (FILTER_SUFFIX, KEYS_SUFFIX)  # what is rebuilt when it is missing or wrong
BEGIN_SUFFIX = ".begin"  # the log begins with this segment: truncation.py, retention.py
SUFFIXES = (SEGMENT_SUFFIX, INDEX_SUFFIX, DAMAGE_SUFFIX, *DERIVED_SUFFIXES, BEGIN_SUFFIX)
NEWEST_BYTES = 4 << 10  # of what was appended last, kept for who waits for it; each open log has it
MAX_GROUP = 256  # chunks written in one call: three buffers each, of the 1,024 a call can take
MAX_OFFSET = (1 << 63) - 1  # what every client can name
_NAME = re.compile(r"([0-9]{20})(\.segment|\.index|\.damage|\.filter|\.keys|\.begin)")


def file_path(folder: str, base_offset: int, suffix: str) -> str:
    """Path of one of a segment's files."""
    return os.path.join(folder, f"{base_offset:020d}{suffix}")


def parse_name(name: str) -> tuple[int, str] | None:
    """Base offset and suffix of a segment's file name; None for any other name."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def files_by_base(names: Iterable[str]) -> dict[int, set[str]]:
    """The suffixes of the files of each segment in a folder, by base offset."""
    found: dict[int, set[str]] = {}
    for base, suffix in filter(None, map(parse_name, names)):
        found.setdefault(base, set()).add(suffix)
    return found


def beginning(files: Mapping[int, Collection[str]]) -> int:
    """Base offset of the segment that the log was told to begin with, 0 for none.

    Older segments are not part of the log; a crash may have kept them from being removed.

    Args:
        files: from `files_by_base`.
    """
    begun = (base for base, found in files.items() if {BEGIN_SUFFIX, SEGMENT_SUFFIX} <= set(found))
    return max(begun, default=0)


def _ignore(_segment: "Segment", _damage: Damage) -> None:
    """Damage that nobody wants to hear of."""


class KeyState(Enum):
    """What is known of a segment's `.keys` file."""

    UNKNOWN = "there is one, and nobody has looked at it"
    KNOWN = "what there is of it is known"
    FAILED = "making it has failed, and is not tried again"


class Newest(NamedTuple):
    """What was appended last, where it is little: who has waited for it need not read the file.

    Attributes:
        position: of the first chunk.
        chunks: up to the segment's end.
    """

    position: int
    chunks: Sequence[EncodedChunk]


class Segment:
    """What is known of one segment.

    Attributes:
        base_offset: offset of its first record, as in its name.
        size: bytes that are valid: the file header, whole chunks, damage that is stepped over.
        next_offset: offset of the record after its last one.
        num_chunks: records in its index.
        first_timestamp_ms, last_timestamp_ms: of its first and last chunk; None without chunks.
        last_chunk_id: None without chunks.
        damage: ranges that readers step over, by their position.
        newest: see above; None where it is not in memory.
        filters: which chunks hold which filter values, None while that is not known.
        is_indexable: False once making `filters` has failed.
        index_requested: `filters` have been asked for.
        keys: which messages may have which keys, None while that is not known; see `keys.keys_of`.
        key_fault: what was wrong with that, until somebody has said so.
        stored: what a store has of it; None where it has nothing.
        cold: what the disk has of it, which is not all; None while it has its file.
    """

    def __init__(self, disk: Disk, folder: str, base_offset: int) -> None:
        self.disk = disk
        self.folder = folder
        self.base_offset = base_offset
        self.size = FILE_HEADER_SIZE
        self.next_offset = base_offset
        self.num_chunks = 0
        self.first_timestamp_ms: int | None = None
        self.last_timestamp_ms: int | None = None
        self.last_chunk_id: int | None = None
        self.damage: dict[int, Damage] = {}
        self.newest: Newest | None = None
        self.filters: FilterIndexForm | None = None
        self.is_indexable = True
        self.index_requested = False
        self.keys: KeyIndex | None = None
        self.key_state = KeyState.UNKNOWN
        self.key_fault = ""
        self.stored: StoredSegment | None = None
        self.cold: CachedSegment | None = None
        self._report: Callable[[Segment, Damage], None] = _ignore
        self._file: File | None = None
        self._users = 0

    def report_damage_to(self, report: "Callable[[Segment, Damage], None]") -> None:
        """Call `report` with damage that a reader finds from now on."""
        self._report = report

    def index_failed(self) -> None:
        """Its filter index could not be built: chunks are looked at one by one for good."""
        self.filters, self.is_indexable = None, False

    def drop_filters(self) -> None:
        """Release its filter index, until one is requested again."""
        self.filters = None

    def drop_keys(self) -> None:
        """Release its key index, for good."""
        self.keys, self.key_state = None, KeyState.FAILED

    def index_done(self) -> None:
        """A request for its filter index is over, with success or without."""
        self.index_requested = False

    def path(self, suffix: str = SEGMENT_SUFFIX) -> str:
        """Path of the segment file or one beside it."""
        return file_path(self.folder, self.base_offset, suffix)

    def acquire(self) -> File:
        """The segment file, open for reading until `release`; stays readable when removed.

        Raises:
            StorageError: it cannot be opened.
        """
        if self._file is None:
            self._file = self.open()
        self._users += 1
        return self._file

    def open(self) -> File:
        """The segment file, open for reading by one that closes it.

        Raises:
            StorageError: it cannot be opened.
        """
        if self.cold is not None:
            return self.cold.open()
        return self.disk.open(self.path(), writable=False)

    @classmethod
    def of_store(
        cls, disk: Disk, folder: str, stream: StreamKey, stored: StoredSegment, cache: TierCache
    ) -> "Segment":
        """A segment whose file is only in a store."""
        segment = cls(disk, folder, stored.base_offset)
        segment.stored = stored
        segment.cold = cache.segment(stream, stored, folder)
        segment.size, segment.next_offset = stored.size, stored.next_offset
        segment.num_chunks = stored.num_chunks
        segment.first_timestamp_ms = stored.first_timestamp_ms
        segment.last_timestamp_ms = stored.last_timestamp_ms
        segment.last_chunk_id = stored.last_chunk_id
        segment.damage = {damage.position: damage for damage in stored.damage}
        segment.is_indexable = FILTER_SUFFIX in stored.files
        return segment

    def is_as_stored(self, stored: StoredSegment) -> bool:
        """Whether a store has this segment, and not another one from the same offset on.

        Two servers that began with the same data folder write segments that are as long, with other
        messages in them; so their times are compared, too, unless damage keeps one from knowing.
        """
        if (self.size, self.next_offset) != (stored.size, stored.next_offset):
            return False
        if self.damage or stored.damage or not self.num_chunks:
            return True
        mine = (self.num_chunks, self.first_timestamp_ms, self.last_timestamp_ms)
        return mine == (stored.num_chunks, stored.first_timestamp_ms, stored.last_timestamp_ms)

    def reaches_to(self, next_base: int) -> None:
        """The next segment begins here; offsets between its end and that are lost, or a gap."""
        end = end_before(self.next_offset, next_base)
        if end > self.next_offset:
            damage = Damage(self.size, self.size, self.next_offset, end)
            self.damage[damage.position] = damage
            self.next_offset = end

    def make_cold(self, cold: CachedSegment) -> None:
        """From now on it is read from the store; who reads it already keeps its file."""
        before, self.cold = self.cold, cold
        if before is not None and before is not cold:
            before.forget()  # the store has it otherwise, with a key index, say
        if FILTER_SUFFIX not in cold.stored.files:
            self.is_indexable = False  # nobody could fetch it, or make it

    def release(self) -> None:
        """Give back what `acquire` gave; the last one closes the file."""
        self._users -= 1
        if not self._users and self._file is not None:
            self._file.close()
            self._file = None

    def share_descriptor(self, file: File) -> None:
        """Let readers use a descriptor that the writer opened."""
        self._file = file
        self._users += 1

    def mark_damaged(self, file: Readable, position: int, offset: int) -> Damage:
        """Note the damage at `position`, where the chunk of `offset` cannot be read.

        The next chunk with a good header ends it, or else the end of the segment does. Readers
        step over it from now on. Nothing is noted where that chunk is whole, and has another offset
        than the count of the one before let expect, by its own header and the index.

        Returns:
            What to step over; nothing, but the right offset, where the chunk before is the culprit.

        Raises:
            UnreadableError: not even the beginning of the file can be read: it is not this place
                that is damaged, the device is gone.
            StorageError: the system refused to read the index.
        """
        known = self.damage.get(position)
        if known is not None:
            return known
        found = self._after_chunk(file, position, offset) or self._next_known(
            file, position, offset
        )
        if found is not None and found[0] == position:
            return Damage(position, position, offset, found[1])
        if found is None:
            file.read(FILE_HEADER_SIZE, 0)
            found = self.size, self.next_offset
        damage = Damage(position, found[0], offset, found[1])
        self.note_damage(damage)
        return damage

    def _after_chunk(self, file: Readable, position: int, offset: int) -> tuple[int, int] | None:
        """Position and offset behind the chunk at `position`, where its header can be believed."""
        header = read_header(file, position, offset)
        if header is None:
            return None
        end, next_offset = position + header.total_size, header.next_offset
        is_last = (end, next_offset) == (self.size, self.next_offset)
        is_sound = is_last or (end < self.size and read_header(file, end, next_offset) is not None)
        return (end, next_offset) if is_sound else None

    def _next_known(self, file: Readable, position: int, offset: int) -> tuple[int, int] | None:
        """Position and offset of the next chunk with a good header, by the index.

        That may be the one at `position`, with another offset.
        """
        try:
            with self.index() as index:
                for number in range(index.first_after_position(position - 1), index.num_records):
                    record = index.record(number)
                    is_here = record.position == position and record.chunk_id != offset
                    is_behind = record.position > position and record.chunk_id > offset
                    is_next = is_here or is_behind
                    if is_next and read_header(file, record.position, record.chunk_id):
                        return record.position, record.chunk_id
        except FormatError:  # the index cannot be read either
            return None
        except StorageError as error:
            if not error.is_missing:
                raise
        return None

    def mark_missing(self, start: int, end: int) -> None:
        """Bytes of it are gone, whole chunks: readers step over them.

        Raises:
            SegmentsError: its index cannot be read; then nothing was noted.
        """
        with self.index() as index:
            first = index.first_after_position(start - 1)
            last = index.first_after_position(end - 1)
            if first == last:
                return
            record = index.record(first)
            behind = (self.size, self.next_offset)
            if last < index.num_records:
                following = index.record(last)
                behind = (following.position, following.chunk_id)
        self.note_damage(Damage(record.position, behind[0], record.chunk_id, behind[1]))

    def note_damage(self, damage: Damage) -> None:
        """Readers step over this from now on."""
        if self.damage.get(damage.position) != damage:
            self.damage[damage.position] = damage
            self._report(self, damage)

    def mark_all_damaged(self) -> None:
        """Its file is gone: readers step over all of it."""
        damage = Damage(FILE_HEADER_SIZE, self.size, self.base_offset, self.next_offset)
        if self.damage != {damage.position: damage}:
            self.damage = {damage.position: damage}
            self._report(self, damage)

    def mark_as_stored(self) -> None:
        """Mark a cold segment as readable after all: only what was damaged when stored still is."""
        assert self.stored is not None  # noqa: S101 - it is cold
        self.damage = {damage.position: damage for damage in self.stored.damage}
        next_base, self.next_offset = self.next_offset, self.stored.next_offset
        self.reaches_to(next_base)

    @property
    def num_lost(self) -> int:
        """Records that are damaged."""
        return sum(damage.next_offset - damage.first_offset for damage in self.damage.values())

    def open_beside(self, suffix: str) -> File:
        """A file beside the segment, open for reading.

        Raises:
            ColdError: it has to be fetched.
            StorageError: it cannot be opened.
        """
        try:
            file = self.disk.open(self.path(suffix), writable=False)
            if self.cold is None or suffix != INDEX_SUFFIX:
                return file
            return self._checked_index(self.cold, file)
        except StorageError as error:
            cold = self.cold
            if error.is_missing and cold is not None and suffix in cold.stored.files:
                raise ColdError(cold, suffix=suffix) from None
            raise

    def _checked_index(self, cold: CachedSegment, file: File) -> File:
        """A cold segment's index, compared with what was stored.

        It cannot be compared with the chunks, as those of a segment that is here are: with what
        it says wrongly, whole chunks would be taken for damaged. So each opening does it.
        """
        stored = cold.stored.files[INDEX_SUFFIX]
        with suppress(UnreadableError):
            if file.size() == stored.size and crc32(file.read(stored.size, 0)) == stored.crc:
                return file
        file.close()
        self.disk.remove(self.path(INDEX_SUFFIX))
        raise ColdError(cold, suffix=INDEX_SUFFIX)

    def index(self) -> "SegmentIndex":
        """Its index, opened for one or more searches; use as a context manager."""
        return SegmentIndex(self)

    def remove(self) -> None:
        """Delete its files, the segment first.

        An index without a segment then always means "finish the deletion", a segment without an
        index "rebuild the index".
        """
        for suffix in (*SUFFIXES, GROWING_KEYS_SUFFIX):
            self.disk.remove(self.path(suffix))

    def remove_file(self) -> None:
        """Delete the file of a cold segment, of which there may be one yet.

        Raises:
            StorageError: the system refused.
        """
        self.disk.remove(self.path())


class SegmentIndex:
    """A segment's index file, open while the context lasts."""

    def __init__(self, segment: Segment) -> None:
        self._file = segment.open_beside(INDEX_SUFFIX)
        self._num_records = segment.num_chunks

    def __enter__(self) -> Index:
        return Index(self._file, self._num_records)

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Appended(NamedTuple):
    """Chunks that were appended together, and where.

    Attributes:
        writer: that appended them.
        positions: for each chunk where it stands in the segment file.
        size: of the segment file with them, in bytes.
    """

    writer: "SegmentWriter"
    chunks: Sequence[EncodedChunk]
    positions: Sequence[int]
    size: int


class SegmentWriter:
    """Appends chunks to the newest segment and its index; readers see them after `commit`.

    A failed append leaves both files as they were. What it has left behind their ends is cut off
    before anything else is appended. Where that cannot be done now, for a shortage, the next append
    tries again; otherwise the writer is `failed`, and every further append is refused.

    Attributes:
        failed: why nothing can be appended any more.
        start_size, start_chunks: bytes and chunks that the segment had when writing began.
        size, num_chunks, next_offset: of the segment with everything that was appended.
    """

    def __init__(self, segment: Segment, file: File, index: File) -> None:
        self.segment = segment
        self.failed: StorageError | None = None
        self.file = file
        self._index = index
        self._has_rest = False  # of an append that failed, behind the ends of the files
        # Chunks from here on; readers have it when nothing is missing before, see `adopt`.
        self._filters = FilterIndex()
        self.start_size = self.size = segment.size
        self.start_chunks = self.num_chunks = segment.num_chunks
        self.next_offset = segment.next_offset
        segment.key_state = KeyState.KNOWN
        if not segment.num_chunks:
            segment.filters = self._filters
        segment.share_descriptor(file)

    @classmethod
    def create(cls, disk: Disk, folder: str, base_offset: int) -> "SegmentWriter":
        """Start an empty segment: its index first, so that no segment lacks one for long.

        Raises:
            StorageError: a file cannot be created; what was created is removed again.
        """
        segment = Segment(disk, folder, base_offset)
        index = disk.create(segment.path(INDEX_SUFFIX))
        file: File | None = None
        try:
            index.write([codec.INDEX_HEADER], 0)
            file = disk.create(segment.path())
            file.write([codec.SEGMENT_HEADER], 0)
        except StorageError:
            index.close()
            if file is not None:
                file.close()
                disk.remove(segment.path())
            disk.remove(segment.path(INDEX_SUFFIX))
            raise
        return cls(segment, file, index)

    @classmethod
    def resume(cls, segment: Segment) -> "SegmentWriter":
        """Continue a segment that recovery has put in order."""
        file = segment.disk.open(segment.path(), writable=True)
        try:
            index = segment.disk.open(segment.path(INDEX_SUFFIX), writable=True)
        except StorageError:
            file.close()
            raise
        return cls(segment, file, index)

    def append(self, chunks: Sequence[EncodedChunk]) -> Appended:
        """Write chunks and their index records, in one call each.

        Args:
            chunks: at least one, at most MAX_GROUP.

        Raises:
            StorageError: the system refused; nothing was appended.
        """
        if self.failed is not None:
            raise self.failed
        if self._has_rest:
            self._cut_rest()
        parts: list[bytes] = []
        records: list[bytes] = []
        position = self.size
        positions: list[int] = []
        for chunk in chunks:
            header = chunk.header
            parts += chunk.parts
            records.append(
                codec.encode_index_record(
                    IndexRecord(
                        header.chunk_id,
                        header.timestamp_ms,
                        header.epoch,
                        position,
                        header.chunk_type,
                    )
                )
            )
            positions.append(position)
            position += chunk.size
        try:
            self.file.write(parts, self.size)
            self._index.write(records, record_position(self.num_chunks))
        except StorageError:
            self._has_rest = True
            with suppress(StorageError):  # or before the next append
                self._cut_rest()
            raise
        self.size = position
        self.num_chunks += len(chunks)
        self.next_offset = header.next_offset
        return Appended(self, chunks, positions, position)

    def commit(self, appended: Appended) -> None:
        """Let readers have what was appended; in the order of appending."""
        segment, chunks = self.segment, appended.chunks
        add = self._filters.add
        for chunk, position in zip(chunks, appended.positions):  # noqa: B905 - hot path
            add(position, chunk.header.chunk_id, chunk.keys)
        if segment.first_timestamp_ms is None:
            segment.first_timestamp_ms = chunks[0].header.timestamp_ms
        last = chunks[-1].header
        is_little = appended.size - segment.size <= NEWEST_BYTES
        segment.newest = Newest(segment.size, chunks) if is_little else None
        segment.size = appended.size
        segment.num_chunks += len(chunks)
        segment.next_offset = last.next_offset
        segment.last_chunk_id = last.chunk_id
        segment.last_timestamp_ms = last.timestamp_ms

    def adopt(self, filters: FilterIndex) -> None:
        """Take the index of all chunks that were there when writing began, and go on with it."""
        filters.extend(self._filters)
        self._filters = self.segment.filters = filters

    def seal(self) -> None:
        """See that nothing stands behind the last chunk, as nothing is appended any more.

        Raises:
            StorageError: what an append that failed has left cannot be cut off.
        """
        if self._has_rest:
            self._cut_rest()

    def _cut_rest(self) -> None:
        try:
            self.file.truncate(self.size)
            self._index.truncate(record_position(self.num_chunks))
        except StorageError as error:
            if not error.is_temporary:
                self.failed = error
            raise
        self._has_rest = False

    def close(self) -> None:
        """Stop appending; readers keep the segment file open as long as they need it."""
        self._index.close()
        self.segment.release()


def walk_headers(
    segment: Segment, file: Readable, start: tuple[int, int] | None = None
) -> Iterator[tuple[int, ChunkHeader]]:
    """Yield position and header of each chunk, stepping over damage. Reads no data.

    Args:
        segment: the segment.
        file: its file.
        start: position and offset of the chunk to begin with; default the first.
    """
    position, offset = start or (FILE_HEADER_SIZE, segment.base_offset)
    while position < segment.size:
        header = None if position in segment.damage else read_header(file, position, offset)
        if header is None:
            damage = segment.mark_damaged(file, position, offset)
            position, offset = damage.end, damage.next_offset
        else:
            yield position, header
            position, offset = position + header.total_size, header.next_offset


def read_header(file: Readable, position: int, expected_offset: int) -> ChunkHeader | None:
    """The header of the chunk at `position`; None when none of `expected_offset` can be read."""
    try:
        header = codec.decode_chunk_header(file.read(CHUNK_HEADER_SIZE, position))
    except FormatError:
        return None
    return header if header.chunk_id == expected_offset else None
