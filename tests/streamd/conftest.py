"""A server in memory for each test. All tests here run at virtual time: sleeping takes none."""

import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.http import Http
from tests.support.server import Harness, Peer, harness


def run_at_virtual_time(main: Any, *, clock: Any = None, instruments: Any = ()) -> Any:
    """As trio.run, with a clock that jumps to the next deadline when all tasks wait."""
    clock = clock or MockClock(autojump_threshold=0)
    return trio.run(main, clock=clock, instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        is_async = inspect.iscoroutinefunction(getattr(item, "obj", None))
        if is_async and item.path.is_relative_to(here):
            item.add_marker(pytest.mark.trio(run=run_at_virtual_time), append=False)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    async with harness(tmp_path) as running:
        yield running


@pytest.fixture
async def peer(server: Harness) -> Peer:
    """A peer that has logged in."""
    return await server.peer()


@pytest.fixture
def http(server: Harness) -> Http:
    """Requests of the user guest, and of others."""
    return Http(server)
