"""One AMQP 0-9-1 connection: its life from login to end.

As with stream connections, requests are carried out in order (command_loop.py); what is sent, and
the signs of life, are in net/duplex.py. Whatever goes wrong on a connection ends it and nothing
else.
"""

import logging
from collections.abc import Callable

import trio

from streamd.auth.authentication import AuthenticationFailed
from streamd.broker.streams.stream import Stream
from streamd.broker.traffic import Traffic
from streamd.config import CHECK_SECONDS, CLOSE_SECONDS, LOGIN_SECONDS
from streamd.connections.amqp091.context import Context
from streamd.connections.amqp091.delivery import AmqpConsumer, Deliveries, DoorDeliveries
from streamd.connections.amqp091.login import Login
from streamd.connections.amqp091.publishing import Publishing
from streamd.connections.amqp091.session import Session
from streamd.connections.base import BaseConnection
from streamd.connections.command_loop import CommandLoop, Pending
from streamd.connections.declaring import Declaring
from streamd.connections.ready_queue import ReadyQueue
from streamd.connections.services import Services
from streamd.engine.registry import ConnectionRegistry
from streamd.net.duplex import LINGER_SECONDS, Ended
from streamd.net.rounds import Rounds
from streamd.net.transport import Transport, TransportClosed
from streamd.net.turns import next_turn
from streamd.operations.connections import AMQP_PROTOCOL
from streamd.operations.figures import AMQP091
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import HEARTBEAT_FRAME, PROTOCOL_HEADER, method_frame
from streamd.wire.amqp091.connection import Connection, Content, Event, NotAmqp, Request
from streamd.wire.amqp091.converted import Run
from streamd.wire.amqp091.errors import ConnectionFault, ReplyCode
from streamd.wire.amqp091.states import State

logger = logging.getLogger(__name__)

_MOST_AT_ONCE = 512  # messages, for each of their streams, and what takes as long
_BYTES_A_MESSAGE = 64  # of a request, that take as long to read as a message if they are a table
_LOGIN_BYTES = 1_024  # more than most clients send at once


