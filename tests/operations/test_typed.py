"""Ages and sizes as people type them."""

import pytest
from hypothesis import given, strategies as st

from streamd.operations.argument_kinds import age_seconds
from streamd.operations.arguments import ARGUMENTS, MAX_AGE, MAX_LENGTH, as_typed, read_argument
from streamd.operations.errors import Refused

DAY = 86_400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7D", 7 * DAY),
        ("7 d", 7 * DAY),
        ("7d", 7 * DAY),
        ("7 Days", 7 * DAY),
        ("1 day", DAY),
        ("2 weeks", 14 * DAY),
        ("12 h", 12 * 3600),
        ("12 hours", 12 * 3600),
        ("90m", 90 * 60),
        ("90 min", 90 * 60),
        ("2M", 60 * DAY),
        ("2 months", 60 * DAY),
        ("1 year", 365 * DAY),
        ("1,000 s", 1000),
        ("30 seconds", 30),
    ],
)
def test_ages(text: str, seconds: int) -> None:
    assert age_seconds(as_typed(MAX_AGE, text)) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10GB", 10_000_000_000),
        ("10 gb", 10_000_000_000),
        ("500 MB", 500_000_000),
        ("1.5 GB", 1_500_000_000),
        ("1 GiB", 1 << 30),
        ("0.5 KiB", 512),
        ("2 TB", 2_000_000_000_000),
        ("1_000_000", 1_000_000),
        ("1,000,000 bytes", 1_000_000),
        ("100 B", 100),
        ("0", 0),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert read_argument(MAX_LENGTH, as_typed(MAX_LENGTH, text)) == size


@pytest.mark.parametrize(
    "text", ["7", "7 m", "7 M", "1.5 days", "d", "soon", "7 d 3 h", "-1 d", "0 d"]
)
def test_other_ages_are_refused(text: str) -> None:
    with pytest.raises(Refused, match="expected a number and one of the units"):
        read_argument(MAX_AGE, as_typed(MAX_AGE, text))


@pytest.mark.parametrize(
    "text", ["GB", "10 G", "1.5", "0.5 B", "ten", "10 GB 5", "-1 GB", "9" * 30, "1,5 GB", "1_5 GB"]
)
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(Refused, match="expected a whole number"):
        read_argument(MAX_LENGTH, as_typed(MAX_LENGTH, text))


@given(st.text() | st.from_regex(r"[0-9]{1,30}\.?[0-9]{0,12} ?[A-Za-z]{0,6}", fullmatch=True))
def test_what_programs_write_stays(text: str) -> None:
    for name in ARGUMENTS:
        typed = as_typed(name, text)
        assert as_typed(name, typed) == typed
        try:
            value = read_argument(name, text)
        except Refused:
            continue
        assert read_argument(name, typed) == value
