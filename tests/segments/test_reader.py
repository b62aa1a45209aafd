"""Reading forward: nothing lost, nothing twice, filters only leave out what cannot match."""

import random
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from segments import (
    FIRST,
    ChunkBuilder,
    ChunkMatcher,
    Log,
    LogPolicy,
    Reader,
    StorageError,
    at_offset,
    bloom,
)
from segments.format_constants import MMH3_SCHEME
from tests.support.disk import FaultyDisk
from tests.support.logs import append, bodies_of, entry, read_bodies, read_chunks, sub_batch

CHUNKS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"a", b"b", b"c", b"dd", b"e" * 300]),
            st.integers(0, 30_000).map(lambda size: b"x" * size) | st.binary(max_size=20),
        ),
        min_size=1,
        max_size=5,
    ),
    max_size=12,
)


@given(
    chunks=CHUNKS,
    sizes=st.lists(st.sampled_from([16, 17, 64, 255]), min_size=1, max_size=3),
    wanted=st.sets(st.sampled_from([b"a", b"b", b"dd", b"e" * 300, b"zz"]), min_size=1),
    match_unfiltered=st.booleans(),
    start=st.integers(0, 40),
    max_chunks=st.integers(1, 5),
    max_steps=st.integers(1, 5),
)
def test_no_match_is_ever_lost(
    chunks: list[list[tuple[bytes, bytes]]],
    sizes: list[int],
    wanted: set[bytes],
    match_unfiltered: bool,
    start: int,
    max_chunks: int,
    max_steps: int,
) -> None:
    """Against the messages themselves, with filter sizes that change from chunk to chunk."""
    log = Log.open("s", disk=FaultyDisk())
    expected, number = [], 0
    for at, messages in enumerate(chunks):
        log.policy = LogPolicy(filter_size=sizes[at % len(sizes)], max_segment_chunks=4)
        values, bodies = zip(*messages, strict=True)
        chunk_id = append(log, bodies, None if at % 3 == 0 and not any(values) else values)
        if chunk_id + len(messages) > start:
            expected += [
                (chunk_id + n, body)
                for n, (value, body) in enumerate(messages)
                if value in wanted or (match_unfiltered and not value)
            ]
        number += len(messages)
    matcher = ChunkMatcher(wanted, match_unfiltered=match_unfiltered)
    spec = at_offset(start) if start < number else FIRST
    if start >= number:
        expected = []
    found = bodies_of(read_chunks(log, spec, matcher, max_chunks=max_chunks, max_steps=max_steps))
    if start < number:
        assert set(expected) <= set(found)
    assert [offset for offset, _ in found] == sorted({offset for offset, _ in found})
    everything = bodies_of(read_chunks(log, max_chunks=max_chunks, max_steps=max_steps))
    assert [offset for offset, _ in everything] == list(range(number))
    assert set(found) <= set(everything)


def test_a_hundred_thousand_chunks_of_changing_filter_sizes_hide_nothing() -> None:
    """Straight on the filter: sizes 0, 16 and 255 in turn, the true sets beside them."""
    generator = random.Random(7)
    universe = [b"value-%d" % n for n in range(300)]
    matchers = [
        ChunkMatcher(generator.sample(universe, k), match_unfiltered=k == 2) for k in (1, 2, 5)
    ]
    false_positives = 0
    for number in range(100_000):
        size = (16, 255, 64)[number % 3]
        values = set(generator.choices(universe, k=number % 5))
        if number % 7 == 0:
            values.add(b"")
        filter_bytes = bloom.build(values, size)
        for matcher in matchers:
            wanted = bool(values & matcher.values)
            if matcher.match_unfiltered and (b"" in values or not values):
                wanted = True
            said = matcher.matches(MMH3_SCHEME, len(filter_bytes), filter_bytes)
            assert said or not wanted
            false_positives += said and not wanted
    assert 0 < false_positives < 1500


