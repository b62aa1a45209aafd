"""A standby takes over when the leader is gone, and only then; nothing confirmed is lost."""

import logging
from pathlib import Path

import pytest
import trio

from segments.store.object_names import CLUSTER, LOG_FOLDER, NODES_FOLDER
from segments.store.object_store import TierError
from streamd.server import StartError
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair
from tests.broker.nodes.support import (
    TAKEOVER,
    Nodes,
    RunningNode,
    cluster,
    publisher_at,
    two,
    until,
)
from tests.broker.tier.support import A_FRAME, bodies
from tests.support.server import FIRST, Peer
from tests.support.tiers import state_of


async def _read(node: RunningNode, count: int) -> list[bytes]:
    peer = await node.peer()
    await peer.subscribe("s", FIRST)
    return await peer.bodies(count)


async def test_a_standby_takes_over_from_a_leader_that_was_killed(nodes: Nodes) -> None:
    a, b = await two(nodes)
    peer = await publisher_at(a)
    await peer.store(bodies(0))
    await trio.sleep(200)
    assert nodes.leaders == ["a"]
    assert b.num_starts == 1
    await a.kill()
    seconds = await until(lambda: b.is_leader)
    assert TAKEOVER - 3 <= seconds <= TAKEOVER + 3
    assert await _read(b, A_FRAME) == bodies(0)
    a = nodes.start("a")
    await until(lambda: a.is_standby)
    assert nodes.leaders == ["b"]


async def test_the_first_node_begins_while_the_store_has_its_moods(nodes: Nodes) -> None:
    """It finds nothing there of its own, which would be a tier without its root."""

    def before(name: str, key: str) -> None:
        if (name, key) == ("create", CLUSTER) and trio.current_time() < 20:
            raise TierError("the store does not answer")

    a = nodes.start("a", confirm="store")
    a.view.before = before
    await until(lambda: a.is_leader)
    peer = await publisher_at(a)
    await peer.store(bodies(0))


async def test_a_leader_that_leaves_is_followed_at_once(nodes: Nodes) -> None:
    a, b = await two(nodes)
    await (await publisher_at(a)).store(bodies(0))
    await a.end()
    assert await until(lambda: b.is_leader) < TAKEOVER / 3
    assert await _read(b, A_FRAME) == bodies(0)


async def test_a_leader_that_leaves_hands_over_what_it_alone_has(nodes: Nodes) -> None:
    a, b = await two(nodes, tier_roll_seconds=3_600)
    peer = await a.peer()
    await peer.create("s")
    await peer.declare("s", reference="p")
    await peer.store(bodies(0))
    await a.end()
    await until(lambda: b.is_leader)
    assert await _read(b, A_FRAME) == bodies(0)
    before = nodes.store.count(name="put_file")
    await b.end()  # nobody is there to take over
    assert nodes.store.count(name="put_file") == before


async def test_a_leader_that_comes_back_in_time_leads_on(nodes: Nodes) -> None:
    a, b = await two(nodes)
    epoch = state_of(nodes.store).epoch
    await trio.sleep(20)
    await a.kill()
    await trio.sleep(3)
    a = nodes.start("a")
    await until(lambda: a.is_leader)
    await trio.sleep(60)
    assert nodes.leaders == ["a"]
    assert b.num_starts == 1
    assert state_of(nodes.store).epoch == epoch + 1


@pytest.mark.parametrize("is_killed", [True, False])
async def test_of_two_standbys_one_leads(nodes: Nodes, is_killed: bool) -> None:
    a, b = await two(nodes)
    c = nodes.start("c")
    await until(lambda: c.is_standby)
    await (await publisher_at(a)).store(bodies(0))
    await (a.kill() if is_killed else a.end())
    await until(lambda: b.is_leader or c.is_leader)
    await trio.sleep(60)
    assert {b.role, c.role} == {"leader", "standby"}
    assert await _read(b, A_FRAME) == await _read(c, A_FRAME) == bodies(0)


async def test_nobody_takes_over_while_the_store_is_away_for_all_nor_at_once_after(
    nodes: Nodes,
) -> None:
    a, b = await two(nodes)
    await trio.sleep(20)
    a.view.is_away = b.view.is_away = True
    await trio.sleep(120)
    b.view.is_away = False  # and the leader is another moment behind
    await trio.sleep(TAKEOVER - 0.5)
    assert b.num_starts == 1
    a.view.is_away = False
    await trio.sleep(120)
    assert nodes.leaders == ["a"]
    assert b.num_starts == 1


async def test_a_standby_that_does_not_reach_the_store_takes_nothing_over(nodes: Nodes) -> None:
    _, b = await two(nodes)
    await trio.sleep(20)
    b.view.is_away = True
    await trio.sleep(120)
    b.view.is_away = False
    await trio.sleep(60)
    assert nodes.leaders == ["a"]
    assert b.num_starts == 1


