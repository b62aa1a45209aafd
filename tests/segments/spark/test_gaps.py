"""Reading a stream with a gap in its offsets: nothing is lost there, and nothing planned."""

from pathlib import Path

import pytest

from segments import Log, LogPolicy
from segments.gaps import OFFSET_GAP
from tests.segments.spark.test_decoding import rows
from tests.segments.spark.test_positions import batch, reader
from tests.support.logs import append


def with_gap(folder: Path, chunks: int = 6) -> list[int]:
    """Ten messages to a chunk, twice as many chunks; between them the machine went down."""
    for _ in range(2):
        log = Log.open(str(folder), LogPolicy(max_segment_chunks=4))
        for _ in range(chunks):
            append(log, [b"x"] * 10)
        log.close()
        (folder / "ahead-0").touch()
    half = chunks * 10
    return [*range(half), *range(half + OFFSET_GAP, 2 * half + OFFSET_GAP)]


@pytest.mark.parametrize("size", ["1", "300", "1000000"])
def test_a_query_reads_on_behind_a_gap(tmp_path: Path, size: str) -> None:
    folder = tmp_path / "s"
    expected = with_gap(folder)
    assert [row["offset"] for row in rows(str(folder), columns="offset")] == expected
    made = reader(folder, failOnDataLoss="true", maxBytesPerTrigger=size)
    position, found = made.initialOffset(), []
    while True:
        more, following = batch(made, position)
        if following == position:
            break
        assert more, "a batch in the gap"
        found += more
        position = following
    assert found == expected


@pytest.mark.parametrize("place", [0, 1, 5, OFFSET_GAP // 2, OFFSET_GAP])
def test_a_position_in_a_gap_goes_on_behind_it(tmp_path: Path, place: int) -> None:
    folder = tmp_path / "s"
    expected = with_gap(folder)
    made = reader(folder, failOnDataLoss="true")
    start = {**made.initialOffset(), "offset": 60 + place}
    found, _ = batch(made, start)
    assert found == expected[60:]
    assert [
        row["offset"] for row in rows(str(folder), columns="offset", startOffset=str(60 + place))
    ] == expected[60:]
