"""Numbers, sizes, times and names as pages show them."""

import pytest

from streamd.console import words

NONE = "\N{EN DASH}"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, NONE),
        (-1, "0 s"),
        (0, "0 s"),
        (1e-9, "0 µs"),
        (0.000_42, "420 µs"),
        (0.000_999_4, "999 µs"),
        (0.000_999_9, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (59, "59 s"),
        (60, "1 min 0 s"),
        (3_599, "59 min 59 s"),
        (3_600, "1 h 0 min"),
        (90_000, "1 d 1 h"),
        (86_400_000, "1,000 d 0 h"),
    ],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert words.duration(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (12_345, "12.3 kB"),
        (5e15, "5.0 PB"),
        (None, NONE),
    ],
)
def test_sizes(size: float | None, shown: str) -> None:
    assert words.size(size) == shown


def test_rates() -> None:
    assert [words.rate(rate) for rate in (None, 0, 0.26, 9.95, 1_234.5)] == [
        NONE,
        "0/s",
        "0.3/s",
        "9.9/s",
        "1,234/s",
    ]


def test_times() -> None:
    assert words.moment(0) == NONE
    shown = words.moment(1_700_000_000_123)
    assert "2023-11-14T22:13:20.123Z" in shown
    assert ">2023-11-14 22:13:20<" in shown
    assert words.moment(1 << 62) == f"{1 << 62} ms"  # a message may say anything
    assert ">just now<" in words.ago(1_700_000_000_000, 1_700_000_000_999)
    assert ">2 min ago<" in words.ago(1_700_000_000_000, 1_700_000_179_000)
    assert ">just now<" in words.ago(1_700_000_000_000, 0)


def test_what_others_have_written_is_escaped() -> None:
    assert words.named("<b>&\"'") == '<bdi class="name">&lt;b&gt;&amp;&#34;&#39;</bdi>'
    assert words.code("a `<b>` c") == "a <code>&lt;b&gt;</code> c"


def test_sentences() -> None:
    assert words.sentence("user or password is wrong") == "User or password is wrong."
    assert words.sentence("") == "."
