"""Suspicions about shards; each of these fails where one is right."""

import base64
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio

from clients import finding
from segments.store.object_store import TierError
from streamd.net import passing
from streamd.net.transport import Transport
from streamd.operations.cluster import MoveShard
from streamd.operations.errors import Busy
from streamd.operations.names import Name
from streamd.operations.publishing import PublishMessage
from streamd.operations.searching import FindMessages, FoundPage
from streamd.operations.streams import SetArguments
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.broker.nodes.spread import (
    HOST,
    NAMES,
    SPREAD,
    Three,
    led_by,
    manage,
    one_of,
    publisher_of,
    read_from,
    spread,
    start_three,
    stored_at,
)
from tests.broker.nodes.support import Nodes, until
from tests.broker.tier.support import A_FRAME, bodies
from tests.support.amqp import open_peer
from tests.support.client import Network
from tests.support.server import FIRST, OK


def _away(*keys: str) -> Callable[[str, str], None]:
    """A node does not read some objects of the store."""

    def before(name: str, key: str) -> None:
        if name in ("get", "get_changed", "get_range", "folders", "listing") and any(
            one in key for one in keys
        ):
            raise TierError("the store does not answer")

    return before


async def test_confirmed_right_after_it_was_created_again(three: Three) -> None:
    """The node that leads the shard has not read of it yet, and takes it for the earlier life."""
    stream, _ = await stored_at(three, "b")
    await trio.sleep(5)
    peer, other = await three["a"].peer(), await three["b"].peer()
    assert await peer.code(c.Delete, stream) == OK
    await peer.create(stream, **SPREAD)
    answer = await peer.ask(c.Metadata, (stream,))
    assert [host for _, host, _ in answer.brokers] == ["b.example"]
    await other.declare(stream)
    await other.store(bodies(1_000))  # it is confirmed
    await trio.sleep(10)
    assert await read_from(three["b"], stream, A_FRAME) == bodies(1_000)


async def test_confirmed_by_amqp_right_after_it_was_created_again(three: Three) -> None:
    stream, _ = await stored_at(three, "b")
    await trio.sleep(5)
    peer = await three["a"].peer()
    assert await peer.code(c.Delete, stream) == OK
    await peer.create(stream, **SPREAD)
    assert three["a"].server is not None
    amqp = await open_peer(three["a"].server)
    await amqp.store(stream, b"1")
    await trio.sleep(10)
    assert len(await read_from(three["b"], stream, 1)) == 1


async def test_confirmed_by_an_operation_right_after_it_was_created_again(three: Three) -> None:
    """The leader of the cluster has the node publish that leads the shard."""
    stream, _ = await stored_at(three, "b")
    peer = await three["a"].peer()
    for number in range(4):
        await trio.sleep(5 + number / 2)  # between two looks at the log, at any time
        assert await peer.code(c.Delete, stream) == OK
        await peer.create(stream, **SPREAD)
        message = bodies(number, 1)[0]
        request = PublishMessage(vhost=HOST, stream=Name(stream), message=message)
        assert (await manage(peer, request)).code == OK
        await trio.sleep(10)
        assert await read_from(three["b"], stream, 1) == [message]


async def test_nothing_is_published_while_the_log_cannot_be_read(three: Three) -> None:
    """A stream may be another one meanwhile; what it was can be read all the same."""
    stream, _ = await stored_at(three, "b")
    await trio.sleep(5)

    def before(_name: str, key: str) -> None:
        if key.startswith("v1/~log"):
            raise TierError("the store does not answer")

    three["b"].view.before = before
    peer, other = await three["a"].peer(), await three["b"].peer()
    request = PublishMessage(vhost=HOST, stream=Name(stream), message=bodies(0, 1)[0])
    assert (await manage(peer, request)).code == ResponseCode.STREAM_NOT_AVAILABLE
    code = await other.code(c.DeclarePublisher, 1, "", stream)
    assert code == ResponseCode.STREAM_NOT_AVAILABLE
    await other.subscribe(stream, FIRST)
    assert await other.bodies(A_FRAME) == bodies(0)


async def test_what_was_confirmed_is_found_at_each_node(three: Three) -> None:
    """Those that only follow the node that leads have it a moment later."""
    stream, publisher = await stored_at(three, "b")
    peers = [await node.peer() for node in three.values()]
    for number in range(1, 5):
        await publisher.store(bodies(number * A_FRAME), first_id=number * A_FRAME + 1)
        request = FindMessages(vhost=HOST, stream=Name(stream), words=(), seconds=1)
        for peer in peers:
            page = await peer.ask(c.Find, stream, ())
            count = len(page.messages)
            (row,) = (await manage(peer, request)).rows
            answer = base64.b64decode("".join(value for _, value in row))
            found = msgspec.msgpack.decode(answer, type=FoundPage)
            assert count == len(found.messages) == (number + 1) * A_FRAME
        await trio.sleep(number / 3)


