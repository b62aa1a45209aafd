"""What a store has to follow a log is put back into its files, as it stood there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from segments import FIRST, ChunkBuilder, Log, Reader
from segments.checkpoint import CHECKPOINT_NAME
from segments.disk import OsDisk
from segments.marks import AHEAD, put_mark
from segments.recovery.tail import TailChunk
from segments.segment import walk_headers
from tests.support.logs import entry


def _append(log: Log, number: int) -> None:
    for _ in range(number):
        builder = ChunkBuilder()
        builder.add(entry(b"x"), 1, 1, None)
        log.append([builder], 0)


def _chunks(log: Log) -> Iterator[TailChunk]:
    for segment in log.segments.shown:
        file = segment.open()
        for position, header in walk_headers(segment, file, None):
            yield TailChunk(header.chunk_id, header, file.read(header.total_size, position))
        file.close()


@pytest.mark.parametrize(
    ("has_gone", "has_checkpoint"), [(False, True), (True, True), (False, False)]
)
def test_it_goes_behind_an_empty_segment(
    tmp_path: Path, *, has_gone: bool, has_checkpoint: bool
) -> None:
    """Which a checkpoint names, or nothing does."""
    whole, folder = Log.open(str(tmp_path / "whole")), str(tmp_path / "log")
    _append(whole, 5)
    tail = list(_chunks(whole))
    log = Log.open(folder)
    _append(log, 3)
    log.seal()
    log.flush(with_checkpoint=True)
    log.close()
    if has_gone:  # an opening before this one was cut off
        for suffix in (".segment", ".index"):
            Path(folder, f"{3:020d}{suffix}").unlink()
    if not has_checkpoint:
        Path(folder, CHECKPOINT_NAME).unlink()
    put_mark(OsDisk(), folder, AHEAD, "another boot")
    log = Log.open(folder, tail=lambda: tail)
    assert not log.report.losses
    reader = Reader(log, log.segments.find(FIRST))
    found: list[int] = []
    while not reader.at_end:
        found += [chunk.header.chunk_id for chunk in reader.read(100, 1 << 20, 100)]
    assert found == list(range(5))
    log.close()
    whole.close()