def test_skipped_chunks_are_counted_and_not_read() -> None:
    disk = FaultyDisk()
    log = Log.open("s", disk=disk)
    for n in range(50):
        append(log, [b"x" * 100_000], [b"rare" if n == 30 else b"common"])
    reader = Reader(log, log.segments.find(FIRST), ChunkMatcher([b"rare"]))
    disk.reads = 0
    chunks = reader.read(10, 1 << 20, 1000)
    assert [c.header.chunk_id for c in chunks] == [30]
    assert chunks[0].data is None  # large: for sendfile
    reader.read(10, 1 << 20, 1000)
    assert reader.at_end
    assert (reader.counts.chunks, reader.counts.skipped_chunks) == (1, 49)
    assert reader.counts.skipped_bytes == sum(
        h.header.total_size for h in read_chunks(log) if h.header.chunk_id != 30
    )
    reader.close()


def test_chunks_from_before_a_start_match_when_their_segment_has_grown(tmp_path: Path) -> None:
    """What is known of the new ones says nothing of these."""
    for body, value in ((b"old", b"a"), (b"new", b"b")):
        log = Log.open(str(tmp_path))
        append(log, [body], [value])
        assert read_bodies(log, matcher=ChunkMatcher([value])) == [body]
        assert b"old" in read_bodies(log, matcher=ChunkMatcher([b"a"]))
        log.close()


def test_small_chunks_are_read_many_at_a_time() -> None:
    disk = FaultyDisk()
    log = Log.open("s", disk=disk)
    for n in range(1000):
        append(log, [b"%d" % n])
    reader = Reader(log, log.segments.find(FIRST))
    disk.reads = 0
    assert len(reader.read(1000, 1 << 20, 1000)) == 1000
    assert disk.reads < 10
    reader.close()


@pytest.mark.parametrize(
    ("limit", "expected"), [((3, 1 << 20, 9), 3), ((9, 1, 9), 1), ((9, 9, 2), 2)]
)
def test_a_call_does_no_more_than_asked(limit: tuple[int, int, int], expected: int) -> None:
    log = Log.open("s", disk=FaultyDisk())
    for _ in range(9):
        append(log, [b"x"])
    reader = Reader(log, log.segments.find(FIRST))
    assert len(reader.read(*limit)) == expected
    reader.close()


def test_a_reader_at_the_end_goes_on_when_there_is_more(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), LogPolicy(max_segment_chunks=2))
    reader = Reader(log, log.segments.find(FIRST))
    found = []
    for n in range(7):
        assert reader.at_end
        assert reader.read(10, 1 << 20, 10) == []
        append(log, [b"%d" % n])
        assert not reader.at_end
        found += [body for _, body in bodies_of(reader.read(10, 1 << 20, 10))]
    assert found == [b"%d" % n for n in range(7)]
    reader.close()
    log.close()


def test_a_reader_never_sees_a_failed_append() -> None:
    disk = FaultyDisk()
    log = Log.open("s", disk=disk)
    append(log, [b"one"])
    disk.failures = {"write": 2}  # the chunk itself, so that nothing is cut back
    reader = Reader(log, log.segments.find(FIRST))
    for _ in range(2):
        with pytest.raises(StorageError, match="Input/output"):
            append(log, [b"two"])
    assert len(reader.read(10, 1 << 20, 10)) == 1
    assert reader.at_end
    assert read_bodies(log) == [b"one"]
    reader.close()


@given(
    appends=st.lists(
        st.lists(
            st.tuples(st.sampled_from([b"", b"a", b"b"]), st.sampled_from([1, 300, 4_000, 70_000])),
            min_size=1,
            max_size=4,
        ),
        max_size=8,
    ),
    wanted=st.sampled_from([None, b"a"]),
    rhythm=st.lists(st.integers(0, 3), min_size=1),
    max_chunks=st.integers(1, 3),
)
def test_what_is_read_as_it_comes_is_what_is_in_the_file(
    appends: list[list[tuple[bytes, int]]],
    wanted: bytes | None,
    rhythm: list[int],
    max_chunks: int,
) -> None:
    """What was appended last may come from memory: readers that keep up see the same chunks."""
    log = Log.open("s", LogPolicy(max_segment_chunks=5), FaultyDisk())
    reader = Reader(log, log.segments.find(FIRST), ChunkMatcher([wanted]) if wanted else None)
    seen = []

    def read_on() -> None:
        for chunk in reader.read(max_chunks, 1 << 20, 10):
            data = chunk.data
            if data is None:
                data = memoryview(chunk.file.read(chunk.header.data_size, chunk.data_position))
            seen.append((chunk.raw_header, bytes(data), chunk.data_position))

    for number, group in enumerate(appends):
        builders = []
        for value, size in group:
            builder = ChunkBuilder()
            builder.add(entry(bytes(size)), 1, 1, [value] if value else None)
            builders.append(builder)
        log.append(builders, 1_700_000_000_000)
        for _ in range(rhythm[number % len(rhythm)]):
            read_on()
    while not reader.at_end:
        read_on()
    reader.close()
    values = [value for group in appends for value, _ in group]
    assert seen == [
        (
            chunk.raw_header,
            chunk.file.read(chunk.header.data_size, chunk.data_position),
            chunk.data_position,
        )
        for chunk, value in zip(read_chunks(log), values, strict=True)
        if wanted is None or value == wanted
    ]


