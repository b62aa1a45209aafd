"""Where the chunks of a segment begin, by their number.

From the filter index where it is in memory; else from the index file, of which only what is needed
is read. What stands there is compared with each chunk that is read, see search.py.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import overload

from segments.codec import INDEX_FIELDS, INDEX_RECORD_SIZE
from segments.disk import Readable
from segments.errors import FormatError
from segments.index import record_position
from segments.segment import Segment

_BLOCK = 512  # records that are read at once
_MOST_BLOCKS = 64  # that are kept


class _Records:
    """Records of an index file, read in blocks.

    Args:
        file: the open index file, or what it should hold.
        num_records: how many there are.
    """

    def __init__(self, file: Readable, num_records: int) -> None:
        self.num_records = num_records
        self._file = file
        self._blocks: dict[int, bytes] = {}

    def block(self, number: int) -> bytes:
        """So many records at once, by the number of the block.

        Raises:
            FormatError: the file has been cut, or cannot be read there.
            StorageError: the system refused.
        """
        found = self._blocks.get(number)
        if found is None:
            if len(self._blocks) >= _MOST_BLOCKS:
                self._blocks.clear()
            found = self._blocks[number] = self._read(number * _BLOCK)
        return found

    def _read(self, first: int) -> bytes:
        count = min(_BLOCK, self.num_records - first)
        raw = self._file.read(count * INDEX_RECORD_SIZE, record_position(first))
        if len(raw) < count * INDEX_RECORD_SIZE:
            raise FormatError(f"the index ends before record {first + count}")
        return raw


class _Column(Sequence[int]):
    """One field of all records."""

    def __init__(self, records: _Records, field: str) -> None:
        self._records = records
        self._layout = INDEX_FIELDS[field]

    def __len__(self) -> int:
        return self._records.num_records

    @overload
    def __getitem__(self, number: int) -> int: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[int]: ...
    def __getitem__(self, number: int | slice) -> int | Sequence[int]:
        if isinstance(number, slice):
            return self._some(*number.indices(len(self)))
        block, place = divmod(number, _BLOCK)
        found: int
        (found,) = self._layout.unpack_from(self._records.block(block), place * INDEX_RECORD_SIZE)
        return found

    def _some(self, first: int, behind: int, _step: int) -> Sequence[int]:
        found: list[int] = []
        while first < behind:
            block, place = divmod(first, _BLOCK)
            number = min(_BLOCK - place, behind - first)
            at = place * INDEX_RECORD_SIZE
            raw = self._records.block(block)[at : at + number * INDEX_RECORD_SIZE]
            found += [value for (value,) in self._layout.iter_unpack(raw)]
            first += number
        return found


class ChunkTable:
    """Positions and offsets of the chunks of a segment.

    Args:
        is_certain: they are right, and none is missing but for damage.

    Attributes:
        num_chunks: how many there are at the moment.
        is_sparse: what follows a chunk may be damage, or not known.
    """

    def __init__(
        self,
        segment: Segment,
        positions: Sequence[int],
        chunk_ids: Sequence[int],
        *,
        is_certain: bool,
        is_sparse: bool = False,
    ) -> None:
        self.positions = positions
        self.chunk_ids = chunk_ids
        self.is_certain = is_certain
        self.num_chunks = len(positions)
        self.is_sparse = is_sparse
        self._size, self._next_offset = segment.size, segment.next_offset

    @classmethod
    def of_file(
        cls,
        segment: Segment,
        file: Readable,
        num_records: int,
        *,
        is_walked: bool = False,
        is_certain: bool = False,
    ) -> "ChunkTable":
        """From the index file; or what it should hold, as the headers say, if `is_walked`."""
        records = _Records(file, num_records)
        positions, chunk_ids = _Column(records, "position"), _Column(records, "chunk_id")
        is_certain = is_certain or is_walked
        return cls(segment, positions, chunk_ids, is_certain=is_certain, is_sparse=is_walked)

    def end(self, ordinal: int) -> int:
        """Where a chunk ends in the file, if there is no damage behind it."""
        return self.positions[ordinal + 1] if ordinal + 1 < self.num_chunks else self._size

    def next_offset(self, ordinal: int) -> int:
        """The offset behind a chunk, if there is no damage there."""
        return self.chunk_ids[ordinal + 1] if ordinal + 1 < self.num_chunks else self._next_offset

    def bounds(self, span: range) -> tuple[Sequence[int], Sequence[int]]:
        """Positions and offsets of chunks that follow each other, then where the last one ends."""
        positions = self.positions[span.start : span.stop]
        ids = self.chunk_ids[span.start : span.stop]
        return [*positions, self.end(span[-1])], [*ids, self.next_offset(span[-1])]

    def holding(self, offset: int) -> int:
        """Number of the chunk with an offset, or of the one before it, 0 at least."""
        return max(0, bisect_right(self.chunk_ids, offset, 0, self.num_chunks) - 1)

    def at(self, position: int) -> int:
        """Number of the first chunk that begins at a position or behind it."""
        return bisect_left(self.positions, position, 0, self.num_chunks)
