"""What the source gives of chunks with columns is what a look at every message finds. No Spark."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings, strategies as st

from segments import ChunkBuilder, Log, LogPolicy, codec
from segments.columns import Columns, ValueTest, sound_columns
from segments.message import Message
from segments.selector import (
    Dialect,
    NumberRule,
    WantedValues,
    parse_property,
    property_value_reader,
    text_of_names,
)
from segments.spark.entries import MessageBlock, read_piece
from segments.spark.options import values_text
from segments.spark.plan import ChunkCriteria, pieces
from segments.spark.streams import find_streams
from tests.segments.selector.strategies import TEXTS
from tests.segments.spark.test_decoding import rows
from tests.segments.test_selection_model import selectors
from tests.support.logs import append
from tests.support.stored_chunks import (
    StoredStream,
    damaged,
    is_sound,
    stored_streams,
    without_columns,
)

VALUES = st.sampled_from((*filter(None, TEXTS), "0", "1", "r" * 255, "r" * 300, "none"))


@st.composite
def versions(draw: st.DrawFn) -> tuple[StoredStream, list[StoredStream]]:
    """A stream, and what may be found in place of its chunks: without columns, or damaged."""
    stream = draw(stored_streams())
    old, wrong = [], []
    for chunk in stream.chunks:
        other = draw(damaged(chunk)) if draw(st.booleans()) else chunk
        wrong.append(chunk if is_sound(other) else other)  # one in 65,536 passes its check
        old.append(without_columns(chunk) if draw(st.booleans()) else chunk)
    return stream, [stream, stream._replace(chunks=old), stream._replace(chunks=wrong)]


def offsets(stream: StoredStream, **given: str) -> list[int]:
    with TemporaryDirectory() as folder:
        found = rows(
            stream.write(Path(folder)),
            columns="offset",
            filterProperty=text_of_names(stream.names),
            filterContract="strict" if stream.is_strict else "lenient",
            **given,
        )
    return [row["offset"] for row in found]


def bodies_of(stream: StoredStream) -> list[bytes]:
    return [body for chunk in stream.chunks for body in chunk.bodies]


@pytest.mark.parametrize("dialect", Dialect)
@given(data=st.data())
def test_selectors_find_what_every_message_says(dialect: Dialect, data: st.DataObject) -> None:
    stream, found = data.draw(versions())
    selector = data.draw(selectors(dialect))
    if not stream.chunks:
        return
    expected = selector.matcher().select(bodies_of(stream))
    asked = {"tags": str(selector)} if selector.is_tags else {"sql": str(selector)}
    asked["dialect"] = dialect
    asked["verifyChecksums"] = data.draw(st.sampled_from(("true", "false")))
    for version in found:
        assert offsets(version, **asked) == expected


@given(data=st.data())
def test_filter_values_find_what_every_message_says(data: st.DataObject) -> None:
    stream, found = data.draw(versions())
    wanted = data.draw(st.lists(VALUES, min_size=1, max_size=4))
    unfiltered = data.draw(st.booleans())
    if not stream.chunks:
        return
    asked = {"filterValues": values_text(wanted), "matchUnfiltered": str(unfiltered)}
    given = [offsets(version, **asked) for version in found]
    if stream.gives_all:
        rule = NumberRule.NO_VALUE if stream.is_strict else NumberRule.EITHER
        values = frozenset(value.encode() for value in wanted)
        test = WantedValues(values, match_unfiltered=unfiltered, numbers=rule)
        read = property_value_reader(parse_property(stream.names[0]))
        bodies = bodies_of(stream)
        assert given[0] == [n for n, body in enumerate(bodies) if test.has(read(body))]
    assert given[1] == given[0]
    # Behind a filter that is damaged more chunks are looked at, which may have what lacks a value.
    assert set(given[0]) <= set(given[2])
    assert given[2] == given[0] or not stream.gives_all


@given(data=st.data())
@settings(max_examples=40)
def test_a_selector_beside_filter_values(data: st.DataObject) -> None:
    stream, found = data.draw(versions())
    selector = data.draw(selectors(Dialect.UNION))
    if not stream.chunks or selector.is_tags:
        return
    first = data.draw(st.integers(0, 40))
    asked = {"filterValues": values_text([data.draw(VALUES)]), "startOffset": str(first)}
    expected = set(selector.matcher().select(bodies_of(stream)))
    for version in found:
        by_value = offsets(version, **asked)
        both = offsets(version, **asked, sql=str(selector))
        assert both == [offset for offset in by_value if offset in expected]


VALUE_OF = [b"%d" % (n % 3) for n in range(200)]
BODIES = [
    Message(b"x" * (n % 11), application_properties={"p": value.decode(), "n": n}).encode()
    for n, value in enumerate(VALUE_OF)
]
ASKED = {"columns": "offset", "filterValues": '["1"]', "filterProperty": "p"}


def chosen(columns: Columns) -> int | None:
    return columns.rows(ValueTest(None, [b"1"], is_complement=False))


def blocks_of(folder: Path) -> Iterator[MessageBlock]:
    (stream,) = find_streams(str(folder))
    for piece in pieces(stream.name, stream.listings(), ChunkCriteria()):
        for found in read_piece(piece, row_test=chosen):
            assert isinstance(found, MessageBlock)
            yield found


def written(folder: Path, bodies: Sequence[bytes]) -> Path:
    log = Log.open(str(folder))
    for at in range(0, len(bodies), 70):
        append(log, bodies[at : at + 70], VALUE_OF[at : at + 70])
    log.close()
    return folder


def test_only_messages_that_may_match_are_opened(tmp_path: Path) -> None:
    """From positions on, and in chunks whose messages are too far from each other for these."""
    expected = [n for n, value in enumerate(VALUE_OF) if value == b"1"]
    for name, large in (("none", ()), ("all", range(200)), ("some", range(70, 140))):
        bodies = [raw + bytes(2_500 * (n in large)) for n, raw in enumerate(BODIES)]
        folder = written(tmp_path / name, bodies)
        blocks = list(blocks_of(folder))
        found = [
            (offset, block.buffer[start:end].tobytes())
            for block in blocks
            for offset, start, end in zip(block.offsets, block.starts, block.ends, strict=True)
        ]
        assert found == [(n, bodies[n]) for n in expected]
        assert all(columns is not None for block in blocks for columns in block.columns)


def test_columns_of_other_messages_are_not_believed(tmp_path: Path) -> None:
    """Their check is right, and their positions lead elsewhere: then all messages are looked at."""
    heads = []
    for bodies in (BODIES, BODIES[::-1]):
        builder = ChunkBuilder()
        data = b"".join(len(raw).to_bytes(4, "big") + raw for raw in bodies)
        builder.add(data, len(bodies), len(bodies), VALUE_OF)
        heads.append(builder.encode(chunk_id=0, timestamp_ms=0, epoch=1, policy=LogPolicy()))
    chunk, other = heads
    trailer = other.parts[2]
    assert len(trailer) == len(chunk.parts[2])
    assert trailer != chunk.parts[2]
    filter_bytes = chunk.parts[0][codec.CHUNK_HEADER_SIZE :]
    checked = chunk.parts[0][: codec.CHECKED_HEADER_SIZE]
    check = codec.header_check(checked, filter_bytes, trailer)
    head = codec.append_header_check(checked, check) + filter_bytes
    assert sound_columns(head, trailer, codec.decode_chunk_header(head)) is not None
    log = Log.open(str(tmp_path))
    append(log, BODIES, VALUE_OF)
    log.close()
    (path,) = tmp_path.glob("*.segment")
    path.write_bytes(codec.SEGMENT_HEADER + head + chunk.parts[1] + trailer)
    (block,) = blocks_of(tmp_path)
    assert block.columns == [None]
    found = rows(tmp_path, **ASKED)
    assert [row["offset"] for row in found] == [n for n, v in enumerate(VALUE_OF) if v == b"1"]
