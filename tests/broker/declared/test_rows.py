"""What columns choose, and the selector of it, is what looking at every message finds."""

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from clients.filters import ArrivedChunk, Declared, SelectorFilter
from segments import ChunkBuilder, LogPolicy
from segments.codec import simple_bodies
from segments.columns import Columns, open_rows, places_of, sound_columns
from segments.compression import GZIP, NO_COMPRESSION
from segments.entries import Entries
from segments.message import Message
from segments.row_screen import RowScreen
from segments.selector import TAGS as TAG_EXPRESSION, Dialect, Selector
from segments.selector.selector import parse_sql, parse_tags
from streamd.broker.declared.filter_contract import messages_of
from streamd.broker.declared.standing_selectors import StandingSelectors, parse_standing
from streamd.operations.errors import Refused
from tests.broker.declared.test_several_properties import (
    CONTRACTS,
    MEETING,
    MESSAGES,
    NAMES,
    READERS,
    built,
    contract,
    entries_of,
    packed,
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


DECIDED = (
    "p = '1'",
    "p = '1' AND q = 'z'",
    "p IN ('a', '5') OR q IS NULL",
    "NOT (p = '1' OR q = 'y')",
    "p = '1' AND other = 'a'",
    "p LIKE 'r%'",
    f"p = '{'r' * 255}'",
    f"p = '{'r' * 300}'",
)
LONG = [Message(b"x", application_properties={"p": "r" * n, "q": "y"}).encode() for n in (255, 300)]


def published(data: st.DataObject, names: Sequence[str], arguments: dict[str, str]) -> ChunkBuilder:
    """A chunk of frames that came in every way there is."""
    enforced, builder = contract(",".join(names), arguments), ChunkBuilder()
    read = READERS[NAMES.index(names[0])]
    for _ in range(data.draw(st.integers(1, 3))):
        raws = data.draw(
            st.lists(st.one_of(MESSAGES, st.sampled_from(LONG)), min_size=1, max_size=4)
        )
        raws = FILLERS[: data.draw(st.sampled_from((0, 8, 16)))] + raws
        way = data.draw(st.sampled_from(("given", "some", "none", "packed")))
        entries: Entries | None
        if way == "packed":
            entries = packed(raws, data.draw(st.sampled_from((NO_COMPRESSION, GZIP))))
            entries = entries if enforced is None else enforced.check_sub_batch(entries).entries
        else:
            values = [b"" if way == "none" else read(raw) for raw in raws]
            if way == "some" and STRICT not in arguments:
                values[::2] = [b""] * len(values[::2])
            entries = entries_of(raws, values if any(values) else None)
            entries = entries if enforced is None else enforced.check(entries).entries
        if entries is not None:
            builder.add(*entries[1:])
    return builder


@given(data=st.data())
def test_the_marks_of_standing_selectors_are_what_a_look_at_every_message_finds(
    data: st.DataObject,
) -> None:
    names = data.draw(st.permutations(NAMES))[: data.draw(st.integers(0, 3))]
    arguments = data.draw(st.sampled_from((*CONTRACTS, {DERIVES: "false"}))) if names else {}
    if names:
        builder = published(data, names, arguments)
    else:
        builder = ChunkBuilder()
        builder.add(*entries_of(data.draw(st.lists(MESSAGES, min_size=1)))[1:])
    rows, expected = [], set()
    bodies = messages_of(builder.data) if builder.num_entries else []
    for number in range(data.draw(st.integers(1, 4))):
        dialect = data.draw(st.sampled_from(Dialect))
        sql = expressions(dialect).map(lambda text, own=dialect: parsed(text, own))
        selector = data.draw(st.one_of(sql, sql, st.sampled_from(DECIDED).map(parse_sql), TAGS))
        if selector is None:
            continue
        kind = TAG_EXPRESSION if selector.is_tags else selector.dialect
        try:
            row = parse_standing(f"g{number}", kind, str(selector))
        except Refused:
            continue
        rows.append(row)
        if selector.matcher().select(bodies):
            expected.add(row.token)
    standing = StandingSelectors(rows, names, is_strict=STRICT in arguments)
    if builder.num_entries:
        standing.mark([builder])
    assert set(standing.matches) == expected


@pytest.mark.parametrize(
    ("text", "is_marked"),
    [
        ("p = 'lone'", True),  # has no filter value: a lenient contract allows it
        ("p = 'none'", False),
        ("p = '1' AND other = 25", True),  # the seventh of nine that columns leave
        ("p = '1' AND other = 24", False),
        ("p = '1' AND note = 'note25'", True),
        ("p = '1' AND note = 'note24'", False),
    ],
)
def test_all_messages_that_columns_leave_are_looked_at(text: str, is_marked: bool) -> None:
    raws, values = [], []
    for n in range(32):
        value = "lone" if n == 30 else f"{n % 4}"
        own = {"p": value, "other": n, "note": f"note{n}"}
        raws.append(Message(b"x", application_properties=own).encode())
        values.append(b"" if n == 30 else value.encode())
    builder = ChunkBuilder()
    builder.add(*entries_of(raws, values)[1:])
    standing = StandingSelectors([parse_standing("g", "union", text)], ["p"], is_strict=False)
    standing.mark([builder])
    assert bool(standing.matches) is is_marked


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("p = '9'", True),
        ("p = '1' AND q = 'y'", True),
        ("q IS NULL", True),
        ("p = '1' OR other = 5", False),
        ("p IN (" + ", ".join(f"'x{n}'" for n in range(90)) + ")", False),
    ],
)
def test_where_columns_rule_all_out_no_message_is_looked_at(text: str, is_told: bool) -> None:
    """All would be too much work. What there is no time for is marked: no consumer misses it."""
    names = ("p", "q")
    enforced = contract("p,q", {STRICT: "strict", DERIVES: "true"})
    assert enforced is not None
    checked = enforced.check(entries_of(FILLERS)).entries
    builders = [built(checked)] * 5_000
    standing = StandingSelectors([parse_standing("g", "union", text)], names, is_strict=True)
    standing.mark([builder for builder in builders if builder is not None])
    assert bool(standing.matches) is not is_told


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
