"""What columns choose, and the selector of it, is what looking at every message finds."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from clients.filters import ArrivedChunk, Declared, SelectorFilter
from segments import LogPolicy
from segments.codec import simple_bodies
from segments.columns import Columns, open_rows, places_of, sound_columns
from segments.entries import Entries
from segments.message import Message
from segments.row_screen import RowScreen
from segments.selector import Dialect, Selector
from segments.selector.selector import parse_sql, parse_tags
from tests.broker.declared.test_several_properties import (
    CONTRACTS,
    MEETING,
    MESSAGES,
    NAMES,
    READERS,
    built,
    contract,
    entries_of,
    parsed,
)
from tests.segments.selector.strategies import expressions

STRICT, DERIVES = "stream-filter-contract", "stream-filter-derive"
TAGS = st.lists(st.sampled_from(("a", "b", "5")), min_size=1).map("||".join).map(parse_tags)
FILLERS = [
    Message(b"x", application_properties={"p": f"{n % 3}", "q": "z"}).encode() for n in range(16)
]


class Stored:
    """A chunk of messages as a stream with some filter properties stores them."""

    def __init__(
        self,
        raws: Sequence[bytes],
        names: Sequence[str],
        arguments: dict[str, str],
        given: Sequence[bytes] | None,
    ) -> None:
        enforced = contract(",".join(names), arguments)
        entries: Entries | None = entries_of(raws, given)
        if enforced is not None:
            assert entries is not None
            entries = enforced.check(entries).entries
        builder = built(entries)
        assert builder is not None
        chunk = builder.encode(chunk_id=0, timestamp_ms=0, epoch=1, policy=LogPolicy())
        head, self.data, trailer = chunk.parts
        self.bodies = simple_bodies(self.data) or []
        self.columns = sound_columns(head, trailer, chunk.header)

    def read(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]


def rows_of(columns: Columns, selector: Selector, names: Sequence[str], is_strict: bool) -> int:
    rows = RowScreen(selector, names, is_strict=is_strict).rows(columns)
    return (1 << columns.num_records) - 1 if rows is None else rows


@pytest.mark.parametrize("dialect", Dialect)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_match_is_lost(dialect: Dialect, data: st.DataObject) -> None:
    """Any selector over any messages, whatever the stream declares and publishers give."""
    sql = expressions(dialect).map(lambda text: parsed(text, dialect))
    selector = data.draw(st.one_of(sql, sql, sql, TAGS))
    if selector is None:
        return
    arguments = data.draw(st.sampled_from(CONTRACTS))
    names = data.draw(st.permutations(NAMES))[: data.draw(st.integers(1, 3))]
    some = [MEETING[place] for place in selector.matcher().select(MEETING)]
    drawn = st.one_of(MESSAGES, st.sampled_from(some)) if some else MESSAGES
    raws = FILLERS + data.draw(st.lists(drawn, max_size=8))
    own = [READERS[NAMES.index(names[0])](raw) for raw in raws]
    if STRICT in arguments:
        given = None if DERIVES in arguments else own
    else:  # some publishers give none
        given = [value if data.draw(st.booleans()) else b"" for value in own]
    stored = Stored(raws, names, arguments, given if given and any(given) else None)
    expected = selector.matcher().select(stored.bodies)
    if stored.columns is None:  # no filter value at all
        assert len(names) == 1
        return
    rows = rows_of(stored.columns, selector, names, STRICT in arguments)
    assert set(expected) <= set(places_of(rows, len(stored.bodies)))
    opened = open_rows(stored.columns, rows, len(stored.data), stored.read)
    chosen = selector.matcher().select_in(opened.data, opened.ends) if opened.places else []
    assert [opened.places[n] for n in chosen] == expected
    for columns in (stored.columns, None):
        first, end = sorted(data.draw(st.tuples(*[st.integers(0, len(raws))] * 2)))
        chunk = ArrivedChunk("s", 0, 0, stored.data, first, end, columns=columns)
        client = SelectorFilter(selector, "s", None)
        client.learn(Declared(tuple(names), STRICT in arguments))
        picked = client.pick(chunk)
        assert [m.offset for m in picked.wanted] == [n for n in expected if first <= n < end]
        assert picked.asked == end - first
        assert (client.matcher.tested, client.matcher.matched) == (len(raws), len(expected))


@pytest.mark.parametrize(
    ("text", "is_exact"),
    [
        ("p = '1'", True),
        ("p <> '1' AND q IS NOT NULL", False),
        ("p IN ('0', '2') OR q = 'y'", True),
        ("NOT (p = '1' OR q = 'z')", False),
        ("(p = '0' AND q = 'z') OR (p = '1' AND q = 'y')", True),
        ("p = '1' AND other > 3", False),
        ("NOT (p = '1' OR other > 3)", False),
        ("q IS NULL AND p = '2'", True),
        ("p LIKE '1'", True),
        ("'1' = p", True),
        ("p = '3'", True),
    ],
)
def test_what_columns_decide(text: str, is_exact: bool) -> None:
    """A message without a filter value may have a number: the selector is asked about it."""
    raws = [
        Message(
            b"x",
            application_properties={"p": f"{n % 3}", "other": n}
            | ({"q": "zy"[n % 2]} if n % 5 else {}),
        ).encode()
        for n in range(60)
    ]
    stored = Stored(raws, ("p", "q"), {DERIVES: "true", STRICT: "strict"}, None)
    selector = parse_sql(text)
    assert stored.columns is not None
    rows = rows_of(stored.columns, selector, ("p", "q"), True)
    expected, found = selector.matcher().select(stored.bodies), places_of(rows, 60)
    if is_exact:
        assert found == expected
    assert set(expected) <= set(found)
    assert len(found) < 60


def test_what_columns_do_not_decide() -> None:
    for text in ("other = 'a'", "p = 'a' OR other = 'b'", "p > '1'", "NOT (p = 'a' AND other = 1)"):
        screen = RowScreen(parse_sql(text), ["p", "q"], is_strict=True)
        assert not screen.is_useful, text
