"""Some of the interleavings of the model; `python -m tests.broker.tier.wal_model` has all."""

from dataclasses import replace

import pytest

from segments.recovery import tail
from segments.store.wal import Section
from streamd.broker.tier.wal import WalStream
from tests.broker.tier.wal_model import SETUPS, explore

_RUNS = 60


@pytest.mark.parametrize("name", SETUPS)
def test_promises_hold(name: str) -> None:
    found = explore(SETUPS[name], runs=_RUNS)
    assert not found.loss
    assert found.states > _RUNS


def test_a_hole_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a slot says that it follows what it does not."""
    section = WalStream.section

    def behind(stream: WalStream, taken: object) -> Section:
        found = section(stream, taken)  # type: ignore[arg-type]
        return replace(found, after=found.after + 1)

    monkeypatch.setattr(WalStream, "section", behind)
    assert "goes on behind" in explore(SETUPS["lost"], runs=_RUNS).loss


def test_a_start_that_puts_nothing_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail._Tail, "write", lambda _: None)
    assert "a start serves" in explore(SETUPS["lost"], runs=_RUNS).loss
