"""Streams that are spread over three nodes, and who asks for them."""

import base64
from typing import Any, TypeAlias

import trio

from streamd.hop.messages import encode
from streamd.operations.names import Name
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.broker.nodes.support import Nodes, RunningNode, until
from tests.broker.tier.support import bodies
from tests.support.server import FIRST, OK, Peer

Three: TypeAlias = dict[str, RunningNode]  # a, b and c
HOST = Name("/")
SPREAD = {"queue_leader_locator": "balanced"}
NAMES = ("s0", "s1", "s2", "s3", "s4", "s5")


async def start_three(nodes: Nodes, **settings: object) -> Three:
    """Three nodes, each of which leads its shard; `a` leads the cluster."""
    found = {}
    for name in ("a", "b", "c"):
        found[name] = node = nodes.start(name, confirm="store", **settings)
        await until(lambda: node.is_leader if name == "a" else node.is_standby)  # noqa: B023
    await trio.sleep(15)
    return found


async def leaders_of(node: RunningNode, *names: str) -> dict[str, str]:
    """The node that leads each stream, as clients are told."""
    peer = await node.peer()
    answer = await peer.ask(c.Metadata, names)
    brokers = {number: host.removesuffix(".example") for number, host, _ in answer.brokers}
    await peer.vanish()
    return {one.stream: brokers.get(one.leader, "") for one in answer.streams}


async def spread(node: RunningNode, *names: str) -> dict[str, str]:
    """Streams that are spread over the nodes, and who leads them."""
    peer = await node.peer()
    for name in names:
        await peer.create(name, **SPREAD)
    return await leaders_of(node, *names)


async def publisher_of(node: RunningNode, stream: str) -> Peer:
    """A publisher of a stream at the node that leads it, as soon as it may be one."""
    while trio.current_time() < 1_000:
        peer = await node.peer()
        code = await peer.code(c.DeclarePublisher, 1, "p", stream)
        if code == OK:
            return peer
        assert code == ResponseCode.STREAM_NOT_AVAILABLE
        await peer.vanish()
        await trio.sleep(0.5)
    raise trio.TooSlowError


async def read_from(node: RunningNode, stream: str, count: int) -> list[bytes]:
    """What a node has of a stream, as soon as it can be read there."""
    while trio.current_time() < 1_000:
        peer = await node.peer()
        code = await peer.code(c.Subscribe, 1, stream, FIRST, 100, ())
        if code == OK:
            break
        assert code == ResponseCode.STREAM_NOT_AVAILABLE
        await peer.vanish()
        await trio.sleep(0.5)
    found = await peer.bodies(count)
    await peer.vanish()
    return found


async def led_by(node: RunningNode, stream: str, *names: str) -> str:
    """The one of some nodes that leads a stream, as soon as a node says so."""
    with trio.fail_after(90):
        while (leader := (await leaders_of(node, stream))[stream]) not in names:
            await trio.sleep(0.5)
    return leader


def one_of(leaders: dict[str, str], node: str) -> str:
    """A stream that a node leads."""
    return next(name for name, leader in leaders.items() if leader == node)


async def stored_at(three: Three, node: str) -> tuple[str, Peer]:
    """A stream that a node leads, with a frame of messages, and their publisher."""
    stream = one_of(await spread(three["a"], *NAMES), node)
    publisher = await publisher_of(three[node], stream)
    await publisher.store(bodies(0))
    return stream, publisher


async def manage(peer: Peer, request: Any) -> Any:
    text = base64.b64encode(encode(request)).decode()
    return await peer.ask(c.Manage, request.NAME, (Pair("fields", text),))
