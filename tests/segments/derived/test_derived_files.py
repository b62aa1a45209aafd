"""A device that gives back something else than was written, for each file beside the segments.

What a segment holds is what was confirmed. All other files are derived, or say how far things have
come: whatever is read from them, consumers get the messages of the segments, with a filter and
without, from each offset and time, and the log takes more.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from segments import FIRST, LAST, ChunkMatcher, Log, LogPolicy, at_offset, at_time
from segments.codec import INDEX_RECORD_SIZE
from segments.derived.filter_files import load_or_build
from segments.errors import UndecidedError
from segments.filter_index import FilterFile
from segments.message import Message
from segments.search.request import SearchRequest
from segments.search.search import Search, run as search_all
from segments.segment import FILTER_SUFFIX, INDEX_SUFFIX
from tests.segments.derived.test_key_files import index_keys, small_tables
from tests.support.disk import FaultyDisk, Inode
from tests.support.logs import append, bodies_of, read_bodies, read_chunks

__all__ = ["small_tables"]  # a fixture

FOLDER = "s"
START_MS = 1_700_000_000_000
POLICY = LogPolicy(max_segment_chunks=4, filter_size=16)
NUM_CHUNKS = 10
BODIES = [b"%d" % n for n in range(2 * NUM_CHUNKS)]  # two in a chunk


def value_of(number: int) -> bytes:
    return b"v%d" % (number // 2 % 3)


def index_all(log: Log) -> None:
    """What the server's indexer does."""
    for segment in log.segments.shown:
        size, is_sealed = log.indexes.size_of(segment), log.segments.is_sealed(segment)
        filters = load_or_build(segment, size, is_sealed)
        if filters is not None:
            log.indexes.adopt(segment, filters, size)


def small_log() -> FaultyDisk:
    """Three segments with all that may stand beside them, closed in order."""
    disk = FaultyDisk()
    log = Log.open(FOLDER, POLICY, disk)
    for number in range(0, len(BODIES), 2):
        values = [value_of(number)] * 2
        sequences = {b"p": number + 2}
        now_ms = START_MS + 10 * number
        append(log, BODIES[number : number + 2], values, now_ms=now_ms, sequences=sequences)
        if number == 8:
            log.journal.tracking.store_offset(b"app", 3)
            log.flush(with_checkpoint=True)
    index_all(log)
    log.journal.tracking.store_offset(b"app", 7)
    log.filter_demand.add([b"v1"])
    log.close()
    return disk


def derived(disk: FaultyDisk) -> list[str]:
    marks = {path for path, inode in disk.files.items() if not inode.content}
    return sorted(path for path in disk.files.keys() - marks if not path.endswith(".segment"))


class Lie(NamedTuple):
    """What a device gives back in place of what was written to one file."""

    path: str
    what: str
    content: bytes | None
    unreadable: range = range(0)

    def tell(self, files: dict[str, Inode]) -> None:
        if self.content is None:
            del files[self.path]
        else:
            files[self.path].content[:] = self.content
            files[self.path].unreadable = self.unreadable


def lies(disk: FaultyDisk, page: int) -> Iterator[Lie]:
    """Each byte changed, each page zeroed or not readable, each length, no file at all."""
    for path in derived(disk):
        content = bytes(disk.files[path].content)
        for at in range(len(content)):
            changed = bytearray(content)
            changed[at] ^= 0xFF if at % 2 else 1 << at % 8
            yield Lie(path, f"byte {at} changed", bytes(changed))
            if at < 10 or not at % 7:  # records have 29 bytes: each place in one has its turn
                yield Lie(path, f"cut to {at} bytes", content[:at])
        if path.endswith(INDEX_SUFFIX):
            yield from misplaced(path, content)
        yield from page_lies(path, content, page)
        yield Lie(path, "missing", None)
        yield Lie(path, "longer", content + bytes(40))


def misplaced(path: str, content: bytes) -> Iterator[Lie]:
    """A record stands where its neighbour should."""
    size, ends = INDEX_RECORD_SIZE, range(8 + INDEX_RECORD_SIZE, len(content), INDEX_RECORD_SIZE)
    for at in ends:
        before, after = content[at - size : at], content[at : at + size]
        yield Lie(path, f"{at} twice", content[: at - size] + after + content[at:])
        yield Lie(path, f"before {at} twice", content[:at] + before + content[at + size :])


def page_lies(path: str, content: bytes, page: int) -> Iterator[Lie]:
    for at in range(0, len(content), page):
        zeros = bytes(len(content[at : at + page]))
        yield Lie(path, f"zeros from {at}", content[:at] + zeros + content[at + page :])
        yield Lie(path, f"unreadable from {at}", content, range(at, at + page))


