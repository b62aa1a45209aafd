"""Chunks read back from their segment, and the places of the messages in them.

A block is a run of chunks that were read at once. Sub-batches are unpacked into a buffer of their
own, so that later steps see messages only. Where columns tell which messages may be wanted, the
others are left out before anything is read in them.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from segments import codec
from segments.checksum import crc32
from segments.codec import ChunkHeader
from segments.columns import Columns, has_columns, sound_columns
from segments.compression import unpack
from segments.errors import CorruptError, FormatError
from segments.spark.files import SegmentGone
from segments.spark.headers import Bytes, Mask, Numbers
from segments.spark.inventory import Gap
from segments.spark.messages import PADDING
from segments.spark.opened import ChosenChunk, Places, RowTest, open_wanted, wanted_mask
from segments.spark.plan import Piece
from segments.spark.walk import message_ends

_LENGTH_SIZE = 4
_BLOCK_BYTES = 16 << 20  # enough chunks to find their messages together


class MessageBlock(NamedTuple):
    """Messages of some chunks.

    Attributes:
        buffer: holds their bytes, with PADDING more behind them.
        chunks: the number, counted from 0, of each message's chunk.
        columns: of each chunk of which just the messages that may be wanted are here; None where
            all of them are.
    """

    buffer: Bytes
    starts: Numbers
    ends: Numbers
    chunks: Numbers
    offsets: Numbers
    headers: list[ChunkHeader]
    trailers: list[bytes]
    columns: list[Columns | None]

    def rows(self, rows: Numbers | slice) -> "MessageBlock":
        """Some of its messages."""
        return self._replace(
            starts=self.starts[rows],
            ends=self.ends[rows],
            chunks=self.chunks[rows],
            offsets=self.offsets[rows],
        )

    def compact(self) -> "MessageBlock":
        """The same messages over just the part of the buffer that they are in."""
        if not len(self.starts):
            return self
        base = int(self.starts[0])
        return self._replace(
            buffer=self.buffer[base : int(self.ends[-1]) + PADDING],
            starts=self.starts - base,
            ends=self.ends - base,
        )

    def split(self, size: int) -> Iterator["MessageBlock"]:
        """Parts that span about `size` bytes each, one message at least; none without messages."""
        first = 0
        while first < len(self.starts):
            last = int(np.searchsorted(self.ends, self.starts[first] + size, side="right"))
            last = max(last, first + 1)
            yield self.rows(slice(first, last))
            first = last


class _Chunk(NamedTuple):
    position: int  # in the segment
    header: ChunkHeader
    start: int  # of the data section, in what was read
    chosen: ChosenChunk | None = None  # None where all of its messages may be wanted
    opened: int | None = None  # its number among the chunks that were opened


def read_piece(
    piece: Piece, *, verify: bool = True, row_test: RowTest | None = None
) -> Iterator[MessageBlock | Gap]:
    """Read the chunks of a piece, many at a time.

    Args:
        piece: what to read.
        verify: test the checksum of each chunk's data.
        row_test: chooses messages by columns; None for all.

    Yields:
        Blocks, and a Gap for each chunk that is damaged.

    Raises:
        CorruptError: the segment is gone.
        StorageError, TierError: it cannot be read.
    """
    if piece.gap is not None:
        yield piece.gap
        return
    blocks = list(_block_rows(piece.sizes))
    try:
        found = piece.file.blocks(piece.positions, piece.sizes, blocks)
        for rows, buffer in zip(blocks, found, strict=True):
            yield from _read_block(buffer, piece, rows, verify, row_test)
    except SegmentGone as error:
        first = int(piece.chunk_ids[0])
        reason = f"the segment with offset {first} was removed since the query was planned"
        raise CorruptError(error.path, 0, f"{reason}, by retention or by hand") from error


def _block_rows(sizes: Numbers) -> Iterator[range]:
    """The chunks of each block, by their place in the piece."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        limit = ends[first] - sizes[first] + _BLOCK_BYTES
        last = max(int(np.searchsorted(ends, limit, side="right")), first + 1)
        yield range(first, last)
        first = last


