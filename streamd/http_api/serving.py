"""Running the HTTP API: Hypercorn on trio, on a socket that is bound here.

Hypercorn because it speaks HTTP on trio, in the same event loop as the streams.
"""

import json
import logging
import socket
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.types import ASGIApp

from streamd.http_api.browsers import SECURITY_HEADERS
from streamd.http_api.caller import ENTERED
from streamd.http_api.http1 import Http1
from streamd.net.addresses import network_of
from streamd.net.tls import Certificates, end_sending, shake_hands
from streamd.net.transport import Address
from streamd.operations.names import Name

logger = logging.getLogger(__name__)

_HEADER_BYTES = 32 << 10
_IDLE_SECONDS = 15
_GRACE_SECONDS = 2  # requests that are being answered when the server stops have this long
_SILENT_SECONDS = 120  # a peer that sends nothing for this long has gone
_LINGER_SECONDS = 1  # a peer whose connection ends has this long to read its last answer
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError)
_OVER_SECONDS = 30  # requests of a peer that has gone are carried out for this long
_REFUSALS_AT_ONCE = 100  # refused connections that get an answer at the same time
_SHARES, _LEAST_SHARE = 4, 8  # of all connections a user has this part, or so many
_REFUSAL_SECONDS = 1  # a refused connection has this long to read its answer
# The kernel cuts off a peer that reads nothing of its answer for this long; Hypercorn would wait
# for it forever, even when the server stops.
_STUCK_MS = 10_000
_STUCK_OPTION = getattr(socket, "TCP_USER_TIMEOUT", None)


class Listener:
    """Bound sockets for the HTTP API.

    Args:
        sockets: that listen; whoever has bound them closes them.
        certificates: for connections inside TLS; None for others.

    Attributes:
        address: host and port of the first one.
    """

    def __init__(self, sockets: Sequence[socket.socket], certificates: Certificates | None) -> None:
        self._sockets = sockets
        self._certificates = certificates
        for bound in sockets:
            if _STUCK_OPTION is not None:
                bound.setsockopt(socket.IPPROTO_TCP, _STUCK_OPTION, _STUCK_MS)
        self.address = Address(*sockets[0].getsockname()[:2])

    async def run(self, server: "Server", stop: Callable[[], Awaitable[None]]) -> None:
        """Serve until `stop` returns.

        Connections are accepted here and not by Hypercorn, which has no limit for them.
        """
        serve = partial(server.serve, certificates=self._certificates)
        duplicates = [bound.dup() for bound in self._sockets]
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(d)) for d in duplicates]
        async with trio.open_nursery() as connections:
            async with AsyncExitStack() as stack, trio.open_nursery() as accepting:
                for listener in listeners:
                    await stack.enter_async_context(listener)
                accept = partial(
                    trio.serve_listeners, serve, listeners, handler_nursery=connections
                )
                accepting.start_soon(accept)
                await stop()
                accepting.cancel_scope.cancel()
            await server.context.terminated.set()  # ends idle connections
            connections.cancel_scope.deadline = trio.current_time() + _GRACE_SECONDS


class _Connection(TCPServer):
    """One connection, of HTTP/1.1.

    Hypercorn alone keeps a closed one until the idle timeout, and changes the protocol when it is
    asked to.
    """

    def __init__(
        self,
        app: ASGIWrapper,
        config: HypercornConfig,
        context: WorkerContext,
        stream: trio.SocketStream | trio.SSLStream[trio.SocketStream],
        entered: Callable[[Name], None],
        left: Callable[[], None],
    ) -> None:
        # Hypercorn recognizes TLS by the methods of the stream.
        state = ConnectionState({ENTERED: entered})
        super().__init__(app, config, context, state, stream)  # type: ignore[arg-type]
        self._left = left
        self._over = trio.Event()
        self._reader: trio.lowlevel.Task | None = None

    async def _read_data(self) -> None:
        self._reader = trio.lowlevel.current_task()
        speaks = self.protocol.protocol
        assert isinstance(speaks, H11Protocol)  # noqa: S101 - Hypercorn begins with it without TLS
        speaks.connection = Http1(_HEADER_BYTES)
        await super()._read_data()
        self._over.set()
        nursery = self._task_group._nursery  # noqa: SLF001 - Hypercorn has no other way
        if nursery is not None:
            nursery.cancel_scope.deadline = trio.current_time() + _OVER_SECONDS
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        """See TCPServer."""
        if isinstance(event, Updated):
            if self._over.is_set():
                return
            if event.idle:
                self._left()
        try:
            await super().protocol_send(event)
        except trio.BusyResourceError:  # the peer has gone, and the socket is being closed
            await self.protocol.handle(Closed())

    async def _close(self) -> None:
        if not self._over.is_set():
            await self._linger()
        await super()._close()

    async def _linger(self) -> None:
        """Let the peer read the last answer: a socket closed with unread bytes resets both ways."""
        with trio.move_on_after(_LINGER_SECONDS), suppress(*_GONE):
            below = await end_sending(self.stream)
            if trio.lowlevel.current_task() is self._reader:
                while await below.receive_some(_HEADER_BYTES):
                    pass
            else:
                await self._over.wait()


