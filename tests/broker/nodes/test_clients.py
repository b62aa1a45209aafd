"""What clients of a standby see: the leader, and while nobody leads what a standby has itself."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from streamd.operations.cluster import LeaderFacts
from streamd.server import STREAM
from streamd.wire.stream import ResponseCode, commands as c
from tests.broker.nodes.support import STORED, Nodes, RunningNode, cluster, until
from tests.broker.tier.support import A_FRAME, bodies
from tests.support.amqp import open_peer
from tests.support.server import FIRST, MemoryTransport, Peer


async def _two(nodes: Nodes, **settings: Any) -> tuple[RunningNode, RunningNode]:
    a = nodes.start("a", advertised_host="a.example", advertised_port=1234, **settings)
    await until(lambda: a.is_leader)
    peer = await a.peer()
    await peer.create("s", **STORED)
    await peer.declare("s")
    await peer.store(bodies(0))
    b = nodes.start("b", advertised_host="b.example", **settings)
    await until(lambda: b.is_standby)
    await trio.sleep(5)
    return a, b


async def test_each_node_names_the_leader_of_each_stream(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        for node in await _two(nodes):
            answer = await (await node.peer()).ask(c.Metadata, ("s", "none"))
            (broker,) = answer.brokers
            assert broker[1:] == ("a.example", 1234)
            assert [one.leader for one in answer.streams] == [0, 0xFFFF]


async def test_whoever_comes_to_a_standby_is_served_by_the_leader(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        a, b = await _two(nodes)
        peer = await b.peer()
        await peer.create("t")
        assert a.server is not None
        assert a.server.host.get_stream("t") is not None
        await peer.declare("t")
        await peer.store(bodies(0))
        await peer.subscribe("t", FIRST)
        assert await peer.bodies(A_FRAME) == bodies(0)
        assert await peer.code(c.Delete, "t") == ResponseCode.OK
        assert a.server.host.get_stream("t") is None


async def test_amqp_goes_there_too(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        a, b = await _two(nodes)
        assert a.server is not None
        assert b.server is not None
        amqp = await open_peer(b.server)
        assert (await amqp.declare("t")).queue == "t"
        assert a.server.host.get_stream("t") is not None


async def test_who_comes_before_a_takeover_is_served_by_the_next_leader(tmp_path: Path) -> None:
    """A while after that: it waits, is served by the standby, and has to come again."""
    async with cluster(tmp_path) as nodes:
        a, b = await _two(nodes)
        c_ = nodes.start("c")
        await until(lambda: c_.is_standby)
        await trio.sleep(5)
        await a.kill()
        led_by: list[str] = []

        async def come(node: RunningNode) -> None:
            while True:
                with suppress(trio.EndOfChannel, trio.BrokenResourceError):
                    peer = await node.peer()
                    answer = await peer.ask(c.Metadata, ("s",))
                    led_by.append(answer.brokers[0][1])
                    if led_by[-1] != "a.example":
                        await peer.subscribe("s", FIRST)
                        assert await peer.bodies(A_FRAME) == bodies(0)
                        return
                    await peer.ended()
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            for node in (b, c_):
                nursery.start_soon(come, node)
        (leader,) = [node for node in (b, c_) if node.is_leader]
        assert led_by[-2:] == [f"{leader.name}.example"] * 2


async def test_a_leader_that_closes_nothing_is_left(tmp_path: Path) -> None:
    """Its machine is gone, or it is paused: its connections end when another one leads."""
    async with cluster(tmp_path) as nodes:
        a, b = await _two(nodes)
        c_ = nodes.start("c")
        await until(lambda: c_.is_standby)
        await trio.sleep(5)
        peers = {node.name: await node.peer() for node in (b, c_)}
        a.view.is_away = True
        a.pause()
        await until(lambda: b.is_leader or c_.is_leader)
        for peer in peers.values():
            with trio.fail_after(5):
                await peer.ended()


async def test_while_nobody_leads_for_long_a_standby_shows_what_it_has(tmp_path: Path) -> None:
    """Also that what it serves itself ends when there is a leader again."""
    async with cluster(tmp_path) as nodes:
        a, b = await _two(nodes, takeover_seconds=1_000)
        a.pause()
        del nodes.store.objects["v1/~nodes/a"]
        await until(lambda: _served_by(b).name == "")
        peer = await b.peer()
        refused = ResponseCode.STREAM_NOT_AVAILABLE
        assert await peer.code(c.DeclarePublisher, 1, "", "s") == refused
        assert await peer.code(c.Create, "t", ()) == refused
        await peer.subscribe("s", FIRST)
        assert await peer.bodies(A_FRAME) == bodies(0)
        a.go_on()
        await until(lambda: _served_by(b).name == "a", 2_000)
        await peer.ended()


def _served_by(node: RunningNode) -> LeaderFacts:
    assert node.server is not None
    assert node.server.server.node is not None
    found = node.server.server.node.served_by()
    assert found is not None
    return found


async def test_who_is_not_on_the_leaders_machine_is_not_taken_for_one(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        _, b = await _two(nodes)
        assert b.server is not None
        peer = b.server.connect(is_local=False)
        await peer.ended()


async def test_a_listener_that_the_leader_does_not_have(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        _, b = await _two(nodes)
        assert b.server is not None
        theirs, ours = trio.testing.memory_stream_pair()
        transport = MemoryTransport(ours)
        transport.is_tls = True
        b.server.start(b.server.server.serve, STREAM, transport)
        await Peer(theirs).ended()


async def test_those_who_wait_make_room_for_others(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.start("a")
        await until(lambda: nodes.nodes[0].is_leader)
        b = nodes.start("b", max_connections=2)
        await until(lambda: b.is_standby)
        await nodes.nodes[0].kill()
        await trio.sleep(4)
        assert b.server is not None
        waiting = []
        for _ in range(3):
            waiting.append(b.server.connect())
            await trio.sleep(0.01)
        await waiting[0].ended()
        await waiting[1].silence(0.1)
