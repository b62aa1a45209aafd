"""Small things: settings, names of folders, arguments, batches."""

import string
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given, strategies as st

from segments import Log, LogPolicy
from segments.entries import split, without_duplicates
from segments.policy import RecordLimit
from streamd import config
from streamd.broker.streams.chunk_assembly import ChunkAssembly
from streamd.broker.streams.publication import PendingEntries
from streamd.broker.traffic import ProtocolTraffic
from streamd.config import Config, ConfigError
from streamd.connections.stream.publisher import StreamPublisher
from streamd.net.outbox import Outbox
from streamd.net.wakeup import Wakeup
from streamd.operations.arguments import (
    arguments_from_json,
    arguments_to_json,
    policy_of,
    read_arguments,
)
from streamd.operations.names import folder_name
from streamd.wire.stream.publish import (
    Outgoing,
    decode_entries,
    decode_filtered_entries,
    encode_entries,
    encode_filtered_entries,
)
from tests.support.disk import FaultyDisk


class TestConfig:
    def test_file_then_environment_then_flags(self, tmp_path: Path) -> None:
        file = tmp_path / "streamd.toml"
        file.write_text('data = "from-file"\nstream_port = 1\nhost = "::1"\nheartbeat = 5\n')
        environment = {"STREAMD_STREAM_PORT": "2", "STREAMD_HOST": "localhost", "OTHER": "x"}
        found = config.load(file, environment, host="0.0.0.0", data=None)
        assert (found.data, found.stream_port, found.host) == ("from-file", 2, "0.0.0.0")
        assert found.heartbeat == 5
        assert found.frame_max == 1 << 20

    @pytest.mark.parametrize("value", ["off", 0, 5552])
    def test_ports(self, tmp_path: Path, value: str | int) -> None:
        expected = None if value == "off" else value
        assert config.load(None, {"STREAMD_STREAM_PORT": str(value)}).stream_port == expected
        assert config.load(None, {}, stream_port=value).stream_port == expected
        file = tmp_path / "c.toml"
        file.write_text(f"stream_port = {value!r}")
        assert config.load(file, {}).stream_port == expected

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("nonsense = 1", "nonsense is not a setting; there are data, host"),
            ("heartbeat = 'x'", "heartbeat is 'x', expected a number"),
            ("heartbeat = true", "heartbeat is True, expected a number"),
            ("host = 1", "host is 1, expected a string"),
            ("heartbeat = 0", "heartbeat is 0, expected 1 to"),
            ("frame_max = 100", "frame_max is 100, expected 8192 to"),
            ("stream_port = 70000", "stream_port is 70000"),
            ("= broken", "cannot read"),
            ("read_only = 1", "read_only is 1, expected true or false"),
            ("read_only = 'true'", "read_only is 'true', expected true or false"),
            ("restore = true", "restore is not a setting"),
        ],
    )
    def test_bad_files(self, tmp_path: Path, text: str, reason: str) -> None:
        file = tmp_path / "c.toml"
        file.write_text(text)
        with pytest.raises(ConfigError, match=reason):
            config.load(file, {})

    def test_other_bad_input(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"missing\.toml: No such file or directory$"):
            config.load(tmp_path / "missing.toml", {})
        with pytest.raises(ConfigError, match="STREAMD_HEARTBEAT is 'often', expected a number"):
            config.load(None, {"STREAMD_HEARTBEAT": "often"})

    def test_a_flag_in_each_place(self, tmp_path: Path) -> None:
        tier = "s3://bucket"
        file = tmp_path / "c.toml"
        file.write_text(f'tier = "{tier}"\nread_only = true')
        assert config.load(file, {}).read_only
        assert not config.load(file, {"STREAMD_READ_ONLY": "false"}).read_only
        assert config.load(file, {"STREAMD_READ_ONLY": "false"}, read_only=True).read_only
        assert not config.load(None, {}, tier=tier, read_only=None).read_only
        with pytest.raises(ConfigError, match="STREAMD_READ_ONLY is 'yes', expected true or false"):
            config.load(None, {"STREAMD_READ_ONLY": "yes"})

    def test_the_address_of_a_tier_is_checked(self) -> None:
        config = Config(tier="s3://bucket/prefix", tier_endpoint="http://minio:9000")
        assert (config.tier, config.tier_endpoint) == ("s3://bucket/prefix", "http://minio:9000")
        for settings in (
            {"tier": "s3://me:hunter2@bucket"},
            {"tier": "s3://bucket", "tier_endpoint": "http://me:hunter2@minio"},
        ):
            with pytest.raises(ConfigError, match="has a user or a password in it") as refused:
                Config(**settings)  # type: ignore[arg-type]
            assert "hunter2" not in str(refused.value)
        with pytest.raises(ConfigError, match="'bucket' is no address of a tier; expected s3://"):
            Config(tier="bucket")

    @pytest.mark.parametrize("name", ["read_only", "restore"])
    def test_without_a_tier_there_is_nothing_to_read(self, name: str) -> None:
        expected = f"{name} needs tier, the object store that streams are read from"
        with pytest.raises(ConfigError, match=f"^{expected}$"):
            Config(**{name: True})  # type: ignore[arg-type]
        assert getattr(Config(tier="s3://b", **{name: True}), name)  # type: ignore[arg-type]

    def test_an_endpoint_without_a_tier(self) -> None:
        with pytest.raises(ConfigError, match="tier_endpoint needs tier, which names the bucket"):
            Config(tier_endpoint="http://minio:9000")

    def test_who_restores_publishes(self) -> None:
        with pytest.raises(ConfigError, match="read_only is set"):
            Config(tier="s3://b", restore=True, read_only=True)

    def test_the_password_does_not_show(self) -> None:
        assert "hunter2" not in repr(Config(password="hunter2"))


