"""Requests to the HTTP API of a server in memory."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import trio
from starlette.types import ASGIApp

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


def scope_of(path: str, *headers: tuple[bytes, bytes], query: bytes = b"") -> dict[str, Any]:
    """A request as a web server hands it to the application."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [(b"host", b"localhost"), *headers],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 1),
        "state": {},
    }


@asynccontextmanager
async def going_away(app: ASGIApp, scope: dict[str, Any]) -> AsyncIterator[trio.Event]:
    """A request that is a second old; its client goes away when the event is set."""
    gone, messages = trio.Event(), [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not messages:
            await gone.wait()
            return {"type": "http.disconnect"}
        return messages.pop()

    async def send(_message: object) -> None:
        pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(app, scope, receive, send)
        await trio.sleep(1)
        yield gone


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
