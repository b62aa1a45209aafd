"""Filling logs and reading them back."""

from collections.abc import Callable, Iterable, Sequence

from segments import FIRST, ChunkBuilder, ChunkMatcher, Log, OffsetSpec, Reader, at_offset
from segments.chunk_search import Place
from segments.codec import walk_entries
from segments.reader import StoredChunk
from segments.truncation import Rest


def entry(body: bytes) -> bytes:
    """A simple entry."""
    return len(body).to_bytes(4, "big") + body


def sub_batch(body: bytes, num_records: int, compression: int = 0, full_size: int = 0) -> bytes:
    """A sub-batch entry with an already compressed body."""
    head = bytes([0x80 | compression << 4]) + num_records.to_bytes(2, "big")
    sizes = (full_size or len(body)).to_bytes(4, "big") + len(body).to_bytes(4, "big")
    return head + sizes + body


def append(
    log: Log,
    bodies: Sequence[bytes],
    values: Sequence[bytes] | None = None,
    *,
    now_ms: int = 1_700_000_000_000,
    sequences: dict[bytes, int] | None = None,
) -> int:
    """Append one chunk of simple entries and return its id."""
    builder = ChunkBuilder()
    builder.add(b"".join(map(entry, bodies)), len(bodies), len(bodies), values)
    for reference, publishing_id in (sequences or {}).items():
        builder.set_sequence(reference, publishing_id)
    chunk_id = log.committed_offset
    log.append([builder], now_ms)
    return chunk_id


def store_offset(log: Log, consumer: bytes, offset: int) -> None:
    """Store an offset, and write it at once."""
    log.journal.tracking.store_offset(consumer, offset)
    log.journal.write_pending(log.committed_offset)


def truncate(log: Log, offset: int, meanwhile: Callable[[], None] = lambda: None) -> int:
    """Let the log begin at the chunk with `offset`; returns its first offset.

    Args:
        log: the log.
        offset: a message's.
        meanwhile: called when the rest of a segment has its name, and the log does not begin there.
    """
    log.flush(with_checkpoint=True)
    assert log.seal()
    log.flush(with_checkpoint=True)
    segment, position, start = log.segments.find(at_offset(offset))
    if start <= log.segments.first_offset:
        return log.segments.first_offset
    rest = None
    if start > segment.base_offset:
        rest = Rest(segment, Place(position, start))
        rest.copy(lambda: None)
        rest.finish()
        meanwhile()
    assert log.journal.is_covered(start)
    log.truncate(start, rest.segment if rest is not None else None).run()
    return log.segments.first_offset


def read_chunks(
    log: Log,
    spec: OffsetSpec = FIRST,
    matcher: ChunkMatcher | None = None,
    *,
    max_chunks: int = 100,
    max_steps: int = 100,
) -> list[StoredChunk]:
    """All chunks from `spec` to the end, their data read where the reader left that to us."""
    reader = Reader(log, log.segments.find(spec), matcher)
    chunks: list[StoredChunk] = []
    try:
        while not reader.at_end:
            for chunk in reader.read(max_chunks, 1 << 20, max_steps):
                whole, header = chunk.whole, chunk.header
                if whole is None:
                    begin = chunk.data_position - header.data_start
                    whole = chunk.file.read(header.total_size, begin)
                chunks.append(chunk._replace(whole=memoryview(bytes(whole))))
    finally:
        reader.close()
    return chunks


def bodies_of(chunks: Iterable[StoredChunk]) -> list[tuple[int, bytes]]:
    """Offset and body of each message of chunks that hold simple entries only."""
    found = []
    for chunk in chunks:
        assert chunk.data is not None
        data = bytes(chunk.data)
        for number, at in enumerate(walk_entries(data)):
            found.append((chunk.header.chunk_id + number, data[at.body : at.end]))
    return found


def read_bodies(
    log: Log, spec: OffsetSpec = FIRST, matcher: ChunkMatcher | None = None
) -> list[bytes]:
    """Bodies of all messages from `spec` to the end."""
    return [body for _, body in bodies_of(read_chunks(log, spec, matcher))]
