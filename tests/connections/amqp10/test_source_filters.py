"""Filters of a source: what is in effect, what is left out, and what the link gets."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from segments import FIRST, LAST, NEXT, at_offset, at_time
from segments.amqp10 import Char, Symbol
from segments.segment import MAX_OFFSET
from streamd.broker.declared.standing_selectors import StandingSelector, StandingSelectors
from streamd.config import MAX_ASKED
from streamd.connections.amqp10 import source_filters as f
from streamd.connections.amqp10.source_filters import Filters, read_filters
from streamd.operations.arguments import Arguments, read_arguments
from streamd.wire.amqp10.errors import Condition, LinkFault
from streamd.wire.amqp10.values import (
    Array,
    Described,
    Entry,
    Ubyte,
    Uint,
    Ulong,
    read_entries,
    write_value,
)
from tests.support.logs import entry as stored

NOW = 1_700_000_000_000
ROW = StandingSelector("app", "amqp", "n = 1", since=7)
STANDING = StandingSelectors([ROW])
DECLARED = read_arguments([("stream-filter-property", "region")])
PROPERTIES, APPLICATION = "amqp:properties-filter", "amqp:application-properties-filter"


def entry(key: str, value: object, descriptor: object = None) -> Entry:
    described = Described(Symbol(key) if descriptor is None else descriptor, value)
    return Entry(Symbol(key), described, b"")


def sql(text: object, descriptor: object = Symbol("amqp:sql-filter")) -> Entry:
    return entry("sql-filter", text, descriptor)


def read(*entries: Entry, declared: Arguments = DECLARED) -> Filters:
    return read_filters(entries, "s", declared, lambda: NOW, STANDING)


def message(**properties: Any) -> bytes:
    return b"\x00\x53\x74" + write_value(properties) + b"\x00\x53\x77\x40"


def chosen(filters: Filters, messages: Sequence[bytes]) -> list[int]:
    """The places of the messages that a link gets."""
    data = b"".join(map(stored, messages))
    ends = [sum(4 + len(raw) for raw in messages[: n + 1]) for n in range(len(messages))]
    places = set(range(len(messages)))
    for choice in filters.wanted.choices:
        places &= set(choice(data, ends))
    return sorted(places)


# -- where to begin

OFFSET = f.OFFSET


@pytest.mark.parametrize(
    ("value", "start"),
    [
        ("first", FIRST),
        ("last", LAST),
        (Symbol("next"), NEXT),
        ("1h", at_time(NOW - 3_600_000)),
        (Symbol("10m"), at_time(NOW - 600_000)),
        ("1000Y", at_time(0)),
        (datetime.fromtimestamp(5.123, UTC), at_time(5123)),
        (datetime.fromtimestamp(-5, UTC), at_time(0)),
        (0, at_offset(0)),
        (7, at_offset(7)),
        (Ulong((1 << 64) - 1), at_offset(MAX_OFFSET)),
        (Uint(7), at_offset(7)),
        (Ubyte(7), at_offset(7)),
    ],
)
def test_a_place_to_begin(value: object, start: object) -> None:
    found = read(entry(OFFSET, value))
    assert found.wanted.start == start
    assert found.wanted.first_offset == (found.wanted.start.value if start in FROM else 0)
    assert not found.left_out
    assert read(entry("any", value, Symbol(OFFSET))).wanted.start == start


FROM = [at_offset(number) for number in (0, 7, MAX_OFFSET)]


def test_without_a_place_it_begins_with_what_comes() -> None:
    assert read() == Filters(read().wanted, [], [], {})
    assert read().wanted.start == NEXT
    assert read().wanted.matcher is None


@pytest.mark.parametrize("text", ["", "abc", "1x", "-5", "First", "1 h", "h"])
def test_a_place_that_there_is_not(text: str) -> None:
    for value in (text, Symbol(text)):
        with pytest.raises(LinkFault, match="failed consuming from stream 's': ") as caught:
            read(entry(OFFSET, value))
        assert caught.value.condition == Condition.PRECONDITION_FAILED


# -- what is left out

LEFT_OUT = {
    "a place of another type": entry(OFFSET, 1.5),
    "a place before the first": entry(OFFSET, -1),
    "a place that is a boolean": entry(OFFSET, True),
    "a place that is a character": entry(OFFSET, Char("f")),
    "a place that is a binary": entry(OFFSET, b"first"),
    "a place that is a list": entry(OFFSET, ["first"]),
    "a place told by its code": entry(OFFSET, "first", Ulong(0)),
    "an undescribed place": Entry(Symbol(OFFSET), "first", b""),
    "a name that is no symbol": Entry(OFFSET, Described(Symbol(OFFSET), "first"), b""),
    "filter values of another type": entry(f.FILTER, 5),
    "a symbol as a filter value": entry(f.FILTER, Symbol("a")),
    "an array of filter values": entry(f.FILTER, Array(["a"])),
    "no filter value": entry(f.FILTER, []),
    "an empty filter value": entry(f.FILTER, ["a", ""]),
    "no text among the filter values": entry(f.FILTER, [Symbol("a"), 5]),
    "too many filter values": entry(f.FILTER, [str(n) for n in range(MAX_ASKED + 1)]),
    "a number as match-unfiltered": entry(f.UNFILTERED, 1),
    "SQL that is none": sql("TRUE TRUE"),
    "SQL of another dialect": sql("a BETWEEN 1 AND 2"),
    "SQL with another descriptor": sql("TRUE", Symbol("sql-filter")),
    "SQL with another code": sql("TRUE", Ulong(0x121)),
    "SQL with a code of another type": sql("TRUE", Uint(0x120)),
    "SQL as a symbol": sql(Symbol("TRUE")),
    "SQL with another name": entry("amqp:sql-filter", "TRUE"),
    "JMS": entry("apache.org:selector-filter:string", "TRUE"),
    "a filter that there is not": entry("a", {"a": "a"}),
    "a group that there is not": entry(f.GROUP, "nobody"),
    "a group that is no text": entry(f.GROUP, 5),
    "tags that are none": entry(f.TAGS, "||"),
    "a filter of no property": entry(APPLICATION, {}),
}


@pytest.mark.parametrize("left_out", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_cannot_be_used_is_left_out_and_said(left_out: Entry) -> None:
    first, last = entry(OFFSET, "first"), entry(f.FILTER, ["north"])
    found = read(first, left_out, last)
    assert found.in_effect == [first, last]
    assert found.wanted.start == FIRST
    (sentence,) = found.left_out
    assert sentence.startswith(f"the filter {left_out.key!r} is left out: "[:53])
    assert "\n" not in sentence
    assert set(found.shown.values()) == {"first", "north"}


SELECTORS = {
    "sql": sql("n = 1"),
    "code": sql("n = 1", Ulong(0x120)),
    "property": entry(APPLICATION, {"n": 1}),
    "any name": entry("mine", {"n": 1}, Ulong(0x174)),
    "group": entry(f.GROUP, "app"),
}


@pytest.mark.parametrize("selector", SELECTORS.values(), ids=SELECTORS)
def test_a_selector_chooses_messages(selector: Entry) -> None:
    found = read(selector)
    assert found.in_effect == [selector]
    assert chosen(found, [message(n=1), message(n=2), message(), message(n=1.0)]) == [0, 3]


def test_tags_choose_messages() -> None:
    found = read(entry(f.TAGS, "a || b"))
    assert chosen(found, [message(TAGS="a"), message(TAGS="c"), message(TAGS="b")]) == [0, 2]


@pytest.mark.parametrize("last", SELECTORS.values(), ids=SELECTORS)
@pytest.mark.parametrize("first", SELECTORS.values(), ids=SELECTORS)
def test_of_two_selectors_the_last_one_holds(first: Entry, last: Entry) -> None:
    found = read(first, last)
    assert found.in_effect == [last]
    assert len(found.left_out) == 1


def test_one_property_filter_for_each_section() -> None:
    subject = entry(PROPERTIES, {Symbol("subject"): "a"})
    number = entry(APPLICATION, {"n": 1})
    for pair in ((subject, number), (number, subject)):
        found = read(*pair)
        assert found.in_effect == list(pair)
        both = b"\x00\x53\x73" + write_value([None, None, None, "a"]) + message(n=1)
        assert chosen(found, [message(n=1), both]) == [1]
    again = entry("again", {"n": 2}, Symbol(APPLICATION))
    assert read(again, number, subject).in_effect == [number, subject]


def test_a_filter_that_is_left_out_excludes_nothing() -> None:
    good = sql("n = 1")
    assert read(good, sql("n =")).in_effect == [good]
    assert read(good, entry(APPLICATION, {"n": "&"})).in_effect == [good]
    assert read(good, entry(f.GROUP, "nobody")).in_effect == [good]


# -- filter values


def test_filter_values() -> None:
    found = read(entry(f.FILTER, ["north", Symbol("x"), "east"]))
    assert found.wanted.matcher is not None
    assert found.wanted.matcher.values == {b"north", b"east"}
    assert not found.wanted.matcher.match_unfiltered
    one = read(entry(f.FILTER, "north"), entry(f.UNFILTERED, True)).wanted.matcher
    assert one is not None
    assert one.values == {b"north"}
    assert one.match_unfiltered
    alone = read(entry(f.UNFILTERED, True))
    assert alone.wanted.matcher is None
    assert len(alone.in_effect) == 1


def test_only_messages_with_a_wanted_value_are_chosen() -> None:
    messages = [message(region="north", n=1), message(region="south", n=1), message(region="north")]
    found = read(entry(f.FILTER, "north"))
    assert chosen(found, messages) == [0, 2]
    assert chosen(read(*found.in_effect, sql("n = 1")), messages) == [0]


def test_of_two_places_and_values_the_first_in_the_map_holds() -> None:
    found = read(
        entry("a", 1, Symbol(OFFSET)),
        entry("b", "x", Symbol(f.FILTER)),
        entry("c", 2, Symbol(OFFSET)),
        entry("d", "y", Symbol(f.FILTER)),
    )
    assert found.wanted.start == at_offset(1)
    assert found.wanted.matcher is not None
    assert found.wanted.matcher.values == {b"x"}
    assert len(found.in_effect) == 4


# -- chunks


def test_selectors_choose_chunks_by_the_filter_property() -> None:
    for selector in (
        sql("region = 'north'"),
        entry(APPLICATION, {"region": "north"}),
        entry(APPLICATION, {"region": "north", "n": 1}),
    ):
        matcher = read(selector).wanted.matcher
        assert matcher is not None
        assert matcher.values == {b"north"}
        assert read(selector, declared={}).wanted.matcher is None
        assert read(selector).wanted.num_tests


def test_a_group_has_the_chunks_that_are_marked_for_it() -> None:
    found = read(entry(f.GROUP, "app"))
    assert found.group == "app"
    marked = STANDING.matcher("app")
    assert found.wanted.matcher is not None
    assert (found.wanted.matcher.values, found.wanted.matcher.since) == (marked.values, 7)
    by_value = read(entry(f.GROUP, "app"), entry(f.FILTER, "north"))
    assert by_value.group is None
    assert by_value.wanted.matcher is not None
    assert by_value.wanted.matcher.values == {b"north"}
    messages = [message(region="north", n=1), message(region="south", n=1), message(region="north")]
    assert chosen(by_value, messages) == [0]


def test_the_group_of_a_later_version_is_left_out() -> None:
    standing = StandingSelectors([StandingSelector("new", "union", "n ~ 1", since=0)])
    group = entry(f.GROUP, "new")
    found = read_filters([group], "s", {}, lambda: NOW, standing)
    assert found.in_effect == []
    assert found.group is None


# -- any filters

KEYS = st.sampled_from([OFFSET, f.FILTER, f.UNFILTERED, f.GROUP, f.TAGS, "sql-filter", "other"])
NAMED = KEYS | st.sampled_from([PROPERTIES, APPLICATION, f.SQL[0]])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 9)
    | st.floats()
    | st.binary(max_size=2)
    | st.sampled_from(["first", "app", "n = 1", "a", Symbol("a"), Symbol("subject"), Ulong(3)]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "n", Symbol("to")]), inner, max_size=2)
    ),
)
ENTRIES = st.builds(
    Entry,
    KEYS.map(Symbol) | VALUES,
    VALUES | st.builds(Described, NAMED.map(Symbol) | st.integers(0x11F, 0x175).map(Ulong), VALUES),
    st.just(b""),
)


@given(st.lists(ENTRIES, max_size=6))
def test_any_filters_are_in_effect_or_left_out(entries: list[Entry]) -> None:
    try:
        found = read(*entries)
    except LinkFault:
        assert any(isinstance(e.value, Described) and e.value.descriptor == OFFSET for e in entries)
        return
    assert len(found.in_effect) + len(found.left_out) == len(entries)
    left = iter(entries)
    assert all(any(one is other for other in left) for one in found.in_effect)  # their order
    again = read(*found.in_effect)
    assert again.in_effect == found.in_effect
    assert not again.left_out
    assert again.wanted.start == found.wanted.start


@given(st.lists(ENTRIES.filter(lambda e: isinstance(e.key, Symbol)), max_size=4))
def test_what_is_sent_back_is_what_was_sent(entries: list[Entry]) -> None:
    raw = write_value({e.key: e.value for e in entries})
    try:
        found = read(*read_entries(raw))
    except (LinkFault, TypeError):
        return
    assert all(e.raw in raw for e in found.in_effect)


def test_the_clock_is_asked_when_messages_are() -> None:
    times = iter([1, 2, 3])
    found = read_filters([sql("UTC() = 2")], "s", {}, lambda: next(times), STANDING)
    assert [chosen(found, [message()]) for _ in range(3)] == [[], [0], []]
