"""Conversations with a server in memory, and what must hold after each of them.

The server lives; nothing was logged as an error; the connection has ended and nothing of it is
left; somebody else publishes and reads as before, and what was confirmed to it is stored.

One server serves many conversations. It has streams and exchanges for them from the start; when
one has changed these, they are made again.
"""

import gc
import logging
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import _lru_cache_wrapper, lru_cache
from pathlib import Path
from typing import Any

import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from streamd.auth.administration import Administration
from streamd.http_api import serving
from streamd.operations.routing import Binding, ExchangeRow
from streamd.server import Server
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import PROTOCOL_HEADER, method_frame
from streamd.wire.amqp10 import performatives as p
from streamd.wire.amqp10.codec import AMQP_HEADER, SASL_HEADER, frame, sasl_frame
from streamd.wire.stream import codec, commands as c
from tests.fuzz.frames import in_pieces
from tests.fuzz.guest import Guest
from tests.fuzz.wire import Broken
from tests.support.amqp import connect
from tests.support.http import Named
from tests.support.server import Harness, Peer, harness

LOGGED_IN = 0x80  # in the octet that says how an input arrives: what follows is after the login
TURNS = 20_000  # of the event loop, that a conversation may take
A_SERVER = 500  # conversations that one server has
_WARM = 4  # servers until everything that is kept for good is
_GROWTH = 1.3
_SECONDS = 120  # of virtual time, until a connection has ended
_STREAMS = 40
_INNOCENT = "innocent"
_GUEST = b"\0guest\0guest"

STREAM_LOGIN = b"".join(
    map(
        codec.encode,
        (
            c.PeerProperties(1, ()),
            c.SaslHandshake(2),
            c.SaslAuthenticate(3, "PLAIN", _GUEST),
            c.Tune(1 << 20, 0),
            c.Open(4, "/"),
        ),
    )
)
AMQP_LOGIN = b"".join(
    (
        PROTOCOL_HEADER,
        method_frame(0, m.ConnectionStartOk({}, "PLAIN", _GUEST, "en_US")),
        method_frame(0, m.ConnectionTuneOk(2047, 131_072, 0)),
        method_frame(0, m.ConnectionOpen("/", "", True)),
        method_frame(1, m.ChannelOpen()),
    )
)
AMQP10_LOGIN = b"".join(
    (
        SASL_HEADER,
        sasl_frame(p.SaslInit("PLAIN", _GUEST)),
        AMQP_HEADER,
        frame(0, p.Open("fuzz")),
        frame(0, p.Begin(None, 0, 100, 100)),
    )
)


class _Errors(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))


def connect_stream(server: Harness) -> trio.StapledStream[Any, Any]:
    """A connection of the stream protocol."""
    return server.connect().stream


def connect_amqp(server: Harness) -> trio.StapledStream[Any, Any]:
    """A connection of AMQP, whichever it will be."""
    return connect(server).stream


def connect_http(server: Harness) -> trio.StapledStream[Any, Any]:
    """A connection of the HTTP API."""
    ours, theirs = memory_stream_pair()
    theirs.socket = Named()  # type: ignore[attr-defined]
    server.start(_http_of(server.server).serve, theirs)
    return ours


@lru_cache(maxsize=1)
def _http_of(server: Server) -> serving.Server:
    return serving.Server(server.http_app(), 100)


class Conversations:
    """Tries inputs of one protocol.

    Args:
        connect: makes a connection.
        login: comes before what an input has for after the login.
        split: takes an input's bytes apart into frames.

    Attributes:
        history: the inputs since the server was started, the last one included.
    """

    def __init__(
        self,
        connect: Callable[[Harness], trio.StapledStream[Any, Any]],
        login: bytes,
        split: Callable[[bytes], list[bytes]],
    ) -> None:
        self.history: list[bytes] = []
        self._connect = connect
        self._login = login
        self._split = split
        self._server: _Server | None = None
        self._servers = self._blocks = 0

    def __call__(self, data: bytes) -> None:
        """Try one input.

        Raises:
            Exception: of any kind, if something is broken.
        """
        if len(self.history) >= A_SERVER:
            self.close()
        if self._server is None:
            self._server = _Server()
        self.history.append(data)
        login = self._login if data[0] & LOGGED_IN else b""
        pieces = in_pieces(self._split(data[1:]), data[0] & ~LOGGED_IN)
        if not self._server.converse(self._connect, [login, *pieces] if login else pieces):
            self.close(is_whole=False)

    def close(self, *, is_whole: bool = True) -> None:
        """End the server; the next input gets another one."""
        self.history.clear()
        if self._server is not None:
            server, self._server = self._server, None
            server.close(is_whole=is_whole)
            self._check_memory()

    def _check_memory(self) -> None:
        """What servers leave behind must not grow from one to the next."""
        self._servers += 1
        if self._servers == _WARM:
            self._blocks = blocks_in_use()
        elif self._servers % _WARM == 0 and (now := blocks_in_use()) > _GROWTH * self._blocks:
            before, self._blocks = self._blocks, now
            raise Broken(f"{now:,} pieces of memory are in use, {before:,} were before")


