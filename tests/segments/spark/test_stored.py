"""A stream in a store is read as its folder is: the same messages, no more bytes than needed."""

import contextlib
import io
import pickle
import random
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from segments import CorruptError, Log, LogPolicy, codec
from segments.checksum import crc32
from segments.codec import FILE_HEADER_SIZE, INDEX_RECORD_SIZE, Damage
from segments.disk import Buffer
from segments.errors import FormatError
from segments.marks import LIFE
from segments.message import Message
from segments.segment import FILTER_SUFFIX, INDEX_SUFFIX, SEGMENT_SUFFIX
from segments.spark import history, ranges, scan, stored
from segments.spark.columns import columns_of
from segments.spark.history import History, read_history
from segments.spark.inventory import Bounds, NotAStream
from segments.spark.observed import observe
from segments.spark.options import read_options
from segments.spark.plan import Piece, pieces
from segments.spark.ranges import AT_ONCE, MOST_BYTES, MOST_GAP, ask_in_order, merged
from segments.spark.replay import Workload
from segments.spark.session import trouble_of
from segments.spark.source import StreamdReader
from segments.spark.stored import StorePlace, find_stored
from segments.spark.streaming import DataLost
from segments.spark.streams import find_streams
from segments.store.folder_store import FolderStore
from segments.store.lookup import find_stream
from segments.store.manifest import Manifest, StoredFile, encode_manifest
from segments.store.object_names import CLUSTER, StreamKey
from segments.store.object_store import MOST_WHOLE, MissingError, TierError
from segments.store.stores import open_store
from streamd.cli import main
from tests.segments.spark.test_decoding import rows
from tests.segments.spark.test_positions import offsets_of, reader
from tests.support.logs import append
from tests.support.stored_streams import keep_segments, put_slots, put_stream
from tests.support.stores import KINDS, SECRET, Tier

KEY = StreamKey("/", "flights", "0000018bcfe56800-5eed")


