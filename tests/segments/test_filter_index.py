"""The filter index: the same chunks as by reading every header, without the false positives."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from segments import FIRST, ChunkBuilder, ChunkMatcher, Log, LogPolicy, Reader, at_offset
from segments.bloom import filter_keys
from segments.derived.filter_files import scan, shape_of
from segments.disk import File
from segments.errors import FormatError
from segments.filter_index import FilterFile, FilterIndex, fingerprint
from segments.segment import Segment
from tests.segments.layout import FILTER_INDEX, FILTER_INDEX_HEADER
from tests.support.disk import FaultyDisk

LONG = b"x" * 300
VALUES = st.sampled_from((b"a", b"b", b"c", b"", LONG, b"\xff\0"))
CHUNKS = st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=30)


def builder(values: Sequence[bytes]) -> ChunkBuilder:
    made = ChunkBuilder()
    data = b"".join(b"\0\0\0\1x" for _ in values)
    made.add(data, len(values), len(values), list(values) if any(values) else None)
    return made


def filled(disk: FaultyDisk, chunks: Sequence[Sequence[bytes]], per_segment: int = 7) -> Log:
    log = Log.open("s", LogPolicy(max_segment_chunks=per_segment), disk)
    for values in chunks:
        log.append([builder(values)], 1)
    return log


def read(log: Log, matcher: ChunkMatcher, start: int = 0) -> tuple[list[int], Reader]:
    spec = FIRST if not start else at_offset(start)
    reader = Reader(log, log.segments.find(spec), matcher)
    found: list[int] = []
    while not reader.at_end:
        found += [chunk.header.chunk_id for chunk in reader.read(5, 1 << 20, 3)]
    reader.close()
    return found, reader


def wanted(
    log_start: Sequence[Sequence[bytes]], matcher: ChunkMatcher, start: int = 0
) -> list[int]:
    """The chunks that truly hold a wanted message, by their ids."""
    found, offset = [], 0
    for values in log_start:
        end = offset + len(values)
        asked = matcher.values & set(values) or (matcher.match_unfiltered and b"" in values)
        if end > start and (asked or offset < matcher.since):
            found.append(offset)
        offset = end
    return found


@given(CHUNKS, st.integers(0, 40))
def test_chunks_from_before_are_never_skipped(chunks: list[list[bytes]], since: int) -> None:
    log = filled(FaultyDisk(), chunks)
    matcher = ChunkMatcher([b"a"], since=since)
    assert read(log, matcher)[0] == wanted(chunks, matcher)


@given(CHUNKS, st.integers(0, 30))
def test_what_is_scanned_is_what_was_written(chunks: list[list[bytes]], opened_at: int) -> None:
    """The writer's index, one read from the chunks, and one of both halves are equal."""
    disk = FaultyDisk()
    log = filled(disk, chunks[:opened_at], 1000)
    log.close()
    log = Log.open("s", LogPolicy(max_segment_chunks=1000), disk)
    for values in chunks[opened_at:]:
        log.append([builder(values)], 1)
    (segment,) = log.segments.shown
    if opened_at and segment.filters is None:
        log.indexes.adopt(segment, scan(segment, log.indexes.size_of(segment)), 0)
    whole = scan(segment, segment.size)
    assert isinstance(segment.filters, FilterIndex)
    assert vars(segment.filters) == vars(whole)


def sealed(tmp_path: Path, chunks: Sequence[Sequence[bytes]]) -> tuple[Log, Segment]:
    log = Log.open(str(tmp_path / "s"), LogPolicy(max_segment_chunks=len(chunks)))
    for values in (*chunks, [b"next"]):
        log.append([builder(values)], 1)
    return log, log.segments.shown[0]


CHUNKS_OF_ONE = [[b"a", b"b"], [b""], [b"b", b""], [LONG], [b""], [b"a"]]


def test_the_file_is_as_declared(tmp_path: Path) -> None:
    log, segment = sealed(tmp_path, CHUNKS_OF_ONE)
    assert isinstance(segment.filters, FilterIndex)
    raw = segment.filters.encode(shape_of(segment))
    FILTER_INDEX_HEADER.parse(raw[:8])
    parsed = FILTER_INDEX.parse(raw[8:])
    assert (parsed.segment_size, parsed.base_offset, parsed.num_chunks) == (segment.size, 0, 6)
    assert list(parsed.fingerprints) == sorted(
        fingerprint(key) for key in filter_keys({b"a", b"b", b"", LONG})
    )
    assert FILTER_INDEX.build(parsed) == raw[8:]
    log.close()


