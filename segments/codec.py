"""The `struct` twins of `layout.py`: what the hot path and recovery read and write bytes with.

Every reader checks magic, version and sizes before it allocates or trusts anything, and raises
FormatError with what it found. Nothing here knows files or positions; callers add those.
"""

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from segments.checksum import crc32
from segments.errors import FormatError, VersionError
from segments.format_constants import (
    CHECKPOINT_MAGIC,
    CHUNK_MAGIC,
    DAMAGE_MAGIC,
    FILE_VERSION,
    FILTER_INDEX_MAGIC,
    FILTER_INDEX_VERSION,
    FILTER_VALUE,
    INDEX_MAGIC,
    JOURNAL_DELTA,
    JOURNAL_SNAPSHOT,
    KEY_TABLE_MAGIC,
    KEY_TABLE_VERSION,
    MIN_FILTER_SIZE,
    OFFSET,
    SEGMENT_MAGIC,
    SEQUENCE,
    SUB_BATCH_BIT,
    TIMESTAMP,
    TRACKING_MAGIC,
    TRACKING_SNAPSHOT,
    USER,
)

FILE_HEADER_SIZE = 8
_MAX_VERSION = 99  # above it the bytes are damaged, not of a later program
MAX_REFERENCE_SIZE = 255  # one length byte; osiris once wrote 256 as 0 and could not read it back

_FILE_HEADER = struct.Struct(">4sI")
SEGMENT_HEADER = _FILE_HEADER.pack(SEGMENT_MAGIC, FILE_VERSION)
INDEX_HEADER = _FILE_HEADER.pack(INDEX_MAGIC, FILE_VERSION)
TRACKING_HEADER = _FILE_HEADER.pack(TRACKING_MAGIC, FILE_VERSION)
DAMAGE_HEADER = _FILE_HEADER.pack(DAMAGE_MAGIC, FILE_VERSION)
CHECKPOINT_HEADER = _FILE_HEADER.pack(CHECKPOINT_MAGIC, FILE_VERSION)
FILTER_INDEX_HEADER = _FILE_HEADER.pack(FILTER_INDEX_MAGIC, FILTER_INDEX_VERSION)
KEY_TABLE_HEADER = _FILE_HEADER.pack(KEY_TABLE_MAGIC, KEY_TABLE_VERSION)
OLD_KEY_TABLE_HEADER = _FILE_HEADER.pack(KEY_TABLE_MAGIC, 1)  # those are still read


def check_file_header(raw: bytes, expected: bytes, *, is_sound: bool = False) -> None:
    """Check the first 8 bytes of a file against one of the *_HEADER constants.

    Args:
        raw: the beginning of the file.
        expected: what it should be.
        is_sound: what follows passes the checksums of the expected version. Then another version
            in the header is damage, which costs nothing; see layout.py.

    Raises:
        FormatError: other magic; VersionError: a version that this program does not know.
    """
    if len(raw) < FILE_HEADER_SIZE:
        raise FormatError(f"file header is {len(raw)} bytes long, expected {FILE_HEADER_SIZE}")
    magic, version = _FILE_HEADER.unpack_from(raw)
    known_magic, known = _FILE_HEADER.unpack(expected)
    if magic != known_magic:
        raise FormatError(f"file begins with {magic!r}, expected {known_magic!r}")
    if is_sound:
        return
    if version > _MAX_VERSION:
        raise FormatError(f"its format version is {version}, which no program has written")
    if version != known:
        raise VersionError(f"its format version is {version}, this program knows {known}")


class ChunkHeader(NamedTuple):
    """The 48 bytes before a chunk's filter, data and trailer; fields as in layout.CHUNK_HEADER."""

    chunk_type: int
    num_entries: int
    num_records: int
    timestamp_ms: int
    epoch: int
    chunk_id: int
    data_crc: int
    data_size: int
    trailer_size: int
    filter_size: int
    filter_scheme: int
    header_check: int

    @property
    def next_offset(self) -> int:
        """Offset of the record after this chunk's last one."""
        return self.chunk_id + self.num_records

    @property
    def data_start(self) -> int:
        """Byte position of the data section, from the header's first byte."""
        return CHUNK_HEADER_SIZE + self.filter_size

    @property
    def total_size(self) -> int:
        """Bytes of the whole chunk: header, filter, data, trailer."""
        return CHUNK_HEADER_SIZE + self.filter_size + self.data_size + self.trailer_size


