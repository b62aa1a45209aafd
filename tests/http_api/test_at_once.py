"""Requests about the same things at the same time: one is first, the other finds what it left."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.http import Http
from tests.support.server import harness

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
USER = {"password_hash": "", "tags": ""}


async def both(http: Http, method: str, path: str, body: Any = None) -> list[int]:
    """The codes that two equal requests are answered with."""
    codes: list[int] = []

    async def ask() -> None:
        codes.append(await http.code(method, path, body))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        nursery.start_soon(ask)
    return sorted(codes)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("users/ada", USER),
        ("vhosts/v", {}),
        ("permissions/%2F/bob", EVERYTHING),
        ("queues/%2F/s", {}),
        ("exchanges/%2F/x", {}),
    ],
)
async def test_of_two_that_put_one_is_first(http: Http, path: str, body: Any) -> None:
    await http.ask("PUT", "users/bob", USER)
    assert await both(http, "PUT", path, body) == [201, 204]


@pytest.mark.parametrize("path", ["users/bob", "vhosts/v", "permissions/%2F/bob", "queues/%2F/s"])
async def test_of_two_that_delete_one_finds_nothing(http: Http, path: str) -> None:
    await http.ask("PUT", "users/bob", USER)
    await http.ask("PUT", "vhosts/v", {})
    await http.ask("PUT", "permissions/%2F/bob", EVERYTHING)
    await http.ask("PUT", "queues/%2F/s", {})
    assert await both(http, "DELETE", path) == [204, 404]


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [("queues", {}), ("exchanges", {}), ("exchanges", {"x-super-stream": False})],
)
async def test_nothing_is_made_in_a_virtual_host_that_goes(
    tmp_path: Path, kind: str, arguments: dict[str, bool]
) -> None:
    codes: list[int] = []

    async def put() -> None:
        codes.append(await http.code("PUT", f"{kind}/v/name", {"arguments": arguments}))

    async def delete() -> None:
        assert await http.code("DELETE", "vhosts/v") == 204

    async with harness(tmp_path) as server:
        http = Http(server)
        await http.ask("PUT", "vhosts/v", {})
        turn = server.server.broker.catalog.turn  # both wait for theirs
        async with trio.open_nursery() as nursery, turn():
            for task in (delete, put):
                nursery.start_soon(task)
                await wait_all_tasks_blocked()
        assert codes == [404]
    async with harness(tmp_path) as server:  # it starts
        assert list(server.server.broker.virtual_hosts) == ["/"]
