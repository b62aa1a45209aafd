"""What the connections of all AMQP have in common: login, requests and ends, around their frames.

As with stream connections, requests are carried out in order (command_loop.py); what is sent, and
the signs of life, are in net/duplex.py. Whatever goes wrong on a connection ends it and nothing
else.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

import trio

from streamd.broker.streams.stream import Stream
from streamd.config import CHECK_SECONDS, CLOSE_SECONDS
from streamd.connections.base import BaseConnection, OpenSession, Received
from streamd.connections.command_loop import Pending
from streamd.connections.ready_queue import Consumer, ReadyQueue
from streamd.connections.services import Services
from streamd.net.duplex import LINGER_SECONDS, Ended
from streamd.net.transport import Transport, TransportClosed
from streamd.net.turns import next_turn

logger = logging.getLogger(__name__)

BYTES_A_MESSAGE = 64  # of a request, that take as long to read as a message
_MOST_AT_ONCE = 512  # messages, for each of their streams, and what takes as long
_LOGIN_BYTES = 1_024  # more than most clients send at once

Event = TypeVar("Event")
Event_co = TypeVar("Event_co", covariant=True)


class AmqpFrames(Received, Protocol[Event_co]):
    """The server's half of a connection as bytes."""

    @property
    def is_open(self) -> bool:
        """Both ends have agreed, and none has closed it."""

    @property
    def is_closed(self) -> bool:
        """Both ends have closed it."""

    def has_greeted(self) -> bool:
        """Whether the client has sent the header that it has to."""

    def events(self) -> Iterator[Event_co | None]:
        """The events in the bytes so far. If left early, the next call gives the rest.

        A frame that asks for nothing gives None: to find that out was work, too.
        """

    def close(self, fault: Any) -> bytes:  # noqa: ANN401 - of its own protocol
        """The frame that closes the connection."""


class AmqpSession(OpenSession, Protocol):
    """What is open on a connection, and carries out requests."""

    def stream_is_gone(self, stream: Stream) -> None:
        """Nothing can be read from a stream any more."""

    def flush(self) -> None:
        """Give streams what was published so far."""

    def has_room(self) -> bool:
        """Whether `room` would return at once."""

    async def room(self) -> None:
        """Return when the streams that were written to can take more."""


Session = TypeVar("Session", bound=AmqpSession)


