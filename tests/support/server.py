"""A server in memory, and peers that speak to it: by command, or with any bytes at all."""

import errno
import functools
import itertools
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import pytest
import trio
from trio.testing import (
    MemoryReceiveStream,
    MemorySendStream,
    lockstep_stream_pair,
    memory_stream_pair,
)

from segments.codec import CHUNK_HEADER_SIZE, ChunkHeader, decode_chunk_header, walk_entries
from segments.disk import Buffer, File
from segments.errors import StorageError, UnreadableError
from streamd.broker.catalog import catalog, schema as catalog_schema
from streamd.broker.streams import history
from streamd.broker.virtual_host import VirtualHost
from streamd.config import RECEIVE_BYTES, Config
from streamd.net import threads
from streamd.net.rounds import Rounds
from streamd.net.transport import (
    Address,
    FileUnreadable,
    Found,
    PolledFeed,
    TransportClosed,
    feed_from,
)
from streamd.net.wakeup import Wakeup
from streamd.operations import passwords
from streamd.processes.amqp import relay
from streamd.server import (
    AMQP,
    AMQP_IN_DOORS,
    STREAM,
    ServedProtocol,
    Server,
    StartError,
    open_server,
)
from streamd.wire.stream import NEED_DATA, Connection, ResponseCode, Role, commands as c
from streamd.wire.stream.fields import OffsetSpecification, Pair
from streamd.wire.stream.publish import Outgoing, encode_entries, encode_filtered_entries
from tests.support.syncs import none_on_the_loop, work_beside

Answer = TypeVar("Answer")
LONGEST_WAIT = 5_000.0  # seconds that a peer waits for what comes next; of virtual time, mostly
OK = ResponseCode.OK
FIRST, LAST, NEXT = (OffsetSpecification(kind) for kind in (1, 2, 3))


_ports = itertools.count(40_000)


class MemoryTransport:
    """The server's end of a connection in memory; see streamd.net.transport.Transport."""

    def __init__(
        self,
        stream: trio.StapledStream[Any, Any],
        *,
        is_local: bool = True,
        receiver: MemoryReceiveStream | None = None,
    ) -> None:
        self.peer = Address("memory", next(_ports))
        self.local = Address("memory", 5552)
        self.is_local = is_local
        self.is_tls = False
        self._stream = stream
        self._receiver = receiver
        self._turn = 0
        self.num_reads = 0

    async def receive(self) -> bytes:
        try:
            data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportClosed from error
        self.num_reads += 1
        return data

    async def feed(self, take: Callable[[bytes], int]) -> bool:
        return await feed_from(self.receive, take)

    def hurry(self) -> None:
        """Nothing: it is always read at once."""

    def send_some(self, parts: Sequence[Buffer]) -> int:
        """All, a part, or nothing, in turn: as sockets do."""
        if self._receiver is None:
            return 0
        data = b"".join(parts)
        self._turn += 1
        sent = round(len(data) * (1, 0.6, 0, 0.02)[self._turn % 4])
        if sent:
            try:
                self._receiver.put_data(data[:sent])
            except trio.ClosedResourceError as error:
                raise TransportClosed from error
        return sent

    async def send(self, *parts: Buffer, more: bool = False) -> None:  # noqa: ARG002
        try:
            await self._stream.send_all(b"".join(parts))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportClosed from error

    async def send_file(self, file: File, position: int, size: int) -> None:
        try:
            data = file.read(size, position)
        except UnreadableError as error:
            raise FileUnreadable from error
        await self.send(data)

    is_congested = False
    certificate_user = None

    async def drained(self) -> None:
        await trio.lowlevel.checkpoint()

    def end_sending(self) -> None:
        self._stream.send_stream.close()

    def close(self) -> None:
        self._stream.send_stream.close()
        self._stream.receive_stream.close()