class _Server:
    """A server, its event loop, and somebody innocent."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="streamd-fuzz-")
        self._errors = _Errors()
        self._harness: Harness | None = None
        self._witness: _Witness | None = None
        self._stage: _Stage | None = None
        with _heard(self._errors):
            self._guest = Guest(self._program)
            self._guest.run(self._prepare, TURNS)

    async def _program(self, serve: Callable[[], Awaitable[bool]]) -> None:
        settings = {
            "max_streams": _STREAMS,
            "anonymous_user": "guest",
            "http_allowed_host": ("*",),
        }
        with _without_threads():
            async with harness(Path(self._folder, "data"), **settings) as self._harness:
                while await serve():
                    pass

    async def _prepare(self) -> None:
        assert self._harness is not None
        self._witness = await _Witness.make(self._harness)
        self._stage = await _Stage.make(self._harness)

    def converse(
        self, connect: Callable[[Harness], trio.StapledStream[Any, Any]], pieces: list[bytes]
    ) -> bool:
        """Have a conversation; False if no other one may be had with this server.

        Raises:
            Exception: of any kind, if something is broken.
        """
        server, witness, stage = self._harness, self._witness, self._stage
        assert server is not None and witness is not None and stage is not None  # noqa: PT018

        async def talk() -> bool:
            await _talk(connect(server), pieces)
            await wait_all_tasks_blocked()
            if len(server._nursery.child_tasks) > 1:  # it may take its time; see what is left
                await trio.sleep(_SECONDS)
            if self._errors.found:
                raise Broken(self._errors.found[0])
            if not await stage.restore():
                return False  # an administrator has changed what belongs to somebody else
            await witness.check()
            return True

        with _heard(self._errors):
            return self._guest.run(talk, TURNS)

    def close(self, *, is_whole: bool) -> None:
        """End the server; somebody else's messages are looked at if it is whole."""
        witness = self._witness
        try:
            with _heard(self._errors):
                if witness is not None and is_whole:
                    self._guest.run(witness.check_stored, TURNS)
                self._guest.close(TURNS)
            if self._errors.found:
                raise Broken(self._errors.found[0])
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


async def _talk(stream: trio.StapledStream[Any, Any], pieces: list[bytes]) -> None:
    try:
        for piece in pieces:
            await stream.send_all(piece)
            await wait_all_tasks_blocked()
        await stream.send_stream.aclose()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the server has had enough
    with trio.move_on_after(_SECONDS) as waiting:
        try:
            while await stream.receive_some(1 << 20):
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
    if waiting.cancelled_caught:
        raise Broken("the connection does not end")
    await stream.aclose()


class _Stage:
    """What conversations find: streams, exchanges, bindings, users."""

    def __init__(self, server: Harness) -> None:
        self._server = server
        self._before: dict[str, Any] = {}
        self._built_in = server.host.topology.rows()

    @classmethod
    async def make(cls, server: Harness) -> "_Stage":
        stage = cls(server)
        await stage._build()
        stage._before = stage._now()
        return stage

    async def _build(self) -> None:
        host = self._server.host
        peer = await self._server.peer()
        await peer.create("s", stream_filter_size_bytes="32")
        await peer.create("f", stream_filter_property="a", max_length_bytes="100000")
        await peer.declare("s", 1, "app")
        await peer.store([b"a", b"bb" * 50, b""], values=[b"x", b"y", None])
        await peer.store([b"c"] * 20, first_id=10)
        await peer.vanish()
        await host.create_super_stream("p", [("0", "p-0"), ("1", "p-1")], ())
        for name, kind in (("x", "headers"), ("y", "topic")):
            row = ExchangeRow("/", name, kind, True, False, False, "")
            await host.exchanges.declare(row)
        await host.exchanges.bind(Binding("/", "x", "s", False, "k", {"a": 1}))
        await host.exchanges.bind(Binding("/", "y", "f", False, "k.#", {}))
        await wait_all_tasks_blocked()

    def _now(self) -> dict[str, Any]:
        """All that a conversation can change and another one could notice."""
        server, host = self._server.server, self._server.host
        bindings = host.topology._bindings
        return {
            "users": dict(server.directory._users),
            "permissions": dict(server.directory._permissions),
            "virtual hosts": set(server.broker.virtual_hosts),
            "streams": {s.name: (host.row(s.name), s.standing.rows()) for s in host.streams()},
            "exchanges": host.topology.rows(),
            "bindings": {name: set(found) for name, found in bindings.items() if found},
        }

    async def restore(self) -> bool:
        """Make everything as it was; False if that cannot be done while the server runs."""
        now, before = self._now(), self._before
        if now == before:
            return True
        server = self._server.server
        for name in now["virtual hosts"] - before["virtual hosts"]:
            await Administration(server.broker, server.directory).remove_virtual_host(name)
        for name in now["users"].keys() - before["users"].keys():
            await server.directory.remove_user(name)
        for key in server.directory._permissions.keys() - before["permissions"].keys():
            await server.directory.remove_permission(*key)
        now = self._now()
        if any(now[name] != before[name] for name in ("users", "permissions", "virtual hosts")):
            return False
        await self._remove_all_but(before)
        if self._now() != before:
            await self._remove_all_but({"streams": (), "exchanges": self._built_in, "bindings": {}})
            await self._build()
        return self._now() == before

    async def _remove_all_but(self, kept: dict[str, Any]) -> None:
        host = self._server.host
        for row in host.topology.rows():
            if row.is_super_stream and row not in kept["exchanges"]:
                await host.delete_super_stream(row.name, _nothing)
        for name in host.names():
            if name not in kept["streams"]:
                await host.delete(name, _nothing)
        for row in host.topology.rows():
            if row not in kept["exchanges"] and host.topology.has(row.name):
                await host.exchanges.delete(row.name, if_unused=False)
        for name, found in self._now()["bindings"].items():
            for identity in found - kept["bindings"].get(name, set()):
                if (binding := host.topology._bindings[name].get(identity)) is not None:
                    await host.exchanges.unbind(binding)


