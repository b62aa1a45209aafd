"""Through Spark: what the README shows, and what only Spark can break."""

import os
import subprocess
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession

from segments import ChunkBuilder, Log, LogPolicy
from segments.compression import pack
from segments.format_constants import ZSTD
from segments.message import Message, Properties
from segments.spark import session
from segments.spark.inventory import NotAStream
from segments.spark.options import OptionError, read_options
from segments.spark.plan import pieces
from segments.spark.scanning import scan
from segments.spark.streams import find_streams
from tests.segments.search.test_columns import append_derived
from tests.segments.spark.test_decoding import damaged_stream
from tests.support.logs import append, sub_batch

SIZE = 2_000


def flights(folder: Path) -> Path:
    """Chunks of 20 flights; HA in every tenth chunk, UA in all."""
    log = Log.open(str(folder), LogPolicy(filter_size=64, max_segment_chunks=30))
    for first in range(0, SIZE, 20):
        values = ["HA" if first % 200 == 0 and n % 2 else "UA" for n in range(20)]
        bodies = [
            Message(
                b"flight %d" % (first + n),
                Properties(subject="late" if n % 5 == 0 else None),
                {"carrier": value, "n": first + n, "share": n / 8},
            ).encode()
            for n, value in enumerate(values)
        ]
        append(log, bodies, [v.encode() for v in values], now_ms=1_700_000_000_000 + first)
    log.close()
    return folder


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(flights(tmp_path_factory.mktemp("streams") / "flights"))


def looks(folder: str) -> list[tuple[str, int, int]]:
    return sorted(
        (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        for path in [Path(folder), *Path(folder).rglob("*")]
    )


def test_every_message_comes_once_and_nothing_is_written(spark: SparkSession, stream: str) -> None:
    before = looks(stream)
    found = spark.read.format("streamd").load(stream)
    rows = found.orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(SIZE))
    first = rows[0]
    assert (first.stream, first.chunk_id, first.body) == ("flights", 0, b"flight 0")
    assert first.application_properties == {"carrier": "UA", "n": "0", "share": "0.0"}
    assert (first.subject, rows[1].subject) == ("late", None)
    assert sorted(first.filter_values) == ["HA", "UA"]
    assert rows[-1].timestamp.timestamp() == 1_700_000_000 + (SIZE - 20) / 1000
    assert looks(stream) == before


def test_one_frame_serves_several_queries(spark: SparkSession, stream: str) -> None:
    """What filter pushdown breaks in Spark 4.3: it is never used here."""
    found = spark.read.format("streamd").option("columns", "offset").load(stream)
    assert found.filter("offset < 100").count() == 100
    assert found.count() == SIZE
    low, high = found.filter("offset < 10"), found.filter("offset >= 1990")
    assert low.union(high).count() == 20


def test_scan_skips_and_filters_alike(spark: SparkSession, stream: str) -> None:
    everything = spark.read.format("streamd").option("properties", "carrier string, n bigint")
    frame = everything.load(stream).cache()
    some = scan(
        spark,
        stream,
        values=["HA"],
        value_property="carrier",
        offsets=(300, 1500),
        columns=["body"],
    )
    expected = frame.filter("carrier = 'HA' and offset >= 300 and offset < 1500").select("body")
    assert sorted(row.body for row in some.collect()) == sorted(
        row.body for row in expected.collect()
    )
    picked = scan(spark, stream, sql="carrier = 'HA' AND n > 1000", columns=["offset"])
    wanted = frame.filter("carrier = 'HA' and n > 1000").count()
    assert picked.count() == wanted > 0
    frame.unpersist()


def test_a_folder_of_streams_and_plain_sql(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a", "b%2Fc"):
        log = Log.open(str(tmp_path / "%2F" / name))
        body, size = pack([b"one", b"two"], ZSTD)
        builder = ChunkBuilder()
        builder.add(sub_batch(body, 2, ZSTD, size), 1, 2, None)
        log.append([builder], 1)
        log.close()
    spark.sql(f"CREATE TEMPORARY VIEW messages USING streamd OPTIONS (path '{tmp_path}')")
    rows = spark.sql("SELECT stream, count(*) AS n FROM messages GROUP BY stream ORDER BY stream")
    assert [tuple(row) for row in rows.collect()] == [("a", 2), ("b/c", 2)]
    spark.catalog.dropTempView("messages")


def test_bad_input_says_what_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotAStream, match="holds no segment files, expected a stream's folder"):
        scan(spark, str(tmp_path))
    with pytest.raises(AnalysisException, match="there is no option startofset"):
        spark.read.format("streamd").option("startofset", "1").load(str(tmp_path))
    with pytest.raises(AnalysisException, match="is not a folder; give a stream's folder") as said:
        spark.read.format("streamd").load(str(tmp_path / "no")).count()
    assert str(said.value).count("  File ") == 1  # of the traceback, before the sentence
    left = damaged_stream(tmp_path, position=54)
    reader = spark.read.format("streamd").option("columns", "offset")
    with pytest.raises(
        PythonException, match=r"0\.segment is damaged at byte \d+: data fails"
    ) as t:
        reader.load(str(tmp_path)).count()
    assert str(t.value).count("  File ") == 1
    found = reader.option("mode", "permissive").load(str(tmp_path))
    assert found.filter("damage is null").count() == len(left)
    assert found.filter("damage is not null").count() == 1


