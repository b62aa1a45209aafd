"""Streams that are placed at nodes: who leads them, and what becomes of them."""

import trio

from segments.message import MessageView
from streamd.wire.amqp091 import methods as m
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.broker.nodes.spread import (
    NAMES,
    SPREAD,
    Three,
    leaders_of,
    led_by,
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
from tests.support.server import FIRST, OK


async def test_streams_are_spread_over_the_nodes(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    assert sorted(leaders.values()) == ["a", "a", "b", "b", "c", "c"]
    for name, leader in leaders.items():
        publisher = await publisher_of(three[leader], name)
        await publisher.store(bodies(0))
        for node in three.values():
            assert await leaders_of(node, *NAMES) == leaders
            assert await read_from(node, name, A_FRAME) == bodies(0)


async def test_any_node_serves_any_stream(three: Three) -> None:
    """Also publishers with a name, and offsets that are stored; the one that leads it is asked."""
    leaders = await spread(three["a"], *NAMES)
    for number, node in enumerate(three.values()):
        for stream in leaders:
            publisher = await node.peer()
            await publisher.declare(stream, reference=node.name)
            await publisher.store(bodies(number * A_FRAME))
            await publisher.publish(bodies(number * A_FRAME))  # again
            assert await publisher.confirmed(A_FRAME) == list(range(1, A_FRAME + 1))
            await publisher.send(c.StoreOffset("group", stream, 5 * (number + 1)))
            await publisher.store(bodies(0, 1), first_id=1)
            await publisher.vanish()
    for node in three.values():
        for stream in leaders:
            consumer = await node.peer()
            assert (await consumer.ask(c.QueryOffset, "group", stream)).offset == 15
            found = await consumer.ask(c.QueryPublisherSequence, "b", stream)
            assert found.sequence == A_FRAME
            await consumer.subscribe(stream, FIRST)
            assert await consumer.bodies(3 * A_FRAME) == bodies(0, 3 * A_FRAME)
            assert await consumer.code(c.Unsubscribe, 1) == OK


async def test_of_a_group_one_consumer_is_active_whatever_node_it_is_at(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    stream = one_of(leaders, "b")
    words = {"single-active-consumer": "true", "name": "group"}
    pairs = tuple(Pair(*item) for item in words.items())
    peers = [await three[name].peer() for name in "abc"]
    for peer in peers:
        assert await peer.code(c.Subscribe, 1, stream, FIRST, 10, pairs) == OK
    assert (await peers[0].expect(c.ConsumerUpdate)).active
    await peers[1].silence(1)
    await peers[2].silence(1)
    await peers[0].vanish()
    with trio.fail_after(10):
        assert (await peers[1].expect(c.ConsumerUpdate)).active
    await peers[2].silence(3)


async def test_whoever_has_come_here_hears_that_another_node_leads(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    stream = one_of(leaders, "b")
    publisher = await three["c"].peer()
    await publisher.declare(stream, reference="p")
    await publisher.store(bodies(0))
    three["b"].pause()
    await publisher.publish(bodies(A_FRAME), first_id=A_FRAME + 1)
    assert (await publisher.expect(c.MetadataUpdate)).stream == stream
    leader = await led_by(three["a"], stream, "a", "c")
    publisher = await publisher_of(three[leader], stream)
    sequence = (await publisher.ask(c.QueryPublisherSequence, "p", stream)).sequence
    assert sequence == A_FRAME
    await publisher.store(bodies(A_FRAME), first_id=A_FRAME + 1)
    assert await read_from(three["a"], stream, 2 * A_FRAME) == bodies(0, 2 * A_FRAME)


async def test_where_a_node_is_gone_another_one_leads_its_streams(nodes: Nodes) -> None:
    three = await start_three(nodes)
    leaders = await spread(three["a"], *NAMES)
    stream = one_of(leaders, "b")
    publisher = await publisher_of(three["b"], stream)
    await publisher.store(bodies(0))
    await three["b"].kill()
    del three["b"]
    began_at = trio.current_time()
    leader = await led_by(three["a"], stream, *three)
    assert trio.current_time() - began_at < 16
    publisher = await publisher_of(three[leader], stream)
    await publisher.store(bodies(A_FRAME), first_id=A_FRAME + 1)
    assert await read_from(three[leader], stream, 2 * A_FRAME) == bodies(0, 2 * A_FRAME)
    three["b"] = nodes.start("b", confirm="store")
    await until(lambda: three["b"].is_standby)
    await led_by(three["a"], stream, "b")
    publisher = await publisher_of(three["b"], stream)
    await publisher.store(bodies(2 * A_FRAME), first_id=2 * A_FRAME + 1)
    for node in three.values():
        assert await read_from(node, stream, 3 * A_FRAME) == bodies(0, 3 * A_FRAME)


async def test_other_nodes_go_on_while_the_leader_of_the_cluster_is_gone(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    publishers = {n: await publisher_of(three[n], one_of(leaders, n)) for n in ("b", "c")}
    for publisher in publishers.values():
        await publisher.store(bodies(0))
    await three["a"].kill()
    await trio.sleep(2)
    for publisher in publishers.values():
        await publisher.store(bodies(A_FRAME), first_id=A_FRAME + 1)
    await until(lambda: three["b"].is_leader or three["c"].is_leader)
    await trio.sleep(30)
    next_leader = "b" if three["b"].is_leader else "c"
    found = await leaders_of(three[next_leader], *NAMES)
    assert set(found.values()) == {"b", "c"}
    for name, leader in found.items():
        number = 2 * A_FRAME if name in (one_of(leaders, "b"), one_of(leaders, "c")) else 0
        publisher = await publisher_of(three[leader], name)
        await publisher.store(bodies(number), first_id=number + 1)
        assert await read_from(three[leader], name, number + A_FRAME) == bodies(0, number + A_FRAME)


async def test_one_that_wakes_up_confirms_nothing(three: Three) -> None:
    stream, publisher = await stored_at(three, "b")
    three["b"].pause()
    leader = await led_by(three["a"], stream, "a", "c")
    other = await publisher_of(three[leader], stream)
    await other.store(bodies(A_FRAME), first_id=A_FRAME + 1)
    await publisher.publish(bodies(2 * A_FRAME), first_id=2 * A_FRAME + 1)
    three["b"].go_on()
    with trio.move_on_after(60):
        while True:
            found = await publisher.next()
            assert not isinstance(found, c.PublishConfirm)
    assert await read_from(three[leader], stream, 2 * A_FRAME) == bodies(0, 2 * A_FRAME)


async def test_what_was_deleted_does_not_come_back(three: Three) -> None:
    """Its node is gone before it hears of that, and one of its name is declared again."""
    stream, publisher = await stored_at(three, "b")
    peer = await three["a"].peer()
    three["b"].pause()
    assert await peer.code(c.Delete, stream) == OK
    await trio.sleep(3)
    await peer.create(stream, **SPREAD)
    assert (await leaders_of(three["a"], stream))[stream] == "b"
    three["b"].view.is_away = True
    three["b"].go_on()
    await three["b"].kill()
    leader = await led_by(three["a"], stream, "a", "c")
    publisher = await publisher_of(three[leader], stream)
    await publisher.store(bodies(1_000))
    assert await read_from(three[leader], stream, A_FRAME) == bodies(1_000)


async def test_any_node_declares_and_deletes(three: Three) -> None:
    await spread(three["a"], *NAMES)
    await trio.sleep(5)
    peer = await three["b"].peer()
    await peer.create("more", **SPREAD)
    assert await peer.code(c.Create, "more", ()) == ResponseCode.PRECONDITION_FAILED
    leader = (await leaders_of(three["b"], "more"))["more"]
    publisher = await publisher_of(three[leader], "more")
    await publisher.store(bodies(0))
    for node in three.values():
        assert await read_from(node, "more", A_FRAME) == bodies(0)
    assert await peer.code(c.Delete, "more") == OK
    for node in three.values():
        other = await node.peer()
        found = await other.code(c.DeclarePublisher, 2, "", "more")
        assert found == ResponseCode.STREAM_DOES_NOT_EXIST


async def test_a_super_stream_is_spread(nodes: Nodes) -> None:
    three = await start_three(nodes, leader_locator="balanced")
    peer = await three["a"].peer()
    partitions = tuple(f"all-{number}" for number in range(6))
    keys = tuple(map(str, range(6)))
    assert await peer.code(c.CreateSuperStream, "all", partitions, keys, ()) == OK
    for node in three.values():
        found = await leaders_of(node, *partitions)
        assert sorted(found.values()) == ["a", "a", "b", "b", "c", "c"]
    assert await peer.code(c.DeleteSuperStream, "all") == OK


async def test_offsets_are_with_who_leads_the_stream(three: Three) -> None:
    stream, publisher = await stored_at(three, "b")
    await publisher.send(c.StoreOffset("group", stream, 7))
    await publisher.store(bodies(A_FRAME), first_id=A_FRAME + 1)
    assert (await publisher.ask(c.QueryOffset, "group", stream)).offset == 7
    await three["b"].end()
    leader = await led_by(three["a"], stream, "a", "c")
    publisher = await publisher_of(three[leader], stream)
    assert (await publisher.ask(c.QueryOffset, "group", stream)).offset == 7
    found = await publisher.ask(c.QueryPublisherSequence, "p", stream)
    assert found.sequence == 2 * A_FRAME


async def test_amqp_publishes_to_streams_of_all_nodes(three: Three) -> None:
    """At any node: it is passed on to the one that leads the cluster."""
    leaders = await spread(three["a"], *NAMES)
    await trio.sleep(5)
    for name, node in three.items():
        assert node.server is not None
        amqp = await open_peer(node.server)
        for stream in leaders:
            await amqp.store(stream, b"from %b" % name.encode())
    for stream, leader in leaders.items():
        found = await read_from(three[leader], stream, 3)
        assert [MessageView(one).body for one in found] == [b"from a", b"from b", b"from c"]


async def test_what_a_node_has_not_confirmed_amqp_does_not_confirm(three: Three) -> None:
    """Its connection ends, as for any stream that takes no more messages."""
    leaders = await spread(three["a"], *NAMES)
    await trio.sleep(5)
    stream = one_of(leaders, "b")
    assert three["a"].server is not None
    amqp = await open_peer(three["a"].server)
    await amqp.store(stream, b"0")
    await amqp.confirm()
    three["b"].pause()
    await amqp.publish(stream, b"1")
    found = await amqp.next()
    assert isinstance(found, m.ConnectionClose)
    assert found.code == 506
    leader = await led_by(three["a"], stream, "a", "c")
    amqp = await open_peer(three["a"].server)
    await amqp.store(stream, b"2")
    messages = [MessageView(one).body for one in await read_from(three[leader], stream, 2)]
    assert messages == [b"0", b"2"]


async def test_operations_are_done_where_the_stream_is_led(three: Three) -> None:
    stream, _ = await stored_at(three, "b")
    for node in three.values():
        peer = await node.peer()
        words = (Pair("stream", stream), Pair("name", f"of {node.name}"))
        answer = await peer.ask(c.Manage, "offset.set", (*words, Pair("offset", "3")))
        assert answer.code == OK, answer.reason
    for node in three.values():
        peer = await node.peer()
        answer = await peer.ask(c.Manage, "offset.list", (Pair("stream", stream),))
        found = {dict(row)["name"]: dict(row)["offset"] for row in answer.rows}
        assert found == {f"of {name}": "3" for name in three}


async def test_any_node_shows_what_the_streams_of_others_have(three: Three) -> None:
    leaders = await spread(three["a"], *NAMES)
    for stream, leader in leaders.items():
        publisher = await publisher_of(three[leader], stream)
        await publisher.store(bodies(0))
        await publisher.vanish()
    for node in three.values():
        peer = await node.peer()
        answer = await peer.ask(c.DescribeStreams, NAMES)
        found = [dict(one.statistics)["messages"] for one in answer.streams]
        assert found == [A_FRAME] * len(NAMES)
        assert node.server is not None
        led = sum(s.is_open for s in node.server.server.broker.streams())
        assert led == 2, "to show it, others read nothing"
