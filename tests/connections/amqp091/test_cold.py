"""AMQP consumers of segments that are only in an object store."""

from typing import Any

import pytest
import trio

from streamd.connections import message_delivery as delivery
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.values import Field
from tests.connections.amqp091.test_messages import bodies, numbers, offsets
from tests.support.amqp import AmqpPeer, fields, open_peer
from tests.support.cold import make_stream_cold
from tests.support.fake_store import FakeStore
from tests.support.server import Harness


@pytest.fixture
async def amqp(server: Harness) -> AmqpPeer:
    """A peer with stream s: 100 messages in chunks of 10, a second apart."""
    peer = await open_peer(server)
    await peer.declare("s", x_stream_max_segment_size_bytes=1_000)
    for first in range(0, 100, 10):
        await peer.store("s", *numbers(10, first), headers=fields(odd=first // 10 % 2))
        await trio.sleep(1)
    return peer


@pytest.mark.parametrize(("cache_bytes", "restored"), [(0, True), (1 << 20, False)])
@pytest.mark.parametrize("start", ["first", 55, "last", Field("T", 1_700_000_003)])
async def test_what_they_get(
    amqp: AmqpPeer, server: Harness, store: FakeStore, start: Any, restored: bool, cache_bytes: int
) -> None:
    await amqp.consume("s", tag="local", prefetch=200, x_stream_offset=start)
    count = 0
    local = []
    with trio.move_on_after(1):
        while True:
            local += await amqp.deliveries(1)
            count += 1
    await amqp.ask(m.BasicCancel("local", False), m.BasicCancelOk)
    server.server.broker.fetcher.cache.max_bytes = cache_bytes
    make_stream_cold(server.host.find("s"), store, restored=restored)
    store.seconds = lambda _call: 0.1
    store.fail(name="get_range", times=2)
    await amqp.consume("s", prefetch=200, x_stream_offset=start)
    found = await amqp.deliveries(count)
    assert (bodies(found), offsets(found)) == (bodies(local), offsets(local))
    await amqp.store("s", b"new")
    assert bodies(await amqp.deliveries(1)) == [b"new"]


async def test_a_selector(amqp: AmqpPeer, server: Harness, store: FakeStore) -> None:
    make_stream_cold(server.host.find("s"), store)
    await amqp.consume("s", x_stream_offset="first", x_stream_sql="odd = 1")
    wanted = [n for n in range(100) if n // 10 % 2]
    assert offsets(await amqp.deliveries(50)) == wanted


async def test_large_messages_to_one_that_takes_few(
    amqp: AmqpPeer, server: Harness, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is dropped where much is held, and read again, from the tier."""
    monkeypatch.setattr(delivery, "HELD_BYTES", 100)
    cache = server.server.broker.fetcher.cache
    cache.max_bytes = 0
    await amqp.declare("large")
    sent = [bytes([n]) * 200_000 for n in range(1, 6)]
    await amqp.store("large", *sent)
    make_stream_cold(server.host.find("large"), store, restored=True)
    await amqp.consume("large", prefetch=1, x_stream_offset="first")
    for body in sent:
        (found,) = await amqp.deliveries(1)
        assert found.body == body
        cache.shrink(0)
        await amqp.send(m.BasicAck(found.method.delivery_tag, False))


@pytest.mark.parametrize("end", ["cancel", "close", "delete"])
async def test_the_end_of_one_that_waits(
    amqp: AmqpPeer, server: Harness, store: FakeStore, end: str
) -> None:
    make_stream_cold(server.host.find("s"), store, restored=True)
    store.fail(times=-1)
    await amqp.consume("s", x_stream_offset=55)
    await amqp.silence(10)
    if end == "cancel":
        await amqp.ask(m.BasicCancel("c", False), m.BasicCancelOk)
    elif end == "close":
        await amqp.ask(m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk)
    else:
        await amqp.ask(m.QueueDelete(0, "s", False, False, False), m.QueueDeleteOk)
    await trio.sleep(60)
    assert not server.server.broker.fetcher.jobs


async def test_without_a_tier(amqp: AmqpPeer, server: Harness) -> None:
    make_stream_cold(server.host.find("s"), FakeStore(), restored=True)
    table = fields(x_stream_offset=55)
    method = m.BasicConsume(0, "s", "c", False, False, False, False, table)
    await amqp.ask(m.BasicQos(0, 10, False), m.BasicQosOk)
    await amqp.channel_fails(method, 406, "cannot be read")
