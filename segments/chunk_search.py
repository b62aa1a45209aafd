"""Finding a chunk of a segment through its index, or without it where the index is wrong.

The index is derived, and a device may give back something else than what was written to it. So an
answer counts only if the chunks that it rests on are where the index has them, and follow each
other. Where they do not, the headers of the segment are walked instead, which takes up to half a
second for the largest segment, and the index file gets from them what it should hold.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from errno import EIO
from typing import NamedTuple, TypeVar

from segments import codec
from segments.codec import FILE_HEADER_SIZE, Damage, IndexRecord
from segments.disk import Disk, File
from segments.errors import FormatError, StorageError, UnreadableError
from segments.format_constants import USER
from segments.index import Index, is_of_chunk
from segments.segment import INDEX_SUFFIX, Segment, read_header, walk_headers

_Found = TypeVar("_Found")


class Place(NamedTuple):
    """Where a chunk begins in its segment, and the offset of its first record."""

    position: int
    offset: int


def chunk_holding(segment: Segment, offset: int, *, walks: bool = True) -> Place:
    """The chunk with `offset`, which the segment holds; or the damage that has it.

    Args:
        segment: the segment.
        offset: in it.
        walks: go through its headers where the index is wrong or missing.

    Raises:
        FormatError: the index is wrong, and not to be done without.
        StorageError: the system refused to read.
    """
    if offset <= segment.base_offset:
        return Place(FILE_HEADER_SIZE, segment.base_offset)

    def find(records: _Records) -> Place:
        found = bisect_right(records.numbers, offset, key=lambda n: records.plain(n).chunk_id)
        if not found:
            return records.damaged(offset)
        chunk = records.checked(found - 1)
        if chunk.next_offset <= offset:
            return records.damaged(offset)
        return chunk.place

    return _search(segment, find, walks=walks)


def first_chunk_at_or_after(
    segment: Segment, timestamp_ms: int, *, walks: bool = True
) -> Place | None:
    """The first chunk whose timestamp is at least `timestamp_ms`.

    Raises:
        FormatError: see `chunk_holding`.
        StorageError: the system refused to read.
    """

    def find(records: _Records) -> Place | None:
        numbers = records.numbers
        found = bisect_left(numbers, timestamp_ms, key=lambda n: records.plain(n).timestamp_ms)
        before = records.checked(found - 1).next_offset if found else segment.base_offset
        if found == len(numbers):
            records.check_adjacent(before, segment.next_offset)
            return None
        chunk = records.checked(found)
        records.check_adjacent(before, chunk.place.offset)
        return chunk.place

    return _search(segment, find, walks=walks)


def time_of(segment: Segment, place: Place) -> int | None:
    """When a chunk was written, in ms since 1970; None where that cannot be read.

    Nothing is fetched of a cold segment but its index.

    Raises:
        ColdError: the index has to be fetched.
        StorageError: the system refused to read.
    """
    if segment.cold is not None:
        try:
            with segment.index() as index:
                numbers = range(index.num_records)
                at = bisect_left(numbers, place.position, key=lambda n: index.record(n).position)
                return index.record(at).timestamp_ms if at < len(numbers) else None
        except FormatError:
            return None
    file = segment.acquire()
    try:
        header = read_header(file, *place)
    finally:
        segment.release()
    return None if header is None else header.timestamp_ms


def last_user_chunk(segment: Segment) -> Place | None:
    """The last chunk that holds messages rather than tracking.

    Raises:
        StorageError: the system refused to read.
    """

    def find(records: _Records) -> Place | None:
        following = segment.next_offset
        for number in reversed(records.numbers):
            chunk = records.checked(number)
            records.check_adjacent(chunk.next_offset, following)
            if chunk.is_user:
                return chunk.place
            following = chunk.place.offset
        records.check_adjacent(segment.base_offset, following)
        return None

    return _search(segment, find)


def mend_index(segment: Segment, file: File) -> Index:
    """The index as it should be, from the chunks; its file is corrected where it says otherwise.

    Nothing depends on the file being corrected: whoever searches it compares what it finds.

    Args:
        segment: the segment.
        file: its file, open as long as this takes.

    Raises:
        StorageError: the system refused to read the segment.
    """
    content = index_content(segment, file)
    correct_index(segment, content)
    num_records = (len(content) - FILE_HEADER_SIZE) // codec.INDEX_RECORD_SIZE
    return Index(_Content(content), num_records)


def correct_index(segment: Segment, content: bytes) -> None:
    """Write to the index file what it should hold, where it says otherwise.

    Args:
        segment: whose; its files are there.
        content: from `index_content`.
    """
    num_records = (len(content) - FILE_HEADER_SIZE) // codec.INDEX_RECORD_SIZE
    if num_records == segment.num_chunks:  # else chunks that it knows are damaged
        _write(segment, content)


def index_content(segment: Segment, file: File) -> bytes:
    """What the index file of a segment should hold, from the headers of its chunks.

    That of a cold segment is what was stored, but for chunks that are damaged.

    Raises:
        ColdError: the index has to be fetched.
        StorageError: the system refused to read.
    """
    if segment.cold is not None:
        return _stored_index(segment)
    size = segment.size
    content = bytearray(codec.INDEX_HEADER)
    for position, header in walk_headers(segment, file):
        if position >= size:
            break
        chunk_id, timestamp_ms, epoch = header.chunk_id, header.timestamp_ms, header.epoch
        record = IndexRecord(chunk_id, timestamp_ms, epoch, position, header.chunk_type)
        content += codec.encode_index_record(record)
    return bytes(content)


def _stored_index(segment: Segment) -> bytes:
    content = bytearray(codec.INDEX_HEADER)
    with segment.index() as index:
        for record in map(index.record, range(index.num_records)):
            damaged = (d.position <= record.position < d.end for d in segment.damage.values())
            if not any(damaged):
                content += codec.encode_index_record(record)
    return bytes(content)


def _write(segment: Segment, content: bytes) -> None:
    """Correct the index in place: its writer may be appending to it."""
    try:
        index = _open(segment.disk, segment.path(INDEX_SUFFIX))
        try:
            if _read(index, len(content)) != content:
                index.write([content], 0)
        finally:
            index.close()
    except StorageError:
        return  # the next search tries again


def _open(disk: Disk, path: str) -> File:
    """The file, which is made where somebody has removed it."""
    try:
        return disk.open(path, writable=True)
    except StorageError as error:
        if not error.is_missing:
            raise
        return disk.create(path)


def _read(index: File, size: int) -> bytes:
    try:
        return index.read(size, 0)
    except UnreadableError:
        return b""


def _search(
    segment: Segment, find: "Callable[[_Records], _Found]", *, walks: bool = True
) -> _Found:
    file = segment.acquire()
    try:
        try:
            with segment.index() as index:
                # Of a cold segment, the index is what was stored; and a chunk may be far away.
                return find(_Records(segment, index, file if segment.cold is None else None))
        except FormatError:
            if not walks:
                raise
        except StorageError as error:
            if not (error.is_missing and walks):
                raise
        try:
            return find(_Records(segment, mend_index(segment, file), None))
        except FormatError as error:
            raise StorageError("search", segment.path(), OSError(EIO, str(error))) from error
    finally:
        segment.release()


class _Content:
    """What an index file should hold."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, size: int, position: int) -> bytes:
        """See disk.File."""
        return self._content[position : position + size]


