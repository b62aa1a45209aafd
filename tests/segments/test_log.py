"""A log in order: appending, rolling, finding, retention, tracking. Damage is in test_recovery."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from segments import (
    FIRST,
    LAST,
    NEXT,
    Log,
    LogPolicy,
    OffsetSpec,
    StorageError,
    at_offset,
    at_time,
    tracking,
)
from segments.disk import OsDisk
from segments.observer import LogObserver
from segments.tracking import MAX_OFFSETS, MAX_SEQUENCES, Tracking
from tests.support.disk import FaultyDisk
from tests.support.logs import append, read_bodies, read_chunks, store_offset

SMALL = LogPolicy(max_segment_bytes=400)


def start_of(log: Log, spec: OffsetSpec) -> int:
    return log.segments.find(spec).offset


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log.open(str(tmp_path / "s"))
    yield log
    log.close()


def test_a_new_log_is_empty(log: Log) -> None:
    assert (log.segments.first_offset, log.committed_offset, log.segments.last_chunk_id) == (
        0,
        0,
        None,
    )
    assert log.segments.is_empty
    for spec in (FIRST, LAST, NEXT, at_offset(0), at_offset(99), at_time(0), at_time(1 << 62)):
        assert start_of(log, spec) == 0
    assert read_chunks(log) == []


def test_an_emptied_tail_does_not_lower_the_epoch(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), SMALL)
    for _ in range(4):
        append(log, [b"x" * 200])
    log.close()
    newest = max(tmp_path.glob("*.segment"))
    newest.write_bytes(newest.read_bytes()[:8])
    assert Log.open(str(tmp_path), SMALL).epoch == 2


def test_a_tiny_limit_gives_a_segment_per_chunk_and_no_more(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), LogPolicy(max_segment_bytes=1))
    for n in range(5):
        append(log, [b"%d" % n], sequences={b"p": n})
    assert len(log.segments.shown) == 5
    log.close()


def test_times(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), SMALL)
    times = [1000, 1000, 2000, 2000, 2000, 5000, 9000, 9000, 9001]
    starts = [append(log, [b"x" * 150], now_ms=t) for t in times]
    assert len(log.segments.shown) > 2

    def expected(t: int) -> int:
        return next((s for s, at in zip(starts, times, strict=True) if at >= t), len(times))

    for t in [0, 999, 1000, 1001, 2000, 2001, 5000, 5001, 9000, 9001, 9002, 1 << 60]:
        assert start_of(log, at_time(t)) == expected(t), t
    log.close()


def test_the_same_time_on_both_sides_of_a_roll(tmp_path: Path) -> None:
    """osiris misses the chunks with that time that stand before the roll."""
    log = Log.open(str(tmp_path), LogPolicy(max_segment_chunks=2))
    for t in (1, 7, 7, 9):
        append(log, [b"x"], now_ms=t)
    assert start_of(log, at_time(7)) == 1
    log.close()


def test_time_never_runs_backwards(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path))
    for t in (5000, 4000, 5001):
        append(log, [b"x"], now_ms=t)
    log.close()
    log = Log.open(str(tmp_path))
    append(log, [b"x"], now_ms=10)
    assert [c.header.timestamp_ms for c in read_chunks(log)] == [5000, 5000, 5001, 5001]
    log.close()


def test_last_is_found_in_an_older_segment_when_the_newest_is_empty(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), SMALL)
    for _ in range(4):
        append(log, [b"x" * 200])
    assert len(log.segments.shown) == 2
    log.close()
    newest = max(tmp_path.glob("*.segment"))
    newest.write_bytes(newest.read_bytes()[:8])
    log = Log.open(str(tmp_path), SMALL)
    assert (start_of(log, LAST), start_of(log, NEXT), log.segments.last_chunk_id) == (1, 4, 1)
    assert append(log, [b"y"]) == 4  # an offset that was used is not used again
    log.close()


class TestRetention:
    def fill(self, folder: Path, policy: LogPolicy, times: list[int]) -> Log:
        log = Log.open(str(folder), policy)
        for t in times:
            append(log, [b"x" * 200], now_ms=t)
        return log

    def test_files_that_somebody_else_removes_meanwhile(self, tmp_path: Path) -> None:
        # As a filter index that is finished just then: retention and its builder both remove it.
        class Shared(OsDisk):
            def list(self, folder: str) -> list[str]:
                names = super().list(folder)
                for path in tmp_path.rglob(f"{0:020}.*"):
                    path.unlink()
                return names

        log = self.fill(tmp_path, LogPolicy(max_segment_bytes=100, max_length_bytes=1), [0] * 5)
        gone = log.expire(0)
        gone.segments[0].disk = Shared()
        gone.run()
        assert len(list(tmp_path.rglob("*.segment"))) == 1
        log.close()


class TestTracking:
    def test_offsets_survive(self, tmp_path: Path) -> None:
        log = Log.open(str(tmp_path))
        assert not (tmp_path / "tracking").exists()
        append(log, 8 * [b"x"])
        for offset in (7, 3, 5):  # it may go backwards
            store_offset(log, b"c", offset)
        log.journal.tracking.store_offset(b"d" * 255, 7)
        log.journal.tracking.store_offset(b"behind", 2**64 - 1)
        assert log.journal.tracking.offset(b"c") == 5
        log.close()  # writes what is pending
        log = Log.open(str(tmp_path))
        assert log.journal.tracking.offset(b"c") == 5
        assert (
            log.journal.tracking.offset(b"d" * 255) == log.journal.tracking.offset(b"behind") == 7
        )
        assert log.journal.tracking.offset(b"e") is None
        log.close()

    def test_offsets_below_the_first_kept_one_are_forgotten(self, tmp_path: Path) -> None:
        policy = LogPolicy(max_segment_chunks=2, max_length_bytes=1)
        log = Log.open(str(tmp_path), policy)
        for n in range(5):
            append(log, [b"x"])
            log.journal.tracking.store_offset(b"early", 0)
            store_offset(log, b"late", n)
            log.flush(with_checkpoint=True)
            log.expire(0).run()
        assert log.journal.tracking.offset(b"early") == 0  # a crash could bring it back before
        log.expire(0)
        assert log.journal.tracking.offset(b"early") is None
        assert log.journal.tracking.offset(b"late") == 4
        log.close()

    @pytest.mark.parametrize("reference", [b"", b"x" * 256])
    def test_references_that_no_block_can_hold_are_refused(
        self, log: Log, reference: bytes
    ) -> None:
        with pytest.raises(ValueError, match="expected 1 to 255"):
            log.journal.tracking.store_offset(reference, 0)

    def test_the_journal_is_rewritten_before_it_grows_large(self, tmp_path: Path) -> None:
        log = Log.open(str(tmp_path))
        append(log, 9_000 * [b""])
        for n in range(9000):
            store_offset(log, b"c" * 200, n)
            if n % 1000 == 0:
                log.flush()
        assert (tmp_path / "tracking").stat().st_size < 1.2e6
        log.close()
        assert Log.open(str(tmp_path)).journal.tracking.offset(b"c" * 200) == 8999

    def test_what_was_used_longest_ago_is_forgotten_first(self) -> None:
        tracking = Tracking()
        for n in range(MAX_SEQUENCES + 10):
            tracking.set_sequences(n, [(b"p%d" % n, n), (b"always", n)])
        assert tracking.sequence(b"p0") is None
        assert tracking.sequence(b"always") == MAX_SEQUENCES + 9
        for n in range(MAX_OFFSETS + 10):
            tracking.store_offset(b"c%d" % n, n)
            tracking.store_offset(b"always", n)
        assert tracking.offset(b"c0") is None
        assert tracking.offset(b"always") == MAX_OFFSETS + 9

    def test_so_are_those_that_came_before_the_flush_that_readers_wait_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tracking, "MAX_SEQUENCES", 2)
        log = Log.open("s", disk=FaultyDisk(), commits_on_flush=True)
        for n in range(1, 4):
            append(log, [b""], sequences={b"p%d" % n: n})
            log.flush()
        latest = [log.journal.tracking.latest_sequence(b"p%d" % n) for n in range(1, 4)]
        assert latest == [None, 2, 3]

    def test_the_snapshot_at_a_roll_knows_nothing_of_the_chunk_to_come(
        self, tmp_path: Path
    ) -> None:
        """osiris-hazard: a crash between snapshot and chunk must not drop what is sent again."""
        policy = LogPolicy(max_segment_chunks=1)
        log = Log.open(str(tmp_path), policy)
        append(log, [b"a"], sequences={b"p": 1})
        append(log, [b"b"], sequences={b"p": 2})
        log.journal.write_pending(log.committed_offset)
        log.abandon()
        for path in tmp_path.glob(f"{1:020d}.*"):
            path.unlink()  # as if the process had died right after the snapshot
        log = Log.open(str(tmp_path), policy)
        assert log.committed_offset == 1
        assert log.journal.tracking.sequence(b"p") == 1
        log.close()


class TestRefusals:
    def test_a_full_disk_loses_nothing_and_recovers(self) -> None:
        disk = FaultyDisk()
        log = Log.open("s", disk=disk)
        append(log, [b"one"])
        disk.capacity = sum(len(i.content) for i in disk.files.values()) + 30
        for _ in range(2):
            with pytest.raises(StorageError, match="No space left on device; free some") as error:
                append(log, [b"two"], sequences={b"p": 1})
            assert error.value.is_full
        assert (log.committed_offset, log.journal.tracking.sequence(b"p")) == (1, None)
        disk.capacity = None
        assert append(log, [b"three"]) == 1
        assert read_bodies(log) == [b"one", b"three"]
        assert read_bodies(Log.open("s", disk=disk)) == [b"one", b"three"]

    def test_a_disk_that_fails_to_undo_fails_the_log_for_good(self) -> None:
        disk = FaultyDisk()
        log = Log.open("s", disk=disk)
        append(log, [b"one"])
        disk.failures = {"write": 1, "truncate": 1}
        with pytest.raises(StorageError, match="write"):
            append(log, [b"two"])
        with pytest.raises(StorageError, match=r"cut|truncate"):
            append(log, [b"two"])
        assert read_bodies(log) == [b"one"]

    def test_what_cannot_be_undone_for_want_of_room_is_undone_later(self) -> None:
        """A file system that copies what it writes may need room to cut a file, too."""
        disk = FaultyDisk()
        log = Log.open("s", disk=disk)
        append(log, [b"one"])
        disk.capacity = sum(len(i.content) for i in disk.files.values()) + 30
        disk.failures = {"truncate": 2}
        disk.errno = errno.ENOSPC
        for _ in range(3):
            with pytest.raises(StorageError) as error:
                append(log, [b"two"])
            assert error.value.is_temporary
        disk.capacity = None
        assert append(log, [b"three"]) == 1
        assert read_bodies(log) == [b"one", b"three"]
        assert read_bodies(Log.open("s", disk=disk)) == [b"one", b"three"]

    def test_and_before_its_segment_is_sealed(self) -> None:
        """Nothing is appended to it any more; with what is left it would be a damaged one."""
        disk = FaultyDisk()
        log = Log.open("s", disk=disk)
        append(log, [b"one"])
        disk.capacity = sum(len(i.content) for i in disk.files.values()) + 30
        disk.failures, disk.errno = {"truncate": 2}, errno.ENOSPC
        for attempt in (lambda: append(log, [b"two"]), log.seal):
            with pytest.raises(StorageError):
                attempt()
        disk.capacity = None
        assert log.seal()
        assert append(log, [b"three"]) == 1
        log = Log.open("s", disk=disk)
        assert read_bodies(log) == [b"one", b"three"]
        assert not log.report.steps
        assert not any(segment.damage for segment in log.segments.shown)

    def test_stray_files_are_ignored(self, tmp_path: Path) -> None:
        (tmp_path / ".nfs0000000000000000.segment").write_bytes(b"x")
        (tmp_path / "notes.txt").write_bytes(b"x")
        log = Log.open(str(tmp_path))
        assert log.segments.is_empty
        log.close()
        assert (tmp_path / "notes.txt").exists()


def offset_after_reopening(disk: FaultyDisk) -> int | None:
    return Log.open("s", disk=disk).journal.tracking.offset(b"c")


class TestJournalOnAFailingDisk:
    def test_a_torn_record_on_a_full_disk_keeps_nobody_from_reading(self) -> None:
        disk = FaultyDisk()
        log = Log.open("s", disk=disk)
        append(log, [b"x"])
        log.journal.tracking.store_offset(b"c", 0)
        log.close()
        del disk.files["s/tracking"].content[-1:]
        disk.capacity = 0
        log = Log.open("s", disk=disk)
        assert read_bodies(log) == [b"x"]
        disk.capacity = None
        append(log, [b"y"])
        log.journal.tracking.store_offset(b"c", 1)
        log.close()
        assert offset_after_reopening(disk) == 1

    def test_a_torn_record_is_told_of_once(self) -> None:
        disk = FaultyDisk()
        log = Log.open("s", disk=disk)
        append(log, [b"x"])
        log.journal.tracking.store_offset(b"c" * 200, 0)
        log.close()
        del disk.files["s/tracking"].content[-1:]
        log = Log.open("s", disk=disk)
        assert "not a whole record" in str(log.report)
        store_offset(log, b"c", 0)
        log.abandon()
        assert "not a whole record" not in str(Log.open("s", disk=disk).report)

    def test_a_flush_of_sealed_segments_covers_nothing_of_what_is_behind_them(self) -> None:
        log = Log.open("s", LogPolicy(max_segment_chunks=2), FaultyDisk())
        for number in range(3):
            append(log, [b"x"], sequences={b"p": number})
        flush = log.begin_flush(only_sealed=True, with_checkpoint=True)
        flush.run()
        log.end_flush(flush)
        assert not log.journal.is_covered(3)
        log.flush(with_checkpoint=True)
        assert log.journal.is_covered(3)

    @pytest.mark.parametrize("is_full", [False, True])
    def test_what_is_deleted_while_the_journal_is_rewritten(self, is_full: bool) -> None:
        disk = FaultyDisk()
        log = Log.open("s", disk=disk)
        append(log, 5 * [b"x"])
        for name in (b"first", b"second", b"third"):
            log.journal.tracking.store_offset(name, 4)
        log.journal.write_pending(log.committed_offset)
        assert log.journal.delete_offset(b"first")
        flush = log.begin_flush()
        disk.capacity = 0 if is_full else None
        flush.run()
        disk.capacity = None
        assert log.journal.delete_offset(b"second")
        log.end_flush(flush)
        log.flush()
        again = Log.open("s", disk=disk)  # as after a kill
        assert again.journal.tracking.offsets() == {b"third": 4}

    def test_what_is_stored_while_the_journal_is_rewritten(self) -> None:
        disk = FaultyDisk()
        log = Log.open("s", disk=disk)
        append(log, 4 * [b"x"])
        store_offset(log, b"c", 1)
        log.journal.must_be_rewritten()
        flush = log.begin_flush()
        store_offset(log, b"c", 2)
        flush.run()
        store_offset(log, b"c", 3)
        log.end_flush(flush)
        assert log.journal.tracking.has_pending
        log.journal.write_pending(log.committed_offset)
        log.abandon()
        assert offset_after_reopening(disk) == 3


class TestAClockThatWasAhead:
    HOUR_MS = 3_600_000
    NOW_MS = 1_700_000_000_000
    AHEAD_MS = 30 * 24 * HOUR_MS

    def fill(self, log: Log, minutes: int) -> None:
        """A message a minute; in the third the clock is ahead."""
        for minute in range(minutes):
            ahead = self.AHEAD_MS if minute == 2 else 0
            append(log, [b"%d" % minute], now_ms=self.NOW_MS + minute * 60_000 + ahead)

    def test_times_follow_it_again(self, tmp_path: Path) -> None:
        told = []

        class Observer(LogObserver):
            def clock_was_ahead(self, ahead_ms: int) -> None:
                told.append((log.next_offset, ahead_ms))

        log = Log.open(str(tmp_path), observer=Observer())
        self.fill(log, 10)
        times = [chunk.header.timestamp_ms - self.NOW_MS for chunk in read_chunks(log)]
        assert [t for n, t in enumerate(times) if n != 2] == [
            n * 60_000 for n in range(10) if n != 2
        ]
        assert told == [(3, self.AHEAD_MS - 60_000)]
        log.close()
        log = Log.open(str(tmp_path), observer=Observer())
        append(log, [b"x"], now_ms=self.NOW_MS + self.HOUR_MS)
        assert log.segments.last_timestamp_ms == self.NOW_MS + self.HOUR_MS
        assert len(told) == 1
        log.close()

    @pytest.mark.parametrize("back_ms", [1, HOUR_MS])
    def test_a_correction_is_none_of_it(self, log: Log, back_ms: int) -> None:
        append(log, [b"x"], now_ms=self.NOW_MS)
        append(log, [b"x"], now_ms=self.NOW_MS - back_ms)
        assert log.segments.last_timestamp_ms == self.NOW_MS
        assert len(log.segments.shown) == 1

    @pytest.mark.parametrize("reopens", [False, True])
    def test_age_counts(self, tmp_path: Path, reopens: bool) -> None:
        policy = LogPolicy(max_segment_chunks=2, max_age_ms=self.HOUR_MS)
        log = Log.open(str(tmp_path), policy)
        self.fill(log, 70)
        if reopens:
            log.close()
            log = Log.open(str(tmp_path), policy)
        log.flush(with_checkpoint=True)
        log.expire(self.NOW_MS + 70 * 60_000).run()
        assert 8 <= log.segments.first_offset <= 10
        log.close()

    def test_nothing_goes_too_early(self, tmp_path: Path) -> None:
        """What was written while the clock was behind is as old as what is around it."""
        policy = LogPolicy(max_segment_chunks=1, max_age_ms=self.HOUR_MS)
        log = Log.open(str(tmp_path), policy)
        for at in (0, 60_000, -self.AHEAD_MS, 120_000, 180_000):
            append(log, [b"x"], now_ms=self.NOW_MS + at)
        log.flush(with_checkpoint=True)
        assert not log.expire(self.NOW_MS + 240_000).segments
        log.close()

    def test_messages_are_found_by_time(self, log: Log) -> None:
        self.fill(log, 10)
        for minute in range(10):  # none is missed: the one from the future may be first
            found = log.segments.find(at_time(self.NOW_MS + minute * 60_000)).offset
            assert found == min(minute, 2)
        assert log.segments.find(at_time(self.NOW_MS + 10 * 60_000)).offset == 10

    def test_messages_are_found_by_time_after_it_was_behind(self, log: Log) -> None:
        for at in (0, 60_000, -self.AHEAD_MS, 120_000):
            append(log, [b"x"], now_ms=self.NOW_MS + at)
        assert log.segments.find(at_time(self.NOW_MS + 1)).offset == 1
        assert log.segments.find(at_time(self.NOW_MS + 60_001)).offset == 3
