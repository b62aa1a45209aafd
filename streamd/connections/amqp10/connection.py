"""One AMQP 1.0 connection: its life from login to end.

What it has in common with AMQP 0-9-1 is in amqp_connection.py.
"""

import logging
from functools import partial

import trio

from streamd.auth.authentication import AuthenticationFailed
from streamd.config import LOGIN_SECONDS
from streamd.connections.amqp10.context import Context
from streamd.connections.amqp10.delivery import Deliveries, LinkConsumer
from streamd.connections.amqp10.login import Login, outcome_of
from streamd.connections.amqp10.management import Management
from streamd.connections.amqp10.publishing import Publishing
from streamd.connections.amqp10.session import Session
from streamd.connections.amqp_connection import AmqpConnection
from streamd.connections.command_loop import CommandLoop
from streamd.connections.declaring import Declaring
from streamd.connections.services import Services
from streamd.engine import Caller
from streamd.net.duplex import LINGER_SECONDS, Ended
from streamd.net.transport import Transport
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

logger = logging.getLogger(__name__)

_SIGNS = 3  # of life, in the time that a client waits for one
_BYTES_A_MESSAGE = 16  # of a performative, that take as long to read as a message


class Amqp10Connection(AmqpConnection[Event, Session, LinkConsumer]):
    """One connection."""

    protocol = AMQP10_PROTOCOL
    fault = ConnectionFault
    _connection: Connection

    def __init__(self, transport: Transport, services: Services, received: bytes) -> None:
        super().__init__(transport, services, Connection(), received, HEARTBEAT_FRAME)
        heartbeat = services.config.heartbeat
        self._login = Login(services.authenticator(transport), services.broker, heartbeat)

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

    async def _next_request(self) -> Request:
        event = await self._next_event()
        assert isinstance(event, Request)  # noqa: S101 - there are no sessions yet
        return event

    async def _refuse(self, failed: AuthenticationFailed) -> None:
        await self._duplex.refused(failed, waits=failed.is_guess)
        outcome = outcome_of(failed)
        if outcome is not None:
            await self._send_last(sasl_frame(outcome), LINGER_SECONDS)

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

    # -- see amqp_connection.AmqpConnection

    def _do(self, session: Session, event: Event) -> int:
        work = session.handle_at_once(event)
        if work and isinstance(event, Request):
            work += self._connection.frame_size // _BYTES_A_MESSAGE
        return work

    def _kind_of(self, event: Event) -> type[object]:
        return type(event.performative if isinstance(event, Request) else event)

    async def _carry_out(self, session: Session, command: Event) -> None:
        if isinstance(command, Request) and isinstance(command.performative, p.Close):
            await self._answer_close(session, frame(0, p.Close()))
        else:
            await session.handle(command)

    def _forced(self, reason: str) -> ConnectionFault:
        return ConnectionFault(Condition.INTERNAL_ERROR, f'Connection forced: "{reason}"')
