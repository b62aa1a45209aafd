"""The server is stopped under load: confirmed messages are kept, and nobody is cut off."""

import asyncio
import contextlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pika
from pika.exceptions import AMQPError, ConnectionClosedByBroker

from clients import connect
from streamd.wire.stream import codec, commands as c
from streamd.wire.stream.fields import OffsetSpecification
from streamd.wire.stream.publish import Outgoing, encode_entries
from tests.support.process import PATIENCE_SECONDS, ServerProcess, wait_until

STREAM = {"x-queue-type": "stream"}
CONFIRM = b"\0\3\0\1\1"  # key, version, publisher
LOGIN = (
    c.PeerProperties(1, ()),
    c.SaslHandshake(2),
    c.SaslAuthenticate(3, "PLAIN", b"\0guest\0guest"),
    c.Tune(1 << 20, 0),
    c.Open(4, "/"),
)


SUBSCRIBE = c.Subscribe(5, 1, "s", OffsetSpecification(1), 60_000, ())


@contextlib.contextmanager
def raw(
    port: int, *more: c.ClientCommand, tls: ssl.SSLContext | None = None
) -> Iterator[socket.socket]:
    """A connection that has logged in and has asked for more; nothing was read yet."""
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        )
        if tls is not None:
            inside = tls.wrap_socket(connection, server_hostname="localhost")
            connection = stack.enter_context(inside)
        for command in (*LOGIN, *more):
            connection.sendall(codec.encode(command))
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Up to the end; a reset is an error."""
    parts = []
    while data := connection.recv(1 << 16):
        parts.append(data)
    return b"".join(parts)


def frames_in(data: bytes) -> list[bytes]:
    """Whole frames, and nothing else."""
    found, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        assert end <= len(data), "the last frame was cut off"
        found.append(data[at + 4 : end])
        at = end
    return found


def stored(server: ServerProcess) -> list[bytes]:
    async def read() -> list[bytes]:
        async with (
            connect(server.uri) as client,
            client.consumer("s", offset="first", until_end=True) as messages,
        ):
            return [message.body async for message in messages]

    return asyncio.run(read())


def create(server: ServerProcess, messages: int = 0, size: int = 100) -> None:
    async def main() -> None:
        async with connect(server.uri) as client:
            await client.create("s")
            async with client.producer("s") as sink:
                await sink.send_all([b"x" * size] * messages)

    asyncio.run(main())


def test_confirms_come_and_the_end_is_clean(server: ServerProcess) -> None:
    """What has been received is stored and confirmed, though more is on its way."""
    create(server)
    bodies = [b"%d" % n for n in range(100)]
    entries = encode_entries([Outgoing(n, body) for n, body in enumerate(bodies)])
    publish = codec.encode(c.Publish(1, len(bodies), entries))
    with raw(server.port, c.DeclarePublisher(5, 1, "", "s")) as connection:
        connection.sendall(publish)
        first = b""
        while CONFIRM not in first:
            first += connection.recv(10_000)
        server.signal(signal.SIGTERM)
        with contextlib.suppress(OSError):
            for _ in range(50):  # it goes on, and what is not taken is not confirmed
                connection.sendall(publish)
                time.sleep(0.01)
        data = first + read_all(connection)
    frames = [codec.decode(frame) for frame in frames_in(data)]
    confirmed = sum(len(f.publishing_ids) for f in frames if isinstance(f, c.PublishConfirm))
    assert not any(isinstance(frame, c.Close) for frame in frames)  # some would not come back
    assert server.wait() == 0
    server.start()
    found = stored(server)
    assert len(found) >= confirmed >= 100
    assert found == (bodies * 51)[: len(found)]


def test_a_chunk_that_is_being_sent_is_sent_whole(server: ServerProcess) -> None:
    create(server, 3000, 10_000)
    with raw(server.port, SUBSCRIBE) as connection:
        first = b""
        while len(first) < 200_000:  # so that it is subscribed, and in the middle of a chunk
            first += connection.recv(10_000)
        server.signal(signal.SIGTERM)
        frames = frames_in(first + read_all(connection))
    assert len(frames) > len(LOGIN)
    assert server.wait() == 0


def test_a_second_signal_ends_it_at_once(server: ServerProcess) -> None:
    create(server, 3000, 10_000)
    with raw(server.port, SUBSCRIBE) as connection:  # reads nothing, so the server waits for it
        wait_until(lambda: len(connection.recv(1 << 16, socket.MSG_PEEK)) > 20_000)  # a delivery
        server.signal(signal.SIGTERM)
        wait_until(lambda: "SIGTERM: stopping" in server.log.read_text())
        server.signal(signal.SIGINT)
        wait_until(lambda: "SIGINT: stopping" in server.log.read_text())
        assert server.wait() == 0


def test_pika_gets_a_close_and_loses_nothing(server: ServerProcess) -> None:
    confirmed = 0
    told: list[BaseException] = []
    parameters: Any = pika.URLParameters(server.amqp_uri)

    def publish() -> None:
        nonlocal confirmed
        try:
            with pika.BlockingConnection(parameters) as connection:
                channel = connection.channel()
                channel.queue_declare("s", durable=True, arguments=STREAM)
                channel.confirm_delivery()
                while True:
                    channel.basic_publish("", "s", b"%d" % confirmed)
                    confirmed += 1
        except AMQPError as error:
            told.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    wait_until(lambda: confirmed > 50)
    assert server.stop() == 0
    thread.join()
    (error,) = told
    assert isinstance(error, ConnectionClosedByBroker)
    assert error.reply_code == 320
    server.start()
    found = [int(body) for body in stored(server)]
    assert found == list(range(len(found)))
    assert len(found) >= confirmed


def test_rstream_loses_nothing(server: ServerProcess) -> None:
    """In a process of its own: it leaves sockets to the collector."""
    command = [sys.executable, "-m", "tests.support.rstream_publisher", str(server.port), "s", "0"]
    confirmed: set[int] = set()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as publisher:
        assert publisher.stdout is not None
        for line in publisher.stdout:
            what, number = line.split()
            if what == "confirmed":
                confirmed.add(int(number))
            if len(confirmed) > 1000:
                break
        assert server.stop() == 0
        publisher.kill()
        for line in publisher.stdout:  # what it had heard until then
            what, _, number = line.partition(" ")
            if what == "confirmed" and number.endswith("\n"):
                confirmed.add(int(number))
    server.start()
    found = [int(body) for body in stored(server)]
    assert found == list(range(len(found)))
    assert confirmed <= set(found)