_CHUNK_HEADER = struct.Struct(">BBHIqQQIIIBBH")
_CHUNK_FIELDS = struct.Struct(">xBHIqQQIIIBBH")  # the same, its magic read on its own
_HEADER_CHECK = struct.Struct(">H")
CHUNK_HEADER_SIZE = _CHUNK_HEADER.size
CHECKED_HEADER_SIZE = 46  # the header without its own check


def encode_chunk_header(header: ChunkHeader) -> bytes:
    """The 48 bytes of `header`."""
    return _CHUNK_HEADER.pack(CHUNK_MAGIC, *header)


def decode_chunk_header(raw: bytes | memoryview, position: int = 0) -> ChunkHeader:
    """Read the 48 bytes at `position` of `raw`.

    Raises:
        FormatError: too short, or a field has a value that no writer produces.
    """
    if len(raw) - position < CHUNK_HEADER_SIZE:
        raise FormatError(
            f"chunk header is {len(raw) - position} bytes long, expected {CHUNK_HEADER_SIZE}"
        )
    if raw[position] != CHUNK_MAGIC:
        raise FormatError(f"chunk begins with {raw[position]:#04x}, expected {CHUNK_MAGIC:#04x}")
    header = ChunkHeader._make(_CHUNK_FIELDS.unpack_from(raw, position))
    fault = _header_fault(header)
    if fault:
        raise FormatError(fault)
    return header


def plain_chunk_header(raw: bytes | bytearray, position: int, chunk_id: int) -> ChunkHeader | None:
    """The header at `position` if it is that of a sound chunk of messages; faster, and no more.

    Args:
        raw: has at least a header's bytes there.
        position: of the header.
        chunk_id: that it has to have.
    """
    header = ChunkHeader._make(_CHUNK_FIELDS.unpack_from(raw, position))
    is_plain = (
        raw[position] == CHUNK_MAGIC
        and header.chunk_type == USER
        and header.chunk_id == chunk_id
        and 0 < header.num_entries <= header.num_records
        and not 0 < header.filter_size < MIN_FILTER_SIZE
    )
    return header if is_plain else None


def _header_fault(header: ChunkHeader) -> str | None:
    if not 0 < header.num_entries <= header.num_records:
        return f"chunk counts {header.num_entries} entries and {header.num_records} records"
    if 0 < header.filter_size < MIN_FILTER_SIZE:
        return f"filter size is {header.filter_size}, expected 0 or {MIN_FILTER_SIZE} to 255"
    if header.chunk_type == USER:
        return None
    if header.chunk_type > TRACKING_SNAPSHOT:
        return f"chunk type is {header.chunk_type}, expected 0, 1 or 2"
    if header.num_records != 1 or header.filter_size or header.trailer_size:
        return "tracking chunk is not a single entry without filter and trailer"
    return None


def header_check(
    checked_header: bytes | memoryview,
    filter_bytes: bytes | memoryview,
    trailer: bytes | memoryview,
) -> int:
    """Low half of the CRC-32 over what the data checksum leaves out.

    Args:
        checked_header: the first 46 bytes of the header.
        filter_bytes: the chunk's filter, possibly empty.
        trailer: the chunk's trailer, possibly empty.
    """
    return crc32(trailer, crc32(filter_bytes, crc32(checked_header))) & 0xFFFF


def append_header_check(checked_header: bytes, check: int) -> bytes:
    """The whole header, from its first 46 bytes and its check."""
    return checked_header + _HEADER_CHECK.pack(check)


class IndexRecord(NamedTuple):
    """One chunk in an index file; fields as in layout.INDEX_RECORD."""

    chunk_id: int
    timestamp_ms: int
    epoch: int
    position: int
    chunk_type: int


_INDEX_RECORD = struct.Struct(">QqQIB")
INDEX_RECORD_SIZE = _INDEX_RECORD.size
# One field of a record alone, as long as the record.
INDEX_FIELDS = {"chunk_id": struct.Struct(">Q21x"), "position": struct.Struct(">24xIx")}


def encode_index_record(record: IndexRecord) -> bytes:
    """The 29 bytes of `record`."""
    return _INDEX_RECORD.pack(*record)


def decode_index_record(raw: bytes, position: int = 0) -> IndexRecord:
    """Read the 29 bytes at `position`; the caller made sure that they are there."""
    return IndexRecord._make(_INDEX_RECORD.unpack_from(raw, position))


