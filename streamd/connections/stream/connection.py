"""One client connection: its life from login to end.

The reader takes bytes, turns them into commands and carries these out in order; what is sent, and
the signs of life, are the line's (line.py). Whatever goes wrong on a connection ends it and
nothing else.
"""

import logging
from itertools import count
from typing import cast

import trio

from streamd.auth.authentication import AuthenticationFailed
from streamd.config import CHECK_SECONDS, CLOSE_SECONDS, LOGIN_SECONDS, REFUSAL_SECONDS
from streamd.connections.registry import STREAM_PROTOCOL, ConnectionRegistry
from streamd.connections.services import Services
from streamd.connections.stream.delivery import Delivery
from streamd.connections.stream.login import Login
from streamd.connections.stream.session import Session
from streamd.net.duplex import REQUESTS_A_TURN, Duplex, Ended, Stopped
from streamd.net.transport import Transport, TransportClosed
from streamd.wire.stream import (
    NEED_DATA,
    Connection,
    NeedData,
    RemoteProtocolError,
    ResponseCode,
    Role,
    State,
    codec,
    commands as c,
)

logger = logging.getLogger(__name__)

_HEARTBEAT = codec.encode(c.Heartbeat())
_MOST_AT_ONCE = 256  # commands


class StreamConnection:
    """One connection.

    Args:
        transport: the connection's bytes; closed when `run` returns.
        login: decides who may enter.
        frame_max: bytes that a frame may have.
        connections: where it stands while it is open.

    Attributes:
        is_open: somebody has logged in.
    """

    is_open = False

    def __init__(
        self, transport: Transport, login: Login, frame_max: int, connections: ConnectionRegistry
    ) -> None:
        self._transport = transport
        self._connection = Connection(Role.SERVER, frame_max)
        self._login = login
        self._connections = connections
        self._duplex = line = Duplex(transport, _HEARTBEAT)
        self._outbox = line.outbox
        self._delivery = Delivery(line.work, line.outbox, line.is_clear)
        self._ended = trio.Event()

    async def run(self) -> None:
        """Serve the peer until one side ends the connection, or the task is cancelled."""
        try:
            await self._log_in()
            await self._serve()
        except (Ended, TransportClosed, trio.TooSlowError):
            pass
        except RemoteProtocolError as error:
            logger.info("%s: %s", self._transport.peer, error)
        except AuthenticationFailed as failed:
            await self._refuse(failed)
        except Exception:  # a bug: it stays in this connection
            logger.exception("%s: the connection failed", self._transport.peer)
        finally:
            self._transport.close()

    # -- login

    async def _log_in(self) -> None:
        """Answer until the connection is open. Every step has its time."""
        connection = self._connection
        while connection.state is not State.OPEN:
            with trio.fail_after(LOGIN_SECONDS):
                step = connection.state
                while connection.state is step:
                    command = await self._next_command()
                    answers = await self._login.answer(command)
                    await self._transport.send(b"".join(map(connection.send, answers)))
        connection.limit_frames(self._login.frame_max)
        name = self._login.properties.get("connection_name", "")
        logger.info("%s: connected%s", self._transport.peer, f" as {name}" if name else "")

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

    # -- open

    async def _serve(self) -> None:
        login = self._login
        self.is_open = True
        session = Session(login.context(self._outbox, self._delivery))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._duplex.write, self._delivery)
                nursery.start_soon(self._duplex.watch, login.heartbeat_seconds)
                nursery.start_soon(self._check, session)
                with self._connections.listed(
                    self._transport,
                    login,
                    STREAM_PROTOCOL,
                    login.frame_max,
                    nursery.cancel_scope,
                    session.publishers,
                    session.consumers,
                ):
                    await self._read(session)
        except* (Ended, Stopped, TransportClosed):
            pass
        finally:
            self._ended.set()
            session.close()

    async def _read(self, session: Session) -> None:
        try:
            for number in count(1):
                command = await self._next_that_waits(session)
                self._duplex.is_listening = False
                if isinstance(command, c.Close):
                    await self._say_last(session, command)
                if isinstance(command, c.SaslAuthenticate):
                    await self._renew_secret(session, command)
                await session.handle(command)
                await self._outbox.room()
                self._duplex.is_listening = True
                if number % REQUESTS_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
        except Stopped:
            await session.settled()
            session.close()
            await self._duplex.farewell()
            raise Ended from None
        except RemoteProtocolError as error:
            logger.info("%s: %s", self._transport.peer, error)
            session.close()
            self._outbox.put(self._connection.send(c.Close(1, error.code, error.reason)))
            with trio.move_on_after(CLOSE_SECONDS):
                await self._await_close_response(session)
            raise Ended from error

    async def _next_that_waits(self, session: Session) -> c.ClientCommand:
        """The next command that needs waiting; the others are carried out as they arrive."""
        found = self._do_at_once(session)

        def take(data: bytes) -> bool:
            nonlocal found
            self._connection.receive_data(data)
            found = self._do_at_once(session)
            return found is NEED_DATA

        while True:
            if found is NEED_DATA:
                await self._duplex.feed(take)
            elif found is None:
                await trio.lowlevel.checkpoint()
                found = self._do_at_once(session)
            else:
                return cast("c.ClientCommand", found)  # by its role the connection gives no others

    def _do_at_once(self, session: Session) -> c.Command | NeedData | None:
        """Carry out what has been received, up to the first command that needs waiting.

        None when there is more of it: thousands of small commands must not keep others waiting.
        """
        for _ in range(_MOST_AT_ONCE):
            command = self._connection.next_command()
            if command is NEED_DATA or not session.handle_at_once(cast("c.ClientCommand", command)):
                return command
        return None

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

    async def stop(self) -> None:
        """The server stops: confirm what has arrived, and end as clients like it best.

        That is without a Close: told so, some do not come back when the server does.
        """
        self._duplex.stop_listening()
        await self._ended.wait()


def make_connection(
    transport: Transport, services: Services, announced: tuple[str, int]
) -> StreamConnection:
    """See services.MakeConnection."""
    config, broker, directory, registry = services
    authenticator = services.authenticator(transport)
    login = Login(config, broker, directory, announced, authenticator)
    return StreamConnection(transport, login, config.frame_max, registry)