def _nothing() -> None:
    pass


class _Witness:
    """Somebody else, with rights and a stream of its own."""

    def __init__(self, server: Harness, peer: Peer) -> None:
        self._server = server
        self._peer = peer
        self._confirmed: list[bytes] = []

    @classmethod
    async def make(cls, server: Harness) -> "_Witness":
        broker, directory = server.server.broker, server.server.directory
        await directory.put_user(_INNOCENT, b"guest", ())
        await Administration(broker, directory).add_virtual_host(_INNOCENT, _INNOCENT)
        peer = server.connect()
        await peer.log_in(user=_INNOCENT, virtual_host=_INNOCENT)
        await peer.create(_INNOCENT)
        await peer.declare(_INNOCENT)
        await peer.subscribe(_INNOCENT, credit=30_000)
        return cls(server, peer)

    async def check(self) -> None:
        """It publishes and reads as before, and it is alone."""
        number = len(self._confirmed) + 1
        body = b"%d" % number
        with trio.move_on_after(_SECONDS) as waiting:
            await self._peer.publish([body], number)
            found = [await self._peer.next(), await self._peer.next()]
        if waiting.cancelled_caught:
            raise Broken("somebody else is not served any more")
        kinds = sorted(type(command).__name__ for command in found)
        if kinds != ["Deliver", "PublishConfirm"] or not any(
            getattr(command, "chunk", b"").endswith(body) for command in found
        ):
            raise Broken(f"somebody else gets {found}")
        self._confirmed.append(body)
        self._check_alone()

    def _check_alone(self) -> None:
        server = self._server.server
        hosts = [host for name, host in server.broker.virtual_hosts.items() if name != _INNOCENT]
        streams = [stream for host in hosts for stream in host.streams()]
        left = {
            "connections": len(server._running) - 1,
            "connections in lists": len(server.connections) - 1,
            "tasks": len(self._server._nursery.child_tasks) - 1,
            "users": sum(len(host.observers) for host in hosts),
            "groups": sum(len(host.groups._groups) for host in hosts),
            "waiters": sum(len(s.waiters) for s in streams),
            "entries": sum(
                s.life.opened_log.writer.num_queued for s in streams if s.life.opened_log
            ),
        }
        if any(left.values()):
            raise Broken(f"something is left: {left}")

    async def check_stored(self) -> None:
        """All that was confirmed is there."""
        peer = self._server.connect()
        await peer.log_in(user=_INNOCENT, virtual_host=_INNOCENT)
        await peer.subscribe(_INNOCENT, credit=30_000)
        found: list[bytes] = []
        with trio.move_on_after(_SECONDS):
            while len(found) < len(self._confirmed):
                found += (await peer.chunk()).bodies
        if found != self._confirmed:
            raise Broken(f"{self._confirmed} were confirmed, {found} are there")


@contextmanager
def _heard(errors: _Errors) -> Iterator[None]:
    root = logging.getLogger()
    root.addHandler(errors)
    try:
        yield
    finally:
        root.removeHandler(errors)


@contextmanager
def _without_threads() -> Iterator[None]:
    """What is given to a pool of threads is done at once: to start one takes longer."""
    submit = ThreadPoolExecutor.submit
    ThreadPoolExecutor.submit = _do_at_once  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]


def _do_at_once(
    _pool: ThreadPoolExecutor, work: Callable[..., Any], /, *arguments: Any, **options: Any
) -> Future[Any]:
    done: Future[Any] = Future()
    try:
        done.set_result(work(*arguments, **options))
    except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
        done.set_exception(error)
    return done


def blocks_in_use() -> int:
    """Pieces of memory that are in use, apart from what is remembered to save time."""
    gc.unfreeze()
    for found in gc.get_objects():
        if type(found) is _lru_cache_wrapper:
            found.cache_clear()
    for _ in range(3):
        gc.collect()
    gc.freeze()
    return sys.getallocatedblocks()