def check_reading(log: Log) -> None:
    """All ways to begin give what the segments hold."""
    for start in (0, 5, 7, 15):
        found = bodies_of(read_chunks(log, at_offset(start)))
        first = found[0][0]
        assert start - 2 < first <= start
        assert found == list(enumerate(BODIES))[first:]
        after = at_time(START_MS + 10 * start - 5)
        assert read_bodies(log, after) == BODIES[start + start % 2 :]
    assert read_bodies(log, LAST) == BODIES[-2:]
    assert read_bodies(log, at_time(START_MS + 10**6)) == []
    check_filters(log)


def check_filters(log: Log) -> None:
    for value in (b"v0", b"v2"):
        wanted = [body for number, body in enumerate(BODIES) if value_of(number) == value]
        matcher = ChunkMatcher([value])
        found = read_bodies(log, FIRST, matcher)
        assert [body for body in found if body in wanted] == wanted


def check(disk: FaultyDisk) -> None:
    """A log that is opened on what the device gives back."""
    log = Log.open(FOLDER, POLICY, disk)
    assert log.report.losses == ()
    assert (log.segments.num_lost, log.committed_offset) == (0, len(BODIES))
    assert log.journal.tracking.sequence(b"p") == len(BODIES)
    assert log.journal.tracking.offset(b"app") in (None, 3, 7)
    check_reading(log)
    index_all(log)
    check_filters(log)
    assert log.segments.num_lost == 0
    append(log, [b"after"], [b"v0"])
    log.close()
    log = Log.open(FOLDER, POLICY, disk)
    assert log.report.losses == log.report.steps == ()
    assert read_bodies(log) == [*BODIES, b"after"]


def test_whatever_the_device_gives_back_at_the_start() -> None:
    original = small_log()
    names = {path.rpartition(".")[2] for path in derived(original)}
    assert names == {"index", "filter", "s/checkpoint", "s/tracking", "json"}
    for lie in lies(original, page=32):
        disk = copy.deepcopy(original)
        lie.tell(disk.files)
        # Stored offsets are in no segment, and nothing else tells what was not on the device.
        if lie.path in (f"{FOLDER}/tracking", f"{FOLDER}/checkpoint") and lie.unreadable:
            with pytest.raises(UndecidedError):
                Log.open(FOLDER, POLICY, disk)
            disk.create(f"{FOLDER}/salvage")
        try:
            check(disk)
        except Exception as error:
            raise AssertionError(f"{lie.path}: {lie.what}") from error


def test_whatever_the_device_gives_back_while_a_log_is_open() -> None:
    disk = small_log()
    log = Log.open(FOLDER, POLICY, disk)
    index_all(log)
    for lie in lies(disk, page=32):
        original = copy.deepcopy(disk.files)
        lie.tell(disk.files)
        try:
            check_reading(log)
            log.segments.shown[0].drop_filters()
            index_all(log)
            check_filters(log)
            assert log.segments.num_lost == 0
        except Exception as error:
            raise AssertionError(f"{lie.path}: {lie.what}") from error
        disk.files = original
        log.segments.shown[0].filters = load_or_build(log.segments.shown[0], 0, True)


# -- searches, with key files beside the others

KEYED = replace(POLICY, key_properties=("k",))
ORDERS = [
    Message(b"x", application_properties={"k": n % 5, "v": value_of(n).decode()}).encode()
    for n in range(20)
]


def keyed_log() -> FaultyDisk:
    """Two sealed segments with key and filter files, and one that grows, with a key table."""
    disk = FaultyDisk()
    log = Log.open(FOLDER, KEYED, disk)
    for number in range(0, len(ORDERS), 2):
        values = [value_of(number)] * 2
        append(log, ORDERS[number : number + 2], values, now_ms=START_MS + 10 * number)
    index_all(log)
    index_keys(log)
    log.close()
    return disk


def sampled_lies(disk: FaultyDisk) -> Iterator[Lie]:
    """Some of what there may be of the files that searches read; key files have large pages."""
    paths = [path for path in derived(disk) if path.endswith((INDEX_SUFFIX, FILTER_SUFFIX, "keys"))]
    for path in paths:
        content = bytes(disk.files[path].content)
        for at in (*range(0, min(len(content), 80), 7), *range(81, len(content), 997)):
            changed = bytearray(content)
            changed[at] ^= 1 << at % 8
            yield Lie(path, f"byte {at} changed", bytes(changed))
        for at in (0, 8, 50, len(content) - 1):
            yield Lie(path, f"cut to {at} bytes", content[:at])
        yield from page_lies(path, content, 4096)
        yield Lie(path, "missing", None)
        yield Lie(path, "longer", content + bytes(40))


