"""`python -m segments`: what a person sees of a whole stream and of a damaged one."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from segments import Log
from segments.__main__ import main
from tests.segments.recovery.test_recovery import chunk_starts, fill, flip
from tests.support.cold import make_cold
from tests.support.fake_store import FakeStore


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_dump_shows_every_chunk(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    result = run("dump", tmp_path)
    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert lines[0].startswith(f"{tmp_path}/{0:020d}.segment: offsets 0 to 2, 3 chunks, ")
    assert "1 record  2023-11-14 22:13:20.000Z" in lines[1]
    assert "filter 16 B, 2% set  sequences: p 1  filter values: v0 1" in lines[1]
    assert len([line for line in lines if line.startswith("  at ")]) == 5
    assert lines[4].startswith("  filters of 3 chunks: 2 values, ")
    assert " predicted, " in lines[4]
    assert lines[4].endswith(" observed")


def test_a_filter_file_that_does_not_fit(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    (tmp_path / f"{0:020d}.filter").write_bytes(b"SFLT\0\0\0\2")
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    assert "the filter file is cut off; the server rebuilds it" in result.output


def test_dump_as_json(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    first, second = map(json.loads, run("dump", "--json", tmp_path).output.splitlines())
    assert first["chunk_id"] == 0
    assert second | {"filter": ""} == {
        "segment": f"{tmp_path}/{0:020d}.segment",
        "position": 8 + 48 + 16 + 13 + 23,
        "magic": 0x50,
        "chunk_type": "user",
        "num_entries": 1,
        "num_records": 1,
        "timestamp_ms": 1_700_000_000_000,
        "epoch": 1,
        "chunk_id": 1,
        "data_crc": second["data_crc"],
        "data_size": 13,
        "trailer_size": 23,
        "filter_size": 16,
        "filter_scheme": "mmh3",
        "header_check": second["header_check"],
        "filter": "",
        "sequences": {"p": 2},
        "filter_values": {"v1": 1},
    }


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    """Every byte of segment, index and journal is covered by some check."""
    original = tmp_path / "original"
    original.mkdir()
    fill(original, 4)
    folder = tmp_path / "copy"
    for path in sorted(original.iterdir()):
        for position in range(path.stat().st_size):
            shutil.copytree(original, folder)
            flip(folder / path.name, position)
            result = run("verify", folder)
            assert result.exit_code == 1, (path.name, position)
            assert path.name in result.output, (path.name, position, result.output)
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        (f"{3:020d}.segment", f"{3:020d}.index"),
        (f"{3:020d}.index", f"{3:020d}.index"),
        ("checkpoint", "checkpoint at byte 0: the file is missing"),
        ("tracking", "tracking at byte 0: the file is missing"),
        (f"{0:020d}.*", f"{0:020d}.segment at byte 0: the file is missing"),
        (f"{6:020d}.*", f"{6:020d}.segment at byte 0: the file is missing"),
    ],
)
def test_missing_files_are_named(tmp_path: Path, pattern: str, named: str) -> None:
    fill(tmp_path, 8)
    for path in tmp_path.glob(pattern):
        path.unlink()
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    assert f"{tmp_path}/{named}" in result.output
    assert "missing" in result.output


def test_known_damage_is_still_named(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    path, start = chunk_starts(tmp_path)[0]
    flip(path, start + 68)
    path.with_suffix(".index").unlink()  # so that it is read through
    Log.open(str(tmp_path)).close()
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    assert f"{path} at byte {start}: known damage" in result.output


def test_a_folder_that_is_no_stream(tmp_path: Path) -> None:
    stream = tmp_path / "streams" / "s"
    stream.mkdir(parents=True)
    fill(stream, 1)
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    assert "is not a stream's folder" in result.output
    assert f"there are streams in {stream}" in result.output
    assert run("dump", tmp_path / "nothing").exit_code == 2


def test_cold_segments_are_named_and_left_out(tmp_path: Path) -> None:
    fill(tmp_path, 8)
    log = Log.open(str(tmp_path))
    cold = make_cold(log, FakeStore(), seals=False, number=2)
    log.close()
    left_out = f"left out: 2 segments in the object store, offsets 0 to {cold[-1].next_offset - 1}"
    result = run("verify", tmp_path)
    assert (result.exit_code, left_out in result.output) == (0, True), result.output
    result = run("dump", tmp_path)
    assert result.exit_code == 0
    assert result.output.count(" bytes in the object store") == 2
