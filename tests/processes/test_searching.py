"""Searches in processes beside the engine: what is found, and what their ends do to it."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from clients import Message, connect
from clients.errors import StreamNotAvailable
from tests.processes.conftest import Start
from tests.processes.test_processes import children, eventually, is_running
from tests.support.process import ServerProcess

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

NUMBER = 3_000


def searching(server: ServerProcess) -> list[int]:
    """The processes in which searches are worked on."""
    found = []
    for pid in children(server.pid):
        with suppress(OSError):
            if b"segments.search.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.fixture
def server(start: Start) -> ServerProcess:
    return start()


async def fill(server: ServerProcess, name: str = "s") -> None:
    """Messages with their number for a key, and a region, in segments of a few hundred."""
    async with connect(server.uri) as client:
        arguments = {
            "stream-max-segment-size-bytes": "20000",
            "stream-filter-property": "region",
            "stream-key-properties": "number",
        }
        await client.create(name, arguments=arguments)
        async with client.producer(name) as producer:
            for n in range(NUMBER):
                properties = {"number": str(n), "region": "EU" if n % 7 else "US"}
                await producer.send(Message(b"%d" % n, application_properties=properties))


async def found(server: ServerProcess, **wanted: object) -> list[int]:
    async with connect(server.uri) as client:
        return [m.offset async for m in client.find("s", **wanted)]  # type: ignore[arg-type]


async def test_what_is_found_beside_the_engine(server: ServerProcess) -> None:
    await fill(server)
    assert await found(server, key="1234") == [1234]
    assert await found(server, sql="region = 'US'") == [*range(0, NUMBER, 7)]
    assert await found(server, filter_values=["US"], newest=True, limit=2) == [2996, 2989]
    assert len(await found(server)) == NUMBER
    (pid,) = searching(server)
    for _ in range(3):  # it is used again
        assert await found(server, key="7", newest=True) == [7]
    assert searching(server) == [pid]
    assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, server.pid)
    server.stop()
    assert not is_running(pid)


async def test_a_page_whose_process_is_killed_is_asked_again(server: ServerProcess) -> None:
    await fill(server)
    assert await found(server, key="5") == [5]
    for pid in searching(server):
        os.kill(pid, signal.SIGKILL)
    assert await found(server, sql="region = 'US'") == [*range(0, NUMBER, 7)]
    assert server.log.read_text().count("a process that searched has ended") == 1


async def test_one_that_ends_each_time_is_refused(server: ServerProcess) -> None:
    """And another search is not."""
    await fill(server)
    reason = ""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_kill_all, server)
        while not reason:
            try:
                await found(server, sql="region = 'none'")
            except StreamNotAvailable as error:
                reason = str(error)
        tasks.cancel_scope.cancel()
    assert "has ended twice" in reason
    assert await found(server, key="5") == [5]


async def _kill_all(server: ServerProcess) -> None:
    while True:
        for pid in searching(server):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await anyio.sleep(0.005)


async def test_a_search_that_nobody_waits_for_ends(server: ServerProcess) -> None:
    """Its process is stopped, so that it would last for ever."""
    await fill(server)
    assert await found(server, key="5") == [5]
    (pid,) = searching(server)
    os.kill(pid, signal.SIGSTOP)
    with anyio.move_on_after(1):
        await found(server, sql="region = 'none'")
    eventually(lambda: not is_running(pid))
    assert await found(server, key="5") == [5]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_they_end_with_the_engine(server: ServerProcess, number: signal.Signals) -> None:
    await fill(server)
    assert await found(server, key="5") == [5]
    (pid,) = searching(server)
    server.signal(number)
    server.wait()
    eventually(lambda: not is_running(pid))


async def test_a_single_process_searches_by_itself(start: Start) -> None:
    server = start("--single-process")
    await fill(server)
    assert await found(server, sql="region = 'US'") == [*range(0, NUMBER, 7)]
    assert not searching(server)
