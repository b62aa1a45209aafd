"""What columns choose, and the selector of it, is what a look at every message finds."""

from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from segments import ChunkBuilder, LogPolicy
from segments.codec import decode_chunk_header, simple_ends
from segments.columns import Columns, open_rows, places_of, sound_columns
from segments.errors import FormatError
from segments.row_screen import RowScreen
from segments.selector import Dialect, Selector, SelectorError, parse_sql, parse_tags
from tests.segments.selector.strategies import TEXTS, expressions, quoted
from tests.support.logs import entry
from tests.support.stored_chunks import (
    NAMES,
    StoredChunk,
    StoredStream,
    damaged,
    is_sound,
    stored_streams,
    without_columns,
)

_FIELDS = (*NAMES, "[p]")
_LONG = ("r" * 255, "r" * 256, "r" * 300)


def _parsed(text: str, dialect: Dialect) -> Selector | None:
    try:
        return parse_sql(text, dialect)
    except SelectorError:
        return None


# Conditions that columns decide: what `expressions` gives seldom names several properties in one.
_EQUAL = st.tuples(
    st.sampled_from(_FIELDS), st.sampled_from(("=", "<>")), st.sampled_from((*TEXTS, *_LONG, "0"))
).map(lambda parts: f"{parts[0]} {parts[1]} {quoted(parts[2])}")
_NULL = st.tuples(st.sampled_from(_FIELDS), st.sampled_from(("", "NOT "))).map(
    lambda parts: f"{parts[0]} IS {parts[1]}NULL"
)
_OPEN = st.sampled_from(("other = 'a'", "p > 5", "q = 5", "TAGS LIKE '_'"))
_DECIDED = st.recursive(
    st.one_of(_EQUAL, _EQUAL, _NULL, _OPEN),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(("AND", "OR")), inner).map(
            lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"
        ),
        inner.map(lambda text: f"NOT ({text})"),
    ),
    max_leaves=5,
)
_TAGS = st.lists(st.sampled_from(("a", "b", "5")), min_size=1).map("||".join).map(parse_tags)


def selectors(dialect: Dialect) -> st.SearchStrategy[Selector]:
    """Any, most of them such as columns decide."""
    sql = st.one_of(_DECIDED, _DECIDED, expressions(dialect))
    parsed = sql.map(lambda text: _parsed(text, dialect)).filter(lambda found: found is not None)
    return st.one_of(parsed, parsed, parsed, _TAGS)  # type: ignore[arg-type]


def columns_of(chunk: StoredChunk) -> Columns | None:
    return sound_columns(chunk.head, chunk.trailer, decode_chunk_header(chunk.head))


def selected(stream: StoredStream, chunk: StoredChunk, selector: Selector) -> list[int]:
    """The messages of a chunk, as all doors find them: those that columns leave, then exactly."""
    columns = columns_of(chunk)
    screen = RowScreen(selector, stream.names, is_strict=stream.is_strict)
    rows = None if columns is None else screen.rows(columns)
    if columns is not None and rows is not None:
        assert 0 <= rows < 1 << len(chunk.bodies)
        try:
            opened = open_rows(columns, rows, len(chunk.data), chunk.read)
        except FormatError:
            assert simple_ends(chunk.data) is None  # a sub-batch of one message
        else:
            found = selector.matcher().select_in(opened.data, opened.ends)
            return [opened.places[n] for n in found]
    return selector.matcher().select(chunk.bodies)


@pytest.mark.parametrize("dialect", Dialect)
@given(data=st.data())
def test_no_match_is_lost_and_none_is_new(dialect: Dialect, data: st.DataObject) -> None:
    stream = data.draw(stored_streams())
    selector = data.draw(selectors(dialect))
    for chunk in stream.chunks:
        expected = selector.matcher().select(chunk.bodies)
        assert selected(stream, chunk, selector) == expected
        assert selected(stream, without_columns(chunk), selector) == expected


@given(data=st.data())
def test_damage_costs_the_speed_only(data: st.DataObject) -> None:
    stream = data.draw(stored_streams(most_chunks=1))
    selector = data.draw(selectors(Dialect.UNION))
    for chunk in stream.chunks:
        wrong = data.draw(damaged(chunk))
        if not is_sound(wrong):  # one in 65,536 passes its check
            assert columns_of(wrong) is None
            expected = selector.matcher().select(chunk.bodies)
            assert selected(stream, wrong, selector) == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("p = '1' OR q = 'b'", range(60)),  # what is not told may be anything
        ("NOT (p <> '1' AND q <> 'b')", range(60)),
        ("p = '1' AND q = 'b'", range(1, 60, 3)),
        ("p <> '1' AND (q = 'b' OR p = '2')", [n for n in range(60) if n % 3 != 1]),
        ("(p = '0' OR q = 'b') AND p = '2'", range(2, 60, 3)),
    ],
)
def test_a_property_that_was_declared_later(text: str, found: Iterable[int]) -> None:
    builder = ChunkBuilder()
    builder.add(entry(b"x") * 60, 60, 60, [b"%d" % (n % 3) for n in range(60)])
    chunk = builder.encode(chunk_id=0, timestamp_ms=0, epoch=1, policy=LogPolicy())
    columns = sound_columns(chunk.parts[0], chunk.parts[2], chunk.header)
    assert columns is not None
    rows = RowScreen(parse_sql(text), ("p", "q"), is_strict=True).rows(columns)
    assert (list(range(60)) if rows is None else places_of(rows, 60)) == list(found)
