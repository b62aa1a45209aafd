"""Connections that fail, break, or lead to something other than a stream server."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio
import pytest
import trio.testing

from clients import ConnectionLost, LoginRefused, connect
from clients.connection import ClientConnection
from clients.uri import Endpoint, parse_uri
from tests.support.process import PATIENCE_SECONDS, ServerProcess
from tests.support.proxy import answering

if TYPE_CHECKING:
    from anyio.abc import ByteStream

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def enter(uri: str, backend: str = "trio") -> None:
    async def main() -> None:
        async with connect(uri):
            pass

    anyio.run(main, backend=backend)


class TestAddresses:
    @pytest.mark.parametrize(
        ("uri", "expected"),
        [
            ("rabbitmq-stream://localhost", ("localhost", 5552, "guest", "guest", "/")),
            ("rabbitmq-stream://localhost/", ("localhost", 5552, "guest", "guest", "/")),
            ("rabbitmq-stream://u:p%40ss@h:1/%2F", ("h", 1, "u", "p@ss", "/")),
            ("rabbitmq-stream://u@[::1]:99/prod", ("::1", 99, "u", "guest", "prod")),
            ("rabbitmq-stream://u:@h/a%2Fb", ("h", 5552, "u", "", "a/b")),
        ],
    )
    def test_good_ones(self, uri: str, expected: tuple[str, int, str, str, str]) -> None:
        assert parse_uri(uri) == Endpoint(*expected)

    @pytest.mark.parametrize(
        "uri",
        [
            "",
            "localhost:5552",
            "http://localhost/",
            "rabbitmq-stream:///x",
            "rabbitmq-stream://h:x/",
            "rabbitmq-stream://h:99999/",
            "rabbitmq-stream://h/?a=b",
        ],
    )
    def test_bad_ones(self, uri: str) -> None:
        with pytest.raises(ValueError, match=r"not an address|nothing is expected"):
            parse_uri(uri)

    def test_passwords_do_not_show(self) -> None:
        assert "hunter2" not in repr(parse_uri("rabbitmq-stream://u:hunter2@h/"))
        with pytest.raises(ValueError, match="not an address") as error:
            parse_uri("amqp://u:hunter2@h/")
        assert "hunter2" not in str(error.value)


@BACKENDS
def test_nobody_there(backend: str) -> None:
    with socket.create_server(("localhost", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ConnectionLost, match=f"cannot connect to localhost:{port}: .*running"):
        enter(f"rabbitmq-stream://localhost:{port}/", backend)


@BACKENDS
def test_wrong_password_and_virtual_host(running_server: ServerProcess, backend: str) -> None:
    port = running_server.port
    with pytest.raises(LoginRefused, match="authentication failure"):
        enter(f"rabbitmq-stream://guest:wrong@localhost:{port}/", backend)
    with pytest.raises(LoginRefused, match="virtual host access failure"):
        enter(f"rabbitmq-stream://localhost:{port}/elsewhere", backend)


@BACKENDS
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "ended the connection during the login"),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "does not speak the stream protocol, which is usually on port 5552",
        ),
        (b"\0\0\0\4\0\x17\0\1", "ended the connection"),  # a heartbeat, then nothing
    ],
)
def test_something_else_there(answer: bytes, reason: str, backend: str) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(answer)

    with answering(serve) as port, pytest.raises(ConnectionLost, match=reason):
        enter(f"rabbitmq-stream://localhost:{port}/", backend)


@BACKENDS
def test_a_server_that_dies(tmp_path: Path, backend: str) -> None:
    """Every waiting call fails; none hangs."""
    server = ServerProcess(tmp_path / "data")
    errors: list[str] = []

    async def consume(uri: str) -> None:
        async with (
            connect(uri, retry_seconds=0) as client,
            client.consumer("s", filter_values=["none"]) as messages,
        ):
            try:
                await anext(messages)
            except ConnectionLost as error:
                errors.append(str(error))

    async def publish(uri: str) -> None:
        async with connect(uri, retry_seconds=0) as client:
            try:
                async with client.producer("s") as producer:
                    while True:
                        await producer.send(b"x" * 1000)
            except ConnectionLost as error:
                errors.append(str(error))
            with pytest.raises(ConnectionLost):
                await client.stats("s")

    async def main() -> None:
        async with connect(server.uri) as client:
            await client.create("s")
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consume, server.uri)
                tasks.start_soon(publish, server.uri)
                await anyio.sleep(0.5)
                server.kill()

    with server:
        anyio.run(main, backend=backend)
    assert len(errors) == 2
    assert all("localhost" in error for error in errors)


class _SlowStream:
    """Takes so many bytes a second, at virtual time."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.sent = b""

    async def send(self, data: bytes) -> None:
        await anyio.sleep(len(data) / self.rate)
        self.sent += data


def test_a_large_frame_gets_through_on_a_slow_line() -> None:
    async def main() -> None:
        stream, frame = _SlowStream(10_000), bytes(range(256)) * 4_096
        endpoint = parse_uri("rabbitmq-stream://localhost")
        connection = ClientConnection(cast("ByteStream", stream), endpoint, 0, print)
        await connection.send_frame(lambda: frame)
        assert stream.sent == frame
        stream.rate = 1_000
        with pytest.raises(ConnectionLost, match="it does not accept data any more"):
            await connection.send_frame(lambda: frame)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
