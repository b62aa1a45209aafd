"""What several modules here begin with."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broker.nodes.spread import Three, start_three
from tests.broker.nodes.support import cluster


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    """See `start_three`."""
    async with cluster(tmp_path) as nodes:
        yield await start_three(nodes)
