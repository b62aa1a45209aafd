"""What connections of all protocols have in common: their life from login to end.

Whatever goes wrong on a connection ends it and nothing else.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from streamd.auth.authentication import AuthenticationFailed
from streamd.connections.registry import (
    ConnectionRegistry,
    ConsumerFacts,
    LoggedIn,
    PublisherFacts,
)
from streamd.net.duplex import Duplex, Ended, Sender, Stopped
from streamd.net.transport import Transport, TransportClosed

logger = logging.getLogger(__name__)


class OpenSession(Protocol):
    """What an open connection uses of the server."""

    def publishers(self) -> list[PublisherFacts]:
        """The publishers at the moment."""

    def consumers(self) -> list[ConsumerFacts]:
        """The consumers at the moment."""

    def check_rights(self) -> None:
        """Rights may have changed: end what is not allowed any more."""

    def close(self) -> None:
        """The connection ended: give everything back."""


class BaseConnection(ABC):
    """One connection.

    Args:
        transport: the connection's bytes; closed when `run` returns.
        registry: lists it while it is open.
        heartbeat: the frame that is a sign of life.

    Attributes:
        protocol: its name in the registry.
        is_open: somebody has logged in.
    """

    protocol: str

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

    async def run(self) -> None:
        """Serve the peer until one side ends the connection, or the task is cancelled."""
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
            # An ended connection refers to itself: the collector may come for it much later.
            self._outbox.forget()
            self._forget()

    @abstractmethod
    def _forget(self) -> None:
        """Give back what was received and will not be looked at."""

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
    async def stop(self) -> None:
        """The server stops: give the peer what is due to it, then end."""

    async def _serve_open(
        self,
        login: LoggedIn,
        frame_max: int,
        session: OpenSession,
        sender: Sender,
        read: Callable[[], Awaitable[None]],
        *tasks: Callable[[], Awaitable[None]],
    ) -> None:
        """Read, send and watch until one of these ends, then give everything back.

        Args:
            login: the result of the login.
            frame_max: agreed, in bytes.
            session: closed at the end.
            sender: sends deliveries.
            read: carries out what is received.
            tasks: run beside it.
        """
        try:
            with self._everything:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._duplex.write, sender)
                    nursery.start_soon(self._duplex.watch, login.heartbeat_seconds)
                    for task in tasks:
                        nursery.start_soon(task)
                    with self._registry.listed(
                        self._transport,
                        login,
                        self.protocol,
                        frame_max,
                        session.publishers,
                        session.consumers,
                        session.check_rights,
                        self.end,
                    ):
                        await read()
        except* (Ended, Stopped, TransportClosed):
            pass
        finally:
            self._ended.set()
            session.close()

    def end(self, reason: str) -> None:
        """The server wants it to end, for the reason given: others may use its place at once."""
        logger.info("%s: ended, %s", self._transport.peer, reason)
        self._everything.cancel()

    def _fail(self, error: Exception) -> None:
        """End the connection because of a bug in its code that ran inside another's work."""
        logger.error("%s: the connection failed", self._transport.peer, exc_info=error)
        self._everything.cancel()
