"""What holds for every selector and every message."""

import uuid
from datetime import datetime

import pytest
from hypothesis import example, given, settings, strategies as st

from segments.amqp10 import Opaque, Symbol
from segments.errors import FormatError
from segments.message import Message, MessageView
from segments.selector import (
    Budget,
    Dialect,
    MatcherSet,
    RowReader,
    Selector,
    SelectorError,
    parse_property,
    parse_sql,
)
from segments.selector.lexer import tokenize
from segments.selector.values import OTHER
from tests.segments.selector.strategies import chunk, expressions, meeting, messages

DIALECTS = pytest.mark.parametrize("dialect", Dialect)
TOKENS = st.sampled_from(
    (
        *("a", "b.c", "p.subject", "[x]", "'x'", '"y"', "1", "2.5", ".5", "5.", "1e9", "0xAB"),
        *("(", ")", ",", "+", "-", "*", "/", "%", "=", "<>", "!=", "<", ">=", "--", "/*", "*/"),
        *("AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "BETWEEN", "CONTAINS", "IS", "NULL"),
        *("TRUE", "FALSE", "UTC()", "'", '"', "]", "007", "7L", "$", ";", "é"),
    )
)


def parsed(text: str, dialect: Dialect) -> Selector | None:
    try:
        return parse_sql(text, dialect)
    except SelectorError:
        return None


@DIALECTS
@given(data=st.data())
def test_the_canonical_text_is_the_same_selector(dialect: Dialect, data: st.DataObject) -> None:
    selector = parsed(data.draw(expressions(dialect)), dialect)
    if selector is not None:
        again = parse_sql(str(selector), dialect)
        assert again == selector
        assert str(again) == str(selector)


@DIALECTS
@given(text=st.one_of(st.text(), st.lists(TOKENS).map(" ".join), st.lists(TOKENS).map("".join)))
def test_any_text_is_a_selector_or_an_error_with_its_place(dialect: Dialect, text: str) -> None:
    selector = parsed(text, dialect)
    if selector is not None:
        assert parse_sql(str(selector), dialect) == selector
        return
    with pytest.raises(SelectorError) as caught:
        parse_sql(text, dialect)
    error = caught.value
    assert 0 <= error.start <= error.end <= len(text) + 1
    reason, line, caret = str(error).rsplit("\n", 2)
    assert error.reason in reason
    assert caret.strip("^ ") == ""
    assert len(caret) <= max(len(line), 3) + 1


@DIALECTS
@given(text=st.lists(TOKENS).map(" ".join))
def test_tokens_stand_in_order(dialect: Dialect, text: str) -> None:
    end = 0
    try:
        for token in tokenize(text, dialect):
            assert token.start >= end
            assert token.kind == "end" or text[token.start : token.end] == token.text
            end = token.end
    except SelectorError:
        pass


def filter_value(raw: bytes, name: str) -> bytes | None:
    """By the strict contract: the bytes of a text or binary that is not empty."""
    try:
        (value,) = RowReader([parse_property(name)]).read(raw)
    except FormatError:
        return None
    if isinstance(value, str):
        value = value.encode()
    return value if isinstance(value, bytes) and value else None


def with_values(raws: list[bytes], name: str) -> list[tuple[bytes, bytes | None]]:
    return [(raw, filter_value(raw, name)) for raw in raws]


VALUED = {name: with_values(meeting(name), name) for name in ("p", "TAGS", "properties.subject")}


@DIALECTS
@pytest.mark.parametrize("name", VALUED)
@pytest.mark.parametrize("is_strict", [True, False])
@given(data=st.data())
@settings(max_examples=20)  # of each of 18 kinds
def test_no_match_is_lost_by_pushdown(
    dialect: Dialect, name: str, is_strict: bool, data: st.DataObject
) -> None:
    selector = parsed(data.draw(expressions(dialect)), dialect)
    if selector is None:
        return
    asked = selector.push_down([name], is_strict=is_strict)
    found = [*VALUED[name], *with_values(data.draw(st.lists(messages(), max_size=6)), name)]
    for place in selector.matcher().select([raw for raw, _ in found]):
        _, value = found[place]
        assert not asked.is_empty
        if asked.values is None:
            continue
        if value is not None:
            assert value in asked.values
        if value is None or not is_strict:  # then a publisher may have given none
            assert asked.match_unfiltered


MEETING = meeting("p") + meeting("TAGS")


@DIALECTS
@given(data=st.data())
def test_screening_finds_what_looking_at_each_finds(dialect: Dialect, data: st.DataObject) -> None:
    selector = parsed(data.draw(expressions(dialect)), dialect)
    if selector is None:
        return
    some = data.draw(st.lists(messages(), max_size=3))
    matching = [MEETING[place] for place in selector.matcher().select(MEETING)]
    if matching:
        some += data.draw(st.lists(st.sampled_from(matching), max_size=9, unique=True))
    rest = [Message(b"x", application_properties={"q": "zz"}).encode()] * 100
    bodies = rest[:50] + some + rest[50:]
    raw, ends = chunk(bodies)
    plain, screened = selector.matcher(), selector.matcher()
    assert screened.select_in(raw, ends) == plain.select(bodies)
    assert screened.matched == plain.matched
    assert screened.tested == plain.tested == len(bodies)


NAMES = ("p", "q", "TAGS", "other")


@DIALECTS
@given(data=st.data())
def test_several_together_find_what_each_finds(dialect: Dialect, data: st.DataObject) -> None:
    texts = data.draw(st.lists(expressions(dialect), max_size=4))
    selectors = {text: found for text in texts if (found := parsed(text, dialect)) is not None}
    bodies = data.draw(st.lists(st.one_of(messages(), st.sampled_from(MEETING)), max_size=5))
    together = MatcherSet(selectors)
    expected = {text for text, one in selectors.items() if one.matcher().select(bodies)}
    assert together.matching(bodies, Budget(10**9)) == expected
    raw, ends = chunk(bodies)
    assert together.matching_in(raw, ends, Budget(10**9)) == expected
    # With less work than it takes more may be named, never fewer.
    for units in (0, 1, 10, 100, 1_000):
        assert expected <= together.matching(bodies, Budget(units)) <= together.keys
        assert expected <= together.matching_in(raw, ends, Budget(units)) <= together.keys


@given(messages(), st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
@example(Message(b"x", application_properties={"p": ""}).encode()[:-6], ["p"])
def test_what_is_read_is_what_is_there(raw: bytes, names: list[str]) -> None:
    view = MessageView(raw)
    if not view.is_amqp:
        return  # damaged, perhaps only behind what had to be read, as when it has no body
    try:
        row = RowReader([parse_property(name) for name in names]).read(raw)
    except FormatError:
        return
    try:
        expected = [view.application_properties.get(name) for name in names]
    except FormatError:
        return  # damaged behind what had to be read
    for found, value in zip(row, expected, strict=True):
        if isinstance(value, datetime):
            assert found == round(value.timestamp() * 1000)
        elif isinstance(value, uuid.UUID):
            assert found == value.bytes
        elif isinstance(value, list | Opaque):
            assert found is OTHER or isinstance(found, str)
        else:
            assert found == value
            assert type(found) is type(value) or isinstance(value, Symbol)