def _read_block(
    buffer: Bytes, piece: Piece, rows: range, verify: bool, row_test: RowTest | None
) -> Iterator[MessageBlock | Gap]:
    view = buffer.data
    chunks: list[_Chunk] = []
    gaps: list[Gap] = []
    start = 0
    for row in rows:
        position, size, chunk_id = (
            int(column[row]) for column in (piece.positions, piece.sizes, piece.chunk_ids)
        )
        raw = view[start : start + size]
        try:
            header = _check(raw, chunk_id, verify=verify)
            chunk = _Chunk(position, header, start + header.data_start)
            chunks.append(chunk if row_test is None else _chosen(chunk, raw, row_test))
        except FormatError as error:
            gaps.append(_gap(piece.file.path, position, raw, chunk_id, str(error)))
        start += size
    yield from gaps
    yield from _messages(piece.file.path, buffer, chunks)


def _check(raw: memoryview, chunk_id: int, *, verify: bool) -> ChunkHeader:
    header = codec.decode_chunk_header(raw)
    if header.chunk_id != chunk_id:
        raise FormatError(f"chunk id is {header.chunk_id}, expected {chunk_id}")
    if len(raw) != header.total_size:
        raise FormatError(f"chunk has {header.total_size} bytes, {len(raw)} when it was listed")
    if verify:
        data = raw[header.data_start : header.data_start + header.data_size]
        if crc32(data) != header.data_crc:
            raise FormatError("data fails its checksum")
    return header


def _chosen(chunk: _Chunk, raw: memoryview, row_test: RowTest) -> _Chunk:
    """The chunk, of which not all messages may be wanted."""
    header = chunk.header
    if not has_columns(header):
        return chunk
    trailer = bytes(raw[header.data_start + header.data_size :])
    columns = sound_columns(raw[: header.data_start], trailer, header)
    wanted = None if columns is None else row_test(columns)
    if columns is None or wanted is None:
        return chunk
    end = chunk.start + header.data_size
    return chunk._replace(chosen=ChosenChunk(chunk.start, end, columns, wanted))


def _gap(path: str, position: int, raw: memoryview, chunk_id: int, reason: str) -> Gap:
    try:
        records = codec.decode_chunk_header(raw).num_records
    except FormatError:
        records = 1
    return Gap(path, position, position + len(raw), chunk_id, chunk_id + records, reason)


def _messages(path: str, buffer: Bytes, chunks: Sequence[_Chunk]) -> Iterator[MessageBlock | Gap]:
    """Find the messages in the data sections; the chunks in which that fails are gaps."""
    opened, chunks = _open(buffer, chunks)
    for is_opened, some in groupby(chunks, lambda chunk: chunk.opened is not None):
        if is_opened:
            yield _opened_block(buffer, list(some), opened)
        else:
            yield from _walked(path, buffer, list(some))


def _open(buffer: Bytes, chunks: Sequence[_Chunk]) -> tuple[Places, Sequence[_Chunk]]:
    """The messages to which columns lead; and the chunks, those that were opened numbered.

    In a chunk that is not what its columns are of, all messages are looked at.
    """
    told = [n for n, chunk in enumerate(chunks) if chunk.chosen and chunk.chosen.columns.begins]
    opened, fits = open_wanted(buffer, [found for n in told if (found := chunks[n].chosen)])
    numbered = list(chunks)
    for number, n in enumerate(told):
        changes = {"opened": number} if fits[number] else {"chosen": None}
        numbered[n] = chunks[n]._replace(**changes)
    return opened, numbered


def _walked(path: str, buffer: Bytes, chunks: Sequence[_Chunk]) -> Iterator[MessageBlock | Gap]:
    """The same for chunks that are walked from their beginning to their end."""
    first = np.array([chunk.start for chunk in chunks], np.int64)
    last = first + np.array([chunk.header.data_size for chunk in chunks], np.int64)
    found = message_ends(buffer, first, last, [chunk.header for chunk in chunks])
    ends = np.split(found.ends, np.cumsum(found.counts))
    run: list[_Chunk] = []
    whole: list[Numbers] = []
    for n, chunk in enumerate(chunks):
        try:
            if not found.is_simple[n]:
                # Its messages stand in a buffer of their own, so they make a block of their own.
                if run:
                    yield _block(buffer, whole, run)
                run, whole = [], []
                yield _unpacked_block(buffer, chunk)
                continue
            _check_count(chunk.header, len(ends[n]))
        except FormatError as error:
            header = chunk.header
            end = chunk.position + header.total_size
            yield Gap(path, chunk.position, end, header.chunk_id, header.next_offset, str(error))
            continue
        run.append(chunk)
        whole.append(ends[n])
    if run:
        yield _block(buffer, whole, run)


