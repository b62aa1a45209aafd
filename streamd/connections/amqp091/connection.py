"""One AMQP 0-9-1 connection: its life from login to end.

What it has in common with AMQP 1.0 is in amqp_connection.py.
"""

import logging

import trio

from streamd.auth.authentication import AuthenticationFailed
from streamd.config import LOGIN_SECONDS
from streamd.connections.amqp091.context import Context
from streamd.connections.amqp091.delivery import AmqpConsumer, Deliveries, DoorDeliveries
from streamd.connections.amqp091.login import Login
from streamd.connections.amqp091.publishing import Publishing
from streamd.connections.amqp091.session import Session
from streamd.connections.amqp_connection import AmqpConnection
from streamd.connections.command_loop import CommandLoop
from streamd.connections.declaring import Declaring
from streamd.connections.services import Services
from streamd.net.duplex import LINGER_SECONDS, Ended
from streamd.net.transport import Transport
from streamd.operations.connections import AMQP_PROTOCOL
from streamd.operations.figures import AMQP091
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import HEARTBEAT_FRAME, PROTOCOL_HEADER, method_frame
from streamd.wire.amqp091.connection import Connection, Content, Event, NotAmqp, Request
from streamd.wire.amqp091.converted import Run
from streamd.wire.amqp091.errors import ConnectionFault, ReplyCode
from streamd.wire.amqp091.states import State

logger = logging.getLogger(__name__)

_CLOSE_OK = method_frame(0, m.ConnectionCloseOk())


class Amqp091Connection(AmqpConnection[Event, Session, AmqpConsumer]):
    """One connection.

    Args:
        is_relayed: a door is between this end and the client; see wire/amqp091/relay.py.
    """

    protocol = AMQP_PROTOCOL
    fault = ConnectionFault
    _connection: Connection

    def __init__(
        self, transport: Transport, services: Services, received: bytes, *, is_relayed: bool = False
    ) -> None:
        connection = Connection(is_relayed=is_relayed)
        super().__init__(transport, services, connection, received, HEARTBEAT_FRAME)
        heartbeat = services.config.heartbeat
        self._login = Login(services.authenticator(transport), services.broker, heartbeat)
        self._deliveries = DoorDeliveries if is_relayed else Deliveries
        self._pause = 0.0

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

    # -- login

    async def _log_in(self) -> None:
        """Answer until the connection is open."""
        connection, login = self._connection, self._login
        with trio.fail_after(LOGIN_SECONDS):
            await self._greeted()
            await self._transport.send(method_frame(0, login.start()))
            while connection.state is not State.OPEN:
                answers = await login.answer(connection, (await self._next_request()).method)
                frames = [method_frame(0, answer) for answer in answers]
                await self._transport.send(b"".join(frames))
                if connection.state is State.CLOSED:
                    raise Ended
        self._note_login(login)

    async def _next_request(self) -> Request:
        event = await self._next_event()
        assert isinstance(event, Request)  # noqa: S101 - content needs an open channel
        return event

    async def _refuse(self, failed: AuthenticationFailed) -> None:
        fault, waits = self._login.refusal(failed)
        await self._duplex.refused(failed, waits=waits)
        if fault is not None:
            await self._send_last(self._connection.close(fault))

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
            Declaring(login.host, login.rights, self._services.config.default_queue_type),
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

    # -- see amqp_connection.AmqpConnection

    def _do(self, session: Session, event: Event) -> int:
        if isinstance(event, Content):
            return session.publish(event)
        return session.handle_at_once(event)

    def _kind_of(self, event: Event) -> type[object]:
        return type(event.method)

    def _is_held(self, session: Session) -> bool:
        self._pause = session.take_pause()
        return bool(self._pause) or super()._is_held(session)

    async def released(self) -> None:
        """Return when streams and peer have room, and acknowledgements have gathered."""
        await super().released()
        if self._pause:
            await trio.sleep(self._pause)

    async def _carry_out(self, session: Session, command: Event) -> None:
        match command:
            case Content() | Run():
                await session.go_on(command)
            case Request(0, method):
                await self._handle_own(session, method)
            case Request():
                await session.handle(command)

    async def _handle_own(self, session: Session, method: m.Method) -> None:
        match method:
            case m.ConnectionClose():
                await self._answer_close(session, _CLOSE_OK)
            case m.ConnectionUpdateSecret():  # the client is authenticated; passwords do not expire
                session.flush()
                self._outbox.put(method_frame(0, m.ConnectionUpdateSecretOk()))
                session.check_rights()
            case _:  # CloseOk: the state shows it
                pass

    def _forced(self, reason: str) -> ConnectionFault:
        return ConnectionFault(ReplyCode.CONNECTION_FORCED, reason)

    def _take_late(self, event: Event) -> None:
        if isinstance(event, Request) and isinstance(event.method, m.ConnectionClose):
            self._outbox.put(_CLOSE_OK)
