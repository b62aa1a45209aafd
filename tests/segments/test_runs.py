"""Runs: who gets chunks as one gets the same messages in the same order, under a true header."""

from collections.abc import Sequence

from hypothesis import given, strategies as st

from segments import FIRST, ChunkBuilder, ChunkMatcher, Log, LogPolicy, Reader
from segments.checksum import crc32
from segments.codec import ChunkHeader, decode_chunk_header
from segments.policy import BUSY_CHUNK_RECORDS
from segments.reader import StoredChunk
from segments.runs import Runs
from tests.support.disk import FaultyDisk
from tests.support.logs import append, entry, sub_batch

NOW_MS = 1_700_000_000_000


def data_of(chunk: StoredChunk) -> bytes:
    """As `Delivery` sends it: from memory, or from the file."""
    if chunk.data is not None:
        return bytes(chunk.data)
    return chunk.file.read(chunk.header.data_size, chunk.data_position)


def runs_of(
    reader: Reader, most: int, max_chunks: int = 100, max_bytes: int = 1 << 20
) -> list[tuple[ChunkHeader, bytes]]:
    """What one call of `read` hands out: the header that each run is sent with, and its data."""
    runs = Runs(most)
    chunks = reader.read(max_chunks, max_bytes, 100, runs)
    heads = runs.heads()
    assert len(heads) == len(chunks)
    assert len(runs) == sum(head is not None for head in heads) <= most
    found: list[tuple[ChunkHeader, bytes]] = []
    sizes: list[int] = []
    for head, chunk in zip(heads, chunks, strict=True):
        if head is None:
            header, data = found.pop()
            found.append((header, data + data_of(chunk)))
        else:
            found.append((decode_chunk_header(head[0]), data_of(chunk)))
            sizes.append(head[1])
    assert sizes == [len(data) for _, data in found] == [header.data_size for header, _ in found]
    return found


def log_of(chunks: Sequence[tuple[bytes, int, int, bool]]) -> Log:
    """Filter value, size of the messages, milliseconds since the chunk before, sub-batch or not."""
    log, now_ms = Log.open("s", LogPolicy(max_segment_chunks=9), FaultyDisk()), NOW_MS
    for value, size, later, is_sub_batch in chunks:
        now_ms += later
        body = b"%d" % log.committed_offset + b"x" * size
        if is_sub_batch:
            builder = ChunkBuilder()
            builder.add(sub_batch(entry(body), 1), 1, 1, None)
            log.append([builder], now_ms)
        else:
            append(log, [body, b""], [value, value], now_ms=now_ms)
    return log


@given(
    chunks=st.lists(
        st.tuples(
            st.sampled_from([b"a", b"a", b"b"]),
            st.sampled_from([0, 10, 10, 3_000, 70_000]),
            st.sampled_from([0, 0, 0, 1]),
            st.sampled_from([False, False, False, False, True]),
        ),
        min_size=1,
        max_size=30,
    ),
    wanted=st.sampled_from([None, b"a"]),
    most=st.integers(1, 4),
    max_chunks=st.integers(1, 12),
    max_bytes=st.sampled_from([1, 5_000, 1 << 20]),
)
def test_the_same_messages_as_chunk_by_chunk(
    chunks: list[tuple[bytes, int, int, bool]],
    wanted: bytes | None,
    most: int,
    max_chunks: int,
    max_bytes: int,
) -> None:
    log = log_of(chunks)
    matcher = ChunkMatcher([wanted]) if wanted else None
    plain, reader = (Reader(log, log.segments.find(FIRST), matcher) for _ in range(2))
    expected = []
    while not plain.at_end:
        expected += [(chunk.header, data_of(chunk)) for chunk in plain.read(9, 1 << 20, 100)]
    rest = list(expected)
    while not reader.at_end:
        for header, data in runs_of(reader, most, max_chunks, max_bytes):
            assert header.data_crc == crc32(data)
            parts = [rest.pop(0)]
            while sum(len(part) for _, part in parts) < len(data):
                parts.append(rest.pop(0))
            assert data == b"".join(part for _, part in parts)
            headers = [of_part for of_part, _ in parts]
            assert header.chunk_id == headers[0].chunk_id
            assert header.next_offset == headers[-1].next_offset  # no offset is passed over
            assert header.num_records == sum(of_part.num_records for of_part in headers)
            assert header.num_entries == sum(of_part.num_entries for of_part in headers)
            assert {of_part.timestamp_ms for of_part in headers} == {header.timestamp_ms}
            assert len(parts) == 1 or not any(part[0] & 0x80 for _, part in parts)
    assert not rest
    assert (reader.counts.chunks, reader.counts.records, reader.counts.data_bytes) == (
        plain.counts.chunks,
        plain.counts.records,
        plain.counts.data_bytes,
    )
    assert reader.counts.skipped_chunks == plain.counts.skipped_chunks


def test_a_run_ends_where_it_is_as_long_as_a_chunk_may_be() -> None:
    log = Log.open("s", disk=FaultyDisk())
    for _ in range(50):
        append(log, [b"x"] * 200)
    reader = Reader(log, log.segments.find(FIRST))
    sizes = [header.num_records for header, _ in runs_of(reader, 2)]
    assert sizes == [BUSY_CHUNK_RECORDS // 200 * 200] * 2
    assert reader.next_offset == sum(sizes)  # the chunk behind the last run is read again
    assert [header.chunk_id for header, _ in runs_of(reader, 9)] == [sum(sizes)]


def test_a_chunk_whose_checksum_is_wrong_is_handed_out_with_it() -> None:
    """A checksum over all would say that its data is right."""
    disk = FaultyDisk()
    log = Log.open("s", disk=disk)
    for _ in range(5):
        append(log, [b"x" * 10])
    third = Reader(log, log.segments.find(FIRST)).read(9, 1 << 20, 9)[2]
    log.close()
    (path,) = (name for name in disk.list("s") if name.endswith(".segment"))
    file = disk.open(f"s/{path}", writable=True)
    file.write([b"y"], third.data_position + 5)
    log = Log.open("s", disk=disk)
    reader = Reader(log, log.segments.find(FIRST))
    found = runs_of(reader, 9)
    assert [header.num_records for header, _ in found] == [2, 1, 2]
    assert [header.data_crc == crc32(data) for header, data in found] == [True, False, True]
