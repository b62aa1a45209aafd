"""Messages of many chunks by their columns: what reading every chunk finds, whatever is stored."""

from collections.abc import Sequence

from hypothesis import given, strategies as st

from segments import (
    FIRST,
    ChunkBuilder,
    ChunkMatcher,
    Log,
    LogPolicy,
    OffsetSpec,
    Reader,
    at_offset,
)
from segments.codec import CHECKED_HEADER_SIZE, walk_entries
from segments.selector import body_at
from tests.support.disk import FaultyDisk
from tests.support.logs import append, entry, read_chunks, sub_batch

VALUES = (b"", b"a", b"b", b"c", b"\0\0d", b"e" * 300)
# The values of a chunk's messages, or how it is unlike others.
KINDS = st.one_of(
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=80),
    st.lists(st.sampled_from(VALUES[:4]), min_size=40, max_size=80),
    st.sampled_from(["none", "sub-batch", "large"]),
)
BYTES = st.integers(1, 255)
Wanted = dict[int, bytes]


class Asked:
    """A screen for some values; each of `tests` may take as long as there are messages."""

    def __init__(self, matcher: ChunkMatcher, tests: int = 1) -> None:
        self.rows = matcher.rows
        self._tests = tests

    def screening_units(self, num_records: int) -> int:
        return self._tests * num_records


def filled(disk: FaultyDisk, kinds: Sequence[list[bytes] | str]) -> tuple[Log, dict[int, bytes]]:
    """A log with a chunk of each kind, and the value of each message by its offset."""
    log = Log.open("s", disk=disk)
    log.policy = LogPolicy(filter_size=64, max_segment_chunks=4)
    values: dict[int, bytes] = {}
    for kind in kinds:
        offset = log.committed_offset
        if isinstance(kind, list):
            append(log, [b"%d" % (offset + n) for n in range(len(kind))], kind)
            values |= dict(enumerate(kind, offset))
        elif kind == "sub-batch":
            builder = ChunkBuilder()
            builder.add(sub_batch(entry(b"x") + entry(b"y"), 2), 1, 2, [b"a"])
            builder.add(entry(b"z"), 1, 1, [b"c"])
            log.append([builder], 1_700_000_000_000)
        elif kind == "large":
            append(log, [b"%d" % offset, bytes(70_000), bytes(40_000)], [b"a", b"b", b"a"])
            values |= {offset: b"a", offset + 1: b"b", offset + 2: b"a"}
        else:
            append(log, [b"%d" % offset])
            values[offset] = b""
    return log, values


def chosen(
    log: Log,
    spec: OffsetSpec,
    matcher: ChunkMatcher | None,
    screen: ChunkMatcher,
    sizes: Sequence[int],
) -> tuple[Wanted, Wanted]:
    """Messages that runs have opened, and those of chunks that were read whole."""
    by_columns: Wanted = {}
    whole: Wanted = {}
    reader, last = Reader(log, log.segments.find(spec), matcher), -1
    while not reader.at_end:
        before = reader.next_offset
        rows = reader.read_rows(Asked(screen), *sizes)
        if rows is not None:
            assert reader.next_offset > before
            for number, offset in enumerate(rows.offsets):
                assert last < offset < reader.next_offset
                last, by_columns[offset] = offset, body_at(rows.data, rows.ends, number)
            continue
        assert reader.next_offset >= before
        for chunk in reader.read(2, 1 << 20, 5):
            header, data = chunk.header, chunk.data
            at = header.chunk_id
            raw = (
                data if data is not None else chunk.file.read(header.data_size, chunk.data_position)
            )
            for one in walk_entries(bytes(raw)):
                assert last < at
                last, whole[at] = at, bytes(raw[one.body : one.end])
                at += one.num_records
    counts = reader.counts
    reader.close()
    num_stored = sum(segment.num_chunks for segment in log.segments.shown)
    assert counts.chunks + counts.skipped_chunks <= num_stored
    return by_columns, whole


