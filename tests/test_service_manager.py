"""What a service manager is told, over a real socket, at virtual time."""

import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from streamd.broker.supervisor import Supervisor
from streamd.service_manager import ServiceManager

WATCHDOG = {"WATCHDOG_USEC": "30000000"}


class Listener:
    """The manager's end."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def heard(self) -> list[list[str]]:
        """The messages since the last call, each as its lines."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(4_096).decode().split("\n"))
            except BlockingIOError:
                return found

    async def listen(self, seconds: int) -> list[list[str]]:
        """The messages of the next seconds: the kernel keeps few of them."""
        found = []
        for _ in range(seconds):
            await trio.sleep(1)
            found += self.heard()
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["a file", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        f"\0streamd-{os.getpid()}-{id(request)}"
        if request.param == "abstract"
        else str(tmp_path / "notify")
    )


@pytest.fixture
def listener(address: str) -> Iterator[Listener]:
    found = Listener(address)
    yield found
    found.close()


class Running:
    """A manager beside a server that is ready; see `running`."""

    def __init__(self, nursery: trio.Nursery, address: str, **more: str) -> None:
        self.nursery = nursery
        self.supervisor = Supervisor(nursery)
        self.stop = trio.Event()
        self.status: Any = "2 streams, 1 connection"
        shown = address.replace("\0", "@", 1)
        self.manager = ServiceManager({"NOTIFY_SOCKET": shown, **more})
        self.manager.ready(self.supervisor, nursery, self.stop, self._status)

    def _status(self) -> str:
        if isinstance(self.status, Exception):
            raise self.status
        return str(self.status)


@asynccontextmanager
async def run(address: str, **environment: str) -> AsyncIterator[Running]:
    async with trio.open_nursery() as nursery:
        found = Running(nursery, address, **environment)
        with closing(found.manager):
            yield found
        nursery.cancel_scope.cancel()


async def test_ready_status_and_end(listener: Listener, address: str) -> None:
    async with run(address) as running:
        await wait_all_tasks_blocked()
        assert listener.heard() == [["READY=1"], ["STATUS=2 streams, 1 connection"]]
        assert await listener.listen(60) == []
        running.status = "3 streams"
        assert await listener.listen(11) == [["STATUS=3 streams"]]
        running.stop.set()
        await wait_all_tasks_blocked()
        assert listener.heard() == [
            ["STOPPING=1", "STATUS=stopping: stores what has arrived"],
            ["EXTEND_TIMEOUT_USEC=20000000"],
        ]
        running.status = "nobody wants to know"
        more = await listener.listen(100)
        assert set(map(tuple, more)) == {("EXTEND_TIMEOUT_USEC=20000000",)}
        assert len(more) in (19, 20)
        more = await listener.listen(1_000)
        assert 30 < len(more) < 50, "a disk that hangs is not waited for without end"


async def test_the_watchdog_hears_twice_in_its_time(listener: Listener, address: str) -> None:
    async with run(address, WATCHDOG_PID=str(os.getpid()), **WATCHDOG) as running:
        heard = await listener.listen(150)
        assert sum(lines == ["WATCHDOG=1"] for lines in heard) in (10, 11)
        running.stop.set()
        assert ["WATCHDOG=1"] in await listener.listen(30), "the end may take longer"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "-1"},
        {"WATCHDOG_PID": "1", **WATCHDOG},
    ],
)
async def test_no_watchdog(listener: Listener, address: str, environment: dict[str, str]) -> None:
    async with run(address, **environment) as running:
        assert running.supervisor.num_faults == 0
        assert ["WATCHDOG=1"] not in await listener.listen(100)


async def test_a_fault_of_the_status_is_no_standstill(listener: Listener, address: str) -> None:
    async with run(address, **WATCHDOG) as running:
        running.status = ValueError("a bug")
        for _ in range(20):
            assert ["WATCHDOG=1"] in await listener.listen(16)
        assert running.supervisor.num_faults
        running.status = "well again"
        assert ["STATUS=well again"] in await listener.listen(100)


def test_reloading(listener: Listener, address: str) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": address.replace("\0", "@", 1)})
    with pytest.raises(ValueError, match="bad"), manager.reloading():
        raise ValueError("bad")
    (first, second), last = listener.heard()
    assert first == "RELOADING=1"
    assert int(second.removeprefix("MONOTONIC_USEC=")) > 0
    assert last == ["READY=1"]
    manager.close()


@pytest.mark.parametrize("name", ["", "nonsense", "vsock:2:1234"])
async def test_no_manager(name: str) -> None:
    async with run(name, **WATCHDOG) as running:
        with running.manager.reloading():
            pass
        await trio.sleep(100)
        assert not running.nursery.child_tasks, "and no tasks for it"


async def test_a_manager_that_has_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = str(tmp_path / "notify")
    async with run(address, **WATCHDOG) as running:
        await trio.sleep(100)
        assert running.supervisor.num_faults == 0
        assert len(caplog.records) == 1, "it is told once"
        listener = Listener(address)
        heard = [line for lines in await listener.listen(16) for line in lines]
        assert "WATCHDOG=1" in heard, "after daemon-reexec, say, it is there again"
        assert heard.count("READY=1") == 1, "what must arrive is said again"
        listener.close()


async def test_a_manager_that_does_not_read(listener: Listener, address: str) -> None:
    """The server does not wait, and what must arrive is said again."""
    filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    filler.setblocking(False)
    with filler, suppress(BlockingIOError):
        while True:
            filler.sendto(b"x", address)
    async with run(address):
        await trio.sleep(60)
        assert set(map(tuple, listener.heard())) == {("x",)}
        assert await listener.listen(11) == [["READY=1", "STATUS=2 streams, 1 connection"]]
