"""Messages cut at every byte and changed at every byte: every way of reading them agrees."""

from collections.abc import Callable, Iterator

import pytest

from segments.errors import FormatError
from segments.message import Message, Properties
from segments.selector import Budget, MatcherSet, RowReader, parse_property, parse_sql
from segments.selector.fields import Row
from tests.segments.selector.strategies import chunk

MESSAGES = (
    Message(b"body", application_properties={"p": "a", "q": 5, "r": "b" * 20}).encode(),
    Message(b"body", Properties(subject="a"), {"p": "a", "q": "long " * 60}).encode(),
)


def damaged() -> Iterator[bytes]:
    for raw in MESSAGES:
        yield raw
        for place in range(len(raw)):
            yield raw[:place]
            for change in (1, 0x80, 0xFF):
                yield raw[:place] + bytes((raw[place] ^ change,)) + raw[place + 1 :]


def outcome(read: Callable[[bytes], Row], raw: bytes) -> Row | None:
    try:
        return read(raw)
    except FormatError:
        return None


@pytest.mark.parametrize("names", [["p"], ["q", "p"], ["r"], ["none"]])
def test_the_fast_way_reads_what_the_slow_way_reads(names: list[str]) -> None:
    reader = RowReader([parse_property(name) for name in names])
    assert reader.read != reader._read_any
    for raw in damaged():
        assert outcome(reader.read, raw) == outcome(reader._read_any, raw), raw


def test_damage_to_what_one_selector_reads_is_nothing_to_the_others() -> None:
    texts = ("properties.subject = 'a'", "p = 'a'", "q = 5", "p = 'a' AND q IS NOT NULL")
    selectors = {text: parse_sql(text) for text in texts}
    for raw in damaged():
        expected = {text for text, one in selectors.items() if one.matcher().matches(raw)}
        assert MatcherSet(selectors).matching([raw], Budget(10**9)) == expected, raw
        data, ends = chunk([b"other", raw])
        assert MatcherSet(selectors).matching_in(data, ends, Budget(10**9)) == expected, raw
