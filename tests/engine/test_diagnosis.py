"""What is wrong is said in sentences, each trouble in one, and nothing while all is well."""

import pytest
from msgspec.structs import replace

from streamd.engine import diagnosis
from streamd.operations import server as s
from streamd.operations.tier_reports import TierState, TierStatus

NOW = 1_700_000_000_000
WELL = s.ServerFacts(
    pid=1,
    started_ms=NOW,
    uptime=1.0,
    memory=1,
    files=10,
    max_files=100,
    disk_free=50,
    disk_total=100,
    disk_floor=0,
    faults={},
    listeners=[],
    doors=[s.DoorFacts("HTTP", True, 1, NOW)],
    tier=TierState.OFF,
    recent=[],
    history=[],
)


def _of(facts: s.ServerFacts, tier: TierStatus | None = None, newest_ms: int = NOW) -> list[str]:
    troubles = diagnosis.of_server(facts, tier or TierStatus(), newest_ms, NOW)
    return [one.what for one in troubles]


def test_nothing_is_said_while_all_is_well() -> None:
    assert _of(WELL) == []
    assert _of(WELL, TierStatus(state=TierState.OK)) == []
    assert _of(replace(WELL, files=None)) == []
    assert _of(replace(WELL, disk_free=20_000_000_000, disk_total=10**13)) == []
    assert list(diagnosis.of_streams([])) == list(diagnosis.of_consumers([])) == []


@pytest.mark.parametrize(
    ("facts", "tier", "newest_ms", "said"),
    [
        (replace(WELL, disk_free=9), None, NOW, "only 9 % of the disk is free: 9 B of 100 B"),
        (
            replace(WELL, disk_floor=51),
            None,
            NOW,
            "publishers wait: only 50 B of the disk are free",
        ),
        (
            replace(WELL, doors=[s.DoorFacts("HTTP", False, 2, NOW)]),
            None,
            NOW,
            "HTTP is not served: its process has ended",
        ),
        (WELL, TierStatus(state=TierState.AWAY, sentence="no answer"), NOW, "store: no answer"),
        (WELL, TierStatus(state=TierState.FENCED), NOW, "the object store: fenced"),
        (WELL, TierStatus(state=TierState.OK, confirm_sentence="confirms wait"), NOW, "confirms"),
        (replace(WELL, files=91), None, NOW, "91 of 100 files are open"),
        (WELL, None, NOW + 7_200_000, "the newest message is 2 h 0 min ahead of the clock"),
        (replace(WELL, faults={"expiring": 2}), None, NOW, "2 faults were contained"),
    ],
)
def test_each_trouble_is_one_sentence(
    facts: s.ServerFacts, tier: TierStatus | None, newest_ms: int, said: str
) -> None:
    (sentence,) = _of(facts, tier, newest_ms)
    assert said in sentence
    assert not sentence.endswith(".")


def test_streams() -> None:
    one = s.StreamTrouble("/", "s", "the disk is full", 2)
    assert list(diagnosis.of_streams([one])) == [
        s.Trouble(s.TroubleKind.STREAM, "takes no messages: the disk is full", "/", "s"),
        s.Trouble(
            s.TroubleKind.DAMAGE,
            "2 messages are damaged and cannot be read; the log says where",
            "/",
            "s",
        ),
    ]


def test_consumers_that_are_minutes_behind() -> None:
    far, near = (s.Behind(seconds, 5, "till", "/", "s") for seconds in (301, 300))
    assert [one.what for one in diagnosis.of_consumers([far, near])] == [
        "consumer till is 5 min 1 s behind, 5 messages"
    ]
