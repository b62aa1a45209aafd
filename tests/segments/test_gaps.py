"""A machine goes down: the log goes on behind a gap, so that no offset means two messages."""

from contextlib import suppress
from itertools import pairwise
from random import Random

from hypothesis import given, strategies as st

from segments import FIRST, ChunkBuilder, Log, LogPolicy, OffsetSpec, at_offset
from segments.errors import CheckpointDueError, StorageError
from segments.gaps import OFFSET_GAP, RESTORE_GAP, Gap, Gaps, end_before, num_lost
from segments.marks import AHEAD, RESTORED, put_mark
from segments.store.local_copy import write_copy
from segments.store.manifest import Manifest
from segments.store.object_names import StreamKey
from segments.verify import verify
from tests.support.cold import make_cold
from tests.support.fake_store import FakeStore
from tests.support.logs import append, bodies_of, read_chunks, store_offset, sub_batch
from tests.support.recorder import Cut, RecordingDisk

_POLICY = LogPolicy(max_segment_chunks=3)


def _disk() -> RecordingDisk:
    disk = RecordingDisk()
    disk.make_folder("s")
    disk.sync_folder("")
    return disk


def _open(disk: RecordingDisk, **options: bool) -> Log:
    return Log.open("s", _POLICY, disk, **options)


def _after_power_failure(disk: RecordingDisk) -> RecordingDisk:
    """Nothing is left but what was synced; the machine is started again."""
    return RecordingDisk(disk.synced(len(disk.operations)), boot=int(disk.boot()) + 1)


def _marks(disk: RecordingDisk) -> list[str]:
    return [name for name in disk.list("s") if name.startswith(AHEAD)]


def _read(log: Log, spec: OffsetSpec = FIRST) -> list[tuple[int, bytes]]:
    return bodies_of(read_chunks(log, spec))


def _from(log: Log, offset: int) -> list[bytes]:
    return [body for at, body in _read(log, at_offset(offset)) if at >= offset]


