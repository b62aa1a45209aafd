"""Without Spark: the columns say what `MessageView` says, and listings what a reader finds."""

import re
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from segments import CorruptError, Log, LogPolicy, codec
from segments.amqp10 import encode_map, encode_value
from segments.codec import INDEX_RECORD_SIZE, ChunkHeader
from segments.errors import FormatError
from segments.message import MessageView
from segments.selector import RowReader, parse_property
from segments.spark import headers as columns
from segments.spark.columns import columns_of
from segments.spark.inventory import list_segments
from segments.spark.options import read_options
from segments.spark.plan import ChunkCriteria, deal, pieces
from segments.spark.reading import read_task, tasks_of
from segments.spark.streams import find_streams
from segments.spark.texts import READINGS, text_of
from segments.spark.walk import message_ends
from tests.segments.selector.strategies import messages
from tests.support.logs import append, entry, read_chunks


def rows(path: Path | str, **given: str) -> list[dict[str, Any]]:
    """What the source gives, without Spark."""
    options = read_options({"path": str(path), **given})
    wanted = options.wanted()
    found = [
        piece
        for stream in find_streams(str(path))
        for piece in pieces(stream.name, stream.listings(wanted.bounds), wanted)
    ]
    batches = [
        batch
        for task in tasks_of(found, options)
        for batch in read_task(task, options, columns_of(options))
    ]
    return [row for batch in batches for row in batch.to_pylist()]


def view_row(raw: bytes) -> dict[str, Any]:
    """The same, by the slow way."""
    view = MessageView(raw)
    try:
        body = view.body
    except FormatError:
        body = raw
    try:
        subject = text_of(view.properties.subject)
    except FormatError:
        subject = None
    try:
        found = view.application_properties
    except FormatError:
        found = {}
    return {
        "body": body,
        "subject": subject,
        "application_properties": [(text_of(k) or "", text_of(v)) for k, v in found.items()],
    }


