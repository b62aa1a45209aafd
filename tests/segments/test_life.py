"""The life of a stream: another one for each creation, and the same one whatever else is lost."""

from pathlib import Path

import pytest

from segments import Log, marks
from segments.disk import OsDisk
from segments.marks import life_number, new_life
from segments.store.local_copy import write_copy
from segments.store.manifest import Manifest
from segments.store.object_names import StreamKey
from tests.support.logs import append
from tests.support.recorder import RecordingDisk


def _manifest(creation: str) -> Manifest:
    key = StreamKey("/", "s", creation)
    return Manifest(stream=key, revision=1, epoch=1, writer="w")


def test_it_stays_whatever_else_is_lost(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), life="0123456789abcdef")
    append(log, [b"x"])
    log.close()
    for path in tmp_path.iterdir():
        if path.suffix != ".segment" and not path.name.startswith("life-"):
            path.unlink()
    again = Log.open(str(tmp_path), life="fedcba9876543210")
    assert again.life == log.life == "0123456789abcdef"
    again.close()


def test_later_ones_are_greater(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a millisecond, and when the clock is set back: the store's newest is the right one."""
    lives = [new_life() for _ in range(20)]
    monkeypatch.setattr(marks.time, "time_ns", lambda: 1_000_000)
    lives += [new_life() for _ in range(20)]
    assert lives == sorted(set(lives))


def test_an_older_folder_gets_one_that_a_power_failure_does_not_take_away() -> None:
    disk = RecordingDisk()
    disk.make_folder("s")
    disk.sync_folder("")
    log = Log.open("s", disk=disk)
    append(log, [b"x"])
    log.close()
    disk.remove(f"s/life-{log.life}")
    disk.sync_folder("s")
    given = Log.open("s", disk=disk).life
    assert given != log.life
    syncs = len(disk.operations)
    assert Log.open("s", disk=RecordingDisk(disk.synced(syncs))).life == given
    assert Log.open("s", disk=disk).life == given
    assert len(disk.operations) == syncs, "the next opening does nothing for it"


def test_one_that_is_in_the_tier_has_the_id_there(tmp_path: Path) -> None:
    manifest = _manifest("019abf3c2a10c41f9a02")
    write_copy(OsDisk(), str(tmp_path), manifest)
    log = Log.open(str(tmp_path))
    assert log.life == "019abf3c2a10c41f9a02"
    assert (tmp_path / "life-019abf3c2a10c41f9a02").exists()
    log.close()


def test_who_follows_has_that_of_the_store(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), life=None)
    assert log.life == ""
    manifest = _manifest("0123456789abcdef")
    log.follow(manifest, log.journal.tracking)
    assert log.life == "0123456789abcdef"
    log.close()


@pytest.mark.parametrize(
    ("life", "number"),
    [
        ("0123456789abcdef9a02", 0x0123456789ABCDEF),
        ("1", 1),
        ("", None),
        ("X", None),
        ("f" * 16, (1 << 63) - 1),
    ],
)
def test_as_a_number(life: str, number: int | None) -> None:
    assert life_number(life) == number