@given(data=st.data(), kinds=st.lists(KINDS, min_size=1, max_size=10))
def test_no_match_is_lost(data: st.DataObject, kinds: list[list[bytes] | str]) -> None:
    disk = FaultyDisk()
    log, values = filled(disk, kinds)
    headers = [(chunk.header, chunk.data_position, chunk.file.path) for chunk in read_chunks(log)]
    wanted = set(data.draw(st.lists(st.sampled_from(VALUES[1:]), min_size=1, max_size=3)))
    screen = ChunkMatcher(wanted, match_unfiltered=data.draw(st.booleans()))
    if screen.match_unfiltered:
        wanted.add(b"")
    for segment in log.segments.shown:
        if data.draw(st.integers(0, 3)) == 0:
            segment.drop_filters()
    some = st.sets(st.sampled_from(headers[:-1]), max_size=4) if headers[1:] else st.just(set())
    damaged = data.draw(some)
    for header, data_position, path in damaged:  # of checks, filters, trailers
        begin, end = data_position - header.data_start, data_position + header.data_size
        places = range(end, end + header.trailer_size)
        if not places or data.draw(st.integers(0, 3)) == 0:
            places = range(begin + CHECKED_HEADER_SIZE, data_position)  # its check, the filter
        disk.files[path].content[data.draw(st.sampled_from(places))] ^= data.draw(BYTES)
    start = data.draw(st.integers(0, max(values, default=0)))
    spec = at_offset(start) if data.draw(st.booleans()) else FIRST
    sizes = data.draw(st.sampled_from([(1, 1000), (1000, 51), (1000, 100), (1 << 20, 1000)]))
    matcher = screen if data.draw(st.booleans()) else None
    by_columns, whole = chosen(log, spec, matcher, screen, sizes)
    assert {values[offset] for offset in by_columns} <= wanted, "columns are exact"
    expected = {
        chunk.header.chunk_id + n: bytes(chunk.data[one.body : one.end])
        for chunk in read_chunks(log, spec)
        if chunk.data is not None and chunk.header.num_entries == chunk.header.num_records
        for n, one in enumerate(walk_entries(bytes(chunk.data)))
        if values[chunk.header.chunk_id + n] in wanted
    }
    found = by_columns | whole
    assert {offset: found.get(offset) for offset in expected} == expected


def test_little_is_read() -> None:
    """A read for each chunk, and one for each group of messages; what indexes rule out has none."""
    disk = FaultyDisk()
    log = Log.open("s", disk=disk)
    bodies = [bytes(1000)] * 256
    for n in range(40):
        values = [b"abcdefgh"[k % 8 :][:1] for k in range(256)]
        append(log, bodies, [*values[:-1], b"rare"] if n % 10 == 5 else values)
    append(log, [b"the newest is in memory"])
    for matcher, per_chunk, num_read in ((None, 1, 40), (ChunkMatcher([b"rare"]), 2, 4)):
        reader = Reader(log, log.segments.find(FIRST), matcher)
        disk.reads = 0
        rows = reader.read_rows(Asked(ChunkMatcher([b"rare"])), 1 << 20, 1 << 20)
        assert rows is not None
        assert rows.offsets == [256 * n + 255 for n in range(40) if n % 10 == 5]
        assert len(rows.chunk_ids) == reader.counts.chunks == num_read
        assert disk.reads <= per_chunk * num_read + 4 + 1
        assert reader.read_rows(Asked(ChunkMatcher([b"rare"])), 1 << 20, 1 << 20) is None, "newest"
        reader.close()


def test_turns_are_short() -> None:
    log = Log.open("s", disk=FaultyDisk())
    for _ in range(40):
        append(log, [b"x" * 100] * 64, [b"a", b"b"] * 32)
    for tests, max_bytes, max_units, num_taken in (
        (1, 1 << 20, 700, 5),  # 50 + 64 + 32 each
        (4, 1 << 20, 700, 3),
        (1, 1, 700, 1),
        (10, 1 << 20, 700, 1),
        (11, 1 << 20, 700, None),
    ):
        reader = Reader(log, log.segments.find(FIRST))
        rows = reader.read_rows(Asked(ChunkMatcher([b"b"]), tests), max_bytes, max_units)
        assert num_taken == (None if rows is None else len(rows.chunk_ids))
        reader.close()
