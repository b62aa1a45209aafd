"""Reading the chunks that are searched, several at once where they are small.

What an index file says of a chunk is compared with its header: an index that is wrong, and damage
that nobody knew of, are found when they are come upon.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from segments import codec
from segments.checksum import crc32
from segments.chunk_check import header_is_sound
from segments.codec import CHUNK_HEADER_SIZE, ChunkHeader, plain_chunk_header
from segments.columns import Columns, has_columns, sound_columns
from segments.disk import File
from segments.errors import FormatError, StorageError, UnreadableError
from segments.format_constants import MAX_FILTER_SIZE, USER
from segments.search.chunk_screen import ChunkTest
from segments.search.chunk_table import ChunkTable
from segments.search.page import LookedAt
from segments.segment import Segment

SPAN_BYTES = 1 << 16  # read at once, while chunks are small


class WrongIndex(Exception):
    """The index file of the segment is wrong, or there is damage that was not known."""


class Rows(NamedTuple):
    """What the columns of a chunk say of its messages.

    Attributes:
        columns: those, which are sound.
        wanted: the messages that may be wanted, see `Columns.rows`.
    """

    columns: Columns
    wanted: int


class ReadChunk(NamedTuple):
    """A chunk that was read, and its number.

    Attributes:
        data: its messages; None where they are not what was written.
        rows: which of them may be wanted; None where columns were not asked, or do not tell.
    """

    ordinal: int
    header: ChunkHeader
    data: bytes | None
    rows: Rows | None


class SpanReader:
    """Reads chunks of a segment, several at once where they are small.

    Args:
        looked_at: is counted up.
    """

    def __init__(
        self, segment: Segment, file: File, table: ChunkTable, looked_at: LookedAt
    ) -> None:
        self._segment = segment
        self._file = file
        self._table = table
        self._looked_at = looked_at

    def spans(self, ordinals: Sequence[int], *, is_backward: bool) -> Iterator[range]:
        """Pieces of chunks that follow each other and are read at once, in the order wanted."""
        table, step = self._table, -1 if is_backward else 1
        at = len(ordinals) - 1 if is_backward else 0
        while 0 <= at < len(ordinals):
            first = last = ordinals[at]
            begin, end = table.positions[first], table.end(last)
            at += step
            while not table.is_sparse and 0 <= at < len(ordinals):
                if ordinals[at] != (first - 1 if is_backward else last + 1):
                    break
                if is_backward:
                    begin = table.positions[first - 1]
                else:
                    end = table.end(last + 1)
                if end - begin > SPAN_BYTES:
                    break
                first, last = min(first, ordinals[at]), max(last, ordinals[at])
                at += step
            yield range(first, last + 1)

    def read(
        self, span: range, test: ChunkTest, *, asks_rows: bool, is_backward: bool
    ) -> Iterator[ReadChunk]:
        """The chunks of a span with messages, in the order wanted.

        Args:
            span: from `spans`.
            test: rules chunks out by their own filters, where no filter index has done so.
            asks_rows: and messages, by the columns of their chunks.
            is_backward: the last one first.

        Raises:
            WrongIndex: a chunk is not where the table has it.
            StorageError: the system refused to read.
        """
        screen = _Screen(test, asks_rows=asks_rows, asks_filters=self._segment.filters is None)
        positions, ids = self._table.bounds(span)
        if any(one >= following for one, following in pairwise(positions)):
            raise WrongIndex
        start, end = positions[0], positions[-1]
        if self._table.is_sparse or end - start > SPAN_BYTES:  # it is one
            yield from self._read_one(span[0], screen)
            return
        raw = self._read_bytes(start, end - start)
        for number in range(len(span) - 1, -1, -1) if is_backward else range(len(span)):
            at, size = positions[number] - start, positions[number + 1] - positions[number]
            header = None
            if at + CHUNK_HEADER_SIZE <= len(raw):
                header = plain_chunk_header(raw, at, ids[number])
            if header is None or (header.total_size, header.next_offset) != (size, ids[number + 1]):
                header = self._header(raw, at, span[number])
            if header.chunk_type != USER:
                continue
            data_at = at + CHUNK_HEADER_SIZE + header.filter_size
            behind = data_at + header.data_size
            trailer = raw[behind : behind + header.trailer_size] if screen.needs_trailer else b""
            rows, is_wanted = screen.choose(header, raw[at:data_at], trailer)
            if is_wanted:
                yield _checked(span[number], header, raw[data_at:behind], rows)
            else:
                self._looked_at.chunks_skipped_by_filter += 1

    def _read_one(self, ordinal: int, screen: "_Screen") -> Iterator[ReadChunk]:
        """A large chunk, or one beside damage; its messages are not copied.

        Raises:
            WrongIndex, StorageError: see `read`.
        """
        position = self._table.positions[ordinal]
        try:
            head = self._read_head(position, self._table.end(ordinal) - position)
            header = self._header(head, 0, ordinal)
            if header.chunk_type != USER:
                return
            data_at = position + header.data_start
            trailer = b""
            if screen.needs_trailer and header.trailer_size:
                trailer = self._read_trailer(data_at + header.data_size, header.trailer_size)
            rows, is_wanted = screen.choose(header, head[: header.data_start], trailer)
            if not is_wanted:
                self._looked_at.chunks_skipped_by_filter += 1
                return
            data = self._read_bytes(data_at, header.data_size)
        except FormatError:  # the device cannot read it
            self._mark_damaged(ordinal)
            raise WrongIndex from None
        yield _checked(ordinal, header, data, rows)

    def _read_head(self, position: int, most: int) -> bytes:
        """The header and the filter; the header alone where what follows it cannot be read."""
        try:
            return self._read_bytes(position, min(CHUNK_HEADER_SIZE + MAX_FILTER_SIZE, most))
        except UnreadableError:
            return self._read_bytes(position, CHUNK_HEADER_SIZE)

    def _read_trailer(self, position: int, size: int) -> bytes:
        """The trailer; nothing where it cannot be read: then it tells nothing."""
        try:
            return self._read_bytes(position, size)
        except UnreadableError:
            return b""

    def lose(self, header: ChunkHeader) -> None:
        """A chunk is not what was written."""
        self._looked_at.chunks_damaged += 1
        self._looked_at.messages_lost += header.num_records

    def _read_bytes(self, position: int, size: int) -> bytes:
        self._looked_at.bytes_read += size
        return self._file.read(size, position)

    def _header(self, raw: bytes, at: int, ordinal: int) -> ChunkHeader:
        """The header of a chunk, which is where the table has it.

        Raises:
            WrongIndex: it is not.
            StorageError: the system refused to read.
        """
        table = self._table
        is_damaged = table.is_certain
        try:
            header = codec.decode_chunk_header(raw, at)
        except FormatError:
            pass  # or no chunk begins here
        else:
            is_there = header.chunk_id == table.chunk_ids[ordinal]
            if is_there and (table.is_sparse or self._reaches_to_the_next(header, ordinal)):
                return header
            if is_there:  # the header is wrong, or where the next one is
                head = raw[at : at + CHUNK_HEADER_SIZE]
                position = table.positions[ordinal]
                is_damaged = not header_is_sound(self._file, position, header, head)
        if is_damaged:
            self._mark_damaged(ordinal)
        raise WrongIndex

    def _reaches_to_the_next(self, header: ChunkHeader, ordinal: int) -> bool:
        table = self._table
        size = table.end(ordinal) - table.positions[ordinal]
        return header.total_size == size and header.next_offset == table.next_offset(ordinal)

    def _mark_damaged(self, ordinal: int) -> None:
        """A chunk cannot be read, which is where it should be: readers step over it from now on."""
        position, offset = self._table.positions[ordinal], self._table.chunk_ids[ordinal]
        try:
            self._segment.mark_damaged(self._file, position, offset)
        except UnreadableError as error:  # nothing can be read
            cause = OSError(error.errno, error.reason)
            raise StorageError("read", error.path, cause) from error


class _Screen:
    """Says of chunks, and their messages, whether they may be wanted; see `SpanReader.read`."""

    def __init__(self, test: ChunkTest, *, asks_rows: bool, asks_filters: bool) -> None:
        self._test = test
        self._asks_rows = asks_rows and test.has_rows
        self._asks_filters = asks_filters and bool(test.matchers)
        self.needs_trailer = self._asks_rows or self._asks_filters

    def choose(self, header: ChunkHeader, head: bytes, trailer: bytes) -> tuple[Rows | None, bool]:
        """Which messages may be wanted, None for all, and whether any may be.

        A chunk that is not sound is not trusted. Columns tell more than the filter.

        Args:
            header: of the chunk.
            head: the same as it is stored, and the filter.
            trailer: of the chunk, where `needs_trailer`.
        """
        if self._asks_rows and has_columns(header):
            columns = sound_columns(head, trailer, header)
            wanted = None if columns is None else self._test.rows(columns)
            if columns is not None and wanted is not None:
                return Rows(columns, wanted), wanted > 0
        return None, not (self._asks_filters and self._is_ruled_out(header, head, trailer))

    def _is_ruled_out(self, header: ChunkHeader, head: bytes, trailer: bytes) -> bool:
        filter_bytes = head[CHUNK_HEADER_SIZE:]
        if self._test.matches(header.filter_scheme, header.filter_size, filter_bytes):
            return False
        check = codec.header_check(head[: codec.CHECKED_HEADER_SIZE], filter_bytes, trailer)
        is_sound = check == header.header_check
        return is_sound and not self._test.is_doubtful(filter_bytes, trailer)


def _checked(ordinal: int, header: ChunkHeader, data: bytes, rows: Rows | None) -> ReadChunk:
    is_sound = crc32(data) == header.data_crc
    return ReadChunk(ordinal, header, data if is_sound else None, rows)
