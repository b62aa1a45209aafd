"""The connection that publishers and consumers use: one that comes back when it is lost.

Below it one connection follows the other. Publishers and consumers keep their ids; on a new
connection all of them are opened again before it can be used for anything else, so that nothing
new overtakes what has to be sent again.
"""

import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from clients.connection import ANSWER_SECONDS, ClientConnection, open_connection
from clients.errors import ConnectionLost, ServerRefused, StreamError, refusal
from clients.uri import Endpoint
from streamd.wire.stream import ResponseCode, commands as c

logger = logging.getLogger(__name__)

_MAX_IDS = 256
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between attempts; each twice the one before
_STABLE_SECONDS = 5  # a connection that lasted less does not restart retry_seconds


class ConnectionListener(Protocol):
    """A publisher or consumer.

    Attributes:
        stream: what it uses.
    """

    stream: str

    async def open(self, connection: ClientConnection, number: int) -> None:
        """Begin on a connection, or continue there.

        Raises:
            ServerRefused: the server said no.
            ConnectionLost: the connection is gone.
        """

    async def close(self) -> None:
        """Close it on the connection that it is open on."""

    def received(self, command: c.ServerCommand) -> None:
        """Take a command."""

    def interrupted(self) -> None:
        """The connection is gone and may come back."""

    def failed(self, error: Exception) -> None:
        """The stream is gone, or the connection for good."""


class Ids:
    """Who has which id: the publishers of a client, or its consumers.

    Attributes:
        listeners: by id.
        opened: ids of those that are open and will be opened again.
    """

    def __init__(self) -> None:
        self.listeners: dict[int, ConnectionListener] = {}
        self.opened: set[int] = set()

    def take(self, listener: ConnectionListener) -> int:
        """Give a listener the lowest free id.

        Raises:
            ServerRefused: all are in use.
        """
        for number in range(_MAX_IDS):
            if number not in self.listeners:
                self.listeners[number] = listener
                return number
        details = f"{_MAX_IDS} are open on this connection"
        raise refusal(ResponseCode.PRECONDITION_FAILED, details)

    def release(self, number: int) -> None:
        """Take an id back."""
        del self.listeners[number]
        self.opened.discard(number)

    def give(self, number: int, command: c.ServerCommand) -> None:
        """Pass a command to its listener; one that comes too late for that is dropped."""
        listener = self.listeners.get(number)
        if listener is not None:
            listener.received(command)

    def fail(self, error: StreamError, stream: str | None = None) -> None:
        """Tell all, or the users of a stream, that it is over."""
        for number in sorted(self.opened):
            if stream in (None, self.listeners[number].stream):
                self.opened.discard(number)
                self.listeners[number].failed(error)

    async def reopen(self, connection: ClientConnection) -> None:
        """Open all that were open on a new connection.

        Raises:
            ConnectionLost: it is gone again.
        """
        for number in sorted(self.opened):
            listener = self.listeners.get(number)
            if listener is None or number not in self.opened:
                continue  # closed while others were opened
            try:
                await listener.open(connection, number)
            except ServerRefused as error:
                self.opened.discard(number)
                listener.failed(error)
            if self.listeners.get(number) is not listener:
                await listener.close()


