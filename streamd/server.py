"""The whole server: data folder, listener, connections, and an orderly end.

Lifetimes nest: the broker with its logs outlives the connections, these outlive the listener.
"""

import errno
import fcntl
import logging
import os
import shutil
import socket
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from segments import SegmentsError
from segments.store import stores
from segments.store.heartbeat import NodeAddress
from segments.store.object_store import TierError
from streamd.auth.users import UserDirectory
from streamd.broker.broker import Broker
from streamd.broker.catalog.catalog import DEFAULT_HOST, Catalog, CatalogError, Contents
from streamd.broker.catalog.writer import CatalogWriter
from streamd.broker.follower import Follower
from streamd.broker.nodes import leftovers
from streamd.broker.nodes.node import Node, open_node
from streamd.broker.nodes.shards import Shards
from streamd.broker.nodes.standby import Standby
from streamd.broker.search_places import Place
from streamd.broker.streams.fetcher import Fetcher
from streamd.broker.streams.flusher import Flusher, FlushMode
from streamd.broker.streams.log_keeper import LOGS_SHARE, descriptor_limit
from streamd.broker.supervisor import Supervisor
from streamd.broker.tier.claims import FencedError
from streamd.broker.tier.folding import catch_up
from streamd.broker.tier.identity import Identity, begin_epoch
from streamd.broker.tier.restore import (
    OvertakenError,
    RestoreError,
    check_is_ours,
    check_not_scratch,
    check_whole,
    is_used,
    restore,
)
from streamd.broker.tier.tier import Tier
from streamd.broker.traffic import Traffic
from streamd.config import (
    AMQP_PORTS,
    DRAIN_SECONDS,
    HAND_OVER_SECONDS,
    HTTP_PORTS,
    MAX_METRICS_CONNECTIONS,
    METRICS_PORT,
    TLS_PORTS,
    Config,
)
from streamd.connections import amqp_port
from streamd.connections.doorway import Doorway
from streamd.connections.passage import Found, Meanwhile, Passage, reach
from streamd.connections.services import Connection, MakeConnection, Services
from streamd.connections.stream import connection as stream
from streamd.connections.stream.forwarding import Forwarding
from streamd.connections.stream.remote import RemoteStream
from streamd.engine import DoorCaller, Watch, open_engine
from streamd.engine.registry import ConnectionRegistry
from streamd.net import links, threads
from streamd.net.actor import CHANGE
from streamd.net.addresses import is_local_address
from streamd.net.clock import wall_clock_ms
from streamd.net.listening import listen
from streamd.net.tls import CertificateError, Certificates, TlsTransport, accept
from streamd.net.transport import Address, SocketTransport, Transport, TransportClosed
from streamd.operations.arguments import (
    CONFIRM,
    MAX_AGE,
    MAX_LENGTH,
    STORE,
    Arguments,
    read_arguments,
)
from streamd.operations.errors import Refused
from streamd.operations.names import as_sent
from streamd.operations.server import DoorFacts

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from streamd.doors import Doors

logger = logging.getLogger(__name__)


_OTHER_FILES = 64  # catalog, listeners, the event loop, threads, doors, processes that work for us
_CACHE_SHARE = 10
_RUNNING = b"running\n"  # in the lock file: who finds it there knows that the last end was none
METRICS = "metrics"  # a name of listeners


class StartError(Exception):
    """The server cannot start; one sentence with what to do."""


class StartAgain(Exception):
    """A node of a cluster has become something else."""


# What keeps a node from beginning, and is over before long.
_PASSING = (TierError, OvertakenError, FencedError)
_AGAIN_SECONDS = 1.0
_READ_ON_SECONDS = 2.0  # that a client waits for what the log has by now


class ServedProtocol(NamedTuple):
    """A protocol that the server speaks: all that another one needs here is a line in PROTOCOLS.

    Attributes:
        name: of its listeners; inside TLS "/ssl" is appended.
        make_connection: creates one of its connections.
        port: the setting of its port.
        tls_port: the same inside TLS.
        advertised_port: the setting of the port that clients are told; empty for none.
        advertised_tls_port: the same inside TLS.
    """

    name: str
    make_connection: MakeConnection
    port: str
    tls_port: str
    advertised_port: str = ""
    advertised_tls_port: str = ""


