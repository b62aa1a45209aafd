"""However the bytes of a connection are read, it does the same."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.fake_store import FakeStore, late_answers
from tests.support.server import Harness, harness


@pytest.fixture(params=["polled", "tasks"])
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """A server whose connections are read in a poller's rounds, and one with a task for each."""
    async with harness(tmp_path, is_polled=request.param == "polled") as running:
        yield running


@pytest.fixture
def store(server: Harness) -> Iterator[FakeStore]:
    """That the server reads from."""
    store = FakeStore()
    server.server.broker.fetcher.use(store)
    with late_answers(store):
        yield store
