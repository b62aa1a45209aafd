"""Links that read segments which are only in an object store."""

from streamd.wire.amqp10 import performatives as p
from tests.support.amqp10 import FIRST, Amqp10Peer, bodies, numbers, open_peer
from tests.support.cold import make_stream_cold
from tests.support.fake_store import FakeStore
from tests.support.server import Harness


async def cold(server: Harness, store: FakeStore, count: int) -> Amqp10Peer:
    """A peer, and stream s with so many messages."""
    await (await server.peer()).create("s", stream_max_segment_size_bytes="1000")
    peer = await open_peer(server)
    for n in range(count):
        await peer.store(*numbers(10, 10 * n))
    make_stream_cold(server.host.find("s"), store)
    return peer


async def test_all_of_it(server: Harness, store: FakeStore) -> None:
    peer = await cold(server, store, 10)
    await peer.consume()
    assert bodies(await peer.deliveries(100)) == [b"%d" % n for n in range(100)]


async def test_draining_waits_for_what_is_fetched(server: Harness, store: FakeStore) -> None:
    peer = await cold(server, store, 5)
    await peer.attach_receiver(filter=FIRST)
    await peer.credit(1_000, drain=True)
    assert len(await peer.deliveries(50)) == 50
    flow = await peer.expect(p.Flow)
    assert (flow.drain, flow.delivery_count) == (True, 1_000)


async def test_a_link_that_ends_meanwhile(server: Harness, store: FakeStore) -> None:
    peer = await cold(server, store, 5)
    await peer.attach_receiver(filter=FIRST)
    await peer.credit(1_000)
    await peer.send(p.Detach(1, True))
    await peer.find(p.Detach)
    assert not server.host.find("s").traffic.has_readers