def test_a_stream_without_messages(spark: SparkSession, tmp_path: Path) -> None:
    Log.open(str(tmp_path)).close()
    assert spark.read.format("streamd").load(str(tmp_path)).collect() == []


def test_a_stream_that_grows_and_loses_its_oldest(spark: SparkSession, tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), LogPolicy(max_segment_chunks=2))
    for n in range(6):
        append(log, [b"%d" % n])
    assert spark.read.format("streamd").load(str(tmp_path)).count() == 6
    planned = spark.read.format("streamd").load(str(tmp_path))
    append(log, [b"6"])
    assert planned.count() == 7
    again = planned.select("offset")
    for file in tmp_path.glob("00000000000000000000.*"):
        os.remove(file)
    with pytest.raises(PythonException, match="offset 0 was removed since the query was planned"):
        again.collect()
    assert spark.read.format("streamd").load(str(tmp_path)).count() == 5
    log.close()


def test_what_a_killed_session_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for name in (f"{gone.pid}-x", f"{os.getpid()}-y", "other", "other-z"):
        (tmp_path / f"streamd-spark-{name}" / "conf").mkdir(parents=True)
    session._sweep(str(tmp_path))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"streamd-spark-{name}" for name in (f"{os.getpid()}-y", "other", "other-z")}


def test_chunks_by_several_filter_properties(spark: SparkSession, tmp_path: Path) -> None:
    """Chunks of before the second one was declared may hold anything of it."""
    folder = tmp_path / "s"
    log = Log.open(str(folder), LogPolicy(filter_size=64))
    pairs = [("EU", "late"), ("EU", "early"), ("US", "late"), ("EU", None), ("EU", "late")]
    for number, (region, kind) in enumerate(pairs):
        given = {"region": region, "kind": kind, "number": number}
        found = {name: value for name, value in given.items() if value is not None}
        raw = Message(b"x", application_properties=found).encode()
        names = "region" if number == len(pairs) - 1 else "region,kind"
        append_derived(log, names, [raw])
    log.close()

    def read(sql: str, names: str) -> tuple[list[int], int]:
        options = {"path": str(folder), "sql": sql, "filterProperty": names}
        given = read_options(options)
        (where,) = find_streams(str(folder))
        chunks = pieces(where.name, where.listings(), given.wanted())
        found = spark.read.format("streamd").options(**options).load()
        rows = found.select("offset", "filter_values").sort("offset").collect()
        assert all(row.filter_values == [pairs[row.offset][0]] for row in rows)
        return [row.offset for row in rows], sum(len(piece.positions) for piece in chunks)

    strict = "region = 'EU' AND kind = 'late'"
    assert read(strict, "region,kind") == ([0, 4], 2)
    assert read(strict, "region") == ([0, 4], 4)
    assert read("kind IS NULL", "region,kind") == ([3], 2)
    assert read("kind = 'late' AND kind = 'early'", "region,kind") == ([], 0)
    scanned = scan(spark, str(folder), sql=strict, value_property="region,kind")
    assert [row.offset for row in scanned.collect()] == [0, 4]
    for properties in ("", "`a,b` string, `x y` bigint"):  # a comma in a name separates nothing
        scanned = scan(
            spark, str(folder), values=["z"], value_property="[a,b]", properties=properties
        )
        assert "a,b" in scanned.columns
        assert ("x y" in scanned.columns) == bool(properties)
        assert not scanned.collect()
    for names, reason in (("a,,b", "one is missing"), ("a,properties.z", "is not a property")):
        with pytest.raises(OptionError, match=reason):
            read_options({"path": "x", "sql": "a = 'b'", "filterProperty": names}).wanted()
