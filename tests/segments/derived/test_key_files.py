"""Key files of sealed segments and of one that grows, and whatever the device makes of them."""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from errno import EMFILE
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from segments import ChunkBuilder, Log, LogPolicy
from segments.derived import key_schedule as schedule
from segments.derived.key_files import keys_of, load, make_table
from segments.derived.key_schedule import adopt, next_task, tidy_up
from segments.derived.key_worker import Answer, decode_answer, decode_job, encode_job, work
from segments.disk import OsDisk
from segments.errors import FormatError, StorageError
from segments.format_constants import KEY_BLOCK_SIZE
from segments.keys import KeyReader, key_prints
from segments.message import Message
from segments.search.request import SearchRequest
from segments.search.search import Search, run
from segments.segment import (
    GROWING_KEYS_SUFFIX,
    INDEX_SUFFIX,
    KEYS_SUFFIX,
    SEGMENT_SUFFIX,
    KeyState,
    Segment,
)
from segments.verify import verify
from tests.support.disk import FaultyDisk
from tests.support.logs import append, entry, sub_batch

OLD_KEYS = Path(__file__).parents[2] / "vectors" / "keys" / "version-1.keys"
FOLDER = "s"
POLICY = LogPolicy(max_segment_chunks=4, key_properties=("k",))


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "FEW_BYTES", 1)


def message(key: object, name: str = "k") -> bytes:
    return Message(b"x" * 20, application_properties={name: key, "other": key}).encode()


def index_keys(log: Log, meanwhile: Callable[[], None] = lambda: None) -> int:
    """What the broker has done; how many tables were made.

    Args:
        meanwhile: called when a table was made, and nobody has taken it in.
    """
    number = 0
    while (task := next_task(log)) is not None:
        assert decode_job(encode_job(task.job)) == task.job
        make_table(task.segment.disk, task.job)
        meanwhile()
        task.segment.keys = adopt(task)
        tidy_up(task)
        number += 1
    return number


def check(log: Log, keys: list[object], per_chunk: int = 1) -> None:
    """No chunk with a key is left out; and none without one is in, as prints differ here."""
    at = 0
    for segment in log.segments.shown:
        index = keys_of(segment)
        for ordinal in range(segment.num_chunks):
            for key in keys[at : at + per_chunk]:
                found = chunks_with(segment, key)
                if found is not None and index is not None and ordinal < index.num_chunks:
                    assert ordinal in found, (segment, key)
            at += per_chunk
        found = chunks_with(segment, "nowhere")
        assert found in (None, [])


def chunks_with(segment: Segment, key: object, name: str = "k") -> list[int] | None:
    index = keys_of(segment)
    if index is None or name not in index.properties:
        return None
    forms = KeyReader([name]).read(message(key, name))
    found = index.chunks_with(key_prints([name], forms))
    return None if found is None else list(found)


def filled(disk: FaultyDisk, count: int = 10, policy: LogPolicy = POLICY) -> Log:
    log = Log.open(FOLDER, policy, disk)
    for number in range(count):
        append(log, [message(f"a{number}"), message(number)])
    return log


KEYS: list[object] = [key for number in range(10) for key in (f"a{number}", number)]