def check_searches(log: Log) -> None:
    """All messages, those with a key, and those with a filter value, in both orders."""
    wanted = {
        SearchRequest(limit=100): range(20),
        SearchRequest(keys=("3",), properties=("k",), limit=100): range(3, 20, 5),
        SearchRequest(keys=("3", "4"), properties=("k",), limit=100, newest=True): [
            n for n in range(19, -1, -1) if n % 5 > 2
        ],
        SearchRequest(
            filter_values=(b"v1",), filter_properties=("v",), from_ms=START_MS + 65, limit=100
        ): [n for n in range(8, 20) if value_of(n) == b"v1"],
    }
    for asked, offsets in wanted.items():
        page = search_all(Search(log, asked, 1, START_MS))
        assert [found.offset for found in page.messages] == list(offsets), asked
        assert all(found.raw == ORDERS[found.offset] for found in page.messages)


def mend_keys(log: Log) -> None:
    """What the broker does with key files that are wrong, see KeyUpkeep."""
    for segment in log.segments.shown:
        if segment.keys is not None and segment.keys.fault:
            segment.keys = None
    index_keys(log)


@pytest.mark.parametrize("is_open", [False, True])
def test_searches_find_everything_whatever_the_device_gives_back(is_open: bool) -> None:
    original = keyed_log()
    assert any(path.endswith("keys") for path in derived(original))
    for lie in sampled_lies(original):
        disk = copy.deepcopy(original)
        if not is_open:
            lie.tell(disk.files)
        log = Log.open(FOLDER, KEYED, disk)
        if is_open:
            index_all(log)
            index_keys(log)
            lie.tell(disk.files)
        try:
            check_searches(log)
            index_all(log)
            mend_keys(log)
            check_searches(log)
            assert log.segments.num_lost == 0
        except Exception as error:
            raise AssertionError(f"{lie.path}: {lie.what}") from error
        log.close()


@pytest.fixture(scope="module")
def large_log() -> FaultyDisk:
    """A segment of 600 chunks, whose index has several pages, and the beginning of the next."""
    disk = FaultyDisk()
    log = Log.open(FOLDER, LogPolicy(max_segment_chunks=600), disk)
    for number in range(620):
        append(log, [b"%d" % number], [b"v%d" % (number % 7)], now_ms=START_MS + number)
    index_all(log)
    log.close()
    return disk


@pytest.mark.parametrize("page", [512, 4096])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_page_of_an_index_is_lost(large_log: FaultyDisk, page: int, is_open: bool) -> None:
    """Consumers begin where they asked to, and the file gets back what it should hold."""
    path = f"{FOLDER}/{0:020d}{INDEX_SUFFIX}"
    content = bytes(large_log.files[path].content)
    for lie in page_lies(path, content, page):
        disk = copy.deepcopy(large_log)
        if not is_open:
            lie.tell(disk.files)
        log = Log.open(FOLDER, LogPolicy(max_segment_chunks=600), disk)
        if is_open:
            lie.tell(disk.files)
        for offset in range(0, 620, 17):
            assert log.segments.find(at_offset(offset)).offset == offset, lie.what
            assert log.segments.find(at_time(START_MS + offset)).offset == offset, lie.what
        assert disk.files[path].content == content, lie.what
        assert log.segments.num_lost == 0


def test_a_wrong_index_is_walked_once(large_log: FaultyDisk) -> None:
    disk = copy.deepcopy(large_log)
    log = Log.open(FOLDER, LogPolicy(max_segment_chunks=600), disk)
    disk.files[f"{FOLDER}/{0:020d}{INDEX_SUFFIX}"].content[4096:8192] = bytes(4096)
    log.segments.find(at_offset(200))
    disk.reads = 0
    for offset in range(100, 400):
        log.segments.find(at_offset(offset))
    assert disk.reads < 300 * 20


def test_whatever_the_device_gives_back_of_a_damage_file() -> None:
    """The other messages are delivered, and the damage is found again where it is met."""
    original = small_log()
    segment = f"{FOLDER}/{0:020d}.segment"
    original.files[segment].content[8:12] = bytes(4)  # the first chunk
    original.files[f"{FOLDER}/{0:020d}{INDEX_SUFFIX}"].content.append(0)  # so it is noticed
    Log.open(FOLDER, POLICY, original).close()
    path = f"{FOLDER}/{0:020d}.damage"
    for lie in lies(original, page=32):
        if lie.path != path:
            continue
        disk = copy.deepcopy(original)
        lie.tell(disk.files)
        log = Log.open(FOLDER, POLICY, disk)
        for _ in range(2):
            assert read_bodies(log) == BODIES[2:], lie.what
            found = read_bodies(log, FIRST, ChunkMatcher([b"v1"]))
            assert {body for body in BODIES[2:] if value_of(int(body)) == b"v1"} <= set(found)
            index_all(log)
        log.close()


