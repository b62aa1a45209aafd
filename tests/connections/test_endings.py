"""An end that the server wants is in order, whatever is spoken: what is stored was confirmed."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from streamd.config import ARRIVED_SECONDS, DRAIN_SECONDS, FAREWELL_SECONDS
from streamd.operations.names import as_sent
from streamd.wire.amqp091 import methods as m
from streamd.wire.stream import commands as c
from streamd.wire.stream.fields import Pair
from tests.support import amqp
from tests.support.http import Http
from tests.support.server import FIRST, OK, Harness, Peer, harness

_AT_ONCE = 50  # messages that a client sends before it looks at anything
_GONE = (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError)


class StreamClient:
    """Publishes as fast as it can, and counts its confirms."""

    def __init__(self, peer: Peer, stream: str) -> None:
        self.peer, self.stream, self.confirmed = peer, stream, 0

    async def publish(self) -> None:
        try:
            for first in count(1, _AT_ONCE):
                await self.peer.publish([b"x"] * _AT_ONCE, first)
        except _GONE:
            pass

    async def listen(self) -> None:
        try:
            while True:
                found = await self.peer.next()
                if isinstance(found, c.PublishConfirm):
                    self.confirmed += len(found.publishing_ids)
        except _GONE:
            await self.peer.stream.aclose()


class AmqpClient:
    """The same."""

    def __init__(self, peer: amqp.AmqpPeer, stream: str) -> None:
        self.peer, self.stream, self.confirmed = peer, stream, 0
        self.is_told = False

    async def publish(self) -> None:
        try:
            while not self.is_told:
                await self.peer.publish(self.stream, *[b"x"] * _AT_ONCE)
            await self.peer.send(m.ConnectionCloseOk(), 0)
        except _GONE:
            pass

    async def listen(self) -> None:
        try:
            while True:
                found = await self.peer.next()
                if isinstance(found, m.BasicAck):
                    tag = found.delivery_tag
                    self.confirmed = tag if found.multiple else self.confirmed + 1
                elif isinstance(found, m.ConnectionClose):
                    self.is_told = True
        except _GONE:
            await self.peer.stream.aclose()


async def clients(server: Harness) -> list[StreamClient | AmqpClient]:
    """Two of each protocol, each with a stream of its own."""
    found: list[StreamClient | AmqpClient] = []
    for number in range(2):
        peer = await server.peer()
        await peer.create(f"stream-{number}")
        await peer.declare(f"stream-{number}")
        found.append(StreamClient(peer, f"stream-{number}"))
        other = await amqp.open_peer(server)
        await other.declare(f"amqp-{number}")
        await other.confirm()
        found.append(AmqpClient(other, f"amqp-{number}"))
    return found


async def stop(server: Harness) -> None:
    await server.server.drain()


async def close_all(server: Harness) -> None:
    http = Http(server)
    for connection in server.server.connections:
        name = connection.name.replace(" ", "%20")
        assert await http.code("DELETE", f"connections/{name}") == 204


ENDS: dict[str, Callable[[Harness], Awaitable[None]]] = {"stop": stop, "administrator": close_all}


@pytest.mark.parametrize("flush", ["interval", "always"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("polled", [False, True], ids=["tasks", "polled"])
async def test_what_is_stored_was_confirmed(
    tmp_path: Path, end: str, flush: str, polled: bool
) -> None:
    for steps in (1, 7, 40):
        async with harness(tmp_path / str(steps), is_polled=polled, flush=flush) as server:
            publishing = await clients(server)
            async with trio.open_nursery() as nursery:
                for client in publishing:
                    nursery.start_soon(client.publish)
                    nursery.start_soon(client.listen)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                await ENDS[end](server)
                with trio.fail_after(DRAIN_SECONDS):
                    while server.server.connections:
                        await trio.sleep(0.01)
            for client in publishing:
                async with server.host.find(as_sent(client.stream)).opened() as log:
                    assert client.confirmed == log.committed_offset, (client.stream, steps)


@pytest.mark.parametrize("end", ENDS)
async def test_no_consumer_of_it_takes_over_while_it_ends(server: Harness, end: str) -> None:
    """The members of a group share a connection, and leave one after the other."""
    peer = await server.peer()
    await peer.create("s")
    single = (Pair("single-active-consumer", "true"), Pair("name", "app"))
    for number in range(3):
        assert await peer.code(c.Subscribe, number, "s", FIRST, 1, single) == OK
    update = await peer.expect(c.ConsumerUpdate)
    await peer.send(c.ConsumerUpdateResponse(update.correlation_id, OK, FIRST))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ENDS[end], server)
        await peer.ended()


@pytest.mark.parametrize("protocol", ["stream", "amqp"])
async def test_who_does_not_read_does_not_hold_the_end(server: Harness, protocol: str) -> None:
    """Not even with answers of which each waits for the one before."""
    if protocol == "stream":
        peer: Any = server.connect(reads_slowly=True)
    else:
        peer = amqp.connect(server, reads_slowly=True)
    await peer.log_in()
    other = await server.peer()
    await other.create("s")
    if protocol == "stream":
        await peer.send(*(c.Metadata(n, ("s",) * 100) for n in range(3)))
    else:
        await peer.send(m.ChannelOpen())
    await wait_all_tasks_blocked()
    begin = trio.current_time()
    await server.server.drain()
    assert trio.current_time() - begin <= ARRIVED_SECONDS + FAREWELL_SECONDS <= DRAIN_SECONDS


@pytest.mark.parametrize("steps", range(12))
async def test_nobody_who_logs_in_while_the_server_stops_is_served(
    server: Harness, steps: int
) -> None:
    """Later nobody would tell it, and what it publishes would not be confirmed."""
    before = await server.peer()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_come, server)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        await server.server.drain()
        nursery.start_soon(_come, server)
        await wait_all_tasks_blocked()
        assert not server.server.connections
    await before.ended()


async def _come(server: Harness) -> None:
    peer = server.connect()
    with suppress(*_GONE):
        await peer.log_in()
        await peer.ended()
