"""One client connection: bytes in and out, its life from login to end.

Two tasks. The reader takes bytes, turns them into commands and carries these out in order. The
writer alone sends: first whatever is in the outbox, then one turn of deliveries, and again. A
third task watches for signs of life. Whatever goes wrong on a connection ends it and nothing
else.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import trio

from segments.disk import Buffer
from streamd.config import CHECK_SECONDS, CLOSE_SECONDS, LOGIN_SECONDS, REFUSAL_SECONDS
from streamd.connections import Connections, LiveConnection
from streamd.delivery import Delivery
from streamd.login import Login, LoginFailed
from streamd.outbox import Outbox
from streamd.session import Session
from streamd.transport import Transport, TransportClosed
from streamd.wakeup import Wakeup
from streamd.wire import (
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
_MISSED_HEARTBEATS = 2
_MOST_AT_ONCE = 256  # commands


class _Ended(Exception):
    """The connection is over, in order or not."""


class Link:
    """One connection.

    Args:
        transport: the connection's bytes; closed when `run` returns.
        login: decides who may enter.
        frame_max: bytes that a frame may have.
        connections: where it stands while it is open.
    """

    def __init__(
        self, transport: Transport, login: Login, frame_max: int, connections: Connections
    ) -> None:
        self._transport = transport
        self._connection = Connection(Role.SERVER, frame_max)
        self._login = login
        self._connections = connections
        self._work = Wakeup()
        self._outbox = Outbox(self._work, self._send_some)
        self._delivery = Delivery(self._work, self._outbox, self._is_clear)
        self._is_listening = True
        self._has_heard = self._has_sent = False

    async def run(self) -> None:
        """Serve the peer until one side ends the connection, or the task is cancelled."""
        try:
            await self._log_in()
            await self._serve()
        except (_Ended, TransportClosed, trio.TooSlowError):
            pass
        except RemoteProtocolError as error:
            logger.info("%s: %s", self._transport.peer, error)
        except LoginFailed as failed:
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
            data = await self._transport.receive()
            if not data:
                raise _Ended
            self._has_heard = True
            self._connection.receive_data(data)
        return cast("c.ClientCommand", command)  # by its role the connection gives no others

    async def _refuse(self, failed: LoginFailed) -> None:
        logger.warning("%s: login refused", self._transport.peer)
        if failed.is_guess:
            await trio.sleep(REFUSAL_SECONDS)
        try:
            with trio.move_on_after(LOGIN_SECONDS):
                await self._transport.send(self._connection.send(failed.answer))
        except TransportClosed:
            pass

    # -- open

    async def _serve(self) -> None:
        login = self._login
        session = Session(login.context(self._outbox, self._delivery))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._check, session)
                if self._login.heartbeat_seconds:
                    nursery.start_soon(self._watch, self._login.heartbeat_seconds)
                with self._listed(session, nursery.cancel_scope):
                    await self._read(session)
        except* (_Ended, TransportClosed):
            pass
        finally:
            session.close()

    @contextmanager
    def _listed(self, session: Session, everything: trio.CancelScope) -> Iterator[None]:
        """Let others see the connection, and end it."""

        def end(reason: str) -> None:
            logger.info("%s: ended, %s", self._transport.peer, reason)
            everything.cancel()

        transport, login = self._transport, self._login
        live = LiveConnection(
            peer=transport.peer,
            local=transport.local,
            protocol="stream",
            is_tls=transport.is_tls,
            user=login.rights.user,
            mechanism=login.mechanism,
            virtual_host=login.host.name,
            properties=login.properties,
            frame_max=login.frame_max,
            heartbeat_seconds=login.heartbeat_seconds,
            connected_at_ms=login.opened_at_ms,
            publishers=session.publishers,
            consumers=session.consumers,
            end=end,
        )
        self._connections.add(live)
        try:
            yield
        finally:
            self._connections.discard(live)

    async def _read(self, session: Session) -> None:
        try:
            while True:
                command = await self._next_that_waits(session)
                self._is_listening = False
                if isinstance(command, c.Close):
                    await self._say_last(session, command)
                if isinstance(command, c.SaslAuthenticate):
                    await self._renew_secret(session, command)
                await session.handle(command)
                await self._outbox.room()
                self._is_listening = True
        except RemoteProtocolError as error:
            logger.info("%s: %s", self._transport.peer, error)
            session.close()
            self._outbox.put(self._connection.send(c.Close(1, error.code, error.reason)))
            with trio.move_on_after(CLOSE_SECONDS):
                await self._await_close_response(session)
            raise _Ended from error

    async def _next_that_waits(self, session: Session) -> c.ClientCommand:
        """The next command that needs waiting; the others are carried out as they arrive."""
        found = self._do_at_once(session)

        def take(data: bytes) -> bool:
            nonlocal found
            self._has_heard = True
            self._connection.receive_data(data)
            found = self._do_at_once(session)
            return found is NEED_DATA

        while True:
            if found is NEED_DATA:
                if not await self._transport.feed(take):
                    raise _Ended
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
            raise _Ended
        session.check_rights()

    async def _check(self, session: Session) -> None:
        """End a connection that owes an answer for too long, or has nothing left to use."""
        while True:
            await trio.sleep(CHECK_SECONDS)
            if session.must_end:
                logger.info("%s: ended by the server", self._transport.peer)
                raise _Ended

    async def _say_last(self, session: Session, close: c.Close) -> None:
        """Answer a Close after everything that was asked before it, then end."""
        with trio.move_on_after(CLOSE_SECONDS):
            await session.settled()
            answer = c.CloseResponse(close.correlation_id, ResponseCode.OK)
            self._outbox.put(self._connection.send(answer))
            await self._outbox.emptied()
        raise _Ended

    async def _await_close_response(self, session: Session) -> None:
        while self._connection.state is not State.CLOSED:
            command = await self._next_command()
            if isinstance(command, c.Close):
                await self._say_last(session, command)

    async def _write(self) -> None:
        """Send, one thing at a time, so that frames never mix."""
        while True:
            data = self._outbox.take()
            if data:
                await self._transport.send(data)
                self._outbox.sent()
                self._has_sent = True
            elif self._delivery.has_work:
                await self._delivery.turn(self._transport, self._outbox.has_frames)
                self._has_sent = True
                await trio.lowlevel.checkpoint()  # a fast peer must not keep others waiting
            else:
                self._outbox.is_idle = True
                try:
                    await self._work.wait()
                finally:
                    self._outbox.is_idle = False

    def _send_some(self, parts: Sequence[Buffer]) -> int:
        """Send what the peer takes at once; that it is gone is for `_write` to find."""
        try:
            sent = self._transport.send_some(parts)
        except TransportClosed:
            return 0
        self._has_sent = True
        return sent

    def _is_clear(self) -> bool:
        return self._outbox.is_free and not self._transport.is_congested

    async def flushed(self) -> None:
        """Return once all answers made so far have been sent."""
        await self._outbox.emptied()

    async def _watch(self, interval: int) -> None:
        """Send signs of life when nothing else is sent, and end when none come.

        The peer is not blamed for silence while the server itself does not listen.
        """
        silent = 0
        while True:
            for _ in range(2):
                await trio.sleep(interval / 2)
                if not self._has_sent and self._outbox.is_empty:
                    self._outbox.put(_HEARTBEAT)
                self._has_sent = False
            is_alive = self._has_heard or not self._is_listening
            silent = 0 if is_alive else silent + 1
            self._has_heard = False
            if silent >= _MISSED_HEARTBEATS:
                logger.info("%s: no sign of life in %s s", self._transport.peer, 2 * interval)
                raise _Ended
