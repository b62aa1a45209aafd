"""`streamd tier`, and what `streamd stream info` says of the tier."""

import json
from dataclasses import replace

import pytest

from segments.store.object_store import TierError
from streamd.cli.tier import stream_text
from streamd.operations.tier_reports import Fault, Orphan, StreamTier, TierState, TierStatus, plain
from tests.support.command_line import CommandLine
from tests.support.tier import STATUS, FakeTier


@pytest.fixture(name="tier")
def tier_of_server(streamd: CommandLine) -> FakeTier:
    streamd.tier = tier = FakeTier()
    assert streamd("stream", "create", "s").code == 0
    assert streamd("stream", "create", "outside").code == 0
    tier.outside = {"outside"}
    return tier


@pytest.mark.usefixtures("tier")
def test_status(streamd: CommandLine) -> None:
    ended = streamd("tier", "status")
    assert (ended.code, ended.notes) == (0, "")
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert lines == [
        "tier s3://bucket/prefix",
        "state ok",
        "writer a1b2, epoch 3",
        "streams 2",
        "local 1.0 kB",
        "in the tier 2.0 MB",
        "waiting 300 B, the oldest for 4 s",
        "upload 150 B/s; what waits takes 2 s at that rate",
        "slots 1,234 stored; half of the last within 50 ms, all within 400 ms",
        "log 30 slots, 4.0 kB, which a start would read",
        "cache 77 B",
        "requests 5 gets, 1 put, 2 deletes; 8 errors",
        "moved 7.0 kB uploaded, 6.0 kB fetched",
        "",
        "vhost stream local in the tier waiting oldest trouble",
        "/ s 1.0 kB 2.0 MB 300 B 4 s",
    ]


def test_status_as_json(streamd: CommandLine, tier: FakeTier) -> None:
    stream = tier.stream("/", "s")
    assert stream is not None
    found = json.loads(streamd("tier", "status", "--json").out)
    assert found == {**plain(STATUS), "streams": [plain(stream)]}


def test_trouble_is_told(streamd: CommandLine, tier: FakeTier) -> None:
    tier.told = TierStatus(url="s3://b", state=TierState.AWAY, sentence="it is away")
    tier.told = replace(tier.told, confirm_sentence="confirms wait for the tier")
    tier.sentence = "this stream as well"
    out = streamd("tier", "status").out
    assert "away: it is away" in out
    assert "trouble      confirms wait for the tier" in out
    assert "this stream as well" in out
    assert "requests     none; 0 errors" in out


def test_without_a_tier(streamd: CommandLine) -> None:
    says = "the server has no tier; its setting tier names one, as s3://BUCKET/PREFIX\n"
    ended = streamd("tier", "status")
    assert (ended.code, ended.out, ended.notes) == (0, "", says)
    assert json.loads(streamd("tier", "status", "--json").out) == {
        **plain(TierStatus()),
        "streams": [],
    }
    assert streamd("stream", "create", "s").code == 0
    for words in (["verify", "s"], ["gc"], ["upload"]):
        ended = streamd("tier", *words)
        assert ended.code == 1
        assert ended.notes.endswith(f" is refused: {says}")
    assert "tier" not in json.loads(streamd("stream", "info", "s", "--json").out)
    assert "tier" not in streamd("stream", "info", "s").out


def test_verify(streamd: CommandLine, tier: FakeTier) -> None:
    ended = streamd("tier", "verify", "s")
    assert (ended.code, ended.out) == (0, "")
    assert ended.notes == "s: 12 objects, 3.5 kB, all as they should be\n"
    tier.faults = (Fault("v1/a.segment", "has 5 bytes, expected 6"), Fault("v1/b", "is missing"))
    ended = streamd("tier", "verify", "s")
    assert ended.code == 1
    assert ended.notes == "Error: s: 2 faults in 12 objects, 3.5 kB\n"
    assert [" ".join(line.split()) for line in ended.out.splitlines()] == [
        "object fault",
        "v1/a.segment has 5 bytes, expected 6",
        "v1/b is missing",
    ]
    assert tier.asked == [("verify", "/", "s")] * 2
    ended = streamd("tier", "verify", "s", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["num_faults"], len(found["faults"])) == (1, 2, 2)


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize(
    ("stream", "says"),
    [("none", "stream does not exist"), ("outside", "outside is not in the tier")],
)
def test_verify_what_is_not_there(streamd: CommandLine, stream: str, says: str) -> None:
    ended = streamd("tier", "verify", stream)
    assert ended.code == 1
    assert says in ended.notes


