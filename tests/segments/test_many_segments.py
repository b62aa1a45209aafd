"""A log of many segments: work in proportion to their number, and few files open at a time."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import pytest

from segments import Log, LogPolicy, StorageError
from segments.checkpoint import CHECKPOINT_NAME
from segments.flush import MOST_SEALED
from segments.recovery.recovery import examine
from streamd.broker.streams.log_figures import LogFigures
from tests.support.cost import lines_run
from tests.support.disk import FaultyDisk
from tests.support.logs import append, read_bodies

EACH_ITS_OWN = LogPolicy(max_segment_chunks=1)


def log_of(disk: FaultyDisk, number: int, *, flushes: bool = True) -> Log:
    log = Log.open("s", EACH_ITS_OWN, disk)
    for n in range(number):
        append(log, [b"%d" % n])
        if n % MOST_SEALED == 0:
            log.flush()
    if flushes:
        log.flush(with_checkpoint=True)
    return log


@pytest.mark.parametrize("work", ["open", "open without a checkpoint", "drop"])
def test_each_segment_costs_the_same(work: str) -> None:
    def cost(number: int) -> int:
        disk = FaultyDisk()
        log = log_of(disk, number)
        if work == "drop":
            log.policy = replace(EACH_ITS_OWN, max_length_bytes=1)
            return lines_run(lambda: log.expire(0).run())
        log.close()
        if work == "open without a checkpoint":
            del disk.files[f"s/{CHECKPOINT_NAME}"]
        return lines_run(lambda: examine(disk, "s"))

    assert cost(400) < 5 * cost(100)


def test_segments_of_a_log_that_has_very_many_are_larger() -> None:
    """However small they were declared, their number stays bounded; and becomes small again."""
    log = log_of(FaultyDisk(), 20)
    one = log.segments.shown[0]
    log.policy = LogPolicy(max_segment_bytes=1)
    first, log.segments.shown = log.segments.shown, [one] * 4_096
    assert log.segment_bytes == 1
    sizes = []
    for number in (4_097, 5_120, 5_121, 10_000, 40_000):
        log.segments.shown = [one] * number
        sizes.append(log.segment_bytes)
    assert sizes == [2, 2, 4, 1 << 6, 500_000_000]
    log.policy = LogPolicy(max_segment_bytes=1)
    assert LogFigures.of(log).raised_segment_bytes == 500_000_000
    log.policy = LogPolicy(max_segment_bytes=2_000_000_000)
    assert log.segment_bytes == 2_000_000_000
    assert LogFigures.of(log).raised_segment_bytes == 0
    log.segments.shown = first
    log.close()


@contextmanager
def few_descriptors(number: int) -> Iterator[None]:
    """So many files can be opened beside those that are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(fd) for fd in os.listdir("/proc/self/fd")}
    taken = {fd for fd in taken if Path(f"/proc/self/fd/{fd}").exists()}  # not that of listdir
    free = (fd for fd in count() if fd not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, number, None)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def num_open() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
class TestDescriptors:
    def test_segments_without_a_checkpoint_are_opened_one_after_the_other(
        self, tmp_path: Path
    ) -> None:
        log = Log.open(str(tmp_path), EACH_ITS_OWN)
        for n in range(50):
            append(log, [b"%d" % n])
            if n % MOST_SEALED == 0:
                log.flush()
        assert len(log.segments.shown) == 50
        log.close()
        (tmp_path / CHECKPOINT_NAME).unlink()
        with few_descriptors(10):
            log = Log.open(str(tmp_path), EACH_ITS_OWN)
            assert len(read_bodies(log)) == 50
            log.close()

    @pytest.mark.parametrize("flush_runs", [False, True])
    @pytest.mark.parametrize("commits_on_flush", [False, True])
    def test_segments_that_wait_for_a_flush_are_few(
        self, tmp_path: Path, commits_on_flush: bool, flush_runs: bool
    ) -> None:
        """A publisher of small messages, a segment for each, and a disk that takes its time."""
        log = Log.open(str(tmp_path), EACH_ITS_OWN, commits_on_flush=commits_on_flush)
        flush = log.begin_flush() if flush_runs else None
        before = num_open()
        for n in range(400):
            append(log, [b"%d" % n])
        assert num_open() - before <= 2 * MOST_SEALED
        if flush is not None:
            flush.run()
            log.end_flush(flush)
        log.flush()
        for n in range(400, 410):  # again each its own
            append(log, [b"%d" % n])
        log.flush()
        assert [segment.num_chunks for segment in log.segments.shown[-9:]] == [1] * 9
        assert len(read_bodies(log)) == 410
        log.close()
        log = Log.open(str(tmp_path), EACH_ITS_OWN)
        assert len(read_bodies(log)) == 410
        assert log.report.steps == log.report.losses == ()
        log.close()

    @pytest.mark.parametrize("number", range(6))
    def test_a_log_that_finds_no_descriptor_keeps_none(self, tmp_path: Path, number: int) -> None:
        log = Log.open(str(tmp_path), EACH_ITS_OWN)
        append(log, [b"x"], sequences={b"p": 1})
        log.journal.tracking.store_offset(b"c", 1)
        log.close()
        before = num_open()
        with few_descriptors(number):
            refusal = suppress(StorageError) if number > 1 else pytest.raises(StorageError)
            with refusal:
                Log.open(str(tmp_path), EACH_ITS_OWN).close()
        assert num_open() == before
