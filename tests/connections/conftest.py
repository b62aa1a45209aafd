"""However the bytes of a connection are read, it does the same."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.server import Harness, harness


@pytest.fixture(params=["polled", "tasks"])
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """A server whose connections are read in a poller's rounds, and one with a task for each."""
    async with harness(tmp_path, is_polled=request.param == "polled") as running:
        yield running