def _check_count(header: ChunkHeader, found: int) -> None:
    if found != header.num_records:
        reason = f"header counts {header.num_records} messages, the data holds {found}"
        raise FormatError(reason)


def _unpacked_block(buffer: Bytes, chunk: _Chunk) -> MessageBlock:
    """The messages of a chunk with sub-batches; raises FormatError when it has others."""
    header = chunk.header
    section = buffer[chunk.start : chunk.start + header.data_size]
    bodies = list(_unpacked(section.tobytes()))
    _check_count(header, len(bodies))
    lengths = np.array([len(body) for body in bodies], np.int64)
    ends = np.cumsum(lengths)
    joined = np.frombuffer(b"".join((*bodies, bytes(PADDING))), np.uint8)
    places = np.arange(len(bodies))
    found = Places(ends - lengths, ends, np.zeros_like(places), places)
    return _only_wanted(_block_of(buffer, found, [chunk])._replace(buffer=joined), [chunk])


def _unpacked(data: bytes) -> Iterator[bytes]:
    for entry in codec.walk_entries(data):
        raw = data[entry.body : entry.end]
        if entry.compression is None:
            yield raw
        else:
            yield from unpack(raw, entry.compression, entry.uncompressed_size, entry.num_records)


def _block(buffer: Bytes, ends: Sequence[Numbers], chunks: Sequence[_Chunk]) -> MessageBlock:
    """The block of some chunks, of whose messages it is known where they end."""
    counts = np.array([len(some) for some in ends], np.int64)
    first = np.cumsum(counts) - counts
    all_ends = np.concatenate(ends)
    starts = np.empty_like(all_ends)
    starts[1:] = all_ends[:-1]
    starts[first] = [chunk.start for chunk in chunks]
    of_chunk = np.repeat(np.arange(len(chunks)), counts)
    places = np.arange(len(all_ends)) - first[of_chunk]
    found = Places(starts + _LENGTH_SIZE, all_ends, of_chunk, places)
    return _only_wanted(_block_of(buffer, found, chunks), chunks)


def _only_wanted(block: MessageBlock, chunks: Sequence[_Chunk]) -> MessageBlock:
    """The block, of all messages of some chunks, without those that their columns leave out."""
    if all(chunk.chosen is None for chunk in chunks):
        return block
    wanted = [_wanted_mask(chunk) for chunk in chunks]
    return block.rows(np.flatnonzero(np.concatenate(wanted)))


def _wanted_mask(chunk: _Chunk) -> Mask:
    number = chunk.header.num_records
    if chunk.chosen is None:
        return np.ones(number, np.bool_)
    return wanted_mask(chunk.chosen.wanted, number)


def _opened_block(buffer: Bytes, chunks: Sequence[_Chunk], opened: Places) -> MessageBlock:
    """The block of neighbours among the chunks that were opened."""
    first = chunks[0].opened or 0
    return _block_of(buffer, opened.of_chunks(first, first + len(chunks)), chunks)


def _block_of(buffer: Bytes, found: Places, chunks: Sequence[_Chunk]) -> MessageBlock:
    first = np.array([chunk.header.chunk_id for chunk in chunks], np.int64)
    trailers = []
    for chunk in chunks:
        start = chunk.start + chunk.header.data_size
        trailers.append(buffer[start : start + chunk.header.trailer_size].tobytes())
    return MessageBlock(
        buffer,
        found.starts,
        found.ends,
        found.chunks,
        first[found.chunks] + found.places,
        [chunk.header for chunk in chunks],
        trailers,
        [chunk.chosen and chunk.chosen.columns for chunk in chunks],
    )
