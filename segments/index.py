"""Finding a chunk by its place in an index file: one 29-byte record per chunk.

The index is derived: it is rebuilt from its segment where it is wrong, see chunk_search.py. A
record is read with one positioned read, so a search costs log2 of the number of records.
"""

from bisect import bisect_right

from segments.checksum import crc32
from segments.codec import (
    FILE_HEADER_SIZE,
    INDEX_RECORD_SIZE,
    ChunkHeader,
    IndexRecord,
    decode_index_record,
)
from segments.disk import Readable
from segments.errors import FormatError

_READ_BYTES = 1 << 17


def record_position(number: int) -> int:
    """Byte position of record `number`, counted from 0."""
    return FILE_HEADER_SIZE + number * INDEX_RECORD_SIZE


def whole_records(file_size: int) -> int:
    """How many whole records a file of `file_size` bytes holds."""
    return max(0, file_size - FILE_HEADER_SIZE) // INDEX_RECORD_SIZE


def is_of_chunk(record: IndexRecord, header: ChunkHeader) -> bool:
    """Whether a record says of a chunk, which stands where it says, what its header says."""
    said = (record.chunk_id, record.timestamp_ms, record.epoch, record.chunk_type)
    return said == (header.chunk_id, header.timestamp_ms, header.epoch, header.chunk_type)


class Index:
    """The records of one index file.

    Args:
        file: the open index file, or what it should hold.
        num_records: how many records to consider.
    """

    def __init__(self, file: Readable, num_records: int) -> None:
        self._file = file
        self.num_records = num_records

    def record(self, number: int) -> IndexRecord:
        """Record `number`, counted from 0.

        Raises:
            FormatError: the file has been cut, or cannot be read there.
            StorageError: the system refused.
        """
        raw = self._file.read(INDEX_RECORD_SIZE, record_position(number))
        if len(raw) < INDEX_RECORD_SIZE:
            raise FormatError(f"the index ends before record {number} of {self.num_records}")
        return decode_index_record(raw)

    def crc(self) -> int:
        """CRC-32 of all records.

        Raises:
            FormatError: the file has been cut, or cannot be read.
            StorageError: the system refused.
        """
        position, end, crc = FILE_HEADER_SIZE, record_position(self.num_records), 0
        while position < end:
            raw = self._file.read(min(_READ_BYTES, end - position), position)
            if not raw:
                raise FormatError(f"the index ends at byte {position}, not {end}")
            crc = crc32(raw, crc)
            position += len(raw)
        return crc

    def first_after_position(self, position: int) -> int:
        """Number of the first record for a chunk that starts after byte `position`."""
        return bisect_right(
            range(self.num_records), position, key=lambda number: self.record(number).position
        )
