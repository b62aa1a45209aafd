"""Checking stored chunks one by one, with every check there is."""

from segments import codec
from segments.checksum import crc32
from segments.codec import CHECKED_HEADER_SIZE, CHUNK_HEADER_SIZE, ChunkHeader
from segments.disk import File, Readable
from segments.errors import FormatError
from segments.format_constants import OSIRIS_SCHEME

_READ_BYTES = 1 << 20  # data sections are tested in pieces: some writers know no chunk limit


def check_chunk(
    file: File,
    size: int,
    position: int,
    expected_offset: int,
    *,
    epoch: int = 0,
    is_strict: bool = False,
) -> ChunkHeader:
    """Test the chunk at `position`: header, bounds, continuity, both checksums.

    A chunk whose header check alone fails passes if its counts agree with its entries: the
    messages are whole, and readers do not trust its filter. With `is_strict` it fails: then its
    trailer is needed as well, for what it says about publishers.

    Args:
        file: a segment file.
        size: where the valid part of the file ends, in bytes.
        position: of the chunk's header.
        expected_offset: the chunk id it must have.
        epoch: the chunk may not be of an earlier one.
        is_strict: see above.

    Raises:
        FormatError: what is wrong with it.
    """
    raw = file.read(max(0, min(CHUNK_HEADER_SIZE, size - position)), position)
    header = codec.decode_chunk_header(raw)
    if header.chunk_id != expected_offset:
        raise FormatError(f"chunk id is {header.chunk_id}, expected {expected_offset}")
    if header.epoch < epoch:
        raise FormatError(f"epoch is {header.epoch}, the chunk before it has {epoch}")
    end = position + header.total_size
    if end > size:
        raise FormatError(f"chunk ends at byte {end}, the file at {size}")
    if _data_crc(file, position + header.data_start, header.data_size) != header.data_crc:
        raise FormatError("data fails its checksum")
    if header.filter_scheme == OSIRIS_SCHEME:
        # No checksum covers the header. One whose second half was lost, and is zero, would pass:
        # no data, which has the checksum zero.
        check_entries(file, position, header)
    if is_strict:
        check_header(file, position, header, raw)
    elif not header_is_sound(file, position, header, raw):
        check_entries(file, position, header)
    return header


def header_is_sound(file: Readable, position: int, header: ChunkHeader, raw: bytes) -> bool:
    """Whether header, filter and trailer can be read and pass their checksum."""
    try:
        check_header(file, position, header, raw)
    except FormatError:
        return False
    return True


def check_header(file: Readable, position: int, header: ChunkHeader, raw: bytes) -> None:
    """Test header, filter and trailer.

    Chunks that osiris wrote carry no checksum: there the bytes that hold it are zero.

    Raises:
        UnreadableError: the device cannot read them.
        FormatError: they fail their checksum.
    """
    found = 0
    if header.filter_scheme != OSIRIS_SCHEME:
        trailer_start = position + header.data_start + header.data_size
        filter_bytes = file.read(header.filter_size, position + CHUNK_HEADER_SIZE)
        trailer = file.read(header.trailer_size, trailer_start)
        found = codec.header_check(raw[:CHECKED_HEADER_SIZE], filter_bytes, trailer)
    if found != header.header_check:
        raise FormatError("header, filter and trailer fail their checksum")


def check_entries(file: File, position: int, header: ChunkHeader) -> None:
    """Test that the entries fill the data section and agree with the header's counts.

    Raises:
        FormatError: they do not.
    """
    entries = records = 0
    for entry in codec.walk_entries(file.read(header.data_size, position + header.data_start)):
        entries += 1
        records += entry.num_records
    if (entries, records) != (header.num_entries, header.num_records):
        raise FormatError(
            f"header counts {header.num_entries} entries and {header.num_records} records, "
            f"the data holds {entries} and {records}"
        )


def _data_crc(file: File, start: int, size: int) -> int:
    crc = 0
    for offset in range(0, size, _READ_BYTES):
        crc = crc32(file.read(min(_READ_BYTES, size - offset), start + offset), crc)
    return crc
