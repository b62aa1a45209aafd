"""A connection breaks at each step of what it has asked for: nothing of it is left.

Changes of the catalog, cancelled at each step, are in tests/broker/catalog/test_changes.py; this is
about what connections hold.
"""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
import trio

from streamd.broker.declared.standing_selectors import parse_standing
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair
from tests.broker.catalog.test_changes import state
from tests.support.server import FIRST, OK, Harness, Peer

GROUP = (Pair("single-active-consumer", "true"), Pair("name", "g"))
STANDING = "standing"

Action: TypeAlias = Callable[[Peer], Awaitable[object]]


def subscribe(*properties: Pair) -> Action:
    return lambda peer: peer.ask(c.Subscribe, 1, "s", FIRST, 1, properties)


async def take_over(peer: Peer) -> None:
    """A single active consumer is asked, answers, gets a chunk, and is asked to step down."""
    properties = (*GROUP[:1], Pair("name", "p"), Pair("super-stream", "super"))
    await peer.ask(c.Subscribe, 1, "super-1", FIRST, 1, properties)
    update = await peer.expect(c.ConsumerUpdate)
    await peer.send(c.ConsumerUpdateResponse(update.correlation_id, OK, FIRST))
    await peer.ask(c.Subscribe, 2, "super-1", FIRST, 1, properties)
    update = await peer.expect(c.ConsumerUpdate)
    assert not update.active
    await peer.send(c.ConsumerUpdateResponse(update.correlation_id, OK, FIRST))
    assert (await peer.expect(c.ConsumerUpdate)).active


async def store_offset(peer: Peer) -> None:
    await peer.send(c.StoreOffset("app", "s", 7))
    await peer.ask(c.QueryOffset, "app", "s")


async def publish(peer: Peer) -> None:
    await peer.declare("s", reference="r")
    await peer.store([b"x"] * 10)
    await peer.ask(c.DeletePublisher, 1)


ACTIONS: dict[str, Action] = {
    "subscribe": subscribe(),
    "subscribe with a filter": subscribe(Pair("filter.0", "a")),
    "subscribe as a single active consumer": subscribe(*GROUP),
    "subscribe with a standing selector": subscribe(
        Pair("selector-group", STANDING), Pair("selector", "a = 1")
    ),
    "unsubscribe": lambda peer: peer.ask(c.Unsubscribe, 1),
    "take over": take_over,
    "store an offset": store_offset,
    "declare a publisher and publish": publish,
    "create": lambda peer: peer.ask(c.Create, "new", ()),
    "delete": lambda peer: peer.ask(c.Delete, "s"),
    "create a super stream": lambda peer: peer.ask(
        c.CreateSuperStream, "new", ("new-0", "new-1"), ("0", "1"), ()
    ),
    "delete a super stream": lambda peer: peer.ask(c.DeleteSuperStream, "super"),
    "watch a subscription": lambda peer: peer.ask(c.DescribeSubscription, 1, 0),
}
HELD_BEFORE = {"unsubscribe", "watch a subscription"}


async def prepare(server: Harness) -> None:
    host = server.host
    if "s" not in host.names():
        await host.create("s", [])
    if not host.find("s").standing.rows():
        await host.settings.put_selector("s", parse_standing(STANDING, "union", "a = 1"))
    if "super" not in {row.name for row in host.super_streams.rows()}:
        await host.create_super_stream("super", [("0", "super-0"), ("1", "super-1")], [])
    for name in [name for name in host.names() if name.startswith("new")]:
        if name in host.names():
            await remove(server, name)


async def remove(server: Harness, name: str) -> None:
    host = server.host
    if "new" in {row.name for row in host.super_streams.rows()}:
        await host.delete_super_stream("new", lambda: None)
    else:
        await host.delete(name, lambda: None)


def held(server: Harness) -> dict[str, Any]:
    """What connections hold of the server."""
    host = server.host
    streams = [host.find(name) for name in host.names()]
    return {
        "connections": len(server.server.connections),
        "running": len(server.server._running),
        "observers": len(host.observers),
        "groups": host.groups._groups,
        "waiters": sum(len(stream.waiters) for stream in streams),
        "held": [stream.name for stream in streams if stream.life._num_holds],
        "used selectors": [
            stream.name for stream in streams if stream.standing.num_users(STANDING)
        ],
    }


@pytest.mark.parametrize("name", ACTIONS)
async def test_at_each_step(server: Harness, name: str) -> None:
    await prepare(server)
    nothing = held(server)
    before = state(server)
    for number in itertools.count():
        peer = await server.peer()
        if name in HELD_BEFORE:
            await peer.subscribe("s")
        is_through = False

        async def act(peer: Peer = peer) -> None:
            nonlocal is_through
            try:
                await ACTIONS[name](peer)
            except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
                return
            is_through = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(act)
            for _ in range(number):
                await trio.lowlevel.cancel_shielded_checkpoint()
            was_through = is_through
            await peer.vanish()
        await trio.sleep(10)  # a flush may be waited for
        assert held(server) == nothing
        found = state(server)
        if was_through:
            break
        await prepare(server)
    assert number > 2
    assert found == before or name.startswith(("create", "delete"))
