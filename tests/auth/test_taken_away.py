"""What is taken away ends what was begun with it: nothing of it happens after that was answered.

Each request is asked over each door, and something is taken away from who has asked: after each
step that the server's tasks have taken since.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from streamd.auth.users import Right
from streamd.broker.catalog_rows import PermissionRow
from streamd.broker.names import as_sent
from tests.auth.test_rights import allow, world
from tests.support.server import Harness

EVERYTHING = PermissionRow("ada", "/", *[".*"] * 3)
Change = Callable[[Harness], Awaitable[object]]


class After(trio.abc.Instrument):
    """Sets `event` when tasks have taken so many steps."""

    def __init__(self, steps: int) -> None:
        self.event = trio.Event()
        self._left = steps

    def after_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if not self._left:
            self.event.set()


@asynccontextmanager
async def after(steps: int) -> AsyncIterator[trio.Event]:
    """An event that is set so many steps after the block has begun."""
    clock = After(steps)
    trio.lowlevel.add_instrument(clock)
    try:
        yield clock.event
    finally:
        trio.lowlevel.remove_instrument(clock)


async def deleted(server: Harness) -> None:
    await server.server.directory.remove_user(as_sent("ada"))


async def made_again(server: Harness) -> None:
    await deleted(server)
    await server.server.directory.put_user(as_sent("ada"), b"guest", ["administrator"])
    await server.server.directory.put_permission(EVERYTHING)


async def another_password(server: Harness) -> None:
    await server.server.directory.put_user(as_sent("ada"), b"another")


async def no_permission(server: Harness) -> None:
    await server.server.directory.remove_permission(as_sent("ada"), as_sent("/"))


CHANGES: dict[str, Change] = {
    "deleted": deleted,
    "made again": made_again,
    "another password": another_password,
    "no permission": no_permission,
}


# -- the rest of a frame


@pytest.mark.parametrize("change", CHANGES)
async def test_the_rest_of_a_frame_is_not_stored(tmp_path: Path, change: str) -> None:
    seen = set()
    for steps in range(1, 40, 3):
        async with world(tmp_path / str(steps)) as server:
            await server.host.create(
                "f", [("stream-filter-property", "kind"), ("stream-filter-derive", "true")]
            )
            await allow(server, [(Right.WRITE, "f")])
            peer = await server.peer(user="ada")
            await peer.declare("f")
            stream = server.host.find(as_sent("f"))
            async with after(steps) as now:
                await peer.publish([b"x"] * 2_000)
                await now.wait()
                await CHANGES[change](server)
                taken = stream.num_published
                await wait_all_tasks_blocked()
                assert stream.num_published == taken
            seen.add(taken)
    assert len(seen) > 2, "in the middle of it, too"
