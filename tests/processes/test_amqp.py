"""AMQP connections in processes beside the engine: who ends with one, and what was confirmed."""

import contextlib
import os
import signal
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from pathlib import Path

import httpx
import pika
import pika.exceptions
import pytest
import trio

from clients import connect
from streamd.config import Config
from streamd.net.links import LinkTransport, given
from streamd.processes import amqp
from streamd.processes.control import pair
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import (
    HEARTBEAT_FRAME,
    PROTOCOL_HEADER,
    content_frames,
    encode_method,
    method_frame,
)
from tests.processes.conftest import Start
from tests.processes.impatient import MODULE
from tests.processes.test_processes import children, eventually, is_running
from tests.support.process import PATIENCE_SECONDS, ServerProcess

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

STREAM = {"x-queue-type": "stream"}
LOGIN = (
    m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"),
    m.ConnectionTuneOk(1, 131_072, 0),
    m.ConnectionOpen("/", "", True),
)
ACK = method_frame(1, m.BasicAck(1, False))
HEAD_OF_ACK = ACK[:11]


@pytest.fixture
def server(start: Start) -> Iterator[ServerProcess]:
    process = start("--amqp-processes", "2")
    yield process
    process.end()
    assert "Traceback" not in process.log.read_text()


class Publisher:
    """A connection that publishes numbers as fast as it can, and knows what was confirmed."""

    def __init__(self, server: ServerProcess, stream: str) -> None:
        self.confirmed = 0
        self.peer = socket.create_connection(("localhost", server.amqp_port))
        self._publish = encode_method(m.BasicPublish(0, "", stream, False, False))
        login = b"".join(method_frame(0, method) for method in LOGIN)
        channel = method_frame(1, m.ChannelOpen()) + method_frame(1, m.ConfirmSelect(False))
        self.peer.sendall(PROTOCOL_HEADER + login + channel)
        self._threads = [threading.Thread(target=run) for run in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while True:
                bodies = [b"%d" % (number + n) for n in range(100)]
                number += len(bodies)
                frames = (content_frames(1, self._publish, b"\0\0", b, 4096) for b in bodies)
                self.peer.sendall(b"".join(frames))

    def _receive(self) -> None:
        data = b""
        with contextlib.suppress(OSError):
            while found := self.peer.recv(1 << 16):
                data = data[-2 * len(ACK) :] + found
                at = data.rfind(HEAD_OF_ACK, 0, len(data) - len(ACK) + len(HEAD_OF_ACK))
                if at >= 0:
                    (self.confirmed,) = struct.unpack_from(">Q", data, at + len(HEAD_OF_ACK))

    def join(self) -> None:
        """Until the connection has ended."""
        for thread in self._threads:
            thread.join()
        self.peer.close()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """In this block, a process stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def read_all(peer: socket.socket) -> bytes:
    return b"".join(iter(lambda: peer.recv(1 << 20), b""))


def declare(server: ServerProcess, *streams: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(server.amqp_uri)) as connection:
        for stream in streams:
            connection.channel().queue_declare(stream, durable=True, arguments=STREAM)


async def stored(server: ServerProcess, stream: str) -> list[int]:
    async with (
        connect(server.uri) as client,
        client.consumer(stream, offset="first", until_end=True) as messages,
    ):
        return [int(message.body) async for message in messages]


async def check(server: ServerProcess, publisher: Publisher, stream: str) -> None:
    """What was confirmed is stored, once and in order."""
    found = await stored(server, stream)
    assert found == list(range(len(found)))
    assert len(found) >= publisher.confirmed > 0


async def test_a_door_that_is_killed_takes_its_connections_only(server: ServerProcess) -> None:
    declare(server, "one", "two")
    engine, one, two = children(server.pid)
    with stopped(two):
        first = Publisher(server, "one")
        eventually(lambda: first.confirmed)
    with stopped(one):
        second = Publisher(server, "two")
        eventually(lambda: second.confirmed)
    eventually(lambda: first.confirmed > 5_000)
    os.kill(one, signal.SIGKILL)
    first.join()
    before = second.confirmed
    eventually(lambda: second.confirmed > before + 5_000)
    eventually(lambda: len(children(server.pid)) == 3)
    os.kill(two, signal.SIGSTOP)
    declare(server, "three")  # by the one that was started again
    os.kill(two, signal.SIGKILL)
    second.join()
    assert engine in children(server.pid)
    assert "the process for AMQP 1 has ended by SIGKILL" in server.log.read_text()
    await check(server, first, "one")
    await check(server, second, "two")


async def test_what_was_confirmed_is_there_when_all_were_killed(server: ServerProcess) -> None:
    declare(server, "s")
    publisher = Publisher(server, "s")
    eventually(lambda: publisher.confirmed > 5_000)
    found = children(server.pid)
    server.kill()
    publisher.join()
    eventually(lambda: not any(map(is_running, found)))
    server.start()
    await check(server, publisher, "s")


def test_a_door_that_does_not_answer_is_ended(start: Start) -> None:
    server = start("--amqp-processes", "2", module=MODULE)
    engine, one, two = children(server.pid)
    os.kill(one, signal.SIGSTOP)
    declare(server, "s")  # the other one takes whoever comes
    eventually(lambda: one not in children(server.pid))
    eventually(lambda: len(children(server.pid)) == 3)
    assert {engine, two} < set(children(server.pid))
    assert "the process for AMQP 1 has not answered for 3 s" in server.log.read_text()


def test_clients_are_told_that_the_server_stops(server: ServerProcess) -> None:
    told = pika.BlockingConnection(pika.URLParameters(server.amqp_uri))
    server.signal(signal.SIGTERM)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        told.process_data_events(time_limit=None)
    assert closed.value.reply_code == 320
    assert server.wait() == 0


def test_connections_are_listed_with_where_their_clients_are(start: Start) -> None:
    server = start("--amqp-processes", "1", "--http-port", "0")

    def listed() -> list[tuple[str, int]]:
        url = f"http://127.0.0.1:{server.http_port}/api/connections"
        answer = httpx.get(url, auth=("guest", "guest"), timeout=PATIENCE_SECONDS)
        return [(one["peer_host"], one["peer_port"]) for one in answer.json()]

    with socket.create_connection(("127.0.0.1", server.amqp_port)) as peer:
        peer.sendall(PROTOCOL_HEADER + b"".join(method_frame(0, one) for one in LOGIN))
        eventually(lambda: listed() == [peer.getsockname()])
    eventually(lambda: not listed())


@asynccontextmanager
async def a_door(nursery: trio.Nursery, bound: socket.socket) -> AsyncIterator[socket.socket]:
    """A door in this process, until the block ends; what it is given is the engine's end."""
    control, doors_control = pair()
    way, doors_way = socket.socketpair()
    with control, doors_control, doors_way, bound.dup() as own:
        for end in (way, doors_control):
            end.setblocking(False)
        over = trio.Event()

        async def serve() -> None:
            await amqp.serve_amqp(Config(), {"amqp_port": [own]}, doors_control, doors_way)
            over.set()

        nursery.start_soon(serve)
        with way:
            yield way
        await over.wait()  # there is no engine any more


async def test_the_door_with_the_fewest_connections_takes_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amqp, "WAIT_SECONDS", 0.1)
    taken: list[LinkTransport] = []
    shares = []

    async def take(way: socket.socket) -> None:
        async with aclosing(given(way, None)) as clients:
            async for client in clients:
                taken.append(client)
                shares.append(way)

    with ExitStack() as clients, socket.create_server(("127.0.0.1", 0)) as bound:

        async def enter(count: int) -> None:
            for number in range(len(taken), len(taken) + count):
                clients.enter_context(socket.create_connection(bound.getsockname()))
                with trio.fail_after(PATIENCE_SECONDS):
                    while len(taken) == number:
                        await trio.sleep(0.01)

        async with (
            trio.open_nursery() as nursery,
            a_door(nursery, bound) as one,
            trio.open_nursery() as taking,
        ):
            taking.start_soon(take, one)
            await enter(3)
            async with a_door(nursery, bound) as other:
                taking.start_soon(take, other)
                await trio.sleep(0.01)
                await enter(2)
                taking.cancel_scope.cancel()
    assert shares == [one, one, one, other, other]
    for client in taken:
        client.close()


async def test_a_connection_that_the_engine_has_ended_ends_though_its_client_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CHECK_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(amqp, name, 0.01)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        async with trio.open_nursery() as nursery, a_door(nursery, bound) as way:
            with socket.create_connection(bound.getsockname()) as client:
                async with aclosing(given(way, None)) as clients:
                    engine = await anext(clients)
                assert engine.peer == client.getsockname()
                sent = 0
                with trio.move_on_after(0.1):
                    while True:
                        await engine.send(HEARTBEAT_FRAME * 1_000)
                        sent += 1_000 * len(HEARTBEAT_FRAME)
                engine.close()
                await trio.sleep(0.1)
                received = await trio.to_thread.run_sync(read_all, client)
                assert 0 < len(received) < sent, "the rest was given up"
