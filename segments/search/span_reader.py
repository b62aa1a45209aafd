"""Reading the chunks that are searched, several at once where they are small.

What an index file says of a chunk is compared with its header: an index that is wrong, and damage
that nobody knew of, are found when they are come upon.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from segments import codec
from segments.checksum import crc32
from segments.chunk_check import header_is_sound
from segments.codec import CHUNK_HEADER_SIZE, ChunkHeader
from segments.disk import File
from segments.errors import FormatError, StorageError, UnreadableError
from segments.format_constants import USER
from segments.search.chunk_screen import ChunkTest
from segments.search.chunk_table import ChunkTable
from segments.search.page import LookedAt
from segments.segment import Segment

SPAN_BYTES = 1 << 16  # read at once, while chunks are small


class WrongIndex(Exception):
    """The index file of the segment is wrong, or there is damage that was not known."""


class ReadChunk(NamedTuple):
    """A chunk that was read, and its number.

    Attributes:
        data: its messages; None where they are not what was written.
    """

    ordinal: int
    header: ChunkHeader
    data: bytes | None


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
            at += step
            while not table.is_sparse and 0 <= at < len(ordinals):
                following = ordinals[at]
                low, high = min(first, following), max(last, following)
                is_next = high - low == last - first + 1
                if not is_next or table.end(high) - table.positions[low] > SPAN_BYTES:
                    break
                first, last = low, high
                at += step
            yield range(first, last + 1)

    def read(
        self, span: range, matchers: ChunkTest | None, *, is_backward: bool
    ) -> Iterator[ReadChunk]:
        """The chunks of a span with messages, in the order wanted.

        Args:
            span: from `spans`.
            matchers: rules chunks out by their own filters; None for all.
            is_backward: the last one first.

        Raises:
            WrongIndex: a chunk is not where the table has it.
            StorageError: the system refused to read.
        """
        table = self._table
        start, end = table.positions[span[0]], table.end(span[-1])
        raw: bytes | None
        if len(span) == 1 and (table.is_sparse or end - start > SPAN_BYTES):
            if matchers is None:
                yield from self._read_messages(span[0])
                return
            raw = self._read_one(span[0], matchers)
            if raw is None:
                return
        else:
            raw = self._read_bytes(start, end - start)
        for ordinal in reversed(span) if is_backward else span:
            at = table.positions[ordinal] - start
            header = self._header(raw, at, ordinal)
            if header.chunk_type != USER:
                continue
            if matchers is not None and not self._may_match(raw, at, header, matchers):
                self._looked_at.chunks_skipped_by_filter += 1
                continue
            data_at = at + header.data_start
            yield _checked(ordinal, header, raw[data_at : data_at + header.data_size])

    def _read_messages(self, ordinal: int) -> Iterator[ReadChunk]:
        """The messages of a large chunk, which are not copied; nothing if it has none.

        Raises:
            WrongIndex, StorageError: see `read`.
        """
        position = self._table.positions[ordinal]
        try:
            header = self._header(self._read_bytes(position, CHUNK_HEADER_SIZE), 0, ordinal)
            if header.chunk_type != USER:
                return
            data = self._read_bytes(position + header.data_start, header.data_size)
        except FormatError:  # the device cannot read it
            self._mark_damaged(ordinal)
            raise WrongIndex from None
        yield _checked(ordinal, header, data)

    def lose(self, header: ChunkHeader) -> None:
        """A chunk is not what was written."""
        self._looked_at.chunks_damaged += 1
        self._looked_at.messages_lost += header.num_records

    def _read_bytes(self, position: int, size: int) -> bytes:
        self._looked_at.bytes_read += size
        return self._file.read(size, position)

    def _read_one(self, ordinal: int, matchers: ChunkTest) -> bytes | None:
        """A large chunk, or one beside damage; None when its filter rules it out.

        Raises:
            WrongIndex, StorageError: see `read`.
        """
        try:
            return self._read_large(ordinal, matchers)
        except FormatError:  # the device cannot read it
            self._mark_damaged(ordinal)
            raise WrongIndex from None

    def _read_large(self, ordinal: int, matchers: ChunkTest) -> bytes | None:
        position = self._table.positions[ordinal]
        most = self._table.end(ordinal) - position
        try:
            raw = self._read_bytes(position, min(CHUNK_HEADER_SIZE + 255, most))
        except UnreadableError:  # what follows it, perhaps
            raw = self._read_bytes(position, CHUNK_HEADER_SIZE)
            return self._read_bytes(position, self._header(raw, 0, ordinal).total_size)
        header = self._header(raw, 0, ordinal)
        filter_bytes = raw[CHUNK_HEADER_SIZE : CHUNK_HEADER_SIZE + header.filter_size]
        if not matchers.matches(header.filter_scheme, header.filter_size, filter_bytes):
            behind = position + header.data_start + header.data_size
            trailer = self._read_bytes(behind, header.trailer_size)
            is_sound = _is_sound(raw, header, filter_bytes, trailer)
            if is_sound and not matchers.is_doubtful(filter_bytes, trailer):
                self._looked_at.chunks_skipped_by_filter += 1
                return None
        size = header.total_size
        if size <= len(raw):
            return raw
        return raw + self._read_bytes(position + len(raw), size - len(raw))

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

    def _may_match(self, raw: bytes, at: int, header: ChunkHeader, matchers: ChunkTest) -> bool:
        """The filter test of a chunk that was read; one that is not sound is not trusted."""
        filter_at = at + CHUNK_HEADER_SIZE
        filter_bytes = raw[filter_at : filter_at + header.filter_size]
        if matchers.matches(header.filter_scheme, header.filter_size, filter_bytes):
            return True
        behind = at + header.data_start + header.data_size
        trailer = raw[behind : behind + header.trailer_size]
        if not _is_sound(raw[at : at + CHUNK_HEADER_SIZE], header, filter_bytes, trailer):
            return True
        return matchers.is_doubtful(filter_bytes, trailer)


def _checked(ordinal: int, header: ChunkHeader, data: bytes) -> ReadChunk:
    return ReadChunk(ordinal, header, data if crc32(data) == header.data_crc else None)


def _is_sound(raw: bytes, header: ChunkHeader, filter_bytes: bytes, trailer: bytes) -> bool:
    checked = raw[: codec.CHECKED_HEADER_SIZE]
    return codec.header_check(checked, filter_bytes, trailer) == header.header_check
