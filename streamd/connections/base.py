"""What connections of all protocols have in common: their life from login to end.

Whatever goes wrong on a connection ends it and nothing else.

An end that the server wants is in one order, whoever wants it: the server that stops, an
administrator, a user or virtual host that is deleted, a password that is changed.

1. Nothing more is taken from the peer; what has arrived is carried out, as far as its user still
   may.
2. What was published is stored and confirmed, within ARRIVED_SECONDS.
3. Everything is given back. The peer is told, and has FAREWELL_SECONDS to read that.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import trio

from streamd.auth.authentication import AuthenticationFailed
from streamd.broker.traffic import ProtocolTraffic
from streamd.config import ARRIVED_SECONDS, FAREWELL_SECONDS
from streamd.connections.watch import Watch
from streamd.engine.registry import ConnectionRegistry, LoggedIn
from streamd.net.actor import Actor, serves
from streamd.net.duplex import Duplex, Ended, Sender, Stopped
from streamd.net.transport import Transport, TransportClosed
from streamd.operations.connections import ConsumerFacts, PublisherFacts

logger = logging.getLogger(__name__)

SHUTDOWN = "broker forced connection closure with reason 'shutdown'"  # as RabbitMQ says it


class OpenSession(Protocol):
    """What an open connection uses of the server."""

    def publishers(self) -> list[PublisherFacts]:
        """The publishers at the moment."""

    def consumers(self) -> list[ConsumerFacts]:
        """The consumers at the moment."""

    def check_rights(self) -> None:
        """Rights may have changed: end what is not allowed any more."""

    async def settled(self) -> None:
        """Return when everything the connection has published is stored or refused."""

    def close(self) -> None:
        """The connection ended: give everything back."""


class Received(Protocol):
    """What a peer has sent, as far as the protocol's own class knows it."""

    @property
    def frame_size(self) -> int:
        """Bytes of the request that was found last."""

    def receive_data(self, data: bytes) -> None:
        """Take bytes."""

    def forget(self) -> None:
        """Give back what was received: the connection has ended."""


class BaseConnection(ABC):
    """One connection.

    Args:
        transport: the connection's bytes; closed when `run` returns.
        registry: lists it while it is open.
        heartbeat: the frame that is a sign of life.

    Attributes:
        is_open: somebody has logged in.
    """

    protocol: str
    _connection: Received

    def __init__(
        self, transport: Transport, registry: ConnectionRegistry, heartbeat: bytes
    ) -> None:
        self.is_open = False
        self._transport = transport
        self._registry = registry
        self._duplex = Duplex(transport, heartbeat)
        self._outbox = self._duplex.outbox
        self._ended = trio.Event()
        self._everything = trio.CancelScope()
        self._arrived = trio.CancelScope()
        self._reason = ""
        self._kind: type[object] = type(None)
        self._actor = Actor(self.protocol, str(transport.peer))

    async def run(self) -> None:
        """Serve the peer until one side ends the connection, or the task is cancelled."""
        serves(self._actor)
        try:
            await self._log_in()
            self.is_open = True
            await self._serve()
        except (Ended, TransportClosed, trio.TooSlowError):
            pass
        except AuthenticationFailed as failed:
            await self._refuse(failed)
        except Exception as error:  # a bug, mostly: it stays in this connection
            if not await self._has_explained(error):
                logger.exception("%s: the connection failed", self._transport.peer)
        finally:
            self._transport.close()
            if self.is_open:
                logger.info("%s: disconnected", self._transport.peer)
            # An ended connection refers to itself: the collector may come for it much later.
            self._outbox.forget()
            self._forget()

    def _note_login(self, login: LoggedIn) -> None:
        """From now on the log says who it is."""
        self._actor.user, self._actor.virtual_host = login.rights.user, login.host.name
        name = login.properties.get("connection_name", "")
        called = f", called {name}" if name else ""
        logger.info("%s: connected with %s%s", self._transport.peer, self.protocol, called)

    def _forget(self) -> None:
        """Give back what was received and will not be looked at."""
        self._connection.forget()

    @abstractmethod
    async def _log_in(self) -> None:
        """Answer until the connection is open.

        Raises:
            AuthenticationFailed: the peer may not enter.
        """

    @abstractmethod
    async def _refuse(self, failed: AuthenticationFailed) -> None:
        """Tell the peer that it may not enter."""

    @abstractmethod
    async def _has_explained(self, error: Exception) -> bool:
        """Whether an error was the peer's, and the peer has been told."""

    @abstractmethod
    async def _serve(self) -> None:
        """Serve the open connection; see `_serve_open`."""

    @abstractmethod
    async def _tell(self, reason: str) -> None:
        """The last that the peer hears; it has a moment to end its side."""

    async def stop(self) -> None:
        """The server stops: give the peer what is due to it, then end."""
        self.end(SHUTDOWN)
        await self._ended.wait()

    async def _serve_open(
        self,
        login: LoggedIn,
        frame_max: int,
        session: OpenSession,
        sender: Sender,
        commands: Callable[[], Awaitable[None]],
        *tasks: Callable[[], Awaitable[None]],
    ) -> None:
        """Read, send and watch until one of these ends, then give everything back.

        An end that the server wants is in order; see the module.

        Args:
            login: the result of the login.
            frame_max: agreed, in bytes.
            session: closed at the end.
            sender: sends deliveries.
            commands: carries out what is received; see CommandLoop.
            tasks: run beside it.
        """
        try:
            with self._everything:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._duplex.write, sender)
                    nursery.start_soon(self._watch_life, login.heartbeat_seconds)
                    for task in tasks:
                        nursery.start_soon(task)
                    with (
                        self._registry.listed(
                            self._transport,
                            login,
                            self.protocol,
                            frame_max,
                            session.publishers,
                            session.consumers,
                            session.check_rights,
                            self.end,
                        ),
                        self._arrived,
                    ):
                        with suppress(Stopped):
                            await commands()
                        await session.settled()
                    session.close()
                    with trio.move_on_after(FAREWELL_SECONDS):
                        await self._tell(self._reason)
                    raise Ended
        except* (Ended, Stopped, TransportClosed):
            pass
        finally:
            self._ended.set()
            session.close()

    # -- see command_loop.Commands

    @property
    def receive_data(self) -> Callable[[bytes], None]:
        """Takes what has arrived."""
        return self._connection.receive_data

    @property
    def frame_size(self) -> int:
        """Bytes of the request that was found last."""
        return self._connection.frame_size

    @property
    def command_name(self) -> str:
        """What was found last."""
        return self._kind.__name__

    # -- its life

    async def _watch_life(self, interval: int) -> None:
        """See `Duplex.watch`."""
        await self._duplex.watch(interval)

    def _watch(self, login: LoggedIn, traffic: ProtocolTraffic) -> Watch:
        """The watch over what this connection has done."""
        name = login.properties.get("connection_name", "")
        called = f", called {name}" if name else ""
        who = f"{self._transport.peer} ({self.protocol}, user {login.rights.user}{called})"
        return Watch(who, traffic, self.end)

    def end(self, reason: str) -> None:
        """The server wants it to end, for the reason given; see the module for the order."""
        if self._reason:
            return
        logger.info("%s: ended, %s", self._transport.peer, reason)
        self._reason = reason
        self._duplex.stop_listening()
        self._arrived.deadline = trio.current_time() + ARRIVED_SECONDS

    def _fail(self, error: Exception) -> None:
        """End the connection because of a bug in its code that ran inside another's work."""
        logger.error("%s: the connection failed", self._transport.peer, exc_info=error)
        self._everything.cancel()
