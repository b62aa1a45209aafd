"""A time without a zone is local, wherever it is given; a time with one is what it says."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest

from clients import Message, Properties
from clients.consumer import offset_specification
from segments.creation_time import creation_time_ms
from segments.keys.forms import forms_of_key, forms_of_value
from segments.spark.options import read_options
from segments.times import moment_ms, time_ms, whole_ms

HOURS = 5  # west of Greenwich
LOCAL = datetime(2026, 11, 22, 9, 30, 0, 123_456)
EXPECTED = whole_ms(LOCAL.replace(tzinfo=timezone(timedelta(hours=-HOURS))))


@pytest.fixture(autouse=True)
def _zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", f"EST{HOURS}")
        time.tzset()
        yield
    time.tzset()


def as_property(given: datetime) -> int | None:
    return creation_time_ms(Message(b"", Properties(creation_time=given)).encode())


def as_option(given: datetime) -> int | None:
    return read_options({"path": "x", "startTimestamp": given.isoformat()}).start_ms


def as_offset(given: datetime) -> int | None:
    return offset_specification(given).value


WAYS = [as_property, as_option, as_offset, whole_ms]


@pytest.mark.parametrize("way", WAYS)
def test_without_a_zone_it_is_local(way: Callable[[datetime], int | None]) -> None:
    assert way(LOCAL) == EXPECTED


@pytest.mark.parametrize("way", WAYS)
def test_with_a_zone_it_is_that_moment(way: Callable[[datetime], int | None]) -> None:
    assert way(LOCAL.replace(tzinfo=UTC)) == EXPECTED - HOURS * 3_600_000


def test_keys() -> None:
    assert forms_of_key(LOCAL) == set(forms_of_value(EXPECTED))
    assert set(forms_of_value(EXPECTED)) < forms_of_key("2026-11-22T09:30:00.123-05:00")
    assert len(forms_of_key("2026-11-22T09:30:00.123")) == 1, "the zone of a text is not known"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1763715600000", 1_763_715_600_000),
        ("-5", -5),
        ("9" * 20, (1 << 63) - 1),
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T00:00:01", 1_000 + HOURS * 3_600_000),
        ("9" * 21, None),
        ("0001-01-01", None),
        ("soon", None),
        ("", None),
    ],
)
def test_a_text_is_a_number_of_ms_or_a_time(text: str, expected: int | None) -> None:
    assert time_ms(text) == expected


def test_the_zone_of_a_text_without_one() -> None:
    assert time_ms("1970-01-01T00:00:01", UTC) == 1_000
    assert time_ms("1970-01-01T00:00:01", needs_zone=True) is None
    assert moment_ms("1000") is None