class TestFilterFilesOfOtherContent:
    def test_what_a_power_failure_cut_and_others_replaced(self) -> None:
        """The filter file is on the device before its segment, and outlives the end of it."""
        disk = FaultyDisk()
        log = Log.open(FOLDER, POLICY, disk)
        append(log, [b"0"], [b"a"])
        log.flush()
        for number in range(1, 5):
            append(log, [b"%d" % number], [b"a"])
        index_all(log)
        path = f"{FOLDER}/{0:020d}{FILTER_SUFFIX}"
        before = copy.deepcopy(disk.files[path])
        disk.cut_power({}, {})
        assert disk.files[path].content == before.content
        log = Log.open(FOLDER, POLICY, disk)
        assert log.committed_offset == 1
        assert path not in disk.files
        for number in range(1, 5):
            append(log, [b"%d" % number], [b"b"])
        disk.files[path] = before  # a removal that the device forgot
        index_all(log)
        assert read_bodies(log, FIRST, ChunkMatcher([b"b"])) == [b"1", b"2", b"3", b"4"]
        assert read_bodies(log, FIRST, ChunkMatcher([b"a"])) == [b"0"]

    def test_files_of_the_version_before_are_made_again(self) -> None:
        disk = small_log()
        path = f"{FOLDER}/{0:020d}{FILTER_SUFFIX}"
        content = disk.files[path].content
        wanted = bytes(content)
        content[4:8] = (1).to_bytes(4, "big")
        content[48:56] = bytes(8)  # where there was padding
        log = Log.open(FOLDER, POLICY, disk)
        assert log.report.steps == log.report.losses == ()
        index_all(log)
        assert disk.files[path].content == wanted
        check_filters(log)


def test_a_filter_file_that_is_cut_while_it_is_used(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path / "s"), LogPolicy(max_segment_chunks=1_000))
    for number in range(1_001):
        append(log, [b"%d" % number], [b"v%d" % number])
    index_all(log)
    segment = log.segments.shown[0]
    assert isinstance(segment.filters, FilterFile)
    with Path(segment.path(FILTER_SUFFIX)).open("r+b") as file:
        file.truncate(0)
    assert read_bodies(log, FIRST, ChunkMatcher([b"v900"])) == [b"900"]
    log.close()


class TestNothingIsIndexedBeforeItIsCommitted:
    """A turn fills a segment and begins the next; nothing of it is flushed when it is indexed."""

    @pytest.mark.parametrize("adopted", ["before the flush", "after the flush"])
    @pytest.mark.parametrize("num_before", [0, 2])
    def test_after_a_restart(self, adopted: str, num_before: int) -> None:
        disk = FaultyDisk()
        log = Log.open(FOLDER, POLICY, disk)
        for number in range(num_before):
            append(log, [b"%d" % number], [b"before"])
        log.close()
        log = Log.open(FOLDER, POLICY, disk, commits_on_flush=True)
        for number in range(num_before, 6):
            append(log, [b"%d" % number], [b"a"])  # which an index of what was there has not
        (segment,) = log.segments.shown
        flush = log.begin_flush()
        size, is_sealed = log.indexes.size_of(segment), log.segments.is_sealed(segment)
        filters = load_or_build(segment, size, is_sealed)
        assert filters is not None
        adopt: Callable[[], None] = lambda: log.indexes.adopt(segment, filters, size)  # noqa: E731
        if adopted == "before the flush":
            adopt()
        assert f"{FOLDER}/{0:020d}{FILTER_SUFFIX}" not in disk.files
        flush.run()
        log.end_flush(flush)
        if adopted == "after the flush":
            adopt()
        wanted = [b"%d" % number for number in range(num_before, 6)]
        assert read_bodies(log, FIRST, ChunkMatcher([b"a"])) == wanted
        index_all(log)
        assert read_bodies(log, FIRST, ChunkMatcher([b"a"])) == wanted
        log.close()
        log = Log.open(FOLDER, POLICY, disk)
        index_all(log)
        assert read_bodies(log, FIRST, ChunkMatcher([b"a"])) == wanted