class MemoryPoller:
    """Reads connections in memory as net/poller.py reads sockets: many of them in a round.

    Attributes:
        patient: those of which the next bytes may be read a moment later; here they are not.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._readers: dict[int, Callable[[int], Found]] = {}
        self.patient: set[int] = set()
        self._ready: set[int] = set()
        self._work = Wakeup()

    def watch(self, descriptor: int, read: Callable[[int], Found]) -> None:
        self._readers[descriptor] = read
        self.arrived(descriptor)  # something may be there already

    def unwatch(self, descriptor: int) -> None:
        self._readers.pop(descriptor, None)
        self.hurry(descriptor)

    def hurry(self, descriptor: int) -> None:
        self.patient.discard(descriptor)

    def arrived(self, descriptor: int) -> None:
        self._ready.add(descriptor)
        self._work.set()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            ready, self._ready = self._ready, set()
            with self._rounds.open():
                for descriptor, read in list(self._readers.items()):
                    if descriptor in ready:
                        self.hurry(descriptor)
                        if read(RECEIVE_BYTES) is Found.PATIENT:
                            self.patient.add(descriptor)


async def _nobody_reads() -> None:
    raise trio.BrokenResourceError


class PolledTransport(MemoryTransport):
    """A connection in memory that is read in rounds, and is congested now and then.

    Args:
        incoming: what the peer writes into.
    """

    def __init__(
        self,
        stream: trio.StapledStream[Any, Any],
        poller: MemoryPoller,
        incoming: MemorySendStream,
        **options: Any,
    ) -> None:
        super().__init__(stream, **options)
        self._incoming = incoming
        incoming.send_all_hook = self._arrived  # type: ignore[assignment]
        incoming.close_hook = self._tell_poller
        self._poller = poller
        self._polled = PolledFeed(poller, self.peer.port, self._receive_some)
        self._num_asked = 0
        self._has_ended = False

    def _tell_poller(self) -> None:
        self._poller.arrived(self.peer.port)

    async def _arrived(self) -> None:
        self._tell_poller()

    def _receive_some(self, _most: int) -> bytes | None:
        try:
            data = bytes(self._incoming.get_data_nowait())
        except trio.WouldBlock:
            return None
        if data:
            self.num_reads += 1
            self._tell_poller()  # the end may be behind it, and is told again as by the kernel
        return data

    async def receive(self) -> bytes:
        try:
            data = bytes(await self._incoming.get_data(RECEIVE_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportClosed from error
        self.num_reads += 1
        return data

    async def feed(self, take: Callable[[bytes], int]) -> bool:
        return await self._polled.feed(take)

    def hurry(self) -> None:
        self._polled.hurry()

    @property
    def is_congested(self) -> bool:  # type: ignore[override]
        self._num_asked += 1
        return self._num_asked % 5 == 4

    def close(self) -> None:
        self._polled.close()
        self._incoming.send_all_hook = _nobody_reads
        super().close()


class Chunk(NamedTuple):
    """A delivered chunk."""

    subscription_id: int
    committed: int | None
    header: ChunkHeader
    bodies: list[bytes]


class AnyPeer:
    """A client, whatever it speaks, of which `next` is what comes next."""

    async def next(self) -> Any:
        raise NotImplementedError

    async def expect(self, kind: type[Answer]) -> Answer:
        """What comes next, which must be of a kind."""
        found = await self.next()
        assert isinstance(found, kind), found
        return found

    async def silence(self, seconds: float = 1) -> None:
        """Nothing arrives for a while."""
        with trio.move_on_after(seconds):
            raise AssertionError(f"silence was expected, not {await self.next()}")

    async def ended(self) -> None:
        """The server ends the connection, saying nothing more."""
        try:
            found = await self.next()
        except (trio.EndOfChannel, trio.BrokenResourceError):
            return
        raise AssertionError(f"an end was expected, not {found}")


class Peer(AnyPeer):
    """A client that sends and reads only what a test asks for.

    Attributes:
        stream: for raw bytes.
        connection: its half of the protocol.
        unasked: what came while an answer was awaited.
    """

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self.stream = stream
        self.connection = Connection(Role.CLIENT, None)
        self.unasked: list[c.Command] = []
        self._correlation_id = 100

    async def send(self, *commands: c.ClientCommand) -> None:
        await self.stream.send_all(b"".join(map(self.connection.send, commands)))

    async def next(self) -> c.Command:
        """The next command; raises EndOfChannel when the server has ended the connection."""
        if self.unasked:
            return self.unasked.pop(0)
        return await self._receive()

    async def _receive(self) -> c.Command:
        while (command := self.connection.next_command()) is NEED_DATA:
            with trio.fail_after(LONGEST_WAIT):
                data = await self.stream.receive_some(1 << 20)
            if not data:
                raise trio.EndOfChannel
            self.connection.receive_data(bytes(data))
        assert not isinstance(command, type(NEED_DATA))
        return command

    async def ask(self, kind: type[Any], *fields: Any) -> Any:
        """Send a request and return its answer; what else comes meanwhile is kept."""
        self._correlation_id += 1
        await self.send(kind(self._correlation_id, *fields))
        while True:
            command = await self._receive()
            if getattr(command, "correlation_id", None) == self._correlation_id:
                return command
            self.unasked.append(command)

    async def code(self, kind: type[Any], *fields: Any) -> int:
        """The code that a request is answered with."""
        return int((await self.ask(kind, *fields)).code)

    async def log_in(
        self,
        heartbeat: int = 0,
        frame_max: int = 1 << 20,
        user: str = "guest",
        virtual_host: str = "/",
        **properties: str,
    ) -> None:
        pairs = tuple(Pair(*item) for item in properties.items())
        assert await self.code(c.PeerProperties, pairs) == OK
        assert await self.code(c.SaslHandshake) == OK
        assert await self.code(c.SaslAuthenticate, "PLAIN", f"\0{user}\0guest".encode()) == OK
        await self.expect(c.Tune)
        await self.send(c.Tune(frame_max, heartbeat))
        assert await self.code(c.Open, virtual_host) == OK

    async def create(self, name: str, **arguments: str) -> None:
        pairs = tuple(Pair(k.replace("_", "-"), v) for k, v in arguments.items())
        assert await self.code(c.Create, name, pairs) == OK

    async def declare(self, name: str, publisher_id: int = 1, reference: str = "") -> None:
        assert await self.code(c.DeclarePublisher, publisher_id, reference, name) == OK

    async def begin(
        self, name: str, publisher_id: int = 1, reference: str = "", **arguments: str
    ) -> None:
        """Create a stream and declare a publisher of it."""
        await self.create(name, **arguments)
        await self.declare(name, publisher_id, reference)

    async def publish(
        self,
        bodies: Sequence[bytes],
        first_id: int = 1,
        publisher_id: int = 1,
        values: Sequence[bytes | None] | None = None,
    ) -> None:
        """Send one Publish frame; nothing is awaited."""
        await self.send(frame(bodies, first_id, publisher_id, values))

    async def confirmed(self, count: int) -> list[int]:
        """The publishing ids of the next `count` confirms."""
        ids: list[int] = []
        while len(ids) < count:
            ids += (await self.expect(c.PublishConfirm)).publishing_ids
        return ids

    async def store(
        self,
        bodies: Sequence[bytes],
        first_id: int = 1,
        publisher_id: int = 1,
        values: Sequence[bytes | None] | None = None,
    ) -> None:
        """Publish in one frame and wait until all are confirmed."""
        await self.publish(bodies, first_id, publisher_id, values)
        ids = await self.confirmed(len(bodies))
        assert ids == list(range(first_id, first_id + len(bodies)))

    async def subscribe(
        self,
        name: str,
        /,
        offset: OffsetSpecification = FIRST,
        credit: int = 10,
        subscription_id: int = 1,
        **properties: str,
    ) -> None:
        pairs = tuple(
            Pair(k.replace("__", ".").replace("_", "-"), v) for k, v in properties.items()
        )
        assert await self.code(c.Subscribe, subscription_id, name, offset, credit, pairs) == OK

    async def chunk(self) -> Chunk:
        """The next command, which must be a chunk."""
        command = await self.next()
        assert isinstance(command, c.Delivered), command
        header = decode_chunk_header(command.chunk)
        data = command.chunk[CHUNK_HEADER_SIZE:]
        if isinstance(command, c.DeliverStored):
            assert len(command.chunk) == header.data_start + header.data_size + header.trailer_size
            data = command.chunk[header.data_start :][: header.data_size]
        assert len(data) == header.data_size
        bodies = [data[at.body : at.end] for at in walk_entries(data)]
        committed = getattr(command, "committed_chunk_id", None)
        return Chunk(command.subscription_id, committed, header, bodies)

    async def bodies(self, count: int) -> list[bytes]:
        """The bodies of the next `count` messages, which end with a chunk."""
        found: list[bytes] = []
        while len(found) < count:
            found += (await self.chunk()).bodies
        assert len(found) == count
        return found

    async def vanish(self) -> None:
        """Drop the connection without a word."""
        await self.stream.aclose()


def frame(
    bodies: Sequence[bytes],
    first_id: int = 1,
    publisher_id: int = 1,
    values: Sequence[bytes | None] | None = None,
) -> c.Publish | c.PublishFiltered:
    """A Publish frame; with filter values of version 2."""
    if values is None:
        messages = [Outgoing(first_id + n, body) for n, body in enumerate(bodies)]
        return c.Publish(publisher_id, len(messages), encode_entries(messages))
    pairs = zip(bodies, values, strict=True)
    messages = [Outgoing(first_id + n, *pair) for n, pair in enumerate(pairs)]
    return c.PublishFiltered(publisher_id, len(messages), encode_filtered_entries(messages))


class Harness:
    """A server and its peers.

    Attributes:
        has_amqp_door: a door is between AMQP clients and the server.
    """

    def __init__(self, server: Server, nursery: trio.Nursery, data: Path) -> None:
        self.server = server
        self.data = data
        self._nursery = nursery
        self.poller: MemoryPoller | None = None
        self.has_amqp_door = False

    def poll(self) -> None:
        """Read connections in rounds from now on, as on Linux; otherwise each has its task."""
        self.poller = MemoryPoller(self.server.broker.rounds)
        self.start(self.poller.run)

    @property
    def host(self) -> VirtualHost:
        """The default virtual host."""
        return self.server.broker.virtual_hosts["/"]

    def start(self, task: Callable[..., Any], *arguments: Any) -> None:
        """Run a task as long as the server."""
        self._nursery.start_soon(task, *arguments)

    def connect(self, *, is_local: bool = True, reads_slowly: bool = False) -> Peer:
        """A peer that has not logged in. One that reads slowly blocks what is sent to it."""
        return Peer(self.dial(STREAM, is_local=is_local, reads_slowly=reads_slowly))

    def dial(
        self,
        service: ServedProtocol,
        *,
        is_local: bool = True,
        reads_slowly: bool = False,
        in_rounds: bool = True,
        peer: Address | None = None,
    ) -> trio.StapledStream[Any, Any]:
        """A peer's end of a new connection, which is read in rounds if any is.

        It comes from an address of its own, or from `peer`.
        """
        pair = lockstep_stream_pair if reads_slowly else memory_stream_pair
        ours, theirs = pair()
        receiver = None if reads_slowly else cast("Any", ours.receive_stream)
        if self.poller is None or reads_slowly or not in_rounds:
            transport = MemoryTransport(theirs, is_local=is_local, receiver=receiver)
        else:
            incoming = cast("MemorySendStream", ours.send_stream)
            transport = PolledTransport(
                theirs, self.poller, incoming, is_local=is_local, receiver=receiver
            )
        transport.peer = peer or transport.peer
        if not (self.has_amqp_door and service is AMQP):
            self._nursery.start_soon(self.server.serve, service, transport)
            return ours
        self._nursery.start_soon(self.server.serve, AMQP_IN_DOORS, transport)
        peers, doors = pair()
        client = MemoryTransport(doors, receiver=cast("Any", peers.receive_stream))
        self._nursery.start_soon(relay, client, MemoryTransport(ours))
        return peers

    async def refuse(
        self, name: str, monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC
    ) -> Callable[[], None]:
        """The disk takes no messages of a stream, until what is returned is called."""
        stream = self.host.find(name)
        await stream.ready()
        log, append = stream.log, stream.log.append

        def refuse(*_: object) -> None:
            raise StorageError("write", "x", OSError(code, "no room"))

        monkeypatch.setattr(log, "append", refuse)
        return lambda: monkeypatch.setattr(log, "append", append)

    async def peer(self, **login: Any) -> Peer:
        """A peer that has logged in."""
        peer = self.connect()
        await peer.log_in(**login)
        return peer

    async def consumer(self, name: str, /, *arguments: Any, **properties: Any) -> Peer:
        """A peer that reads a stream; see `Peer.subscribe`."""
        peer = await self.peer()
        await peer.subscribe(name, *arguments, **properties)
        return peer

    async def publisher(self, name: str, *declared: Any, is_new: bool = False, **more: Any) -> Peer:
        """A peer that publishes to a stream; see `Peer.declare`, of a new one `Peer.begin`."""
        peer = await self.peer()
        await (peer.begin if is_new else peer.declare)(name, *declared, **more)
        return peer


async def inline(work: Callable[..., Any], *arguments: object) -> Any:
    await trio.lowlevel.checkpoint()
    return work_beside(work, *arguments)


@functools.cache
def _empty_catalog() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    catalog_schema.migrate(made, 0)
    return made


def _migrate(db: sqlite3.Connection, version: int) -> None:
    """As in production; a new catalog is a copy, for that takes a tenth of the time."""
    if version:
        catalog_schema.migrate(db, version)
    else:
        _empty_catalog().backup(db)


@contextmanager
def simulated(beat_seconds: float = 5) -> Iterator[None]:
    """In this block servers are at virtual time: nothing of them runs in threads.

    Args:
        beat_seconds: how often the loop's delay is looked at; each is a step of virtual time.
    """
    original, threads.in_thread = threads.in_thread, inline
    beat, history._BEAT_SECONDS = history._BEAT_SECONDS, beat_seconds
    cost, passwords._COST = passwords._COST, 2  # a password's hash takes long on purpose
    synchronous, catalog._SYNCHRONOUS = catalog._SYNCHRONOUS, "OFF"  # no power fails here
    migration, catalog.migrate = catalog.migrate, _migrate
    try:
        with none_on_the_loop():
            yield
    finally:
        threads.in_thread = original
        passwords._COST = cost
        history._BEAT_SECONDS = beat
        catalog._SYNCHRONOUS = synchronous
        catalog.migrate = migration


@asynccontextmanager
async def serving(
    folder: Path, now_ms: Callable[[], int], *, is_polled: bool = False, **settings: Any
) -> AsyncIterator[Harness]:
    """A server in memory over `folder`, where servers are simulated; see `harness`."""
    config = Config(data=str(folder), **settings)
    addresses = {"stream": Address("127.0.0.1", 5552), "amqp": Address("127.0.0.1", 5672)}
    async with (
        open_server(config, now_ms, addresses=addresses) as server,
        trio.open_nursery() as nursery,
    ):
        running = Harness(server, nursery, folder)
        if is_polled:
            running.poll()
        yield running
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def harness(
    folder: Path, *, is_polled: bool = False, beat_seconds: float = 5, **settings: Any
) -> AsyncIterator[Harness]:
    """A server in memory over `folder`, at virtual time: nothing of it runs in threads.

    Its event loop must not wait for the device: that fails the test.

    Args:
        folder: of its data.
        beat_seconds: how often the loop's delay is looked at; each is a step of virtual time.
        is_polled: connections are read in rounds, as in production; otherwise each has its task.
        settings: of the server.
    """
    clock = trio.current_time
    start = clock()
    now_ms = lambda: 1_700_000_000_000 + round((clock() - start) * 1000)  # noqa: E731
    with simulated(beat_seconds):
        async with serving(folder, now_ms, is_polled=is_polled, **settings) as running:
            yield running


@asynccontextmanager
async def with_peer(folder: Path, **settings: Any) -> AsyncIterator[tuple[Harness, Peer]]:
    """See `harness`; and a peer that has logged in."""
    async with harness(folder, **settings) as server:
        yield server, await server.peer()


async def fails_to_start(folder: Path, why: str, **settings: Any) -> None:
    """A server over `folder` serves nothing, and says why."""
    with pytest.raises(StartError, match=why):
        async with harness(folder, **settings):
            pass