class AmqpConnection(BaseConnection):
    """One connection.

    Args:
        transport: the connection's bytes; closed when `run` returns.
        login: decides whether the peer may enter.
        registry: lists it while it is open.
        default_queue_type: for queues declared without a type.
        rounds: consumers are woken at the end of each.
        received: what has been read of it.
        is_relayed: a door is between this end and the client; see wire/amqp091/relay.py.
    """

    protocol = AMQP_PROTOCOL

    def __init__(
        self,
        transport: Transport,
        login: Login,
        registry: ConnectionRegistry,
        default_queue_type: str,
        rounds: Rounds,
        traffic: Traffic,
        received: bytes,
        *,
        is_relayed: bool = False,
    ) -> None:
        super().__init__(transport, registry, HEARTBEAT_FRAME)
        self._connection = Connection(is_relayed=is_relayed)
        self._connection.receive_data(received)
        self._deliveries = DoorDeliveries if is_relayed else Deliveries
        self._rounds = rounds
        self._login = login
        self._default_queue_type = default_queue_type
        self._traffic = traffic
        self._queue: ReadyQueue[AmqpConsumer] = ReadyQueue(self._duplex.work, rounds, self._fail)
        self._session: Session | None = None
        self._pause = 0.0
        self._kind: type[object] = type(None)

    async def _has_explained(self, error: Exception) -> bool:
        match error:
            case NotAmqp():
                logger.info("%s: %s", self._transport.peer, error)
                await self._send_last(PROTOCOL_HEADER, LINGER_SECONDS)
            case ConnectionFault():  # before the connection was open
                logger.info("%s: %s", self._transport.peer, error)
                if error.code == ReplyCode.NOT_ALLOWED:
                    await self._send_last(self._connection.close(error))
            case _:
                return False
        return True

    def _forget(self) -> None:
        self._connection.forget()

    # -- login

    async def _log_in(self) -> None:
        """Answer until the connection is open."""
        connection, login = self._connection, self._login
        with trio.fail_after(LOGIN_SECONDS):
            while not connection.has_greeted():
                await self._receive()
            await self._transport.send(method_frame(0, login.start()))
            while connection.state is not State.OPEN:
                answers = await login.answer(connection, (await self._next_request()).method)
                frames = [method_frame(0, answer) for answer in answers]
                await self._transport.send(b"".join(frames))
                if connection.state is State.CLOSED:
                    raise Ended
        self._note_login(login)

    async def _next_request(self) -> Request:
        while True:
            for event in self._connection.events():
                assert isinstance(event, Request)  # noqa: S101 - content needs an open channel
                return event
            await self._receive()

    async def _receive(self) -> None:
        data = await self._duplex.receive()
        if len(data) > _LOGIN_BYTES:
            await next_turn()  # nobody has to have a login for this
        self._connection.receive_data(data)

    async def _refuse(self, failed: AuthenticationFailed) -> None:
        fault, waits = self._login.refusal(failed)
        await self._duplex.refused(failed, waits=waits)
        if fault is not None:
            await self._send_last(self._connection.close(fault))

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
        connection, login = self._connection, self._login
        traffic = self._traffic.protocol(AMQP091)
        watch = self._watch(login, traffic)
        deliveries = self._deliveries(
            self._queue, connection.frame_max, self._cannot_read, traffic, watch
        )
        publishing = Publishing(
            login.host,
            login.rights,
            self._outbox,
            connection.frame_max,
            self.fail,
            self._traffic,
            hears_of_blocking=login.can("connection.blocked"),
        )
        context = Context(
            login.host,
            login.rights,
            self._outbox,
            deliveries,
            publishing,
            login.now_ms,
            Declaring(login.host, login.rights, self._default_queue_type),
            login.can("consumer_cancel_notify"),
            traffic,
        )
        session = self._session = Session(
            context, connection.close_channel, self.end, is_relayed=connection.is_relayed
        )
        await self._serve_open(
            login,
            connection.frame_max,
            session,
            deliveries,
            CommandLoop[Event](self._duplex, self, watch).run,
            deliveries.flush_delayed,
            self._check,
        )

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

    def do_at_once(self) -> Event | Pending:
        """Publish and acknowledge what has been received, up to a request that needs waiting."""
        session = self._open_session
        taken, most = 0, self._rounds.allowance(_MOST_AT_ONCE)
        if most <= 0:
            return Pending.MORE
        event: Event | None = None
        try:
            for event in self._connection.events():
                if isinstance(event, Content):
                    work = session.publish(event)
                else:
                    work = session.handle_at_once(event)
                if not work:
                    taken += self._connection.frame_size // _BYTES_A_MESSAGE
                    return event
                taken += work
                if taken >= most:
                    break
            session.flush()
        except ConnectionFault as fault:
            self.fail(fault)
        finally:
            self._rounds.units -= taken
            if event is not None:
                self._kind = type(event.method)
        if self._connection.state is State.CLOSED:
            raise Ended
        self._pause = session.take_pause()
        if self._pause or self._outbox.is_full or not session.has_room():
            return Pending.HELD
        return Pending.MORE if taken >= most else Pending.NEED_DATA

    async def carry_out(self, command: Event) -> None:
        """Carry out a request that needs waiting, or the rest of a message."""
        session = self._open_session
        try:
            match command:
                case Content() | Run():
                    await session.go_on(command)
                case Request(0, method):
                    await self._handle_own(session, method)
                case Request():
                    await session.handle(command)
        except ConnectionFault as fault:
            self.fail(fault)
        if self._connection.state is State.CLOSED:
            raise Ended
        await session.room()
        await self._outbox.room()

    async def released(self) -> None:
        """Return when streams and peer have room, and acknowledgements have gathered."""
        await self._open_session.room()
        await self._outbox.room()
        if self._pause:
            await trio.sleep(self._pause)

    @property
    def _open_session(self) -> Session:
        assert self._session is not None  # noqa: S101 - nothing is carried out before
        return self._session

    async def _handle_own(self, session: Session, method: m.Method) -> None:
        session.flush()
        match method:
            case m.ConnectionClose():
                with trio.move_on_after(CLOSE_SECONDS):
                    await session.settled()
                session.close()
                self._outbox.put(method_frame(0, m.ConnectionCloseOk()))
                with trio.move_on_after(CLOSE_SECONDS):
                    await self._outbox.emptied()
                # Closing with unread input would destroy the answer before the client reads it.
                await self._duplex.linger()
            case m.ConnectionUpdateSecret():  # the client is authenticated; passwords do not expire
                self._outbox.put(method_frame(0, m.ConnectionUpdateSecretOk()))
                session.check_rights()
            case _:  # CloseOk: the state shows it
                pass

    def fail(self, fault: ConnectionFault) -> None:
        """Close the connection because of a fault; what was published before it is stored."""
        if self._session is not None and self._connection.is_open:
            self._session.flush()  # if that cannot be stored, it comes back to here
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
            fault = ConnectionFault(ReplyCode.CONNECTION_FORCED, reason)
            self._outbox.put(connection.close(fault))
        with trio.move_on_after(LINGER_SECONDS):
            while connection.state is not State.CLOSED:
                await self._receive()
                for event in connection.events():
                    if isinstance(event, Request) and isinstance(event.method, m.ConnectionClose):
                        self._outbox.put(method_frame(0, m.ConnectionCloseOk()))
        await self._outbox.emptied()
        self._transport.end_sending()


def make_connection(
    transport: Transport, services: Services, received: bytes, *, is_relayed: bool = False
) -> AmqpConnection:
    """A connection that waits for `run`; see AmqpConnection."""
    config = services.config
    login = Login(services.authenticator(transport), services.broker, config.heartbeat)
    broker = services.broker
    return AmqpConnection(
        transport,
        login,
        services.registry,
        config.default_queue_type,
        broker.rounds,
        broker.traffic,
        received,
        is_relayed=is_relayed,
    )
