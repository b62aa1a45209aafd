"""What readers find first is what retention allows, at every moment, whatever becomes of files."""

from contextlib import closing, suppress
from random import Random

from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from segments import FIRST, Log, LogPolicy, Reader
from segments.errors import StorageError
from segments.segment import Segment
from tests.support.disk import FaultyDisk
from tests.support.logs import append, store_offset, truncate
from tests.support.recorder import RecordingDisk

_SEGMENT_CHUNKS = 2


class RetentionMachine(RuleBasedStateMachine):
    """A log beside a model that knows all segments that ever were.

    Readers look at the beginning when a segment is sealed, and when they are told the time. What is
    removed, and when, is up to the caller.
    """

    @initialize(
        max_bytes=st.sampled_from((None, 1, 1_000, 4_000)),
        max_age_ms=st.sampled_from((None, 1, 100, 1_000)),
        commits_on_flush=st.booleans(),
    )
    def open(
        self, max_bytes: int | None, max_age_ms: int | None, *, commits_on_flush: bool
    ) -> None:
        self.policy = LogPolicy(
            max_segment_chunks=_SEGMENT_CHUNKS, max_length_bytes=max_bytes, max_age_ms=max_age_ms
        )
        self.commits_on_flush = commits_on_flush
        self.disk, self.now_ms, self.first = FaultyDisk(), 0, 0
        self.publishers: dict[bytes, int] = {}  # each has published one message: its offset
        self.flushed = 0  # messages before it are on the device
        self.known: dict[int, Segment] = {}
        self.readers: list[tuple[Reader, int]] = []
        self.log = self._opened()

    def _opened(self) -> Log:
        log = Log.open("s", self.policy, self.disk, commits_on_flush=self.commits_on_flush)
        assert not log.report.losses
        return log

    def _look(self, *, newest_bytes: int | None = None) -> None:
        """Let the model apply the limits, by its own arithmetic.

        Args:
            newest_bytes: that the newest segment had then; default as many as now.
        """
        # Also those that were shown and hidden since by one flush.
        self.known.update((one.base_offset, one) for one in self.log.segments.kept)
        kept = [one for base, one in sorted(self.known.items()) if base >= self.first]
        most, age_ms = self.policy.max_length_bytes, self.policy.max_age_ms
        later = 0 if newest_bytes is None else kept[-1].size - newest_bytes
        while len(kept) > 1:
            is_large = most is not None and sum(one.size for one in kept) - later > most
            is_large = is_large and any(one.num_chunks for one in kept[1:])
            ended_ms = kept[0].last_timestamp_ms
            is_old = age_ms is not None and (ended_ms or 0) < self.now_ms - age_ms
            if not (is_large or is_old):
                break
            kept.pop(0)
        self.first = kept[0].base_offset

    def _newest(self) -> int:
        return self.log.segments.shown[-1].base_offset

    def _look_if_rolled(self, before: int) -> None:
        """Readers see another segment: retention has looked when they saw its first chunk."""
        newest = self.log.segments.shown[-1]
        if newest.base_offset == before:
            return
        if newest.num_chunks < 2:
            self._look()
            return
        with newest.index() as index:
            self._look(newest_bytes=index.record(1).position)

    @rule(number=st.integers(1, 6), size=st.integers(1, 600), later_ms=st.integers(0, 400))
    def publish_some(self, number: int, size: int, later_ms: int) -> None:
        for _ in range(number):
            self._publish(size, later_ms)

    def _publish(self, size: int, later_ms: int) -> None:
        self.now_ms += later_ms
        before = self._newest()
        publisher = b"p%d" % len(self.publishers)
        self.publishers[publisher] = self.log.next_offset
        append(self.log, [bytes(size)], now_ms=self.now_ms, sequences={publisher: self.now_ms})
        self._look_if_rolled(before)

    @rule(with_checkpoint=st.booleans())
    def flush(self, *, with_checkpoint: bool) -> None:
        before = self._newest()
        self.log.flush(with_checkpoint=with_checkpoint)
        self.flushed = self.log.next_offset
        self._look_if_rolled(before)

    @rule()
    def seal(self) -> None:
        before = self._newest()
        self.log.seal()
        self._look_if_rolled(before)

    @rule(later_ms=st.integers(0, 1_000))
    def time_passes(self, later_ms: int) -> None:
        self.now_ms += later_ms
        assert self.log.outlive(self.now_ms) == bool(self.log.segments.outlived)
        self._look()

    @rule(is_flushed=st.booleans(), is_busy=st.booleans(), num_parts=st.integers(0, 3))
    def remove(self, *, is_flushed: bool, is_busy: bool, num_parts: int) -> None:
        """Files are removed, but for those that somebody needs, or all that a refusal leaves."""
        if is_flushed:
            self.flush(with_checkpoint=True)
        busy = self.log.segments.outlived[1:2] if is_busy else []
        removal = self.log.expire(self.now_ms, busy)
        self._look()
        for _, part in zip(range(num_parts), removal.parts(), strict=False):
            part()
        assert all(one.path() in self.disk.files for one in busy)

    @rule(share=st.floats(0, 1), num_meanwhile=st.integers(0, 12))
    def truncated(self, share: float, num_meanwhile: int) -> None:
        """Retention may be faster: then the log does not begin where it was to."""
        log = self.log

        def meanwhile() -> None:
            for _ in range(num_meanwhile):
                self._publish(600, 10)

        self.flush(with_checkpoint=True)
        self.seal()
        self.flush(with_checkpoint=True)
        offset = log.segments.first_offset + int(
            share * (log.next_offset - log.segments.first_offset)
        )
        self.known.update((one.base_offset, one) for one in log.segments.shown)
        begins_at = truncate(log, offset, meanwhile)
        self.first = max(self.first, min(begins_at, offset))
        self.known.update((one.base_offset, one) for one in log.segments.shown)
        assert begins_at == self.first

    @precondition(lambda self: len(self.readers) < 3)
    @rule()
    def begin_to_read(self) -> None:
        reader = Reader(self.log, self.log.segments.find(FIRST))
        self.readers.append((reader, self.log.segments.first_offset))
        assert reader.next_offset == self.log.segments.first_offset

    @precondition(lambda self: self.readers)
    @rule()
    def go_on_reading(self) -> None:
        """One that stands in a segment that is not shown any more keeps it."""
        reader, wanted = self.readers.pop(0)
        chunks = [] if reader.at_end else reader.read(1, 1 << 20, 10)
        if chunks and wanted >= self.log.segments.begins_at:
            assert chunks[0].header.chunk_id == wanted
        reader.close()

    @rule(how=st.sampled_from(("close", "kill", "power")))
    def reopen(self, how: str) -> None:
        """What had outlived may be found again; then it goes again, and nothing else is missed."""
        for reader, _ in self.readers:
            reader.close()
        self.readers = []
        if how == "close":
            self.log.close()
        elif how == "power":
            self.disk.cut_power({}, {})
        self.log = self._opened()
        if how == "power":
            self.publishers = {p: at for p, at in self.publishers.items() if at < self.flushed}
        self.flushed = self.log.next_offset
        assert self.log.journal.tracking.sequences().keys() == self.publishers.keys()
        self.known = {}
        self.log.outlive(self.now_ms)
        self.first = self.log.segments.kept_from
        self._look()

    @invariant()
    def what_is_first(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert log.segments.first_offset == self.first
        assert log.segments.size == sum(one.size for one in log.segments.shown)
        assert log.segments.num_chunks == sum(one.num_chunks for one in log.segments.shown)
        assert log.segments.find(FIRST).offset == log.segments.first_offset
        assert log.segments.kept_from <= log.segments.first_offset
        for one in log.segments.outlived:
            assert log.keeps(one)
            assert one.path() in self.disk.files
            assert one.base_offset < log.segments.first_offset


TestRetention = RetentionMachine.TestCase
TestRetention.settings = settings(max_examples=150, phases=[Phase.generate], stateful_step_count=40)


def test_what_goes_from_a_full_disk_is_never_told_as_lost() -> None:
    """There is no room for the checkpoint before segments have gone."""
    policy = LogPolicy(max_segment_chunks=1, max_length_bytes=1)
    for attempts in (1, 2):
        disk = RecordingDisk()
        disk.make_folder("s")
        disk.sync_folder(".")
        with closing(Log.open("s", policy, disk)) as log:
            for n in range(5):
                append(log, [b"%d" % n])
            log.flush(with_checkpoint=True)
            removal, before = log.expire(0), len(disk.operations)
            for _ in range(attempts):
                disk.room = 0
                with suppress(StorageError):
                    removal.run()
                disk.room = None
                append(log, [b"5"])
                log.flush()
                removal = log.expire(0)
            for count in range(before, len(disk.operations) + 1):
                left = [disk.after_power_failure(Random(seed), count) for seed in range(8)]
                for found in [*left, disk.after_kill(Random(0), count)]:
                    with closing(Log.open("s", policy, found)) as opened:
                        assert not opened.report.losses


def test_a_stored_offset_goes_with_its_messages_and_not_before() -> None:
    policy = LogPolicy(max_segment_chunks=2, max_length_bytes=1)
    disk = RecordingDisk()
    disk.make_folder("s")
    disk.sync_folder(".")
    stored = [(0, 0)]  # after so many operations, at least this offset
    with closing(Log.open("s", policy, disk)) as log:
        for n in range(9):
            append(log, [b"%d" % n])
            store_offset(log, b"slow", n // 2)
            log.flush(with_checkpoint=True)
            if log.segments.first_offset <= n // 2:
                stored.append((len(disk.operations), n // 2))
            removal = log.expire(0)
            append(log, [b"more"])
            log.flush(with_checkpoint=True)
            removal.run()
    for count in range(stored[1][0], len(disk.operations) + 1):
        least = max(offset for at, offset in stored if at <= count)
        left = [disk.after_power_failure(Random(seed), count) for seed in range(8)]
        for found in [*left, disk.after_kill(Random(0), count)]:
            with closing(Log.open("s", policy, found)) as opened:
                offset = opened.journal.tracking.offset(b"slow")
                is_there = offset is not None and offset >= least
                assert is_there or opened.segments.first_offset > least
