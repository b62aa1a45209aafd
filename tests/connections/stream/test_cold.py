"""Stream consumers of segments that are only in an object store, which may be slow or away."""

import random

import pytest
import trio

from segments.offsets import OffsetSpec, Start
from segments.store.object_names import parse_object
from segments.store.object_store import TierError
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import OffsetSpecification
from tests.connections.stream.test_consuming import at, since
from tests.connections.stream.test_publishing import bodies
from tests.support.cold import make_stream_cold
from tests.support.fake_store import FakeStore
from tests.support.server import FIRST, LAST, OK, Harness, Peer

_LARGE = 300_000


@pytest.fixture(params=["plenty", "nothing"])
async def reader(
    peer: Peer, server: Harness, store: FakeStore, request: pytest.FixtureRequest
) -> Peer:
    """A peer with stream s: 10 chunks of 10 messages, a second apart, all of them cold."""
    if request.param == "nothing":
        server.server.broker.fetcher.cache.max_bytes = 0
    await fill(peer)
    make_stream_cold(server.host.find("s"), store)
    return peer


async def fill(peer: Peer) -> None:
    await peer.create("s", stream_max_segment_size_bytes="2000")
    await peer.declare("s")
    for n in range(10):
        values = [b"%d" % (n % 3)] * 10
        await peer.store(bodies(10, f"{n}-" * 100), first_id=10 * n, values=values)
        await trio.sleep(1)


