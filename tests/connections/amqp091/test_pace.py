"""Acknowledgements are left to gather while their client is busy, and only then."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from segments.message import Message
from streamd.connections import message_delivery as delivery
from streamd.net import threads
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.connection import Connection
from tests.connections.amqp091.test_messages import offsets
from tests.support.amqp import AmqpPeer, fields, open_peer
from tests.support.server import Harness

COUNT = 2_000
PREFETCH = 500
TOTAL_SECONDS = 0.006  # the longest pause, and the rounding of the clock


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each read on the server's side."""
    found: list[int] = []
    receive = Connection.receive_data

    def counted(connection: Connection, data: bytes) -> None:
        found.append(len(data))
        receive(connection, data)

    monkeypatch.setattr(Connection, "receive_data", counted)
    return found


@pytest.fixture
async def busy(server: Harness) -> AmqpPeer:
    """A consumer with all that its prefetch allows."""
    publisher = await open_peer(server)
    await publisher.declare("s")
    await publisher.publish("s", *(b"%d" % n for n in range(COUNT)))
    await publisher.declare("s")
    peer = await open_peer(server)
    await peer.consume("s", prefetch=PREFETCH, x_stream_offset="first")
    await peer.deliveries(PREFETCH)
    return peer


async def acknowledge(peer: AmqpPeer, first: int, last: int) -> None:
    """One by one, as clients do that have a task for each message."""
    for tag in range(first, last + 1):
        await peer.send(m.BasicAck(tag, False))
        await wait_all_tasks_blocked()


async def test_acknowledgements_of_a_busy_client_gather(busy: AmqpPeer, reads: list[int]) -> None:
    reads.clear()
    await acknowledge(busy, 1, 100)
    await trio.sleep(TOTAL_SECONDS)
    assert len(reads) <= 2
    found = await busy.deliveries(100)
    assert [delivery.body for delivery in found] == [b"%d" % n for n in range(500, 600)]


async def test_a_client_with_little_left_is_read_at_once(busy: AmqpPeer, reads: list[int]) -> None:
    start = trio.current_time()
    for last in range(PREFETCH, COUNT, PREFETCH):
        await busy.send(m.BasicAck(last, True))
        await busy.deliveries(PREFETCH)
    assert trio.current_time() - start < (COUNT / PREFETCH) * TOTAL_SECONDS
    await busy.send(m.BasicAck(COUNT - PREFETCH // 3, True))
    await trio.sleep(TOTAL_SECONDS)
    reads.clear()
    await acknowledge(busy, COUNT - 50, COUNT)
    assert len(reads) == 51


async def test_publishers_are_not_kept_waiting(busy: AmqpPeer, reads: list[int]) -> None:
    await busy.confirm()
    await busy.publish("s", b"first")
    await busy.expect(m.BasicAck)
    reads.clear()
    start = trio.current_time()
    for n in range(1, 20):
        await acknowledge(busy, n, n)
        await busy.publish("s", b"more")
        await busy.expect(m.BasicAck)
    assert trio.current_time() == start
    assert len(reads) == 2 * 19


async def test_requests_are_answered_after_a_moment(busy: AmqpPeer) -> None:
    await acknowledge(busy, 1, 10)
    start = trio.current_time()
    await busy.declare("s")
    assert trio.current_time() - start <= TOTAL_SECONDS


async def test_columns_that_are_much_work_are_asked_in_a_thread(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, works = threads.compute, list[str]()

    async def noted(work: Any, *arguments: Any) -> Any:
        works.append(work.__name__)
        return await compute(work, *arguments)

    monkeypatch.setattr(threads, "compute", noted)
    peer, publisher = await open_peer(server), await server.peer()
    await peer.declare("s", x_stream_filter_property="kind", x_stream_filter_derive="true")
    await publisher.declare("s")
    kinds = [{"kind": f"k{n}"} for n in range(60)]
    await publisher.store([Message(b"", application_properties=kind).encode() for kind in kinds])
    parts = [f"kind = 'k{n}'" for n in range(0, 80, 2)]
    sql, units = " OR ".join(parts), len(parts) * len(kinds) // 2
    for enough, first in ((units, "_chosen"), (units - 1, "rows")):
        monkeypatch.setattr(delivery, "_CHOICE_UNITS", enough)
        works.clear()
        await peer.consume("s", tag=first, x_stream_offset="first", x_stream_sql=sql)
        assert offsets(await peer.deliveries(30)) == list(range(0, 60, 2))
        assert works[0] == first


async def test_acknowledgements_that_come_while_a_selector_is_at_work(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read all there is then, and it is not at the end: it sends what it finds."""
    compute = threads.compute

    async def slowly(*work: Any) -> Any:
        await trio.sleep(1)
        return await compute(*work)

    monkeypatch.setattr(threads, "compute", slowly)
    monkeypatch.setattr(delivery, "_CHOICE_UNITS", 0)
    publisher, peer = await open_peer(server), await open_peer(server)
    await publisher.declare("s")
    await publisher.store("s", *map(bytes, range(5)), headers=fields(odd=1))
    await peer.consume("s", prefetch=6, x_stream_offset="first", x_stream_sql="odd = 1")
    found = await peer.deliveries(5)
    await publisher.store("s", *map(bytes, range(25)), headers=fields(odd=1))
    await trio.sleep(0.5)
    with trio.fail_after(60):
        while len(found) < 30:
            await peer.send(m.BasicAck(found[-1].method.delivery_tag, True))
            found += await peer.deliveries(1)
    assert offsets(found) == list(range(30))
