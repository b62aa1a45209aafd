"""Finding a chunk by offset, time or place in an index file: one 29-byte record per chunk.

The index is derived: recovery rebuilds it from its segment. A record is read with one positioned
read, so a search costs log2 of the number of records.
"""

from bisect import bisect_left, bisect_right

from segments.codec import (
    FILE_HEADER_SIZE,
    INDEX_RECORD_SIZE,
    IndexRecord,
    decode_index_record,
)
from segments.disk import File
from segments.format_constants import USER


def record_position(number: int) -> int:
    """Byte position of record `number`, counted from 0."""
    return FILE_HEADER_SIZE + number * INDEX_RECORD_SIZE


def whole_records(file_size: int) -> int:
    """How many whole records a file of `file_size` bytes holds."""
    return max(0, file_size - FILE_HEADER_SIZE) // INDEX_RECORD_SIZE


class Index:
    """Searches in one index file.

    Args:
        file: the open index file.
        num_records: how many records to consider.
    """

    def __init__(self, file: File, num_records: int) -> None:
        self._file = file
        self.num_records = num_records

    def record(self, number: int) -> IndexRecord:
        """Record `number`, counted from 0."""
        return decode_index_record(self._file.read(INDEX_RECORD_SIZE, record_position(number)))

    def last_at_or_before(self, offset: int) -> IndexRecord | None:
        """The last chunk whose id is at most `offset`."""
        found = bisect_right(
            range(self.num_records), offset, key=lambda number: self.record(number).chunk_id
        )
        return self.record(found - 1) if found else None

    def first_at_or_after_time(self, timestamp_ms: int) -> IndexRecord | None:
        """The first chunk whose timestamp is at least `timestamp_ms`."""
        found = bisect_left(
            range(self.num_records),
            timestamp_ms,
            key=lambda number: self.record(number).timestamp_ms,
        )
        return self.record(found) if found < self.num_records else None

    def first_after_position(self, position: int) -> int:
        """Number of the first record for a chunk that starts after byte `position`."""
        return bisect_right(
            range(self.num_records), position, key=lambda number: self.record(number).position
        )

    def last_user_chunk(self) -> IndexRecord | None:
        """The last chunk that holds messages rather than tracking."""
        for number in range(self.num_records - 1, -1, -1):
            record = self.record(number)
            if record.chunk_type == USER:
                return record
        return None