class _Retry:
    """When to try again, and when to give up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._attempts = 0
        self._give_up_at: float | None = None
        self._up_at: float | None = None

    def is_up(self) -> None:
        self._up_at = anyio.current_time()

    def log(self, error: Exception) -> None:
        level = logging.WARNING if self._attempts == 1 else logging.DEBUG
        logger.log(level, "%s; trying to get it back for %g s", error, self._seconds)

    def pause(self) -> float | None:
        """Seconds to wait before the next attempt; None to give up."""
        now = anyio.current_time()
        was_stable = self._up_at is not None and now - self._up_at >= _STABLE_SECONDS
        if self._give_up_at is None or was_stable:
            self._attempts, self._give_up_at = 0, now + self._seconds
        self._up_at = None
        pause = min(_FIRST_PAUSE * 2**self._attempts, _LONGEST_PAUSE)
        pause *= random.uniform(0.5, 1)  # noqa: S311 - clients that were lost together spread
        self._attempts += 1
        return None if now + pause > self._give_up_at else pause


class ReconnectingConnection:
    """A connection to one server that is made again when lost; made by `open_reconnecting`.

    Args:
        endpoint: the server and the user.
        name: of the connections, as the server lists them.
        heartbeat: seconds between signs of life, 0 for none.
        retry_seconds: how long to try to get a lost connection back.
        tasks: runs everything that belongs to the connection.

    Attributes:
        tasks: as given.
        publishers, consumers: who has which id.
        server: what the server said about itself.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        heartbeat: int,
        retry_seconds: float,
        tasks: TaskGroup,
    ) -> None:
        self.tasks = tasks
        self.publishers, self.consumers = Ids(), Ids()
        self.server: dict[str, str] = {}
        self._endpoint = endpoint
        self._name = name
        self._heartbeat = heartbeat
        self._retry_seconds = retry_seconds
        self._connection: ClientConnection | None = None
        self._error: StreamError | None = None
        self._changed = anyio.Event()

    @property
    def is_streamd(self) -> bool:
        """The server is a streamd, with requests that others do not have."""
        return "streamd" in self.server

    # -- using it

    async def request(
        self, kind: type[Any], *fields: object, seconds: float | None = ANSWER_SECONDS
    ) -> Any:  # noqa: ANN401 - of any kind
        """Send a request and return its answer; while the connection is lost it waits for it.

        Args:
            kind: of the request.
            fields: its fields after the correlation id.
            seconds: how long to wait for the answer; None waits for ever.

        Raises:
            ConnectionLost: the connection was lost before the answer came, and what was asked for
                may have been done; or it is gone for good.
        """
        connection = await self._wait_for_connection()
        try:
            return await connection.request(kind, *fields, seconds=seconds)
        except ConnectionLost:
            await self._let_go_of(connection)
            raise

    async def ask(
        self, kind: type[Any], *fields: object, seconds: float | None = ANSWER_SECONDS
    ) -> Any:  # noqa: ANN401 - of any kind
        """As `request`, for queries: sent again when the connection was lost.

        Raises:
            ConnectionLost: no answer came in time, or the connection is gone for good.
        """
        while True:
            connection = await self._wait_for_connection()
            try:
                return await connection.request(kind, *fields, seconds=seconds)
            except ConnectionLost:
                if connection.lost is None:
                    raise
            await self._let_go_of(connection)

    @asynccontextmanager
    async def opened(self, ids: Ids, listener: ConnectionListener) -> AsyncIterator[None]:
        """A publisher or consumer while it is open.

        Raises:
            ServerRefused: the server said no, or all ids are in use.
            ConnectionLost: the connection is gone for good.
        """
        number = ids.take(listener)
        try:
            while number not in ids.opened:
                connection = await self._wait_for_connection()
                try:
                    await listener.open(connection, number)
                except ConnectionLost:
                    await self._let_go_of(connection)
                    continue
                if connection is self._connection:
                    ids.opened.add(number)
            yield
        finally:
            ids.release(number)

    async def _wait_for_connection(self) -> ClientConnection:
        while self._connection is None:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        return self._connection

    async def _let_go_of(self, connection: ClientConnection) -> None:
        """Return once a connection that is lost is not the current one any more."""
        while self._connection is connection and connection.lost is not None:
            await self._changed.wait()

    # -- keeping it

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Connect, and again whenever the connection is lost; started once the first is there.

        Raises:
            ConnectionLost: nobody answers there the first time.
            LoginRefused: the server refuses the user the first time.
        """
        retry = _Retry(self._retry_seconds)
        has_started = False
        while True:
            try:
                async with open_connection(
                    self._endpoint, self._name, self._heartbeat, self._take
                ) as connection:
                    await self._begin(connection)
                    retry.is_up()
                    if not has_started:
                        has_started = True
                        task_status.started()
                    await connection.ended.wait()
                error, is_final = connection.lost_error, connection.was_closed
            except StreamError as failed:
                if not has_started:
                    raise
                error, is_final = failed, not isinstance(failed, ConnectionLost)
            self._interrupt()
            pause = retry.pause()
            if is_final or pause is None:
                self._fail(error)
                return
            retry.log(error)
            await anyio.sleep(pause)

    async def _begin(self, connection: ClientConnection) -> None:
        self.server = connection.server
        await self.publishers.reopen(connection)
        await self.consumers.reopen(connection)
        self._connection = connection
        self._tell()

    def _interrupt(self) -> None:
        self._connection = None
        for ids in (self.publishers, self.consumers):
            for number in ids.opened:
                ids.listeners[number].interrupted()
        self._tell()

    def _fail(self, error: StreamError) -> None:
        self._error = error
        for ids in (self.publishers, self.consumers):
            ids.fail(error)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _take(self, command: c.ServerCommand) -> None:
        """See connection.Connection."""
        match command:
            case c.PublishConfirm() | c.PublishError():
                self.publishers.give(command.publisher_id, command)
            case c.Deliver() | c.DeliverCommitted() | c.CreditResponse() | c.ConsumerUpdate():
                self.consumers.give(command.subscription_id, command)
            case c.MetadataUpdate(code, stream):
                gone = refusal(code, f"stream {stream} is gone")
                for ids in (self.publishers, self.consumers):
                    ids.fail(gone, stream)


@asynccontextmanager
async def open_reconnecting(
    endpoint: Endpoint, name: str, heartbeat: int, retry_seconds: float
) -> AsyncIterator[ReconnectingConnection]:
    """A connection that has been made once; ends with the context.

    An error in the context comes out as it is, not in a group.

    Raises:
        ConnectionLost: nobody answers there.
        LoginRefused: the server does not let this user in.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            connection = ReconnectingConnection(endpoint, name, heartbeat, retry_seconds, tasks)
            await tasks.start(connection.run)
            yield connection
        except Exception as error:  # noqa: BLE001 - raised again below
            failure = error
        finally:
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
