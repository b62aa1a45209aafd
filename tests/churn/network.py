"""Ways to a server: over sockets, or in memory."""

from typing import Any

import httpx
import trio

from tests.support.amqp import AmqpPeer, connect
from tests.support.process import ServerProcess
from tests.support.server import Harness, Peer


class Sockets:
    """To a server in a process of its own."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    async def stream(self) -> Peer:
        return Peer(await _connect(self._server.port))

    async def amqp(self) -> AmqpPeer:
        return AmqpPeer(await _connect(self._server.amqp_port))

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._server.http_port}", timeout=60)


async def _connect(port: int) -> Any:
    return await trio.open_tcp_stream("127.0.0.1", port)


class Memory:
    """To a server in this process."""

    def __init__(self, server: Harness) -> None:
        self._server = server
        self._app = server.server.http_app()

    async def stream(self) -> Peer:
        return self._server.connect()

    async def amqp(self) -> AmqpPeer:
        return connect(self._server)

    def http(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self._app, client=("127.0.0.1", 40_000))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")
