"""Looking through a sealed segment before it is stored: what the manifest says of it.

All of it is read once, in order, so what is wrong with it is found while it can still be told
apart from what happens on the way: each chunk is compared with its checksum and with the index.
The same pass gives the checksum of the file, and what its chunks say of publishers.
"""

from typing import NamedTuple

from segments import codec
from segments.checksum import crc32
from segments.chunk_check import header_is_sound
from segments.codec import (
    CHECKED_HEADER_SIZE,
    CHUNK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    INDEX_HEADER,
    ChunkHeader,
    IndexRecord,
    header_check,
    plain_chunk_header,
)
from segments.disk import File, read_into
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
from segments.store.manifest import StoredFile, StoredSegment
from segments.tracking import Tracking
from segments.tracking_replay import tracking_of

_PIECE_BYTES = 1 << 20


class Packed(NamedTuple):
    """A segment that can be stored.

    Attributes:
        contents: of the files that are small, by suffix.
        tracking: what is known of publishers as of its end.
    """

    stored: StoredSegment
    contents: dict[str, bytes]
    paths: dict[str, str]
    tracking: Tracking


class _Found(NamedTuple):
    """What a segment file holds: its CRC, an index that fits it, the tracking as of its end."""

    crc: int
    records: bytes
    tracking: Tracking


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
        found = _quickly(segment, file, tracking) or _thoroughly(segment, file, tracking)
    finally:
        file.close()
    contents = {INDEX_SUFFIX: found.records}
    filters = _content(segment, FILTER_SUFFIX)
    if filters is not None:
        contents[FILTER_SUFFIX] = filters
    files = {SEGMENT_SUFFIX: StoredFile(segment.size, found.crc)}
    files |= {name: StoredFile(len(what), crc32(what)) for name, what in contents.items()}
    paths = {SEGMENT_SUFFIX: segment.path()}
    keys = stored_keys(segment)
    if keys is not None:
        files[KEYS_SUFFIX], paths[KEYS_SUFFIX] = keys, segment.path(KEYS_SUFFIX)
    return Packed(stored_segment(segment, epoch, uid, files), contents, paths, found.tracking)


def stored_segment(
    segment: Segment, epoch: int, uid: str, files: dict[str, StoredFile]
) -> StoredSegment:
    """What a manifest says of a segment.

    Args:
        segment: sealed.
        epoch: of the objects' names.
        uid: of the same.
        files: that are stored, by suffix.
    """
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


class _Pieces:
    """A file that is read from its beginning to its end, into one buffer.

    Attributes:
        buffer: bytes of the file from `start` on, as many as `num_bytes`.
        crc: of all bytes that were read.
    """

    def __init__(self, file: File, size: int) -> None:
        self.buffer = bytearray(_PIECE_BYTES)
        self.start = self.num_bytes = self.crc = 0
        self._file, self._size = file, size

    def hold(self, position: int, size: int) -> bool:
        """Have these bytes in the buffer, and none before them; False where the file is shorter."""
        kept = self.start + self.num_bytes - position
        wanted = max(size, _PIECE_BYTES)
        buffer = self.buffer if wanted <= len(self.buffer) else bytearray(wanted)
        at = position - self.start
        buffer[:kept] = self.buffer[at : at + kept]
        self.buffer, self.start, self.num_bytes = buffer, position, kept
        room = min(len(buffer) - kept, self._size - position - kept)
        with memoryview(buffer) as view:
            more = view[kept : kept + room]
            got = read_into(self._file, more, position + kept)
            self.crc = crc32(more[:got], self.crc)
        self.num_bytes += got
        return self.num_bytes >= size


def _quickly(segment: Segment, file: File, tracking: Tracking) -> _Found | None:
    """Look through a segment of messages in which nothing is damaged; None for any other.

    All is read once, and little is copied.
    """
    size, position, offset = segment.size, FILE_HEADER_SIZE, segment.base_offset
    pieces = _Pieces(file, size)
    pieces.hold(0, 0)
    index, trailers = [INDEX_HEADER], []
    while position < size and not segment.damage:
        at, have = position - pieces.start, pieces.num_bytes
        if at + CHUNK_HEADER_SIZE > have:
            if not pieces.hold(position, CHUNK_HEADER_SIZE):
                return None
            at, have = 0, pieces.num_bytes
        header = plain_chunk_header(pieces.buffer, at, offset)
        if header is None:
            return None
        if at + header.total_size > have:
            if not pieces.hold(position, header.total_size):
                return None
            at = 0
        data_at = at + header.data_start
        data_end = data_at + header.data_size
        if not _is_sound(pieces.buffer, at, header):
            return None
        if header.trailer_size:
            trailer = bytes(pieces.buffer[data_end : data_end + header.trailer_size])
            trailers.append((offset, trailer))
        index.append(_record(position, header))
        position, offset = position + header.total_size, header.next_offset
    is_whole = position == size and offset == segment.next_offset
    if not is_whole or len(index) != segment.num_chunks + 1:
        return None
    found = _with_trailers(tracking, trailers)
    return None if found is None else _Found(pieces.crc, b"".join(index), found)