async def test_a_standby_whose_own_heartbeats_fail_takes_nothing_over(nodes: Nodes) -> None:
    a, b = await two(nodes)
    await trio.sleep(20)
    (b.folder / "alive").unlink(missing_ok=True)
    (b.folder / "alive").mkdir()  # its disk takes nothing
    await a.kill()
    await trio.sleep(60)
    assert b.is_standby
    (b.folder / "alive").rmdir()
    await until(lambda: b.is_leader)


async def test_a_leader_whose_disk_takes_nothing_is_taken_over(nodes: Nodes) -> None:
    a, b = await two(nodes)
    await trio.sleep(20)
    (a.folder / "alive").unlink(missing_ok=True)
    (a.folder / "alive").mkdir()
    await until(lambda: b.is_leader)
    (a.folder / "alive").rmdir()
    await until(lambda: a.is_standby)


async def test_a_leader_that_is_cut_off_from_the_store_stands_by_when_it_is_back(
    nodes: Nodes,
) -> None:
    a, b = await two(nodes)
    peer = await publisher_at(a)
    await peer.store(bodies(0))
    a.view.is_away = True
    await peer.publish(bodies(A_FRAME), first_id=A_FRAME + 1)
    await until(lambda: b.is_leader)
    publisher = await b.peer()
    await publisher.declare("s", reference="p")
    await publisher.store(bodies(1_000), first_id=A_FRAME + 1)
    await peer.silence()
    a.view.is_away = False
    await until(lambda: a.is_standby, 120)
    assert await _read(b, 2 * A_FRAME) == bodies(0) + bodies(1_000)
    assert await _read(a, 2 * A_FRAME) == bodies(0) + bodies(1_000)


@pytest.mark.parametrize("seconds", [1, 5, 12, 60])
async def test_a_leader_is_paused(nodes: Nodes, seconds: float) -> None:
    """Whatever it had under way, it confirms nothing once another one leads."""
    a, b = await two(nodes)
    peer = await publisher_at(a)
    await peer.store(bodies(0))
    await trio.sleep(20)
    a.pause()
    await peer.publish(bodies(A_FRAME), first_id=A_FRAME + 1)
    await trio.sleep(seconds)
    is_over = b.num_starts > 1
    assert is_over == (seconds > TAKEOVER)
    a.go_on()
    if is_over:
        await until(lambda: a.is_standby)
        publisher = await b.peer()
        await publisher.declare("s", reference="p")
        await publisher.store(bodies(1_000), first_id=A_FRAME + 1)
        assert await _read(a, 2 * A_FRAME) == bodies(0) + bodies(1_000)
    else:
        await peer.confirmed(A_FRAME)
        assert nodes.leaders == ["a"]


async def test_a_standby_is_paused(nodes: Nodes) -> None:
    _, b = await two(nodes)
    for seconds in (1, 5, 12, 60):
        b.pause()
        await trio.sleep(seconds)
        b.go_on()
        await trio.sleep(20)
        assert b.num_starts == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_after", [False, True])
async def test_a_leader_is_paused_at_each_of_its_requests(tmp_path: Path, is_after: bool) -> None:
    """Before the store has it, or when it is done and the leader has not heard of it."""
    number = 2 if is_after else 1
    while await _paused_at(tmp_path / str(number), number, is_after=is_after):
        number += _STEP
    assert number > 15


_STEP = 5  # so many requests are one test; with 1 it takes two minutes


async def _paused_at(folder: Path, number: int, *, is_after: bool) -> bool:
    """Pause a leader at one of its requests while somebody publishes; whether it came to that."""
    folder.mkdir()
    async with cluster(folder) as nodes:
        a, b = await two(nodes)
        count = confirmed = 0

        def met(_name: str, _key: str) -> None:
            nonlocal count
            count += 1
            if count == number:
                a.pause()

        setattr(a.view, "after" if is_after else "before", met)
        with trio.move_on_after(25):
            peer = await publisher_at(a)
            for first in range(0, 3 * A_FRAME, A_FRAME):
                await peer.store(bodies(first), first_id=first + 1)
                confirmed = first + A_FRAME
            await trio.sleep(6)
        if count < number:
            return False
        await until(lambda: b.is_leader)
        a.go_on()
        await until(lambda: a.is_standby)
        publisher = await _publisher_again(b)
        await publisher.store(bodies(confirmed), first_id=confirmed + 1)
        await trio.sleep(15)  # a new stream comes to those that read
        expected = [
            body for first in range(0, confirmed + A_FRAME, A_FRAME) for body in bodies(first)
        ]
        for node in (a, b):
            assert await _read(node, confirmed + A_FRAME) == expected
        return True


async def _publisher_again(node: RunningNode) -> Peer:
    peer = await node.peer()
    await peer.code(c.Create, "s", (Pair("stream-confirm", "store"),))  # it may be there
    await peer.declare("s", reference="p")
    return peer