class Counted(FolderStore):
    """A store that notes which bytes of which objects are asked for."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.ranges: list[tuple[str, int, int]] = []
        self.whole: list[str] = []
        self._before: dict[str, Callable[[], None]] = {}

    def before(self, key: str, do: Callable[[], None]) -> None:
        """Do something once, before an object is read in whole."""
        self._before[key] = do

    def get(self, key: str, most: int = MOST_WHOLE) -> Any:
        self.whole.append(key)
        self._before.pop(key, lambda: None)()
        return super().get(key, most)

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        self.ranges.append((key, start, size))
        return super().get_range(key, start, size)

    @property
    def bytes(self) -> int:
        return sum(size for _, _, size in self.ranges)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    (tmp_path / "store").mkdir()
    found = Counted(str(tmp_path / "store"))
    stored._opened.cache_clear()
    monkeypatch.setattr(stored, "_first_process", 0)
    monkeypatch.setattr(stored, "open_store", lambda _url, _endpoint: found)
    yield found
    stored._opened.cache_clear()


def path_in(store: FolderStore, name: str = "flights", host: str = "%2F") -> str:
    return f"{store!r}/{host}/{name}"


def written(folder: Path, chunks: int = 40, body: int = 100, per_segment: int = 7) -> Path:
    """Chunks of ten messages; every tenth holds HA, those without a value have no filter."""
    log = Log.open(str(folder), LogPolicy(filter_size=32, max_segment_chunks=per_segment))
    rng = random.Random(3)
    for chunk in range(chunks):
        value = "HA" if chunk % 10 == 3 else ["UA", "AS", ""][chunk % 3]
        bodies = [
            Message(rng.randbytes(body), application_properties={"carrier": value, "n": n}).encode()
            for n in range(10)
        ]
        values = [value.encode()] * 10 if value else None
        append(log, bodies, values, now_ms=1_700_000_000_000 + 1000 * chunk)
    log.close()
    return folder


QUERIES = [
    {},
    {"startOffset": "35", "endOffset": "181"},
    {"startOffset": "395"},
    {"endOffset": "0"},
    {"startTimestamp": "1700000009000", "endTimestamp": "1700000020000"},
    {"filterValues": '["HA"]'},
    {"filterValues": '["HA", "AS"]', "filterProperty": "carrier", "endOffset": "300"},
    {"filterValues": '["HA"]', "matchUnfiltered": "true"},
    {"sql": "carrier = 'HA' AND n > 5", "filterProperty": "carrier"},
    {"sql": "carrier = 'no' AND carrier = 'AS'", "filterProperty": "carrier"},
    {"tags": "x"},
]


def planned(path: str, **given: str) -> list[Piece]:
    options = read_options({"path": path, **given})
    wanted = options.wanted()
    return [
        piece
        for stream in find_streams(path)
        for piece in pieces(stream.name, stream.listings(wanted.bounds), wanted)
    ]


@pytest.mark.parametrize("query", QUERIES, ids=str)
@pytest.mark.parametrize("stored", ["all", "all but filters", 0, 3, 6])
def test_what_is_found_is_what_the_folder_holds(
    tmp_path: Path, store: Counted, query: dict[str, str], stored: str | int
) -> None:
    """All of it in segments, or so many of these, and slots of write-ahead logs behind them."""
    folder, has_filters = written(tmp_path / "flights"), stored != "all but filters"
    suffixes = (SEGMENT_SUFFIX, INDEX_SUFFIX, *((FILTER_SUFFIX,) if has_filters else ()))
    if stored:
        manifest = put_stream(store, folder, "/", "flights", suffixes=suffixes)
    if isinstance(stored, int):
        if stored:
            keep_segments(store, manifest, stored)
        put_slots(store, folder, KEY, max(0, stored * 70 - 30), 2)  # some are in both
    there, here = rows(path_in(store), **query), rows(folder, **query)
    if "filterValues" in query and "filterProperty" not in query and not has_filters:
        there = [row for row in there if row in here]  # chunks as a whole, and nothing skips them
    assert there == here


def test_only_the_chunks_that_match_are_fetched(tmp_path: Path, store: Counted) -> None:
    """They are too far apart to be fetched together."""
    folder = written(tmp_path / "flights", chunks=60, body=4000, per_segment=25)
    manifest = put_stream(store, folder, "/", "flights")
    found = rows(path_in(store), filterValues='["HA"]', columns="offset")
    assert [row["offset"] // 10 for row in found[::10]] == [3, 13, 23, 33, 43, 53]
    wanted = planned(str(folder), filterValues='["HA"]')
    assert sorted(size for _, _, size in store.ranges) == sorted(
        int(size) for piece in wanted for size in piece.sizes
    )
    planning = [CLUSTER, manifest.stream.manifest]
    for suffix in (INDEX_SUFFIX, FILTER_SUFFIX):
        planning += [segment.key(manifest.stream, suffix) for segment in manifest.segments]
    assert sorted(store.whole) == sorted(planning)


def test_neighbours_are_fetched_together(
    tmp_path: Path, store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "flights", chunks=20, body=500, per_segment=100)
    (segment,) = put_stream(store, folder, "/", "flights").segments
    assert len(rows(path_in(store), columns="offset")) == 200
    assert [size for _, _, size in store.ranges] == [segment.size - FILE_HEADER_SIZE]
    store.ranges.clear()
    assert len(rows(path_in(store), columns="offset", filterValues='["HA"]')) == 20
    first, last = (int(piece) for piece in planned(str(folder), filterValues='["HA"]')[0].positions)
    ((_, start, size),) = store.ranges
    assert (start, start + size) == (first, last + size - (last - first))  # and what is between
    monkeypatch.setattr(ranges, "MOST_BYTES", 20_000)
    store.ranges.clear()
    assert rows(path_in(store)) == rows(folder)
    assert len(store.ranges) > 5
    assert all(size <= 20_000 for _, _, size in store.ranges)
    ends = [start + size for _, start, size in store.ranges]
    assert [start for _, start, _ in store.ranges] == [FILE_HEADER_SIZE, *ends[:-1]]


def test_an_offset_needs_the_indexes_of_its_segments_alone(tmp_path: Path, store: Counted) -> None:
    manifest = put_stream(store, written(tmp_path / "flights"), "/", "flights")
    assert len(rows(path_in(store), startOffset="80", endOffset="100")) == 20
    second = manifest.segments[1]
    index = second.key(manifest.stream, INDEX_SUFFIX)
    assert store.whole == [CLUSTER, manifest.stream.manifest, index]
    assert len(store.ranges) == 1


@given(
    parts=st.lists(
        st.tuples(st.integers(0, 2 * MOST_GAP), st.integers(1, MOST_BYTES + 100)), max_size=30
    )
)
def test_merging(parts: list[tuple[int, int]]) -> None:
    numbers = np.array(parts, np.int64).reshape(-1, 2)
    ends = np.cumsum(numbers.sum(axis=1))
    starts = ends - numbers[:, 1]
    found = merged(starts, ends)
    assert sum(count for _, count in found) == len(parts)
    first = 0
    for n, (part, count) in enumerate(found):
        assert part == (starts[first], ends[first + count - 1])
        assert part.size <= MOST_BYTES or count == 1
        gaps = starts[first + 1 : first + count] - ends[first : first + count - 1]
        assert (gaps <= MOST_GAP).all()
        if n + 1 < len(found):  # no request that could be saved
            after, _ = found[n + 1]
            is_far = after.start - part.end > MOST_GAP
            assert is_far or ends[first + count] - part.start > MOST_BYTES
        first += count


@pytest.mark.parametrize(("size", "ahead"), [(0, AT_ONCE), (1 << 20, AT_ONCE), (8 << 20, 4)])
def test_answers_come_in_order_and_few_are_asked_ahead(size: int, ahead: int) -> None:
    asked: list[int] = []

    def items() -> Iterator[int]:
        for n in range(100):
            asked.append(n)
            yield n

    answers = ask_in_order(lambda n: n * n, items(), lambda _n: size)
    for n in range(100):
        assert next(answers) == n * n
        assert min(n + ahead, 100) <= len(asked) <= min(n + 1 + ahead, 100)
    assert len(asked) == 100
    assert next(answers, None) is None


def test_an_error_comes_in_its_turn_and_ends_it() -> None:
    def ask(n: int) -> float:
        return 1 / (3 - n)

    answers = ask_in_order(ask, range(1000))
    assert [next(answers) for _ in range(3)] == [1 / 3, 1 / 2, 1]
    with pytest.raises(ZeroDivisionError):
        next(answers)
    assert next(answers, None) is None
    answers = ask_in_order(ask, range(3))
    next(answers)
    answers.close()


# -- tuning


def histories(path: str) -> list[History]:
    found, ordinal = [], 0
    for piece in planned(path):
        found += read_history(piece, ordinal, None)
        ordinal += len(piece.positions)
    return found


def test_the_history_is_read_without_the_messages(
    tmp_path: Path, store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "flights", chunks=30, body=40_000)
    manifest = put_stream(store, folder, "/", "flights")
    here = histories(str(folder))
    there = histories(path_in(store))
    for mine, other in zip(here, there, strict=True):
        assert [*map(np.ndarray.tolist, mine[:7])] == [*map(np.ndarray.tolist, other[:7])]
        assert mine.names == other.names
    assert store.bytes < manifest.size / 100
    monkeypatch.setattr(history, "_BYTES_AT_ONCE", 1_000_000)
    parts = histories(path_in(store))
    assert sum(len(part.records) for part in parts) == 30
    assert len(parts) > 2 * len(manifest.segments)


def test_small_chunks_are_fetched_once(tmp_path: Path, store: Counted) -> None:
    """Headers and trailers of neighbours are so near that the first look has them all."""
    folder = written(tmp_path / "flights")
    manifest = put_stream(store, folder, "/", "flights")
    histories(path_in(store))
    assert len(store.ranges) <= 2 * len(manifest.segments), "the last trailer comes by itself"
    assert store.bytes <= manifest.size


def test_what_filters_really_do(tmp_path: Path, store: Counted) -> None:
    folder = written(tmp_path / "flights")
    put_stream(store, folder, "/", "flights")
    workload = Workload((b"HA", b"AS", b"no"), (1.0, 2.0, 3.0))
    assert observe(path_in(store), workload) == observe(str(folder), workload)


# -- streaming


def test_a_stream_that_grows(tmp_path: Path, store: Counted) -> None:
    folder = written(tmp_path / "flights", chunks=14)
    manifest = put_stream(store, folder, "/", "flights")
    made = reader(path_in(store))
    start, limit = made.initialOffset(), made.getDefaultReadLimit()
    assert (start["offset"], made.latestOffset(start, limit)["offset"]) == (0, 140)
    asked = {CLUSTER, manifest.stream.manifest}
    assert set(store.whole) == asked, "no index is needed to know that"
    made.prepareForTriggerAvailableNow()
    log = Log.open(str(folder), LogPolicy(filter_size=32, max_segment_chunks=7))
    append(log, [b"x"] * 5)
    log.close()
    replace_manifest(store, put_stream(store, folder, "/", "flights", creation="0"), manifest)
    assert made.latestOffset(start, limit)["offset"] == 140
    again = reader(path_in(store))
    assert again.latestOffset({"offset": 140}, limit)["offset"] == 145
    store.ranges.clear()
    assert offsets_of(again, {"offset": 130}, {"offset": 145}) == list(range(130, 145))
    assert reader(path_in(store), startingOffset="latest").initialOffset()["offset"] == 145
    assert again.latestOffset({"offset": 145}, limit)["offset"] == 145


def say(store: FolderStore, manifest: Manifest) -> None:
    """Put a manifest in the place of the one that is there."""
    key = manifest.stream.manifest
    store.replace(key, encode_manifest(manifest), store.get(key).etag)


def replace_manifest(store: FolderStore, newer: Manifest, older: Manifest) -> None:
    """As if the newer had been stored in place of the older: its objects are where they were."""
    for key in sorted(newer.keys()):
        name = key.rpartition("/")[2]
        store.put(f"{older.stream.folder}/{name}", store.get(key).content)
    say(store, replace(newer, stream=older.stream, revision=older.revision + 1))
    store.delete([newer.stream.manifest, *newer.keys()])


def test_a_limit_in_bytes(tmp_path: Path, store: Counted) -> None:
    folder = written(tmp_path / "flights")
    (life,) = (mark.name.removeprefix(LIFE) for mark in folder.glob(f"{LIFE}*"))
    put_stream(store, folder, "/", "flights", creation=life)
    for limit in ("6000", "1"):
        here = reader(str(folder), maxBytesPerTrigger=limit)
        there = reader(path_in(store), maxBytesPerTrigger=limit)
        at = here.initialOffset()
        for _ in range(50):
            following = here.latestOffset(at, here.getDefaultReadLimit())
            assert there.latestOffset(at, there.getDefaultReadLimit()) == following
            at = following
        assert at["offset"] == 400


def test_what_is_gone_is_named(tmp_path: Path, store: Counted) -> None:
    manifest = put_stream(store, written(tmp_path / "flights"), "/", "flights")
    made = reader(path_in(store))
    made.initialOffset()
    say(store, replace(manifest, segments=manifest.segments[2:]))
    with pytest.raises(DataLost, match="offsets 0 to 139 of stream flights were removed"):
        made.partitions({"offset": 0}, {"offset": 400})
    with pytest.raises(DataLost, match="the checkpoint is at offset 401, stream flights ends at"):
        made.partitions({"offset": 200}, {"offset": 401})
    gone = manifest.segments[3]

    def remove() -> None:  # retention is quicker than we
        say(store, replace(manifest, revision=2, segments=manifest.segments[4:]))
        store.delete([gone.key(manifest.stream, suffix) for suffix in gone.files])

    store.before(gone.key(manifest.stream, INDEX_SUFFIX), remove)
    with pytest.raises(DataLost, match="offsets 210 to 279"):
        made.partitions({"offset": 140}, {"offset": 400})
    say(store, replace(manifest, is_deleted=True))
    with pytest.raises(NotAStream, match=r"flights~.* was deleted while it was read"):
        made.latestOffset({"offset": 0}, made.getDefaultReadLimit())


# -- through Spark


@pytest.mark.parametrize("tier", [KINDS[-1]], indirect=True)
def test_workers_read_a_real_store(spark: SparkSession, tmp_path: Path, tier: Tier) -> None:
    """Spark forks them, after the library was used in this process and in those that plan."""
    folder = written(tmp_path / "flights")
    put_stream(open_store(tier.url, tier.endpoint), folder, "/", "flights")
    path = f"{tier.url}/%2F/flights"

    def read(name: str, **given: str) -> DataFrame:
        return spark.read.format("streamd").options(**given).load(name)

    there = read(path, endpoint=tier.endpoint, columns="offset,body")
    here = read(str(folder), columns="offset,body")
    assert there.sort("offset").collect() == here.sort("offset").collect()
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            there.explain(mode=mode)
        assert SECRET not in told.getvalue()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = {"values": ["HA"], "value_property": "carrier"}
        found = scan(spark, path, columns=["offset"], endpoint=tier.endpoint, **asked)
    assert (
        sorted(row.offset // 10 for row in found.collect())
        == [3] * 10 + [13] * 10 + [23] * 10 + [33] * 10
    )
    source = spark.readStream.format("streamd").options(endpoint=tier.endpoint, columns="offset")
    query = source.load(path).writeStream.format("memory").queryName("seen")
    query.trigger(availableNow=True).start().awaitTermination()
    assert spark.table("seen").count() == 400


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["s3://u:geheim@b/p/%2F/s"], 1, "^Error: the path is not a stream in a store, expected"),
        (["s3://bucket"], 1, "^Error: s3://bucket is not a stream in a store, expected a path"),
        (["ftp://b/p/%2F/s"], 1, "^Error: 'ftp://b/p' is no address of a tier"),
        (["file:///none/%2F/s"], 1, "^Error: cannot use file:///none: there is no such folder"),
        (["s3://b/p/%2F/s", "--workload", "recorded"], 2, "recorded is not in the object store"),
        (["s3://b/p/%2F/s", "--conf", "geheim"], 2, "--conf expects a setting of Spark, such as"),
        (["s3://b/p/%2F/s", "--conf", "x=geheim"], 2, "--conf expects a setting of Spark"),
    ],
)
def test_the_command_says_what_is_wrong(words: list[str], code: int, reason: str) -> None:
    result = CliRunner().invoke(main, ["tune", *words])
    assert (result.exit_code, result.stdout) == (code, "")
    assert re.search(reason, result.stderr)
    assert "geheim" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_failures_of_spark_in_a_line() -> None:
    assert trouble_of(ValueError("x")) is None
    task = (
        "[PYTHON_EXCEPTION] An exception was thrown: Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in main\n'
        "ModuleNotFoundError: No module named 'segments'\n\tat org.apache.spark.X(X.scala:1)\n"
    )
    said = "Spark has failed: ModuleNotFoundError: No module named 'segments'"
    assert trouble_of(PythonException(task)) == said
    ours = task.replace("ModuleNotFoundError: No module", "segments.errors.CorruptError: x: no")
    assert trouble_of(PythonException(ours)) == "x: no named 'segments'"
    master = "An error occurred.\n: java.lang.IllegalStateException: stopped.\nat X\n"
    assert (
        trouble_of(Py4JError(master))
        == "Spark has failed: java.lang.IllegalStateException: stopped."
    )
    assert trouble_of(Py4JError("gone")) == "Spark has failed: gone"


# -- what is wrong in a store


def test_a_segment_that_goes_after_it_was_planned(tmp_path: Path, store: Counted) -> None:
    manifest = put_stream(store, written(tmp_path / "flights"), "/", "flights")
    options = read_options({"path": path_in(store), "mode": "permissive"})
    made = StreamdReader(options, columns_of(options))
    (task,) = made.partitions()
    store.delete([manifest.segments[2].key(manifest.stream, SEGMENT_SUFFIX)])
    with pytest.raises(CorruptError, match="with offset 140 was removed since the query was plan"):
        list(made.read(task))
    with pytest.raises(CorruptError, match="it was removed since it was listed, by retention"):
        histories(path_in(store))


def test_damage(tmp_path: Path, store: Counted) -> None:
    """Of a chunk here and of one in the store, and what was known when it was uploaded."""
    folder = written(tmp_path / "flights", chunks=21)
    manifest = put_stream(store, folder, "/", "flights")
    key = manifest.segments[1].key(manifest.stream, SEGMENT_SUFFIX)
    (listing,) = find_stored(path_in(store)).listings(Bounds(70, 140))
    position = int(listing.positions[3])
    raw = bytearray(store.get(key).content)
    raw[position + 100] ^= 1
    store.put(key, bytes(raw))
    with pytest.raises(CorruptError, match=rf"{key} is damaged at byte {position}: data fails"):
        rows(path_in(store))

    def lost() -> tuple[list[int], list[int]]:
        found = rows(path_in(store), columns="offset", mode="permissive")
        told = [row["offset"] for row in found if row["damage"] is not None]
        return told, [row["offset"] for row in found if row["damage"] is None]

    kept = [n for n in range(210) if not 100 <= n < 110]
    assert lost() == ([100], kept)
    known = Damage(position, int(listing.positions[4]), 100, 110)
    segments = list(manifest.segments)
    segments[1] = replace(segments[1], damage=(known,))
    say(store, replace(manifest, segments=tuple(segments)))
    assert lost() == ([100], kept)
    assert len(rows(path_in(store), endOffset="100")) == 100
    with pytest.raises(CorruptError, match="was damaged before it was uploaded"):
        rows(path_in(store))
    (listing,) = find_stored(path_in(store)).listings(Bounds(70, 140))
    assert len(listing.positions) == 6
    assert listing.chunk_ends.tolist() == [80, 90, 100, 120, 130, 140]


def test_damage_at_the_end_of_a_segment_and_without_a_chunk_in_its_index(
    tmp_path: Path, store: Counted
) -> None:
    """The last chunk before it ends where it begins."""
    folder = written(tmp_path / "flights", chunks=7)
    manifest = put_stream(store, folder, "/", "flights")
    (whole,) = manifest.segments
    (listing,) = find_stored(path_in(store)).listings()
    at = int(listing.positions[-1])
    known = replace(whole, num_chunks=6, damage=(Damage(at, whole.size, 60, 70),))
    key = whole.key(manifest.stream, INDEX_SUFFIX)
    index = store.get(key).content[:-INDEX_RECORD_SIZE]
    store.put(key, index)
    files = dict(whole.files) | {INDEX_SUFFIX: StoredFile(len(index), crc32(index))}
    say(store, replace(manifest, segments=(replace(known, files=files),)))
    found = rows(path_in(store), columns="offset", mode="permissive")
    assert [row["offset"] for row in found if row["damage"] is None] == list(range(60))


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, FILTER_SUFFIX])
@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw[:-1] + b"?"])
def test_an_index_that_is_not_what_its_manifest_says(
    tmp_path: Path, store: Counted, suffix: str, change: Callable[[bytes], bytes]
) -> None:
    manifest = put_stream(store, written(tmp_path / "flights"), "/", "flights")
    expected = rows(path_in(store), filterValues='["HA"]')
    key = manifest.segments[1].key(manifest.stream, suffix)
    store.put(key, change(store.get(key).content))
    found = rows(path_in(store), filterValues='["HA"]')
    assert all(row in found for row in expected)  # and the rest of the segment, without a filter
    if suffix == INDEX_SUFFIX:
        segment = manifest.segments[1].key(manifest.stream, SEGMENT_SUFFIX)
        store.put(segment, bytes(len(store.get(segment).content)))
        with pytest.raises(CorruptError, match=f"{key} .* is not what was stored"):
            rows(path_in(store))


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, FILTER_SUFFIX])
@pytest.mark.parametrize("mode", ["failfast", "permissive"])
def test_an_index_that_is_missing(tmp_path: Path, store: Counted, suffix: str, mode: str) -> None:
    """All that is in the segments is found, with it or without."""
    manifest = put_stream(store, written(tmp_path / "flights"), "/", "flights")
    expected, some = rows(path_in(store)), rows(path_in(store), filterValues='["HA"]')
    for segment in manifest.segments[1:4]:
        store.delete([segment.key(manifest.stream, suffix)])
    assert _offsets(rows(path_in(store), mode=mode)) == _offsets(expected)
    found = _offsets(rows(path_in(store), filterValues='["HA"]', mode=mode))
    assert set(_offsets(some)) <= set(found)


def _offsets(found: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in found]


def test_a_segment_of_which_nothing_is_there(tmp_path: Path, store: Counted) -> None:
    """The mode says what becomes of it; a store without a manifest is not believed."""
    manifest = put_stream(store, written(tmp_path / "flights"), "/", "flights")
    lost = manifest.segments[1]
    store.delete([lost.key(manifest.stream, suffix) for suffix in lost.files])
    with pytest.raises(CorruptError, match="not in the store, and the stream's manifest names it"):
        rows(path_in(store))
    found = rows(path_in(store), mode="permissive")
    (gap,) = [row for row in found if row["damage"] is not None]
    assert gap["offset"] == lost.base_offset
    stream = find_stored(path_in(store))
    store.delete([manifest.stream.manifest])
    with pytest.raises(TierError, match=r"has no manifest of .*: is it the right store"):
        list(stream.listings())


@pytest.mark.parametrize("chunks", [1, 5])
def test_a_segment_that_is_truncated_while_it_is_listed(
    tmp_path: Path, store: Counted, chunks: int
) -> None:
    """Its rest is another object: what is behind the cut is read there."""
    manifest = put_stream(store, written(tmp_path / "flights"), "/", "flights")
    cut = manifest.segments[1]
    expected = [row["offset"] for row in rows(path_in(store))]
    listing = list(find_stored(path_in(store)).listings())[1]
    base, at = int(listing.chunk_ids[chunks]), int(listing.positions[chunks])

    def truncate() -> None:
        content = store.get(cut.key(manifest.stream, SEGMENT_SUFFIX)).content
        content = content[:FILE_HEADER_SIZE] + content[at:]
        index = codec.INDEX_HEADER + b"".join(
            codec.encode_index_record(record._replace(position=record.position - at + 8))
            for record in _records(store.get(cut.key(manifest.stream, INDEX_SUFFIX)).content)
            if record.chunk_id >= base
        )
        files = {SEGMENT_SUFFIX: content, INDEX_SUFFIX: index}
        rest = replace(
            cut,
            base_offset=base,
            uid="a" * 16,
            num_chunks=cut.num_chunks - chunks,
            files={name: StoredFile(len(raw), crc32(raw)) for name, raw in files.items()},
        )
        for name, raw in files.items():
            store.put(rest.key(manifest.stream, name), raw)
        say(store, replace(manifest, revision=2, segments=(rest, *manifest.segments[2:])))
        store.delete([cut.key(manifest.stream, suffix) for suffix in cut.files])

    store.before(cut.key(manifest.stream, INDEX_SUFFIX), truncate)
    found = [row["offset"] for row in rows(path_in(store))]
    assert [offset for offset in found if offset >= base] == [
        offset for offset in expected if offset >= base
    ]


def _records(index: bytes) -> list[codec.IndexRecord]:
    places = range(FILE_HEADER_SIZE, len(index), INDEX_RECORD_SIZE)
    return [codec.decode_index_record(index, place) for place in places]


def test_a_segment_that_is_cut(tmp_path: Path, store: Counted) -> None:
    manifest = put_stream(store, written(tmp_path / "flights"), "/", "flights")
    key = manifest.segments[1].key(manifest.stream, SEGMENT_SUFFIX)
    store.put(key, store.get(key).content[:-1])
    with pytest.raises(TierError, match="ends before"):
        rows(path_in(store))


# -- names and paths


def test_names_are_escaped_as_in_urls(tmp_path: Path, store: Counted) -> None:
    folder = written(tmp_path / "x", chunks=1)
    for host, name, path in (
        ("/", "a/b ü", "%2F/a%2Fb%20%C3%BC"),
        ("catalog", "s~1", "catalog/s~1"),
        ("v", "long" * 100, "v/" + "long" * 100),
    ):
        put_stream(store, folder, host, name)
        (found,) = find_streams(f"{store!r}/{path}")
        assert found.name == name
        assert len(rows(f"{store!r}/{path}")) == 10


def test_the_newest_life_of_a_stream_is_meant(tmp_path: Path, store: Counted) -> None:
    folder = written(tmp_path / "x", chunks=1)
    put_stream(store, folder, "/", "s", creation="1")
    put_stream(store, folder, "/", "s2", creation="9")
    put_stream(store, folder, "/", "s~3", creation="8")
    expected = put_stream(store, folder, "/", "s", creation="2")
    put_stream(store, folder, "/", "s", creation="3", is_deleted=True)
    store.put(StreamKey("/", "s", "4").object(0, 1, "0" * 16, ".segment"), b"not named yet")
    assert find_stream(store, "/", "s", 0) == expected
    with pytest.raises(MissingError, match="nothing is stored of a stream t of the virtual host /"):
        find_stream(store, "/", "t", 0)
    with pytest.raises(NotAStream, match="of a stream s of the virtual host v in"):
        find_stored(path_in(store, "s", "v"))
    store.put(expected.stream.manifest, b"x")
    with pytest.raises(FormatError, match=r"the manifest v1/.*/manifest cannot be used: it is not"):
        find_stored(path_in(store, "s"))


@pytest.mark.parametrize(
    "path", ["s3://", "s3://bucket", "s3://bucket/s", "s3://bucket/%2F/", "s3://bucket/p//s"]
)
def test_a_path_that_is_none(path: str) -> None:
    with pytest.raises(NotAStream, match=f"^{path} is not a stream in a store, expected a path"):
        find_stored(path)


def test_nothing_secret_is_in_errors_and_tasks(
    tmp_path: Path, store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "geheim")
    with pytest.raises(NotAStream) as told:
        find_stored("s3://user:geheim@bucket/prefix/%2F/s")
    assert "geheim" not in str(told.value)
    put_stream(store, written(tmp_path / "flights", chunks=2), "/", "flights")
    (piece,) = planned(path_in(store))
    assert b"geheim" not in pickle.dumps(piece)
    assert pickle.loads(pickle.dumps(piece)).file == piece.file


def test_the_address_of_the_server_goes_along(
    tmp_path: Path, store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers need not have it in their environment."""
    put_stream(store, written(tmp_path / "flights", chunks=1), "/", "flights")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    for named, expected in (("", "http://minio:9000"), ("http://other:9", "http://other:9")):
        stream = find_stored("s3://bucket/prefix/%2F/flights", named)
        (listing,) = stream.listings()
        assert listing.file.place == StorePlace("s3://bucket/prefix", expected)


def test_a_process_that_was_forked_says_so(store: Counted) -> None:
    """It would hang for good."""
    place = StorePlace("s3://bucket")
    assert stored._opened(place, 1) is store
    with pytest.raises(TierError, match="forked from one that had used the store"):
        stored._opened(place, 2)
