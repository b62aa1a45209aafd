"""What several modules here begin with."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broker.nodes.spread import Three, start_three
from tests.broker.nodes.support import Nodes, cluster


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    """A cluster without a node so far."""
    async with cluster(tmp_path) as found:
        yield found


@pytest.fixture
async def three(nodes: Nodes) -> Three:
    """See `start_three`."""
    return await start_three(nodes)
