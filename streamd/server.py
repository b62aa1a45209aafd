"""The whole server: data folder, listener, connections, and an orderly end.

Lifetimes nest: the broker with its logs outlives the connections, these outlive the listener.
"""

import fcntl
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import trio
from starlette.types import ASGIApp

from streamd import http_api
from streamd.auth.administration import Administration
from streamd.auth.authentication import Entrance, Peer
from streamd.auth.users import Access
from streamd.broker.broker import Broker, wall_clock_ms
from streamd.broker.catalog import DEFAULT_HOST, Catalog, CatalogError
from streamd.broker.flusher import Flusher, FlushMode
from streamd.config import DRAIN_SECONDS, Config
from streamd.connections.amqp091.connection import AmqpLink
from streamd.connections.amqp091.login import AmqpLogin
from streamd.connections.registry import Connections
from streamd.connections.stream.connection import Link
from streamd.connections.stream.login import Login
from streamd.http_api import Service, make_app
from streamd.net.tls import CertificateError, Certificates, accept
from streamd.net.transport import Address, SocketTransport, Transport

logger = logging.getLogger(__name__)


class StartError(Exception):
    """The server cannot start; one sentence with what to do."""


class Server:
    """A running server.

    Attributes:
        broker: its streams.
        access: its users.
        stream_address: where it listens; None when it does not.
        tls_address: the same for TLS.
        amqp_address, amqp_tls_address: the same for AMQP 0-9-1.
        certificates: for TLS; None without.
        connections: those that are open.
        handshakes: connections inside TLS that are not made yet.
        http_address: where the HTTP API is; None when it is not.
    """

    def __init__(self, broker: Broker, access: Access, config: Config) -> None:
        self.broker = broker
        self.access = access
        self.stream_address: Address | None = None
        self.tls_address: Address | None = None
        self.amqp_address: Address | None = None
        self.amqp_tls_address: Address | None = None
        self.http_address: Address | None = None
        self.certificates: Certificates | None = None
        self.connections = Connections()
        self.handshakes = 0
        self._config = config
        self._links: set[Link | AmqpLink] = set()
        self._entering: dict[Link | AmqpLink, trio.CancelScope] = {}  # and some that are in

    async def serve_transport(self, transport: Transport) -> None:
        """Serve one connection of the stream protocol until it ends."""
        address = self._announced(is_tls=transport.is_tls)
        peer = Peer(transport.peer.host, transport.is_local, transport.certificate_user)
        login = Login(self._config, self.broker, self.access, address, peer)
        await self._run(Link(transport, login, self._config.frame_max, self.connections), transport)

    async def serve_amqp(self, transport: Transport) -> None:
        """Serve one connection of AMQP 0-9-1 until it ends."""
        config = self._config
        peer = Peer(transport.peer.host, transport.is_local, transport.certificate_user)
        entrance = Entrance(config, self.broker, self.access, peer)
        login = AmqpLogin(entrance, self.broker, config.heartbeat)
        link = AmqpLink(transport, login, self.connections, config.default_queue_type)
        await self._run(link, transport)

    async def _run(self, link: Link | AmqpLink, transport: Transport) -> None:
        if not self.takes(transport.peer):
            transport.close()
            return
        with trio.CancelScope() as scope:
            self._links.add(link)
            self._entering[link] = scope
            try:
                await link.run()
            finally:
                self._links.discard(link)
                self._entering.pop(link, None)

    def takes(self, peer: object) -> bool:
        """Whether there may be one more connection; says so in the log when not.

        When there are as many as there may be, one that does not log in has to go, the oldest of
        these: nobody who says nothing keeps others out.
        """
        count = len(self._links) + self.handshakes
        if count < self._config.max_connections:
            return True
        while self._entering:
            link = next(iter(self._entering))
            scope = self._entering.pop(link)
            if not link.is_open:
                scope.cancel()
                return True
        text = "%s: refused, %s connections are open, the setting max_connections allows no more"
        logger.warning(text, peer, count)
        return False

    def _announced(self, *, is_tls: bool) -> tuple[str, int]:
        config = self._config
        port = config.advertised_tls_port if is_tls else config.advertised_port
        if port is None:
            address = self.tls_address if is_tls else self.stream_address
            port = address.port if address else 0
        return config.advertised_host, port

    def http_app(self) -> ASGIApp:
        """The HTTP API over this server."""
        administration = Administration(self.broker, self.access)
        return make_app(
            Service(self.broker, self.access, self.connections, administration, self._listeners)
        )

    def _listeners(self) -> list[tuple[str, Address]]:
        listeners = (
            ("stream", self.stream_address),
            ("stream/ssl", self.tls_address),
            ("amqp", self.amqp_address),
            ("amqp/ssl", self.amqp_tls_address),
            ("http", self.http_address),
        )
        return [(protocol, address) for protocol, address in listeners if address is not None]

    async def drain(self) -> None:
        """Return once all connections have what is due to them, and have ended."""
        with trio.move_on_after(DRAIN_SECONDS):
            async with trio.open_nursery() as nursery:
                for link in self._links:
                    if link.is_open:
                        nursery.start_soon(link.stop)


