"""Stream consumers of segments that are only in an object store."""

import pytest
import trio

from tests.connections.stream.test_publishing import bodies
from tests.support.cold import make_stream_cold
from tests.support.fake_store import FakeStore
from tests.support.server import FIRST, Harness, Peer


@pytest.fixture
def store(server: Harness) -> FakeStore:
    """That the server reads from."""
    store = FakeStore()
    server.server.broker.fetcher.use(store)
    return store


@pytest.fixture
async def reader(peer: Peer, server: Harness, store: FakeStore) -> Peer:
    """A peer with stream s: 10 chunks of 10 messages, a second apart, all of them cold."""
    await peer.create("s")
    await peer.declare("s")
    for n in range(10):
        await peer.store(bodies(10, f"{n}-"), first_id=10 * n, values=[b"%d" % (n % 3)] * 10)
        await trio.sleep(1)
    make_stream_cold(server.host.find("s"), store)
    return peer


async def test_a_consumer_reads_it(reader: Peer) -> None:
    await reader.subscribe("s", FIRST, credit=100)
    found = [await reader.chunk() for _ in range(10)]
    assert [chunk.header.chunk_id for chunk in found] == list(range(0, 100, 10))
    assert [body for chunk in found for body in chunk.bodies] == [
        body for n in range(10) for body in bodies(10, f"{n}-")
    ]