class _Chunk(NamedTuple):
    """What an index record says of a chunk, confirmed by the chunk."""

    place: Place
    next_offset: int
    is_user: bool


class _Records:
    """The records of an index, compared with their chunks where an answer rests on them.

    Args:
        file: the segment's file; None for an index that needs not be compared with it.
    """

    def __init__(self, segment: Segment, index: Index, file: File | None) -> None:
        self.numbers = range(index.num_records)
        self.plain = index.record
        self._segment = segment
        self._file = file

    def checked(self, number: int) -> _Chunk:
        """Record `number`, which a chunk confirms; or the damage that its chunk is in.

        Raises:
            FormatError: there is another chunk, or none.
        """
        record = self.plain(number)
        damage = self._damage_with(record.chunk_id)
        if damage is not None:
            return _Chunk(Place(damage.position, damage.first_offset), damage.next_offset, True)
        is_user = record.chunk_type == USER
        place = Place(record.position, record.chunk_id)
        if self._file is None:
            following = self._segment.next_offset
            if number + 1 < len(self.numbers):
                following = self.plain(number + 1).chunk_id
            return _Chunk(place, self._before_damage(record.chunk_id, following), is_user)
        header = read_header(self._file, record.position, record.chunk_id)
        if header is None or not is_of_chunk(record, header):
            raise FormatError(f"index record {number} is not that of a chunk")
        return _Chunk(place, header.next_offset, is_user)

    def damaged(self, offset: int) -> Place:
        """The damage with `offset` in it.

        Raises:
            FormatError: there is none, so that the index lacks a chunk.
        """
        damage = self._damage_with(offset)
        if damage is None:
            raise FormatError(f"the index has no chunk with offset {offset}")
        return Place(damage.position, damage.first_offset)

    def check_adjacent(self, end: int, start: int) -> None:
        """Raise FormatError unless the chunk at offset `start` follows one that ends at `end`."""
        while end != start:
            damage = self._damage_with(end)
            if damage is None:
                raise FormatError(f"the index has no chunk with offset {end}")
            end = damage.next_offset

    def _damage_with(self, offset: int) -> Damage | None:
        for damage in self._segment.damage.values():
            if damage.first_offset <= offset < damage.next_offset:
                return damage
        return None

    def _before_damage(self, offset: int, end: int) -> int:
        """Where the chunk at `offset` ends that goes on to `end`, or to damage before it."""
        starts = [at.first_offset for at in self._segment.damage.values()]
        return min((at for at in starts if offset < at < end), default=end)
