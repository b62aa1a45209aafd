"""Connections by the hundred that say nothing, or never read, at a real server."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from clients import connect
from streamd.wire.stream import codec, commands as c
from tests.e2e.test_stop import raw
from tests.support.process import ServerProcess, wait_until

_EACH = 100  # connections to each port
_LIMIT = ("--max-connections", "250", "--max-http-connections", "60", "--http-port", "0")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", *_LIMIT) as running:
        yield running
    assert "Traceback" not in running.log.read_text()


def descriptors(process: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def publish_and_read(process: ServerProcess) -> None:
    async def main() -> None:
        async with connect(process.uri, retry_seconds=0) as client:
            await client.create("s", exist_ok=True)
            async with client.producer("s") as producer:
                await producer.send(b"x")
            async with client.consumer("s", offset="first") as messages:
                assert (await anext(messages)).body == b"x"

    asyncio.run(main())


def test_of_connections_that_say_nothing(process: ServerProcess) -> None:
    publish_and_read(process)
    before = descriptors(process)
    ports = (process.port, process.amqp_port, process.http_port)
    with contextlib.ExitStack() as stack:
        for port in ports * _EACH:
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        publish_and_read(process)
        assert httpx.get(f"http://127.0.0.1:{process.http_port}/api/overview").status_code == 401
        for _ in range(200):  # more than there can be
            stack.enter_context(socket.create_connection(("127.0.0.1", process.port)))
        publish_and_read(process)
    wait_until(lambda: descriptors(process) <= before)
    publish_and_read(process)


def test_of_answers_that_nobody_reads(process: ServerProcess) -> None:
    """Each asks for some hundred times more than it is ready to read."""
    publish_and_read(process)
    before, memory = descriptors(process), process.resident_bytes()
    asked = codec.encode(c.Metadata(9, tuple(f"{n:0200}" for n in range(50))))
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(raw(process.port))
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    connection.sendall(asked * 100)
        publish_and_read(process)
        assert process.resident_bytes() - memory < 20 * (4 << 20) + (20 << 20)
    wait_until(lambda: descriptors(process) <= before)
    publish_and_read(process)
