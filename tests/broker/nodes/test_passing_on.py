"""Sequences of events under which passing on to the leader breaks what was promised."""

import pytest
import trio

from streamd.net import passing
from streamd.net.transport import Address, Transport
from streamd.wire.stream import ResponseCode, commands as c
from tests.broker.nodes.support import STORED, Nodes, two_with_s, until
from tests.broker.nodes.test_clients import _served_by
from tests.broker.tier.support import bodies
from tests.support.server import STREAM, MemoryTransport, Peer

LOGIN_SECONDS = 10  # that clients wait, ours (clients/connection.py) and RabbitMQ's


async def test_a_client_that_waits_ten_seconds_is_served_while_nobody_leads(nodes: Nodes) -> None:
    """As `streamd status` and `streamd cluster status`, which are asked just then."""
    a, b = await two_with_s(nodes, takeover_seconds=1_000)
    await a.kill()
    del nodes.store.objects["v1/~nodes/a"]
    await trio.sleep(10)
    with trio.fail_after(LOGIN_SECONDS):
        await b.peer()


async def test_a_leader_that_only_this_node_does_not_reach_is_named(nodes: Nodes) -> None:
    async def unreachable(host: str, port: int) -> Transport:
        await trio.sleep(5)
        raise TimeoutError(f"{host}:{port} does not answer")

    _, b = await two_with_s(nodes)
    passing.connect = unreachable
    peer = await b.peer()
    refused = ResponseCode.STREAM_NOT_AVAILABLE
    assert await peer.code(c.DeclarePublisher, 1, "", "s") == refused
    answer = await peer.ask(c.Metadata, ("s",))
    assert answer.brokers[0][1] == "a.example"


async def test_an_address_that_leads_back_is_found_out(nodes: Nodes) -> None:
    """`advertised_host` is that of a load balancer, or localhost, which it is unless it is set."""
    _, b = await two_with_s(nodes, max_connections=50)
    num_times = 0

    async def back(_host: str, _port: int) -> Transport:
        nonlocal num_times
        num_times += 1
        await trio.sleep(0.001)
        assert b.server is not None
        came_from = Address("b.example", 40_000 + num_times)
        made = MemoryTransport(b.server.dial(STREAM, peer=came_from))
        made.local = came_from
        return made

    passing.connect = back
    assert b.server is not None
    b.server.connect()
    await trio.sleep(3)
    assert num_times < 5


async def test_silent_peers_do_not_lock_others_out_of_a_standby(nodes: Nodes) -> None:
    a = nodes.start("a")
    await until(lambda: a.is_leader)
    b = nodes.start("b", max_connections=3)
    await until(lambda: b.is_standby)
    await trio.sleep(5)
    assert b.server is not None
    for _ in range(3):
        b.server.connect()
        await trio.sleep(0.1)
    with trio.fail_after(1):
        await b.peer()


async def test_those_that_wait_for_the_log_count_too(nodes: Nodes) -> None:
    """Each of them may be two descriptors soon."""
    a = nodes.start("a", confirm="store")
    await until(lambda: a.is_leader)
    b = nodes.start("b", confirm="store", max_connections=3)
    await until(lambda: b.is_standby)
    await trio.sleep(5)
    assert b.server is not None
    b.server.server.broker.read_on = trio.sleep_forever  # type: ignore[assignment]
    num_ended = 0
    for one in [b.server.connect() for _ in range(20)]:
        with trio.move_on_after(1):
            await one.ended()
            num_ended += 1
    assert num_ended == 17


async def test_one_that_has_waited_in_vain_is_not_kept_from_the_next_leader(nodes: Nodes) -> None:
    """A leader comes while the last attempt to reach the one before is under way."""
    a, b = await two_with_s(nodes, takeover_seconds=10)
    await b.end()
    b = nodes.start("b", takeover_seconds=100)
    await until(lambda: b.is_standby)
    c_ = nodes.start("c", takeover_seconds=10)
    await until(lambda: c_.is_standby)
    await trio.sleep(5)
    connect = passing.connect

    async def lost(host: str, port: int) -> Transport:
        if host == "a.example":
            await trio.sleep(5)
            raise TimeoutError
        return await connect(host, port)

    passing.connect = lost
    came: list[Peer] = []

    async def come() -> None:
        assert b.server is not None
        peer = b.server.connect()
        try:
            await peer.log_in()
        except (trio.EndOfChannel, trio.BrokenResourceError):
            return
        came.append(peer)

    async with trio.open_nursery() as nursery:
        for n in range(90):
            nursery.start_soon(come)
            await trio.sleep(0.25)
            if n == 39:
                nursery.start_soon(a.kill)
        await until(lambda: c_.is_leader)
        await until(lambda: _served_by(b).name == "c")
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    here = 0
    for peer in came:
        with trio.move_on_after(1):
            try:
                answer = await peer.ask(c.Metadata, ("s",))
            except (trio.EndOfChannel, trio.BrokenResourceError):
                continue
            here += answer.brokers[0][1] == "b.example"
    assert here == 0


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("seconds", [0, 60], ids=["new", "old"])
async def test_a_node_that_is_stopped_gives_the_answers_that_are_due(
    nodes: Nodes, name: str, seconds: float
) -> None:
    a, b = await two_with_s(nodes)
    node = a if name == "a" else b
    peer = await node.peer()
    await peer.declare("s")
    await trio.sleep(seconds)
    a.pause()
    await peer.publish(bodies(1))
    await trio.sleep(0.1)
    assert node.server is not None
    node.server.start(node.server.server.drain)
    await trio.sleep(0.1)
    a.go_on()
    with trio.fail_after(20):
        assert isinstance(await peer.next(), c.PublishConfirm)


async def test_a_standby_of_a_server_without_a_name_serves_what_it_has(nodes: Nodes) -> None:
    a = nodes.start("a", node="")
    peer = await a.peer()
    await peer.create("s", **STORED)
    await trio.sleep(10)
    b = nodes.start("b")
    await until(lambda: b.is_standby)
    await trio.sleep(5)
    with trio.fail_after(LOGIN_SECONDS):
        await b.peer()
