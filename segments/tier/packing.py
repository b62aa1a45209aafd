"""Looking through a sealed segment before it is stored: what the manifest says of it.

All of it is read once, in order, so what is wrong with it is found while it can still be told
apart from what happens on the way: each chunk is compared with its checksum and with the index.
The same pass gives the checksum of the file, and what its chunks say of publishers.
"""

from typing import NamedTuple

from segments import codec
from segments.checksum import crc32
from segments.codec import INDEX_HEADER, ChunkHeader, IndexRecord
from segments.disk import File
from segments.errors import CorruptError, FormatError, StorageError
from segments.format_constants import TRACKING_SNAPSHOT
from segments.index import record_position
from segments.segment import (
    FILTER_SUFFIX,
    INDEX_SUFFIX,
    KEYS_SUFFIX,
    SEGMENT_SUFFIX,
    Segment,
    walk_headers,
)
from segments.tier.manifest import StoredFile, StoredSegment
from segments.tracking import Tracking
from segments.tracking_replay import tracking_of

_WINDOW_BYTES = 1 << 20


class Packed(NamedTuple):
    """A segment that can be stored.

    Attributes:
        stored: what the manifest says of it.
        contents: of the files that are small, by suffix.
        paths: of the others.
        tracking: what is known of publishers as of its end.
    """

    stored: StoredSegment
    contents: dict[str, bytes]
    paths: dict[str, str]
    tracking: Tracking


class _Window:
    """A file that is read in large pieces, from its beginning to its end; see disk.Readable.

    Attributes:
        crc: of all bytes so far.
    """

    def __init__(self, file: File, size: int) -> None:
        self._file, self._size = file, size
        self._start = self._end = self.crc = 0
        self._content = b""

    def read(self, size: int, position: int) -> bytes:
        """Bytes of the file; none before those that were asked for last, but in the same piece."""
        end = min(position + size, self._size)
        if position < self._start:
            return self._file.read(end - position, position)
        if end > self._end:
            self._advance(position, end)
        return self._content[position - self._start : end - self._start]

    def _advance(self, position: int, end: int) -> None:
        parts = [self._content[position - self._start :]] if position < self._end else []
        start = position if parts else self._end
        while self._end < end:
            part = self._file.read(min(_WINDOW_BYTES, self._size - self._end), self._end)
            if not part:
                break  # it was cut: whoever reads finds that
            self.crc = crc32(part, self.crc)
            self._end += len(part)
            parts.append(part)
        self._content, self._start = b"".join(parts), start

    def finish(self) -> int:
        """Read what is left; the CRC of the file, as far as it is there."""
        self._content = b""
        while self._end < self._size:
            before = self._end
            self._advance(self._end, min(self._end + _WINDOW_BYTES, self._size))
            if self._end == before:
                break
        return self.crc

    @property
    def num_read(self) -> int:
        """Bytes that were there."""
        return self._end


def pack(segment: Segment, epoch: int, uid: str, tracking: Tracking) -> Packed:
    """Look through a sealed segment. May run in a thread; nothing is written.

    Args:
        segment: its files are here.
        epoch: of the objects' names.
        uid: of the same.
        tracking: what is known of publishers as of its beginning; not to be used any more.

    Raises:
        CorruptError: it is not what it was, and the damage is not known yet.
        StorageError: the system refused.
    """
    file = segment.open()
    try:
        window = _Window(file, segment.size)
        index, tracking = _look_through(segment, window, tracking)
        crc = window.finish()
    finally:
        file.close()
    if window.num_read < segment.size:
        reason = f"it ends there, expected {segment.size} bytes"
        raise CorruptError(segment.path(), window.num_read, reason)
    contents = {INDEX_SUFFIX: _index(segment, index)}
    filters = _content(segment, FILTER_SUFFIX)
    if filters is not None:
        contents[FILTER_SUFFIX] = filters
    files = {SEGMENT_SUFFIX: StoredFile(segment.size, crc)}
    files |= {name: StoredFile(len(what), crc32(what)) for name, what in contents.items()}
    paths = {SEGMENT_SUFFIX: segment.path()}
    keys = _keys(segment)
    if keys is not None:
        files[KEYS_SUFFIX], paths[KEYS_SUFFIX] = keys, segment.path(KEYS_SUFFIX)
    return Packed(_stored(segment, epoch, uid, files), contents, paths, tracking)


def _stored(segment: Segment, epoch: int, uid: str, files: dict[str, StoredFile]) -> StoredSegment:
    return StoredSegment(
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        num_chunks=segment.num_chunks,
        first_timestamp_ms=segment.first_timestamp_ms,
        last_timestamp_ms=segment.last_timestamp_ms,
        last_chunk_id=segment.last_chunk_id,
        epoch=epoch,
        uid=uid,
        files=files,
        damage=tuple(segment.damage[at] for at in sorted(segment.damage)),
    )


def _look_through(
    segment: Segment, window: _Window, tracking: Tracking
) -> tuple[list[bytes], Tracking]:
    """Test each chunk; gives the records of an index that fits, and the tracking as of the end."""
    records: list[bytes] = []
    for position, header in walk_headers(segment, window):
        data = window.read(header.data_size, position + header.data_start)
        if crc32(data) != header.data_crc:
            segment.mark_damaged(window, position, header.chunk_id)
            continue
        records.append(_record(position, header))
        if header.trailer_size or header.chunk_type:
            tracking = _followed(tracking, window, position, header)
    return records, tracking


def _record(position: int, header: ChunkHeader) -> bytes:
    return codec.encode_index_record(
        IndexRecord(header.chunk_id, header.timestamp_ms, header.epoch, position, header.chunk_type)
    )


def _followed(tracking: Tracking, window: _Window, position: int, header: ChunkHeader) -> Tracking:
    """With what a chunk says; what cannot be read is left out, as when the log is opened."""
    try:
        blocks = tracking_of(window, position, header)
    except FormatError:
        return tracking
    if header.chunk_type == TRACKING_SNAPSHOT:
        return Tracking.from_snapshot(blocks)
    tracking.apply(blocks, header.chunk_id)
    return tracking


def _index(segment: Segment, records: list[bytes]) -> bytes:
    """The index that is stored: with damage the one that is here, as what it knows is lost."""
    if not segment.damage and len(records) == segment.num_chunks:
        return INDEX_HEADER + b"".join(records)
    content = _content(segment, INDEX_SUFFIX) or b""
    size = record_position(segment.num_chunks)
    if len(content) < size:
        reason = f"it ends there, expected {size} bytes"
        raise CorruptError(segment.path(INDEX_SUFFIX), len(content), reason)
    return content[:size]


def _content(segment: Segment, suffix: str) -> bytes | None:
    """Of a file beside it; None where there is none."""
    try:
        file = segment.open_beside(suffix)
    except StorageError as error:
        if error.is_missing:
            return None
        raise
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def _keys(segment: Segment) -> StoredFile | None:
    try:
        file = segment.open_beside(KEYS_SUFFIX)
    except StorageError as error:
        if error.is_missing:
            return None
        raise
    try:
        size, crc = file.size(), 0
        for start in range(0, size, _WINDOW_BYTES):
            crc = crc32(file.read(_WINDOW_BYTES, start), crc)
    finally:
        file.close()
    return StoredFile(size, crc)
