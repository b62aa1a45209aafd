"""The soak: what its judge notices, and a short run of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak.child import Sample
from benchmarks.soak.ledger import Ledger, Reader, Told, read
from benchmarks.soak.picture import slope


@pytest.fixture
def ledger() -> Ledger:
    found = Ledger()
    for name, may_repeat in (("once", False), ("again", True)):
        found.add(name, "s", may_repeat=may_repeat).sent = 100
    return found


def judge(ledger: Ledger, *messages: tuple[str, int], kept_from: int = 0) -> list[str]:
    """The complaints about messages that come at offsets 0, 1, 2, and so on."""
    reader = Reader(ledger, "reader", "s")
    for offset, told in enumerate(messages):
        reader.take(Told(*told).body(), offset)
    ledger.judge_gaps({"s": kept_from})
    return ledger.violations


def test_a_message_is_read_as_it_was_made() -> None:
    told = Told("once", 7)
    assert read(told.body()) == told
    for at in range(len(told.body())):
        body = bytearray(told.body())
        body[at] ^= 1
        assert read(bytes(body)) != told


def test_all_in_order_is_fine(ledger: Ledger) -> None:
    messages = [(name, n) for n in range(1, 50) for name in ("once", "again")]
    assert judge(ledger, *messages) == []


def test_one_that_is_lost(ledger: Ledger) -> None:
    (text,) = judge(ledger, ("once", 1), ("once", 2), ("once", 4))
    assert "number=4) came, but 3 did not" in text


def test_the_first_that_is_lost(ledger: Ledger) -> None:
    (text,) = judge(ledger, ("once", 2))
    assert "came, but 1 did not" in text


def test_one_that_retention_took(ledger: Ledger) -> None:
    assert judge(ledger, ("once", 1), ("once", 4), kept_from=2) == []
    assert ledger.taken == 1


def test_one_that_comes_twice(ledger: Ledger) -> None:
    (text,) = judge(ledger, ("once", 1), ("once", 2), ("once", 2))
    assert "came twice" in text


def test_one_that_may_come_twice(ledger: Ledger) -> None:
    assert judge(ledger, ("again", 1), ("again", 2), ("again", 1), ("again", 2)) == []


def test_one_that_was_never_sent(ledger: Ledger) -> None:
    assert len(judge(ledger, ("once", 101), ("nobody", 1))) == 2


def test_one_that_is_damaged(ledger: Ledger) -> None:
    reader = Reader(ledger, "reader", "s")
    reader.take(Told("once", 1).body()[:-1], 0)
    assert "was never sent" in ledger.violations[0]


def test_one_that_was_not_asked_for(ledger: Ledger) -> None:
    reader = Reader(ledger, "reader", "s", lambda told: told.number % 2 == 0)
    for number in (2, 3, 4):
        reader.take(Told("once", number).body(), number - 2)
    (text,) = ledger.violations
    assert "number=3) was not asked for" in text


def test_what_did_not_come_at_the_end(ledger: Ledger) -> None:
    reader = Reader(ledger, "reader", "s", lambda told: told.number % 10 == 0)
    reader.take(Told("once", 10).body(), 9)
    ledger.producers["once"].confirmed = 19
    assert reader.missing() == []
    ledger.producers["once"].confirmed = 20
    assert reader.missing() == ["reader: 20 of once did not come, only 10"]


def test_the_slope_is_that_within_lives() -> None:
    samples = [
        Sample(at, life, 1_000_000 * life + 10 * round(at), 5)
        for life in (1, 2, 3)
        for at in [life * 100 + second for second in range(90)]
    ]
    assert slope(samples) == pytest.approx(10)
    assert slope(samples[:60]) is None


@pytest.mark.sample
def test_a_short_run(tmp_path: Path) -> None:
    """In a process of its own: rstream leaves sockets to the collector."""
    chart = tmp_path / "soak.png"
    options = ["--seconds", "6", "--seed", "3", "--chart", str(chart)]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "violations: 0" in result.stdout
    assert chart.read_bytes().startswith(b"\x89PNG")
