"""Reading forward: nothing lost, nothing twice, filters only leave out what cannot match."""

from pathlib import Path

import pytest

from segments import (
    FIRST,
    ChunkBuilder,
    ChunkMatcher,
    Log,
    LogPolicy,
    Reader,
    at_offset,
)
from tests.support.disk import FaultyDisk
from tests.support.logs import append, bodies_of, entry, read_bodies, sub_batch


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
