"""One AMQP 1.0 connection: its life from login to end.

As with other connections, requests are carried out in order (command_loop.py); what is sent, and
the signs of life, are in net/duplex.py. Whatever goes wrong on a connection ends it and nothing
else.
"""

import logging
from collections.abc import Callable
from functools import partial

import trio

from streamd.auth.authentication import AuthenticationFailed
from streamd.broker.streams.stream import Stream
from streamd.config import CHECK_SECONDS, CLOSE_SECONDS, LOGIN_SECONDS
from streamd.connections.amqp10.context import Context
from streamd.connections.amqp10.delivery import Deliveries, LinkConsumer
from streamd.connections.amqp10.login import Login, outcome_of
from streamd.connections.amqp10.management import Management
from streamd.connections.amqp10.publishing import Publishing
from streamd.connections.amqp10.session import Session
from streamd.connections.base import BaseConnection
from streamd.connections.command_loop import CommandLoop, Pending
from streamd.connections.declaring import Declaring
from streamd.connections.ready_queue import ReadyQueue
from streamd.connections.services import Services
from streamd.engine import Caller
from streamd.net.duplex import LINGER_SECONDS, Ended
from streamd.net.transport import Transport, TransportClosed
from streamd.net.turns import next_turn
from streamd.operations.connections import AMQP10_PROTOCOL
from streamd.operations.figures import AMQP10
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import (
    AMQP_HEADER,
    HEARTBEAT_FRAME,
    SASL_HEADER,
    frame,
    sasl_frame,
)
from streamd.wire.amqp10.connection import Connection, Event, NotAmqp10, Request
from streamd.wire.amqp10.errors import Condition, ConnectionFault
from streamd.wire.amqp10.states import State

logger = logging.getLogger(__name__)

_MOST_AT_ONCE = 512  # messages, for each of their streams, and what takes as long
_BYTES_A_MESSAGE = 64  # of a request, that take as long to read as a message
_LOGIN_BYTES = 1_024  # more than most clients send at once
_SIGNS = 3  # of life, in the time that a client waits for one