class _Places:
    """Chooses the connection to close when there is no room for another.

    A place is a user's as long as it has a request of that user, but for more than a share of all
    places. Any other is free: of the address with most free ones that goes which has waited longest
    for somebody to log in, or for a request, or which is beyond the share.

    Args:
        most: places that are a user's.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_of: Counter[Name] = Counter()
        self._free: defaultdict[str, dict[_Place, None]] = defaultdict(dict)

    def take(self, place: "_Place", user: Name) -> None:
        """A place has a request of a user."""
        if place.user is None and self._num_of[user] < self._most:
            place.user = user
            self._num_of[user] += 1
            self._drop(place)

    def free(self, place: "_Place") -> None:
        """A place has none, from now on."""
        self.leave(place)
        self._free[place.address][place] = None

    def leave(self, place: "_Place") -> None:
        """A place is no more."""
        if place.user is None:
            self._drop(place)
        else:
            self._num_of[place.user] -= 1
            self._num_of += Counter()  # without those that have none
            place.user = None

    def _drop(self, place: "_Place") -> None:
        self._free[place.address].pop(place, None)
        if not self._free[place.address]:
            del self._free[place.address]

    def first(self) -> "_Place | None":
        """The place that is given to others first."""
        fullest = max(self._free.values(), key=len) if self._free else ()
        return next(iter(fullest), None)


class _Place:
    """The place of one connection among those that there may be.

    Attributes:
        address: where it comes from.
        user: whose it is; None while others may have it.
        scope: that of the connection.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.user: Name | None = None
        self.scope = trio.CancelScope()


class Server:
    """All connections of the API, inside TLS and not.

    At the limit a connection makes room for another one, see _Places, so that silent peers, those
    that guess passwords, and a user with many slow requests, cannot lock others out.

    Args:
        app: answers requests.
        max_connections: that may be open.
        limit: what says so, for people.
        refused: gets the number of connections that were refused, as "connections".

    Attributes:
        context: tells Hypercorn when the server stops.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_connections: int,
        limit: str = "the setting max_http_connections",
        refused: Counter[str] | None = None,
    ) -> None:
        self.context = WorkerContext(None)
        self._app = ASGIWrapper(app)  # type: ignore[arg-type]
        self._config = _make_config()
        self._limit, self._limit_name = max_connections, limit
        self._num_refused: Counter[str] = Counter() if refused is None else refused
        self._open = self._refused = 0
        self._places = _Places(max(_LEAST_SHARE, max_connections // _SHARES))

    async def serve(
        self, stream: trio.SocketStream, certificates: Certificates | None = None
    ) -> None:
        """Serve one connection until it ends, inside TLS if there are certificates."""
        if self._open >= self._limit and not self._make_room():
            await self._refuse(stream, is_tls=certificates is not None)
            return
        self._open += 1
        place = _Place(_address_of(stream))
        self._places.free(place)
        entered, left = partial(self._places.take, place), partial(self._places.free, place)
        try:
            with place.scope:
                wrapped = (
                    stream if certificates is None else await shake_hands(certificates, stream)
                )
                if wrapped is not None:
                    app, config, context = self._app, self._config, self.context
                    await _Connection(app, config, context, wrapped, entered, left)
        except Exception as error:  # noqa: BLE001 - Hypercorn's; the application logs ours
            logger.info("HTTP: a connection has failed: %r", error)
        finally:
            self._open -= 1
            self._places.leave(place)
        if place.scope.cancelled_caught:
            await trio.aclose_forcefully(stream)

    def _make_room(self) -> bool:
        """Whether a connection goes so that another one may come."""
        place = self._places.first()
        if place is None:
            return False
        self._places.leave(place)
        place.scope.cancel()
        return True

    async def _refuse(self, stream: trio.SocketStream, *, is_tls: bool) -> None:
        self._num_refused["connections"] += 1
        text = "HTTP: refused, %s connections are open, %s is %s"
        logger.warning(text, self._open, self._limit_name, self._limit)
        if not is_tls and self._refused < _REFUSALS_AT_ONCE:  # no handshake for an answer
            self._refused += 1
            try:
                await _say_no(stream, self._limit, self._limit_name)
            finally:
                self._refused -= 1
        stream.socket.close()


def _make_config() -> HypercornConfig:
    config = HypercornConfig()
    config.keep_alive_timeout = _IDLE_SECONDS
    config.graceful_timeout = _GRACE_SECONDS
    config.read_timeout = _SILENT_SECONDS
    config.errorlog = logging.getLogger("hypercorn")
    config.errorlog.setLevel(logging.CRITICAL)  # the application logs errors
    config.accesslog = None
    config.include_server_header = False
    return config


def _address_of(stream: trio.SocketStream) -> str:
    try:
        return network_of(stream.socket.getpeername()[0])
    except OSError:  # the peer has gone
        return ""


async def _say_no(stream: trio.SocketStream, limit: int, name: str) -> None:
    reason = f"{limit} connections are open; {name} allows no more"
    body = json.dumps({"error": "too_many_connections", "reason": reason}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
        f"retry-after: {_IDLE_SECONDS}\r\nconnection: close\r\n"
        f"content-length: {len(body)}\r\n"
        + "".join(f"{name.decode()}: {value.decode()}\r\n" for name, value in SECURITY_HEADERS)
        + "\r\n"
    )
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        with trio.move_on_after(_REFUSAL_SECONDS):
            await stream.send_all(head.encode() + body)
            await stream.send_eof()
            while await stream.receive_some(_HEADER_BYTES):  # else a reset may discard the answer
                pass