class Entry(NamedTuple):
    """Where one entry stands in a data section.

    Attributes:
        start: first byte of its length or sub-batch head.
        body: first byte of its message, or of the sub-batch's compressed body.
        end: first byte after it.
        num_records: 1, or the record count of a sub-batch.
        compression: None for a simple entry, else the sub-batch's compression code.
        uncompressed_size: of a sub-batch's body; of a simple entry its size.
    """

    start: int
    body: int
    end: int
    num_records: int
    compression: int | None
    uncompressed_size: int


_LENGTH = struct.Struct(">I")
_SUB_BATCH = struct.Struct(">BHII")
SUB_BATCH_HEAD_SIZE = _SUB_BATCH.size
_RUN = 32  # messages of one size before more are expected
_SUB_BATCH_FLAG = SUB_BATCH_BIT << 24


def walk_entries(data: bytes | memoryview) -> Iterator[Entry]:
    """Yield the entries of a data section in order.

    Raises:
        FormatError: an entry reaches beyond the section.
    """
    position, end = 0, len(data)
    while position < end:
        entry = _entry_at(data, position, end)
        if entry.end > end:
            raise FormatError(f"entry at byte {position} ends at {entry.end}, the data at {end}")
        yield entry
        position = entry.end


def _entry_at(data: bytes | memoryview, position: int, end: int) -> Entry:
    if data[position] & SUB_BATCH_BIT:
        body = position + SUB_BATCH_HEAD_SIZE
        if body > end:
            raise FormatError(f"sub-batch head at byte {position} is cut off")
        flags, records, full_size, size = _SUB_BATCH.unpack_from(data, position)
        return Entry(position, body, body + size, records, (flags >> 4) & 7, full_size)
    if position + _LENGTH.size > end:
        raise FormatError(f"entry length at byte {position} is cut off")
    (size,) = _LENGTH.unpack_from(data, position)
    body = position + _LENGTH.size
    return Entry(position, body, body + size, 1, None, size)


def simple_bodies(data: bytes) -> list[bytes] | None:
    """The messages of a data section without sub-batches; None when it has some.

    A quarter of the cost of `walk_entries`, for callers that read every message.

    Raises:
        FormatError: an entry reaches beyond the section.
    """
    bodies = []
    position, end = 0, len(data)
    unpack = _LENGTH.unpack_from
    try:
        while position < end:
            (size,) = unpack(data, position)
            if size & _SUB_BATCH_FLAG:
                return None
            start = position + 4
            position = start + size
            bodies.append(data[start:position])
    except struct.error:
        raise FormatError(f"entry length at byte {position} is cut off") from None
    if position > end:
        raise FormatError(f"the last entry ends at byte {position}, the data at {end}")
    return bodies


def simple_ends(data: bytes | memoryview, most: int = 1 << 32) -> list[int] | None:
    """Where each message of a data section without sub-batches ends; None when it has some.

    Each begins 4 bytes behind the end of the one before. For callers that look at few of them.
    Where many messages of one size follow each other, their lengths are compared all at once.

    Args:
        data: the section.
        most: so many messages are enough: what follows is not looked at, but for a few.

    Raises:
        FormatError: an entry reaches beyond the section.
    """
    ends: list[int] = []
    position, end, expected = 0, len(data), _RUN
    unpack, append = _LENGTH.unpack_from, ends.append
    with suppress(struct.error):
        while len(ends) < most:
            begin = position
            for _ in range(_RUN):
                position += 4 + unpack(data, position)[0]  # a sub-batch leads beyond any section
                append(position)
            stride = position - ends[-2]
            if position - begin == _RUN * stride:
                count = _equal_lengths(data, position, stride - 4, expected)
                expected = 4 * expected if count == expected else _RUN
                last = position + count * stride
                ends.extend(range(position + stride, last + 1, stride))
                position = last
    if position > end:
        if data[ends[-2] if len(ends) > 1 else 0] & SUB_BATCH_BIT:
            return None
        raise FormatError(f"the last entry ends at byte {position}, the data at {end}")
    if position < end and len(ends) < most:
        raise FormatError(f"entry length at byte {position} is cut off")
    return ends


