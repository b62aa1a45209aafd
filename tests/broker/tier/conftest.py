"""What most tests of the tier begin with: a store in memory, and a server whose tier it is."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broker.tier.support import tiered
from tests.support.fake_store import FakeStore
from tests.support.server import Harness


@pytest.fixture
def store() -> FakeStore:
    """A store with nothing in it."""
    return FakeStore()


@pytest.fixture
async def server(tmp_path: Path, store: FakeStore) -> AsyncIterator[Harness]:
    """A server over `tmp_path` whose tier is that store."""
    async with tiered(tmp_path, store) as running:
        yield running
