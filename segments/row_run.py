"""Some messages of many chunks, chosen by the chunks' columns: nothing else of their data is read.

The trailer of a chunk and the head of the next stand side by side, so chunks that follow each other
take one read each, and one more for each group of messages that may be wanted. What cannot be
decided so ends a run: chunks without columns, such that are not sound or take too long, tracking,
damage. These are left to who reads whole chunks.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from segments import codec
from segments.codec import CHUNK_HEADER_SIZE, ChunkHeader
from segments.columns import Columns, has_columns, messages_of, sound_columns
from segments.disk import Readable
from segments.errors import FormatError, StorageError
from segments.window import HEAD_READ

_CHUNK_UNITS = 50  # of work for each chunk, some 20 µs; see selector.Cost


class Screen(Protocol):
    """Says which messages of a chunk are opened."""

    def screening_units(self, num_records: int) -> int:
        """How much work `rows` may be for a chunk of so many messages."""

    def rows(self, columns: Columns) -> int | None:
        """See `Columns.rows`; None where columns do not tell."""


class OpenedRows(NamedTuple):
    """Messages of some chunks.

    Attributes:
        data: the messages, each with 4 bytes of length before it.
        ends: where each ends in `data`.
        offsets: of each, in order.
        chunk_ids: of the chunks that were looked at, in order.
    """

    data: bytes
    ends: list[int]
    offsets: Sequence[int]
    chunk_ids: list[int]


class RowRun:
    """Opens messages of one chunk after the other.

    Args:
        file: of the segment.
        limit: where the segment ends.
        screen: which messages are opened.
        max_bytes: of messages, and the run is full.
        max_units: of work, and it is full; see selector.Cost. No chunk may take more.
    """

    def __init__(
        self, file: Readable, limit: int, screen: Screen, max_bytes: int, max_units: int
    ) -> None:
        self._file = file
        self._limit = limit
        self._screen = screen
        self._bytes_left = max_bytes
        self._max_units = self._units_left = max_units
        self._head = b""  # that stands behind the trailer that was read last
        self._head_at = -1
        self._found: list[bytes] = []
        self._offsets: list[int] = []
        self._chunk_ids: list[int] = []

    @property
    def is_full(self) -> bool:
        """No more chunks are to be taken."""
        return self._bytes_left <= 0 or self._units_left <= 0

    def take(self, position: int, chunk_id: int) -> ChunkHeader | None:
        """Open what is wanted of the chunk at a position; None where it cannot be decided so.

        Args:
            position: where it begins.
            chunk_id: that it has to have.
        """
        try:
            return self._take(position, chunk_id)
        except (FormatError, StorageError):  # who reads whole chunks meets it as well
            return None

    def _take(self, position: int, chunk_id: int) -> ChunkHeader | None:
        head = self._head if position == self._head_at else self._file.read(HEAD_READ, position)
        if len(head) < CHUNK_HEADER_SIZE:
            return None
        header = codec.plain_chunk_header(head, 0, chunk_id)
        if header is None or not has_columns(header):
            return None
        units = _CHUNK_UNITS + self._screen.screening_units(header.num_records)
        if units > self._max_units:
            return None
        data_at = position + header.data_start
        trailer_at = data_at + header.data_size
        following = trailer_at + header.trailer_size
        if following > self._limit:
            return None
        behind = self._file.read(header.trailer_size + HEAD_READ, trailer_at)
        trailer = behind[: header.trailer_size]
        columns = sound_columns(head[: header.data_start], trailer, header)
        rows = None if columns is None else self._screen.rows(columns)
        if columns is None or rows is None:
            return None
        if rows:
            self._open(columns, rows, header, data_at)
        self._units_left -= units
        self._chunk_ids.append(chunk_id)
        self._head, self._head_at = behind[header.trailer_size :], following
        return header

    def _open(self, columns: Columns, rows: int, header: ChunkHeader, data_at: int) -> None:
        read = self._file.read
        places, found = messages_of(
            columns, rows, header.data_size, lambda size, at: read(size, data_at + at)
        )
        self._found += found
        self._offsets += [header.chunk_id + place for place in places]
        self._bytes_left -= sum(map(len, found))
        self._units_left -= len(found)

    def opened(self) -> OpenedRows:
        """All that was opened."""
        found = self._found
        return OpenedRows(
            b"".join(found), list(accumulate(map(len, found))), self._offsets, self._chunk_ids
        )
