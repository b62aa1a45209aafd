"""Nodes of a cluster in one process, at virtual time, with one store in memory."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import trio

from segments.errors import leaves
from segments.store import stores
from segments.store.heartbeat import Heartbeat, NodeRole, read_heartbeat
from segments.store.manifest import decode_manifest
from segments.store.object_store import ObjectStore, TierError
from streamd.net import passing, threads
from streamd.net.transport import Transport
from streamd.server import AMQP, STREAM, StartAgain
from tests.broker.tier.support import SEGMENT_BYTES, bodies, publish
from tests.support.fake_store import FakeStore
from tests.support.server import Harness, MemoryTransport, Peer, serving, simulated

TAKEOVER = 10.0
_AMQP_PORT = 5672
STORED = {"stream_confirm": "store"}

logger = logging.getLogger(__name__)
_who: ContextVar["RunningNode | None"] = ContextVar("the node", default=None)


def _now_ms() -> int:
    """The clock on the wall, of all nodes and of the store."""
    return 1_700_000_000_000 + round(trio.current_time() * 1_000)


def _unharmed(_name: str, _key: str) -> None:
    """What a request meets in general."""


class View:
    """A store as one node reaches it.

    Attributes:
        is_away: nothing reaches it.
        before, after: called with each request, by the method's name and the key.
    """

    def __init__(self, store: FakeStore) -> None:
        self.is_away = False
        self.before: Callable[[str, str], None] = _unharmed
        self.after: Callable[[str, str], None] = _unharmed
        self._store = store

    def look_at_the_clock(self) -> None:
        """What is written from now on is of this moment."""
        self._store.now_ms = _now_ms()

    def __repr__(self) -> str:
        return repr(self._store)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*arguments: Any, **more: Any) -> Any:
            if self.is_away:
                raise TierError("the store does not answer")
            self.before(name, str(arguments[0]))
            try:
                return method(*arguments, **more)
            finally:
                self.after(name, str(arguments[0]))

        return call


class RunningNode:
    """A node that is started again whenever it becomes something else.

    Attributes:
        view: how it reaches the store.
        server: while it is up.
        num_starts: of servers that were up.
        error: why it could not start.
    """

    def __init__(self, name: str, folder: Path, store: FakeStore, settings: dict[str, Any]) -> None:
        self.name, self.folder = name, folder
        self.view = View(store)
        self.server: Harness | None = None
        self.num_starts = 0
        self.error: BaseException | None = None
        self.stop = trio.Event()
        self.scope = trio.CancelScope()
        self.has_ended = trio.Event()
        self._settings = {"tier": f"s3://{name}/tier", "node": name, "tier_roll_seconds": 5}
        self._settings |= {"tier_delete_delay_seconds": 0, "advertised_host": f"{name}.example"}
        self._settings |= settings
        self._goes_on = trio.Event()
        self._goes_on.set()

    async def run(self) -> None:
        _who.set(self)
        try:
            with self.scope:
                while not self.stop.is_set():
                    await self._run_once()
        except* Exception as error:
            self.error = next(leaves(error))
            logger.warning("node %s has ended", self.name, exc_info=error)
        finally:
            self.server = None
            self.has_ended.set()

    async def _run_once(self) -> None:
        try:
            async with serving(self.folder, _now_ms, **self._settings) as server:
                self.server, self.num_starts = server, self.num_starts + 1
                await server.server.ended(self.stop)
                self.server = None
        except* StartAgain:
            pass

    @property
    def role(self) -> str:
        if self.server is None:
            return ""
        assert self.server.server.node is not None
        return self.server.server.node.role

    @property
    def is_leader(self) -> bool:
        return self.role == NodeRole.LEADER

    @property
    def is_standby(self) -> bool:
        return self.role == NodeRole.STANDBY

    def pause(self) -> None:
        """As SIGSTOP: what it has asked of disk and store is not answered."""
        if self._goes_on.is_set():  # or who waits for the first pause would wait for ever
            self._goes_on = trio.Event()

    def go_on(self) -> None:
        self._goes_on.set()

    async def gone_on(self) -> None:
        with trio.CancelScope(shield=not self._goes_on.is_set()):
            await self._goes_on.wait()

    async def kill(self) -> None:
        """As kill -9: it says nothing more."""
        self.view.is_away = True
        self.scope.cancel()
        await self.has_ended.wait()

    async def end(self) -> None:
        """As SIGTERM."""
        self.stop.set()
        await self.has_ended.wait()

    async def peer(self) -> Peer:
        await until(lambda: self.server is not None)
        assert self.server is not None
        return await self.server.peer()


class Nodes:
    """A cluster that is about to be.

    Attributes:
        store: that all share.
    """

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self.store = FakeStore()
        self.views: dict[str, View] = {}
        self._folder, self._nursery = folder, nursery
        self.nodes: list[RunningNode] = []

    def start(self, name: str, folder: str = "", **settings: Any) -> RunningNode:
        """Start a node, or start it again."""
        node = RunningNode(name, self._folder / (folder or name), self.store, settings)
        node.folder.mkdir(exist_ok=True)
        self.views[name] = node.view
        self.nodes.append(node)
        self._nursery.start_soon(node.run)
        return node

    def open_store(self, url: str, _endpoint: str = "") -> ObjectStore:
        return self.views[url.split("/")[2]]  # type: ignore[return-value]

    async def connect(self, host: str, port: int) -> Transport:
        """The way from one node to another."""
        await trio.lowlevel.checkpoint()
        for node in self.nodes:
            if node.server is not None and node.server.server.node is not None:
                config = node.server.server.node.config
                if config.advertised_host == host and not node.view.is_away:
                    protocol = AMQP if port == _AMQP_PORT else STREAM
                    return MemoryTransport(node.server.dial(protocol))
        raise ConnectionRefusedError(f"nobody is at {host}:{port}")

    def beat(self, name: str) -> Heartbeat | None:
        found = read_heartbeat(self.store, name)
        return None if found is None else found.heartbeat

    @property
    def leaders(self) -> list[str]:
        return [node.name for node in self.nodes if node.is_leader]


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Nodes]:
    """Nodes in this block share a store."""
    opened, connect = stores.open_store, passing.connect
    with simulated(), _paused():
        async with trio.open_nursery() as nursery:
            nodes = Nodes(folder, nursery)
            stores.open_store, passing.connect = nodes.open_store, nodes.connect
            try:
                yield nodes
            finally:
                for node in nodes.nodes:
                    node.view.before = node.view.after = _unharmed  # or it is paused again
                    node.go_on()
                nursery.cancel_scope.cancel()
                stores.open_store, passing.connect = opened, connect


@contextmanager
def _paused() -> Iterator[None]:
    """Whatever a node does in threads waits while it is paused, before it is done and after."""
    inner = threads.in_thread

    async def in_thread(work: Callable[..., Any], *arguments: object) -> Any:
        node = _who.get()
        if node is None:
            return await inner(work, *arguments)
        await node.gone_on()
        node.view.look_at_the_clock()
        try:
            return await inner(work, *arguments)
        finally:
            await node.gone_on()

    threads.in_thread = in_thread
    try:
        yield
    finally:
        threads.in_thread = inner


async def until(is_true: Callable[[], bool], seconds: float = 300) -> float:
    """Wait until something is so; how long that took."""
    began_at = trio.current_time()
    with trio.fail_after(seconds):
        while not is_true():
            await trio.sleep(0.05)
    return trio.current_time() - began_at


async def two(nodes: Nodes, **settings: object) -> tuple[RunningNode, RunningNode]:
    """A leader, and a standby."""
    a = nodes.start("a", **settings)
    await until(lambda: a.is_leader)
    b = nodes.start("b", **settings)
    await until(lambda: b.is_standby)
    return a, b


async def publisher_at(node: RunningNode) -> Peer:
    """One of the stream s, which it creates."""
    peer = await node.peer()
    await peer.create("s", **STORED)
    await peer.declare("s", reference="p")
    return peer


async def two_with_s(nodes: Nodes, **settings: object) -> tuple[RunningNode, RunningNode]:
    """The same with a frame of messages in the stream s, which both have."""
    a, b = await two(nodes, advertised_port=1234, **settings)
    await (await publisher_at(a)).store(bodies(0))
    await trio.sleep(5)
    return a, b


async def half_stored(nodes: Nodes, node: RunningNode) -> tuple[int, int]:
    """Publish to a stream of which a part is uploaded; the offset behind that, and behind all."""
    peer = await node.peer()
    await peer.create("s", stream_max_segment_size_bytes=SEGMENT_BYTES)
    await peer.declare("s", reference="p")
    end = await publish(peer, 0, 12)
    await trio.sleep(10)
    (key,) = [key for key in nodes.store.objects if key.endswith("/manifest")]
    stored = decode_manifest(nodes.store.objects[key].content).next_offset
    assert 0 < stored < end
    return stored, end
