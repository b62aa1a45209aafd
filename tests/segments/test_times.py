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
from segments.times import whole_ms

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
