"""Requests about the same things at the same time: one is first, the other finds what it left."""

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.http import Http
from tests.support.server import Harness

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


async def test_nothing_is_made_in_a_virtual_host_that_goes(server: Harness, http: Http) -> None:
    await http.ask("PUT", "vhosts/v", {})
    codes: dict[str, int] = {}

    async def put(path: str) -> None:
        codes[path] = await http.code("PUT", f"{path}/v/name", {})

    async def delete() -> None:
        assert await http.code("DELETE", "vhosts/v") == 204

    turn = server.server.broker.catalog.turn  # all of them wait for theirs
    async with trio.open_nursery() as nursery, turn():
        for task in (delete, partial(put, "queues"), partial(put, "exchanges")):
            nursery.start_soon(task)
            await wait_all_tasks_blocked()
    assert codes == {"queues": 404, "exchanges": 404}