class AmqpConnection(BaseConnection, Generic[Event, Session, Consumer]):
    """One connection.

    Args:
        transport: the connection's bytes; closed when `run` returns.
        services: of the server.
        received: what has been read of it.
    """

    fault: type[Exception]  # ends a connection
    _connection: AmqpFrames[Event]

    def __init__(
        self,
        transport: Transport,
        services: Services,
        connection: AmqpFrames[Event],
        received: bytes,
        heartbeat: bytes,
    ) -> None:
        super().__init__(transport, services.registry, heartbeat)
        self._connection = connection
        connection.receive_data(received)
        self._services = services
        broker = services.broker
        self._rounds, self._traffic = broker.rounds, broker.traffic
        self._queue: ReadyQueue[Consumer] = ReadyQueue(self._duplex.work, broker.rounds, self._fail)
        self._session: Session | None = None

    # -- login

    async def _greeted(self) -> None:
        """Return when the client has sent the header that it has to."""
        while not self._connection.has_greeted():
            await self._receive()

    async def _next_event(self) -> Event:
        while True:
            for event in self._connection.events():
                if event is not None:
                    return event
                await next_turn()  # nobody has to have a login for this
            await self._receive()

    async def _receive(self) -> None:
        data = await self._duplex.receive()
        if len(data) > _LOGIN_BYTES:
            await next_turn()  # nobody has to have a login for this
        self._connection.receive_data(data)

    async def _send_last(self, data: bytes, seconds: float = CLOSE_SECONDS) -> None:
        """Send, and wait until the peer has taken it and ended its side."""
        with trio.move_on_after(seconds):
            try:
                await self._transport.send(data)
                await self._duplex.linger(seconds)
            except TransportClosed:
                pass

    # -- see command_loop.Commands

    def do_at_once(self) -> Event | Pending:
        """Carry out what has been received, up to what needs waiting."""
        session = self._open_session
        taken, most = 0, self._rounds.allowance(_MOST_AT_ONCE)
        if most <= 0:
            return Pending.MORE
        event: Event | None = None
        try:
            for found in self._connection.events():
                event = event if found is None else found
                work = 1 if found is None else self._do(session, found)
                if not work and found is not None:
                    taken += self._connection.frame_size // BYTES_A_MESSAGE
                    return found
                taken += work
                if taken >= most:
                    break
            session.flush()
        except self.fault as fault:
            self.fail(fault)
        finally:
            self._rounds.units -= taken
            if event is not None:
                self._kind = self._kind_of(event)
        if self._connection.is_closed or self._is_held(session):
            return Pending.HELD
        return Pending.MORE if taken >= most else Pending.NEED_DATA

    @abstractmethod
    def _do(self, session: Session, event: Event) -> int:
        """Carry out what needs no waiting.

        Returns:
            How much work that was, as much as publishing so many messages; 0 for what
            `_carry_out` has to do, or the rest of.
        """

    @abstractmethod
    def _kind_of(self, event: Event) -> type[object]:
        """What the log calls it."""

    def _is_held(self, session: Session) -> bool:
        return self._outbox.is_full or not session.has_room()

    async def carry_out(self, command: Event) -> None:
        """Carry out a request that needs waiting, or the rest of messages."""
        try:
            await self._carry_out(self._open_session, command)
        except self.fault as fault:
            self.fail(fault)
        if self._connection.is_closed:
            raise Ended
        await self._room()

    @abstractmethod
    async def _carry_out(self, session: Session, command: Event) -> None:
        """See `carry_out`."""

    async def released(self) -> None:
        """Return when streams and peer have room."""
        if self._connection.is_closed:
            raise Ended
        await self._room()

    async def _room(self) -> None:
        await self._open_session.room()
        await self._outbox.room()

    @property
    def _open_session(self) -> Session:
        assert self._session is not None  # noqa: S101 - nothing is carried out before
        return self._session

    # -- ends

    async def _answer_close(self, session: Session, answer: bytes) -> None:
        """The client closes: it gets what is due to it, and the answer."""
        session.flush()
        with trio.move_on_after(CLOSE_SECONDS):
            await session.settled()
        session.close()
        self._outbox.put(answer)
        with trio.move_on_after(CLOSE_SECONDS):
            await self._outbox.emptied()
        # Closing with unread input would destroy the answer before the client reads it.
        await self._duplex.linger()

    def fail(self, fault: Exception) -> None:
        """Close the connection because of a fault; what was published before it is stored."""
        if self._session is not None and self._connection.is_open:
            self._session.flush()  # if that cannot be stored, it may come back to here
        if not self._connection.is_open:
            return
        if self._session is not None:
            self._session.close()
        logger.info("%s: %s", self._transport.peer, fault)
        self._outbox.put(self._connection.close(fault))

    def _cannot_read(self, stream: Stream) -> None:
        self._open_session.stream_is_gone(stream)

    async def _check(self) -> None:
        """End a connection that does not answer a close."""
        is_closing = False
        while not is_closing:
            is_closing = not self._connection.is_open
            await trio.sleep(CHECK_SECONDS)
        logger.info("%s: ended by the server", self._transport.peer)
        raise Ended

    async def _tell(self, reason: str) -> None:
        """Say why, and wait for the answer."""
        connection = self._connection
        if connection.is_open:
            self._outbox.put(connection.close(self._forced(reason)))
        with trio.move_on_after(LINGER_SECONDS):
            while not connection.is_closed:
                await self._receive()
                for event in connection.events():
                    if event is None:
                        await next_turn()
                    else:
                        self._take_late(event)
        await self._outbox.emptied()
        self._transport.end_sending()

    @abstractmethod
    def _forced(self, reason: str) -> Exception:
        """The fault that tells a client that the server wants the end."""

    def _take_late(self, event: Event) -> None:
        """Something has come after our close."""
