"""The HTTP API of a real server: over sockets, with a real client of the stream protocol."""

import asyncio
import base64
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from rstream import AMQPMessage, Consumer, OnClosedErrorInfo, Producer, amqp_decoder

from tests.support.process import PATIENCE_SECONDS, ServerProcess, wait_until

_CREDENTIALS = base64.b64encode(b"guest:guest").decode()
_HEAD = f"host: localhost\r\nauthorization: Basic {_CREDENTIALS}\r\n"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", "--http-port", "0") as running:
        yield running


def client(process: ServerProcess) -> httpx.Client:
    url = f"http://127.0.0.1:{process.http_port}/api/"
    return httpx.Client(base_url=url, auth=("guest", "guest"), timeout=PATIENCE_SECONDS)


def async_client(process: ServerProcess) -> httpx.AsyncClient:
    url = f"http://127.0.0.1:{process.http_port}/api/"
    return httpx.AsyncClient(base_url=url, auth=("guest", "guest"), timeout=PATIENCE_SECONDS)


def test_the_ready_line_names_it_and_it_listens_on_loopback(shared: ServerProcess) -> None:
    assert f" http=127.0.0.1:{shared.http_port}" in shared.ready_line
    with client(shared) as http:
        listeners = http.get("overview").json()["listeners"]
    assert ("http", shared.http_port) in [(row["protocol"], row["port"]) for row in listeners]


async def until_listed(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        for row in (await http.get("connections")).json():
            if row["client_properties"].get("connection_name") == name:
                return dict(row)
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name} is not listed")


async def work_and_be_cut_off(process: ServerProcess, http: httpx.AsyncClient) -> list[str]:
    """The streams that rstream has reported as closed."""
    closed: list[str] = []
    cut = asyncio.Event()

    async def on_close(info: OnClosedErrorInfo) -> None:
        closed.extend(info.streams)
        cut.set()

    login: dict[str, Any] = {"username": "guest", "password": "guest"}
    consumer = Consumer(
        "localhost", process.port, **login, connection_name="to be cut", on_close_handler=on_close
    )
    async with Producer("localhost", process.port, **login) as producer:
        await producer.create_stream("s")
        await producer.send_wait("s", AMQPMessage(body=b"x"))
        await consumer.start()
        await consumer.subscribe("s", lambda *_: None, decoder=amqp_decoder)
        row = await until_listed(http, "to be cut")
        path = f"connections/{quote(row['name'])}"
        answer = await http.delete(path, headers={"X-Reason": "a test"})
        assert answer.status_code == 204
        await asyncio.wait_for(cut.wait(), PATIENCE_SECONDS)
        with contextlib.suppress(Exception):
            await consumer.close()
    return closed


# rstream 1.1.1 leaves the socket of a connection that the server has ended to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_connection_of_rstream_is_ended(process: ServerProcess) -> None:
    async def main() -> list[str]:
        async with async_client(process) as http:
            return await work_and_be_cut_off(process, http)

    assert asyncio.run(main()) == ["s"]
    with client(process) as http:
        (row,) = http.get("queues").json()
        assert (row["name"], row["messages"]) == ("s", 1)
    log = process.log.read_text()
    assert "guest ends the connection" in log
    assert "ended, a test [guest, HTTP" in log


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("GARBAGE\r\n\r\n", "400"),
        (f"GET /api/overview HTTP/1.1\r\n{_HEAD}content-length: x\r\n\r\n", "400"),
        (f"PUT /api/queues/%2F/s HTTP/1.1\r\n{_HEAD}content-length: {1 << 60}\r\n\r\n", "400"),
        (f"GET /{'a' * 70_000} HTTP/1.1\r\n{_HEAD}\r\n", "431"),
        (f"GET /api/queues/%FF HTTP/1.0\r\n{_HEAD}\r\n", "400"),
    ],
)
def test_requests_that_are_not_http(shared: ServerProcess, request_: str, status: str) -> None:
    with socket.create_connection(("127.0.0.1", shared.http_port), timeout=PATIENCE_SECONDS) as raw:
        raw.sendall(request_.encode())
        assert raw.recv(100).split()[1].decode() == status


@pytest.mark.slow
def test_a_peer_that_takes_no_answers_does_not_hold_up_the_end(process: ServerProcess) -> None:
    with client(process) as http:
        for number in range(100):
            http.put(f"queues/%2F/{number:0200}", json={})
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", process.http_port))
        raw.sendall(f"GET /api/queues HTTP/1.1\r\n{_HEAD}\r\n".encode() * 120)
        time.sleep(1)  # for its answers to fill the buffers: nothing tells that from outside
        assert process.stop() == 0


def test_no_more_connections_than_the_setting_allows(tmp_path: Path) -> None:
    limit = ("--http-port", "0", "--max-http-connections", "2")
    with ServerProcess(tmp_path / "data", *limit) as process:
        address = ("127.0.0.1", process.http_port)
        with socket.create_connection(address) as one, socket.create_connection(address) as two:
            one.sendall(f"GET /api/whoami HTTP/1.1\r\n{_HEAD}\r\n".encode())
            found = b""
            while not found.endswith(b"}"):  # so that the password is known
                found += one.recv(10_000)
            for busy in (one, two):  # with a request: others would make room
                put = f"PUT /api/queues/%2F/s HTTP/1.1\r\n{_HEAD}content-length: 2\r\n"
                busy.sendall(f"{put}expect: 100-continue\r\n\r\n".encode())
                assert busy.recv(100).split()[1] == b"100"
            with client(process) as http:
                answer = http.get("whoami")
            assert answer.status_code == 503
            assert "the setting max_http_connections allows no more" in answer.json()["reason"]
            one.sendall(b"{}")
            assert one.recv(100).split()[1] == b"201"
        with client(process) as http:
            wait_until(lambda: http.get("whoami").status_code == 200)
        assert "the setting max_http_connections is 2" in process.log.read_text()
