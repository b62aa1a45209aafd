"""A truncation that is interrupted: the log begins where it did, or where it was told to."""

from collections.abc import Iterator
from contextlib import closing
from random import Random

import pytest

from segments import Log, LogPolicy
from tests.support.logs import append, read_bodies, truncate
from tests.support.recorder import RecordingDisk

_POLICY = LogPolicy(max_segment_chunks=4)
_BODIES = [b"%d" % n for n in range(10)]


def _left(disk: RecordingDisk, count: int) -> Iterator[RecordingDisk]:
    """What a crash after so many operations can leave."""
    yield disk.after_kill(Random(0), count)
    trees = [disk.synced(count), *(disk.power_cut(count, Random(n)) for n in range(100))]
    for tree in {repr(tree): tree for tree in trees}.values():
        yield RecordingDisk(tree, boot=2)


@pytest.mark.parametrize("first", [2, 4])
def test_a_crash_at_any_moment(first: int) -> None:
    disk = RecordingDisk()
    disk.make_folder("s")
    disk.sync_folder(".")
    log = Log.open("s", _POLICY, disk)
    for number, body in enumerate(_BODIES):
        append(log, [body], sequences={b"p": number})
    log.flush(with_checkpoint=True)
    begun = len(disk.operations)
    assert truncate(log, first) == first
    answered = len(disk.operations)
    for count in range(begun, answered + 1):
        for found in _left(disk, count):
            with closing(Log.open("s", _POLICY, found)) as opened:
                assert not opened.report.losses
                assert opened.journal.tracking.sequence(b"p") == 9
                bodies = read_bodies(opened)
                assert bodies == _BODIES[first:] or (bodies == _BODIES and count < answered)
