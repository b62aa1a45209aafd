"""What clients see of a standby: who leads, and refusals upon which they look for it again."""

from pathlib import Path

import pytest
import trio

from segments.store.heartbeat import NodeAddress
from streamd.operations.errors import Refused
from streamd.operations.names import as_sent
from streamd.wire.stream import ResponseCode, commands as c
from tests.broker.nodes.support import STORED, Nodes, RunningNode, cluster, until
from tests.broker.tier.support import A_FRAME, bodies
from tests.support.amqp import declare, open_peer
from tests.support.http import Http
from tests.support.server import FIRST


async def _two(nodes: Nodes) -> tuple[RunningNode, RunningNode]:
    a = nodes.start("a", advertised_host="a.example", advertised_port=1234)
    await until(lambda: a.is_leader)
    peer = await a.peer()
    await peer.create("s", **STORED)
    await peer.declare("s")
    await peer.store(bodies(0))
    b = nodes.start("b", advertised_host="b.example")
    await until(lambda: b.is_standby)
    await trio.sleep(5)
    return a, b


async def test_it_names_the_leader_of_each_stream(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        for node in await _two(nodes):
            answer = await (await node.peer()).ask(c.Metadata, ("s", "none"))
            (broker,) = answer.brokers
            assert broker[1:] == ("a.example", 1234)
            assert [one.leader for one in answer.streams] == [0, 0xFFFF]


async def test_it_refuses_with_a_code_upon_which_clients_look_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        _, b = await _two(nodes)
        peer = await b.peer()
        refused = ResponseCode.STREAM_NOT_AVAILABLE
        assert await peer.code(c.DeclarePublisher, 1, "", "s") == refused
        assert await peer.code(c.Create, "t", ()) == refused
        assert await peer.code(c.Delete, "s") == refused
        assert b.server is not None
        with pytest.raises(Refused) as told:
            await b.server.host.find(as_sent("s")).truncate(FIRST)
        expected = "node b stands by: node a at a.example:1234 leads; ask that one for changes"
        assert told.value.details == expected
        await peer.subscribe("s", FIRST)
        assert await peer.bodies(A_FRAME) == bodies(0)


async def test_it_says_so_when_nobody_is_known_to_lead(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        _, b = await _two(nodes)
        assert b.server is not None
        read_only = b.server.server.broker.read_only
        assert read_only is not None
        assert read_only.leader(is_tls=False) == NodeAddress("a.example", 1234)
        assert read_only.leader(is_tls=True) is None
        del nodes.store.objects["v1/~nodes/a"]
        await trio.sleep(2)
        nodes.nodes[0].view.is_away = True
        del nodes.store.objects["v1/~nodes/a"]
        await trio.sleep(3)
        assert "it is not known who leads at the moment" in str(read_only.refusal())
        answer = await (await b.peer()).ask(c.Metadata, ("s",))
        assert answer.brokers[0][1:] == ("b.example", 5552)


async def test_other_protocols_name_the_leader(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        _, b = await _two(nodes)
        assert b.server is not None
        told = "node b stands by: node a at a.example:1234 leads; ask that one for changes"
        http = Http(b.server)
        answer = await http.ask("PUT", "queues/%2F/t", {"arguments": {"x-queue-type": "stream"}})
        assert (answer.status_code, answer.json()["reason"]) == (503, told)
        overview = await http.get("overview")
        assert overview["cluster"]["role"] == "standby"
        assert overview["cluster"]["leader_address"] == "a.example:1234"
        amqp = await open_peer(b.server)
        assert told in await amqp.channel_fails(declare("t"), 406)
