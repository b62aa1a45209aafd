"""One AMQP 0-9-1 connection: its life from login to end.

As with stream connections (streamd/link.py): a reader that carries out requests in order; what is
sent, and the signs of life, are the line's. Whatever goes wrong on a connection ends it and
nothing else.
"""

import logging
from itertools import count, islice

import trio

from streamd.auth.authentication import AuthenticationFailed
from streamd.config import CHECK_SECONDS, CLOSE_SECONDS, LOGIN_SECONDS
from streamd.connections.amqp091.context import Context
from streamd.connections.amqp091.delivery import Consumer, Deliveries
from streamd.connections.amqp091.login import Login
from streamd.connections.amqp091.publishing import Publishing
from streamd.connections.amqp091.session import Session
from streamd.connections.registry import AMQP_PROTOCOL, ConnectionRegistry
from streamd.connections.services import Services
from streamd.net.duplex import LINGER_SECONDS, REQUESTS_A_TURN, Duplex, Ended
from streamd.net.transport import Transport, TransportClosed
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import HEARTBEAT_FRAME, PROTOCOL_HEADER, method_frame
from streamd.wire.amqp091.connection import Connection, Content, NotAmqp, Request
from streamd.wire.amqp091.errors import ConnectionFault, ReplyCode
from streamd.wire.amqp091.states import State

logger = logging.getLogger(__name__)

_MOST_AT_ONCE = 512  # messages and acknowledgements


