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
    with ServerProcess(folder / "data", module="tests.support.impatient") as process:
        yield process
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


def given_by(
    run: Callable[[Callable[..., Awaitable[None]], Any], object], fixture: str, *names: str
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a test of a function that gets some of its parameters from what runs it.

    Args:
        run: what runs it, with what a fixture has.
        fixture: its name.
        names: of those parameters.
    """

    def test_of(work: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        asked = inspect.signature(work)

        @functools.wraps(work)
        def test(*first: Any, **fixtures: Any) -> None:
            def with_all(*given: Any) -> Awaitable[None]:
                more = dict(zip(names, given, strict=True))
                return work(
                    *first, **{k: more[k] for k in more if k in asked.parameters}, **fixtures
                )

            run(with_all, fixtures.pop(fixture))

        last = inspect.Parameter(fixture, inspect.Parameter.KEYWORD_ONLY)
        others = [one for name, one in asked.parameters.items() if name not in names]
        test.__signature__ = asked.replace(parameters=[*others, last])  # type: ignore[attr-defined]
        return test

    return test_of


# A program with a client of the running server: it is run in asyncio and in trio.
program = given_by(lambda work, run: run(work), "run", "client")