def _equal_lengths(data: bytes | memoryview, position: int, size: int, most: int) -> int:
    """How many messages of one size, at most so many, follow each other from a position on."""
    count, stride = most, 4 + size
    for number, byte in enumerate(_LENGTH.pack(size)):
        lane = bytes(data[position + number : position + most * stride : stride])
        count = min(count, len(lane) - len(lane.lstrip(bytes((byte,)))))
    return count


class Block(NamedTuple):
    """One tracking block: its kind, the id it is about, its value.

    `chunk_id` is only present in the sequences of a snapshot.
    """

    kind: int
    id: bytes
    value: int
    chunk_id: int | None = None


_UNSIGNED, _SIGNED = struct.Struct(">Q"), struct.Struct(">q")
_TRAILER_KINDS = (SEQUENCE, OFFSET, TIMESTAMP, FILTER_VALUE)
_SNAPSHOT_KINDS = (SEQUENCE, OFFSET, TIMESTAMP)


def encode_blocks(blocks: Iterable[Block]) -> bytes:
    """Blocks back to back, as in a trailer (no chunk ids) or a snapshot (sequences have one).

    Raises:
        ValueError: an id is longer than 255 bytes, or empty where it may not be.
    """
    parts = []
    for kind, name, value, chunk_id in blocks:
        if len(name) > MAX_REFERENCE_SIZE or not (name or kind == FILTER_VALUE):
            raise ValueError(f"tracking id is {len(name)} bytes long, expected 1 to 255")
        parts.append(bytes((kind, len(name))) + name)
        if chunk_id is not None:
            parts.append(_UNSIGNED.pack(chunk_id))
        parts.append((_SIGNED if kind == TIMESTAMP else _UNSIGNED).pack(value))
    return b"".join(parts)


def decode_blocks(raw: bytes, *, snapshot: bool = False) -> list[Block]:
    """The blocks that fill `raw` to its last byte.

    Raises:
        FormatError: unknown kind, or the last block is cut off.
    """
    blocks = []
    position, end = 0, len(raw)
    kinds = _SNAPSHOT_KINDS if snapshot else _TRAILER_KINDS
    while position < end:
        kind = raw[position]
        if kind not in kinds:
            raise FormatError(f"tracking block kind is {kind}, expected one of {kinds}")
        name_end = position + 2 + raw[position + 1] if position + 1 < end else end + 1
        with_chunk = snapshot and kind == SEQUENCE
        block_end = name_end + (16 if with_chunk else 8)
        if block_end > end:
            raise FormatError(f"tracking block at byte {position} is cut off")
        name = raw[position + 2 : name_end]
        chunk_id = _UNSIGNED.unpack_from(raw, name_end)[0] if with_chunk else None
        number = _SIGNED if kind == TIMESTAMP else _UNSIGNED
        blocks.append(Block(kind, name, number.unpack_from(raw, block_end - 8)[0], chunk_id))
        position = block_end
    return blocks


def find_block(trailer: bytes, head: bytes, start: int = 0) -> tuple[int, int] | None:
    """Where the first block of a trailer is that begins in a way, and how many are before it.

    Args:
        trailer: the trailer.
        head: kind, size of the id and id, as they are stored.
        start: where to begin; a block begins there.
    """
    at, number = start, 0
    found = trailer.find(head, start)
    while found >= 0:
        while at < found:
            at += 10 + trailer[at + 1] if at + 1 < len(trailer) else 1
            number += 1
        if at == found:
            return at, number
        found = trailer.find(head, at)  # that one is within a block, as others there would be
    return None


def lists_values(trailer: bytes) -> bool:
    """Whether a trailer lists filter values; they are its last blocks."""
    at, end = 0, len(trailer)
    while at + 1 < end and trailer[at] != FILTER_VALUE:
        at += 10 + trailer[at + 1]
    return at + 1 < end


def lists_value(trailer: bytes, value: bytes) -> bool:
    """Whether a trailer lists a filter value, as trailers have it."""
    return find_block(trailer, bytes((FILTER_VALUE, len(value))) + value) is not None


class JournalRecord(NamedTuple):
    """One record of a tracking journal; fields as in layout.JOURNAL_RECORD."""

    kind: int
    next_offset: int
    body: bytes


_JOURNAL_CRC = struct.Struct(">I")
_JOURNAL_HEAD = struct.Struct(">IBQ")
_JOURNAL_HEAD_SIZE = _JOURNAL_CRC.size + _JOURNAL_HEAD.size


