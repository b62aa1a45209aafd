"""The cache gives what was put into it, or says what is missing; never anything else."""

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from segments.disk import Buffer, OsDisk
from segments.errors import StorageError
from segments.store import cache as cache_module
from segments.store.cache import CachedSegment, ColdError, ColdFile, Pin, Range, TierCache
from segments.store.manifest import StoredFile, StoredSegment
from segments.store.object_names import StreamKey
from tests.support.disk import FaultyDisk, FaultyFile, Inode

_SIZE = 40_000
_MOST = 25_000
_BLOCK = 4_096
_KEY = StreamKey("/", "s", "1")
_PHASES = (Phase.explicit, Phase.generate)  # making a failure smaller takes minutes
_places = st.tuples(st.integers(0, _SIZE), st.integers(1, 12_000))


def _stored(number: int) -> StoredSegment:
    files = {".segment": StoredFile(_SIZE, 0), ".index": StoredFile(8, 0)}
    return StoredSegment(number, number + 1, 1, 0, 0, number, 1, f"{number:016x}", files)


def _content(number: int) -> bytes:
    return bytes((at * 7 + at // 251 + number) % 255 + 1 for at in range(_SIZE))  # no zeros


def _opened(folder: Path, most: int = _SIZE) -> tuple[TierCache, CachedSegment]:
    """An empty cache, and a segment of which nothing is in it."""
    cache = TierCache(str(folder), most)
    cache.clear()
    return cache, cache.segment(_KEY, _stored(0), "f")


class _File(FaultyFile):
    """A file whose room is counted in blocks."""

    def __init__(self, disk: FaultyDisk, path: str, inode: Inode, blocks: set[int]) -> None:
        super().__init__(disk, path, inode)
        self._blocks = blocks

    def write(self, parts: Sequence[Buffer], position: int) -> int:
        size = super().write([bytes(part) for part in parts], position)
        self._blocks.update(range(position // _BLOCK, -(-(position + size) // _BLOCK)))
        return size

    def fileno(self) -> int:
        """One that `_Disk.punch` knows it by."""
        return id(self.inode)


class _Disk(FaultyDisk):
    """A file system of the test's own: how much room files take is known, and never differs."""

    def __init__(self, *, punches: bool) -> None:
        super().__init__()
        self._punches = punches
        self._blocks: dict[int, set[int]] = {}
        self._inodes: dict[int, Inode] = {}

    def create(self, path: str) -> _File:
        super().create(path)
        self._inodes[id(self.files[path])] = self.files[path]
        return self.open(path, writable=True)

    def open(self, path: str, *, writable: bool) -> _File:
        super().open(path, writable=writable)
        inode = self.files[path]
        return _File(self, path, inode, self._blocks.setdefault(id(inode), set()))

    def punch(self, descriptor: int, start: int, size: int) -> bool:
        """What `punch_hole` does."""
        if self._punches:
            content, end = self._inodes[descriptor].content, start + size
            content[start:end] = bytes(len(content[start:end]))
            self._blocks[descriptor] -= set(range(-(-start // _BLOCK), end // _BLOCK))
        return self._punches

    def used(self) -> int:
        """Bytes that the files take which have a name."""
        return sum(len(self._blocks[id(inode)]) for inode in self.files.values()) * _BLOCK


class _Machine(RuleBasedStateMachine):
    """Three segments whose bytes are put, read, held and forgotten in any order."""

    punches = True

    @initialize()
    def begin(self) -> None:
        self.disk = _Disk(punches=self.punches)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(cache_module, "punch_hole", self.disk.punch)
        self.cache = TierCache("cache", _MOST, self.disk)
        self.cache.clear()
        self.content = [_content(n) for n in range(3)]
        self.cached = [self._segment(n) for n in range(3)]
        self.files: list[list[ColdFile]] = [[one.open()] for one in self.cached]
        self.last = 0, 0, 1
        self.pins: list[tuple[int, Range, Pin]] = []

    def _segment(self, number: int) -> CachedSegment:
        return self.cache.segment(_KEY, _stored(number), "f")

    @rule(number=st.integers(0, 2), place=_places)
    def put(self, number: int, place: tuple[int, int]) -> None:
        start, size = place
        self.cached[number].put(start, self.content[number][start : start + size]).release()
        self.last = number, start, size

    @rule(number=st.integers(0, 2), place=_places)
    def read(self, number: int, place: tuple[int, int]) -> None:
        start, size = place
        wanted = self.content[number][start : start + size]
        missing = self.cached[number].missing(start, start + size)
        for file in self.files[number]:
            if not missing:
                assert file.read(size, start) == wanted
                continue
            with pytest.raises(ColdError) as caught:
                file.read(size, start)
            assert caught.value.ranges == missing

    @rule(part=st.tuples(st.integers(0, 3), st.integers(1, 4)))
    def hold(self, part: tuple[int, int]) -> None:
        number, start, size = self.last
        start, size = start + size * part[0] // 4, size * part[1] // 4
        if not self.files[number]:
            return
        pin = self.cached[number].hold(start, start + size)
        if pin is not None:
            self.pins.append((number, Range(start, min(start + size, _SIZE)), pin))

    @rule()
    def let_go(self) -> None:
        if self.pins:
            self.pins.pop(0)[2].release()

    @rule(number=st.integers(0, 2))
    def open_or_close(self, number: int) -> None:
        held = any(at == number for at, _, _ in self.pins)
        if len(self.files[number]) > 1 or (self.files[number] and not held):
            self.files[number].pop().close()
        else:
            self.files[number].append(self.cached[number].open())

    @rule(number=st.integers(0, 2))
    def forget(self, number: int) -> None:
        self.cached[number].forget()

    @rule()
    def disk_is_full(self) -> None:
        self.cache.shrink(self.cache.num_bytes // 2)

    @invariant()
    def what_is_held_is_there(self) -> None:
        for number, (start, end), _ in getattr(self, "pins", ()):
            file = self.cached[number].file()
            found = file.read(end - start, start)
            assert found == self.content[number][start:end]

    @invariant()
    def it_keeps_to_its_size(self) -> None:
        if not hasattr(self, "cache"):
            return
        held = sum(end - start for _, (start, end), _ in self.pins)
        if self.punches:
            assert self.cache.num_bytes <= _MOST + 3 * held + 12_000
        if self.punches and not held:
            assert self.disk.used() <= _MOST + 64 * _BLOCK

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()
        for _, _, pin in getattr(self, "pins", ()):
            pin.release()
        for files in getattr(self, "files", ()):
            for file in files:
                file.close()


class _WithoutHoles(_Machine):
    punches = False


def test_any_order() -> None:
    machine = _Machine.TestCase()
    machine.settings = settings(max_examples=40, stateful_step_count=40, phases=_PHASES)
    machine.runTest()


def test_any_order_where_no_holes_can_be_punched() -> None:
    machine = _WithoutHoles.TestCase()
    machine.settings = settings(max_examples=20, stateful_step_count=40, phases=_PHASES)
    machine.runTest()


def test_readers_and_writers_in_threads(tmp_path: Path) -> None:
    """Four threads put and read the same segments, in a cache with room for a part of them."""
    cache = TierCache(str(tmp_path), _MOST)
    cache.clear()
    content = [_content(number) for number in range(3)]
    cached = [cache.segment(_KEY, _stored(number), "f") for number in range(3)]
    faults: list[str] = []

    def work(seed: int) -> None:
        files = [one.open() for one in cached]
        for turn in range(1_500):
            number, start = (turn + seed) % 3, (turn * 7_919 * (seed + 1)) % _SIZE
            wanted = content[number][start : start + 3_000]
            try:
                if files[number].read(3_000, start) != wanted:
                    faults.append(f"{number} at {start}")
            except ColdError as error:
                for gap in error.ranges:
                    error.cached.put(gap.start, content[number][gap.start : gap.end]).release()
        for file in files:
            file.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_two_who_put_the_same_while_the_cache_is_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has written, and not said so, when another puts the same and everything is to go."""
    cache, cached = _opened(tmp_path)
    add, content = cache.add, _content(0)

    def interrupted(one: CachedSegment, where: Range) -> list[Any]:
        monkeypatch.setattr(cache, "add", add)
        cached.put(0, content).release()
        cache.shrink(0)
        return add(one, where)

    monkeypatch.setattr(cache, "add", interrupted)
    cached.put(0, content).release()
    file = cached.open()
    assert file.read(_SIZE, 0) == content
    assert cache.num_bytes == _SIZE
    file.close()
    cache.shrink(0)
    assert cache.num_bytes == 0


def test_a_segment_that_was_forgotten_leaves_no_file(tmp_path: Path) -> None:
    cache, cached = _opened(tmp_path)
    file = cached.open()
    cached.put(0, _content(0)).release()
    cached.forget()
    assert file.read(100, 50) == _content(0)[50:150]  # who reads it can finish
    file.close()
    assert not list(tmp_path.iterdir())
    assert cache.num_bytes == 0


def test_what_is_left_of_an_earlier_server_goes(tmp_path: Path) -> None:
    Path(tmp_path, "00000000000000000000.0").write_bytes(b"?")
    TierCache(str(tmp_path), _SIZE).clear()
    assert not list(tmp_path.iterdir())


def test_a_segment_whose_objects_are_gone(tmp_path: Path) -> None:
    _, cached = _opened(tmp_path)
    cached.is_gone = True
    with pytest.raises(StorageError, match="not in the store") as caught:
        cached.open().read(10, 0)
    assert caught.value.is_missing


def test_nothing_is_written_to_a_cold_segment(tmp_path: Path) -> None:
    file = TierCache(str(tmp_path), 1).segment(_KEY, _stored(0), "f").open()
    for work in (lambda: file.write([b"x"], 0), lambda: file.truncate(0)):
        with pytest.raises(StorageError, match="cold"):
            work()


def test_a_file_without_a_name_is_not_believed_after_its_last_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first hole that cannot be punched is in a file that is read and written just then."""
    monkeypatch.setattr(cache_module, "punch_hole", lambda *_: False)
    content = _content(0)
    _, cached = _opened(tmp_path, 2_500)
    reader = cached.open()
    for start in (0, 1_000, 2_000, 4_000):
        cached.put(start, content[start : start + 1_000]).release()
    assert reader.read(1_000, 4_000) == content[4_000:5_000]
    reader.close()
    other = cached.open()
    for start in range(0, 6_000, 1_000):
        with suppress(ColdError):
            assert other.read(1_000, start) == content[start : start + 1_000]
    other.close()


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_a_file_that_somebody_else_removes_or_cuts(
    tmp_path: Path, harm: str, *, is_read: bool
) -> None:
    content = _content(0)
    _, cached = _opened(tmp_path, 12_000)
    cached.put(0, content[:10_000]).release()
    file = cached.open()
    if is_read:
        assert file.read(10, 0) == content[:10]
    (path,) = tmp_path.iterdir()
    path.unlink() if harm == "removed" else os.truncate(path, 3_000)
    for _ in range(2):
        try:
            assert file.read(5_000, 2_000) == content[2_000:7_000]
        except ColdError:
            cached.put(2_000, content[2_000:7_000]).release()
    assert file.read(5_000, 2_000) == content[2_000:7_000]
    cached.put(20_000, content[20_000:32_000]).release()  # others have to go
    assert file.read(5_000, 25_000) == content[25_000:30_000]
    file.close()
    with suppress(ColdError):
        assert cached.open().read(5_000, 25_000) == content[25_000:30_000]


def test_one_for_which_there_is_no_descriptor_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, cached = _opened(tmp_path, 12_000)
    cached.put(0, _content(0)[:10_000]).release()
    with monkeypatch.context() as patched:
        refused = StorageError("open", "f", OSError(errno.EMFILE, "too many open files"))
        patched.setattr(OsDisk, "open", Mock(side_effect=refused))
        cache.shrink(0)
    assert cached.open().read(10, 0) == _content(0)[:10]


def test_two_stored_segments_of_one_name_share_no_file(tmp_path: Path) -> None:
    """As a store may say that does not tell the truth."""
    cache = TierCache(str(tmp_path), _SIZE)
    cache.clear()
    first, second = (cache.segment(_KEY, _stored(0), folder) for folder in ("f", "g"))
    first.put(0, b"a" * 10).release()
    second.put(0, b"b" * 10).release()
    assert [one.open().read(10, 0) for one in (first, second)] == [b"a" * 10, b"b" * 10]


def test_a_file_of_which_nothing_is_left_goes(tmp_path: Path) -> None:
    cache = TierCache(str(tmp_path), _SIZE)
    cache.clear()
    for number in range(3):
        cache.segment(_KEY, _stored(number), "f").put(0, _content(number)).release()
    assert len(list(tmp_path.iterdir())) == 1


def test_who_reads_does_not_wait_until_all_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_SHRUNK_AT_ONCE", 2_000)
    cache, cached = _opened(tmp_path)
    for start in range(0, 20_000, 1_000):
        cached.put(start, _content(0)[start : start + 1_000]).release()
    shrink, parts = cache._shrink, []
    monkeypatch.setattr(cache, "_shrink", lambda most: (parts.append(most), shrink(most)))
    cache.shrink(500)
    assert cache.num_bytes == 0
    assert parts == [*range(18_000, 0, -2_000), 500]
