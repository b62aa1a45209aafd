"""Work in steps: all who do it stand in one line."""

from collections import Counter
from itertools import count

import pytest
import trio

from streamd.net.turns import in_turns, next_turn

STEPS = 5


class _Turns(trio.abc.Instrument):
    """Counts the turns of the event loop, as it returns to its tasks."""

    def __init__(self) -> None:
        self.number = 0

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - see trio.abc.Instrument
        self.number += 1


@pytest.fixture
async def turns() -> _Turns:
    found = _Turns()
    trio.lowlevel.add_instrument(found)
    return found


@pytest.mark.parametrize("given_up", [set(), {0}, {3, 4, 9}, set(range(1, 10))])
async def test_one_goes_on_in_each_turn_of_the_loop(turns: _Turns, given_up: set[int]) -> None:
    """However many there are, those who give up hold nobody up, and nobody comes twice first."""
    went_on: list[tuple[int, int]] = []

    async def work(who: int) -> None:
        with trio.move_on_after(0 if who in given_up else 60):
            for _ in range(STEPS):
                await next_turn()
                went_on.append((turns.number, who))

    async with trio.open_nursery() as nursery:
        for who in range(10):
            nursery.start_soon(work, who)
    assert max(Counter(turn for turn, _ in went_on).values()) == 1
    expected = {who: STEPS for who in range(10) if who not in given_up}
    assert Counter(who for _, who in went_on if who not in given_up) == expected
    for at in range(0, len(went_on) - len(given_up), len(expected)):
        part = [who for _, who in went_on if who not in given_up][at : at + len(expected)]
        assert len(set(part)) == len(part)


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_loop_in_turns_stands_in_the_same_line(
    turns: _Turns, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    clock = count(step=0.0025 if is_slow else 0.0)  # a look at it each item
    monkeypatch.setattr("streamd.net.turns.perf_counter", lambda: next(clock))
    seen: list[int] = []

    async def work() -> None:
        async for _ in in_turns(range(4)):
            seen.append(turns.number)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work)
    assert len(seen) == 12
    assert max(Counter(seen).values()) == (1 if is_slow else 12)
