"""Tuning: the replay is what real filters do, and what is recommended is the cheapest of it."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st
from pyspark.sql import SparkSession

from segments import ChunkBuilder, ChunkMatcher, Log, LogPolicy, bloom
from segments.format_constants import MMH3_SCHEME
from segments.message import Message
from segments.property_keys import key_of, mark_of
from segments.spark.columns import TOKEN_PREFIX
from segments.spark.history import History, read_history
from segments.spark.inventory import list_segments
from segments.spark.plan import ChunkCriteria, pieces
from segments.spark.recommend import Prices, best, candidate
from segments.spark.replay import Replay, Row, Workload, rescaled
from segments.spark.report import as_json, frames, write_report
from segments.spark.tuning import NothingToTune, tune
from streamd.broker.declared.standing_selectors import TOKEN_PREFIX as SERVERS_PREFIX
from streamd.cli import main
from streamd.cli.tune import print_tuning
from tests.support.logs import append, entry

VALUES = [b"", *(b"v%d" % n for n in range(12)), b"long" * 70]
CHUNKS = st.lists(
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=9), min_size=1, max_size=14
)


def written(folder: Path, chunks: list[list[bytes]]) -> Path:
    log = Log.open(str(folder), LogPolicy(max_segment_chunks=6))
    for values in chunks:
        append(log, [b"m" * (n + 1) for n in range(len(values))], values)
    log.close()
    return folder


def histories(folder: Path, prop: str | None = None) -> list[History]:
    found, ordinal = [], 0
    for piece in pieces("s", list_segments(str(folder)), ChunkCriteria()):
        found += read_history(piece, ordinal, prop)
        ordinal += len(piece.positions)
    return found


def sets_of(found: list[History]) -> list[dict[bytes, int]]:
    """Filter values with their counts, chunk by chunk."""
    chunks = []
    for history in found:
        made: list[dict[bytes, int]] = [{} for _ in history.records]
        for chunk, value, count in zip(history.chunks, history.values, history.counts, strict=True):
            made[chunk][history.names[value]] = count
        chunks += made
    return chunks


def test_what_stands_for_selectors_is_left_out(tmp_path: Path) -> None:
    assert TOKEN_PREFIX == SERVERS_PREFIX
    log = Log.open(str(tmp_path))
    builder = ChunkBuilder()
    builder.add(b"\0\0\0\1x", 1, 1, [b"a"])
    builder.add_token(TOKEN_PREFIX + b"0123456789abcdef")
    builder.set_sequence(b"publisher", 3)
    log.append([builder], 1)
    log.close()
    assert sets_of(histories(tmp_path)) == [{b"a": 1}]


@settings(max_examples=40)
@given(
    chunks=CHUNKS,
    size=st.integers(16, 255),
    wanted=st.lists(st.sampled_from([*VALUES[1:13], b"never"]), min_size=1, unique=True),
    scale=st.sampled_from([1, 2, 4]),
)
def test_the_replay_does_what_real_filters_do(
    tmp_path_factory: pytest.TempPathFactory,
    chunks: list[list[bytes]],
    size: int,
    wanted: list[bytes],
    scale: int,
) -> None:
    found = histories(written(tmp_path_factory.mktemp("s"), chunks))
    weights = tuple(float(n + 1) for n in range(len(wanted)))
    replay = Replay(Workload(tuple(wanted), weights), newer_from=10**9)
    rows = [row for history in found for row in replay.run(history, {scale: [size]})]
    negatives = positives = delivered = needed = 0.0
    for start in range(0, len(chunks), 6):  # joined within a segment
        for first in range(start, min(start + 6, len(chunks)), scale):
            group = chunks[first : min(first + scale, start + 6)]
            values = [bloom.history_form(v) for chunk in group for v in chunk]
            size_of = sum(sum(range(5, 5 + len(chunk))) for chunk in group)
            filter_bytes = bloom.build(set(values), size)
            for value, weight in zip(wanted, weights, strict=True):
                matches = ChunkMatcher([value]).matches(
                    MMH3_SCHEME, len(filter_bytes), filter_bytes
                )
                holds = value in values
                negatives += weight * (not holds)
                positives += weight * (matches and not holds)
                delivered += weight * size_of * matches
                if scale == 1:
                    needed += weight * size_of / len(values) * values.count(value)
    assert sum(row.negatives for row in rows) == pytest.approx(negatives)
    assert sum(row.positives for row in rows) == pytest.approx(positives)
    assert sum(row.delivered for row in rows) == pytest.approx(delivered)
    if scale == 1:
        assert sum(row.needed for row in rows) == pytest.approx(needed)


def test_cut_chunks_hold_what_they_held_together(tmp_path: Path) -> None:
    rng = random.Random(1)
    chunks = [[b"v%d" % min(int(rng.expovariate(0.3)), 30) for _ in range(100)] for _ in range(5)]
    written(tmp_path, chunks)
    (whole,) = read_history(
        next(pieces("s", list_segments(str(tmp_path)), ChunkCriteria())),
        0,
        None,
    )
    for scale, pieces_each in ((0.5, 2), (0.125, 8)):
        cut = rescaled(whole, scale)
        assert len(cut.records) == len(whole.records) * pieces_each
        assert cut.data_bytes.sum() == pytest.approx(whole.data_bytes.sum())
        found = sets_of([cut])
        for n, expected in enumerate(sets_of([whole])):
            mine = found[n * pieces_each : (n + 1) * pieces_each]
            assert set().union(*mine) == set(expected)
            for value, count in expected.items():
                assert sum(part.get(value, 0) for part in mine) == pytest.approx(count)


@pytest.mark.parametrize(
    ("values", "size", "rate"), [(10, 16, 0.02), (30, 16, 0.14), (200, 128, 0.1)]
)
def test_the_published_examples(values: int, size: int, rate: float) -> None:
    """Source: rabbitmq/rabbitmq-website, blog/2023-10-24-stream-filtering-internals/index.md."""
    chunks = 400
    names = [b"value %d" % n for n in range(values * chunks)]
    one = np.ones(chunks, np.int64)
    history = History(
        np.arange(chunks),
        values * one,
        1000 * one,
        size * one,
        np.repeat(np.arange(chunks), values),
        np.arange(values * chunks),
        np.ones(values * chunks, np.int64),
        names,
    )
    wanted = Workload(tuple(b"another %d" % n for n in range(50)), (1.0,) * 50)
    (row,) = Replay(wanted, 10**9).run(history, {1: [size]})
    assert row.positives / row.negatives == pytest.approx(rate, abs=0.007)
    assert row.expected / row.negatives == pytest.approx(rate, abs=0.007)


def test_the_smallest_filter_that_is_good_enough_wins_and_nothing_flaps() -> None:
    def row(size: int, positives: float) -> Row:
        return Row(
            1.0, size, False, 100, 100.0, 1e6, 1000, positives, positives, 0, positives * 1e3
        )

    costs = [
        candidate(row(*pair), 100, Prices(), 1) for pair in ((16, 90), (64, 1), (72, 0), (128, 0))
    ]
    assert best(costs).filter_size == 64
    assert best(costs, current_size=72).filter_size == 72
    assert best(costs, current_size=16).filter_size == 64


def test_the_report_says_what_was_found(spark: SparkSession, tmp_path: Path) -> None:
    chunks = [[b"v%d" % (n % 7), b"w"] * 10 for n in range(60)]
    found = tune(spark, str(written(tmp_path / "s", chunks)), workload={"v3": 5, "never": 1})
    paths = write_report(found, str(tmp_path / "report"))
    assert [Path(path).name for path in paths] == [
        "report.json",
        "sizes.parquet",
        "distribution.parquet",
        "report.png",
    ]
    said = json.loads(Path(paths[0]).read_text())
    assert (said["chunks"], said["filter_values"], said["workload"]) == (60, 8, "as given")
    rate = said["recommended"]["filter_error_rate"]
    assert rate == found.error_rate == pytest.approx(found.recommended.expected_rate, rel=0.05)
    sizes = pq.read_table(paths[1]).to_pylist()
    assert sum(row["is_recommended"] for row in sizes) == 1
    assert frames(found, spark)["sizes"].where("is_recommended").count() == 1
    assert sum(row["is_current"] for row in sizes) == 1
    assert pq.read_table(paths[2]).to_pylist() == [
        {"stream": "s", "n_distinct": 2, "chunks": 60, "data_bytes": found.census.data_bytes}
    ]
    assert Path(paths[3]).read_bytes().startswith(b"\x89PNG")
    assert not list((tmp_path / "report").glob(".*"))


def test_a_property_stands_in_where_chunks_tell_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Log.open(str(tmp_path))
    for n in range(30):
        made = [{"carrier": f"c{(n + m) % 9}"} if m else {} for m in range(4)]
        append(log, [Message(b"", application_properties=p).encode() for p in made])
    log.close()
    with pytest.raises(NothingToTune, match="tell no filter values: publish"):
        tune(spark, str(tmp_path))
    with pytest.raises(NothingToTune, match="has a text, bytes or a number as its property"):
        tune(spark, str(tmp_path), filter_property="dest")
    found = tune(spark, str(tmp_path), filter_property="carrier")
    assert (found.source, found.census.num_values, found.census.chunks) == ("carrier", 9, 30)
    assert "those of the property carrier stand in" in found.warnings[0]


def test_odd_histories(spark: SparkSession, tmp_path: Path) -> None:
    Log.open(str(tmp_path / "empty")).close()
    with pytest.raises(NothingToTune, match="stream empty holds no messages yet"):
        tune(spark, str(tmp_path / "empty"))
    one = tune(spark, str(written(tmp_path / "one", [[b"a", b"b" * 300]])))
    assert one.census.num_values == 2
    assert one.confidence is None
    assert "1 chunk is too few to rely on" in one.warnings


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["flights", "--data", "."], 1, "no folder flights, and no stream flights in the data f"),
        (["."], 1, "holds no segment files, expected a stream's folder"),
        ([".", "--workload", "wanted.json"], 2, "expected to be a JSON object"),
        ([".", "--workload", "none.json"], 1, "there is no file none.json"),
        ([".", "--workload", "recorded"], 1, "has not recorded any subscription"),
        (["asked", "--workload", "recorded"], 1, "cannot be read: it is not a JSON object of"),
    ],
)
def test_the_command_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wanted.json").write_text('["HA"]')
    (tmp_path / "asked").mkdir()
    (tmp_path / "asked" / "asked.json").write_text('{"HA": 0}')
    result = CliRunner().invoke(main, ["tune", *words])
    assert (result.exit_code, reason in result.stderr) == (code, True), result.stderr


def test_what_several_filter_properties_cost(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sizes are for the values of all of them together; and what each adds is told."""
    log = Log.open(str(tmp_path), LogPolicy(filter_size=16))
    rng = random.Random(3)
    for _ in range(40):
        builder = ChunkBuilder()
        regions = [b"r%d" % rng.randrange(4) for _ in range(60)]
        kinds = [b"" if n % 9 == 0 else b"k%d" % rng.randrange(50) for n in range(60)]
        keys = [key_of("kind", kind) for kind in kinds]
        builder.add(entry(bytes(500)) * 60, 60, 60, regions, (mark_of("kind"),), (keys,))
        log.append([builder], 1)
    log.close()
    found = tune(spark, str(tmp_path), keep_limit=True)
    first, kind = found.census.properties
    assert (first.name, first.values, kind.name, kind.values) == ("", 4, "kind", 50)
    assert first.keys_a_chunk == pytest.approx(4, abs=0.1)
    assert 30 < kind.keys_a_chunk < 45
    assert kind.trailer_bytes > 8 * first.trailer_bytes
    assert found.census.num_values == 54
    assert key_of("kind", b"") not in found.wanted.values
    assert mark_of("kind") not in found.wanted.values
    assert found.size_without("kind") < found.size_without("") <= found.recommended.filter_size
    print_tuning(found)
    told = " ".join(capsys.readouterr().out.split())
    assert "The filter property kind has 50 values and" in told
    (row,) = [row for row in as_json(found)["filter_properties"] if row["name"] == "kind"]
    assert row["size_without"] == found.size_without("kind")
