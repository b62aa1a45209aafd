"""Figures of a log's filters."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from segments import Log, LogPolicy
from segments.filter_stats import newest, why_nothing_is_saved
from tests.support.disk import FaultyDisk
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


def why(chunks: list[set[bytes]]) -> str:
    """What is said of a log whose chunks have these filter values; the empty one is none."""
    log = Log.open("log", LogPolicy(filter_size=64), disk=FaultyDisk())
    for values in chunks:
        append(log, [b"x"] * len(values), sorted(values) if any(values) else None)
    try:
        return why_nothing_is_saved(newest(log.segments.shown, 1_000).counts)
    finally:
        log.close()


@given(st.lists(st.sets(st.sampled_from([b"", b"a", b"b", b"c"]), min_size=1), max_size=6))
def test_why_nothing_is_saved_is_said_where_nothing_is(chunks: list[set[bytes]]) -> None:
    said = why(chunks)
    with_values = [values - {b""} for values in chunks if values != {b""}]
    everything = set().union(*with_values)
    if chunks and not with_values:
        assert said.startswith("publishers sent no values")
    elif len(with_values) > 1 and all(values == everything for values in with_values):
        assert said.endswith("in every chunk: no size helps")
        assert said.startswith(f"{len(everything)} value")
    else:
        held = sum(map(len, with_values)), len(everything) * len(with_values)
        assert bool(said) == (len(with_values) > 1 and held[0] >= 0.9 * held[1])


def test_why_in_words() -> None:
    five = {b"%d" % n for n in range(5)}
    assert why([five] * 3) == "5 values, all in every chunk: no size helps"
    assert why([{b"a"}] * 2) == "1 value, in every chunk: no size helps"
    assert why([five] * 3 + [five - {b"0"}]) == "5 values, all in nearly every chunk: no size helps"
    assert why([five, {b"0"}]) == why([]) == ""
