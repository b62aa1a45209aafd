"""The people of the world at a real server, over sockets, which is killed in the middle.

A simulation can be wrong about the machine: here are a process, its ports, its signals and its
files. What each client was answered is judged as in the world.
"""

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trio

from streamd.server import STREAM, ServedProtocol
from tests.support.process import ServerProcess
from tests.world.box import Line
from tests.world.doors import DOORS
from tests.world.people import People
from tests.world.witness import Witness

_SECONDS = 2  # before the kill, and after it
_CLIENTS = 6


class _Box:
    """What clients need of tests.world.box.Box, over sockets."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.server: ServerProcess | None = process
        self.lines: list[Any] = []
        self.told_of_ends: list[Callable[[], None]] = []
        self.was_wiped = False
        self.settings: dict[str, Any] = {}

    def dial(self, service: ServedProtocol) -> Line:
        port = self.process.port if service is STREAM else self.process.amqp_port
        connected = socket.create_connection(("127.0.0.1", port))
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(connected))
        self.lines.append(Line(trio.StapledStream(_Half(stream), _Half(stream))))
        return self.lines[-1]

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.process.http_port}", timeout=60)

    async def kill(self) -> None:
        """With -9, and start it again."""
        self.server = None
        self.process.kill()
        for line in self.lines:
            line.kill()
        for tell in self.told_of_ends:
            tell()
        await trio.to_thread.run_sync(self.process.start)
        self.server = self.process


class _Half:
    """A direction of a socket, which can be closed at once."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.send_all, self.receive_some = stream.send_all, stream.receive_some
        self.close = stream.socket.close


@contextmanager
def _people(folder: Path) -> Iterator[tuple[People, SimpleNamespace]]:
    process = ServerProcess(folder, "--http-port", "0", "--flush-ms", "50").start()

    async def guarded(_name: str, work: Callable[[], Awaitable[None]]) -> bool:
        await work()
        return True

    world = SimpleNamespace(
        box=_Box(process),
        witness=Witness("interval"),
        is_ending=False,
        parts=[],
        chance_of=Random,
        holds_streams=lambda: False,
        note=lambda *_: None,
        guarded=guarded,
    )
    try:
        people = People(world)  # type: ignore[arg-type]
        people.may_fail = lambda: False  # type: ignore[method-assign]
        yield people, world
    finally:
        process.end()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # httpx, when killed
def test_every_answer_is_explained(tmp_path: Path) -> None:
    async def live() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(_CLIENTS):
                door = DOORS[number % len(DOORS)]
                nursery.start_soon(people.live, f"c{number}", door, 1_000)
            await trio.sleep(_SECONDS)
            await world.box.kill()
            await trio.sleep(_SECONDS)
            world.is_ending = True

    with _people(tmp_path / "data") as (people, world):
        trio.run(live)
        assert people.judge() + world.witness.faults == []
        assert sum(len(history.requests) for history in people.histories.values()) > 20
        assert world.box.process.stop() == 0
