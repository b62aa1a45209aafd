"""Requests to the HTTP API of a server in memory."""

import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx

from streamd.broker.declared.rows import PermissionRow
from tests.support.server import Harness


class Http:
    """Requests to a server in memory."""

    def __init__(self, server: Harness, address: str = "127.0.0.1") -> None:
        transport = httpx.ASGITransport(server.server.http_app(), client=(address, 40_000))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def ask(
        self, method: str, path: str, body: Any = None, user: str = "guest", password: str = ""
    ) -> httpx.Response:
        is_ready = body is None or isinstance(body, bytes | AsyncIterator)
        content = body if is_ready else json.dumps(body).encode()
        auth = httpx.BasicAuth(user, password or (user if user == "guest" else f"{user}-secret"))
        return await self._client.request(method, f"/api/{path}", content=content, auth=auth)

    async def get(self, path: str, user: str = "guest") -> Any:
        answer = await self.ask("GET", path, user=user)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()

    async def code(self, method: str, path: str, body: Any = None, user: str = "guest") -> int:
        return (await self.ask(method, path, body, user)).status_code

    async def reason(self, method: str, path: str, body: Any = None, user: str = "guest") -> str:
        answer = await self.ask(method, path, body, user)
        assert answer.status_code == 400, answer.text
        return str(answer.json()["reason"])


async def add_user(server: Harness, name: str, *tags: str, patterns: str = ".*") -> None:
    access = server.server.directory
    await access.put_user(name, f"{name}-secret".encode(), tags)
    await access.put_permission(PermissionRow(name, "/", patterns, patterns, patterns))


class Named:
    """What Hypercorn asks of a socket."""

    family = socket.AF_INET

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host

    def getpeername(self) -> tuple[str, int]:
        return self.host, 40_000

    getsockname = getpeername

    def close(self) -> None:
        pass
