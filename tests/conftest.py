"""How property tests draw their examples, and a server in memory at virtual time.

The same clone draws the same examples every time, so that a change is not blamed for a fault
it did not cause: a few, which a mended line must keep. `make search` draws others, and many more,
to find unknown faults. An example that fails becomes
an `@example` of its test.

Async tests of the folders and files in VIRTUAL_TIME run on a clock that jumps to the next deadline
when all tasks wait: sleeping takes no time.
"""

import gc
import inspect
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, Phase, settings
from trio.testing import MockClock

from streamd.connections import watch
from streamd.net import threads
from tests.support.http import Http
from tests.support.server import Harness, Peer, harness
from tests.support.stores import KINDS, StoreServer, Tier, tier_in
from tests.support.syncs import sync

VIRTUAL_TIME = {
    "net",
    "auth",
    "broker",
    "connections",
    "engine",
    "http_api",
    "metrics",
    "console",
    "test_limits.py",
    "test_states.py",
    "test_cancellation.py",
    "test_limits_of_use.py",
    "test_turns.py",
    "test_service_manager.py",
}

# Those that try something at every step of something else, a store that fails at any request, and
# whole worlds: `make proofs` runs them, `make test` the others.
PROOFS = (
    "auth/test_rights.py",
    "auth/test_taken_away.py",
    "broker/catalog/test_changes.py",
    "broker/nodes",
    "broker/tier",
    "cli/test_endings.py",
    "clients/test_cancellation.py",
    "clients/test_reconnect.py",
    "connections/test_hostile_peers.py",
    "e2e/test_kills.py",
    "e2e/test_nodes_faults.py",
    "processes",
    "segments/tier",
    "world",
)

# No test here may fail because the machine is slow.
slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", slow, derandomize=True, max_examples=50)
settings.register_profile("search", slow, derandomize=False, print_blob=True, max_examples=300)
unshrunk = settings(
    slow, derandomize=True, max_examples=50, phases=[Phase.explicit, Phase.generate]
)
settings.register_profile("unshrunk", unshrunk)  # where it counts that one fails, not which
settings.load_profile("fixed")

# Where tests are started in the background, a shell has interrupts ignored, and children inherit
# that: those that are to end by one never would.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No power fails while tests run; tests/support/disk.py looks at what is synced when.
os.fsync = os.fdatasync = sync  # type: ignore[assignment]


IN_THREAD = threads.in_thread


@pytest.fixture(autouse=True)
def real_threads() -> Iterator[None]:
    """Each test begins with the real worker threads.

    A server in memory puts its own way to them in their place, and a test may put another in its
    place. Which of the two is put back last depends on which of them ends first.
    """
    threads.in_thread = IN_THREAD
    yield
    threads.in_thread = IN_THREAD


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several test processes, all that use Spark in one of them: one JVM at a time."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - only with xdist

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            is_spark = nodeid.startswith("tests/segments/spark/") or "_in_spark" in nodeid
            return "spark" if is_spark else nodeid

    return Scheduling(config, log)


def run_at_virtual_time(main: Any, *, clock: Any = None, instruments: Any = ()) -> Any:
    """As trio.run, with a clock that jumps to the next deadline when all tasks wait."""
    clock = clock or MockClock(autojump_threshold=0)
    return trio.run(main, clock=clock, instruments=instruments)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proofs", choices=("only", "none"), help="these alone, or all others")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Proofs that are not wanted are not even imported."""
    here = Path(__file__).parent
    is_proof = any(collection_path.is_relative_to(here / one) for one in PROOFS)
    return True if is_proof and config.getoption("--proofs") == "none" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    wanted = config.getoption("--proofs")
    if wanted is not None:
        proofs = tuple(here / one for one in PROOFS)
        others = [
            item
            for item in items
            if any(item.path.is_relative_to(one) for one in proofs) != (wanted == "only")
        ]
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        is_async = inspect.iscoroutinefunction(getattr(item, "obj", None))
        if is_async and not VIRTUAL_TIME.isdisjoint(item.path.relative_to(here).parts):
            item.add_marker(pytest.mark.trio(run=run_at_virtual_time), append=False)


def pytest_collection_finish() -> None:
    """Modules and tests stay: whoever looks for garbage need not look through them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def slow_machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast this machine is ends no connection but in the tests of that."""
    if request.path.name != "test_watch.py":
        monkeypatch.setattr(watch, "HELD_SECONDS", math.inf)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Harness]:
    """A server whose connections are read in a poller's rounds, as in production."""
    async with harness(tmp_path, is_polled=True) as running:
        yield running


@pytest.fixture
async def peer(server: Harness) -> Peer:
    """A peer that has logged in."""
    return await server.peer()


@pytest.fixture
def http(server: Harness) -> Http:
    """Requests of the user guest, and of others."""
    return Http(server)


@pytest.fixture(scope="session")
def store_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], StoreServer]]:
    """Gives a running store of a kind, that all tests of this process share."""
    running: dict[str, StoreServer] = {}

    def start(kind: str) -> StoreServer:
        if kind not in running:
            folder = tmp_path_factory.mktemp(kind)
            running[kind] = StoreServer(kind, folder, is_lasting=False).start()
        return running[kind]

    yield start
    for server in running.values():
        server.kill()


@pytest.fixture(params=KINDS)
def tier(
    request: pytest.FixtureRequest,
    store_server: Callable[[str], StoreServer],
    monkeypatch: pytest.MonkeyPatch,
) -> Tier:
    """A tier of the test's own in each kind of store; those that are not built are skipped."""
    return tier_in(store_server(request.param), monkeypatch)
