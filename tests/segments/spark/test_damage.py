"""Damage that a kill or a full disk leaves: failfast names it, permissive has a row for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from segments import CorruptError, Log, LogPolicy
from segments.codec import FILE_HEADER_SIZE
from segments.spark import inventory
from segments.spark.columns import columns_of
from segments.spark.files import LocalSegment
from segments.spark.inventory import list_segments
from segments.spark.options import read_options
from segments.spark.source import StreamdReader
from segments.spark.streaming import DataLost
from tests.segments.spark.test_decoding import rows
from tests.segments.spark.test_positions import reader
from tests.support.logs import append

PER_CHUNK = 20
_CHUNKS = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two segments of three chunks each."""
    log = Log.open(str(tmp_path), LogPolicy(max_segment_chunks=3))
    for chunk in range(_CHUNKS):
        append(log, [b"body %d" % (chunk * PER_CHUNK + n) for n in range(PER_CHUNK)])
    log.close()
    return tmp_path


def last_chunk(folder: Path) -> tuple[Path, int, int]:
    """The newest segment, and where its last chunk begins and ends."""
    *_, listing = list_segments(str(folder))
    path = Path(listing.file.path)
    return path, int(listing.positions[-1]), path.stat().st_size


def kept(found: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in found if row["damage"] is None]


def told(found: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in found if row["damage"] is not None]


LOST = (_CHUNKS - 1) * PER_CHUNK


@pytest.mark.parametrize("left", [0, 1, 47, 48, 60, -1], ids=lambda n: f"{n} bytes of it left")
def test_a_last_chunk_that_is_cut_off(folder: Path, left: int) -> None:
    path, start, end = last_chunk(folder)
    path.write_bytes(path.read_bytes()[: end + left if left < 0 else start + left])
    with pytest.raises(CorruptError, match=rf"\.segment is damaged at byte {start}: "):
        rows(folder, columns="offset")
    found = rows(folder, columns="offset", mode="permissive")
    assert kept(found) == list(range(LOST))
    assert told(found) == [LOST]
    assert len(rows(folder, columns="offset", endOffset=str(LOST))) == LOST
    if left not in (0, 1, 47):  # its header says how many messages it had
        with pytest.raises(CorruptError, match="is damaged at byte"):
            rows(folder, columns="offset", startOffset=str(LOST + PER_CHUNK - 1))
    assert rows(folder, columns="offset", startOffset=str(LOST + PER_CHUNK)) == []


def flipped(byte: int) -> Callable[[bytes, int], bytes]:
    """Changes a byte of the last chunk."""

    def change(raw: bytes, start: int) -> bytes:
        at = start + byte
        return raw[:at] + bytes((raw[at] ^ 1,)) + raw[at + 1 :]

    return change


@pytest.mark.parametrize(
    ("change", "reason", "num_kept", "rows_told"),
    [
        pytest.param(lambda raw, _: raw[:3], "the file ends, its index", 60, [60], id="cut off"),
        pytest.param(lambda *_: b"no segment" * 40, "at byte 0", 60, [60, 60], id="no segment"),
        *(
            pytest.param(flipped(byte), "at byte {start}: ", LOST, [LOST], id=f"header byte {byte}")
            for byte in (0, 7, 31, 33, 39)
        ),
    ],
)
def test_the_last_segment(
    folder: Path,
    change: Callable[[bytes, int], bytes],
    reason: str,
    num_kept: int,
    rows_told: list[int],
) -> None:
    path, start, _ = last_chunk(folder)
    path.write_bytes(change(path.read_bytes(), start))
    with pytest.raises(CorruptError, match=rf"\.segment .*{reason.format(start=start)}"):
        rows(folder, columns="offset")
    found = rows(folder, columns="offset", mode="permissive")
    assert (kept(found), told(found)) == (list(range(num_kept)), rows_told)


@pytest.mark.parametrize("number", [0, 1])
def test_the_header_of_a_file(folder: Path, number: int) -> None:
    """The chunks behind it are whole, and each has its own checksums."""
    path = sorted(folder.glob("*.segment"))[number]
    raw = path.read_bytes()
    path.write_bytes(b"XSIL" + raw[4:])
    with pytest.raises(CorruptError, match=r"\.segment is damaged at byte 0: "):
        rows(folder, columns="offset")
    found = rows(folder, columns="offset", mode="permissive")
    assert kept(found) == list(range(_CHUNKS * PER_CHUNK))
    assert told(found) == [number * 60]
    assert told(rows(folder, mode="permissive", startOffset=str(number * 60))) == [number * 60]


def test_a_growing_stream(folder: Path) -> None:
    path, start, end = last_chunk(folder)
    raw = path.read_bytes()
    path.write_bytes(raw[: end - 1])

    for mode in ("failfast", "permissive"):
        made = reader(folder, mode=mode)
        at = made.latestOffset({"v": 1, "offset": 0}, made.getDefaultReadLimit())
        assert at["offset"] == LOST
    with pytest.raises(CorruptError, match=f"at byte {start}"):
        reader(folder, mode="failfast").latestOffset(at, made.getDefaultReadLimit())
    assert made.latestOffset(at, made.getDefaultReadLimit()) == at
    path.write_bytes(raw)
    assert made.latestOffset(at, made.getDefaultReadLimit())["offset"] == LOST + PER_CHUNK
    path.write_bytes(b"XSIL" + raw[4:FILE_HEADER_SIZE] + raw[FILE_HEADER_SIZE:])
    with pytest.raises(CorruptError, match="at byte 0"):
        reader(folder, mode="failfast").partitions({"offset": 0}, {"offset": LOST})


def test_segments_that_go_while_they_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention takes the first ones while those behind them are looked at."""
    log = Log.open(str(tmp_path), LogPolicy(max_segment_chunks=1))
    for _ in range(4):
        append(log, [b"x"] * PER_CHUNK)
    log.close()
    look = inventory.list_segment

    def retention(folder: str, base: int, *rest: Any, **options: Any) -> inventory.Listing:
        if base == PER_CHUNK:
            for file in tmp_path.glob(f"*{PER_CHUNK}.*"):
                file.unlink()
        return look(folder, base, *rest, **options)

    monkeypatch.setattr(inventory, "list_segment", retention)
    with pytest.raises(DataLost, match=f"offsets {PER_CHUNK} to {2 * PER_CHUNK - 1} of"):
        reader(tmp_path).partitions({"offset": 0}, {"offset": 4 * PER_CHUNK})


def test_a_segment_that_goes_before_its_filters_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was listed, so it is missed: by the task that is to read it."""
    log = Log.open(str(tmp_path), LogPolicy(max_segment_chunks=1))
    for _ in range(2):
        append(log, [b"x"] * PER_CHUNK, [b"v"] * PER_CHUNK)
    log.close()
    options = read_options({"path": str(tmp_path), "filterValues": '["v"]'})
    made = StreamdReader(options, columns_of(options))
    look = LocalSegment.window

    def retention(file: LocalSegment, start: int, end: int) -> Any:
        if Path(file.path).name == f"{0:020}.segment":
            Path(file.path).unlink()
        return look(file, start, end)

    monkeypatch.setattr(LocalSegment, "window", retention)
    (task,) = made.partitions()
    with pytest.raises(CorruptError, match="the segment with offset 0 was removed since"):
        list(made.read(task))
