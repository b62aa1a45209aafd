"""A server in memory for the tests of the console: how it reads connections makes no difference."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.console import Visitor, entered
from tests.support.server import Harness, harness


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    async with harness(tmp_path) as running:
        yield running


@pytest.fixture
async def browser(server: Harness) -> Visitor:
    """An administrator who has logged in."""
    return await entered(server)