def encode_journal_record(record: JournalRecord) -> bytes:
    """The bytes of `record`, its checksum first."""
    rest = _JOURNAL_HEAD.pack(len(record.body), record.kind, record.next_offset) + record.body
    return _JOURNAL_CRC.pack(crc32(rest)) + rest


def decode_journal(raw: bytes) -> tuple[list[JournalRecord], int]:
    """The whole records at the start of `raw`, and the size of what they take up.

    A record that is cut off or fails its checksum ends the list; so does anything after it.
    """
    records: list[JournalRecord] = []
    position = 0
    while position + _JOURNAL_HEAD_SIZE <= len(raw):
        (crc,) = _JOURNAL_CRC.unpack_from(raw, position)
        size, kind, next_offset = _JOURNAL_HEAD.unpack_from(raw, position + _JOURNAL_CRC.size)
        body = position + _JOURNAL_HEAD_SIZE
        end = body + size
        if end > len(raw) or kind not in (JOURNAL_DELTA, JOURNAL_SNAPSHOT):
            break
        if crc32(raw[position + _JOURNAL_CRC.size : end]) != crc:
            break
        records.append(JournalRecord(kind, next_offset, raw[body:end]))
        position = end
    return records, position


class Damage(NamedTuple):
    """A range of a segment that readers step over, and the offsets that were lost with it.

    `first_offset` and `next_offset` bound the lost offsets; they are equal where nothing but
    bytes after the last whole chunk was lost.
    """

    position: int
    end: int
    first_offset: int
    next_offset: int


_DAMAGE = struct.Struct(">QQQQ")
_DAMAGE_SIZE = _DAMAGE.size + _LENGTH.size


def encode_damage(ranges: Iterable[Damage]) -> bytes:
    """A whole damage file."""
    parts = [DAMAGE_HEADER]
    for damage in ranges:
        raw = _DAMAGE.pack(*damage)
        parts += [raw, _LENGTH.pack(crc32(raw))]
    return b"".join(parts)


def decode_damage(raw: bytes) -> list[Damage]:
    """The ranges in a damage file.

    Raises:
        FormatError: wrong header, cut off, or a failed checksum.
    """
    first = raw[FILE_HEADER_SIZE:][:_DAMAGE_SIZE]
    is_sound = len(first) == _DAMAGE_SIZE and first[-4:] == _LENGTH.pack(crc32(first[:-4]))
    check_file_header(raw, DAMAGE_HEADER, is_sound=is_sound)
    ranges = []
    for position in range(FILE_HEADER_SIZE, len(raw), _DAMAGE_SIZE):
        if position + _DAMAGE_SIZE > len(raw):
            raise FormatError("the last damage record is cut off")
        (crc,) = _LENGTH.unpack_from(raw, position + _DAMAGE.size)
        if crc32(raw[position : position + _DAMAGE.size]) != crc:
            raise FormatError("a damage record fails its checksum")
        ranges.append(Damage._make(_DAMAGE.unpack_from(raw, position)))
    return ranges


class Checkpoint(NamedTuple):
    """How much of a stream is known to be on the device; fields as in layout.CHECKPOINT."""

    first_offset: int
    segment: int
    position: int
    num_chunks: int
    next_offset: int
    epoch: int
    has_tracking: bool


_CHECKPOINT = struct.Struct(">QQQQQQ?")
_CHECKPOINT_SIZE = FILE_HEADER_SIZE + _CHECKPOINT.size + _LENGTH.size


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """A whole checkpoint file."""
    raw = _CHECKPOINT.pack(*checkpoint)
    return CHECKPOINT_HEADER + raw + _LENGTH.pack(crc32(raw))


def decode_checkpoint(raw: bytes) -> Checkpoint:
    """The checkpoint in a file.

    Raises:
        FormatError: wrong header or size, or a failed checksum.
    """
    has_size = len(raw) == _CHECKPOINT_SIZE
    body, end = raw[FILE_HEADER_SIZE : -_LENGTH.size], raw[-_LENGTH.size :]
    is_sound = has_size and _LENGTH.unpack(end) == (crc32(body),)
    check_file_header(raw, CHECKPOINT_HEADER, is_sound=is_sound)
    if not has_size:
        raise FormatError(f"the file is {len(raw)} bytes long, expected {_CHECKPOINT_SIZE}")
    if not is_sound:
        raise FormatError("it fails its checksum")
    return Checkpoint._make(_CHECKPOINT.unpack(body))