class AmqpConnection:
    """One connection.

    Args:
        transport: the connection's bytes; closed when `run` returns.
        login: decides who may enter.
        connections: where it stands while it is open.
        default_queue_type: of queues that do not say.

    Attributes:
        is_open: somebody has logged in.
    """

    is_open = False

    def __init__(
        self,
        transport: Transport,
        login: Login,
        connections: ConnectionRegistry,
        default_queue_type: str,
    ) -> None:
        self._transport = transport
        self._connection = Connection()
        self._login = login
        self._connections = connections
        self._default_queue_type = default_queue_type
        self._duplex = Duplex(transport, HEARTBEAT_FRAME)
        self._ended = trio.Event()
        self._outbox = self._duplex.outbox
        self._session: Session | None = None
        self._waiting: Request | None = None
        self._has_more = False
        self._pause = 0.0

    async def run(self) -> None:
        """Serve the peer until one side ends the connection, or the task is cancelled."""
        try:
            await self._log_in()
            await self._serve()
        except (Ended, TransportClosed, trio.TooSlowError):
            pass
        except NotAmqp as error:
            logger.info("%s: %s", self._transport.peer, error)
            await self._send_last(PROTOCOL_HEADER, LINGER_SECONDS)
        except AuthenticationFailed as failed:
            await self._refuse(failed)
        except ConnectionFault as fault:  # before the connection was open
            logger.info("%s: %s", self._transport.peer, fault)
            if fault.code == ReplyCode.NOT_ALLOWED:
                await self._send_last(self._connection.close(fault))
        except Exception:  # a bug: it stays in this connection
            logger.exception("%s: the connection failed", self._transport.peer)
        finally:
            self._transport.close()

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
        name = login.properties.get("connection_name", "")
        logger.info(
            "%s: connected with AMQP%s", self._transport.peer, f" as {name}" if name else ""
        )

    async def _next_request(self) -> Request:
        while True:
            for event in self._connection.events():
                assert isinstance(event, Request)  # noqa: S101 - content needs an open channel
                return event
            await self._receive()

    async def _receive(self) -> None:
        self._connection.receive_data(await self._duplex.receive())

    async def _refuse(self, failed: AuthenticationFailed) -> None:
        fault, waits = self._login.refusal(failed)
        await self._duplex.refused(failed, waits=waits)
        if fault is not None:
            await self._send_last(self._connection.close(fault))

    async def _send_last(self, data: bytes, seconds: float = CLOSE_SECONDS) -> None:
        """Send, and wait until the peer has taken it and ended its side; see RFC 1122, 4.2.2.13."""
        with trio.move_on_after(seconds):
            try:
                await self._transport.send(data)
                while await self._transport.receive():
                    pass
            except TransportClosed:
                pass

    # -- open

    async def _serve(self) -> None:
        connection, login = self._connection, self._login
        self.is_open = True
        deliveries = Deliveries(self._duplex.work, connection.frame_max, self._cannot_read)
        publishing = Publishing(
            login.host,
            login.rights,
            self._outbox,
            connection.frame_max,
            self.fail,
            hears_of_blocking=login.can("connection.blocked"),
        )
        context = Context(
            login.host,
            login.rights,
            self._outbox,
            deliveries,
            publishing,
            login.now_ms,
            self._default_queue_type,
            login.can("consumer_cancel_notify"),
        )
        session = self._session = Session(context, connection.close_channel)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._duplex.write, deliveries)
                nursery.start_soon(self._duplex.watch, login.heartbeat_seconds)
                nursery.start_soon(deliveries.ripen)
                nursery.start_soon(self._check, session)
                with self._connections.listed(
                    self._transport,
                    login,
                    AMQP_PROTOCOL,
                    connection.frame_max,
                    nursery.cancel_scope,
                    list,
                    session.consumers,
                ):
                    await self._read(session)
        except* (Ended, TransportClosed):
            pass
        finally:
            self._ended.set()
            session.close()

    async def _read(self, session: Session) -> None:
        """Carry out what the client asks for until one side closes the connection."""
        for number in count(1):
            request, self._waiting = self._waiting or self._do_at_once(session), None
            self._duplex.is_listening = False
            if request is not None:
                await self._carry_out(session, request)
            if self._connection.state is State.CLOSED:
                raise Ended
            await session.room()
            await self._outbox.room()
            self._duplex.is_listening = True
            if request is None:
                await self._listen(session)
            elif number % REQUESTS_A_TURN == 0:
                await trio.lowlevel.checkpoint()

    def _do_at_once(self, session: Session) -> Request | None:
        """Publish and acknowledge what has been received, up to a request that needs waiting.

        Not all of it at once: thousands of small frames must not keep others waiting.
        """
        taken = 0
        try:
            for event in islice(self._connection.events(), _MOST_AT_ONCE):
                if isinstance(event, Content):
                    session.publish(event)
                elif not session.handle_at_once(event):
                    return event
                taken += 1
            session.flush()
        except ConnectionFault as fault:
            self.fail(fault)
        self._has_more = taken == _MOST_AT_ONCE
        return None

    async def _listen(self, session: Session) -> None:
        """Go on with what arrives, until something has to be waited for."""
        if self._has_more:
            await trio.lowlevel.checkpoint()
            return

        if self._pause:
            await trio.sleep(self._pause)

        def take(data: bytes) -> bool:
            self._connection.receive_data(data)
            self._waiting = self._do_at_once(session)
            self._pause = session.pause_seconds()
            is_over = self._connection.state is State.CLOSED
            is_free = session.has_room() and not self._outbox.is_full
            return (
                self._waiting is None and is_free and not (is_over or self._has_more or self._pause)
            )

        await self._duplex.feed(take)

    async def _carry_out(self, session: Session, request: Request) -> None:
        try:
            if request.channel:
                await session.handle(request)
            else:
                await self._handle_own(session, request.method)
        except ConnectionFault as fault:
            self.fail(fault)

    async def _handle_own(self, session: Session, method: m.Method) -> None:
        session.flush()
        match method:
            case m.ConnectionClose():
                session.close()
                self._outbox.put(method_frame(0, m.ConnectionCloseOk()))
                with trio.move_on_after(CLOSE_SECONDS):
                    await self._outbox.emptied()
                # To close with something unread would take the answer away from the client.
                with trio.move_on_after(LINGER_SECONDS):
                    while await self._transport.receive():
                        pass
            case m.ConnectionUpdateSecret():  # who is here has proved it; passwords do not expire
                self._outbox.put(method_frame(0, m.ConnectionUpdateSecretOk()))
                session.check_rights()
            case _:  # CloseOk: the state says it
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

    def _cannot_read(self, consumer: Consumer) -> None:
        if self._session is not None:
            self._session.stream_is_gone(consumer.stream)

    async def _check(self, session: Session) -> None:
        """End a connection that does not answer a close, or has nothing left to use.

        And consumers whose user may not read any more what they read.
        """
        is_closing = False
        while True:
            await trio.sleep(CHECK_SECONDS)
            if session.must_end or is_closing:
                logger.info("%s: ended by the server", self._transport.peer)
                raise Ended
            is_closing = self._connection.state is State.CLOSING
            session.check_rights()

    async def stop(self) -> None:
        """The server stops: confirm what has arrived, then say so, and wait for the answer."""
        session = self._session
        if session is not None:
            session.flush()
            await session.settled()
        reason = "broker forced connection closure with reason 'shutdown'"
        self.fail(ConnectionFault(ReplyCode.CONNECTION_FORCED, reason))
        with trio.move_on_after(LINGER_SECONDS):
            await self._ended.wait()
        await self._outbox.emptied()
        self._transport.end_sending()


def make_connection(
    transport: Transport,
    services: Services,
    announced: tuple[str, int],  # noqa: ARG001 - AMQP clients are not told where the server is
) -> AmqpConnection:
    """See services.MakeConnection."""
    config = services.config
    login = Login(services.authenticator(transport), services.broker, config.heartbeat)
    return AmqpConnection(transport, login, services.registry, config.default_queue_type)
