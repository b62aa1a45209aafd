"""What write-ahead logs have of a stream behind its segments is read as its folder is."""

from pathlib import Path

import pytest

from segments.errors import CorruptError
from segments.spark.inventory import NothingYet
from segments.spark.stored import find_stored
from tests.segments.spark.test_decoding import rows
from tests.segments.spark.test_positions import offsets_of, reader
from tests.segments.spark.test_stored import (
    KEY,
    Counted,
    path_in,
    planned,
    store,
    written,
)
from tests.support.stored_streams import keep_segments, put_slots, put_stream

__all__ = ["store"]  # a fixture


def test_only_what_matches_is_read_of_slots(tmp_path: Path, store: Counted) -> None:
    folder = written(tmp_path / "flights")
    keep_segments(store, put_stream(store, folder, "/", "flights"), 3)
    put_slots(store, folder, KEY, 210, 5)
    found = planned(path_in(store), filterValues='["HA"]')
    assert [chunk for piece in found for chunk in piece.chunk_ids] == [30, 130, 230, 330]


def test_slots_go_while_they_are_read(tmp_path: Path, store: Counted) -> None:
    """Segments have them then."""
    folder = written(tmp_path / "flights")
    whole = put_stream(store, folder, "/", "flights")
    manifest = keep_segments(store, whole, 3)
    keys = put_slots(store, folder, KEY, 210, 2)
    found = find_stored(path_in(store))
    assert found.ends() == (0, 400)
    keep_segments(store, manifest, 0)
    keep_segments(store, whole, 6)
    store.delete(keys[:6])
    store.delete(["v1/cluster"])
    ids = [int(one) for listing in found.listings() for one in listing.chunk_ids]
    assert ids == list(range(0, 400, 10))
    assert rows(path_in(store)) == rows(folder)


def test_a_slot_that_is_damaged_ends_it(
    tmp_path: Path, store: Counted, caplog: pytest.LogCaptureFixture
) -> None:
    folder = written(tmp_path / "flights")
    keep_segments(store, put_stream(store, folder, "/", "flights"), 3)
    keys = put_slots(store, folder, KEY, 210, 2)
    content = store.get(keys[4]).content
    _replace(store, keys[4], b"{" + content)
    assert find_stored(path_in(store)).ends() == (0, 290)
    assert keys[4] in caplog.text
    _replace(store, keys[4], content[:-1] + b"?")
    with pytest.raises(CorruptError, match="checksum"):
        rows(path_in(store))


def _replace(store: Counted, key: str, content: bytes) -> None:
    store.delete([key])
    store.create(key, content)


def test_a_fence_ends_it(tmp_path: Path, store: Counted) -> None:
    folder = written(tmp_path / "flights")
    keep_segments(store, put_stream(store, folder, "/", "flights"), 3)
    keys = put_slots(store, folder, KEY, 210, 2)
    store.delete([keys[3]])
    assert find_stored(path_in(store)).ends() == (0, 270)


def test_a_stream_of_which_there_is_nothing(tmp_path: Path, store: Counted) -> None:
    put_slots(store, written(tmp_path / "flights"), KEY, 0, 2)
    with pytest.raises(NothingYet):
        find_stored(path_in(store, "others"))


def test_a_stream_that_grows(tmp_path: Path, store: Counted) -> None:
    """A batch that is made again has the same messages when they are in segments."""
    folder = written(tmp_path / "flights")
    whole = put_stream(store, folder, "/", "flights")
    keep_segments(store, whole, 3)
    keys = put_slots(store, folder, KEY, 210, 2)
    last = store.get(keys[-1]).content
    store.delete([keys[-1]])
    made = reader(path_in(store))
    start, limit = made.initialOffset(), made.getDefaultReadLimit()
    assert made.latestOffset(start, limit)["offset"] == 390
    _replace(store, keys[-1], last)
    store.ranges.clear()
    end = made.latestOffset(start, limit)
    assert end["offset"] == 400
    assert [key for key, *_ in store.ranges] == [keys[-1]]  # others are known
    batch = {"offset": 200, "life": end["life"]}
    before = offsets_of(made, batch, end)
    assert before == list(range(200, 400))
    keep_segments(store, whole, 6)
    store.delete([*keys, "v1/cluster"])
    assert offsets_of(made, batch, end) == before
    assert offsets_of(reader(path_in(store)), batch, end) == before