class TestFolderNames:
    @given(st.text(max_size=60))
    def test_names_come_back(self, name: str) -> None:
        folder = folder_name(name)
        assert unquote(folder) == name or len(folder) > 180
        assert set(folder) <= set(string.ascii_letters + string.digits + "%_.-~")
        assert len(folder) <= 200
        assert folder == "" or not folder.startswith(".")

    @given(st.sets(st.text(max_size=300), min_size=2, max_size=2))
    def test_different_names_have_different_folders(self, names: set[str]) -> None:
        assert len(set(map(folder_name, names))) == 2

    def test_plain_names_stay_as_they_are(self) -> None:
        assert folder_name("flights-2013_v1.0") == "flights-2013_v1.0"
        assert folder_name("/") == "%2F"
        assert folder_name("..") == "%2E."


class TestArguments:
    def test_what_a_policy_is_made_of(self) -> None:
        arguments = read_arguments(
            [
                ("max-length-bytes", "1000"),
                ("max-age", "2h"),
                ("stream-max-segment-size-bytes", "500"),
                ("stream-filter-size-bytes", "64"),
                ("stream-filter-history", "false"),
                ("unknown", "ignored"),
            ]
        )
        policy = policy_of(arguments)
        assert "unknown" not in arguments
        assert (policy.max_length_bytes, policy.max_age_ms) == (1000, 7_200_000)
        assert (policy.max_segment_bytes, policy.filter_size) == (500, 64)
        assert (policy.filter_error_rate, policy.filter_history) == (None, False)

    def test_defaults(self) -> None:
        policy = policy_of({})
        assert (policy.filter_size, policy.max_segment_bytes) == (16, 500_000_000)
        assert policy.max_length_bytes is policy.max_age_ms is None

    def test_in_a_tier(self) -> None:
        segment = "stream-max-segment-size-bytes"
        assert policy_of({}, has_tier=True) == LogPolicy(max_segment_bytes=64 << 20)
        assert policy_of({"stream-tier": False}, has_tier=True).max_segment_bytes == 500_000_000
        assert policy_of({segment: 7}, has_tier=True).max_segment_bytes == 7
        pairs = [
            ("stream-tier", "false"),
            ("stream-local-max-length-bytes", "0"),
            ("stream-local-max-age", "2h"),
        ]
        policy = policy_of(arguments_from_json(arguments_to_json(read_arguments(pairs))))
        assert policy == LogPolicy(tier=False, local_max_length_bytes=0, local_max_age_ms=7_200_000)

    def test_an_automatic_filter_size(self) -> None:
        policy = policy_of(read_arguments([("stream-filter-size-bytes", "auto")]))
        assert (policy.filter_size, policy.filter_error_rate) == (255, 0.01)
        policy = policy_of(
            read_arguments(
                [("stream-filter-size-bytes", "64"), ("stream-filter-error-rate", "0.05")]
            )
        )
        assert (policy.filter_size, policy.filter_error_rate) == (64, 0.05)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.none() | st.integers(0, 10))
def test_duplicates_against_the_definition(ids: list[int], stored: int | None) -> None:
    raw = encode_filtered_entries([Outgoing(n, b"b%d" % n, b"v%d" % n) for n in ids])
    (entries,) = decode_filtered_entries(raw, len(ids)).groups
    last, kept = -1 if stored is None else stored, []
    for number in ids:
        if number > last:
            kept.append(number)
            last = number
    found = without_duplicates(entries, stored)
    if not kept:
        assert found is None
        return
    assert found is not None
    again = encode_filtered_entries([Outgoing(n, b"b%d" % n, b"v%d" % n) for n in kept])
    (expected,) = decode_filtered_entries(again, len(kept)).groups
    assert found._replace(filter_values=list(found.filter_values or ())) == expected._replace(
        filter_values=list(expected.filter_values or ())
    )


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
    st.integers(1, 30),
    st.integers(20, 400),
)
def test_batches_keep_order_and_limits(frames: list[int], records: int, size: int) -> None:
    log = Log.open("s", disk=FaultyDisk())
    log.policy = policy_of({"stream-chunk-max-records": records, "stream-chunk-max-bytes": size})
    limit = RecordLimit(records)
    publisher = StreamPublisher(1, "", Outbox(Wakeup(), lambda _frame: 0), ProtocolTraffic())
    parts, number = [], 0
    for count in frames:
        raw = encode_entries([Outgoing(number + n, b"x" * 9) for n in range(count)])
        (entries,) = decode_entries(raw, count).groups
        parts += split(entries, records, size)
        number += count
    batch = ChunkAssembly(log, limit, {})
    batches = [batch]
    for entries in parts:
        if not batch.take(PendingEntries(publisher, entries)):
            batch = ChunkAssembly(log, limit, {})
            batches.append(batch)
            assert batch.take(PendingEntries(publisher, entries))
    ids = b"".join(p.entries.publishing_ids for b in batches for p in b.taken)
    assert ids == b"".join(n.to_bytes(8, "big") for n in range(number))
    for batch in batches:
        assert batch.builder.num_records <= records
        assert batch.builder.data_size <= size or batch.builder.num_entries == 1
