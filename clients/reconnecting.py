"""The connection that publishers and consumers use: one that comes back when it is lost.

Below it one connection follows the other. Publishers and consumers keep their ids; on a new
connection all of them are opened again before it can be used for anything else, so that nothing
new overtakes what has to be sent again.
"""

import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from clients.connection import ANSWER_SECONDS, ClientConnection, open_connection
from clients.errors import Closed, ConnectionLost, NotSent, ServerRefused, StreamError, refusal
from clients.signals import Signal
from clients.uri import Endpoint
from streamd.wire.stream import ResponseCode, commands as c

logger = logging.getLogger(__name__)

_MAX_IDS = 256
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between attempts; each twice the one before
_MAX_DOUBLINGS = 16  # the longest pause is reached long before; more would be too large a number
_CLOSE_SECONDS = 10
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
            ConnectionLost: the connection is gone, or does not answer.
        """

    def received(self, command: c.ServerCommand) -> None:
        """Take a command."""

    def interrupted(self) -> None:
        """The connection is gone and may come back."""

    def failed(self, error: Exception) -> None:
        """The stream is gone, or the connection for good, or the program has left."""


class Place:
    """An id and who has it.

    Args:
        number: the id.
        listener: the publisher or consumer.

    Attributes:
        number, listener: see above.
        is_open: it was opened, and will be on every new connection.
        error: why it is over, None before.
        connection: on which the server may know the id; None on none.
        changing: held while the server is asked to open or to close it.
    """

    def __init__(self, number: int, listener: ConnectionListener) -> None:
        self.number = number
        self.listener = listener
        self.is_open = False
        self.error: StreamError | None = None
        self.connection: ClientConnection | None = None
        self.changing = anyio.Lock()

    async def open(self, connection: ClientConnection) -> None:
        """See ConnectionListener; does nothing when it is over already."""
        async with self.changing:
            if self.error is None:
                self.connection = connection
                await self.listener.open(connection, self.number)

    def interrupt(self) -> None:
        """The connection is gone, and what the server knew with it."""
        self.connection = None
        if self.error is None:
            self.listener.interrupted()

    def fail(self, error: StreamError) -> None:
        """End it with an error."""
        if self.error is None:
            self.is_open, self.error = False, error
            self.listener.failed(error)


class Ids:
    """Gives out ids to the publishers of a client, or to its consumers.

    Args:
        closing: the request that closes one.

    Attributes:
        places: by id. An id is in use until the server has said that it is not.
    """

    def __init__(self, closing: type[c.DeletePublisher | c.Unsubscribe]) -> None:
        self.places: dict[int, Place] = {}
        self._closing = closing

    def take(self, listener: ConnectionListener) -> Place:
        """Give a listener the lowest free id.

        Raises:
            ServerRefused: all are in use.
        """
        for number in range(_MAX_IDS):
            if number not in self.places:
                place = self.places[number] = Place(number, listener)
                return place
        details = f"{_MAX_IDS} are open on this connection"
        raise refusal(ResponseCode.PRECONDITION_FAILED, details)

    async def close(self, place: Place) -> None:
        """Have the server close one that is over, and take its id back.

        Waits as long as it takes: the id given away before would be refused, or messages for one
        would reach the other.
        """
        try:
            async with place.changing:
                if place.connection is not None:
                    with suppress(ConnectionLost):
                        await place.connection.request(self._closing, place.number, seconds=None)
        finally:
            del self.places[place.number]

    def give(self, number: int, command: c.ServerCommand) -> None:
        """Pass a command to its listener; one that comes too late for that is dropped."""
        place = self.places.get(number)
        if place is not None and place.error is None:
            place.listener.received(command)

    def interrupt(self) -> None:
        """The connection is gone."""
        for place in list(self.places.values()):
            place.interrupt()

    def fail(self, error: StreamError, stream: str | None = None) -> None:
        """Tell all, or the users of a stream, that it is over."""
        for place in list(self.places.values()):
            if stream in (None, place.listener.stream):
                place.fail(error)

    async def reopen(self, connection: ClientConnection) -> None:
        """Open all that were open on a new connection.

        Raises:
            ConnectionLost: it is gone again.
        """
        for place in sorted(self.places.values(), key=lambda place: place.number):
            if place.is_open:
                try:
                    await place.open(connection)
                except ServerRefused as error:
                    if _has_no_leader(connection, error, self._closing is c.DeletePublisher):
                        raise ConnectionLost(str(error)) from error
                    place.fail(error)


# Of messages whose stream another node leads since, as it was said or is about to be.
_NOT_LED = (ResponseCode.STREAM_NOT_AVAILABLE, ResponseCode.PUBLISHER_DOES_NOT_EXIST)


def _are_not_led(command: c.PublishError) -> bool:
    """All of these were refused as nobody leads their stream at the moment."""
    return all(code in _NOT_LED for _, code in command.faults)


def _has_no_leader(connection: ClientConnection, error: ServerRefused, publishes: bool) -> bool:
    """Nobody leads the cluster at the moment, or the stream: another node will."""
    is_there = connection.is_spread or (publishes and connection.is_read_only)
    return is_there and error.code == ResponseCode.STREAM_NOT_AVAILABLE


class _Retry:
    """When to try again, and when to give up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._attempts = 0
        self._give_up_at: float | None = None
        self._up_at: float | None = None

    def came_up(self) -> None:
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
        pause = _FIRST_PAUSE * 2 ** min(self._attempts, _MAX_DOUBLINGS)
        pause = min(pause, _LONGEST_PAUSE)
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
        self.publishers, self.consumers = Ids(c.DeletePublisher), Ids(c.Unsubscribe)
        self.server: dict[str, str] = {}
        self._endpoint = endpoint
        self._name = name
        self._heartbeat = heartbeat
        self._retry_seconds = retry_seconds
        self._connection: ClientConnection | None = None
        self._error: StreamError | None = None
        self._changed = Signal()

    @property
    def is_streamd(self) -> bool:
        """The server is a streamd, with requests that others do not have."""
        return "streamd" in self.server

    @property
    def is_read_only(self) -> bool:
        """The server changes nothing, and takes no messages."""
        return self.server.get("read_only") == "true"

    @property
    def is_spread(self) -> bool:
        """See ClientConnection."""
        return self._connection is not None and self._connection.is_spread

    def _open_all_again(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.lose(ConnectionLost(f"{self._endpoint}: {reason}"))

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
        while True:
            connection = await self._wait_for_connection()
            with suppress(NotSent):
                return await connection.request(kind, *fields, seconds=seconds)

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

    @asynccontextmanager
    async def opened(self, ids: Ids, listener: ConnectionListener) -> AsyncIterator[None]:
        """A publisher or consumer while it is open.

        Raises:
            ServerRefused: the server said no, or all ids are in use.
            ConnectionLost: the connection is gone for good.
        """
        place = ids.take(listener)
        try:
            await self._open(place)
            yield
        finally:
            place.fail(
                Closed(f"{listener.stream} is used after the context that opened it has ended")
            )
            with anyio.CancelScope(shield=True):
                await self._close(ids, place)

    async def _open(self, place: Place) -> None:
        while not place.is_open:
            connection = await self._wait_for_connection()
            try:
                await place.open(connection)
            except ConnectionLost:
                if connection.lost is None:
                    raise  # no answer in time
                continue
            if place.error is not None:
                raise place.error
            place.is_open = True  # if the connection is gone already, it is opened on the next

    async def _close(self, ids: Ids, place: Place) -> None:
        """Close at the server; the program waits a while for that, its id as long as it takes."""
        is_closed = anyio.Event()

        async def close() -> None:
            try:
                await ids.close(place)
            finally:
                is_closed.set()

        if place.connection is None or place.connection.lost is not None:
            await ids.close(place)
            return
        self.tasks.start_soon(close)
        with anyio.move_on_after(_CLOSE_SECONDS):
            await is_closed.wait()

    async def _wait_for_connection(self) -> ClientConnection:
        """The current connection, which is not lost as far as is known."""
        while self._connection is None or self._connection.lost is not None:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        return self._connection

    # -- keeping it

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Connect, and again whenever the connection is lost; started once the first is there.

        Raises:
            ConnectionLost: nobody answers there the first time.
            LoginRefused: the server refuses the user the first time.
        """
        try:
            await self._keep(task_status)
        finally:
            self._interrupt()
            if self._error is None:
                self._fail(
                    Closed(f"the client of {self._endpoint} is used after its context has ended")
                )

    async def _keep(self, task_status: TaskStatus[None]) -> None:
        retry = _Retry(self._retry_seconds)
        has_started = False
        while True:
            try:
                async with open_connection(
                    self._endpoint, self._name, self._heartbeat, self._take
                ) as connection:
                    await self._begin(connection)
                    retry.came_up()
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
        self._changed.set()

    def _interrupt(self) -> None:
        self._connection = None
        for ids in (self.publishers, self.consumers):
            ids.interrupt()
        self._changed.set()

    def _fail(self, error: StreamError) -> None:
        self._error = error
        for ids in (self.publishers, self.consumers):
            ids.fail(error)
        self._changed.set()

    def _take(self, command: c.ServerCommand) -> None:
        """See connection.Connection."""
        match command:
            case c.PublishError() if self.is_spread and _are_not_led(command):
                self._open_all_again("another node leads a stream")  # and these are sent again
            case c.PublishConfirm() | c.PublishError():
                self.publishers.give(command.publisher_id, command)
            case (
                c.Deliver()
                | c.DeliverCommitted()
                | c.DeliverStored()
                | c.CreditResponse()
                | c.ConsumerUpdate()
            ):
                self.consumers.give(command.subscription_id, command)
            case c.MetadataUpdate(ResponseCode.STREAM_NOT_AVAILABLE, stream) if self.is_spread:
                self._open_all_again(f"another node leads {stream}")  # what was deleted is refused
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