class Amqp10Connection(BaseConnection):
    """One connection.

    Args:
        transport: the connection's bytes; closed when `run` returns.
        login: decides whether the peer may enter.
        registry: lists it while it is open.
        services: of the server.
        received: what has been read of it.
    """

    protocol = AMQP10_PROTOCOL

    def __init__(
        self, transport: Transport, login: Login, services: Services, received: bytes
    ) -> None:
        super().__init__(transport, services.registry, HEARTBEAT_FRAME)
        broker = services.broker
        self._connection = Connection()
        self._connection.receive_data(received)
        self._services = services
        self._rounds, self._traffic = broker.rounds, broker.traffic
        self._login = login
        self._queue: ReadyQueue[LinkConsumer] = ReadyQueue(
            self._duplex.work, broker.rounds, self._fail
        )
        self._session: Session | None = None
        self._kind = ""
        self._has_closed = False  # before the client did

    async def _has_explained(self, error: Exception) -> bool:
        match error:
            case NotAmqp10():
                logger.info("%s: %s", self._transport.peer, error)
                await self._send_last(SASL_HEADER, LINGER_SECONDS)
            case ConnectionFault():  # before the connection was open
                # No answer, as from RabbitMQ: its own client tries for ever to go on with a
                # connection that is opened and closed.
                logger.info("%s: %s", self._transport.peer, error)
            case _:
                return False
        return True

    def _forget(self) -> None:
        self._connection.forget()

    # -- login

    async def _log_in(self) -> None:
        """Answer until the connection is open."""
        connection, login, send = self._connection, self._login, self._transport.send
        with trio.fail_after(LOGIN_SECONDS):
            await self._greeted()
            await send(SASL_HEADER + sasl_frame(login.mechanisms()))
            outcome = await login.prove((await self._next_request()).performative)
            connection.authenticated()
            await send(sasl_frame(outcome))
            await self._greeted()
            await send(AMQP_HEADER)
            asked = (await self._next_request()).performative
            login.enter(asked)
            connection.open()
            await send(frame(0, login.answer()))
        self._note_login(login)

    async def _greeted(self) -> None:
        while not self._connection.has_greeted():
            await self._receive()

    async def _next_request(self) -> Request:
        while True:
            for event in self._connection.events():
                assert isinstance(event, Request)  # noqa: S101 - there are no sessions yet
                return event
            await self._receive()

    async def _receive(self) -> None:
        data = await self._duplex.receive()
        if len(data) > _LOGIN_BYTES:
            await next_turn()  # nobody has to have a login for this
        self._connection.receive_data(data)

    async def _refuse(self, failed: AuthenticationFailed) -> None:
        await self._duplex.refused(failed, waits=failed.is_guess)
        outcome = outcome_of(failed)
        if outcome is not None:
            await self._send_last(sasl_frame(outcome), LINGER_SECONDS)

    async def _send_last(self, data: bytes, seconds: float = CLOSE_SECONDS) -> None:
        """Send, and wait until the peer has taken it and ended its side."""
        with trio.move_on_after(seconds):
            try:
                await self._transport.send(data)
                await self._duplex.linger(seconds)
            except TransportClosed:
                pass

    # -- open

    async def _serve(self) -> None:
        connection, login, services = self._connection, self._login, self._services
        traffic = self._traffic.protocol(AMQP10)
        watch = self._watch(login, traffic)
        frame_max = login.frame_max
        deliveries = Deliveries(
            self._queue, frame_max, self._cannot_read, traffic, watch, self._outbox
        )
        caller = Caller(services.directory, login.rights.account)
        declaring = Declaring(login.host, login.rights, services.config.default_queue_type)
        context = Context(
            login.host,
            login.rights,
            connection,
            self._outbox,
            deliveries,
            Publishing(login.host, login.rights, self._traffic),
            Management(login.host, declaring, partial(services.engine.ask, caller)),
            login.now_ms,
            traffic,
        )
        session = self._session = Session(context, str(self._transport.peer), self.end)
        await self._serve_open(
            login,
            frame_max,
            session,
            deliveries,
            CommandLoop[Event](self._duplex, self, watch).run,
            self._check,
            self._show_life,
        )

    async def _watch_life(self, interval: int) -> None:
        """See BaseConnection; a client that is there after all reads why it is ended."""
        try:
            await super()._watch_life(interval)
        except Ended:
            text = "no frame received from client within idle timeout threshold"
            fault = ConnectionFault(Condition.RESOURCE_LIMIT_EXCEEDED, text)
            self._outbox.put(self._connection.close(fault))
            with trio.move_on_after(LINGER_SECONDS):
                await self._outbox.emptied()
            raise

    async def _show_life(self) -> None:
        """Send something as often as the client wants to hear of us."""
        seconds = self._login.idle_seconds
        while seconds is not None:
            await trio.sleep(seconds / _SIGNS)
            if self._outbox.is_empty:
                self._outbox.put(HEARTBEAT_FRAME)

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
        return self._kind

    def do_at_once(self) -> Event | Pending:
        """Carry out what has been received, up to what needs waiting."""
        session = self._open_session
        taken, most = 0, self._rounds.allowance(_MOST_AT_ONCE)
        if most <= 0:
            return Pending.MORE
        event: Event | None = None
        try:
            for event in self._connection.events():
                work = session.handle_at_once(event)
                if not work:
                    taken += self._connection.frame_size // _BYTES_A_MESSAGE
                    return event
                if isinstance(event, Request):
                    taken += self._connection.frame_size // _BYTES_A_MESSAGE
                taken += work
                if taken >= most:
                    break
            session.flush()
        except ConnectionFault as fault:
            self.fail(fault)
        finally:
            self._rounds.units -= taken
            if event is not None:
                self._kind = _name_of(event)
        if self._connection.state is State.CLOSED:
            raise Ended
        if self._outbox.is_full or not session.has_room():
            return Pending.HELD
        return Pending.MORE if taken >= most else Pending.NEED_DATA

    async def carry_out(self, command: Event) -> None:
        """Carry out a request that needs waiting, or the rest of messages."""
        session = self._open_session
        try:
            if isinstance(command, Request) and isinstance(command.performative, p.Close):
                if not self._has_closed:
                    await self._close(session)
            else:
                await session.handle(command)
        except ConnectionFault as fault:
            self.fail(fault)
        if self._connection.state is State.CLOSED:
            raise Ended
        await session.room()
        await self._outbox.room()

    async def released(self) -> None:
        """Return when streams and peer have room."""
        await self._open_session.room()
        await self._outbox.room()

    @property
    def _open_session(self) -> Session:
        assert self._session is not None  # noqa: S101 - nothing is carried out before
        return self._session

    async def _close(self, session: Session) -> None:
        """The client closes: it gets what is due to it, and the answer."""
        session.flush()
        with trio.move_on_after(CLOSE_SECONDS):
            await session.settled()
        session.close()
        self._outbox.put(frame(0, p.Close()))
        with trio.move_on_after(CLOSE_SECONDS):
            await self._outbox.emptied()
        # Closing with unread input would destroy the answer before the client reads it.
        await self._duplex.linger()

    def fail(self, fault: ConnectionFault) -> None:
        """Close the connection because of a fault; what was published before it is stored."""
        if self._session is not None and self._connection.is_open:
            self._session.flush()
        if not self._connection.is_open:
            return
        if self._session is not None:
            self._session.close()
        logger.info("%s: %s", self._transport.peer, fault)
        self._has_closed = True
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
            text = f'Connection forced: "{reason}"'
            self._outbox.put(connection.close(ConnectionFault(Condition.INTERNAL_ERROR, text)))
        with trio.move_on_after(LINGER_SECONDS):
            while connection.state is not State.CLOSED:
                await self._receive()
                for _ in connection.events():
                    pass
        await self._outbox.emptied()
        self._transport.end_sending()


def _name_of(event: Event) -> str:
    return type(event.performative if isinstance(event, Request) else event).__name__


def make_connection(transport: Transport, services: Services, received: bytes) -> Amqp10Connection:
    """A connection that waits for `run`; some of its bytes were read already."""
    config = services.config
    login = Login(services.authenticator(transport), services.broker, config.heartbeat)
    return Amqp10Connection(transport, login, services, received)
