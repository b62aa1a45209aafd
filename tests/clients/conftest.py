"""One real server for all tests of the client; every test has streams of its own."""

import functools
import inspect
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import anyio
import pytest

from clients import Client, connect
from tests.support.process import PATIENCE_SECONDS, ServerProcess

Result = TypeVar("Result")
_numbers = itertools.count()


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("clients")
    process = ServerProcess(folder / "data", module="tests.support.impatient")
    try:
        yield process.start()
    finally:
        process.end()
    assert "Traceback" not in process.log.read_text()


@pytest.fixture
def stream() -> str:
    """A name that no other test uses."""
    return f"stream-{next(_numbers)}"


class Runner:
    """Runs programs that use a client, in asyncio and in trio."""

    def __init__(self, uri: str, backend: str) -> None:
        self.uri = uri
        self.backend = backend

    def __call__(self, work: Callable[[Client], Awaitable[Result]]) -> Result:
        async def main() -> Result:
            with anyio.fail_after(PATIENCE_SECONDS):
                async with connect(self.uri) as client:
                    return await work(client)

        return anyio.run(main, backend=self.backend)


@pytest.fixture(params=["asyncio", "trio"])
def run(running_server: ServerProcess, request: pytest.FixtureRequest) -> Runner:
    return Runner(running_server.uri, request.param)


def program(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a program with a `client`: it is run in asyncio and in trio."""

    @functools.wraps(test)
    def in_loop(*given: Any, run: Runner, **fixtures: Any) -> None:
        run(lambda client: test(*given, client=client, **fixtures))

    asked = inspect.signature(test)
    loop = inspect.Parameter("run", inspect.Parameter.KEYWORD_ONLY)
    others = [one for name, one in asked.parameters.items() if name != "client"]
    in_loop.__signature__ = asked.replace(parameters=[*others, loop])  # type: ignore[attr-defined]
    return in_loop