def lies(content: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Bits flipped, blocks zeroed, lengths, other versions, nothing."""
    places = (*range(60), *range(4090, 4110), *range(61, len(content), 397), len(content) - 1)
    for at in places:
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        yield f"byte {at} changed", bytes(changed)
    for at in (0, 7, 8, 50, 4095, 4096, 4097, len(content) - 1):
        yield f"cut to {at}", content[:at]
    for at in range(0, len(content), KEY_BLOCK_SIZE):
        yield f"zeros from {at}", content[:at] + bytes(KEY_BLOCK_SIZE) + content[at + 4096 :]
    for version in (1, 3):
        yield f"version {version}", content[:4] + version.to_bytes(4, "big") + content[8:]
    yield "longer", content + bytes(40)
    yield "missing", None


class TestOfSealedSegments:
    def test_a_shortage_of_descriptors_is_no_fault_of_the_file(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Or all of them would be rebuilt after one."""
        disk = FaultyDisk()
        log = filled(disk)
        index_keys(log)

        def refuse(path: str, **_: object) -> None:
            raise StorageError("open", path, OSError(EMFILE, "Too many open files"))

        with monkeypatch.context() as patched:
            patched.setattr(disk, "open", refuse)
            assert chunks_with(log.segments.shown[0], 1) is None, "any chunk may have it"
        assert chunks_with(log.segments.shown[0], 1) == [1]

    def test_what_is_wrong_is_told(self) -> None:
        disk = FaultyDisk()
        log = filled(disk)
        index_keys(log)
        log.close()
        content = disk.files[f"{FOLDER}/{0:020d}{KEYS_SUFFIX}"].content
        content[5_000] ^= 1
        (finding,) = verify(disk, FOLDER)
        assert "checksum" in str(finding)
        log = Log.open(FOLDER, POLICY, disk)
        assert chunks_with(log.segments.shown[0], "a1") is None
        assert log.segments.shown[0].keys is not None
        assert "checksum" in log.segments.shown[0].keys.fault
        assert keys_of(log.segments.shown[0]) is None
        content[50] ^= 1
        segment = log.segments.shown[0]
        segment.keys, segment.key_state = None, KeyState.UNKNOWN
        assert keys_of(segment) is None
        assert "checksum" in segment.key_fault

    def test_the_same_sizes_and_times(self) -> None:
        """Not a byte differs in the indexes of two segments; their last chunks tell."""
        disks = []
        for key in ("a", "b"):
            disk = FaultyDisk()
            log = Log.open(FOLDER, POLICY, disk)
            for _ in range(5):
                append(log, [message(key)])
            index_keys(log)
            disks.append(disk)
        path = f"{FOLDER}/{0:020d}"
        one, other = (disk.files for disk in disks)
        assert one[path + INDEX_SUFFIX].content == other[path + INDEX_SUFFIX].content
        other[path + KEYS_SUFFIX] = one[path + KEYS_SUFFIX]
        with pytest.raises(FormatError, match="older state"):
            load(log.segments.shown[0])

    def test_what_a_power_failure_cut_and_others_replaced(self) -> None:
        disk = FaultyDisk()
        log = Log.open(FOLDER, POLICY, disk)
        append(log, [message("a")])
        log.flush()
        for _ in range(4):
            append(log, [message("a")])
        index_keys(log)
        path = f"{FOLDER}/{0:020d}{KEYS_SUFFIX}"
        before = copy.deepcopy(disk.files[path])
        disk.cut_power({}, {})
        log = Log.open(FOLDER, POLICY, disk)
        assert log.committed_offset == 1
        assert path not in disk.files
        for _ in range(4):
            append(log, [message("b")])
        disk.files[path] = before  # a removal that the device forgot
        log.segments.shown[0].key_state = KeyState.UNKNOWN
        assert keys_of(log.segments.shown[0]) is None
        index_keys(log)
        assert chunks_with(log.segments.shown[0], "b") == [1, 2, 3]
        assert chunks_with(log.segments.shown[0], "a") == [0]

    def test_damaged_segments_have_none(self) -> None:
        disk = FaultyDisk()
        log = filled(disk)
        segment = log.segments.shown[0]
        disk.files[segment.path(SEGMENT_SUFFIX)].content[80] ^= 1
        task = next_task(log)
        while task is not None and task.segment is not segment:
            make_table(disk, task.job)
            task.segment.keys = adopt(task)
            task = next_task(log)
        assert task is not None
        with pytest.raises(FormatError, match="the chunk at byte 8 fails its checksum"):
            make_table(disk, task.job)
        disk.files[segment.path(SEGMENT_SUFFIX)].content[8 + 31] ^= 1
        with pytest.raises(FormatError, match="the segment is damaged"):
            make_table(disk, task.job)
        segment.drop_keys()
        index_keys(log)
        check(log, KEYS, 2)

    def test_a_table_that_ends_earlier_is_not_the_one_that_was_asked_for(self) -> None:
        """Whoever made it was late: chunks behind its end would be searched for no key."""
        disk = FaultyDisk()
        log = filled(disk, 2)
        early = next_task(log)
        append(log, [message("late")])
        late = next_task(log)
        assert early is not None
        assert late is not None
        assert late.job.end.num_chunks > early.job.end.num_chunks
        make_table(disk, early.job)
        with pytest.raises(FormatError, match="has another table"):
            adopt(late)


class TestOfVersion1:
    """They stay as they are: what is in a store would never be made again."""

    def test_they_are_asked(self) -> None:
        disk, log = self.logged()
        segment = log.segments.shown[0]
        assert [chunks_with(segment, f"a{n}") for n in range(4)] == [[0], [0, 1, 2], [2], []]
        assert [chunks_with(segment, n) for n in (0, 39, 40)] == [[0, 3], [3], []]
        index = keys_of(segment)
        assert index is not None
        held = index.asked([key_prints(["k"], [b"=a1"]), key_prints(["k"], [b"#0"])])
        assert held == ({0: 3, 1: 1, 2: 1, 3: 2}, {}), "it does not say which messages"
        for key, expected in (("a1", [1, 3, 4, 6, 47]), ("0", [2, 7]), ("39", [46]), ("x", [])):
            for newest in (False, True):
                wanted = SearchRequest(keys=(key,), properties=("k",), newest=newest)
                search = Search(log, wanted, 7, 0)
                found = [one.offset for one in run(search).messages]
                assert found == expected[:: -1 if newest else 1]
                assert search.looked_at.segments_indexed == 1
        assert next_task(log).segment is not segment  # type: ignore[union-attr]
        assert list(verify(disk, FOLDER)) == []
        assert disk.files[segment.path(KEYS_SUFFIX)].content == OLD_KEYS.read_bytes()

    def test_whatever_the_device_gives_back(self) -> None:
        content = OLD_KEYS.read_bytes()
        for what, changed in lies(content):
            if what == "version 1":
                continue  # it is
            disk, log = self.logged()
            segment = log.segments.shown[0]
            if changed is None:
                del disk.files[segment.path(KEYS_SUFFIX)]
            else:
                disk.files[segment.path(KEYS_SUFFIX)].content[:] = changed
            wanted = SearchRequest(keys=("a1",), properties=("k",))
            found = [one.offset for one in run(Search(log, wanted, 7, 0)).messages]
            assert found == [1, 3, 4, 6, 47], what

    def logged(self) -> tuple[FaultyDisk, Log]:
        """A log of two segments; of the first there is a file as it was made before."""
        disk = FaultyDisk()
        log = Log.open(FOLDER, POLICY, disk)
        append(log, [message("a0"), message("a1"), message(0)])
        append(log, [message("a1"), message("a1")])
        builder = ChunkBuilder()
        builder.add(sub_batch(entry(message("a2")) + entry(message("a1")), 2), 1, 2, None)
        log.append([builder], 1_700_000_000_000)
        append(log, [message(number) for number in range(40)])
        append(log, [message("a1")])
        segment = log.segments.shown[0]
        disk.create(segment.path(KEYS_SUFFIX)).write([OLD_KEYS.read_bytes()], 0)
        segment.key_state = KeyState.UNKNOWN
        log.segments.shown[1].key_state = KeyState.KNOWN
        return disk, log


class TestOfASegmentThatGrows:
    def test_they_go_with_their_segment(self) -> None:
        """Sealed, and removed before anybody has made its own file."""
        disk = FaultyDisk()
        log = filled(disk, 3)
        index_keys(log)
        for number in range(3, 6):
            append(log, [message(number)])
        log.flush(with_checkpoint=True)
        log.policy = replace(POLICY, max_length_bytes=1)
        assert [path for path in disk.files if path.endswith(GROWING_KEYS_SUFFIX)]
        log.expire(0).run()
        assert log.segments.first_offset > 0
        assert not [path for path in disk.files if ".keys" in path]

    @pytest.mark.parametrize(("limit", "number"), [("FEW_BYTES", 1_000), ("FEW_CHUNKS", 5)])
    def test_a_few_chunks_or_bytes_are_worth_a_table(
        self, monkeypatch: pytest.MonkeyPatch, limit: str, number: int
    ) -> None:
        for name in ("FEW_BYTES", "FEW_CHUNKS"):
            monkeypatch.setattr(schedule, name, number if name == limit else sys.maxsize)
        log = Log.open(FOLDER, replace(POLICY, max_segment_chunks=1_000), FaultyDisk())
        for _ in range(3):
            known = log.segments.shown[0]
            before = known.num_chunks if limit == "FEW_CHUNKS" else known.size
            while index_keys(log) == 0:
                after = known.num_chunks if limit == "FEW_CHUNKS" else known.size
                assert after - before < number
                append(log, [message("a")])
            assert known.keys is not None
            assert known.keys.num_chunks == known.num_chunks

    def test_the_file_is_never_much_larger_than_its_tables(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And what is written for that is bounded: each byte is moved once more."""
        monkeypatch.setattr(schedule, "SPARE_BYTES", spare := 100_000)
        log = Log.open(FOLDER, replace(POLICY, max_segment_chunks=10_000), disk := FaultyDisk())
        segment, path = log.segments.shown[0], f"{FOLDER}/{0:020d}{GROWING_KEYS_SUFFIX}"
        num_new, written, keys = 0, 0, list[object]()
        for number in range(600):
            keys += [f"{number}-{one}" for one in range(100)]
            append(log, list(map(message, keys[-100:])))
            assert index_keys(log) == 1
            assert segment.keys is not None
            tables = segment.keys.tables
            written += tables[-1].end - tables[-1].position
            num_new += number > 0 and len(tables) == 1 and tables[0].position == 0
            live = sum(table.end - table.position for table in tables)
            assert len(disk.files[path].content) <= 3 * live + spare
            assert len(tables) <= (number + 1).bit_length()
        assert 1 < num_new < 20
        assert written < 2 * live * (600).bit_length() + 600 * 2 * KEY_BLOCK_SIZE
        for number in range(0, 600, 37):
            assert chunks_with(segment, f"{number}-{number % 100}") == [number]

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_a_damaged_table_is_not_taken_in(self, place: int) -> None:
        disk = FaultyDisk()
        log = filled(disk, 1)
        index_keys(log)
        path = f"{FOLDER}/{0:020d}{GROWING_KEYS_SUFFIX}"
        if place == 2:
            disk.files[path].content[:] = b""
        else:
            disk.files[path].content[5_000 * place + 40] ^= 1
        append(log, [message("a1"), message(1)])
        task = next_task(log)
        assert task is not None
        assert task.job.tables
        with pytest.raises(FormatError):
            make_table(disk, task.job)
        task.segment.keys = None
        index_keys(log)
        check(log, KEYS[:4], 2)
        assert chunks_with(log.segments.shown[0], "a1") == [1]

    def test_who_asks_while_it_is_sealed_gets_no_wrong_answer(self) -> None:
        """An index that was taken before is of a file that is gone."""
        disk = FaultyDisk()
        log = filled(disk, 4)
        index_keys(log)
        before = keys_of(log.segments.shown[0])
        assert before is not None
        append(log, [message("a4"), message(4)])
        index_keys(log)
        assert before.chunks_with(key_prints(["k"], [b"=a1"])) is None
        assert chunks_with(log.segments.shown[0], "a1") == [1]


class Machine:
    """A log, and what was written to it."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.log = Log.open(FOLDER, POLICY, self.disk)
        self.chunks: dict[int, list[int]] = {}  # by chunk id, the keys

    def append(self, numbers: list[int]) -> None:
        self.chunks[append(self.log, [message(number) for number in numbers])] = numbers

    def index(self) -> None:
        index_keys(self.log, self.search)

    def full(self) -> None:
        used = sum(len(inode.content) for inode in self.disk.files.values())
        self.disk.capacity = used + 5_000
        with suppress(StorageError):
            index_keys(self.log)
        self.disk.capacity = None

    def properties(self) -> None:
        names = ("k", "other") if self.log.policy.key_properties == ("k",) else ("k",)
        self.log.policy = replace(self.log.policy, key_properties=names)

    def expire(self) -> None:
        self.log.flush(with_checkpoint=True)
        policy = self.log.policy
        self.log.policy = replace(policy, max_length_bytes=1_000)
        self.log.expire(0).run()
        self.log.policy = policy

    def close(self) -> None:
        self.log.close()
        self._open()

    def kill(self) -> None:
        self.log.abandon()
        self._open()

    def power(self) -> None:
        self.log.abandon()
        self.disk.cut_power({}, {})
        self._open()

    def _open(self) -> None:
        self.log = Log.open(FOLDER, self.log.policy, self.disk)
        for chunk in [one for one in self.chunks if one >= self.log.committed_offset]:
            del self.chunks[chunk]

    def search(self) -> None:
        """All is found, whatever the tables know."""
        for number in {0, *(self.chunks[max(self.chunks)] if self.chunks else ())}:
            wanted = SearchRequest(keys=(str(number),), properties=("k",))
            found = [one.offset for one in run(Search(self.log, wanted, 7, 0)).messages]
            assert found == [
                chunk + place
                for chunk, numbers in self.chunks.items()
                for place, one in enumerate(numbers)
                if one == number
                and self.log.segments.first_offset <= chunk < self.log.committed_offset
            ]

    def check(self) -> None:
        self.search()
        for segment in self.log.segments.shown:
            index = keys_of(segment)
            with segment.index() as records:
                for ordinal in range(0 if index is None else index.num_chunks):
                    for number in self.chunks[records.record(ordinal).chunk_id]:
                        assert ordinal in (chunks_with(segment, number) or ())


STEPS = ("index", "index", "full", "properties", "expire", "close", "kill", "power")


@given(
    st.lists(
        st.one_of(
            st.lists(st.integers(0, 12), min_size=1, max_size=3),
            st.lists(st.integers(0, 12), min_size=1, max_size=3),
            st.sampled_from(STEPS),
        ),
        max_size=30,
    ),
    st.sampled_from((-(1 << 20), 0, 1 << 20)),
)
def test_no_key_is_ever_missed(steps: list[list[int] | str], spare: int) -> None:
    """Whether files are started again all the time, now and then, or never."""
    machine = Machine()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schedule, "SPARE_BYTES", spare)
        _go(machine, steps)


def _go(machine: Machine, steps: list[list[int] | str]) -> None:
    for step in steps:
        if isinstance(step, str):
            getattr(machine, step)()
        else:
            machine.append(step)
        machine.check()


class TestTheProcess:
    def test_answers(self, tmp_path: object) -> None:
        folder = f"{tmp_path}/s"
        log = Log.open(folder, POLICY, OsDisk())
        for number in range(5):
            append(log, [message(number)])
        task = next_task(log)
        assert task is not None
        assert work(encode_job(task.job)) == Answer()
        task.segment.keys = adopt(task)
        assert chunks_with(task.segment, 3) == [3]
        missing = task.job._replace(base_offset=77)
        assert "No such file" in work(encode_job(missing)).fault
        damaged = task.job._replace(end=task.job.end._replace(num_chunks=9))
        assert work(encode_job(damaged)).fault == "the segment is damaged"
        assert work(b"[1]").is_bug
        assert decode_answer(b'["x", true, false, false]') == Answer("x", is_temporary=True)
        log.close()
