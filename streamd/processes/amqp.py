"""A process that has AMQP connections, and puts their messages into the form of streams and back.

It decides nothing: the engine serves each connection, over a socket pair; see wire/amqp091/relay.py
for what goes over it. When this process ends, its connections do, and the engine sees that of each.
"""

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from functools import partial
from math import inf
from typing import TypeAlias

import trio

from streamd.config import CHECK_SECONDS, CLOSE_SECONDS, TLS_PORTS, Config
from streamd.net import links, tls
from streamd.net.links import LinkTransport
from streamd.net.passing import pass_on
from streamd.net.tls import Certificates
from streamd.net.transport import SocketTransport, Transport
from streamd.processes.child import follow
from streamd.processes.control import READY, RELOAD, Said, say
from streamd.wire.amqp091.relay import Inward, Outward
from streamd.wire.amqp10.codec import is_amqp10

logger = logging.getLogger(__name__)

WAIT_SECONDS, _MOST_WAITS = 0.000_2, 100  # for each connection, before one more is accepted
_MOMENT = 0.001  # seconds
_MOST_HANDSHAKES = 1_000  # in progress: with one more, the oldest is given up


async def serve_amqp(
    config: Config,
    bound: Mapping[str, Sequence[socket.socket]],
    control: socket.socket,
    engine: socket.socket,
) -> None:
    """Serve until the engine or the parent has gone.

    Args:
        config: settings.
        bound: listening sockets by the setting of their port.
        control: to the parent.
        engine: the way to it, over which it gets connections.
    """
    certificates = Certificates(config) if bound.keys() & set(TLS_PORTS) else None

    def take(said: Said) -> None:
        if said.word == RELOAD and certificates is not None:
            certificates.reload()

    engine.setblocking(False)
    door = _Door(engine, certificates)
    async with trio.open_nursery() as nursery:
        for setting, sockets in bound.items():
            serve = door.serve_tls if setting in TLS_PORTS else door.serve
            listeners = [_Listener(s, door.open) for s in sockets]
            nursery.start_soon(trio.serve_listeners, partial(_guarded, serve), listeners)
        nursery.start_soon(door.look_after)
        nursery.start_soon(_until_end, engine, nursery)
        say(control, READY)
        await follow(control, take)
        nursery.cancel_scope.cancel()


async def _guarded(
    serve: Callable[[trio.SocketStream], Awaitable[None]], accepted: trio.SocketStream
) -> None:
    """Serve a client; whatever goes wrong ends it and nothing else."""
    try:
        await serve(accepted)
    except Exception:
        logger.exception("serving an AMQP connection has failed")
        accepted.socket.close()


async def _until_end(way: socket.socket, nursery: trio.Nursery) -> None:
    await trio.lowlevel.wait_readable(way)  # the engine says nothing here: it has gone
    nursery.cancel_scope.cancel()


class _Listener(trio.abc.Listener[trio.SocketStream]):
    """A listening socket that processes share: the one with the fewest connections is quickest.

    Connections of AMQP live for days. Where many come at once, nobody waits.
    """

    def __init__(self, bound: socket.socket, connections: Sized) -> None:
        self._socket = trio.socket.from_stdlib_socket(bound)
        self._listener = trio.SocketListener(self._socket)
        self._connections = connections

    async def accept(self) -> trio.SocketStream:
        while True:
            began = trio.current_time()
            await trio.lowlevel.wait_readable(self._socket)
            if trio.current_time() - began > _MOMENT:
                await trio.sleep(min(len(self._connections), _MOST_WAITS) * WAIT_SECONDS)
            with trio.move_on_after(_MOMENT):  # another process may have been quicker
                return await self._listener.accept()

    async def aclose(self) -> None:
        await self._listener.aclose()


class _Door:
    """What has the connections.

    Attributes:
        open: connections to the engine, each with what ends the client's.
    """

    def __init__(self, way: socket.socket, certificates: Certificates | None) -> None:
        self.open: dict[LinkTransport, trio.CancelScope] = {}
        self._way, self._certificates = way, certificates
        self._shaking: dict[trio.CancelScope, None] = {}

    async def serve(self, accepted: trio.SocketStream) -> None:
        """Serve one client until it or the engine has gone."""
        try:
            transport = SocketTransport(accepted, None)
        except OSError:  # gone before it was looked at
            accepted.socket.close()
            return
        await self._relay(transport)

    async def serve_tls(self, accepted: trio.SocketStream) -> None:
        """The same inside TLS."""
        assert self._certificates is not None  # noqa: S101 - no listener without
        transport = None
        if len(self._shaking) >= _MOST_HANDSHAKES:
            next(iter(self._shaking)).cancel()
        with trio.CancelScope() as scope:
            self._shaking[scope] = None
            try:
                transport = await tls.accept(self._certificates, accepted)
            finally:
                del self._shaking[scope]
        if transport is None:
            accepted.socket.close()
        else:
            await self._relay(transport)

    async def _relay(self, transport: Transport) -> None:
        try:
            engine = await links.give(self._way, transport)
        except OSError as error:
            logger.warning("%s: cannot be served: %s", transport.peer, error.strerror)
            transport.close()
            return
        with trio.CancelScope() as scope:
            self.open[engine] = scope
            try:
                await relay(transport, engine)
            finally:
                del self.open[engine]

    async def look_after(self) -> None:
        """End connections that the engine has ended, when their clients take nothing for long."""
        while True:
            await trio.sleep(CHECK_SECONDS)
            for engine, scope in self.open.items():
                if scope.deadline == inf and engine.has_been_left:
                    scope.deadline = trio.current_time() + CLOSE_SECONDS


async def relay(client: Transport, engine: Transport) -> None:
    """Serve a client, see `pass_on`, in the form that the engine has its messages in."""
    outward = Outward()

    def from_client(begun: bytes) -> _Way | None:
        found = is_amqp10(begun)
        if found is None:
            return None
        return _AS_IT_IS if found else Inward(outward.delivered)

    def from_engine(begun: bytes) -> _Way:
        return _AS_IT_IS if begun.startswith(_HEADER) else outward

    inward = partial(_carry, choose=from_client)
    await pass_on(client, engine, inward, partial(_carry, choose=from_engine))


class _AsItIs:
    """AMQP 1.0 goes as it is, both ways: it is what streams keep, or nearly."""

    pause = 0.0

    def take(self, data: bytes) -> tuple[bytes]:
        """See Inward."""
        return (data,)


_Way: TypeAlias = Inward | Outward | _AsItIs
_AS_IT_IS = _AsItIs()
_HEADER = b"AMQP"  # no frame of AMQP 0-9-1 begins like this


async def _carry(
    source: Transport, target: Transport, choose: Callable[[bytes], _Way | None]
) -> None:
    """Send on what comes, by the way that its beginning chooses; None while that is too short."""
    way, begun = None, b""
    while data := await source.receive():
        if way is None:
            begun += data
            way = choose(begun)
            if way is None:
                continue
            data, begun = begun, b""
        for number, piece in enumerate(way.take(data)):
            if number:
                await trio.lowlevel.checkpoint()
            await target.send(piece)
        if way.pause:
            await trio.sleep(way.pause)
    if begun:
        await target.send(begun)
    target.end_sending()
