"""A device that does not give back some bytes of a segment: the rest is delivered."""

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from segments import FIRST, ChunkMatcher, Log, LogPolicy, Reader, StorageError, at_offset
from segments.codec import CHUNK_HEADER_SIZE, FILE_HEADER_SIZE
from segments.errors import UndecidedError, UnreadableError
from segments.segment import walk_headers
from tests.segments.derived.test_derived_files import FOLDER, index_all
from tests.support.disk import FaultyDisk
from tests.support.logs import append, read_bodies, store_offset

POLICY = LogPolicy(max_segment_chunks=5, filter_size=16)
NUM = 12
SECTOR = 64


@pytest.fixture(scope="module")
def original() -> FaultyDisk:
    disk = FaultyDisk()
    log = Log.open(FOLDER, POLICY, disk)
    for number in range(NUM):
        append(log, [b"%d" % number], [b"v%d" % (number % 2)], sequences={b"p": number + 1})
    index_all(log)
    log.close()
    return disk


def spans(disk: FaultyDisk) -> dict[int, tuple[str, int, int]]:
    """Of each chunk the segment, where it begins, and where its data ends."""
    log, found = Log.open(FOLDER, POLICY, copy.deepcopy(disk)), {}
    for segment in log.segments.shown:
        for at, header in walk_headers(segment, segment.acquire()):
            found[header.chunk_id] = (segment.path(), at, at + header.data_start + header.data_size)
    return found


def sectors(disk: FaultyDisk, suffix: str = "") -> Iterator[tuple[str, range]]:
    """All places that a device may refuse to read."""
    for path in sorted(disk.files):
        if path.endswith(suffix):
            for at in range(0, len(disk.files[path].content), SECTOR):
                yield path, range(at, at + SECTOR)


@pytest.mark.parametrize("is_open", [False, True])
def test_every_chunk_that_can_be_read_is_delivered(original: FaultyDisk, is_open: bool) -> None:
    where = spans(original)
    for path, bad in sectors(original, ".segment"):
        hit = {
            number
            for number, (of, start, end) in where.items()
            if of == path and start < bad.stop and bad.start < end
        }
        readable = [b"%d" % number for number in range(NUM) if number not in hit]
        disk = copy.deepcopy(original)
        if not is_open:
            disk.files[path].unreadable = bad
        log = Log.open(FOLDER, POLICY, disk)
        disk.files[path].unreadable = bad
        assert log.committed_offset == NUM
        for _ in range(2):
            found = read_bodies(log)
            # A trailer in the sector alone: its chunk is delivered, or damaged at the start.
            assert set(readable) - set(found) <= {b"%d" % n for n in touched(where, path, bad)}
            assert found == sorted(set(found), key=int)
            for value in (b"v0", b"v1"):
                wanted = [body for body in found if int(body) % 2 == int(value[1:])]
                assert set(wanted) <= set(read_bodies(log, FIRST, ChunkMatcher([value])))
            index_all(log)
        for number in map(int, found):
            assert read_bodies(log, at_offset(number))[0] == b"%d" % number
        assert log.segments.num_lost <= len(hit | touched(where, path, bad))


def touched(where: dict[int, tuple[str, int, int]], path: str, bad: range) -> set[int]:
    """Chunks of which any byte is in the sector, trailers included."""
    starts = sorted((start, number) for number, (of, start, _) in where.items() if of == path)
    ends = [start for start, _ in starts[1:]] + [1 << 40]
    return {
        number
        for (start, number), end in zip(starts, ends, strict=True)
        if start < bad.stop and bad.start < end
    }


def test_what_was_read_before_is_handed_out() -> None:
    """One bad sector far behind in what is read ahead: nothing before it is lost, nor after."""
    disk = FaultyDisk()
    log = Log.open(FOLDER, LogPolicy(), disk)
    for number in range(300):
        append(log, [(b"%d" % number).ljust(1_000)])
    inode = disk.files[log.segments.shown[0].path()]
    inode.unreadable = range(200_000, 200_001)
    disk.reads = 0
    reader = Reader(log, log.segments.find(FIRST))
    found: list[int] = []
    while not reader.at_end:
        found += [chunk.header.chunk_id for chunk in reader.read(50, 1 << 20, 100)]
    (lost,) = set(range(300)) - set(found)
    assert found == sorted(found)
    assert reader.counts.lost_records == log.segments.num_lost == 1
    assert log.segments.shown[0].damage
    assert disk.reads < 600  # those after it in one go again
    reader.close()
    assert lost == (200_000 - FILE_HEADER_SIZE) // ((len(inode.content) - FILE_HEADER_SIZE) // 300)