def test_any_damage_of_the_file_is_found(tmp_path: Path) -> None:
    log, segment = sealed(tmp_path, CHUNKS_OF_ONE)
    assert isinstance(segment.filters, FilterIndex)
    raw = segment.filters.encode(shape_of(segment))
    shape = shape_of(segment)
    FilterFile(raw, shape)
    padding = range(52, 56)
    for cut in range(len(raw)):
        with pytest.raises(FormatError):
            FilterFile(raw[:cut], shape)
        if cut not in padding:
            flipped = bytearray(raw)
            flipped[cut] ^= 1 << cut % 8
            with pytest.raises(FormatError):
                FilterFile(bytes(flipped), shape)
    with pytest.raises(FormatError, match="another segment"):
        FilterFile(raw, shape._replace(base_offset=7))
    log.close()


def test_chunks_whose_filter_may_be_wrong_are_looked_at(tmp_path: Path) -> None:
    """A flipped bit in header, filter or trailer: delivered, as without an index."""
    log, segment = sealed(tmp_path, [[b"a"], [b"b"], [b"c"]])
    path = Path(segment.path())
    raw = bytearray(path.read_bytes())
    index = segment.filters
    assert index is not None
    raw[index.positions[1] + 48 + 3] ^= 4  # in the filter of the second chunk
    path.write_bytes(raw)
    rebuilt = scan(segment, segment.size)
    assert list(rebuilt.uncertain) == [1]
    segment.filters = rebuilt
    assert read(log, ChunkMatcher([b"a"]))[0] == [0, 1]
    log.close()


@given(CHUNKS, st.integers(1, 9), st.integers(1, 60), st.integers(0, 40))
def test_many_small_chunks_are_read_as_one_by_one(
    chunks: list[list[bytes]], max_chunks: int, max_bytes: int, start: int
) -> None:
    log = filled(FaultyDisk(), chunks)
    spec = at_offset(min(start, log.committed_offset - 1))
    found = []
    for is_fast in (True, False):
        reader = Reader(log, log.segments.find(spec))
        if not is_fast:
            reader._read_run = lambda *_: 0  # type: ignore[method-assign]
        got = []
        while not reader.at_end:
            part = reader.read(max_chunks, max_bytes, 100)
            assert len(part) <= max_chunks
            got += [(c.header, c.raw_header, bytes(c.data or b""), c.data_position) for c in part]
        found.append((got, vars(reader.counts)))
        reader.close()
    assert found[0] == found[1]


def test_what_is_kept_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limits chunks are looked at by their filters, and none is lost."""
    monkeypatch.setattr("segments.filter_index.MAX_KEYS", 10)
    monkeypatch.setattr("segments.filter_index.MAX_POSTINGS", 60)
    chunks = [[b"%d" % n, b"%d" % (n + 1)] for n in range(30)] + [[b"1", b"2"]] * 40
    log = filled(FaultyDisk(), chunks, 1000)
    (segment,) = log.segments.shown
    index = segment.filters
    assert isinstance(index, FilterIndex)
    assert len(index.postings) <= 10
    assert sum(map(len, index.postings.values())) <= 60
    for value in (b"1", b"2", b"25", b"30", b"none"):
        matcher = ChunkMatcher([value])
        assert set(read(log, matcher)[0]) >= set(wanted(chunks, matcher))


@given(
    st.lists(st.sampled_from((b"a", b"b", b"c", b"")), min_size=3, max_size=40),
    st.sampled_from((b"a", b"b", b"c")),
    st.booleans(),
    st.integers(0, 40),
)
def test_only_segments_without_a_match_are_left_out(
    values: list[bytes], value: bytes, match_unfiltered: bool, start: int
) -> None:
    """Two chunks of a value each to a segment: many have no match at all."""
    chunks = [[one] for one in values]
    log = filled(FaultyDisk(), chunks, per_segment=2)
    start = min(start, len(values) - 1)
    matcher = ChunkMatcher([value], match_unfiltered=match_unfiltered)
    opened: set[int] = set()
    for segment in log.segments.shown:
        segment.acquire = _noting(segment, opened)  # type: ignore[method-assign]
    found, reader = read(log, matcher, start)
    expected = wanted(chunks, matcher, start)
    assert found == expected
    counts = reader.counts
    assert counts.chunks + counts.skipped_chunks == len(values) - start
    # Where something is, the one behind what was delivered, and the newest.
    places = {start, *expected, *(offset + 1 for offset in expected)}
    needed = {log.segments.holding(offset).base_offset for offset in places}
    assert opened <= needed | {log.segments.shown[-1].base_offset}


def _noting(segment: Segment, opened: set[int]) -> Callable[[], File]:
    acquire = segment.acquire

    def noting() -> File:
        opened.add(segment.base_offset)
        return acquire()

    return noting
