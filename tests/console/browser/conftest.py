"""One browser and one server for all tests with a browser; each has a tab of its own."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import Tab, chromium
from tests.support.process import ServerProcess


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("console") / "data", "--http-port", "0")
    server.start()
    yield server
    server.end()


@pytest.fixture(scope="session")
def login(browser: Any, served: ServerProcess) -> Any:
    """What a browser keeps that has logged in."""
    first = Tab(browser, f"http://127.0.0.1:{served.http_port}")
    first.log_in()
    state = first.context.storage_state()
    first.close()
    return state


@pytest.fixture
def tab(browser: Any, served: ServerProcess, login: Any) -> Iterator[Tab]:
    """A tab that has logged in, and shows the overview."""
    found = Tab(browser, f"http://127.0.0.1:{served.http_port}", storage_state=login)
    found.go("/")
    yield found
    found.close()


@pytest.fixture
def stranger(browser: Any, served: ServerProcess) -> Iterator[Tab]:
    """A tab that has not."""
    found = Tab(browser, f"http://127.0.0.1:{served.http_port}")
    yield found
    found.close()
