"""Runs: small chunks that stand one after the other and are handed out as one.

A consumer allows its server a number of chunks, whatever their size. Chunks with filter values are
small, so that filters can leave out as many as possible; a consumer that takes most of them all the
same gets little for each, and falls behind where messages come fast. One that is far behind gets
chunks of the same millisecond as one: their messages stand under one header, with the sum of their
sizes. In the file they stay apart, and filters choose among them as before.

Only what is whole is joined: where the checksum of a chunk is wrong, it is handed out by itself,
so that whoever gets it sees that.
"""

from collections.abc import Sequence
from typing import Protocol

from segments.checksum import crc32
from segments.codec import ChunkHeader, encode_chunk_header
from segments.format_constants import SUB_BATCH_BIT
from segments.policy import BUSY_CHUNK_RECORDS


class Chunk(Protocol):
    """A chunk that was read, see `reader.StoredChunk`."""

    @property
    def header(self) -> ChunkHeader:
        """Decoded."""

    @property
    def raw_header(self) -> bytes:
        """Its 48 bytes."""

    @property
    def data(self) -> memoryview | None:
        """The data section where it was read along."""


class Runs:
    """Chunks while they are read, the ones of a run together.

    Args:
        most: how many runs there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._runs: list[list[Chunk]] = []
        self._num_chunks = self._num_records = 0
        self._is_plain = False  # the last chunk

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self._runs)

    @property
    def num_wanted(self) -> int:
        """How many chunks may be read now; one too many shows where a run ends."""
        return self._num_chunks + self._most + 1 - len(self._runs)

    def take(self, chunks: Sequence[Chunk]) -> bool:
        """Take those of the chunks that were read since the last time.

        Returns:
            Whether that was all; False where the last one is beyond the last run.
        """
        for chunk in chunks[self._num_chunks :]:
            is_plain = _is_plain(chunk)
            if is_plain and self._is_plain and self._continues(chunk):
                self._runs[-1].append(chunk)
                self._num_records += chunk.header.num_records
            else:
                self._runs.append([chunk])
                self._num_records = chunk.header.num_records
            self._is_plain = is_plain
        self._num_chunks = len(chunks)
        if len(self._runs) <= self._most:
            return True
        self._runs.pop()
        self._num_chunks -= 1
        return False

    def clear(self) -> None:
        """Keep no chunk in memory."""
        self._runs.clear()

    def heads(self) -> list[tuple[bytes, int] | None]:
        """For each chunk the header that is sent before it, and the data's size; None for none."""
        found: list[tuple[bytes, int] | None] = []
        for run in self._runs:
            found.append(_head(run))
            found += [None] * (len(run) - 1)
        return found

    def _continues(self, chunk: Chunk) -> bool:
        before, header = self._runs[-1][-1].header, chunk.header
        return (
            header.chunk_id == before.next_offset
            and header.timestamp_ms == before.timestamp_ms
            and header.epoch == before.epoch
            and self._num_records + header.num_records <= BUSY_CHUNK_RECORDS
        )


def _is_plain(chunk: Chunk) -> bool:
    """Whether it is here, sound, and of messages alone: some clients take one sub-batch a chunk."""
    data, header = chunk.data, chunk.header
    return (
        data is not None
        and header.num_entries == header.num_records
        and not data[0] & SUB_BATCH_BIT
        and crc32(data) == header.data_crc
    )


def _head(run: list[Chunk]) -> tuple[bytes, int]:
    first = run[0]
    if len(run) == 1:
        return first.raw_header, first.header.data_size
    crc = 0
    for chunk in run:
        crc = crc32(chunk.data or b"", crc)
    size = sum(chunk.header.data_size for chunk in run)
    header = first.header._replace(
        num_entries=sum(chunk.header.num_entries for chunk in run),
        num_records=sum(chunk.header.num_records for chunk in run),
        data_crc=crc,
        data_size=size,
        trailer_size=0,
        filter_size=0,
    )
    return encode_chunk_header(header), size