async def serve(
    config: Config,
    *,
    stop: trio.Event | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set; connections then get the answers that are due to them.

    Args:
        config: settings.
        stop: ends the server in order; None serves until cancelled.
        now_ms: the wall clock.
        task_status: told of the running server, its address known.

    Raises:
        StartError: the data folder or the port cannot be used.
    """
    if stop is None:
        stop = trio.Event()
    async with AsyncExitStack() as sockets:
        certificates = _read_certificates(config)
        plain = await _bind(config.host, config.stream_port, "--stream-port")
        tls = await _bind(config.host, config.tls_port, "--tls-port")
        amqp = await _bind(config.host, config.amqp_port, "--amqp-port")
        amqp_tls = await _bind(config.host, config.amqp_tls_port, "--amqp-tls-port")
        for listener in (*plain, *tls, *amqp, *amqp_tls):
            sockets.push_async_callback(listener.aclose)
        http = _bind_http(config)
        if http is not None:
            sockets.callback(http.close)
        async with open_server(config, now_ms) as server, trio.open_nursery() as links:
            server.stream_address, server.tls_address = _address(plain), _address(tls)
            server.amqp_address, server.amqp_tls_address = _address(amqp), _address(amqp_tls)
            server.http_address = http.address if http else None
            server.certificates = certificates
            async with trio.open_nursery() as listening:
                if http is not None:
                    links.start_soon(
                        http.run, server.http_app(), config.max_http_connections, stop.wait
                    )
                for serve_one, serve_transport, listeners in (
                    (_serve_socket, server.serve_transport, plain),
                    (_serve_tls, server.serve_transport, tls),
                    (_serve_socket, server.serve_amqp, amqp),
                    (_serve_tls, server.serve_amqp, amqp_tls),
                ):
                    if not listeners:
                        continue
                    handler = partial(serve_one, server, serve_transport)
                    listening.start_soon(
                        partial(trio.serve_listeners, handler, listeners, handler_nursery=links)
                    )
                task_status.started(server)
                await stop.wait()
                listening.cancel_scope.cancel()
            await server.drain()
            links.cancel_scope.cancel()


@asynccontextmanager
async def open_server(
    config: Config, now_ms: Callable[[], int] = wall_clock_ms
) -> AsyncIterator[Server]:
    """A server over the data folder, without a listener.

    Raises:
        StartError: the data folder cannot be used.
    """
    with _data_folder(config.data):
        try:
            catalog = Catalog(config.data)
            contents = catalog.contents()
            access = Access(catalog)
            await access.open(config.user, config.password, DEFAULT_HOST)
        except CatalogError as error:
            raise StartError(str(error)) from error
        async with trio.open_nursery() as writers:
            flusher = Flusher(FlushMode(config.flush), config.flush_ms / 1_000)
            broker = Broker(config.data, catalog, writers, now_ms, config.max_streams, flusher)
            try:
                await broker.open(contents)
                yield Server(broker, access, config)
            finally:
                writers.cancel_scope.cancel()
                broker.close()


def _read_certificates(config: Config) -> Certificates | None:
    if config.tls_port is None and config.amqp_tls_port is None:
        return None
    try:
        return Certificates(config)
    except CertificateError as error:
        raise StartError(str(error)) from error


async def _bind(host: str, port: int | None, option: str) -> list[trio.SocketListener]:
    if port is None:
        return []
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise _cannot_listen(host, port, option, error) from error


def _bind_http(config: Config) -> http_api.Listener | None:
    if config.http_port is None:
        return None
    try:
        return http_api.listen(config.host, config.http_port)
    except OSError as error:
        raise _cannot_listen(config.host, config.http_port, "--http-port", error) from error


def _cannot_listen(host: str, port: int, option: str, error: OSError) -> StartError:
    reason = error.strerror or error
    return StartError(
        f"cannot listen on {Address(host, port)}: {reason}; choose another with --host and {option}"
    )


def _address(listeners: Sequence[trio.SocketListener]) -> Address | None:
    return Address(*listeners[0].socket.getsockname()[:2]) if listeners else None


_Serve: TypeAlias = Callable[[Transport], Awaitable[None]]


async def _serve_socket(server: Server, serve: _Serve, stream: trio.SocketStream) -> None:
    try:
        transport = SocketTransport(stream, server.broker.poller)
    except OSError:
        return  # gone before it was looked at
    await serve(transport)


async def _serve_tls(server: Server, serve: _Serve, stream: trio.SocketStream) -> None:
    assert server.certificates is not None  # noqa: S101 - no listener without
    if not server.takes(_peer_of(stream)):
        stream.socket.close()
        return
    server.handshakes += 1
    try:
        transport = await accept(server.certificates, stream)
    finally:
        server.handshakes -= 1
    if transport is not None:
        await serve(transport)


def _peer_of(stream: trio.SocketStream) -> str:
    try:
        return str(Address(*stream.socket.getpeername()[:2]))
    except OSError:
        return "a peer that has gone"


@contextmanager
def _data_folder(data: str) -> Iterator[None]:
    """Create the data folder where it is missing, and keep every other server out of it."""
    try:
        Path(data).mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = os.open(Path(data, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        reason = error.strerror or error
        raise StartError(
            f"cannot use the data folder {data}: {reason}; choose another with --data"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartError(
                f"another server uses the data folder {data}; stop it, or choose another folder "
                "with --data"
            ) from error
        yield
    finally:
        os.close(lock)
