"""Positions that Spark keeps: whose offsets they are, and what happens where that stream is gone.

Without a session: what Spark asks of the reader is asked here.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from segments import Log, LogPolicy
from segments.spark.columns import columns_of
from segments.spark.inventory import NotAStream
from segments.spark.options import read_options
from segments.spark.streaming import DataLost, StreamdStreamReader
from tests.support.logs import append

LIVES = ("1" * 16, "2" * 16)


def reader(path: Path | str, **given: str) -> StreamdStreamReader:
    options = read_options({"path": str(path), "columns": "offset", **given})
    return StreamdStreamReader(options, columns_of(options))


def make(folder: Path, count: int, life: str = LIVES[0]) -> None:
    """A new stream of so many messages, ten in a chunk, in place of what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    with_life = Log.open(str(folder), LogPolicy(max_segment_chunks=4), life=life)
    for _ in range(count // 10):
        append(with_life, [b"x"] * 10)
    with_life.close()


def without_life(folder: Path) -> None:
    for file in folder.glob("life-*"):
        file.unlink()


def offsets_of(made: StreamdStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The offsets between two positions."""
    return [
        row
        for task in made.partitions(start, end)
        for part in made.read(task)
        for row in part.to_pydict()["offset"]
    ]


def batch(made: StreamdStreamReader, start: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """The offsets of the next batch, and the position behind it."""
    end = made.latestOffset(start, made.getDefaultReadLimit())
    return offsets_of(made, start, end), end


@pytest.mark.parametrize("count", [0, 30, 50, 100])
def test_another_stream_of_the_name_is_no_continuation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    folder = tmp_path / "stream"
    make(folder, 50)
    first = reader(folder)
    found, kept = batch(first, first.initialOffset())
    assert found == list(range(50))
    make(folder, count, LIVES[1])
    with pytest.raises(DataLost, match="was deleted and created again since the checkpoint"):
        batch(reader(folder), kept)
    with pytest.raises(DataLost, match="was deleted and created again"):
        reader(folder).partitions({"v": 1, "offset": 0}, kept)
    with caplog.at_level(logging.WARNING):
        found, now = batch(reader(folder, failOnDataLoss="false"), kept)
    assert found == list(range(count))
    assert "goes on with offset 0" in caplog.text
    assert batch(reader(folder), now) == ([], now)


def test_a_checkpoint_of_the_first_version_goes_on(tmp_path: Path) -> None:
    make(tmp_path / "stream", 50)
    found, kept = batch(reader(tmp_path / "stream"), {"v": 1, "offset": 20})
    assert found == list(range(20, 50))
    assert kept == {"v": 2, "life": LIVES[0], "offset": 50}


def test_a_life_that_is_not_known_may_be_any(tmp_path: Path) -> None:
    make(tmp_path / "stream", 50)
    without_life(tmp_path / "stream")
    kept = {"v": 2, "life": LIVES[1], "offset": 40}
    found, now = batch(reader(tmp_path / "stream"), kept)
    assert (found, now) == (list(range(40, 50)), kept | {"offset": 50})


@pytest.mark.parametrize("has_life", [True, False])
def test_a_start_behind_the_end_is_not_nothing_new(tmp_path: Path, *, has_life: bool) -> None:
    make(tmp_path / "stream", 50)
    if not has_life:
        without_life(tmp_path / "stream")
    kept = {"v": 2, "life": LIVES[0] if has_life else "", "offset": 70}
    with pytest.raises(DataLost, match="is at offset 70, stream stream ends at 50: it is not what"):
        batch(reader(tmp_path / "stream"), kept)
    # What has a life is the same stream, without its end; the rest was read.
    found, now = batch(reader(tmp_path / "stream", failOnDataLoss="false"), kept)
    assert found == ([] if has_life else list(range(50)))
    assert now["offset"] == 50


@pytest.mark.parametrize("starting", ["earliest", "latest", "3"])
@pytest.mark.parametrize("has_folder", [True, False])
def test_a_stream_without_messages_gets_some(
    tmp_path: Path, starting: str, *, has_folder: bool
) -> None:
    folder = tmp_path / "stream"
    if has_folder:
        folder.mkdir()
    made = reader(folder, startingOffset=starting)
    kept = made.initialOffset()
    found, kept = batch(made, kept)
    assert found == []
    make(folder, 20)
    for one in (made, reader(folder, startingOffset=starting)):
        assert batch(one, kept)[0] == list(range(3 if starting == "3" else 0, 20))


def test_a_stream_that_was_read_and_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "stream"
    make(folder, 20)
    made = reader(folder)
    _, kept = batch(made, made.initialOffset())
    shutil.rmtree(folder)
    for one in (made, reader(folder)):
        with pytest.raises(NotAStream):
            batch(one, kept)


def test_a_place_that_no_stream_can_be_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStream, match="is not a folder"):
        reader(tmp_path / "none" / "stream").initialOffset()