def test_a_refusal_of_another_kind_hands_out_what_was_read() -> None:
    """It may pass: nothing is taken for damaged, and the reader goes on where it was."""
    disk = FaultyDisk()
    log = Log.open(FOLDER, POLICY, disk)
    for number in range(5):
        append(log, [(b"%d" % number).ljust(60_000)], [b"v"])
    reader = Reader(log, log.segments.find(FIRST), ChunkMatcher([b"v"]))
    found: list[int] = []
    refuse_later = iter([0, 0, 1])  # a header and four chunks come first
    original = disk.maybe_fail

    def maybe_fail(operation: str, path: str) -> None:
        disk.failures["read"] = next(refuse_later, 0)
        original(operation, path)

    disk.maybe_fail = maybe_fail  # type: ignore[method-assign]
    while not reader.at_end:
        found += [chunk.header.chunk_id for chunk in reader.read(9, 1 << 20, 100)]
    assert found == [0, 1, 2, 3, 4]
    assert not log.segments.num_lost
    disk.maybe_fail = original  # type: ignore[method-assign]
    disk.failures["read"] = 1
    with pytest.raises(StorageError):
        read_bodies(log)


def test_a_device_that_is_gone_is_not_taken_for_damage(original: FaultyDisk) -> None:
    disk = copy.deepcopy(original)
    log = Log.open(FOLDER, POLICY, disk)
    for path, inode in disk.files.items():
        if path.endswith(".segment"):
            inode.unreadable = range(len(inode.content))
    with pytest.raises(UnreadableError):
        read_bodies(log)
    assert not log.segments.num_lost
    for inode in disk.files.values():
        inode.unreadable = range(0)
    assert len(read_bodies(log)) == NUM


@pytest.mark.parametrize("matcher", [None, ChunkMatcher([b"v"])])
def test_a_segment_that_somebody_cuts(matcher: ChunkMatcher | None) -> None:
    disk = FaultyDisk()
    log = Log.open(FOLDER, POLICY, disk)
    for number in range(8):
        append(log, [b"%d" % number], [b"v"])
    content = disk.files[log.segments.shown[0].path()].content
    size = (len(content) - FILE_HEADER_SIZE) // 5
    del content[FILE_HEADER_SIZE + 2 * size + CHUNK_HEADER_SIZE + 3 :]
    assert read_bodies(log, FIRST, matcher) == [b"0", b"1", b"5", b"6", b"7"]
    assert log.segments.num_lost == 3


def test_an_index_that_is_of_no_help(original: FaultyDisk) -> None:
    """A chunk's header still says where the next one is."""
    disk = copy.deepcopy(original)
    log = Log.open(FOLDER, POLICY, disk)
    path, _, end = spans(original)[1]
    disk.files[path].unreadable = range(end - 1, end)
    disk.files[path.replace("segment", "index")].content[:] = b""
    assert read_bodies(log) == [b"%d" % number for number in range(NUM) if number != 1]


# -- what the device refuses to read while a log is opened, and gives back the next time


def closed(log: Log, _disk: FaultyDisk) -> None:
    log.close()


def killed(_log: Log, _disk: FaultyDisk) -> None:
    pass


def torn(_log: Log, disk: FaultyDisk) -> None:
    newest = max(path for path in disk.files if path.endswith(".segment"))
    disk.files[newest].content += bytes(40)


def without_checkpoint(log: Log, disk: FaultyDisk) -> None:
    log.close()
    del disk.files[f"{FOLDER}/checkpoint"]


def without_side_files(log: Log, disk: FaultyDisk) -> None:
    log.close()
    for path in [path for path in disk.files if path.endswith((".index", "checkpoint"))]:
        del disk.files[path]


def damaged(log: Log, disk: FaultyDisk) -> None:
    """A chunk in the middle was damaged before, and is known to be."""
    log.close()
    path, start, _ = spans(disk)[6]
    disk.files[path].content[start + CHUNK_HEADER_SIZE :][:20] = bytes(20)
    del disk.files[path.replace("segment", "index")]
    Log.open(FOLDER, POLICY, disk).close()


STATES = (closed, killed, torn, without_checkpoint, without_side_files, damaged)


def opened(disk: FaultyDisk) -> Log | None:
    """The log; None where opening it is refused, and has changed nothing but what a crash left."""
    with suppress(UndecidedError):
        return Log.open(FOLDER, POLICY, disk)
    return None


