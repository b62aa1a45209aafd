"""A box: a machine, the server on it, and what is connected to it.

Whoever kills a box hears nothing from it any more, at once. What it was doing goes on in the folder
it had, where nobody looks; the next server starts from what the machine has kept.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import trio

from clients import ConnectionLost
from streamd.server import STREAM, ServedProtocol, StartError
from tests.support.amqp import AmqpPeer
from tests.support.client import MemoryByteStream
from tests.support.proxy import Cut
from tests.support.server import AMQP, Harness, Peer, serving
from tests.world import machine as machines
from tests.world.machine import Machine

_AWAY = (0.01, 0.5, 8)  # seconds until a server is started again
GONE = (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError)


class Line:
    """A client's end of a connection."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self.stream = stream

    def kill(self) -> None:
        """It breaks."""
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
        is_over: no server is started any more.
        left: is called when nothing of a server counts any more.
        may_refuse: says whether something else may keep a server from starting.
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
        self.lines: list[Line | MemoryByteStream] = []
        self.refusals: list[str] = []
        self.is_over = False
        self.left: Callable[[], None] = lambda: None
        self.may_refuse: Callable[[], bool] = lambda: False
        self._chance = chance
        self._now_ms = now_ms
        self._began = began
        self._life = trio.CancelScope()
        self._behind: Callable[[], None] | None = None

    async def live(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start servers, one after the other."""
        machines.here.set(self.machine)
        is_first = True
        while not self.is_over:
            with trio.CancelScope() as self._life:
                data, num_refused = self.machine.data, self.machine.num_refused
                try:
                    async with serving(
                        data, self._now_ms, is_polled=True, **self.settings
                    ) as server:
                        self._began(server)
                        self.server = server
                        if is_first:
                            task_status.started()
                            is_first = False
                        try:
                            await trio.sleep_forever()
                        finally:
                            self.server = None
                except StartError as error:
                    is_fine = num_refused == self.machine.num_refused
                    if is_fine and data == self.machine.data and not self.may_refuse():
                        self.refusals.append(str(error))
            behind, self._behind = self._behind, None
            if behind is not None:
                behind()
            if not self.is_over:
                await trio.sleep(self._chance.choice(_AWAY))

    def end(self) -> None:
        """No server any more."""
        self.is_over = True
        self._life.cancel()

    # -- who reaches it

    def dial(self, service: ServedProtocol) -> trio.StapledStream[Any, Any]:
        """A client's end of a new connection.

        Raises:
            ConnectionLost: nobody is there.
        """
        if self.server is None:
            raise ConnectionLost("nobody is there")
        stream = self.server.dial(service)
        self.lines.append(Line(stream))
        return stream

    def reach(self) -> MemoryByteStream:
        """The same for the client library."""
        if self.server is None:
            raise ConnectionLost("nobody is there")
        line = MemoryByteStream(self.server.connect(), Cut())
        self.lines.append(line)
        return line

    @asynccontextmanager
    async def peer(self, **login: Any) -> AsyncIterator[Peer]:
        """A peer of the stream protocol that has logged in."""
        peer = Peer(self.dial(STREAM))
        try:
            await peer.log_in(**login)
            yield peer
        finally:
            Line(peer.stream).kill()

    @asynccontextmanager
    async def amqp(self, **login: Any) -> AsyncIterator[AmqpPeer]:
        """A peer of AMQP that has logged in and opened channel 1."""
        peer = AmqpPeer(self.dial(AMQP))
        try:
            await peer.log_in(**login)
            await peer.open()
            yield peer
        finally:
            Line(peer.stream).kill()

    # -- what goes wrong

    def stop(self, behind: Callable[[], None]) -> None:
        """The server ends in order; `behind` is called when it has."""
        if self.server is not None:
            self.server, self._behind = None, behind
            self.lines.clear()
            self._life.cancel()

    def kill(self) -> bool:
        """The process ends; whether there was one."""
        return self._vanish(self.machine.kill)

    def cut_power(self) -> bool:
        """The power fails."""
        return self._vanish(self.machine.cut_power)

    def wipe(self) -> bool:
        """The machine is lost; the next server starts on an empty one."""
        return self._vanish(self.machine.wipe)

    def _vanish(self, leave: Callable[[], None]) -> bool:
        if self.server is None:
            return False
        self.server = None
        for line in self.lines:
            line.kill()
        self.lines.clear()
        self.left()
        leave()
        self._life.cancel()
        return True
