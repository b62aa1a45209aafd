"""A box: a machine, the server on it, and what is connected to it.

Whoever kills a box hears nothing from it any more, at once. What it was doing goes on in the folder
it had, where nobody looks; the next server starts from what the machine has kept.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context
from random import Random
from typing import Any, Protocol

import httpx
import trio

from clients import ConnectionLost
from segments.errors import leaves
from streamd.server import STREAM, ServedProtocol, StartAgain, StartError
from tests.support.amqp import AmqpPeer
from tests.support.amqp10 import Amqp10Peer
from tests.support.client import MemoryByteStream
from tests.support.proxy import Cut
from tests.support.server import AMQP, Harness, Peer, serving
from tests.world import machine as machines
from tests.world.machine import Machine

_READ_SECONDS = 6  # in which clients read what a server that ends has sent
_AWAY = (0.01, 0.5, 8)  # seconds until a server is started again
_LOOKS, _BACK = 0.1, (0, 0.5, 2)  # seconds until clients are back
GONE = (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError)


class Breakable(Protocol):
    """Somebody's connection."""

    def kill(self) -> None:
        """It breaks."""


class Line:
    """A client's end of a connection."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self.stream = stream
        self.is_killed = False

    def kill(self) -> None:
        """It breaks."""
        self.is_killed = True
        self.stream.send_stream.close()
        self.stream.receive_stream.close()


class Box:
    """See above.

    Args:
        machine: what the server is on.
        chance: decides how long it is away.
        now_ms: the clock on its wall.
        began: is called with each server, before anybody can reach it.

    Attributes:
        settings: of each server that starts from now on.
        server: the one that runs, None while there is none.
        lines: to it.
        refusals: why servers did not start, with nothing wrong about their disk.
        drained: the last server that has ended in order.
        was_wiped: what was on its disk is lost, but for what others have of it.
        told_of_ends: is called when a server has ended, whichever way.
        is_over: no server is started any more.
        left: is called when nothing of a server counts any more.
        may_refuse: says whether something else may keep a server from starting.
        cut: says when a new connection of the client library breaks.
        skew_ms: that the clock on its own wall is wrong.
    """

    def __init__(
        self,
        machine: Machine,
        chance: Random,
        now_ms: Callable[[], int],
        began: Callable[[Harness], None],
    ) -> None:
        self.machine = machine
        self.settings: dict[str, Any] = {"http_port": None}
        self.server: Harness | None = None
        self.lines: list[Breakable] = []
        self.refusals: list[str] = []
        self.told_of_ends: list[Callable[[], None]] = []
        self.is_over = False
        self.left: Callable[[], None] = lambda: None
        self.may_refuse: Callable[[], bool] = lambda: False
        self.cut: Callable[[], Cut] = Cut
        self.drained: Harness | None = None
        self._app: tuple[Harness, Any] | None = None
        self.was_wiped = False
        self._is_starting = False
        self._stop = trio.Event()
        self._chance = chance
        self.skew_ms = 0
        self._now_ms: Callable[[], int] = lambda: now_ms() + self.skew_ms
        self._began = began
        self._life = trio.CancelScope()
        self._behind: Callable[[], None] | None = None

    @property
    def is_node(self) -> bool:
        """Its server is one of a cluster, and is started again when it becomes something else."""
        return "node" in self.settings

    async def live(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start servers, one after the other."""
        machines.here.set(self.machine)
        self._context = copy_context()  # of all that the server does
        is_first = True
        while not self.is_over:
            is_other = False
            with trio.CancelScope() as self._life:
                data, num_refused = self.machine.data, self.machine.num_refused
                self._is_starting, self._stop = True, trio.Event()
                try:
                    async with serving(
                        data, self._now_ms, is_polled=True, **self.settings
                    ) as server:
                        self._began(server)
                        self.server, self._is_starting = server, False
                        if is_first:
                            task_status.started()
                            is_first = False
                        try:
                            await server.server.ended(self._stop)
                        finally:
                            self.server = None
                    is_other = not self._stop.is_set()
                except* StartAgain:
                    is_other = True
                except* StartError as group:
                    is_fine = num_refused == self.machine.num_refused
                    if is_fine and data == self.machine.data and not self.may_refuse():
                        self.refusals.append(str(next(leaves(group))))
            self._is_starting = False
            self._tell_of_end()
            behind, self._behind = self._behind, None
            if behind is not None:
                behind()
            if not self.is_over and not is_other:
                await trio.sleep(self._chance.choice(_AWAY))

    async def comes_up(self) -> None:
        """Return when there is a server, and who was connected is so again, perhaps."""
        if self.server is None:
            while self.server is None:
                await trio.sleep(_LOOKS)
            await trio.sleep(self._chance.choice(_BACK))

    def end(self) -> None:
        """No server any more."""
        self.is_over = True
        self._life.cancel()

    # -- who reaches it

    def dial(self, service: ServedProtocol) -> Line:
        """A client's end of a new connection.

        Raises:
            ConnectionLost: nobody is there.
        """
        if self.server is None:
            raise ConnectionLost("nobody is there")
        line = Line(self._context.run(self.server.dial, service))
        self.lines.append(line)
        return line

    def reach(self) -> MemoryByteStream:
        """The same for the client library."""
        if self.server is None:
            raise ConnectionLost("nobody is there")
        line = MemoryByteStream(self._context.run(self.server.connect), self.cut())
        self.lines.append(line)
        return line

    def http(self) -> httpx.AsyncClient:
        """The same for the HTTP API; the server works in the task that asks."""
        if self.server is None:
            raise ConnectionLost("nobody is there")
        machines.here.set(self.machine)
        if self._app is None or self._app[0] is not self.server:  # to make one takes long
            self._app = self.server, self.server.server.http_app()
        transport = httpx.ASGITransport(self._app[1], client=("127.0.0.1", 40_000))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", trust_env=False)

    @asynccontextmanager
    async def peer(self, **login: Any) -> AsyncIterator[Peer]:
        """A peer of the stream protocol that has logged in."""
        line = self.dial(STREAM)
        try:
            peer = Peer(line.stream)
            await peer.log_in(**login)
            yield peer
        finally:
            line.kill()

    @asynccontextmanager
    async def amqp(self, **login: Any) -> AsyncIterator[AmqpPeer]:
        """A peer of AMQP that has logged in and opened channel 1."""
        line = self.dial(AMQP)
        try:
            peer = AmqpPeer(line.stream)
            await peer.log_in(**login)
            await peer.open()
            yield peer
        finally:
            line.kill()

    @asynccontextmanager
    async def amqp10(self, **login: Any) -> AsyncIterator[Amqp10Peer]:
        """A peer of AMQP 1.0 that has logged in."""
        line = self.dial(AMQP)
        try:
            peer = Amqp10Peer(line.stream)
            await peer.log_in(**login)
            yield peer
        finally:
            line.kill()

    def line_of(self, peer: Peer) -> Line:
        """The connection of a peer."""
        return next(
            one for one in self.lines if isinstance(one, Line) and one.stream is peer.stream
        )

    # -- what goes wrong

    def stop(self, behind: Callable[[], None]) -> None:
        """The server ends in order; `behind` is called when it has."""
        if self.server is not None:
            self.server, self._behind = None, behind
            for line in self.lines:
                if not isinstance(line, Line | MemoryByteStream):
                    line.kill()  # a request over HTTP; the others hear it from the server
            self.lines.clear()
            self._leave_in_order()

    def _leave_in_order(self) -> None:
        """A node says that it has left, which takes some time."""
        if self.is_node:
            self._stop.set()
        else:
            self._life.cancel()

    def kill(self) -> bool:
        """The process ends; whether there was one."""
        return self._vanish(self.machine.kill)

    def cut_power(self) -> bool:
        """The power fails."""
        return self._vanish(self.machine.cut_power)

    def wipe(self) -> bool:
        """The machine is lost; the next server starts on an empty one."""
        self.was_wiped = True
        return self._vanish(self.machine.wipe)

    def _vanish(self, leave: Callable[[], None]) -> bool:
        if self.server is None and not (self.is_node and self._is_starting):
            return False
        self.server, self._is_starting = None, False
        self._cut_all()
        self.left()
        leave()
        self._tell_of_end()
        self._life.cancel()
        return True

    async def drain(self) -> None:
        """The same as at SIGTERM: connections get their answers before."""
        server, self.server = self.server, None
        if server is None:
            return
        self.drained = server
        await server.server.drain()
        await trio.sleep(_READ_SECONDS)
        self._cut_all()
        self._leave_in_order()

    def _cut_all(self) -> None:
        for line in self.lines:
            line.kill()
        self.lines.clear()

    def _tell_of_end(self) -> None:
        for tell in self.told_of_ends:
            tell()
