"""Which bytes are looked for in a chunk, and which places count."""

import pytest

from segments.amqp10 import Symbol
from segments.message import Message
from segments.selector import parse_sql
from segments.selector.prefilter import Screen, screen_of

_MOST = 20


def _screen(text: str) -> Screen:
    selector = parse_sql(text)
    screen = screen_of(selector.node, selector.dialect)
    assert screen is not None
    return screen


@pytest.mark.parametrize("text", ["kind = 'v9'", "kind = 'long enough'"])
def test_data_is_searched_once_for_a_value(text: str) -> None:
    assert len(_screen(text).patterns) == 1


def test_many_short_values_are_looked_for() -> None:
    values = ", ".join(f"'v{number}'" for number in range(16))
    assert len(_screen(f"kind IN ({values})").patterns) == 16


@pytest.mark.parametrize("value", ["v9", Symbol("v9"), b"v9", ""])
def test_a_short_value_counts_behind_its_name(value: str | bytes) -> None:
    wanted = value.decode() if isinstance(value, bytes) else value
    screen = _screen(f"kind = '{wanted}'")
    raw = Message(b"", application_properties={"kind": value}).encode()
    other = Message(b"\x02v9", application_properties={"sort": value}).encode()
    (place,) = screen.places(other + raw, _MOST) or ()
    assert place > len(other)
    assert screen.places(other, _MOST) == []


@pytest.mark.parametrize(
    "code", [b"\xa1", b"\xa3", b"\xa0", b"\xb1\0\0\0", b"\xb3\0\0\0", b"\xb0\0\0\0"]
)
def test_a_short_value_in_any_encoding(code: bytes) -> None:
    assert _screen("kind = 'v9'").places(b"...kind" + code + b"\x02v9", _MOST) == [7 + len(code)]


def test_a_value_that_stands_elsewhere_too_often_is_not_looked_for() -> None:
    screen = _screen("kind = 'v9'")
    assert screen.places(b"\x02v9" * 8, 1) == []
    assert screen.places(b"\x02v9" * 9, 1) is None
