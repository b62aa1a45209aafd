"""Numbers as people write and read them."""

import pytest
from hypothesis import given, strategies as st

from segments.words import percent, plural, size, whole_number


@given(st.integers(0, 10**20 - 1))
def test_digits_are_a_number(number: int) -> None:
    assert whole_number(str(number)) == number
    assert whole_number(str(number), number, number) == number
    assert whole_number(str(number), most=number - 1) is None
    assert whole_number(str(number), number + 1) is None


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", " 1", "1_000", "1,000", "1.0", "²", "٣", "9" * 21]
)
def test_other_texts_are_none(text: str) -> None:
    assert whole_number(text) is None


def test_a_number_has_its_noun() -> None:
    counts = [plural(n, "entry", "entries") for n in (0, 1, 2_000)]
    assert counts == ["0 entries", "1 entry", "2,000 entries"]
    assert plural(2, "chunk") == "2 chunks"


def test_sizes_and_shares() -> None:
    sizes = [size(n) for n in (0, 999, 1_000, 12_345, 5e15, 5e18)]
    assert sizes == ["0 B", "999 B", "1.0 kB", "12.3 kB", "5.0 PB", "5000.0 PB"]
    assert [percent(share) for share in (0, 0.0051, 0.125, 1)] == [
        "0 %",
        "0.51 %",
        "12.5 %",
        "100 %",
    ]
