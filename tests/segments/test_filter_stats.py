"""Figures of a log's filters."""

from pathlib import Path

import pytest

from segments import Log, LogPolicy
from segments.filter_stats import newest
from tests.support.logs import append


@pytest.mark.parametrize("num_kept", range(1, 6))
def test_segments_that_go_while_they_are_read_are_left_out(tmp_path: Path, num_kept: int) -> None:
    log = Log.open(str(tmp_path), LogPolicy(max_segment_chunks=2, filter_size=16))
    for number in range(10):
        append(log, [b"x"], [b"value %d" % number])
    segments = list(log.segments.shown)
    for segment in segments[:-num_kept]:
        segment.remove()
    stats = newest(segments, 1_000)
    assert (stats.chunks, stats.distinct) == (2 * num_kept, 2 * num_kept)
    log.close()