VECTORS = Path(__file__).parents[2] / "vectors"
BODIES = st.one_of(
    messages(),
    st.binary(max_size=30),
    st.tuples(messages(), st.integers(-3, 3)).map(  # cut off, or with something behind
        lambda made: made[0][: made[1]] if made[1] < 0 else made[0] + bytes(made[1])
    ),
)
_KINDS = ("string", "bigint", "double", "boolean", "binary", "timestamp")


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=40)
@given(bodies=st.lists(BODIES, min_size=1, max_size=25))
def test_the_columns_are_what_the_messages_say(
    tmp_path_factory: pytest.TempPathFactory, kind: str, bodies: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("s")
    log = Log.open(str(folder), LogPolicy(max_segment_chunks=3))
    repeated = bodies * 8  # so that there are enough of each form to be looked at together
    for n in range(0, len(repeated), 50):
        append(log, repeated[n : n + 50])
    log.close()
    asked = "offset,body,subject,application_properties"
    found = rows(folder, columns=asked, properties=f"p {kind}, `properties.subject` {kind}")
    assert [row["offset"] for row in found] == list(range(len(repeated)))
    for n, row in enumerate(found[len(bodies) :]):
        assert row | {"offset": n % len(bodies)} == found[n % len(bodies)]
    for raw, row in zip(bodies, found, strict=False):
        expected = view_row(raw)
        assert {name: row[name] for name in expected} == expected
        for name in ("p", "properties.subject"):
            try:
                (value,) = RowReader([parse_property(name)]).read(raw)
            except FormatError:
                value = None
            wanted = READINGS[kind](value)
            if kind == "timestamp" and row[name] is not None:
                assert round(row[name].timestamp() * 1_000_000) == wanted
            else:
                assert row[name] == wanted


@pytest.mark.parametrize("others", [0, 1, 20])
def test_a_name_that_comes_twice(tmp_path: Path, others: int) -> None:
    """Among few and many names; those of the other messages are alike, but none comes twice."""
    rest = [(f"k{n:02}x", n) for n in range(others)]

    def message(*pairs: tuple[str, int]) -> bytes:
        items = [encode_value(part) for pair in (*rest, *pairs) for part in pair]
        return b"\x00\x53\x74" + encode_map(items) + b"\x00\x53\x75\xa0\x00"

    bodies = [message(("axb", 1), ("axb", 2)), message(("axb", 1), ("ayb", 2))] * 10
    log = Log.open(str(tmp_path))
    append(log, bodies)
    log.close()
    found = rows(tmp_path, columns="application_properties")
    for raw, row in zip(bodies, found, strict=True):
        expected = view_row(raw)["application_properties"]
        assert row["application_properties"] == expected
        assert ("axb", "1") in expected


def lookalikes(sizes: list[int]) -> bytes:
    """A body that is full of what could be entries."""
    return b"".join(entry(b"\0" * size) for size in sizes)


SECTIONS = st.lists(
    st.one_of(
        st.integers(0, 40).map(lambda size: b"m" * size),
        st.integers(0, 40).map(bytes),
        st.lists(st.integers(0, 12), max_size=4).map(lookalikes),
        st.integers(300, 3000).map(bytes),
    ),
    min_size=1,
    max_size=8,
)


@given(
    kinds=st.lists(SECTIONS, min_size=1, max_size=4),
    chunks=st.sampled_from([1, 7, 8, 12]),
    times=st.sampled_from([1, 100, 300]),
    change=st.none() | st.tuples(st.integers(0, 1 << 20), st.integers(0, 3), st.integers(1, 255)),
    seed=st.randoms(use_true_random=False),
)
def test_the_messages_of_many_chunks_are_where_a_walk_over_each_finds_them(
    kinds: list[list[bytes]],
    chunks: int,
    times: int,
    change: tuple[int, int, int] | None,
    seed: Random,
) -> None:
    sections = []
    for n in range(chunks):
        some = kinds[n % len(kinds)] * times
        seed.shuffle(some)
        sections.append(b"".join(map(entry, some[:1000])))
    counts = [len(codec.simple_ends(section) or ()) for section in sections]
    if change is not None:  # in the length of some entry
        entry_number, byte, bits = change
        changed = bytearray(sections[-1])
        places = [0, *(codec.simple_ends(sections[-1]) or ())]
        changed[places[entry_number % counts[-1]] + byte] ^= bits
        sections[-1] = bytes(changed)
    joined = b"gap".join(sections) + bytes(16)
    sizes = np.array([len(section) for section in sections])
    starts = np.cumsum(sizes + 3) - sizes - 3
    headers = [
        ChunkHeader(0, count, count, 0, 0, 0, 0, size, 0, 0, 0, 0)
        for count, size in zip(counts, sizes.tolist(), strict=True)
    ]
    found = message_ends(np.frombuffer(joined, np.uint8), starts, starts + sizes, headers)
    expected: list[int] = []
    for n, start in enumerate(starts.tolist()):
        try:
            ends = codec.simple_ends(sections[n])
        except FormatError:
            ends = None
        assert bool(found.is_simple[n]) is (ends is not None)
        assert found.counts[n] == len(ends or ())
        expected += [start + end for end in ends or ()]
    assert found.ends.tolist() == expected


@given(raw=st.binary(min_size=48, max_size=48), bits=st.integers(0, (1 << 384) - 1))
def test_headers_are_read_as_the_codec_reads_them(raw: bytes, bits: int) -> None:
    for candidate in (raw, b"\x50\0" + raw[2:], bits.to_bytes(48, "big")):
        (header,) = columns.gather(np.frombuffer(candidate, np.uint8), np.array([0]))
        fields = struct.unpack(">BBHIqQQIIIBBH", candidate)
        assert tuple(header.tolist()) == fields
        try:
            decoded = codec.decode_chunk_header(candidate)
        except FormatError:
            decoded = None
        (is_sound,) = columns.are_sound(np.array([header]))
        assert bool(is_sound) is (decoded is not None)
        if decoded is not None:
            assert columns.total_sizes(np.array([header]))[0] == decoded.total_size


VALUES = [b"", b"a", b"b", b"c", b"dd", b"e" * 300]


def test_a_chunk_that_only_seems_to_have_a_mark_is_read(tmp_path: Path) -> None:
    """The stream has one filter property; small filters with many values seem to tell another."""
    log = Log.open(str(tmp_path), LogPolicy(filter_size=16))
    for n in range(50):
        append(log, [b"x"] * 40, [b"%d-%d" % (n, value) for value in range(40)])
    log.close()
    options = {"path": str(tmp_path), "filterProperty": "region,kind", "sql": "kind = 'late'"}
    asked = read_options(options).wanted()
    (listing,) = list_segments(str(tmp_path))
    assert asked.chunks(listing).all()


def test_tasks_get_every_chunk_once(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), LogPolicy(max_segment_chunks=7))
    for n in range(40):
        append(log, [b"x" * (5000 if n % 13 == 0 else 40)])
    log.close()
    found = list(pieces("s", list_segments(str(tmp_path)), ChunkCriteria()))
    for size in (1, 100, 1000, 4000, 1 << 30):
        tasks = deal(found, size)
        assert [int(c) for task in tasks for p in task for c in p.chunk_ids] == list(range(40))
        assert all(sum(p.size for p in task) <= max(size, 6000) for task in tasks)
        assert all(sum(len(p.positions) for p in task) for task in tasks)


