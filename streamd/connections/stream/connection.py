"""One client connection: its life from login to end.

Bytes become commands, which are carried out in order (command_loop.py); what is sent, and the signs
of life, are in net/duplex.py. Whatever goes wrong on a connection ends it and nothing else.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, cast

import trio

from streamd.auth.authentication import AuthenticationFailed
from streamd.broker.streams.stream import Stream
from streamd.broker.traffic import ProtocolTraffic
from streamd.config import CHECK_SECONDS, CLOSE_SECONDS, LOGIN_SECONDS, REFUSAL_SECONDS
from streamd.connections.base import BaseConnection
from streamd.connections.command_loop import LARGE_FRAME, CommandLoop, Pending
from streamd.connections.ready_queue import ReadyQueue
from streamd.connections.services import Services
from streamd.connections.stream.delivery import Delivery, Subscription
from streamd.connections.stream.login import Login
from streamd.connections.stream.publishers import MESSAGES_A_TURN
from streamd.connections.stream.session import Session
from streamd.engine.registry import ConnectionRegistry
from streamd.net.duplex import Ended
from streamd.net.rounds import Rounds
from streamd.net.transport import Transport, TransportClosed
from streamd.net.turns import next_turn
from streamd.operations.connections import STREAM_PROTOCOL
from streamd.wire.stream import (
    NEED_DATA,
    Connection,
    RemoteProtocolError,
    ResponseCode,
    Role,
    State,
    codec,
    commands as c,
)

logger = logging.getLogger(__name__)

_HEARTBEAT = codec.encode(c.Heartbeat())
_LOOK_UP = MESSAGES_A_TURN  # messages that a look-up of keys counts as, which may take 10 ms
_MOST_AT_ONCE = 256  # commands; of those to create streams, with their arguments
_COUNTED = (c.Publish, c.PublishFiltered, c.Find)


class Creates(NamedTuple):
    """Requests to create streams that have arrived one after the other."""

    commands: Sequence[c.Create]


class StreamConnection(BaseConnection):
    """One connection.

    Args:
        transport: the connection's bytes; closed when `run` returns.
        login: decides whether the peer may enter.
        frame_max: bytes that a frame may have.
        registry: lists it while it is open.
        rounds: consumers are woken at the end of each.
    """

    protocol = STREAM_PROTOCOL
    _connection: Connection

    def __init__(
        self,
        transport: Transport,
        login: Login,
        frame_max: int,
        registry: ConnectionRegistry,
        rounds: Rounds,
        traffic: ProtocolTraffic,
    ) -> None:
        super().__init__(transport, registry, _HEARTBEAT)
        self._connection = Connection(Role.SERVER, frame_max)
        self._login = login
        queue: ReadyQueue[Subscription] = ReadyQueue(self._duplex.work, rounds, self._fail)
        self._traffic = traffic
        self._delivery = Delivery(
            queue,
            self._outbox,
            self._duplex.is_clear,
            transport.hurry,
            self._cannot_read,
            traffic,
        )
        self._session: Session | None = None
        # Received after requests that are carried out.
        self._ahead: c.ClientCommand | RemoteProtocolError | None = None

    def _forget(self) -> None:
        super()._forget()
        self._ahead = None

    # -- login

    async def _log_in(self) -> None:
        """Answer until the connection is open. Every step has a time limit."""
        connection = self._connection
        while connection.state is not State.OPEN:
            with trio.fail_after(LOGIN_SECONDS):
                step = connection.state
                while connection.state is step:
                    await trio.lowlevel.checkpoint()  # signs of life are not limited
                    command = await self._next_command()
                    if connection.frame_size > LARGE_FRAME:
                        await next_turn()
                    answers = await self._login.answer(command)
                    await self._transport.send(b"".join(map(connection.send, answers)))
        if self._login.is_node:
            connection.take_frames(self._login.frame_max)
        connection.limit_frames(self._login.frame_max)
        self._note_login(self._login)

    async def _next_command(self) -> c.ClientCommand:
        while (command := self._connection.next_command()) is NEED_DATA:
            self._connection.receive_data(await self._duplex.receive())
        return cast("c.ClientCommand", command)  # by its role the connection gives no others

    async def _refuse(self, failed: AuthenticationFailed) -> None:
        answer, waits = self._login.refusal(failed)
        await self._duplex.refused(failed, waits=waits)
        try:
            with trio.move_on_after(LOGIN_SECONDS):
                await self._transport.send(self._connection.send(answer))
        except TransportClosed:
            pass

    async def _has_explained(self, error: Exception) -> bool:
        if isinstance(error, RemoteProtocolError):
            logger.info("%s: %s", self._transport.peer, error)
        return isinstance(error, RemoteProtocolError)

    # -- open

    async def _serve(self) -> None:
        login = self._login
        session = self._session = Session(login.context(self._outbox, self._delivery), self.end)
        self._handle_at_once, self._is_patient = session.handle_at_once, session.is_patient
        await self._serve_open(
            login,
            login.frame_max,
            session,
            self._delivery,
            partial(self._carry_out_all, session),
            partial(self._check, session),
        )

    async def _carry_out_all(self, session: Session) -> None:
        try:
            await CommandLoop[c.ClientCommand | Creates](
                self._duplex, self, self._watch(self._login, self._traffic)
            ).run()
        except RemoteProtocolError as error:
            fault = error.with_traceback(None)  # which has what was received
        logger.info("%s: %s", self._transport.peer, fault)
        self._traffic.errors[fault.code] += 1
        session.close()
        self._outbox.put(self._connection.send(c.Close(1, fault.code, fault.reason)))
        with trio.move_on_after(CLOSE_SECONDS):
            await self._await_close_response(session)
        raise Ended

    # -- see command_loop.Commands

    def do_at_once(self) -> c.ClientCommand | Creates | Pending:
        """Carry out what has been received, up to a command that needs waiting."""
        if self._ahead is not None:
            found = self._do_ahead(self._ahead)
            if found is not None:
                return found
        next_command, handle_at_once = self._connection.next_command, self._handle_at_once
        left, num_credits = MESSAGES_A_TURN, 0
        for number in range(_MOST_AT_ONCE):
            command = next_command()
            if command is NEED_DATA:
                return self._needs_data(was_credit=0 < number == num_credits)
            self._kind = type(command)
            if isinstance(command, c.Create):
                return self._gather(command)
            if not handle_at_once(cast("c.ClientCommand", command)):
                return cast("c.ClientCommand", command)  # by its role there are no others
            if isinstance(command, c.Credit):
                num_credits += 1
            elif isinstance(command, _COUNTED):
                left -= _LOOK_UP if isinstance(command, c.Find) else command.num_entries
                if left < 0:
                    break
        return Pending.MORE

    def _needs_data(self, *, was_credit: bool) -> Pending:
        """All was carried out; whether it was nothing but credit."""
        return Pending.NO_HURRY if was_credit and self._is_patient() else Pending.NEED_DATA

    def _do_ahead(self, ahead: c.ClientCommand | RemoteProtocolError) -> c.ClientCommand | None:
        self._ahead = None
        if isinstance(ahead, RemoteProtocolError):
            raise ahead
        return None if self._handle_at_once(ahead) else ahead

    def _gather(self, first: c.Create) -> Creates:
        """Requests to create streams that have arrived together: they share one commit."""
        creates = [first]
        most = _MOST_AT_ONCE - len(first.arguments)
        while len(creates) < most:
            try:
                command = self._connection.next_command()
            except RemoteProtocolError as error:  # what came before it is carried out
                self._ahead = error
                break
            if command is NEED_DATA:
                break
            if not isinstance(command, c.Create):
                self._ahead = cast("c.ClientCommand", command)
                break
            creates.append(command)
            most -= len(command.arguments)
        return Creates(creates)

    async def carry_out(self, command: c.ClientCommand | Creates) -> None:
        """Carry out a command that needs waiting."""
        session = self._session
        assert session is not None  # noqa: S101 - nothing is carried out before
        if isinstance(command, Creates):
            await session.create_all(command.commands)
            await self._outbox.room()
            return
        if isinstance(command, c.Close):
            await self._say_last(session, command)
        if isinstance(command, c.SaslAuthenticate):
            await self._renew_secret(session, command)
        await session.handle(command)
        await self._outbox.room()

    async def released(self) -> None:
        """Return when the peer has taken what waits for it."""
        await self._outbox.room()

    def _cannot_read(self, stream: Stream) -> None:
        if self._session is not None:
            self._session.stream_is_gone(stream)

    async def _renew_secret(self, session: Session, command: c.SaslAuthenticate) -> None:
        code = await self._login.renew(command)
        if code != ResponseCode.OK:
            logger.warning("%s: new secret refused", self._transport.peer)
            await trio.sleep(REFUSAL_SECONDS)
        self._outbox.put(
            self._connection.send(c.SaslAuthenticateResponse(command.correlation_id, code))
        )
        if code != ResponseCode.OK:
            with trio.move_on_after(CLOSE_SECONDS):
                await self._outbox.emptied()
            raise Ended
        session.check_rights()

    async def _check(self, session: Session) -> None:
        """End a connection that owes an answer for too long, or has nothing left to use."""
        while True:
            await trio.sleep(CHECK_SECONDS)
            if session.must_end:
                logger.info("%s: ended by the server", self._transport.peer)
                raise Ended

    async def _say_last(self, session: Session, close: c.Close) -> None:
        """Answer a Close after everything that was asked before it, then end."""
        with trio.move_on_after(CLOSE_SECONDS):
            await session.settled()
            answer = c.CloseResponse(close.correlation_id, ResponseCode.OK)
            self._outbox.put(self._connection.send(answer))
            await self._outbox.emptied()
        raise Ended

    async def _await_close_response(self, session: Session) -> None:
        while self._connection.state is not State.CLOSED:
            try:
                command = await self._next_command()
            except RemoteProtocolError as error:  # it was told to go already
                raise Ended from error
            if isinstance(command, c.Close):
                await self._say_last(session, command)

    async def _tell(self, _reason: str) -> None:
        """End without a Close: some clients that get one do not come back when the server does."""
        await self._duplex.farewell()


def make_connection(
    transport: Transport, services: Services, announced: tuple[str, int]
) -> StreamConnection:
    """See services.MakeConnection."""
    config, broker = services.config, services.broker
    authenticator = services.authenticator(transport)
    login = Login(services, announced, authenticator, is_tls=transport.is_tls)
    traffic = broker.traffic.protocol(STREAM_PROTOCOL)
    return StreamConnection(
        transport, login, config.frame_max, services.registry, broker.rounds, traffic
    )