async def ids(peer: Peer, number: int) -> list[int]:
    return [(await peer.chunk()).header.chunk_id for _ in range(number)]


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize(
    ("offset", "first"),
    [(FIRST, 0), (LAST, 90), (at(55), 50), (since(0), 0)],
)
async def test_it_begins_as_with_local_ones(
    peer: Peer,
    server: Harness,
    store: FakeStore,
    offset: OffsetSpecification,
    first: int,
    restored: bool,
) -> None:
    await fill(peer)
    make_stream_cold(server.host.find("s"), store, restored=restored)
    store.seconds = lambda _call: 0.2
    await peer.subscribe("s", offset, credit=100)
    assert await ids(peer, 10 - first // 10) == list(range(first, 100, 10))
    await peer.store([b"new"], first_id=1_000)
    assert (await peer.expect(c.Deliver)).subscription_id == 1


async def test_all_messages(reader: Peer) -> None:
    await reader.subscribe("s", FIRST, credit=100)
    found = [await reader.chunk() for _ in range(10)]
    wanted = [body for n in range(10) for body in bodies(10, f"{n}-" * 100)]
    assert [body for chunk in found for body in chunk.bodies] == wanted


async def test_only_what_matches_is_fetched(reader: Peer, store: FakeStore) -> None:
    await reader.subscribe("s", FIRST, credit=100, filter__0="1")
    assert await ids(reader, 3) == [10, 40, 70]
    await reader.silence()
    assert store.count("get_range") == 3


async def test_credit_that_comes_while_it_waits(reader: Peer, store: FakeStore) -> None:
    store.seconds = lambda _call: 5
    await reader.subscribe("s", FIRST, credit=1)
    await reader.send(c.Credit(1, 1))
    await reader.silence(4)
    assert await ids(reader, 2) == [0, 10]
    await reader.silence(30)


@pytest.mark.parametrize("times", [1, 10])
async def test_a_store_that_is_away_is_waited_for(
    reader: Peer, store: FakeStore, times: int
) -> None:
    store.fail(name="get_range", times=times)
    await reader.subscribe("s", FIRST, credit=100)
    assert await ids(reader, 10) == list(range(0, 100, 10))


async def test_who_waits_delays_nobody(reader: Peer, server: Harness, store: FakeStore) -> None:
    store.fail(name="get_range", times=-1)
    await reader.subscribe("s", FIRST, credit=100)
    await reader.silence(60)
    await reader.create("t")
    await reader.declare("t", 2)
    await reader.subscribe("t", FIRST, subscription_id=2)
    await reader.publish([b"a"], publisher_id=2)
    assert {type(await reader.next()), type(await reader.next())} == {c.PublishConfirm, c.Deliver}
    assert await reader.code(c.Unsubscribe, 1) == OK
    assert not server.server.broker.fetcher.jobs
    before = store.count()
    await trio.sleep(100)
    assert store.count() == before  # nobody wants it any more


@pytest.mark.parametrize("end", ["unsubscribe", "vanish", "delete"])
async def test_nothing_is_left_of_who_goes_while_it_waits(
    reader: Peer, server: Harness, store: FakeStore, end: str
) -> None:
    store.seconds = lambda _call: 5
    store.fail(name="get_range", times=2)
    await reader.subscribe("s", FIRST, credit=100)
    await trio.sleep(1)
    if end == "unsubscribe":
        assert await reader.code(c.Unsubscribe, 1) == OK
    elif end == "vanish":
        await reader.vanish()
    else:
        assert await reader.code(c.Delete, "s") == OK
    await trio.sleep(60)
    fetcher = server.server.broker.fetcher
    assert not fetcher.jobs
    assert not fetcher.cache.num_bytes or end != "delete"
    assert not [piece for piece in fetcher.cache._pieces if piece.pins]


async def test_two_hundred_consumers_are_one_fetch(
    reader: Peer, server: Harness, store: FakeStore
) -> None:
    store.seconds = lambda _call: 1
    peers = [reader, *[await server.peer() for _ in range(39)]]
    for peer in peers:
        for number in range(5):
            await peer.subscribe("s", FIRST, credit=1, subscription_id=number)
    for peer in peers:
        assert await ids(peer, 5) == [0] * 5
    assert store.count("get_range", "0" * 20) == 1


async def test_an_object_that_is_lost(
    peer: Peer, server: Harness, store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(peer)
    cold = make_stream_cold(server.host.find("s"), store)
    lost = cold[1]
    assert lost.stored is not None
    key = next(key for key in store.objects if lost.stored.uid in key and "segment" in key)
    del store.objects[key]
    await peer.subscribe("s", FIRST, credit=100)
    wanted = [n for n in range(0, 100, 10) if not lost.base_offset <= n < lost.next_offset]
    assert await ids(peer, len(wanted)) == wanted
    await peer.subscribe("s", at(lost.base_offset), credit=1, subscription_id=2)
    assert await ids(peer, 1) == [lost.next_offset]
    assert caplog.text.count("it is not there") == 1
    assert caplog.text.count("is damaged") == 1


async def test_an_object_that_is_cut(peer: Peer, server: Harness, store: FakeStore) -> None:
    await fill(peer)
    cut = make_stream_cold(server.host.find("s"), store)[1]
    key = next(key for key in store.objects if cut.stored and cut.stored.uid in key)
    store.shorten(key, 100)
    await peer.subscribe("s", FIRST, credit=100)
    wanted = [n for n in range(0, 100, 10) if not cut.base_offset <= n < cut.next_offset]
    assert await ids(peer, len(wanted)) == wanted


async def test_a_body_that_was_changed_on_its_way_is_fetched_again(
    reader: Peer, store: FakeStore
) -> None:
    def flip(content: bytes) -> bytes:
        return content[:100] + bytes([content[100] ^ 1]) + content[101:]

    store.damage(flip, key=".segment", times=1)
    await reader.subscribe("s", FIRST, credit=100)
    found = [await reader.chunk() for _ in range(10)]
    assert found[0].bodies == bodies(10, "0-" * 100)


async def test_without_a_tier_it_is_told(
    peer: Peer, server: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(peer)
    make_stream_cold(server.host.find("s"), FakeStore())
    await peer.subscribe("s", FIRST, credit=100)
    assert (await peer.expect(c.MetadataUpdate)).stream == "s"
    assert "offsets 0 to 99 of s are in the object store; start the server with --tier" in (
        caplog.text
    )
    await peer.declare("s")
    await peer.store([b"new"], first_id=1_000)


async def test_large_chunks_to_a_slow_peer(server: Harness, store: FakeStore) -> None:
    """What is sent from the cache is not removed while it is sent."""
    cache = server.server.broker.fetcher.cache
    cache.max_bytes = 0
    peer = await server.peer()
    await peer.create("s", stream_max_segment_size_bytes="2000000")
    await peer.declare("s")
    sent = [bytes([n]) * _LARGE for n in range(1, 8)]
    for n, body in enumerate(sent):
        await peer.store([body], first_id=n)
    make_stream_cold(server.host.find("s"), store)
    slow = server.connect(reads_slowly=True)
    await slow.log_in()
    await slow.subscribe("s", FIRST, credit=100)
    for body in sent:
        cache.shrink(0)
        assert (await slow.chunk()).bodies == [body]
    await trio.sleep(1)
    cache.shrink(0)
    assert not cache.num_bytes


async def test_retention_drops_what_is_waited_for(
    reader: Peer, server: Harness, store: FakeStore
) -> None:
    store.fail(name="get_range", times=3)
    await reader.subscribe("s", FIRST, credit=100)
    await trio.sleep(0.01)
    stream = server.host.find("s")
    first = await stream.truncate(OffsetSpec(Start.OFFSET, 55))
    for key in list(store.objects):
        name = parse_object(key.rpartition("/")[2])
        if name is not None and name.offset < first:
            del store.objects[key]
    found = [-1]
    while found[-1] < 90:
        found += await ids(reader, 1)
    assert found[-5:] == list(range(first, 100, 10))  # before those what was fetched in time
    assert found == sorted(set(found))


async def test_a_single_active_consumer_of_a_restored_server(
    peer: Peer, server: Harness, store: FakeStore
) -> None:
    await fill(peer)
    make_stream_cold(server.host.find("s"), store, restored=True)
    store.seconds = lambda _call: 1
    await peer.subscribe("s", at(55), credit=100, name="group", single_active_consumer="true")
    update = await peer.expect(c.ConsumerUpdate)
    await peer.send(c.ConsumerUpdateResponse(update.correlation_id, OK, at(33)))
    assert await ids(peer, 7) == list(range(30, 100, 10))


async def test_one_that_is_in_line_when_it_is_its_turn_in_the_group_again(
    peer: Peer, server: Harness, store: FakeStore
) -> None:
    await fill(peer)
    await peer.subscribe("s", FIRST, credit=0, name="group", single_active_consumer="true")
    update = await peer.expect(c.ConsumerUpdate)
    await peer.send(c.ConsumerUpdateResponse(update.correlation_id, OK, FIRST))
    await peer.silence(1)
    make_stream_cold(server.host.find("s"), store, restored=True)
    (session,) = server.host.observers
    (subscription,) = session._context.delivery.subscriptions.values()  # type: ignore[attr-defined]
    subscription.add_credit(100)  # others of its connection are in line before it
    subscription.deactivate()
    subscription.activate(OffsetSpec(Start.OFFSET, 33))
    subscription.check()
    with trio.fail_after(60):
        assert await ids(peer, 7) == list(range(30, 100, 10))


async def test_chaos(peer: Peer, server: Harness, store: FakeStore) -> None:
    """Many consumers that come and go, a small cache, and a store in which everything fails."""
    rnd = random.Random(21)
    fetcher = server.server.broker.fetcher
    fetcher.cache.max_bytes = 3_000
    await fill(peer)
    make_stream_cold(server.host.find("s"), store, restored=True)
    store.seconds = lambda _call: rnd.random()

    def fault(_call: object) -> None:
        chance = rnd.random()
        if chance < 0.3:
            raise TierError("it is away")
        if chance < 0.35:
            fetcher.cache.shrink(0)

    store.before = fault
    store.damage(lambda content: content[: len(content) // 2], times=20)

    async def consume() -> None:
        own = await server.peer()
        value, start = rnd.choice(["", "1"]), rnd.randrange(0, 100, 10)
        properties = {"filter__0": value} if value else {}
        await own.subscribe("s", at(start), credit=1, **properties)
        if rnd.random() < 0.3:
            await trio.sleep(rnd.random())
            await own.vanish()
            return
        for n in range(start // 10, 10):
            if not value or n % 3 == 1:
                chunk = await own.chunk()
                assert chunk.header.chunk_id == 10 * n
                assert chunk.bodies == bodies(10, f"{n}-" * 100)
                await own.send(c.Credit(1, 1))

    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(consume)
            await trio.sleep(rnd.random() / 2)
    await trio.sleep(100)
    assert not fetcher.jobs
    assert fetcher.num_errors


async def test_who_has_no_credit_keeps_nothing_in_the_cache(
    peer: Peer, server: Harness, store: FakeStore
) -> None:
    await peer.create("s")
    await peer.declare("s")
    for n in range(10):
        await peer.store(bodies(10, f"{n}-" * 100), first_id=10 * n)
    make_stream_cold(server.host.find("s"), store)
    await peer.subscribe("s", FIRST, credit=1)
    for n in range(8):
        assert await ids(peer, 1) == [10 * n]
        await peer.silence()
        server.server.broker.fetcher.cache.shrink(0)
        assert not server.server.broker.fetcher.cache.num_bytes
        await peer.send(c.Credit(1, 1))


async def test_those_that_come_and_go_while_the_store_hangs_leave_nothing(
    reader: Peer, server: Harness, store: FakeStore
) -> None:
    fetcher = server.server.broker.fetcher
    store.seconds = lambda _call: 3_600.0
    for number in range(20):
        await reader.subscribe("s", at(number * 5), credit=1)
        await trio.sleep(1)
        assert await reader.code(c.Unsubscribe, 1) == OK
    await trio.sleep(1)
    assert not fetcher.turns
    assert not fetcher.pinned
