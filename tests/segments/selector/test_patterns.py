"""LIKE against a plain definition, with strings long enough for each way to search."""

import pytest
from hypothesis import given, strategies as st

from segments.selector import patterns
from segments.selector.patterns import like, parse_pattern


def plainly(pattern: str, text: str) -> bool:
    """Which beginnings of the text each beginning of the pattern matches."""
    reached = {0}
    for char in pattern:
        if char == "%":
            reached = set(range(min(reached, default=len(text) + 1), len(text) + 1))
        else:
            reached = {n + 1 for n in reached if n < len(text) and char in ("_", text[n])}
    return len(text) in reached


@given(st.text("ab_%", max_size=9), st.text("abé", max_size=40))
def test_as_defined(pattern: str, text: str) -> None:
    assert like(parse_pattern(pattern, None))(text) is plainly(pattern, text)


@given(st.text("ab_%", max_size=9), st.text("abé", max_size=40), st.integers(1, 20))
def test_as_defined_in_long_strings(pattern: str, text: str, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patterns, "_MAX_PRODUCT", 0)
        patch.setattr(patterns, "_PIECE", piece)
        assert like(parse_pattern(pattern, None))(text) is plainly(pattern, text)


@pytest.mark.parametrize("text", ["b" * 300_000, "bé" * 150_000])
def test_the_work_does_not_grow_with_what_is_found(text: str) -> None:
    """A part of a thousand characters that almost fits everywhere."""
    test = like(parse_pattern("%" + "b_" * 1_000 + "c%", None))
    assert not test(text)
    assert test(text + "bbc")
