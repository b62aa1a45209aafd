"""What clients of a standby see: the leader, and while nobody leads what a standby has itself."""

from contextlib import suppress

import trio

from streamd.operations.cluster import LeaderFacts
from streamd.server import STREAM
from streamd.wire.stream import ResponseCode, commands as c
from tests.broker.nodes.support import Nodes, RunningNode, two_with_s, until
from tests.broker.tier.support import A_FRAME, bodies
from tests.support.amqp import open_peer
from tests.support.server import FIRST, MemoryTransport, Peer


async def test_each_node_names_the_leader_of_each_stream(nodes: Nodes) -> None:
    for node in await two_with_s(nodes):
        answer = await (await node.peer()).ask(c.Metadata, ("s", "none"))
        (broker,) = answer.brokers
        assert broker[1:] == ("a.example", 1234)
        assert [one.leader for one in answer.streams] == [0, 0xFFFF]


async def test_whoever_comes_to_a_standby_is_served_by_the_leader(nodes: Nodes) -> None:
    a, b = await two_with_s(nodes)
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


async def test_amqp_goes_there_too(nodes: Nodes) -> None:
    a, b = await two_with_s(nodes)
    assert a.server is not None
    assert b.server is not None
    amqp = await open_peer(b.server)
    assert (await amqp.declare("t")).queue == "t"
    assert a.server.host.get_stream("t") is not None


async def test_who_comes_before_a_takeover_is_served_by_the_next_leader(nodes: Nodes) -> None:
    """A while after that: it waits, is served by the standby, and has to come again."""
    a, b = await two_with_s(nodes)
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


async def test_a_leader_that_closes_nothing_is_left(nodes: Nodes) -> None:
    """Its machine is gone, or it is paused: its connections end when another one leads."""
    a, b = await two_with_s(nodes)
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


async def test_while_nobody_leads_for_long_a_standby_shows_what_it_has(nodes: Nodes) -> None:
    """Also that what it serves itself ends when there is a leader again."""
    a, b = await two_with_s(nodes, takeover_seconds=1_000)
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


async def test_who_is_not_on_the_leaders_machine_is_not_taken_for_one(nodes: Nodes) -> None:
    _, b = await two_with_s(nodes)
    assert b.server is not None
    peer = b.server.connect(is_local=False)
    await peer.ended()


async def test_a_listener_that_the_leader_does_not_have(nodes: Nodes) -> None:
    _, b = await two_with_s(nodes)
    assert b.server is not None
    theirs, ours = trio.testing.memory_stream_pair()
    transport = MemoryTransport(ours)
    transport.is_tls = True
    b.server.start(b.server.server.serve, STREAM, transport)
    await Peer(theirs).ended()


async def test_those_who_wait_make_room_for_others(nodes: Nodes) -> None:
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