def test_listings_agree_with_a_reader_with_and_without_an_index(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path), LogPolicy(max_segment_chunks=5))
    for n in range(23):
        append(log, [b"%d" % n] * (n + 1))
    expected = [chunk.header.chunk_id for chunk in read_chunks(log)]
    log.close()
    for index in sorted(tmp_path.glob("*.index")):
        found = [c for listing in list_segments(str(tmp_path)) for c in listing.chunk_ids]
        assert found == expected
        index.unlink()
    assert not any(listing.gaps for listing in list_segments(str(tmp_path)))


def damaged_stream(folder: Path, *, position: int) -> list[int]:
    """40 chunks of one message each, one byte of chunk 10 changed; gives the offsets left."""
    log = Log.open(str(folder))
    for n in range(40):
        append(log, [b"body %d" % n] * 1)
    log.close()
    (segment,) = folder.glob("*.segment")
    listing = next(list_segments(str(folder)))
    at = int(listing.positions[10]) + position
    raw = bytearray(segment.read_bytes())
    raw[at] ^= 0xFF
    segment.write_bytes(raw)
    return [n for n in range(40) if n != 10]


@pytest.mark.parametrize("position", [0, 2, 5, 31, 54], ids=lambda n: f"byte {n}")
def test_a_damaged_chunk_is_named_or_skipped(tmp_path: Path, position: int) -> None:
    left = damaged_stream(tmp_path, position=position)
    with pytest.raises(CorruptError, match=r"\.segment is damaged at byte \d+: "):
        rows(tmp_path)
    found = rows(tmp_path, mode="permissive", columns="offset,body")
    assert [row["offset"] for row in found if row["damage"] is None] == left
    (gap,) = [row for row in found if row["damage"] is not None]
    assert gap["offset"] == 10
    assert gap["body"] is None
    assert rows(tmp_path, endOffset="10", columns="offset")[-1]["offset"] == 9


def test_a_torn_end_is_not_there_yet(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path))
    for n in range(5):
        append(log, [b"%d" % n])
    log.close()
    (segment,) = tmp_path.glob("*.segment")
    (index,) = tmp_path.glob("*.index")
    index.write_bytes(index.read_bytes()[:-INDEX_RECORD_SIZE])  # it is written after its chunk
    raw = segment.read_bytes()
    for size in range(len(raw) - 10, len(raw)):
        segment.write_bytes(raw[:size])
        assert [row["offset"] for row in rows(tmp_path)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("startofset", "3", "there is no option startofset; there are path, "),
        ("startOffset", "-1", "startOffset is '-1', expected a whole number"),
        ("endTimestamp", "soon", "endTimestamp is 'soon', expected milliseconds since 1970"),
        ("startTimestamp", "²", "startTimestamp is '²', expected milliseconds since 1970"),
        ("startTimestamp", "--5", "startTimestamp is '--5', expected milliseconds since 1970"),
        ("filterValues", "HA", "filterValues is 'HA', expected a JSON array of strings"),
        ("filterValues", '[""]', "filterValues: a filter value is empty"),
        ("columns", "offset,bdy", "there is no column bdy; there are stream, offset"),
        ("columns", "offset,offset", "column offset is asked for twice"),
        ("properties", "carrier text", "properties has 'carrier text', expected a name"),
        ("sql", "carrier =", "the selector is wrong: "),
        ("mode", "dropmalformed", "mode is 'dropmalformed', expected failfast or permissive"),
    ],
)
def test_what_cannot_be_meant_is_refused(option: str, value: str, message: str) -> None:
    def plan() -> None:
        options = read_options({"path": "x", option: value})
        columns_of(options)
        options.wanted()

    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        plan()


def test_filters_that_rabbitmq_wrote_are_ignored(tmp_path: Path) -> None:
    """Its hashes are others; the chunk is from its own test suite."""
    lines = (VECTORS / "chunk-osiris.hex").read_text().splitlines()
    raw = bytes.fromhex("".join(line.partition("#")[0] for line in lines))
    header = codec.decode_chunk_header(raw)
    (tmp_path / f"{header.chunk_id:020d}.segment").write_bytes(codec.SEGMENT_HEADER + raw)
    found = rows(tmp_path, columns="offset", filterValues='["no such value"]')
    assert [row["offset"] for row in found] == list(range(header.chunk_id, header.next_offset))
    assert rows(tmp_path, columns="filter_values")[0] == {"filter_values": None}
