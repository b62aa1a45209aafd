"""When a node counts as gone: by what its watcher has read, and when."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from segments.store.cluster import Cluster
from segments.store.heartbeat import FoundHeartbeat, NodeRole
from streamd.broker.nodes.watch import LeaderWatch, Watch, has_left
from tests.support.node import BEAT

SECONDS = 10.0
CLAIM = Cluster(revision=7, epoch=4, writer="w", start="s", tier="t", node="a")


def found(counter: int = 1, interval_ms: int = 3_000) -> FoundHeartbeat:
    return FoundHeartbeat(replace(BEAT, counter=counter, interval_ms=interval_ms), str(counter))


def watched(until: float, pause: float = 2.0, *, beats: bool = True) -> Watch:
    """One that has read the same from 0 on, and renews its own heartbeat."""
    watch, at = Watch(SECONDS), 0.0
    while at <= until:
        watch.read(at, at, found())
        if beats:
            watch.beat(at)
        at += pause
    return watch


def test_it_is_gone_after_the_time() -> None:
    assert not watched(8).is_gone
    assert watched(10).is_gone


def test_three_of_its_own_intervals_have_to_pass() -> None:
    watch = Watch(SECONDS)
    for at in range(0, 182, 2):
        assert not watch.is_gone
        watch.read(at, at, found(interval_ms=60_000))
        watch.beat(at)
    assert watch.is_gone


def test_four_reads_are_needed() -> None:
    watch = watched(10, pause=5)
    assert not watch.is_gone
    watch.read(12, 12, found())
    assert watch.is_gone


def test_a_new_heartbeat_begins_it_anew() -> None:
    watch = watched(8)
    watch.read(9, 9, found(2))
    for at in range(11, 19, 2):
        watch.beat(at)
        watch.read(at, at, found(2))
        assert not watch.is_gone
    watch.read(19, 19, found(2))
    assert watch.is_gone


def test_one_that_has_none_is_watched_too() -> None:
    watch = Watch(SECONDS)
    for at in range(0, 12, 2):
        watch.read(at, at, None)
        watch.beat(at)
    assert watch.is_gone


def test_ones_own_heartbeats_have_to_go_well() -> None:
    assert not watched(20, beats=False).is_gone
    watch = watched(10)
    watch.failed()
    assert not watch.is_gone


@pytest.mark.parametrize("num_beats", [0, 1])
def test_heartbeats_of_before_do_not_count(num_beats: int) -> None:
    watch = Watch(SECONDS)
    watch.beat(-2)
    watch.beat(-1)
    for at in range(0, 12, 2):
        watch.read(at, at, found())
        if at // 2 < num_beats:
            watch.beat(at)
    assert not watch.is_gone


def test_after_a_failed_read_all_of_the_time_has_to_pass() -> None:
    """The store was away, for all perhaps: nobody takes over in the first ten seconds after it."""
    watch = watched(8)
    watch.failed()
    for at in range(100, 110, 2):
        watch.read(at, at, found())
        watch.beat(at)
        assert not watch.is_gone
    watch.read(110, 110, found())
    assert watch.is_gone


def test_a_late_answer_counts_from_when_it_came() -> None:
    """It was so at some moment between asking and the answer."""
    watch = Watch(SECONDS)
    watch.read(0, 4, found())
    for at in range(5, 14):
        watch.read(at, at + 0.5, found())
        watch.beat(at)
        assert not watch.is_gone
    watch.read(14, 17, found())
    assert watch.is_gone


def test_a_late_answer_counts_to_when_it_was_asked() -> None:
    watch = watched(8)
    watch.read(9, 13, found())
    assert not watch.is_gone


def test_a_watcher_that_stood_still_begins_anew() -> None:
    """Its machine may have, and the leader with it."""
    watch = watched(8)
    watch.read(40, 40, found())
    watch.beat(40)
    assert not watch.is_gone
    watch = watched(8)
    watch.read(9, 40, found())
    watch.beat(40)
    assert not watch.is_gone
    watch.read(42, 42, found())
    assert not watch.is_gone


def test_any_order_of_heartbeats_and_reads() -> None:
    """It is gone only where no heartbeat has landed for so long."""
    chance = Random(3)
    for _ in range(300):
        watch, at, counter, landed = Watch(SECONDS), 0.0, 0, 0.0
        for _ in range(80):
            at += chance.choice((0.1, 1, 2, 3, 6))
            match chance.randrange(6):
                case 0:
                    counter, landed = counter + 1, at
                case 1 if chance.random() < 0.3:
                    watch.failed()
                case 2:
                    watch.beat(at)
                case _:
                    asked, seen = at, (counter, landed)
                    at += chance.choice((0, 0, 0.5, 3, 9))
                    if chance.random() < 0.2:  # it lands before the answer, and is seen or not
                        counter, landed = counter + 1, at
                        seen = chance.choice((seen, (counter, landed)))
                    watch.read(asked, at, found(seen[0]))
                    if watch.is_gone:
                        assert seen == (counter, landed) or landed >= asked
                        assert asked - seen[1] >= SECONDS


def of_leader(found: FoundHeartbeat | None, claim: Cluster = CLAIM) -> FoundHeartbeat | None:
    return LeaderWatch(SECONDS, claim).of_leader(found, 0.0)


def of(**said: Any) -> FoundHeartbeat:
    return FoundHeartbeat(replace(BEAT, **said), "1")


def test_who_has_left() -> None:
    left = of(role=NodeRole.LEFT)
    assert has_left(of_leader(left))
    assert not has_left(of_leader(found()))
    assert not has_left(None)
    assert not has_left(of_leader(left, replace(CLAIM, epoch=5))), "it has claimed it again since"
    assert not has_left(of_leader(left, replace(CLAIM, writer="v"))), "it is another's"


def test_what_does_not_come_from_the_leader_is_silence() -> None:
    assert of_leader(found()) == found()
    assert of_leader(found(), replace(CLAIM, writer="v")) is None
    assert of_leader(found(), replace(CLAIM, epoch=5)) is None
    assert of_leader(of(role=NodeRole.STANDBY)) is None


def test_one_start_counts_for_some_time() -> None:
    """Whoever ends at each start, and is begun anew each time, never leads."""
    watch, first = LeaderWatch(SECONDS, CLAIM), of(role=NodeRole.STARTING, epoch=0, start="1")
    again = of(role=NodeRole.STARTING, epoch=0, start="2")
    assert watch.of_leader(first, 100) == first
    assert watch.of_leader(again, 105) is None
    assert watch.of_leader(first, 690) == first
    assert watch.of_leader(first, 710) is None


def test_of_what_cannot_be_read_the_changes_count() -> None:
    """How often it is renewed is not known: as rarely as may be."""
    watch = LeaderWatch(SECONDS, CLAIM)
    for at in range(0, 400, 2):
        unread = FoundHeartbeat(None, "1" if at < 60 else "2")
        assert watch.of_leader(unread, at) == unread
        watch.read(at, at, unread)
        watch.beat(at)
        assert watch.is_gone == (at >= 240)