def left_by(state: Callable[[Log, FaultyDisk], None]) -> FaultyDisk:
    disk = FaultyDisk()
    log = Log.open(FOLDER, POLICY, disk)
    for number in range(NUM):
        values = [b"v%d" % (number % 2)]
        append(log, [b"%d" % number], values, sequences={b"p%d" % (number % 3): number})
        if number == 7:
            store_offset(log, b"c", 5)
            log.flush(with_checkpoint=True)
    index_all(log)
    state(log, disk)
    return disk


def everything(log: Log) -> tuple[object, ...]:
    sequences = [log.journal.tracking.sequence(b"p%d" % n) for n in range(3)]
    return read_bodies(log), sequences, log.journal.tracking.offset(b"c"), log.next_offset


@pytest.mark.parametrize("state", STATES)
def test_what_is_refused_once_is_there_the_next_time(
    state: Callable[[Log, FaultyDisk], None],
) -> None:
    original = left_by(state)
    wanted = everything(Log.open(FOLDER, POLICY, copy.deepcopy(original)))
    num_refused = 0
    for path, bad in sectors(original):
        disk = copy.deepcopy(original)
        inode = disk.files[path]
        inode.unreadable = bad
        for _ in range(3):
            log = opened(disk)
            if log is None:
                num_refused += 1
                assert not any("quarantine" in name for name in disk.files), (path, bad)
            else:
                assert set(read_bodies(log)) <= set(wanted[0])  # type: ignore[call-overload]
                log.close()
        inode.unreadable = range(0)
        log = Log.open(FOLDER, POLICY, disk)
        assert everything(log) == wanted, (path, bad)
        assert log.report.losses == (), (path, bad)
        log.close()
        log = Log.open(FOLDER, POLICY, disk)
        assert log.report.steps == log.report.losses == (), (path, bad)
    assert num_refused


@pytest.mark.parametrize("state", STATES)
def test_an_operator_gives_up_what_stays_unreadable(
    state: Callable[[Log, FaultyDisk], None],
) -> None:
    original = left_by(state)
    where = spans(original)
    wanted = read_bodies(Log.open(FOLDER, POLICY, copy.deepcopy(original)))
    for path, bad in sectors(original):
        disk = copy.deepcopy(original)
        disk.files[path].unreadable = bad
        if opened(copy.deepcopy(disk)) is not None:
            continue
        disk.create(f"{FOLDER}/salvage")
        log = Log.open(FOLDER, POLICY, disk)
        assert f"{FOLDER}/salvage" not in disk.files
        found = read_bodies(log)
        hit = touched(where, path, bad) if path.endswith(".segment") else set()
        end = min((number for number in hit if b"%d" % number not in found), default=NUM)
        assert found[: len(wanted[:end])] == [body for body in wanted if int(body) < end]
        disk.files[path].unreadable = range(0)  # what is written anew gets another sector
        append(log, [b"after"])
        log.close()
        log = Log.open(FOLDER, POLICY, disk)
        again = read_bodies(log)
        assert again[-1] == b"after"
        assert set(found) <= set(again)
        assert log.report.losses == ()


def test_what_a_torn_end_may_hide_is_copied_whole_or_not_cut() -> None:
    """The device refuses to read what has to be kept of an end that a crash has torn."""
    disk = left_by(killed)
    (path, start, _), (_, other, _) = spans(disk)[10], spans(disk)[11]
    inode = disk.files[path]
    inode.content[start] ^= 1
    before, inode.unreadable = bytes(inode.content), range(other + 10, other + 11)
    for _ in range(3):
        assert opened(disk) is None
    assert inode.content == before
    assert not any("quarantine" in name for name in disk.files)
    inode.unreadable = range(0)
    log = Log.open(FOLDER, POLICY, disk)
    assert log.next_offset == 10
    (kept,) = (inode for name, inode in disk.files.items() if "quarantine" in name)
    assert kept.content == before[start:]


def test_what_is_cut_off_is_kept_as_far_as_it_can_be_read() -> None:
    """Behind the checkpoint the log ends where it cannot be read, and its end goes aside."""
    disk = FaultyDisk()
    log = Log.open(FOLDER, LogPolicy(), disk)
    for number in range(4):
        append(log, [(b"%d" % number) * 9_000])
    inode = disk.files[log.segments.shown[0].path()]
    inode.unreadable = range(10_000, 10_100)
    with pytest.raises(UndecidedError, match=f"create the file {FOLDER}/salvage to keep what can"):
        Log.open(FOLDER, LogPolicy(), disk)
    disk.create(f"{FOLDER}/salvage")
    log = Log.open(FOLDER, LogPolicy(), disk)
    assert read_bodies(log) == [b"0" * 9_000]
    (kept,) = (inode for path, inode in disk.files.items() if "quarantine" in path)
    assert all((b"%d" % number) * 9_000 in kept.content for number in (2, 3))