async def test_a_stream_is_searched_while_the_log_cannot_be_read(three: Three) -> None:
    stream, _ = await stored_at(three, "b")

    def before(_name: str, _key: str) -> None:
        raise TierError("the store does not answer")

    for node in three.values():
        node.view.before = before
    request = FindMessages(vhost=HOST, stream=Name(stream), words=(), seconds=1)
    for node in three.values():
        peer = await node.peer()
        assert len((await peer.ask(c.Find, stream, ())).messages) == A_FRAME
        assert (await manage(peer, request)).code == OK


async def test_searches_of_a_client_wait_while_a_node_is_not_reached(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all that it asks for would be kept here."""
    stream, _ = await stored_at(three, "b")
    peer = await three["a"].peer()

    async def silent(*_: object) -> Transport:
        await trio.sleep(5)
        raise ConnectionRefusedError

    monkeypatch.setattr(passing, "connect", silent)
    living = trio.lowlevel.current_statistics().tasks_living
    for number in range(100):
        await peer.send(c.Find(number, stream, ()))
    await trio.sleep(1)
    assert trio.lowlevel.current_statistics().tasks_living - living < 50
    codes = {(await peer.expect(c.FindResponse)).code for _ in range(100)}
    assert codes == {ResponseCode.STREAM_NOT_AVAILABLE}


async def test_a_node_that_does_not_lead_any_more_searches_for_no_other(three: Three) -> None:
    """The one that asks it has not heard of that; messages were confirmed since."""
    stream, publisher = await stored_at(three, "b")
    await publisher.vanish()
    await trio.sleep(5)
    asker, before = await three["a"].peer(), _away("~nodes")
    moved = await manage(await three["c"].peer(), MoveShard(shard="b", node="c"))
    assert moved.code == OK
    three["a"].view.before = before
    assert three["b"].server is not None
    shards = three["b"].server.server.broker.shards
    assert shards is not None
    shards.look_soon()
    await until(lambda: shards.facts("c") == shards.node("b"))
    await asker.ask(c.Find, stream, ())
    three["b"].view.before = _away("~wal", "manifest")
    publisher = await publisher_of(three["c"], stream)
    await publisher.store(bodies(A_FRAME), first_id=1 + A_FRAME)
    request = FindMessages(vhost=HOST, stream=Name(stream), words=(), seconds=1)
    assert (await asker.ask(c.Find, stream, ())).code == ResponseCode.STREAM_NOT_AVAILABLE
    assert (await manage(asker, request)).code == ResponseCode.STREAM_NOT_AVAILABLE


async def test_what_another_node_finds_is_as_if_it_was_found_here(three: Three) -> None:
    """One search of a user at a time, and messages that are as large as they get."""
    stream, _ = await stored_at(three, "b")
    node, leader = three["a"].server, three["b"].server
    assert node is not None
    assert leader is not None
    words = (("order", "newest"), ("limit", "1"))
    request = FindMessages(vhost=HOST, stream=Name(stream), words=words, seconds=5)
    find = await node.server.engine.elsewhere(request)
    assert find is not None
    async with leader.server.broker.searches.alone(Name("guest")):
        with pytest.raises(Busy):
            await find(Name("guest"))
    await (await open_peer(leader)).store(stream, bytes(16 << 20))
    page = await find(Name("guest"))
    assert len(page.messages[0].raw) > 16 << 20


async def test_nothing_waits_of_a_stream_that_was_deleted_and_created_again(three: Three) -> None:
    """The log of the cluster has the deletion when another one of that name is there."""
    stream, publisher = await stored_at(three, "a")
    is_away = True

    def before(name: str, key: str) -> None:
        if is_away and name == "create" and ("~wal" in key or "~log" in key):
            raise TierError("the store does not answer")

    three["a"].view.before = before
    for number in range(1, 9):  # in slots that are under way, and behind these
        await publisher.publish(bodies(number * A_FRAME), first_id=number * A_FRAME + 1)
        await trio.sleep(1)
    peer = await three["a"].peer()
    pairs = tuple(Pair(k.replace("_", "-"), v) for k, v in SPREAD.items())
    for request in ((c.Delete, stream), (c.Create, stream, pairs)):
        assert await peer.code(*request) == ResponseCode.STREAM_NOT_AVAILABLE
    assert three["a"].server is not None
    shards = three["a"].server.server.broker.shards
    assert shards is not None
    tier = shards.resources("a").tier
    assert tier is not None
    confirms = tier.confirms
    assert confirms.bytes_behind > 0
    is_away = False
    await trio.sleep(60)
    assert confirms.bytes_behind == 0
    assert await read_from(three["b"], stream, 0) == []


async def test_a_search_goes_on_when_another_node_leads(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a while nobody does."""
    monkeypatch.setattr(finding, "PAGE", 5)
    stream, _ = await stored_at(three, "b")
    await trio.sleep(5)
    assert three["a"].server is not None
    async with Network(three["a"].server, monkeypatch).client() as client:
        search, found = client.find(stream), []
        async for message in search:
            found.append(message.body)
            if len(found) == 7:
                await three["b"].kill()
        assert search.is_all
    assert found == bodies(0)


async def test_a_search_at_another_node_ends_with_who_asks(three: Three) -> None:
    """The next one of its user would be refused."""
    stream, _ = await stored_at(three, "b")
    node, leader = three["a"].server, three["b"].server
    assert node is not None
    assert leader is not None
    searches = leader.server.broker.searches

    async def long(*_: object) -> None:
        await trio.sleep_forever()

    searches.place.page = long  # type: ignore[method-assign, assignment]
    request = FindMessages(vhost=HOST, stream=Name(stream), words=(), seconds=10)
    find = await node.server.engine.elsewhere(request)
    assert find is not None
    for _ in range(3):
        with trio.move_on_after(1):
            await find(Name("guest"))
        await trio.sleep(0.1)
        assert searches.num_open == 0


async def test_a_client_that_goes_away_while_the_log_is_read(three: Three) -> None:
    """What it waited for is done all the same: others hear that their stream is another one."""
    stream, publisher = await stored_at(three, "b")
    await trio.sleep(5)
    peer = await three["a"].peer()
    waiting = [await three["b"].peer() for _ in range(3)]
    assert three["b"].server is not None
    host = three["b"].server.server.broker.virtual_hosts[HOST]
    follow, is_followed = host.follow, trio.Event()
    num_stopped = 0

    async def slow(*arguments: Any) -> None:
        nonlocal num_stopped
        is_followed.set()
        num_stopped += 1
        await trio.sleep(10)
        await follow(*arguments)
        num_stopped -= 1

    host.follow = slow  # type: ignore[method-assign]
    assert await peer.code(c.Delete, stream) == OK
    await peer.create(stream, **SPREAD)
    for one in waiting:
        await one.send(c.DeclarePublisher(1, 1, "", stream))
    await is_followed.wait()
    for one in waiting:
        await one.vanish()
    with trio.fail_after(20):
        assert (await publisher.expect(c.MetadataUpdate)).stream == stream
    assert num_stopped == 0


async def test_all_who_wait_hear_what_came_of_it(three: Three) -> None:
    """Another reading begins while they are being woken."""
    assert three["b"].server is not None
    read_on, num_times = three["b"].server.server.broker.read_on, 0

    async def wait(pause: int) -> None:
        nonlocal num_times
        for _ in range(20):
            assert await read_on()
            num_times += 1
            for _ in range(pause):
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for pause in range(20):
            nursery.start_soon(wait, pause)
    assert num_times == 400


async def test_confirmed_before_the_log_has_the_stream(three: Three) -> None:
    """The log of metadata cannot be written for a moment; the shard can."""
    await spread(three["a"], "s0", "s1", "s2")  # the next one is placed at a

    def before(name: str, key: str) -> None:
        if name in ("create", "put", "replace") and key.startswith("v1/~log"):
            raise TierError("the store does not answer")

    three["a"].view.before = before
    creator = await three["a"].peer()
    pairs = tuple(Pair(k.replace("_", "-"), v) for k, v in SPREAD.items())
    await creator.send(c.Create(1, "t", pairs))
    await trio.sleep(1)
    peer = await three["a"].peer()
    with trio.move_on_after(60) as waiting:
        assert await peer.code(c.DeclarePublisher, 1, "p", "t") != OK
    assert not waiting.cancelled_caught


async def test_what_is_not_deleted_is_there(three: Three) -> None:
    """A deletion is in no log, as its node is killed before; the messages are gone all the same."""
    stream, _ = await stored_at(three, "a")
    await trio.sleep(10)

    def before(name: str, key: str) -> None:
        if name in ("create", "put", "replace") and key.startswith("v1/~log"):
            raise TierError("the store does not answer")

    three["a"].view.before = before
    peer = await three["a"].peer()
    await peer.send(c.Delete(1, stream))
    await trio.sleep(3)
    await three["a"].kill()
    await until(lambda: three["b"].is_leader or three["c"].is_leader)
    await trio.sleep(30)
    node = three["b"] if three["b"].is_leader else three["c"]
    other = await node.peer()
    code = (await other.ask(c.Metadata, (stream,))).streams[0].code
    if code == ResponseCode.STREAM_DOES_NOT_EXIST:
        return
    leader = await led_by(node, stream, "b", "c")
    with trio.fail_after(60):
        assert await read_from(three[leader], stream, A_FRAME) == bodies(0)


async def test_confirm_local_set_later(three: Three) -> None:
    """What a node has on its disk of a shard counts for nothing: it cannot be."""
    leaders = await spread(three["a"], *NAMES)
    stream = one_of(leaders, "b")
    peer = await three["a"].peer()
    request = SetArguments(vhost="/", stream=stream, arguments={"stream-confirm": "local"})
    assert (await manage(peer, request)).code == ResponseCode.PRECONDITION_FAILED


async def test_a_publisher_id_that_is_used_at_another_node(three: Three) -> None:
    """As on one server: it is refused, and the first publisher goes on."""
    leaders = await spread(three["a"], *NAMES)
    mine, others = one_of(leaders, "a"), one_of(leaders, "b")
    peer = await three["a"].peer()
    await peer.declare(others)
    code = await peer.code(c.DeclarePublisher, 1, "", mine)
    wanted = mine if code == OK else others
    await peer.store(bodies(0))
    peer = await three["a"].peer()
    await peer.subscribe(wanted)
    with trio.fail_after(20):
        assert await peer.bodies(A_FRAME) == bodies(0)


async def test_a_refused_declaration_does_not_end_what_has_the_id(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    stream = one_of(leaders, "b")
    peer = await three["a"].peer()
    await peer.declare(stream)
    assert await peer.code(c.DeclarePublisher, 1, "", stream) != OK
    await peer.store(bodies(0))


async def test_a_large_message_of_amqp(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    assert three["a"].server is not None
    for node in ("a", "b"):
        amqp = await open_peer(three["a"].server)
        try:
            with trio.fail_after(60):
                await amqp.store(one_of(leaders, node), b"x" * (3 << 20))
        except BaseException as error:
            raise AssertionError(f"at {node}") from error


async def test_moving_to_a_node_that_leads_no_streams(nodes: Nodes) -> None:
    """The way to it leads back to the leader of the cluster, which asks it again."""
    three = await start_three(nodes)
    leaders = await spread(three["a"], "s0", "s1")
    assert sorted(leaders.values()) == ["a", "b"]
    num, inner = 0, nodes.connect

    async def connect(host: str, port: int) -> Any:
        nonlocal num
        num += 1
        if num > 200:
            raise ConnectionRefusedError("too many")
        return await inner(host, port)

    passing.connect = connect
    peer = await three["a"].peer()
    answer = await manage(peer, MoveShard(shard="b", node="c"))
    assert (num < 20, answer.code, answer.reason) == (True, OK, "")


async def test_a_shard_is_begun_while_the_log_does_not_answer(three: Three) -> None:
    """The other shards of a node go on."""
    _, publisher = await stored_at(three, "b")

    def before(_name: str, key: str) -> None:
        if key.startswith(("v1/~log", "v1/cluster")):
            raise TierError("the store does not answer")

    await three["c"].kill()
    await trio.sleep(9)
    three["b"].view.before = before
    peer = await three["b"].peer()
    with trio.move_on_after(8):
        await manage(peer, MoveShard(shard="c", node="b"))
    assert three["b"].server is not None
    assert three["b"].server.server.broker.supervisor.num_faults == 0
    await publisher.store(bodies(A_FRAME), first_id=A_FRAME + 1)


async def test_moving_to_a_node_that_there_is_not(three: Three) -> None:
    await spread(three["a"], *NAMES)
    answer = await manage(await three["a"].peer(), MoveShard(shard="b", node="d"))
    assert answer.code == ResponseCode.STREAM_DOES_NOT_EXIST
    assert answer.reason.startswith("there is no node 'd', or it is gone")


async def test_who_publishes_goes_on_within_a_second_of_a_move(three: Three) -> None:
    """Heartbeats say who leads every few seconds; who is asked for the stream looks at them now."""
    leaders = await spread(three["a"], *NAMES)
    stream = one_of(leaders, "b")
    publisher = await publisher_of(three["c"], stream)
    for number, node in enumerate("acb", 1):
        answer = await manage(await three["a"].peer(), MoveShard(shard="b", node=node))
        assert answer.code == OK
        moved_at = trio.current_time()
        await publisher.publish(bodies(0), first_id=1)
        while not isinstance(await publisher.next(), c.MetadataUpdate):
            pass
        publisher = await publisher_of(three["c"], stream)
        await publisher.store(bodies(0), first_id=1 + number * A_FRAME)
        assert trio.current_time() - moved_at < 1
        told = await publisher.ask(c.Metadata, (stream,))
        assert [host for _, host, _ in told.brokers] == [f"{node}.example"]


async def test_an_offset_that_is_stored_right_after_its_stream_was_created(three: Three) -> None:
    """The node that leads the shard has not read of the stream yet."""
    await spread(three["a"], *NAMES)
    for number, node in enumerate("aabbcc"):
        peer = await three[node].peer()
        await peer.create(f"t{number}", **SPREAD)
        await peer.send(c.StoreOffset("group", f"t{number}", 123))
        answer = await peer.ask(c.QueryOffset, "group", f"t{number}")
        assert (answer.code, answer.offset) == (OK, 123), (number, node)


async def test_nothing_is_confirmed_once_a_deletion_is_answered(three: Three) -> None:
    """The node that leads the shard hears of it before."""
    leaders = await spread(three["a"], *NAMES)
    for node in "bc":
        stream = one_of(leaders, node)
        publisher, peer = await publisher_of(three[node], stream), await three["a"].peer()
        await publisher.store(bodies(0))
        assert await peer.code(c.Delete, stream) == OK
        await publisher.publish(bodies(0), first_id=A_FRAME + 1)
        told = [await publisher.next(), await publisher.next()]
        assert [type(one) for one in told] == [c.MetadataUpdate, c.PublishError]
        await publisher.vanish()


async def test_streams_are_spread_from_the_first_moment(nodes: Nodes) -> None:
    """The leader has been alone, and looks once a minute whether others have come."""
    a = nodes.start("a", confirm="store")
    await until(lambda: a.is_leader)
    await trio.sleep(200)
    peer = await a.peer()
    await peer.create("t0", **SPREAD)
    for name in "bc":
        node = nodes.start(name, confirm="store")
        await until(lambda: node.is_standby)  # noqa: B023
        await trio.sleep(0.5)
    leaders = await spread(a, *NAMES)
    assert sorted(leaders.values()) == ["a", "a", "b", "b", "c", "c"]


async def test_who_waits_for_a_node_that_stands_still_is_answered(three: Three) -> None:
    """Also one that has nothing there yet."""
    leaders = await spread(three["a"], *NAMES)
    stream = one_of(leaders, "b")
    peer = await three["a"].peer()
    three["b"].pause()
    began_at = trio.current_time()
    code = await peer.code(c.DeclarePublisher, 1, "", stream)
    assert code == ResponseCode.STREAM_NOT_AVAILABLE
    assert trio.current_time() - began_at < 15
    three["b"].go_on()


async def test_what_a_stream_has_is_as_it_is_now_or_is_not_told(three: Three) -> None:
    """Consumers read to the end that they are told: what was confirmed is before it."""
    leaders = await spread(three["a"], *NAMES)
    creator = await three["a"].peer()
    await creator.create("here")  # as declared by default: the leader of the cluster leads it
    for stream, node in (one_of(leaders, "b"), "b"), ("here", "a"):
        publisher = await publisher_of(three[node], stream)
        peers = [await three[name].peer() for name in "abc"]
        for number in range(3):
            await publisher.store(bodies(number * A_FRAME), first_id=1 + number * A_FRAME)
            for peer in peers:
                (told,) = (await peer.ask(c.DescribeStreams, (stream,))).streams
                assert dict(told.statistics)["messages"] == (number + 1) * A_FRAME
    await three["b"].kill()
    for name in "ac":
        peer = await three[name].peer()
        (told,) = (await peer.ask(c.DescribeStreams, (one_of(leaders, "b"),))).streams
        assert (told.code, told.statistics) == (ResponseCode.STREAM_NOT_AVAILABLE, ())
