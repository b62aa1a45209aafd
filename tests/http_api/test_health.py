"""Probes without a login: whether the server lives, and whether it is ready."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from streamd.broker.stream_logs import StreamLogs
from streamd.broker.streams.stream import Stream
from streamd.broker.virtual_host import VirtualHost
from tests.auth import needs
from tests.support.node import FakeNode
from tests.support.server import Harness, harness

OK = {"status": "ok"}


@asynccontextmanager
async def anybody(server: Harness, address: str = "192.0.2.7") -> AsyncIterator[httpx.AsyncClient]:
    """Requests without a password, from another machine; an orchestrator names an address."""
    transport = httpx.ASGITransport(server.server.http_app(), client=(address, 40_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://192.0.2.1:15672") as client:
        yield client


async def ready(client: httpx.AsyncClient) -> tuple[int, Any]:
    await trio.sleep(1)  # an answer holds for so long
    answer = await client.get("/readyz")
    return answer.status_code, answer.json()


async def fail(stream: Stream, reason: str) -> None:
    await stream.ready()
    stream.life.held.writer.failure = reason


async def test_live_and_ready(tmp_path: Path) -> None:
    async with harness(tmp_path) as server, anybody(server) as client:
        for path in ("/healthz", "/readyz", "/healthz/", "/healthz?verbose"):
            await trio.sleep(1)
            answer = await client.get(path)
            assert (answer.status_code, answer.json()) == (200, OK), path
            assert answer.headers["cache-control"] == "no-store"
        assert (await client.head("/readyz")).status_code == 200
        assert (await client.post("/healthz")).status_code == 405


async def test_a_stream_that_accepts_nothing(tmp_path: Path) -> None:
    async with harness(tmp_path) as server, anybody(server) as client:
        await server.host.create("secret", [])
        stream = server.host.find("secret")
        await fail(stream, "/secret/path: the disk is broken")
        reason = "some streams accept no messages"
        assert await ready(client) == (503, {"status": "failed", "reason": reason})
        assert (await client.get("/healthz")).status_code == 200
        stream.life.held.writer.failure = ""
        assert await ready(client) == (200, OK)


async def test_not_before_all_streams_were_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness(tmp_path) as server:
        for name in ("a", "b"):
            await server.host.create(name, [])
            await server.host.find(name).ready()  # now it has files
    may_open = trio.Event()
    original = StreamLogs.open_log

    async def open_log(self: StreamLogs, stream: Stream) -> Any:
        await may_open.wait()
        return await original(self, stream)

    monkeypatch.setattr(StreamLogs, "open_log", open_log)
    async with harness(tmp_path) as server, anybody(server) as client:
        code, answer = await ready(client)
        assert (code, answer["reason"]) == (503, "not all streams have been opened since the start")
        may_open.set()
        await trio.sleep(1)
        assert await ready(client) == (200, OK)


async def test_many_questions_are_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask, and each look goes through all streams."""
    looks = 0
    original = VirtualHost.alarms

    def alarms(self: VirtualHost) -> Any:
        nonlocal looks
        looks += 1
        return original(self)

    monkeypatch.setattr(VirtualHost, "alarms", alarms)
    async with harness(tmp_path) as server, anybody(server) as client:
        await trio.sleep(1)
        for _ in range(100):
            assert (await client.get("/readyz")).status_code == 200
        assert looks == 1


async def test_everything_else_needs_a_login(tmp_path: Path) -> None:
    listed = {*needs.HTTP, *needs.HTTP_WITHOUT_NEEDS, *needs.HTTP_OF_A_HOST}
    pages = ("/", "/healthz/x", "/healthzx", "//healthz", "/apix")
    more = {f"GET {path}" for path in (*pages, "/api", "/api/healthz")}
    async with harness(tmp_path) as server, anybody(server) as client:
        for route in sorted(listed | more):
            verb, path = re.sub(r"\{(\w+)\}", lambda m: needs.FILLED[m[1]], route).split()
            answer = await client.request(verb, f"http://192.0.2.1{path}")
            assert answer.status_code == (303 if path in pages else 401), route


async def test_other_names_and_pages_are_refused_as_everywhere(tmp_path: Path) -> None:
    async with harness(tmp_path) as server, anybody(server) as client:
        for host, code in (("192.0.2.1", 200), ("localhost", 200), ("evil.example", 403)):
            assert (await client.get("/healthz", headers={"host": host})).status_code == code


async def test_behind_a_prefix(tmp_path: Path) -> None:
    async with harness(tmp_path, http_path_prefix="/streamd") as server, anybody(server) as client:
        for path, code in (
            ("/streamd/healthz", 200),
            ("/streamd/readyz", 200),
            ("/healthz", 404),
            ("/streamd/api/streamd/healthz", 401),
            ("/streamd/healthz/streamd/api/users", 303),
            ("/streamd/streamd/healthz", 303),
        ):
            await trio.sleep(1)
            assert (await client.get(path)).status_code == code, path


async def test_a_node_says_its_role(server: Harness) -> None:
    server.server.broker.node = FakeNode()
    async with anybody(server) as client:
        code, answer = await ready(client)
        assert (code, answer) == (200, {"status": "ok", "role": "standby"})
        assert (await client.get("/healthz")).json() == {"status": "ok", "role": "standby"}