@pytest.mark.parametrize("values", [None, [b"a"]])
def test_little_that_was_just_appended_is_not_read(values: list[bytes] | None) -> None:
    disk = FaultyDisk()
    log = Log.open("s", disk=disk)
    readers = [
        Reader(log, log.segments.find(FIRST), ChunkMatcher(values) if values else None)
        for _ in range(2)
    ]
    disk.reads = 0
    for size in (1, 3_000, 1, 50_000):
        assert not disk.reads
        append(log, [bytes(size)], values)
        for reader in readers:
            assert [len(body) for _, body in bodies_of(reader.read(9, 1 << 20, 9))] == [size]
    assert disk.reads  # much of it is not kept in memory
    for reader in readers:
        reader.close()


@pytest.mark.parametrize("has_sub_batches", [False, True])
@pytest.mark.parametrize("wrong", [1, 9, 11, 25, 4_000])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("chunks_a_segment", [2, 100])
def test_a_wrong_count_in_a_header_costs_no_other_chunk(
    tmp_path: Path, chunks_a_segment: int, number: int, wrong: int, has_sub_batches: bool
) -> None:
    log = Log.open(str(tmp_path / "s"), LogPolicy(max_segment_chunks=chunks_a_segment))
    for first in range(0, 40, 10):
        _append_ten(log, first, in_a_sub_batch=has_sub_batches)
    path, position = _place_of(log, number)
    with path.open("r+b") as file:
        file.seek(position + _NUM_RECORDS_AT)
        assert int.from_bytes(file.read(4), "big") == 10
        file.seek(position + _NUM_RECORDS_AT)
        file.write(wrong.to_bytes(4, "big"))
    reader = Reader(log, log.segments.find(FIRST))
    found = _read_to_end(reader)
    _append_ten(log, 40, in_a_sub_batch=has_sub_batches)
    found += _read_to_end(reader)
    reader.close()
    log.close()
    others = {0, 10, 20, 30, 40} - {number * 10}
    assert others <= set(found)
    assert found == sorted(set(found))


_NUM_RECORDS_AT = 4


def _append_ten(log: Log, first: int, *, in_a_sub_batch: bool) -> None:
    builder = ChunkBuilder()
    data = b"".join(entry(b"%d" % number) for number in range(first, first + 10))
    if in_a_sub_batch:
        builder.add(sub_batch(data, 10), 1, 10, None)
    else:
        builder.add(data, 10, 10, None)
    log.append([builder], first)


def _place_of(log: Log, number: int) -> tuple[Path, int]:
    """The file of a chunk, and where it begins there."""
    reader = Reader(log, log.segments.find(at_offset(number * 10)))
    (chunk,) = reader.read(1, 1, 10)
    segment = log.segments.holding(number * 10)
    reader.close()
    return Path(segment.path()), chunk.data_position - chunk.header.data_start


def _read_to_end(reader: Reader) -> list[int]:
    """The ids of all chunks; a reader that does not come to the end fails."""
    found: list[int] = []
    for _ in range(100):
        if reader.at_end:
            return found
        found += [chunk.header.chunk_id for chunk in reader.read(2, 1 << 20, 10)]
    raise AssertionError(f"stands at {reader.next_offset}")