def test_gc(streamd: CommandLine, tier: FakeTier) -> None:
    ended = streamd("tier", "gc", "--dry-run")
    assert (ended.code, ended.notes) == (0, "would remove 1 object, 12 B\n")
    assert ended.out.split() == ["object", "bytes", "v1/x/0.segment", "12"]
    tier.orphans = (Orphan("a", 1_000), Orphan("b", 2_000))
    assert streamd("tier", "gc").notes == "removed 2 objects, 3.0 kB\n"
    found = json.loads(streamd("tier", "gc", "--dry-run", "--json").out)
    assert (found["is_removed"], [one["size"] for one in found["orphans"]]) == (
        False,
        [1_000, 2_000],
    )
    tier.orphans = ()
    ended = streamd("tier", "gc")
    assert (ended.out, ended.notes) == ("", "removed 0 objects, 0 B\n")
    assert [dry for _, dry in tier.asked] == [True, False, True, False]


def test_upload(streamd: CommandLine, tier: FakeTier) -> None:
    ended = streamd("tier", "upload")
    assert ended.code == 0
    assert [" ".join(line.split()) for line in ended.out.splitlines()] == [
        "vhost stream uploaded next offset",
        "/ s 2.3 kB 1,000",
        "/ t 0 B 1,000",
    ]
    says = "2 streams and the catalog are in the tier, 2.3 kB uploaded"
    assert ended.notes == f"{says}; 1 stream not to be in it\n"
    assert streamd("tier", "upload", "s", "t", "--timeout", "7").notes == f"{says}\n"
    assert json.loads(streamd("tier", "upload", "s", "--json").out) == {
        "num_streams": 2,
        "num_bytes": 2_345,
        "num_outside": 0,
        "streams": [
            {"name": "s", "vhost": "/", "num_bytes": 2_345, "next_offset": 1_000},
            {"name": "t", "vhost": "/", "num_bytes": 0, "next_offset": 1_000},
        ],
    }
    assert tier.asked == [
        ("upload", "/", 300),
        ("upload", "/", "s", "t", 7),
        ("upload", "/", "s", 300),
    ]
    tier.uploaded = ()
    ended = streamd("tier", "upload", "--timeout", "1")
    assert (ended.code, ended.out) == (0, "")
    assert ended.notes.startswith("0 streams and the catalog are in the tier, 0 B uploaded")


@pytest.mark.usefixtures("tier")
def test_an_upload_that_is_refused(streamd: CommandLine) -> None:
    ended = streamd("tier", "upload", "s", "outside")
    assert ended.code == 1
    assert ended.notes.endswith(
        "outside is not uploaded to the tier: its argument stream-tier is false\n"
    )
    for seconds in ("0", "-1", "inf", "604801"):
        assert streamd("tier", "upload", "--timeout", seconds).code == 2


@pytest.mark.parametrize("words", [["verify", "s"], ["gc"], ["upload"]])
def test_a_store_that_is_away(streamd: CommandLine, tier: FakeTier, words: list[str]) -> None:
    tier.error = TierError("s3://bucket/prefix does not answer; it is tried again")
    ended = streamd("tier", *words)
    assert ended.code == 1
    assert "s3://bucket/prefix does not answer" in ended.notes


def test_the_info_of_a_stream(streamd: CommandLine, tier: FakeTier) -> None:
    found = tier.stream("/", "s")
    assert found is not None
    assert json.loads(streamd("stream", "info", "s", "--json").out)["tier"] == plain(found)
    assert "tier" not in json.loads(streamd("stream", "info", "outside", "--json").out)
    assert "12 segments, 2.0 MB, in the tier" in " ".join(
        streamd("stream", "info", "s").out.split()
    )
    streamd.tier = None
    assert "in the tier" not in streamd("stream", "info", "s").out


def test_a_stream_in_a_line() -> None:
    one = StreamTier(
        name="s",
        vhost="/",
        bytes_local=10,
        segments_local=1,
        bytes_remote=2_000,
        segments_remote=3,
        bytes_waiting=0,
        segments_waiting=0,
        oldest_waiting_seconds=None,
        sentence="",
    )
    assert stream_text(one) == "3 segments, 2.0 kB, in the tier; 1 segment, 10 B, local"
    waiting = {"bytes_waiting": 7, "segments_waiting": 2, "oldest_waiting_seconds": 60.0}
    text = stream_text(StreamTier(**{**plain(one), **waiting, "sentence": "it is away"}))
    assert text.endswith("; 2 full segments not uploaded yet, 7 B, the oldest for 60 s; it is away")
