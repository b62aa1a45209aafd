"""The chunk filter: known bits, no false negatives, the false positives that the formula says."""

import random

import pytest
from hypothesis import given, strategies as st

from segments import bloom
from segments.bloom import ChunkMatcher
from segments.format_constants import MMH3_SCHEME, OSIRIS_SCHEME

SIZES = st.integers(16, 255)
VALUES = st.sets(st.binary(min_size=1, max_size=300), max_size=60)

# Made with mmh3 5.3 alone: value, then its two bits at each filter size.
POSITIONS = {
    b"banana": {16: (26, 26), 17: (1, 81), 32: (121, 231), 64: (305, 82), 128: (961, 699)},
    b"apple": {16: (14, 29), 17: (40, 127), 32: (160, 52), 64: (250, 321), 255: (106, 7)},
    b"pineapple": {16: (33, 70), 17: (134, 25), 128: (605, 796), 255: (691, 1870)},
    "é".encode(): {16: (28, 52), 32: (52, 128), 64: (166, 141), 128: (892, 500), 255: (240, 325)},
}


@pytest.mark.parametrize(("value", "expected"), POSITIONS.items())
def test_known_positions(value: bytes, expected: dict[int, tuple[int, int]]) -> None:
    assert {size: bloom.bit_positions(value, size) for size in expected} == expected


def test_known_filters() -> None:
    assert bloom.build([b"apple", b"banana"], 16).hex() == "00020024000000000000000000000000"
    assert bloom.build([b"", b"banana"], 16).hex() == "80000020000000000000000000000000"
    assert bloom.build([b"apple", b"banana"], 17).hex() == "4000000000800000000040000000000100"
    assert bloom.build([b""], 16) == bloom.build([], 255) == b""


@given(VALUES, SIZES)
def test_no_value_is_ever_missed(values: set[bytes], size: int) -> None:
    filter_bytes = bloom.build(values, size)
    for value in values:
        assert ChunkMatcher([value]).matches(MMH3_SCHEME, size, filter_bytes)
        assert ChunkMatcher([b"other", value]).matches(MMH3_SCHEME, size, filter_bytes)


@pytest.mark.parametrize(
    ("num_values", "size", "percent"),
    [(1, 16, 0.025), (10, 16, 2.146), (50, 16, 29.92), (100, 64, 10.52), (200, 255, 3.175)],
)
def test_false_positive_rate(num_values: int, size: int, percent: float) -> None:
    """The figures of docs/internals/file-format.md, and a count over random filters."""
    assert bloom.false_positive_rate(num_values, size) * 100 == pytest.approx(percent, rel=2e-2)
    generator = random.Random(num_values * size)
    hits = tests = 0
    for _ in range(300):
        values = {generator.randbytes(8) for _ in range(num_values)}
        filter_bytes = bloom.build(values, size)
        for _ in range(100):
            hits += ChunkMatcher([generator.randbytes(9)]).matches(MMH3_SCHEME, size, filter_bytes)
            tests += 1
    assert hits / tests * 100 == pytest.approx(percent, rel=0.15, abs=0.06)


def test_smallest_size_keeps_the_rate() -> None:
    table = {5: 16, 10: 24, 20: 48, 30: 72, 50: 119, 100: 238}  # at 1 %
    assert {n: bloom.smallest_size(n, 0.01) for n in table} == table
    assert bloom.smallest_size(200, 0.01) == 255  # cannot be kept: the largest there is
    assert bloom.smallest_size(100, 0.01, 64) == 64
    for n in range(1, 100, 7):
        size = bloom.smallest_size(n, 0.05)
        assert bloom.false_positive_rate(n, size) <= 0.05
        assert size == 16 or bloom.false_positive_rate(n, size - 1) > 0.05


@pytest.mark.parametrize(
    ("chunk", "plain", "with_unfiltered"),
    [
        ([b""], False, True),  # no message has a value
        ([b"apple"], True, True),
        ([b"banana"], False, False),
        ([b"", b"apple"], True, True),
        ([b"", b"banana"], False, True),
    ],
)
def test_matching_table(chunk: list[bytes], plain: bool, with_unfiltered: bool) -> None:
    """As docs/internals/file-format.md has it: kind of chunk against kind of subscription."""
    filter_bytes = bloom.build(chunk, 32)
    size = len(filter_bytes)
    assert ChunkMatcher([b"apple"]).matches(MMH3_SCHEME, size, filter_bytes) is plain
    both = ChunkMatcher([b"apple"], match_unfiltered=True)
    assert both.matches(MMH3_SCHEME, size, filter_bytes) is with_unfiltered


def test_filters_of_another_scheme_are_never_trusted() -> None:
    assert ChunkMatcher([b"apple"]).matches(OSIRIS_SCHEME, 16, bytes(16))
    assert ChunkMatcher([b"apple"]).matches(OSIRIS_SCHEME, 0, b"")


@pytest.mark.parametrize("values", [[b""], [b"a", b""]])
def test_no_value_of_a_filter_is_empty(values: list[bytes]) -> None:
    with pytest.raises(ValueError, match="is empty"):
        ChunkMatcher(values)


def test_long_values_are_not_kept() -> None:
    before = len(bloom._masks(16))
    bloom.mask(b"x" * 4000, 16)
    assert len(bloom._masks(16)) == before
    for n in range(20_000):
        bloom.mask(b"%d" % n, 16)
    assert len(bloom._masks(16)) <= 8192
