"""What is on the device and what is said to be: names that were created, and the checkpoint."""

import errno

import pytest

from segments import Log, LogPolicy
from segments.errors import FLUSH, StorageError
from segments.segment import INDEX_SUFFIX
from segments.verify import verify
from tests.support.disk import FaultyDisk, FaultyFile
from tests.support.logs import append, read_bodies, store_offset
from tests.support.recorder import Drop, Operation, RecordingDisk, Sync


class RefusingDisk(FaultyDisk):
    """A disk that creates no file whose name has a part in it.

    Attributes:
        part: of names; None where all files can be created.
    """

    def __init__(self, part: str | None = None, code: int = errno.ENOSPC) -> None:
        super().__init__()
        self.part = part
        self._code = code

    def create(self, path: str) -> FaultyFile:
        if self.part is not None and self.part in path:
            raise StorageError("create", path, OSError(self._code, "refused"))
        return super().create(path)


class FolderDisk(RefusingDisk):
    """A disk whose names are on the device when their folder is synced.

    Attributes:
        on_device: names that a power failure leaves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on_device: set[str] = set()

    def sync_folder(self, folder: str) -> None:
        self.maybe_fail("sync folder", folder)
        self.on_device |= {path for path in self.files if path.startswith(f"{folder}/")}

    def check_names(self, log: Log) -> None:
        """All that readers see is in files that a power failure leaves."""
        for segment in log.segments.shown:
            if segment.num_chunks:
                assert segment.path() in self.on_device


class DroppingDisk(RecordingDisk):
    """A disk whose next sync of something fails; what it was to bring to the device is lost.

    Attributes:
        fails: end of its path; empty for none.
    """

    fails = ""

    def do(self, operation: Operation) -> None:
        if isinstance(operation, Sync) and self.fails:
            names = {"s": self.tree.find("s"), **self.tree.folders[self.tree.find("s") or 0]}
            found = [name for name, node in names.items() if node == operation.node]
            if any(name.removesuffix(".tmp").endswith(self.fails) for name in found):
                self.fails = ""
                super().do(Drop(operation.node))
                raise StorageError(FLUSH, found[0], OSError(errno.EIO, "Input/output error"))
        super().do(operation)


def test_what_comes_while_a_flush_runs_is_shown_by_the_next_one() -> None:
    log = Log.open("s", LogPolicy(), FaultyDisk(), commits_on_flush=True)
    append(log, [b"0"])
    flush = log.begin_flush()
    append(log, [b"1"])
    flush.run()
    log.end_flush(flush)
    assert log.committed_offset == 1
    log.flush()
    assert log.committed_offset == 2


def test_an_index_that_was_sealed_while_a_flush_ran_is_synced_by_the_next_one() -> None:
    """The flush has synced what the index had before: the next checkpoint says more of it."""
    log = Log.open("s", LogPolicy(max_segment_chunks=3), FaultyDisk())
    append(log, [b"0"])
    flush = log.begin_flush(with_checkpoint=True)
    flush.run()
    for number in range(1, 4):
        append(log, [b"%d" % number])
    (sealed, _) = log.segments.shown
    log.end_flush(flush)
    following = log.begin_flush(with_checkpoint=True)
    assert following.checkpoint is not None
    assert following.checkpoint.segment > sealed.base_offset
    assert sealed.path(INDEX_SUFFIX) in following.indexes
    following.run()
    log.end_flush(following)
    assert sealed.path(INDEX_SUFFIX) not in log.begin_flush(with_checkpoint=True).indexes


@pytest.mark.parametrize("num_before", [0, 1, 2, 3])
def test_names_that_a_killed_process_left(num_before: int) -> None:
    """It ended before it synced them; they are there, and a power failure would take them."""
    disk = FolderDisk()
    log = Log.open("s", LogPolicy(max_segment_chunks=2), disk, commits_on_flush=True)
    for number in range(num_before):
        append(log, [b"%d" % number])
    del log  # killed
    disk.part = "checkpoint"
    log = Log.open("s", LogPolicy(max_segment_chunks=2), disk, commits_on_flush=True)
    append(log, [b"next"])
    log.flush()
    disk.check_names(log)


def test_names_that_a_flush_had_no_descriptor_for_are_synced_by_the_next_one() -> None:
    disk = FolderDisk()
    log = Log.open("s", LogPolicy(max_segment_chunks=2), disk, commits_on_flush=True)
    for number in range(3):
        append(log, [b"%d" % number])
    disk.part, disk.errno = "checkpoint", errno.EMFILE
    disk.failures["sync folder"] = 1
    with pytest.raises(StorageError):
        log.flush()
    assert log.committed_offset == 0
    log.flush()
    assert log.committed_offset == 3
    disk.check_names(log)


def test_the_name_of_a_journal_is_synced_with_its_first_offset() -> None:
    disk = FolderDisk()
    log = Log.open("s", LogPolicy(), disk)
    append(log, [b"x"])
    log.flush(with_checkpoint=True)
    disk.part = "checkpoint"
    store_offset(log, b"reader", 0)
    log.flush()
    assert set(disk.files) == disk.on_device


def test_a_folder_that_cannot_be_synced_fails_the_log() -> None:
    disk = FolderDisk()
    disk.part = "checkpoint"
    disk.failures["sync folder"] = 1
    with pytest.raises(StorageError):
        Log.open("s", LogPolicy(), disk, commits_on_flush=True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_what_consumers_ask_for_cannot_be_written_when_a_log_is_closed(code: int) -> None:
    """Nothing depends on it: messages and stored offsets are flushed, and the log is closed."""
    disk = RefusingDisk("asked.json", code)
    log = Log.open("s", LogPolicy(), disk)
    append(log, [b"x"])
    log.journal.tracking.store_offset(b"reader", 0)
    log.filter_demand.add([b"value"])
    log.close()
    disk.cut_power({}, {})
    log = Log.open("s", LogPolicy(), disk)
    assert read_bodies(log) == [b"x"]
    assert log.journal.tracking.offset(b"reader") == 0


def test_a_log_whose_offsets_cannot_be_written_is_flushed_when_it_is_closed() -> None:
    disk = RefusingDisk("tracking")
    log = Log.open("s", LogPolicy(), disk)
    append(log, [b"x"])
    log.journal.tracking.store_offset(b"reader", 1)
    with pytest.raises(StorageError):
        log.close()
    disk.cut_power({}, {})
    assert read_bodies(Log.open("s", LogPolicy(), disk)) == [b"x"]


@pytest.mark.parametrize("at", ["checkpoint", "segment"])
def test_files_that_retention_could_not_remove_go_the_next_time(at: str) -> None:
    """There was no descriptor for the checkpoint, say, or a file could not be removed."""
    disk = FaultyDisk()
    log = Log.open("s", LogPolicy(max_segment_chunks=1), disk)
    for number in range(60):
        append(log, [b"%d" % number])
        log.flush()
    log.flush(with_checkpoint=True)
    log.policy = LogPolicy(max_segment_chunks=1, max_length_bytes=1)
    parts = log.expire(0).parts()
    if at == "segment":
        next(parts)()
        disk.failures["remove"] = 1
    else:
        disk.failures["rename"] = 1
    with pytest.raises(StorageError):
        next(parts)()
    log.expire(0).run()
    assert [path for path in disk.files if path.endswith(".segment")] == [
        log.segments.shown[0].path()
    ]
    assert not log.expire(0).segments
    log.close()
    log = Log.open("s", log.policy, disk)
    assert log.report.losses == log.report.steps == ()
    assert read_bodies(log) == [b"59"]


def test_offsets_that_a_killed_process_left_are_flushed_on_opening() -> None:
    """Whoever asks gets them, so a power failure must not take them any more."""
    disk = FolderDisk()
    log = Log.open("s", LogPolicy(), disk)
    append(log, 3 * [b"x"])
    store_offset(log, b"reader", 1)
    log.flush(with_checkpoint=True)
    store_offset(log, b"reader", 2)
    del log  # killed
    log = Log.open("s", LogPolicy(), disk)
    assert log.journal.tracking.offset(b"reader") == 2
    disk.cut_power({}, {})
    assert Log.open("s", LogPolicy(), disk).journal.tracking.offset(b"reader") == 2


def test_what_a_failed_sync_has_left_is_written_again() -> None:
    """The system takes it for written: it reads it, and syncs nothing of it any more."""
    disk = RecordingDisk()
    log = Log.open("s", LogPolicy(max_segment_chunks=2), disk)
    disk.sync_folder("")
    for n in range(5):
        append(log, [b"%d" % n], sequences={b"p": n})
    store_offset(log, b"reader", 4)
    for node in list(disk.tree.contents):
        disk.do(Drop(node))
    del log  # killed
    log = Log.open("s", LogPolicy(), disk)
    assert len(read_bodies(log)) == 5
    disk = RecordingDisk(disk.synced(len(disk.operations)), boot=2)
    log = Log.open("s", LogPolicy(), disk)
    assert read_bodies(log) == [b"%d" % n for n in range(5)]
    assert (log.report.losses, log.journal.tracking.offset(b"reader")) == ((), 4)
    log.close()
    assert list(verify(disk, "s")) == []


@pytest.mark.parametrize("part", [".index", "checkpoint", "s"])
def test_a_sync_that_fails_behind_the_messages_is_not_repeated(part: str) -> None:
    """The next one would succeed, and the checkpoint would speak for what is not there."""
    disk = DroppingDisk()
    log = Log.open("s", LogPolicy(max_segment_chunks=40), disk)
    disk.sync_folder("")
    for n in range(90):
        append(log, [b"%d" % n])
    disk.fails = part
    for _ in range(2):
        with pytest.raises(StorageError):
            log.flush(with_checkpoint=True)
    del log  # killed
    Log.open("s", LogPolicy(), disk)
    disk = DroppingDisk(disk.synced(len(disk.operations)), boot=2)
    log = Log.open("s", LogPolicy(), disk)
    assert read_bodies(log) == [b"%d" % n for n in range(90)]
    log.close()
    assert list(verify(disk, "s")) == []


def test_a_log_whose_name_fails_to_reach_the_device_is_not_opened() -> None:
    disk = DroppingDisk()
    disk.fails = "s"
    with pytest.raises(StorageError):
        Log.open("s", LogPolicy(), disk)


def test_a_snapshot_that_knows_lost_chunks_lets_nothing_go() -> None:
    """It is to be replaced, and there is no room for that yet."""
    disk = RefusingDisk()
    log = Log.open("s", LogPolicy(max_segment_chunks=1), disk)
    append(log, [b"0"], sequences={b"p": 0})
    log.flush(with_checkpoint=True)
    for number in range(1, 4):
        append(log, [b"%d" % number], sequences={b"p": number})
    log.journal.add_snapshot(log.committed_offset)
    file = log.journal.borrow()
    assert file is not None
    file.sync()
    disk.cut_power({}, {})
    disk.part = "tracking"
    log = Log.open("s", LogPolicy(max_segment_chunks=1, max_length_bytes=1), disk)
    with pytest.raises(StorageError):
        append(log, [b"x"])
    assert not log.expire(0).segments