STREAM = ServedProtocol(
    "stream",
    stream.make_connection,
    "stream_port",
    "tls_port",
    "advertised_port",
    "advertised_tls_port",
)
AMQP = ServedProtocol("amqp", amqp_port.make_connection, "amqp_port", "amqp_tls_port")
AMQP_IN_DOORS = AMQP._replace(make_connection=partial(amqp_port.make_connection, is_relayed=True))
PROTOCOLS = (STREAM, AMQP)
# The names of listeners, by the setting of their port, in the order in which they are bound.
_LISTENERS = {
    "stream_port": "stream",
    "tls_port": "stream/ssl",
    "amqp_port": "amqp",
    "amqp_tls_port": "amqp/ssl",
    "http_port": "http",
    "http_tls_port": "https",
    "metrics_port": METRICS,
    "metrics_tls_port": f"{METRICS}/ssl",
}
_UNASKED = ("metrics_port", METRICS_PORT)  # it is on unless somebody turns it off


class _Entering(Protocol):
    """What counts as a connection and has perhaps not logged in."""

    @property
    def is_open(self) -> bool:
        """Somebody has logged in."""


class _Handshake:
    """A TLS handshake, or a wait for the leader: nobody has logged in."""

    is_open = False


class Server:
    """A running server.

    Attributes:
        broker: its streams.
        directory: its users.
        node: that it is of a cluster; None outside of one.
        addresses: where it listens, by protocol: "stream", "stream/ssl", "amqp", "http", ...
        certificates: for TLS; None without.
        connections: those that are open.
        engine: carries out operations.
        handshakes: TLS handshakes in progress.
        serving: has the tasks of connections; None before and after the server listens.
    """

    def __init__(
        self,
        broker: Broker,
        directory: UserDirectory,
        config: Config,
        outside: Collection[str] = (),
        node: Node | None = None,
    ) -> None:
        self.broker = broker
        self.directory = directory
        self.node = node
        self.addresses: dict[str, Address] = {}
        self.certificates: Certificates | None = None
        self.connections = ConnectionRegistry()
        self.handshakes = 0
        self.serving: trio.Nursery | None = None
        self._doors: dict[str, DoorFacts] = {}
        self._config = config
        self._max_connections = _connection_budget(config, outside)
        self.engine = open_engine(broker, directory, self.connections, self.addresses, self._doors)
        forwarding = Forwarding(broker)
        self.engine.elsewhere, self.engine.refresh = forwarding.operation, forwarding.refresh
        self.engine.everywhere = forwarding.everywhere
        if broker.shards is not None:
            broker.shards.remote = partial(RemoteStream, broker)
            broker.shards.have_node_read = forwarding.have_read
        self._services = Services(config, broker, directory, self.connections, self.engine)
        self._running: set[Connection] = set()
        self._entering: dict[_Entering, trio.CancelScope] = {}  # and some that are in
        self._is_draining = False
        self._ours: set[Address] = set()  # this end of connections to the leader

    @property
    def passes_on(self) -> bool:
        """Connections are served by another node."""
        return self.node is not None and self.node.served_by() is not None

    async def serve(self, protocol: ServedProtocol, transport: Transport) -> None:
        """Serve one connection of a protocol until it ends, or have the leader serve it."""
        if not self.takes(transport.peer):
            transport.close()
            return
        name = listener_name(protocol, is_tls=transport.is_tls)
        peer, is_local = transport.peer, transport.is_local
        with suppress(TransportClosed):
            leader = await self._reach_leader(name, peer, transport.close, is_local=is_local)
            if leader is None or leader.transport is None:
                await self._serve_here(protocol, transport, leader)
            else:
                await self._pass_on(transport, leader.transport, leader.start)

    async def serve_tls(self, protocol: ServedProtocol, accepted: trio.SocketStream) -> None:
        """Serve one that is to be inside TLS; where it is passed on, the leader decrypts it."""
        peer, close = _peer_of(accepted), accepted.socket.close
        if not self.takes(peer):
            close()
            return
        name, is_local = listener_name(protocol, is_tls=True), is_local_address(peer.host)
        with suppress(TransportClosed):
            leader = await self._reach_leader(name, peer, close, is_local=is_local)
            if leader is not None and leader.transport is not None:
                try:
                    client = SocketTransport(accepted, None)
                except OSError:  # gone before it was looked at
                    leader.transport.close()
                    close()
                else:
                    await self._pass_on(client, leader.transport, leader.start)
                return
            transport = await self.shake_hands(accepted)
            if transport is None:
                return
            if self.takes(peer):
                await self._serve_here(protocol, transport, leader)
            else:
                transport.close()

    async def _serve_here(
        self, protocol: ServedProtocol, transport: Transport, leader: Found | None
    ) -> None:
        announced = self._announced(protocol, is_tls=transport.is_tls)
        connection = protocol.make_connection(transport, self._services, announced)
        if self.node is not None and leader is not None:
            await self._run(Meanwhile(self.node, leader.start, connection))
        else:
            await self._run(connection)

    async def _pass_on(self, client: Transport, leader: Transport, start: str) -> None:
        assert self.node is not None  # noqa: S101 - or nobody was looked for
        passage = Passage(client, leader, start, self.node)
        self._ours.add(leader.local)
        try:
            await self._run(passage)
        finally:
            self._ours.discard(leader.local)

    async def _reach_leader(
        self, listener: str, peer: Address, close: Callable[[], object], *, is_local: bool
    ) -> Found | None:
        """See passage.reach; None where this node serves its clients itself.

        Raises:
            TransportClosed: see there; or others needed the room of one that waited, or it has come
                from here. It is closed.
        """
        if self.node is None or not self.passes_on:
            return None
        try:
            self._check_not_ours(peer)
            with self._entered():
                if await self._has_own(listener):
                    return None
                found = await reach(self.node, listener, peer, is_local=is_local)
                if peer in self._ours and found.transport is not None:
                    found.transport.close()
                self._check_not_ours(peer)  # it may have come before that was known
                return found
            raise TransportClosed
        except BaseException:
            close()
            raise

    async def _has_own(self, listener: str) -> bool:
        """Streams were placed at nodes: each asks others for what it does not lead itself."""
        shards = self.broker.shards
        is_stream = listener in (listener_name(STREAM, is_tls=is_tls) for is_tls in (False, True))
        if shards is None or not is_stream:
            return False
        if not shards.has_streams:
            await self.broker.read_on()  # another node may just have placed the first one
        return shards.has_streams

    def _check_not_ours(self, peer: Address) -> None:
        """Raise TransportClosed for a connection to the leader that has arrived at this node."""
        if peer in self._ours:
            text = "%s: refused, the address that the leader advertises leads to this node, which "
            logger.error(text + "stands by: look at its setting advertised_host", peer)
            raise TransportClosed

    async def _run(self, connection: Connection) -> None:
        with trio.CancelScope() as scope:
            self._running.add(connection)
            self._entering[connection] = scope
            if self._is_draining:
                scope.cancel()
            try:
                await connection.run()
            finally:
                self._running.discard(connection)
                self._entering.pop(connection, None)

    def takes(self, peer: object) -> bool:
        """Whether there may be one more connection; says so in the log when not.

        At the limit, the oldest connection that has not logged in is closed, also in the middle of
        its TLS handshake, so that silent peers cannot lock others out. One that stops takes none.
        """
        if self._is_draining:
            return False
        count = len(self._running) + self.handshakes
        if count < self._max_connections:
            return True
        while self._entering:
            connection = next(iter(self._entering))
            scope = self._entering.pop(connection)
            if not connection.is_open:
                scope.cancel()
                return True
        limit = "the setting max_connections allows"
        if self._max_connections < self._config.max_connections:
            limit = "the limit of open files allows"
        logger.warning("%s: refused, %s connections are open, %s no more", peer, count, limit)
        return False

    async def shake_hands(self, accepted: trio.SocketStream) -> TlsTransport | None:
        """Put a connection inside TLS; None when the handshake fails, or others need its room."""
        assert self.certificates is not None  # noqa: S101 - no listener without
        transport = None
        with self._entered():
            transport = await accept(self.certificates, accepted)
        return transport  # noqa: RET504 - the block may be left without one

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Somebody who has not logged in counts in this block; it is left when others need room."""
        entering = _Handshake()
        with trio.CancelScope() as scope:
            self._entering[entering] = scope
            self.handshakes += 1
            try:
                yield
            finally:
                self.handshakes -= 1
                self._entering.pop(entering, None)

    async def ended(self, stop: trio.Event) -> None:
        """Return when `stop` is set, or this node becomes something else."""
        async with trio.open_nursery() as nursery:

            async def wait(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait, stop)
            if self.node is not None:
                nursery.start_soon(wait, self.node.over)

    def _announced(self, protocol: ServedProtocol, *, is_tls: bool) -> tuple[str, int]:
        setting = protocol.advertised_tls_port if is_tls else protocol.advertised_port
        port: int | None = getattr(self._config, setting) if setting else None
        if port is None:
            address = self.addresses.get(listener_name(protocol, is_tls=is_tls))
            port = address.port if address else 0
        return self._config.advertised_host, port

    def http_app(self, names: Iterable[str] = ()) -> "ASGIApp":
        """The HTTP API and the console; `names` are those of the machine, for browsers."""
        return self.doors("http", names).http_app()

    def metrics_app(self, names: Iterable[str] = ()) -> "ASGIApp":
        """The metrics of this server; `names` as for `http_app`."""
        return self.doors("metrics", names).metrics_app()

    def doors(self, name: str, names: Iterable[str]) -> "Doors":
        """Doors in this process.

        Args:
            name: for people.
            names: of the machine, for browsers.
        """
        from trio.testing import memory_stream_pair  # noqa: PLC0415 - only where it is on

        from streamd.doors import Doors  # noqa: PLC0415 - as above
        from streamd.hop.door import EngineLink  # noqa: PLC0415 - as above

        theirs, ours = memory_stream_pair()
        link, doorway = EngineLink(theirs), self._doorway(name, ours)
        for run in (doorway.run, link.run):
            self.broker.supervisor.start_once("serving a door", run, name)

        now_ms, refused = self.broker.now_ms, self.broker.traffic.http_refused
        return Doors(self._config, link, now_ms, refused, names)

    def _doorway(self, name: str, stream: trio.abc.Stream) -> Doorway:
        door, traffic = DoorCaller(self.directory, name), self.broker.traffic.protocol("http")
        return Doorway(stream, self.engine, self.directory, door, traffic)

    async def serve_door(self, name: str, engines_end: socket.socket) -> None:
        """Serve a process that asks for operations, until it ends.

        Args:
            name: of the door, for people.
            engines_end: of the socket pair.
        """
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(engines_end))
        with self._door(name):
            await self._doorway(name, stream).run()

    @contextmanager
    def _door(self, name: str) -> Iterator[None]:
        """A process is there in this block; it fails alone."""
        before = self._doors.get(name)
        starts = 1 if before is None else before.starts + 1
        self._doors[name] = DoorFacts(name, True, starts, self.broker.now_ms())
        try:
            with self.broker.supervisor.guarded("serving a door", name):
                yield
        finally:
            if self._doors[name].starts == starts:  # the next one is not there yet
                self._doors[name] = DoorFacts(name, False, starts, self.broker.now_ms())
            if self.serving is not None:
                logger.info("the process for %s has gone", name, extra=CHANGE)

    async def serve_links(self, name: str, engines_end: socket.socket) -> None:
        """Serve the AMQP connections that a process has, until it ends.

        Args:
            name: of the process, for people.
            engines_end: of the socket pair over which it gives them.
        """
        engines_end.setblocking(False)
        with engines_end, self._door(name):
            async for transport in links.given(engines_end, self.broker.poller):
                if self.serving is None:
                    transport.close()
                else:
                    self.serving.start_soon(self._serve_link, transport)

    async def _serve_link(self, transport: Transport) -> None:
        with self.broker.supervisor.guarded("serving a connection", AMQP.name):
            await self.serve(AMQP_IN_DOORS, transport)

    async def drain(self) -> None:
        """Return once all connections have got their answers, and have ended.

        Those that have not logged in end at once: later nobody would tell them.
        """
        self._is_draining = True
        # Whoever passes a client on does not know whether it has logged in.
        open_ones = dict.fromkeys(
            one for one in self._running if one.is_open or isinstance(one, Passage)
        )
        for connection, scope in list(self._entering.items()):
            if connection not in open_ones:
                scope.cancel()
        with trio.move_on_after(DRAIN_SECONDS):
            async with trio.open_nursery() as nursery:
                for connection in open_ones:
                    nursery.start_soon(self._stop, connection)

    async def hand_over(self, node: Node) -> None:
        """Store what another node lacks that is about to take over; connections have ended.

        Only then this one says that it has left: else the others wait whether it comes back.
        """
        tier = self.broker.tier
        if not isinstance(tier, Tier) or (tier.has_local and not await node.has_standby()):
            return
        try:
            await tier.hand_over(HAND_OVER_SECONDS)
        except (Refused, SegmentsError) as error:
            logger.warning("the nodes that are left wait for this one: %s", error)
        else:
            node.has_handed_over = True

    async def _stop(self, connection: Connection) -> None:
        with self.broker.supervisor.guarded("ending a connection"):  # others get their answers
            await connection.stop()


async def serve(
    config: Config,
    *,
    stop: trio.Event | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
    bound: dict[str, list[socket.socket]] | None = None,
    outside: Collection[str] = (),
    search_place: Place | None = None,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> bool:
    """Serve until `stop` is set; connections then get the answers that are due to them.

    A node of a cluster also ends when it becomes something else: it leads no more, or takes over.

    Returns:
        Whether it has to be started again, as that.

    Args:
        config: settings.
        stop: ends the server in order; None serves until cancelled.
        bound: sockets that listen already; None binds them.
        outside: settings of the ports that other processes serve.
        search_place: see Broker.
        now_ms: the wall clock.
        task_status: gets the running server, once its addresses are known.

    Raises:
        StartError: the data folder or the port cannot be used.
    """
    if stop is None:
        stop = trio.Event()
    is_other = False
    try:
        await _serve_once(config, stop, now_ms, bound, outside, search_place, task_status)
    except* StartAgain:
        is_other = True
    return is_other or not stop.is_set()


async def _serve_once(
    config: Config,
    stop: trio.Event,
    now_ms: Callable[[], int],
    bound: dict[str, list[socket.socket]] | None,
    outside: Collection[str],
    search_place: Place | None,
    task_status: trio.TaskStatus[Server],
) -> None:
    async with AsyncExitStack() as sockets:
        if bound is None:
            bound = sockets.enter_context(bound_ports(config))
        certificates = _read_certificates(config)
        addresses = addresses_of(bound)
        async with (
            open_server(config, now_ms, search_place, outside, addresses, certificates) as server,
            trio.open_nursery() as connections,
        ):
            server.serving = connections
            async with trio.open_nursery() as listening:
                await _start_http(server, bound, outside, stop, connections)
                # Where this node stands by, processes that know AMQP have nothing to do.
                others = set(outside) - set(AMQP_PORTS if server.passes_on else ())
                endpoints = _endpoints({name: bound[name] for name in bound if name not in others})
                watch = Watch(server.engine, server.directory)
                server.broker.supervisor.start("watching", watch.run, nursery=connections)
                for listener in (one for endpoint in endpoints for one in endpoint.listeners):
                    sockets.push_async_callback(listener.aclose)
                for endpoint in endpoints:
                    handler = partial(endpoint.serve_one, server, endpoint.protocol)
                    listening.start_soon(
                        partial(
                            trio.serve_listeners,
                            handler,
                            endpoint.listeners,
                            handler_nursery=connections,
                        )
                    )
                task_status.started(server)
                await server.ended(stop)
                server.serving = None
                listening.cancel_scope.cancel()
            if stop.is_set():
                await server.drain()
            connections.cancel_scope.cancel()


async def _start_http(
    server: Server,
    bound: Mapping[str, Sequence[socket.socket]],
    outside: Collection[str],
    stop: trio.Event,
    connections: trio.Nursery,
) -> None:
    served = {name: bound[name] for name in HTTP_PORTS if name in bound and name not in outside}
    if not served:
        return
    from streamd import http_api  # noqa: PLC0415 - only where it is on

    doors = server.doors("HTTP", await http_api.machine_names())
    for serve_port in doors.ports(served, server.certificates):
        serve_one = partial(serve_port, stop.wait)
        server.broker.supervisor.start("serving HTTP", serve_one, nursery=connections)


@asynccontextmanager
async def open_server(
    config: Config,
    now_ms: Callable[[], int] = wall_clock_ms,
    search_place: Place | None = None,
    outside: Collection[str] = (),
    addresses: Mapping[str, Address] = MappingProxyType({}),
    certificates: Certificates | None = None,
) -> AsyncIterator[Server]:
    """A server over the data folder, without a listener.

    Args:
        config: settings.
        now_ms: the wall clock.
        search_place: see Broker.
        outside: see `serve`.
        addresses: where it listens, by the names of listeners.
        certificates: for TLS; None without.

    Raises:
        StartError: the data folder cannot be used.
        StartAgain: this node has become something else before it served anybody.
    """
    async with _node_of(config, addresses, now_ms, certificates) as (lock, node):
        config = config if node is None else node.config
        follower = await _prepare_folder(config, now_ms, node)
        identity = await _begin_epoch(config)
        try:
            catalog = Catalog(config.data)
            if config.tier and follower is None:
                open_store = partial(stores.open_store, config.tier, config.tier_endpoint)
                await catch_up(config.data, open_store, identity)
            contents = catalog.contents()
            writer = CatalogWriter(catalog, None if follower is None else follower.read_only)
            directory = UserDirectory(writer)
            await directory.open(catalog, as_sent(config.user), config.password, DEFAULT_HOST)
        except CatalogError as error:
            raise StartError(str(error)) from error
        except Refused as refused:
            raise StartError(refused.details) from refused
        was_killed = bool(os.pread(lock, 1, 0))
        shards = _shards_of(config, node)
        parts = config, writer, now_ms, identity, follower, search_place, shards
        async with _open_broker(*parts) as broker:
            if was_killed:
                logger.warning(
                    "the server was not shut down cleanly: it was killed, or the power failed; "
                    "checking all streams"
                )
            await _open_streams(broker, contents, was_killed=was_killed)
            if follower is not None:
                follower.begin(broker, directory)
            os.pwrite(lock, _RUNNING, 0)
            broker.node = node
            server = Server(broker, directory, config, outside, node)
            server.addresses.update(addresses)
            server.certificates = certificates
            if node is not None:
                await _begin_as_node(node, broker, follower, shards)
            yield server
            if node is not None and not node.over.is_set():
                await server.hand_over(node)
        os.ftruncate(lock, 0)  # not after an error


async def _open_streams(broker: Broker, contents: Contents, *, was_killed: bool) -> None:
    try:
        await broker.open(contents, says_what_it_finds=was_killed)
    except SegmentsError as error:
        raise StartError(f"cannot use the data folder {broker.data}: {error}") from error


@asynccontextmanager
async def _node_of(
    config: Config,
    addresses: Mapping[str, Address],
    now_ms: Callable[[], int],
    certificates: Certificates | None,
) -> AsyncIterator[tuple[int, Node | None]]:
    """The lock of the data folder, see `_data_folder`, and the node that it is of, if it is."""
    with _data_folder(config.data) as lock:
        if not config.node:
            yield lock, None
            return
        async with AsyncExitStack() as stack:

            def shown() -> str:
                return "-" if certificates is None else certificates.fingerprint

            opened = open_node(config, _reached_at(config, addresses), now_ms, shown)
            try:
                node = await stack.enter_async_context(opened)
            except (RestoreError, SegmentsError, OSError) as error:
                raise StartError(str(error)) from error
            yield lock, node


def _reached_at(config: Config, addresses: Mapping[str, Address]) -> dict[str, NodeAddress]:
    """Where clients reach this server, by the names of listeners."""
    advertised = {
        listener_name(STREAM, is_tls=False): config.advertised_port,
        listener_name(STREAM, is_tls=True): config.advertised_tls_port,
    }
    return {
        name: NodeAddress(config.advertised_host, advertised.get(name) or address.port)
        for name, address in addresses.items()
    }


async def _begin_as_node(
    node: Node, broker: Broker, follower: Follower | None, shards: Shards | None
) -> None:
    """Have a node do what it begins as; one that leads has claimed the tier then.

    Raises:
        StartError: it cannot.
        StartAgain: another node was faster.
    """
    supervisor = broker.supervisor

    def keep_shards() -> None:
        if shards is not None:
            supervisor.start("keeping shards", _keeping(shards, broker, follower))

    if follower is not None:
        keep_shards()
        node.stands_by(lambda: follower.cluster, partial(follower.has_local, node.config.confirm))
        supervisor.start("watching the leader", node.watch)

        async def sort_out() -> None:
            await follower.settled()
            await leftovers.sort_out(broker.data, follower.kept)

        supervisor.start("sorting out what an earlier lead has left", sort_out)
        return
    assert isinstance(broker.tier, Tier)  # noqa: S101 - a node has one
    owner = broker.tier.ownership
    await owner.settled()
    if owner.fence:
        raise StartAgain
    if not owner.may_write:
        raise StartError(owner.sentence)
    try:
        await node.leads(lambda: owner.cluster, owner.look)
    except SegmentsError as error:
        raise StartError(str(error)) from error
    keep_shards()  # in a store without a root, that of another node would belong to no tier

    async def lead() -> None:
        await owner.fenced()
        node.end("another node has taken over the tier; this one stands by from now on")

    supervisor.start("leading", lead)


def _shards_of(config: Config, node: Node | None) -> Shards | None:
    """Shards can be led where all is confirmed by the tier."""
    return Shards(config, node) if node is not None and config.confirm == STORE else None


def _keeping(
    shards: Shards, broker: Broker, follower: Follower | None
) -> Callable[[], Awaitable[None]]:
    """The task that keeps the shards that this node leads, and follows the others."""

    async def read_on() -> None:
        if follower is not None:
            await follower.read_on()
            return
        assert isinstance(broker.tier, Tier)  # noqa: S101 - a node has one
        await broker.tier.ownership.check()
        if broker.tier.ownership.fence:
            raise TierError(broker.tier.ownership.fence)

    async def read_on_soon() -> bool:
        with trio.move_on_after(_READ_ON_SECONDS), suppress(SegmentsError):
            await read_on()
            return True
        return False

    if follower is not None:
        broker.read_on = read_on_soon
    return partial(shards.run, broker, read_on)


async def _prepare_folder(
    config: Config, now_ms: Callable[[], int], node: Node | None
) -> Follower | None:
    """Restore a data folder where that is asked for, and see that one can be used.

    Returns:
        Who follows the server that writes, where this one only reads.

    Raises:
        StartError: it cannot be used.
        StartAgain: see `open_server`.
    """
    try:
        if config.read_only:
            store = await threads.in_thread(stores.open_store, config.tier, config.tier_endpoint)
            parts = config.data, store, config.tier, now_ms
            read_only = None if node is None else Standby(node)
            follower = Follower(*parts, read_only, keeps_orphans=node is not None)
            await follower.prepare()
            return follower
        if config.restore:
            check_not_scratch(config.data)
        else:
            check_whole(config.data)
        if config.tier and (config.restore or not is_used(config.data)):
            store = await threads.in_thread(stores.open_store, config.tier, config.tier_endpoint)
            if config.restore and node is not None:
                await restore(config.data, store, node.name, node.over_epoch)
            elif config.restore:
                await restore(config.data, store)
            elif node is None:
                await check_is_ours(config.data, store)
        return None
    except (RestoreError, TierError) as error:
        if node is not None and isinstance(error.__cause__ or error, _PASSING):
            logger.warning("node %s begins anew: %s", node.name, error)
            if isinstance(error.__cause__ or error, TierError) and config.restore:
                await node.give_way()
            await trio.sleep(_AGAIN_SECONDS)
            raise StartAgain from error
        raise StartError(str(error)) from error


async def _begin_epoch(config: Config) -> Identity:
    try:
        return await threads.in_thread(partial(begin_epoch, config.data, node=config.node))
    except SegmentsError as error:
        raise StartError(f"cannot use the data folder {config.data}: {error}") from error


@asynccontextmanager
async def _open_broker(
    config: Config,
    writer: CatalogWriter,
    now_ms: Callable[[], int],
    identity: Identity,
    follower: Follower | None,
    search_place: Place | None,
    shards: Shards | None,
) -> AsyncIterator[Broker]:
    """A broker with its tasks; it is closed when the last of them, and its thread, has ended."""
    flusher = Flusher(FlushMode(config.flush), config.flush_ms / 1_000)
    broker: Broker | None = None
    try:
        async with trio.open_nursery() as tasks:
            broker = Broker(
                *(config.data, writer, tasks, now_ms, config.max_streams, flusher),
                has_tier=bool(config.tier),
                identity=identity,
                cache_bytes=_cache_bytes(config),
                search_place=search_place,
                min_disk_free=config.min_disk_free_bytes,
                retention=_retention(config),
                make_tier=_tier_maker(config, identity, now_ms),
                follower=follower,
                shards=shards,
            )
            try:
                yield broker
            finally:
                tasks.cancel_scope.cancel()
    finally:
        if broker is not None:
            with trio.CancelScope(shield=True):
                await broker.close()


def _retention(config: Config) -> Arguments:
    """What streams that declare no limits are declared with."""
    pairs = {
        MAX_LENGTH: str(config.default_max_length_bytes or ""),
        MAX_AGE: config.default_max_age,
    }
    pairs[CONFIRM] = config.confirm
    return read_arguments([pair for pair in pairs.items() if pair[1]])


def _tier_maker(
    config: Config, identity: Identity, now_ms: Callable[[], int]
) -> Callable[[Supervisor, Fetcher, CatalogWriter, Traffic], Tier] | None:
    if not config.tier or config.read_only:
        return None
    return partial(Tier, config, identity, now_ms)


def _cache_bytes(config: Config) -> int:
    """The size of the cache for reads from the tier: at most a tenth of the disk."""
    try:
        most = shutil.disk_usage(config.data).total // _CACHE_SHARE
    except OSError:
        return config.tier_cache_bytes
    return min(config.tier_cache_bytes, most)


def _connection_budget(config: Config, outside: Collection[str]) -> int:
    """Connections that may be open: files of streams leave so many descriptors, if not more."""
    limit = descriptor_limit()
    rest = max(1, int(limit * (1 - LOGS_SHARE)) - _OTHER_FILES)
    if config.is_standby:  # each that is passed on takes two
        rest = max(1, rest // 2)
    if not outside:  # over HTTP they come here, too
        rest = max(1, rest - min(config.max_http_connections + MAX_METRICS_CONNECTIONS, rest // 4))
    if rest >= config.max_connections:
        return config.max_connections
    if config.is_standby:
        return rest
    logger.warning(
        "this process may have %s files open: max_connections can be %s at most, the "
        "setting is %s; raise the limit (ulimit -n, LimitNOFILE) or lower the setting",
        f"{limit:,}",
        f"{rest:,}",
        f"{config.max_connections:,}",
    )
    return rest


def _read_certificates(config: Config) -> Certificates | None:
    if all(getattr(config, port) is None for port in TLS_PORTS):
        return None
    try:
        return Certificates(config)
    except CertificateError as error:
        raise StartError(str(error)) from error


@contextmanager
def bound_ports(config: Config) -> Iterator[dict[str, list[socket.socket]]]:
    """Listen at all ports that the settings ask for; sockets by the setting of their port.

    Raises:
        StartError: one of them cannot be listened on.
    """
    with ExitStack() as stack:
        bound: dict[str, list[socket.socket]] = {}
        for setting in _LISTENERS:
            port: int | None = getattr(config, setting)
            if port is None:
                continue
            try:
                bound[setting] = listen(config.host, port)
            except OSError as error:
                option = f"--{setting.replace('_', '-')}"
                refusal = _cannot_listen(config.host, port, option, error)
                if error.errno == errno.EADDRINUSE and (setting, port) == _UNASKED:
                    logger.warning("%s; this server runs without metrics", refusal)
                    continue  # nobody has asked for it: no reason to serve no messages
                raise refusal from error
            for one in bound[setting]:
                stack.callback(one.close)
        yield bound


def addresses_of(bound: Mapping[str, Sequence[socket.socket]]) -> dict[str, Address]:
    """Where these sockets listen, by the names of listeners."""
    return {
        _LISTENERS[setting]: Address(*sockets[0].getsockname()[:2])
        for setting, sockets in bound.items()
    }


def _endpoints(bound: Mapping[str, Sequence[socket.socket]]) -> list["_Endpoint"]:
    endpoints = []
    for protocol in PROTOCOLS:
        for setting, serve_one in ((protocol.port, _serve_socket), (protocol.tls_port, _serve_tls)):
            listeners = [
                trio.SocketListener(trio.socket.from_stdlib_socket(one.dup()))
                for one in bound.get(setting, ())
            ]
            if listeners:
                endpoints.append(_Endpoint(protocol, serve_one, listeners))
    return endpoints


def _cannot_listen(host: str, port: int, option: str, error: OSError) -> StartError:
    reason = error.strerror or error
    return StartError(
        f"cannot listen on {Address(host, port)}: {reason}; choose another with --host and {option}"
    )


async def _serve_socket(
    server: Server, protocol: ServedProtocol, accepted: trio.SocketStream
) -> None:
    with server.broker.supervisor.guarded("serving a connection", protocol.name):
        try:
            transport = SocketTransport(accepted, server.broker.poller)
        except OSError:
            return  # gone before it was looked at
        await server.serve(protocol, transport)


async def _serve_tls(server: Server, protocol: ServedProtocol, accepted: trio.SocketStream) -> None:
    with server.broker.supervisor.guarded("serving a connection", f"{protocol.name}, TLS"):
        await server.serve_tls(protocol, accepted)


class _Endpoint(NamedTuple):
    """The listeners of one protocol, with or without TLS."""

    protocol: ServedProtocol
    serve_one: Callable[[Server, ServedProtocol, trio.SocketStream], Awaitable[None]]
    listeners: list[trio.SocketListener]


def listener_name(protocol: ServedProtocol, *, is_tls: bool) -> str:
    """The name of a listener in `Server.addresses`."""
    return f"{protocol.name}/ssl" if is_tls else protocol.name


def _peer_of(stream: trio.SocketStream) -> Address:
    try:
        return Address(*stream.socket.getpeername()[:2])
    except OSError:
        return Address("a peer that has gone", 0)


@contextmanager
def _data_folder(data: str) -> Iterator[int]:
    """Create the data folder where it is missing, and keep every other server out of it.

    Yields:
        The file that is locked; while a server runs there is something in it.
    """
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
        yield lock
    finally:
        os.close(lock)
