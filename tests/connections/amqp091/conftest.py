"""AMQP clients meet the same server whether a door is between them or not."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.server import Harness, harness


@pytest.fixture(params=["polled", "door"])
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """Polled; and with tasks of their own, for AMQP connections that are in a door."""
    async with harness(tmp_path, is_polled=request.param == "polled") as running:
        running.has_amqp_door = request.param == "door"
        yield running
