"""What was deleted, and what there is now, all nodes know when it is answered."""

from typing import Any

import trio
import trio.testing

from streamd.net import passing
from streamd.net.transport import Transport
from streamd.operations.cluster import MoveShard
from streamd.operations.names import Name
from streamd.operations.publishing import PublishMessage
from streamd.operations.virtual_hosts import AddVirtualHost, DeleteVirtualHost
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.broker.nodes.spread import (
    HOST,
    NAMES,
    SPREAD,
    Three,
    manage,
    one_of,
    publisher_of,
    spread,
    stored_at,
)
from tests.broker.nodes.support import RunningNode
from tests.broker.tier.support import A_FRAME, bodies
from tests.support.server import OK, MemoryTransport, Peer


async def _told(publisher: Peer) -> set[type[Any]]:
    """What a publisher hears of a frame."""
    found = set[type[Any]]()
    await publisher.publish(bodies(0), first_id=A_FRAME + 1)
    with trio.move_on_after(5):
        try:
            while True:
                found.add(type(await publisher.next()))
        except trio.EndOfChannel:
            pass
    return found


def _follower(node: RunningNode) -> Any:
    assert node.server is not None
    return node.server.server.broker.tier


async def test_a_shard_has_just_moved(three: Three) -> None:
    """Heartbeats do not say so yet."""
    leaders = await spread(three["a"], *NAMES)
    stream = one_of(leaders, "b")
    peer = await three["a"].peer()
    await trio.sleep(5)
    moved = await manage(await three["c"].peer(), MoveShard(shard="b", node="c"))
    assert moved.code == OK
    publisher = await publisher_of(three["c"], stream)
    await publisher.store(bodies(0))
    assert await peer.code(c.Delete, stream) == OK
    assert c.PublishConfirm not in await _told(publisher)


async def test_a_virtual_host_is_deleted_and_made_again(three: Three) -> None:
    admin = await three["a"].peer()
    assert (await manage(admin, AddVirtualHost(name=Name("other")))).code == OK
    assert three["a"].server is not None and three["b"].server is not None  # noqa: PT018
    peer = await three["a"].server.peer(virtual_host="other")
    for name in NAMES:
        await peer.create(name, **SPREAD)
    told = await peer.ask(c.Metadata, NAMES)
    hosts = {number: host for number, host, _ in told.brokers}
    stream = next(one.stream for one in told.streams if hosts[one.leader] == "b.example")
    publisher = await three["b"].server.peer(virtual_host="other")
    await publisher.declare(stream, reference="p")
    await publisher.store(bodies(0))
    assert (await manage(admin, DeleteVirtualHost(name=Name("other")))).code == OK
    assert (await manage(admin, AddVirtualHost(name=Name("other")))).code == OK
    assert c.PublishConfirm not in await _told(publisher)


async def test_two_delete_a_stream_and_one_of_them_creates_it_again(three: Three) -> None:
    """It is gone for the second one before other nodes have heard of that."""
    stream, publisher = await stored_at(three, "b")
    one, two = await three["a"].peer(), await three["a"].peer()
    follower = _follower(three["b"])
    read = follower._read_log

    async def slow() -> None:
        await trio.sleep(1)
        await read()

    follower._read_log = slow
    await one.send(c.Delete(77, stream))
    assert await two.code(c.Delete, stream) in (OK, ResponseCode.STREAM_DOES_NOT_EXIST)
    assert await two.code(c.Create, stream, ()) == OK
    assert c.PublishConfirm not in await _told(publisher)


async def test_one_request_for_the_log_fails(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    stream = one_of(leaders, "b")
    publisher, peer = await publisher_of(three["b"], stream), await three["a"].peer()
    await publisher.store(bodies(0))
    follower = _follower(three["b"])
    read, num_failed = follower._read_log, 0

    async def fail_once() -> None:
        nonlocal num_failed
        num_failed += 1
        if num_failed == 1:
            raise OSError("once")
        await read()

    follower._read_log = fail_once
    assert await peer.code(c.Delete, stream) == OK
    assert num_failed > 1
    assert c.PublishConfirm not in await _told(publisher)


async def test_what_was_declared_just_now_any_node_publishes_to(three: Three) -> None:
    """Also by an operation, which names its stream inside."""
    peer = await three["a"].peer()
    others = {name: await three[name].peer() for name in "bc"}
    for number, name in enumerate("bcbc"):
        stream = Name(f"t{number}")
        await peer.create(stream, **SPREAD)
        request = PublishMessage(vhost=HOST, stream=stream, message=bodies(0, 1)[0])
        assert (await manage(others[name], request)).code == OK


async def test_the_end_of_a_stream_is_its_leaders_where_its_log_is_open(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    stream = one_of(leaders, "b")
    publisher, peer = await publisher_of(three["b"], stream), await three["c"].peer()
    await publisher.store(bodies(0))
    await trio.sleep(10)
    assert (await peer.ask(c.DescribeFilters, stream)).code == OK
    assert three["c"].server is not None
    assert three["c"].server.server.broker.virtual_hosts[HOST].find(Name(stream)).is_open
    for number in range(1, 4):
        await publisher.store(bodies(number * A_FRAME), first_id=1 + number * A_FRAME)
        (told,) = (await peer.ask(c.DescribeStreams, (stream,))).streams
        assert dict(told.statistics)["messages"] == (number + 1) * A_FRAME


async def test_offsets_of_a_stream_that_is_gone_hold_nobody_up(three: Three) -> None:
    """The log cannot be read meanwhile."""
    leaders = await spread(three["a"], *NAMES)
    publisher = await publisher_of(three["c"], one_of(leaders, "c"))
    await publisher.store(bodies(0))
    _follower(three["c"])._read_log = trio.sleep_forever
    await trio.sleep(5)
    for number in range(100):
        await publisher.send(c.StoreOffset("g", "gone", number))
    with trio.fail_after(3):
        await publisher.store(bodies(A_FRAME), first_id=A_FRAME + 1)


async def test_a_node_that_does_not_answer_holds_up_one_deletion(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    peer = await three["a"].peer()

    async def nowhere(_host: str, _port: int) -> Transport:
        await trio.sleep_forever()
        raise AssertionError

    passing.connect = nowhere
    with trio.fail_after(5):
        for stream in leaders:
            assert await peer.code(c.Delete, stream) == OK


async def test_a_stream_that_is_declared_again_asks_nobody(three: Three) -> None:
    """As clients of AMQP do with each start."""
    peer = await three["a"].peer()
    await peer.create("s", **SPREAD)
    connect, num_links = passing.connect, 0

    async def count(host: str, port: int) -> Transport:
        nonlocal num_links
        num_links += 1
        return await connect(host, port)

    passing.connect = count
    pairs = tuple(Pair(key.replace("_", "-"), value) for key, value in SPREAD.items())
    assert await peer.code(c.Create, "s", pairs) == ResponseCode.STREAM_EXISTS
    assert num_links == 0
    await peer.create("t", **SPREAD)
    assert num_links == 2


async def test_a_node_that_talks_nonsense_is_one_that_does_not_answer(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    peer = await three["a"].peer()

    async def nonsense(_host: str, _port: int) -> Transport:
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(b"\0\0\0\x08\xff\xff\xff\xffnono")
        return MemoryTransport(ours)

    passing.connect = nonsense
    with trio.fail_after(5):
        assert await peer.code(c.Delete, next(iter(leaders))) == OK