async def test_a_name_that_is_in_use_is_refused(tmp_path: Path, nodes: Nodes) -> None:
    a, _ = await two(nodes)
    twin = RunningNode("a", tmp_path / "twin", nodes.store, {})
    twin.folder.mkdir()
    nodes._nursery.start_soon(twin.run)
    await twin.has_ended.wait()
    assert isinstance(twin.error, StartError)
    assert "the name of the node, a, is in use: another server at" in str(twin.error)
    assert a.num_starts == 1


async def test_the_name_of_one_that_was_killed_is_free_after_a_while(nodes: Nodes) -> None:
    """Its machine is gone, and so is its data folder."""
    a, b = await two(nodes)
    await trio.sleep(30)
    await a.kill()
    a = nodes.start("a", folder="new")
    await until(lambda: {a.role, b.role} == {"leader", "standby"})


async def test_a_leader_rests_while_it_is_alone(nodes: Nodes) -> None:
    a = nodes.start("a")
    await until(lambda: a.is_leader)
    await trio.sleep(300)
    assert await _beats_in_an_hour(nodes) <= 61
    b = nodes.start("b")
    await until(lambda: b.is_standby)
    await trio.sleep(120)
    assert await _beats_in_an_hour(nodes) >= 1_100
    await b.kill()
    await trio.sleep(300)
    assert await _beats_in_an_hour(nodes) <= 61


async def _beats_in_an_hour(nodes: Nodes) -> int:
    before = nodes.beat("a")
    await trio.sleep(3_600)
    after = nodes.beat("a")
    assert before is not None
    assert after is not None
    return after.counter - before.counter


async def test_a_leader_that_was_alone_takes_longer(nodes: Nodes) -> None:
    """It says so: nobody may take its rest for silence."""
    a = nodes.start("a")
    await until(lambda: a.is_leader)
    await trio.sleep(400)
    beat = nodes.beat("a")
    assert beat is not None
    assert beat.interval_ms == 60_000
    before = nodes.store.count(key=NODES_FOLDER)
    await trio.sleep(3_600)
    assert nodes.store.count(key=NODES_FOLDER) - before <= 125
    b = nodes.start("b")
    await until(lambda: b.is_standby)
    await trio.sleep(130)
    beat = nodes.beat("a")
    assert beat is not None
    assert beat.interval_ms == 3_000
    assert nodes.leaders == ["a"]


async def test_an_empty_store_is_never_begun_by_one_that_was_in_a_cluster(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await two(nodes)
    await b.end()
    await a.end()
    kept = dict(nodes.store.objects)
    nodes.store.objects.clear()
    for name in ("a", "b"):
        nodes.start(name)
    await trio.sleep(60)
    assert not nodes.leaders
    assert not nodes.store.objects
    told = [r.getMessage() for r in caplog.records if "waits for its cluster" in r.message]
    assert len(told) == 2
    nodes.store.objects.update(kept)
    await until(lambda: len(nodes.leaders) == 1)


async def test_two_that_begin_at_once_in_an_empty_store(nodes: Nodes) -> None:
    a, b = nodes.start("a"), nodes.start("b")
    await until(lambda: bool(nodes.leaders))
    await until(lambda: a.is_standby or b.is_standby)
    assert len(nodes.leaders) == 1


async def test_a_leader_without_a_name_is_followed_and_never_taken_over(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    a = nodes.start("plain", node="")
    await until(lambda: a.server is not None)
    await trio.sleep(5)
    assert nodes.store.count(key=NODES_FOLDER) == 0
    b = nodes.start("b")
    await until(lambda: b.is_standby)
    await a.kill()
    await trio.sleep(200)
    assert b.is_standby
    assert "follows a server without --node" in caplog.text
    await b.end()
    b = nodes.start("b", folder="anew", restore=True)
    await until(lambda: b.is_leader)


async def test_without_a_name_there_is_not_one_request_more(nodes: Nodes) -> None:
    a = nodes.start("plain", node="")
    await until(lambda: a.server is not None)
    await trio.sleep(300)
    entries = [k for k in nodes.store.objects if k.startswith(LOG_FOLDER)]
    assert entries
    assert not any(b'"node":"' in nodes.store.objects[key].content for key in entries)
    assert nodes.store.count(key=NODES_FOLDER) == 0


async def test_it_is_said_what_a_standby_does(nodes: Nodes) -> None:
    _, b = await two(nodes)
    beat = nodes.beat("b")
    assert beat is not None
    assert (beat.role, beat.epoch) == ("standby", 0)
    leader = nodes.beat("a")
    assert leader is not None
    assert leader.epoch == state_of(nodes.store).epoch
    assert str(leader.stream_address) == "a.example:5552"
    await b.end()
    beat = nodes.beat("b")
    assert beat is not None
    assert beat.role == "left"
