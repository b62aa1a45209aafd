"""Whether uploads keep up is told: once when they do not, and once when they do again."""

import logging
from functools import partial
from pathlib import Path

import pytest
import trio

from streamd.broker.tier import tier
from streamd.broker.tier.backlog import Backlog
from streamd.broker.tier.line import Line
from streamd.operations.tier_reports import TierState
from tests.broker.tier.support import LARGE_SEGMENT, PART, Publishers, passes, tier_of, tiered
from tests.support import line as lines
from tests.support.fake_store import FakeStore

MB = 1_000_000
SEGMENT_MB = 64


def _sentences(made: float, sent: float, minutes: int, first: int = 0) -> list[str]:
    """What is said, every 15 s, when four streams fill segments together and one line takes them.

    Args:
        made: MB of each second.
        sent: the same of the line.
        minutes: how long that goes on.
        first: MB that wait at first.
    """
    backlog, found = Backlog(Line()), []
    for second in range(0, minutes * 60, 15):
        full = first + 4 * SEGMENT_MB * int(made * second / (4 * SEGMENT_MB))
        stored = min(full, SEGMENT_MB * int(sent * second / SEGMENT_MB))
        backlog.look(second, (full - stored) * MB, stored * MB, 0)
        found.append(backlog.sentence)
    return found


@pytest.mark.parametrize(("made", "sent"), [(1.0, 1.2), (0.5, 2.0), (10.0, 11.0)])
def test_what_keeps_up_is_fine_however_segments_get_full(made: float, sent: float) -> None:
    assert not any(_sentences(made, sent, 180))


def test_a_burst_is_no_trouble() -> None:
    assert not any(_sentences(0.0, 1.2, 60, first=2_000))


@pytest.mark.parametrize(("made", "sent"), [(2.0, 1.2), (5.0, 1.2), (20.0, 12.0)])
def test_segments_that_get_full_faster_than_they_leave(made: float, sent: float) -> None:
    found = _sentences(made, sent, 40)
    assert not any(found[:30])
    assert found[-1].startswith("segments get full faster than they are uploaded: ")
    told = [bool(one) for one in found]
    assert told == sorted(told), "it is said once"


def test_nothing_is_stored_for_long() -> None:
    assert _sentences(0.0, 0.01, 30, first=270)[-1].startswith(
        "nothing was stored for 30 minutes, while 270.0 MB of full segments wait"
    )


@pytest.mark.parametrize(
    ("seconds", "rate"), [(-1e-15, None), (1e-15, None), (1e-3, 700_000), (1e6, 7e-4)]
)
def test_the_rate_after_one_part(seconds: float, rate: float | None) -> None:
    line = Line()
    backlog = Backlog(line)
    line._busy_seconds = seconds
    backlog.look(0, 0, 0, 700)
    assert backlog.rate == (rate if rate is None else pytest.approx(rate))


async def test_the_state_and_the_log_say_it_and_when_it_is_over(
    tmp_path: Path,
    store: FakeStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(tier, "Line", partial(Line, PART))
    async with tiered(tmp_path, store) as server:
        mine, line = tier_of(server), lines.Line(PART / 7, PART, 300)
        with lines.on_line(store, line):
            publishers = Publishers(server)
            await passes(60)
            await publishers.publish(1)
            line.stalled_until = trio.current_time() + 3_000
            await passes(550)
            assert (await mine.status()).state is TierState.OK
            await passes(200)
            status = await mine.status()
            assert status.state is TierState.BEHIND
            assert "nothing was stored for 1" in status.sentence
            assert mine.ownership.may_write
            await passes(3_000)
            assert await publishers.are_stored(store)
            assert (await mine.status()).state is TierState.OK
            size = await publishers.publish(4)
            await passes(600)
            status = await mine.status()
            assert status.upload_rate == pytest.approx(line.rate, rel=0.3)
            assert status.upload_seconds == pytest.approx(
                status.bytes_waiting / (status.upload_rate or 1)
            )
            assert 0 < status.bytes_waiting <= size + LARGE_SEGMENT
    told = [one.getMessage() for one in caplog.records if "tier: " in one.getMessage()]
    assert [one.split(" ")[1] for one in told] == ["nothing", "uploads"]
