"""Real servers: one of its own for a test that stops it or counts what it has, else one for all."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from clients import connect
from tests.support.process import ServerProcess

_numbers = itertools.count()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server for this test alone."""
    with ServerProcess(tmp_path / "data", module="tests.support.impatient") as process:
        yield process
    assert "Traceback" not in process.log.read_text()


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that nobody stops."""
    folder = tmp_path_factory.mktemp("e2e")
    options = ("--http-port", "0")
    with ServerProcess(folder / "data", *options, module="tests.support.impatient") as process:
        yield process


@pytest.fixture
def shared(running_server: ServerProcess) -> Iterator[ServerProcess]:
    """The running server, seen from a virtual host that is this test's alone."""
    yield from _virtual_host_in(running_server)


@pytest.fixture(scope="module")
def shared_by_module(running_server: ServerProcess) -> Iterator[ServerProcess]:
    """The same for all tests of a file together."""
    yield from _virtual_host_in(running_server)


def _virtual_host_in(server: ServerProcess) -> Iterator[ServerProcess]:
    name = f"test-{next(_numbers)}"

    async def manage(operation: str) -> None:
        async with connect(server.uri) as client:
            await client.manage(operation, name=name)

    anyio.run(manage, "vhost.add")
    before = len(server.log.read_text())
    yield server.within(name)
    assert "Traceback" not in server.log.read_text()[before:]
    anyio.run(manage, "vhost.delete")
