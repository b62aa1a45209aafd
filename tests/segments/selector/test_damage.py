"""Messages cut at every byte and changed at every byte: every way of reading them agrees."""

from collections.abc import Callable, Iterator

import pytest

from segments.errors import FormatError
from segments.message import Message, Properties
from segments.selector import Budget, MatcherSet, RowReader, parse_property, parse_sql
from segments.selector.fields import Row
from tests.segments.selector.strategies import chunk

_SHORT_BEFORE = b"\x00\x53\x70\xc0\x02\x01\x41" + b"\x00\x53\x72\xc1\x07\x02\xa3\x01x\xa1\x01y"
MESSAGES = (
    _SHORT_BEFORE + Message(b"", application_properties={"p": "a"}).encode(),
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


def test_the_fast_way_goes_over_short_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowReader, "_read_any", None)
    read = RowReader([parse_property("p")]).read
    for raw in MESSAGES[:2]:
        assert read(raw) == ["a"]


def test_damage_to_what_one_selector_reads_is_nothing_to_the_others() -> None:
    texts = ("properties.subject = 'a'", "p = 'a'", "q = 5", "p = 'a' AND q IS NOT NULL")
    selectors = {text: parse_sql(text) for text in texts}
    for raw in damaged():
        expected = {text for text, one in selectors.items() if one.matcher().matches(raw)}
        assert MatcherSet(selectors).matching([raw], Budget(10**9)) == expected, raw
        data, ends = chunk([b"other", raw])
        assert MatcherSet(selectors).matching_in(data, ends, Budget(10**9)) == expected, raw
