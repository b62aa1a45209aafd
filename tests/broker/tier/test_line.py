"""Uploads make progress on any line: on a slow one they end later, and not never."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, strategies as st

from segments.store.object_store import TierError
from streamd.broker.tier import tier
from streamd.broker.tier.line import MOST_PARTS, PARTS_AT_ONCE, Line
from streamd.broker.tier.requests import CountedStore, ask
from streamd.net import threads
from tests.broker.tier.support import PART, Publishers, orphans, passes, tier_of, tiered
from tests.support import line as lines
from tests.support.fake_store import FakeStore
from tests.support.server import Harness

DEADLINE = 300.0  # seconds that a request may take


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "Line", partial(Line, PART))


@pytest.mark.parametrize("seconds_of_a_part", [1, 7, 80, 200])
async def test_a_slow_line_gets_everything_stored_in_its_time(
    tmp_path: Path, store: FakeStore, seconds_of_a_part: float
) -> None:
    async with tiered(tmp_path, store) as server:
        line = lines.Line(PART / seconds_of_a_part, PART, DEADLINE)
        with lines.on_line(store, line):
            publishers = Publishers(server)
            size = await publishers.publish(1)
            await passes(1.2 * size / line.rate)
            assert await publishers.are_stored(store)
            assert line.sent < 1.2 * size
            status = await tier_of(server).status()
            assert (status.bytes_waiting, status.errors) == (0, 0)
            assert status.upload_rate == pytest.approx(line.rate, rel=0.2)
    assert not orphans(store)


async def test_a_line_that_stands_still_for_a_while_goes_on(
    store: FakeStore, server: Harness
) -> None:
    line = lines.Line(PART / 7, PART, DEADLINE)
    with lines.on_line(store, line):
        publishers = Publishers(server)
        line.stalled_until = trio.current_time() + 60
        size = await publishers.publish(1)
        await passes(60 + 1.2 * size / line.rate)
        assert await publishers.are_stored(store)
        assert line.sent < 1.2 * size


async def test_a_fast_line_is_used_by_several_and_one_that_becomes_slow_by_few(
    tmp_path: Path, store: FakeStore
) -> None:
    async with tiered(tmp_path, store, tier_roll_seconds=100_000) as server:
        line = lines.Line(PART * 100, PART, DEADLINE)
        with lines.on_line(store, line):
            publishers = Publishers(server)
            await publishers.publish(3)
            await passes(10)
            assert await publishers.are_stored(store)
            assert line.most > PARTS_AT_ONCE
            line.rate = PART / 200  # the first ones are given up
            size = await publishers.publish(1)
            await passes(3 * size / line.rate)
            assert await publishers.are_stored(store)
            line.most = 0
            size = await publishers.publish(1)
            await passes(1.2 * size / line.rate)
            assert await publishers.are_stored(store)
            assert line.most <= 2  # a part, and a manifest beside it


@given(
    st.lists(st.tuples(st.integers(1, 40 * PART), st.floats(0.01, 500), st.booleans()), max_size=30)
)
def test_the_window_holds_and_nobody_overtakes(uploads: list[tuple[int, float, bool]]) -> None:
    line, begun, under_way, most = Line(PART), [], [0], [0]

    async def upload(number: int, size: int, seconds: float, is_lost: bool) -> None:
        async def send(parts: int) -> bool:
            begun.append(number)
            assert 1 <= parts <= PARTS_AT_ONCE
            taken = min(size, parts * PART)
            assert not under_way[0] or under_way[0] + taken <= line.window
            under_way[0] += taken
            most[0] = max(most[0], under_way[0])
            await trio.sleep(seconds)
            under_way[0] -= taken
            assert PART <= line.window <= MOST_PARTS * PART
            if is_lost:
                raise TierError("the connection broke off")
            return True

        if is_lost:
            with pytest.raises(TierError):
                await line.send(size, send)
        else:
            assert await line.send(size, send)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for number, (size, seconds, is_lost) in enumerate(uploads):
                nursery.start_soon(upload, number, size, seconds, is_lost)
                await trio.testing.wait_all_tasks_blocked()
        before = line.busy_seconds
        await trio.sleep(10)
        assert line.busy_seconds == before
        assert math.isclose(before, trio.current_time() - 10 - start) or not uploads

    clock = trio.testing.MockClock(autojump_threshold=0)
    start = clock.current_time()
    trio.run(run, clock=clock)
    assert begun == list(range(len(uploads)))
    assert under_way == [0]


# -- how long somebody waits


def _stepwise(seconds: float) -> Callable[..., Any]:
    """In place of a thread: work in steps, each of which takes a while."""

    async def in_thread(work: Callable[[], Iterator[None]]) -> str:
        for _ in work():
            await trio.sleep(seconds)
        return "done"

    return in_thread


@pytest.mark.parametrize(
    ("sizes", "seconds"), [([0] * 20, 250), ([8 << 20], (8 << 20) / 10_000)], ids=["many", "large"]
)
async def test_what_goes_on_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], seconds: float
) -> None:
    """A large body has time, too."""
    store = CountedStore(FakeStore())

    def work() -> Iterator[None]:
        for number, size in enumerate(sizes):
            store.put(f"v1/{number}", bytes(size))
            yield

    monkeypatch.setattr(threads, "in_thread", _stepwise(seconds))
    assert await ask(work) == "done"


async def test_what_stands_still_is_not_waited_for_and_ends_with_its_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, path = CountedStore(FakeStore()), __file__
    asks: list[Callable[[], None]] = []

    def work() -> Iterator[None]:
        store.put("v1/x", b"")
        yield
        store.put_file("v1/y", path, 10, 1)

    async def in_thread(work: Callable[[], Iterator[None]]) -> None:
        steps = work()
        next(steps)
        asks.append(lambda: next(steps))
        await trio.sleep_forever()

    monkeypatch.setattr(threads, "in_thread", in_thread)
    began = trio.current_time()
    with pytest.raises(TierError, match="the store has not answered for 300 seconds"):
        await ask(work)
    assert trio.current_time() - began == pytest.approx(300)
    assert store.requests["put"] == 1
