"""What an earlier leader has that the cluster lacks is kept, and nothing else is."""

from pathlib import Path

import pytest
import trio

from streamd.broker.nodes.leftovers import Kept, lacking, together
from tests.broker.nodes.support import STORED, Nodes, RunningNode, half_stored, two, until
from tests.broker.tier.support import A_FRAME, bodies, publish
from tests.support.server import FIRST


async def _back(nodes: Nodes, a: RunningNode, b: RunningNode) -> RunningNode:
    """The leader is killed, and comes back when the other one has taken over."""
    await a.kill()
    await until(lambda: b.is_leader)
    a = nodes.start(a.name)
    await until(lambda: a.is_standby)
    await until(lambda: not list((a.folder / "earlier").glob("*")))
    return a


def _orphans(node: RunningNode) -> list[Path]:
    return sorted((node.folder / "orphans").glob("*"))


def _lacking(folder: Path) -> tuple[int, int, int]:
    return lacking(folder, [])[:3]


async def test_messages_that_were_not_uploaded_are_kept(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await two(nodes, tier_roll_seconds=3_600)
    stored, end = await half_stored(nodes, a)
    a = await _back(nodes, a, b)
    (kept,) = _orphans(a)
    assert _lacking(kept) == (end - stored, stored, end - 1)
    count = f"{end - stored:,} messages, offsets {stored:,} to {end - 1:,}"
    (told,) = [text for text in caplog.messages if "the cluster lacks" in text]
    assert told.startswith(f"stream s in /, which this node has led: the cluster lacks {count}")
    assert told.endswith(f"; it is now {kept}")


async def test_nothing_is_kept_of_what_the_cluster_has(nodes: Nodes) -> None:
    """Of a stream that is confirmed by the store, all that was confirmed is in slots."""
    a, b = await two(nodes, tier_roll_seconds=3_600)
    peer = await a.peer()
    await peer.create("s", **STORED)
    await peer.declare("s")
    await publish(peer, 0, 3)
    a = await _back(nodes, a, b)
    assert not _orphans(a)
    reader = await a.peer()
    await reader.subscribe("s", FIRST)
    assert await reader.bodies(3 * A_FRAME) == bodies(0, 3 * A_FRAME)


async def test_what_was_never_confirmed_is_dropped(nodes: Nodes) -> None:
    a, b = await two(nodes)
    peer = await a.peer()
    await peer.create("s", **STORED)
    await peer.declare("s")
    await publish(peer, 0, 1)
    a.view.is_away = True
    await peer.publish(bodies(A_FRAME), first_id=A_FRAME + 1)
    await trio.sleep(1)
    a = await _back(nodes, a, b)
    assert not _orphans(a)


async def test_a_stream_that_the_cluster_does_not_know_is_kept(nodes: Nodes) -> None:
    """It was declared while the store was away."""
    a, b = await two(nodes)
    peer = await a.peer()
    a.view.is_away = True
    await peer.create("new")
    await peer.declare("new")
    await peer.store(bodies(0))
    a = await _back(nodes, a, b)
    (kept,) = _orphans(a)
    assert kept.name.startswith("new-")
    assert _lacking(kept) == (A_FRAME, 0, A_FRAME - 1)


async def test_it_goes_on_with_the_next_start(nodes: Nodes) -> None:
    """It ends before all is sorted out, or leads again before."""
    a, b = await two(nodes, tier_roll_seconds=3_600)
    peer = await a.peer()
    await peer.create("s")
    await peer.declare("s")
    await publish(peer, 0, 2)
    await trio.sleep(5)
    await a.kill()
    await until(lambda: b.is_leader)
    a = nodes.start("a")
    await until(lambda: a.is_standby)
    await a.kill()
    assert list((a.folder / "earlier").glob("*"))
    a = nodes.start("a")
    await until(lambda: bool(_orphans(a)))
    await _back(nodes, b, a)
    assert len(_orphans(a)) == 1, "what is in it stays when it leads"
    assert _lacking(_orphans(a)[0]) == (2 * A_FRAME, 0, 2 * A_FRAME - 1)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([(0, 5)], [(0, 5)]),
        ([(5, 7), (0, 5)], [(0, 7)]),
        ([(0, 9), (2, 4), (10, 11)], [(0, 9), (10, 11)]),
    ],
)
def test_ranges_together(ranges: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    assert together(ranges) == expected


def test_what_is_kept() -> None:
    kept = Kept("x", [(0, 5), (7, 9)])
    assert kept.has(0, 5)
    assert kept.has(2, 3)
    assert kept.has(7, 9)
    assert not kept.has(4, 6)
    assert not kept.has(5, 7)
    assert not kept.has(8, 10)
    assert not Kept("", []).has(0, 1)