def _is_sound(buffer: bytearray, at: int, header: ChunkHeader) -> bool:
    """A chunk passes both of its checksums; no chunk that osiris wrote does."""
    view = memoryview(buffer)
    data_at = at + header.data_start
    end = data_at + header.data_size
    check = header_check(
        view[at : at + CHECKED_HEADER_SIZE],
        view[at + CHUNK_HEADER_SIZE : data_at],
        view[end : end + header.trailer_size],
    )
    return check == header.header_check and crc32(view[data_at:end]) == header.data_crc


def _with_trailers(tracking: Tracking, trailers: list[tuple[int, bytes]]) -> Tracking | None:
    """The tracking after chunks, by their offsets; None if one cannot be read."""
    found = Tracking.from_snapshot(tracking.snapshot_blocks())
    try:
        for chunk_id, trailer in trailers:
            found.apply(codec.decode_blocks(trailer), chunk_id)
    except FormatError:
        return None
    return found


def _thoroughly(segment: Segment, file: File, tracking: Tracking) -> _Found:
    """Look through a segment whatever is in it; damage that is found is known from then on."""
    records: list[bytes] = []
    is_sound = True
    for position, header in walk_headers(segment, file):
        data = file.read(header.data_size, position + header.data_start)
        if crc32(data) != header.data_crc:
            segment.mark_damaged(file, position, header.chunk_id)
            continue
        raw = file.read(CHUNK_HEADER_SIZE, position)
        is_sound = is_sound and header_is_sound(file, position, header, raw)
        records.append(_record(position, header))
        if header.trailer_size or header.chunk_type:
            tracking = _followed(tracking, file, position, header)
    return _Found(_crc(segment, file), _index(segment, records, is_sound=is_sound), tracking)


def _crc(segment: Segment, file: File) -> int:
    crc = 0
    for start in range(0, segment.size, _PIECE_BYTES):
        wanted = min(_PIECE_BYTES, segment.size - start)
        content = file.read(wanted, start)
        if len(content) < wanted:
            reason = f"it ends there, expected {segment.size} bytes"
            raise CorruptError(segment.path(), start + len(content), reason)
        crc = crc32(content, crc)
    return crc


def _record(position: int, header: ChunkHeader) -> bytes:
    return codec.encode_index_record(
        IndexRecord(header.chunk_id, header.timestamp_ms, header.epoch, position, header.chunk_type)
    )


def _followed(tracking: Tracking, file: File, position: int, header: ChunkHeader) -> Tracking:
    """With what a chunk says; what cannot be read is left out, as when the log is opened."""
    try:
        blocks = tracking_of(file, position, header)
    except FormatError:
        return tracking
    if header.chunk_type == TRACKING_SNAPSHOT:
        return Tracking.from_snapshot(blocks)
    tracking.apply(blocks, header.chunk_id)
    return tracking


def _index(segment: Segment, records: list[bytes], *, is_sound: bool) -> bytes:
    """The index that is stored: with damage the one that is here, as what it knows is lost."""
    if is_sound and not segment.damage and len(records) == segment.num_chunks:
        return INDEX_HEADER + b"".join(records)
    content = _content(segment, INDEX_SUFFIX) or b""
    size = record_position(segment.num_chunks)
    if len(content) < size:
        reason = f"it ends there, expected {size} bytes"
        raise CorruptError(segment.path(INDEX_SUFFIX), len(content), reason)
    return content[:size]


def _content(segment: Segment, suffix: str) -> bytes | None:
    """The content of a file beside it; None where there is none."""
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


def stored_keys(segment: Segment) -> StoredFile | None:
    """What a manifest says of its key index as it is now; None where there is none.

    Raises:
        StorageError: the system refused.
    """
    try:
        file = segment.open_beside(KEYS_SUFFIX)
    except StorageError as error:
        if error.is_missing:
            return None
        raise
    try:
        size, crc = file.size(), 0
        for start in range(0, size, _PIECE_BYTES):
            crc = crc32(file.read(_PIECE_BYTES, start), crc)
    finally:
        file.close()
    return StoredFile(size, crc)
