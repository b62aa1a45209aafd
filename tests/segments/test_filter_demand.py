"""Which filter values were asked for: counted, bounded, kept, and never in the way."""

from pathlib import Path

import pytest

from segments import Log
from segments.disk import OsDisk
from segments.filter_demand import MAX_VALUES, NAME, FilterDemand, parse
from tests.support.disk import FaultyDisk


def test_counted_and_kept_with_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    log = Log.open(str(folder))
    log.close()
    assert not (folder / NAME).exists()
    log = Log.open(str(folder))
    log.filter_demand.add([b"HA", "é".encode()])
    log.filter_demand.add([b"HA", b"\xff no text"])
    log.close()
    assert parse((folder / NAME).read_bytes()) == {"HA": 2, "é": 1}
    log = Log.open(str(folder))
    log.filter_demand.add([b"UA"])
    assert log.filter_demand.counts == {"HA": 2, "é": 1, "UA": 1}
    log.close()


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b'{"HA": -1}', b'{"HA": true}', b"\xff", b"[" * 99_999]
)
def test_what_cannot_be_read_counts_as_nothing(tmp_path: Path, content: bytes) -> None:
    Path(tmp_path, NAME).write_bytes(content)
    asked = FilterDemand(OsDisk(), str(tmp_path))
    assert not asked.counts
    asked.add([b"HA"])
    asked.write()
    assert parse(Path(tmp_path, NAME).read_bytes()) == {"HA": 1}


def test_the_rarest_are_forgotten(tmp_path: Path) -> None:
    asked = FilterDemand(OsDisk(), str(tmp_path))
    for _ in range(3):
        asked.add([b"often"])
    asked.add(b"%d" % n for n in range(3 * MAX_VALUES))
    assert len(asked.counts) <= MAX_VALUES
    assert asked.counts["often"] == 3


def test_a_refused_write_is_tried_again() -> None:
    disk = FaultyDisk()
    log = Log.open("s", disk=disk)
    log.filter_demand.add([b"HA"])
    disk.failures["write"] = 1
    with pytest.raises(Exception, match=NAME):
        log.filter_demand.write()
    log.filter_demand.write()
    assert Log.open("s", disk=disk).filter_demand.counts == {"HA": 1}