class TestPowerFailure:
    def test_a_torn_end_whose_cut_was_interrupted_stays_away(self) -> None:
        """What the log goes on behind is on the device before the checkpoint relies on it."""
        disk = _disk()
        log = _open(disk)
        append(log, [b"0"])
        log.flush(with_checkpoint=True)
        size = log.segments.shown[-1].size
        append(log, [b"1"])
        torn = disk.synced(len(disk.operations))
        (node,) = (n for n, found in torn.contents.items() if found[:4] == b"OSIL")
        torn.contents[node].extend(bytes(100))
        again = RecordingDisk(torn, boot=2)
        _open(again)
        cut = again.operations.index(Cut(node, size)) + 1
        again = again.after_kill(Random(0), cut)
        log = _open(again)
        log.flush(with_checkpoint=True)
        for seed in range(20):
            left = again.power_cut(len(again.operations), Random(seed))
            log = _open(RecordingDisk(left, boot=3))
            assert log.report.losses == ()
            assert _read(log) == [(0, b"0")]

    def test_who_has_seen_what_is_gone_gets_all_that_comes(self) -> None:
        disk = _disk()
        log = _open(disk)
        for n in range(10):
            append(log, [b"%d" % n])
        log.flush()
        for n in range(10, 13):
            append(log, [b"lost %d" % n])
        log = _open(again := _after_power_failure(disk))
        assert log.report.losses == ()
        assert log.next_offset == 10 + OFFSET_GAP
        append(log, [b"new"])
        for seen_to in range(13):
            left = [b"%d" % n for n in range(seen_to + 1, 10)]
            assert _from(log, seen_to + 1) == [*left, b"new"]
        assert log.segments.find(at_offset(12)).offset == 10 + OFFSET_GAP
        assert log.segments.gaps.num_between(log.segments.first_offset, log.next_offset) == 11
        assert log.segments.num_lost == 0
        log.close()
        assert _marks(again) == []
        assert list(verify(again, "s")) == []
        log = _open(again)
        assert log.report.steps == log.report.losses == ()
        assert log.next_offset == 11 + OFFSET_GAP
        assert log.segments.gaps.around(10) == Gap(10, 10 + OFFSET_GAP)

    def test_publishers_are_known_where_their_chunks_are_not_here(self) -> None:
        """Whatever is lost: a publisher is told the last of its messages that is there."""
        disk = _disk()
        log = _open(disk)
        append(log, [b"1"], sequences={b"p": 1})
        log.flush(with_checkpoint=True)
        append(log, [b"2"], sequences={b"p": 2})
        log.flush()
        log = _open(disk := _after_power_failure(disk))
        make_cold(log, FakeStore())
        for number in (3, 4):
            append(log, [b"%d" % number], sequences={b"p": number})
            log.journal.add_snapshot(log.next_offset)
        found = set()
        for seed in range(50):
            left = disk.power_cut(len(disk.operations), Random(seed))
            log = _open(RecordingDisk(left, boot=int(disk.boot()) + 1))
            last = max(map(int, _from(log, OFFSET_GAP)), default=2)
            assert log.journal.tracking.sequence(b"p") == last
            found.add(last)
        assert found == {2, 3, 4}

    def test_what_was_lost_is_not_taken_for_what_a_store_has(self) -> None:
        """An index may be there without its segment, and a copy of the manifest besides."""
        disk = _disk()
        log = _open(disk)
        append(log, [b"0"])
        log.flush(with_checkpoint=True)
        write_copy(
            disk,
            "s",
            Manifest(stream=StreamKey("/", "s", log.life), revision=1, epoch=1, writer="w"),
        )
        for number in range(1, 10):
            append(log, [b"%d" % number])
        for seed in range(50):
            left = RecordingDisk(disk.power_cut(len(disk.operations), Random(seed)), boot=9)
            found = [int(body) for _, body in _read(_open(left))]
            assert found == list(range(max(1, len(found))))

    def test_nor_an_orderly_end(self) -> None:
        disk = _disk()
        log = _open(disk)
        append(log, [b"0"])
        log.close()
        disk.sync_folder("s")
        assert _open(_after_power_failure(disk)).next_offset == 1

    def test_only_readers_make_no_mark(self) -> None:
        """And wait for no sync: there may be thousands of streams."""
        disk = _disk()
        log = _open(disk)
        append(log, [b"0"])
        log.close()
        before = len(disk.operations)
        log = _open(disk)
        _read(log)
        log.flush()
        log.close()
        assert _marks(disk) == []
        assert len(disk.operations) == before

    def test_the_mark_is_on_the_device_before_the_first_message_is_shown(self) -> None:
        disk = _disk()
        _open(disk).close()
        disk.sync_folder("s")  # the mark of before is gone
        log = _open(disk)
        assert log.awaits_mark
        log.mark()
        assert not log.awaits_mark
        before = len(disk.operations)
        append(log, [b"lost"])
        assert not any(type(op).__name__ == "Sync" for op in disk.operations[before:])
        assert _open(_after_power_failure(disk)).next_offset == OFFSET_GAP

    def test_a_new_log_has_it_without_a_sync_of_its_own(self) -> None:
        disk = _disk()
        log = _open(disk)
        assert not log.awaits_mark
        assert _marks(_after_power_failure(disk)) == _marks(disk) != []

    def test_again_and_again(self) -> None:
        disk, random = _disk(), Random(1)
        seen: dict[int, bytes] = {}
        for turn in range(12):
            log = _open(disk)
            assert log.report.losses == ()
            for n in range(random.randint(0, 4)):
                body = b"%d %d" % (turn, n)
                offset = append(log, [body])
                assert offset not in seen, "an offset has two messages"
                seen[offset] = body
                if random.random() < 0.3:
                    log.flush()
            found = dict(_read(log))
            assert found.items() <= seen.items()
            assert len(found) == log.segments.gaps.num_between(
                log.segments.first_offset, log.next_offset
            )
            assert all(segment.num_chunks for segment in log.segments.shown[:-1])
            for before, after in pairwise(log.segments.shown):
                assert num_lost(before.next_offset, after.base_offset) == 0
            for offset in seen:
                after = [at for at in found if at >= offset]
                assert [at for at, _ in _read(log, at_offset(offset))] == after
            disk = _after_power_failure(disk)
        assert list(verify(disk, "s")) == []

    def test_a_crash_at_any_step_of_the_opening(self) -> None:
        disk = _disk()
        log = _open(disk)
        append(log, [b"0"], sequences={b"p": 1})
        store_offset(log, b"c", 0)
        log.flush(with_checkpoint=True)
        append(log, [b"lost"], sequences={b"p": 2})
        store_offset(log, b"c", 1)
        log.flush(with_checkpoint=False)
        append(log, [b"lost, too"], sequences={b"p": 3})
        down = disk.synced(len(disk.operations))
        opened = RecordingDisk(down, boot=2)
        _open(opened)
        for count in range(len(opened.operations) + 1):
            for random in (None, Random(count)):
                left = opened.power_cut(count, random) if random else opened.synced(count)
                log = _open(RecordingDisk(left, boot=3))
                assert log.report.losses == ()
                assert log.next_offset >= 2 + OFFSET_GAP
                assert log.next_offset % OFFSET_GAP == 2
                assert log.journal.tracking.sequence(b"p") == 2
                assert [at for at, _ in _read(log)] == [0, 1]

    def test_nothing_is_known_of_what_is_gone_however_often_it_crashes(self) -> None:
        """The journal arrived, the segment did not: what it says of publishers must not count."""
        disk = _disk()
        log = _open(disk)
        for n in range(3):
            append(log, [b"lost"], sequences={b"p": n + 1})
        store_offset(log, b"c", 2)
        log.flush(with_checkpoint=True)
        disk.open(log.segments.shown[0].path(), writable=True).truncate(8)
        disk.remove("s/checkpoint")
        trees = [disk.tree]
        for boot in (2, 3):
            left = []
            for tree in trees:
                opened = RecordingDisk(tree, boot)
                _open(opened)
                counts = range(len(opened.operations) + 1)
                left += [opened.synced(count) for count in counts]
                left += [opened.power_cut(count, Random(count)) for count in counts]
            trees = left[:: 1 + len(left) // 100]
        for tree in trees:
            log = _open(RecordingDisk(tree, boot=4))
            assert log.journal.tracking.sequence(b"p") is None
            assert log.journal.tracking.offsets() == {}
            assert log.next_offset % OFFSET_GAP == 0

    def test_no_checkpoint_waits_for_what_is_removed(self) -> None:
        """The first one finds no room, and the empty segment before the gap goes."""
        disk = _disk()
        _open(disk)
        disk.remove("s/checkpoint")  # so that it has to be flushed again
        disk.sync_folder("s")
        faults = []
        for room in range(20):
            opened = _after_power_failure(disk)
            opened.room = room
            with suppress(StorageError):
                log = _open(opened)
                opened.room = None
                flush = log.begin_flush(with_checkpoint=True)
                flush.run()
                faults.append(flush.fault)
        assert len(faults) > 5
        assert set(faults) == {""}

    def test_a_log_takes_nothing_before_it_has_a_checkpoint(self) -> None:
        """Without one a torn end would count as damage, and what comes behind it as sound."""
        refused = 0
        for room in range(20):
            disk = _disk()
            disk.room = room
            with suppress(StorageError):
                log = _open(disk)
                disk.room = None
                try:
                    append(log, [b"0"])
                except CheckpointDueError:
                    refused += 1
                    log.flush()
                    append(log, [b"0"])
                assert "checkpoint" in disk.list("s")
        assert refused


class TestRestore:
    def test_a_store_may_be_far_behind(self) -> None:
        disk = _disk()
        log = _open(disk)
        append(log, [b"0"])
        log.close()
        key, goes_on = StreamKey("/", "s", log.life), 1 + 3 * RESTORE_GAP
        manifest = Manifest(stream=key, revision=1, epoch=1, writer="w", goes_on=goes_on)
        write_copy(disk, "s", manifest)
        put_mark(disk, "s", AHEAD, RESTORED)
        log = _open(disk)
        assert log.next_offset == goes_on
        assert _marks(disk) == []
        append(log, [b"1"])
        assert [body for _, body in _read(log)] == [b"0", b"1"]


class TestStoredOffsets:
    def test_behind_the_end_they_are_cut(self) -> None:
        disk = _disk()
        log = _open(disk)
        append(log, [b"0"])
        append(log, [b"1"])
        log.flush()
        append(log, [b"lost"])
        log.journal.tracking.store_offset(b"c", 2)
        store_offset(log, b"d", 0)
        # The journal reached the device, and the segment did not.
        journal = disk.open("s/tracking", writable=True)
        journal.sync()
        disk.sync_folder("s")
        down = _after_power_failure(disk)
        log = _open(down)
        assert log.journal.tracking.offsets() == {b"c": 1, b"d": 0}
        append(log, [b"new"])
        log = _open(RecordingDisk(down.tree, boot=2))
        assert log.journal.tracking.offsets() == {b"c": 1, b"d": 0}, "it comes back"


class TestBound:
    def test_no_more_is_given_out_than_a_gap_makes_up_for(self) -> None:
        disk = _disk()
        log = _open(disk)
        given = 0
        builder = ChunkBuilder()
        for _ in range(1_000):
            builder.add(sub_batch(b"x", 65_535), 1, 65_535, None)
            given += 65_535
        num_refused = 0
        while log.next_offset < 3 * OFFSET_GAP:
            try:
                log.append([builder], 0)
            except CheckpointDueError:
                assert log.flushing.obstacle
                num_refused += 1
                log.flush()
            at = _open(_after_power_failure(disk)).next_offset
            assert at >= log.next_offset
        assert num_refused


@given(st.integers(0, 1 << 40), st.integers(0, 5), st.integers(0, OFFSET_GAP - 1))
def test_what_is_missing_is_lost_but_for_whole_gaps(offset: int, gaps: int, lost: int) -> None:
    following = offset + lost + gaps * OFFSET_GAP
    assert end_before(offset, following) == offset + lost
    assert num_lost(offset, following) == lost


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=5), st.data())
def test_counts_leave_gaps_out(parts: list[tuple[int, int]], data: st.DataObject) -> None:
    offsets, gaps, at = [], [], 0
    for gap, number in parts:
        gaps.append(Gap(at, at + gap))
        offsets += range(at + gap, at + gap + number)
        at += gap + number
    found = Gaps(gaps)
    start, end = (data.draw(st.integers(0, at + 2)) for _ in range(2))
    extra = len([n for n in range(start, end) if n >= at])
    inside = [n for n in offsets if start <= n < end]
    assert found.num_between(start, end) == len(inside) + extra
    around = found.around(start)
    assert (around is not None) == (start < at and start not in offsets)


@given(st.lists(st.integers(1, 5), max_size=12), st.integers(0, 30), st.integers(-20, 20))
def test_so_many_messages_further(lengths: list[int], place: int, by: int) -> None:
    """Against all offsets that messages have; every second stretch is a gap."""
    ends = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    stretches = list(pairwise(ends))
    gaps = Gaps(Gap(*stretch) for stretch in stretches[1::2])
    offsets = [n for n in range(-100, 100) if gaps.around(n) is None]
    offset = min(place, ends[-1])
    at = sum(one <= offset for one in offsets) - 1
    assert gaps.moved(offset, by) == offsets[at + by]
