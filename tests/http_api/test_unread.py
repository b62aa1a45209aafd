"""Answers to requests whose body has not come, or that nobody wanted to read."""

import base64

import httpx
import pytest
import trio

from tests.connections.test_hostile_peers import Stream, http_stream
from tests.support.server import Harness

RIGHT, WRONG = "guest:guest", "guest:wrong"

# None of these needs its body.
REQUESTS = [
    ("PUT", "vhosts/v", RIGHT, 201),
    ("DELETE", "vhosts/gone", RIGHT, 404),
    ("GET", "whoami", RIGHT, 200),
    ("PUT", "nowhere", RIGHT, 404),
    ("POST", "queues", RIGHT, 405),
    ("POST", "definitions/gone", RIGHT, 404),
    ("PUT", "queues/%2F/s", WRONG, 401),
]


def head(method: str, path: str, login: str = RIGHT, size: int = 0) -> bytes:
    token = base64.b64encode(login.encode()).decode()
    return (
        f"{method} /api/{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic {token}\r\n"
        f"content-length: {size}\r\n\r\n"
    ).encode()


async def answer(stream: Stream) -> httpx.Response:
    """The next answer, which came as a whole."""
    data = b""
    while b"\r\n\r\n" not in data:
        some = bytes(await stream.receive_some(100_000))
        assert some, f"the connection ended after {data!r}"
        data += some
    start, body = data.split(b"\r\n\r\n", 1)
    status, *lines = start.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    while len(body) < int(headers.get("content-length", 0)):
        body += bytes(await stream.receive_some(100_000))
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


@pytest.mark.parametrize(("method", "path", "login", "status"), REQUESTS)
@pytest.mark.parametrize("pause", [0.0, 0.5])
async def test_the_next_request_is_answered(
    server: Harness, method: str, path: str, login: str, status: int, pause: float
) -> None:
    stream = http_stream(server)
    await stream.send_all(head(method, path, login, size=2))
    await trio.sleep(pause)
    await stream.send_all(b"{}")
    found = await answer(stream)
    assert (found.status_code, found.headers.get("connection")) == (status, None)
    await stream.send_all(head("GET", "whoami"))
    assert (await answer(stream)).status_code == 200


@pytest.mark.parametrize(("method", "path", "login", "status"), REQUESTS)
async def test_a_body_that_does_not_come_ends_the_connection_with_the_answer(
    server: Harness, method: str, path: str, login: str, status: int
) -> None:
    stream = http_stream(server)
    await stream.send_all(head(method, path, login, size=2))
    found = await answer(stream)
    assert (found.status_code, found.headers["connection"]) == (status, "close")
    assert await stream.receive_some(1) == b""


@pytest.mark.parametrize(("method", "path", "login", "status"), REQUESTS)
async def test_a_body_too_large_to_be_thrown_away_does_not_take_the_answer_with_it(
    server: Harness, method: str, path: str, login: str, status: int
) -> None:
    size = 16 << 20
    stream = http_stream(server)
    sent = 0

    async def send() -> None:
        nonlocal sent
        await stream.send_all(head(method, path, login, size))
        while sent < size:  # a client that reads no answer before it has sent all
            await stream.send_all(bytes(1 << 16))
            sent += 1 << 16

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        found = await answer(stream)
    assert (found.status_code, found.headers["connection"]) == (status, "close")
    assert sent == size


async def test_what_is_no_http_is_told_so_before_its_connection_ends(server: Harness) -> None:
    stream = http_stream(server)
    await stream.send_all(b"GARBAGE\r\n\r\n")
    assert (await answer(stream)).status_code == 400
    await stream.send_all(bytes(1 << 16))  # is read: closing it now would take the answer back
    with trio.fail_after(5):
        assert await stream.receive_some(1) == b""
