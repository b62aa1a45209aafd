"""The client library connected to a server in memory, and what may happen to it at any step."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import Enum

import anyio
import pytest
import trio
from anyio.abc import ByteStream

import clients.connection
from clients import Client, ConnectionLost, connect
from clients.uri import Endpoint
from tests.support.proxy import Cut
from tests.support.server import Harness, Peer

_STEPS_OF_SENDING = 2
_NEVER = 1 << 62


class MemoryByteStream(ByteStream):
    """The client's end of a connection in memory; sending takes a moment, as with sockets.

    Args:
        peer: holds both ends for the client.
        cut: when it breaks by itself.

    Attributes:
        moves: nothing moves on it until this is set.
    """

    def __init__(self, peer: Peer, cut: Cut) -> None:
        self.moves: trio.Event | None = None
        self._stream = peer.stream
        self._is_killed = False
        self.cut(cut)

    def cut(self, cut: Cut) -> None:
        """When it breaks by itself, from now on."""
        self._to_server = _NEVER if cut.to_server is None else cut.to_server
        self._to_client = _NEVER if cut.to_client is None else cut.to_client

    async def receive(self, max_bytes: int = 65536) -> bytes:
        with self._as_in_anyio():
            data = bytes(await self._stream.receive_some(max_bytes))
            await self._wait()
        arrived = data[: self._to_client]
        self._to_client -= len(arrived)
        if len(arrived) < len(data):
            self.kill()
        if not arrived:
            raise anyio.EndOfStream
        return arrived

    async def send(self, item: bytes) -> None:
        for _ in range(_STEPS_OF_SENDING):
            await trio.lowlevel.checkpoint()
        await self._wait()
        arriving = item[: self._to_server]
        self._to_server -= len(arriving)
        with self._as_in_anyio():
            if arriving:
                await self._stream.send_all(arriving)
            if len(arriving) < len(item):
                self.kill()
                raise trio.BrokenResourceError

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        await self._stream.aclose()

    def kill(self) -> None:
        """The connection breaks."""
        self._is_killed = True
        if self.moves is not None:
            self.moves.set()
        self._stream.send_stream.close()
        self._stream.receive_stream.close()

    async def _wait(self) -> None:
        if self.moves is not None:
            await self.moves.wait()
            if self._is_killed:
                raise anyio.BrokenResourceError

    @contextmanager
    def _as_in_anyio(self) -> Iterator[None]:
        try:
            yield
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error
        except trio.ClosedResourceError as error:
            if self._is_killed:
                raise anyio.BrokenResourceError from error
            raise anyio.ClosedResourceError from error


class Network:
    """Leads all connections of the client library to one server in memory.

    Args:
        server: they lead to.
        monkeypatch: ends it.
        cuts: of the connections in turn; those that come later are left alone.

    Attributes:
        server: as given; another one is for later connections.
        is_away: nobody can connect to it.
        cuts: those that are left.
        streams: the client's ends, in the order in which they were made.
    """

    def __init__(
        self, server: Harness, monkeypatch: pytest.MonkeyPatch, cuts: Sequence[Cut] = ()
    ) -> None:
        self.server = server
        self.is_away = False
        self.streams: list[MemoryByteStream] = []
        self.cuts = list(cuts)

        async def reach(_: Endpoint) -> ByteStream:
            await trio.lowlevel.checkpoint()
            if self.is_away:
                raise ConnectionLost("nobody is there")
            cut = self.cuts.pop(0) if self.cuts else Cut()
            self.streams.append(MemoryByteStream(self.server.connect(), cut))
            return self.streams[-1]

        monkeypatch.setattr(clients.connection, "_connect", reach)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client without heartbeats."""
        async with connect(heartbeat=0) as client:
            yield client


class Disturbance(Enum):
    """What happens in the middle of an operation."""

    CANCELLED = "cancelled"
    KILLED = "connection killed"
    BOTH = "cancelled as the connection is killed"


async def disturbed(
    network: Network, action: Callable[[], Awaitable[object]], how: Disturbance, number: int
) -> bool:
    """Run an action and disturb it after a number of steps; whether it had ended by then."""
    is_through = False

    async def act() -> None:
        nonlocal is_through
        await action()
        is_through = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(act)
        for _ in range(number):
            await trio.lowlevel.cancel_shielded_checkpoint()
        was_through = is_through
        if how is not Disturbance.CANCELLED and not was_through and network.streams:
            network.streams[-1].kill()
        if how is not Disturbance.KILLED:
            nursery.cancel_scope.cancel()
    return was_through
