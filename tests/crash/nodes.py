"""Three real nodes of a cluster: processes, each with a disk and a way to the store of its own.

The store is reached through a proxy for each node, which loses, holds or delays what goes to and
fro, where the store is not a folder. Disks are small file systems where they can be mounted, so
that one can be full; else a node's files may not grow any more.
"""

import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import trio

from segments.store import stores
from segments.store.heartbeat import NodeRole
from segments.store.lookup import counts_since, find_stream
from segments.store.object_store import MissingError, ObjectStore, TierError
from streamd.broker.nodes.report import read_cluster
from streamd.operations.cluster import ClusterFacts
from tests.crash.ledger import PATIENCE
from tests.support.process import ServerProcess
from tests.support.store_proxy import Request, Spoil, StoreProxy, well
from tests.support.stores import StoreServer

_DISK_BYTES = 256 << 20
_LOOK_SECONDS = 0.4
_LATEST = 3.0  # seconds that an answer is late


class Cut(StrEnum):
    """What is wrong between a node and the store."""

    AWAY = "nothing arrives"
    UNANSWERED = "requests arrive, answers do not"
    HELD = "requests arrive when all is well again"
    LATE = "answers come seconds later"


class Link:
    """Between a node and the store."""

    def __init__(self, endpoint: str) -> None:
        self._proxy = StoreProxy(endpoint)
        self._proxy.start()
        self.endpoint = self._proxy.endpoint
        self._mended = threading.Event()

    def cut(self, how: Cut) -> None:
        """Have something wrong from now on."""
        self._mended = mended = threading.Event()

        def decide(_request: Request) -> Spoil:
            if how is Cut.AWAY:
                return Spoil.UNREACHED
            if how is Cut.UNANSWERED:
                return Spoil.LOST
            mended.wait(PATIENCE if how is Cut.HELD else _LATEST)
            return Spoil.NOTHING

        self._proxy.decide = decide

    def mend(self) -> None:
        """All is well again, and what was held arrives."""
        self._proxy.decide = well
        self._proxy.requests.clear()  # with their bodies
        self._mended.set()

    def close(self) -> None:
        self.mend()
        self._proxy.close()


class Disk:
    """That of a node, which can be full.

    Args:
        folder: where it is.
        is_small: it is a file system of its own, where this process may mount one.
    """

    def __init__(self, folder: Path, *, is_small: bool) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(folder)]
        may_mount = is_small and not os.geteuid()
        self._is_mounted = may_mount and not subprocess.run(command, check=False).returncode

    async def fill(self, pids: list[int]) -> None:
        """Have no room for processes, until cancelled."""
        if not self._is_mounted:
            return await _limit_files(pids)
        filler = self._folder / "filler"
        try:
            while True:
                with filler.open("ab", buffering=0) as file, suppress(OSError):
                    for size in (1 << 20, 1 << 12):
                        with suppress(OSError):
                            while file.write(bytes(size)) == size:
                                pass
                await trio.sleep(0.02)
        finally:
            filler.unlink()

    def wipe(self) -> None:
        """Remove all that is on it."""
        for path in self._folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def close(self) -> None:
        if self._is_mounted:
            subprocess.run(["umount", "-l", str(self._folder)], check=True)


async def _limit_files(pids: list[int]) -> None:
    """Have processes write nothing, until cancelled."""
    _, most = resource.prlimit(pids[0], resource.RLIMIT_FSIZE)
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))
    try:
        await trio.sleep_forever()
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


class ClusterNode(ServerProcess):
    """A node.

    Attributes:
        name: of it.
        link: to the store; None for a folder.
        disk: its own.
    """

    def __init__(self, name: str, link: Link | None, disk: Disk, data: Path, *options: str) -> None:
        super().__init__(data, "--node", name, *options)
        self.name, self.link, self.disk = name, link, disk

    def cut(self, how: Cut) -> None:
        """Have something wrong with the store, for this node."""
        assert self.link is not None, "the store is a folder"
        self.link.cut(how)

    def signal_all(self, number: signal.Signals) -> None:
        """Signal its processes, the parent first."""
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def family(self) -> Iterator[int]:
        """Its processes, the parent first."""
        yield from _family(self.pid)

    def has_said(self, text: str, since: int) -> bool:
        """Whether its log has a text behind a position."""
        with self.log.open("rb") as log:
            log.seek(since)
            return text.encode() in log.read()

    @property
    def log_size(self) -> int:
        return self.log.stat().st_size


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                yield from _family(int(child))


class Cluster:
    """The nodes.

    Attributes:
        nodes: all of them.
        server: the store's process.
    """

    def __init__(
        self, folder: Path, kind: str, *options: str, has_small_disks: bool = False
    ) -> None:
        self.server = StoreServer(kind, folder / "store").start()
        self.nodes: list[ClusterNode] = []
        self._url = self.server.url("tier")
        self._store: ObjectStore | None = None
        self._environment = dict(os.environ)
        os.environ |= self.server.environment
        for name in "abc":
            link, data = None, folder / name
            more = [*options, "--tier", self._url]
            if self.server.endpoint:
                link = Link(self.server.endpoint)
                more += ["--tier-endpoint", link.endpoint]
            if name == "c":  # its engine is a process of its own
                more += ["--metrics-port", "0"]
            disk = Disk(data, is_small=has_small_disks)
            self.nodes.append(ClusterNode(name, link, disk, data, *more))

    def close(self) -> None:
        for node in self.nodes:
            if node.is_running:
                node.signal_all(signal.SIGCONT)
            node.end()
            node.disk.close()
            if node.link is not None:
                node.link.close()
        self.server.kill()
        os.environ.clear()
        os.environ |= self._environment

    async def start(self) -> None:
        """Start all that do not run."""
        for node in self.nodes:
            if not node.is_running:
                await trio.to_thread.run_sync(node.start)

    async def mend(self) -> None:
        """Have nothing wrong any more, and wait until one leads and the others stand by."""
        for node in self.nodes:
            if node.link is not None:
                node.link.mend()
            if node.is_running:
                node.signal_all(signal.SIGCONT)
        await self.start()
        with trio.move_on_after(PATIENCE):
            while not self._is_whole(facts := await self.facts()):
                await trio.sleep(_LOOK_SECONDS)
            return
        raise AssertionError(f"not all nodes are there: {facts}")

    async def spread(self) -> None:
        """Wait until each node leads its shard."""
        with trio.fail_after(PATIENCE):
            while any(one.name not in one.shards for one in (await self.facts()).nodes):
                await trio.sleep(_LOOK_SECONDS)

    def _is_whole(self, facts: ClusterFacts) -> bool:
        for node in self.nodes:
            assert not node.has_ended, f"node {node.name} has ended: {node.log}"
        roles = {one.name: one.role for one in facts.nodes if one.is_there}
        expected = {node.name: NodeRole.STANDBY for node in self.nodes}
        return roles == expected | {facts.leader: NodeRole.LEADER}

    async def facts(self) -> ClusterFacts:
        """What the store says; one that has ended by itself, as gofakes3 may, is started again."""
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    return await trio.to_thread.run_sync(self._facts)
                except TierError:
                    if self.server.has_ended:
                        await trio.to_thread.run_sync(self.server.start)
                await trio.sleep(_LOOK_SECONDS)

    def _facts(self) -> ClusterFacts:
        return read_cluster(self.store, round(time.time() * 1_000))

    @property
    def store(self) -> ObjectStore:
        """Without a proxy before it."""
        if self._store is None:
            self._store = stores.open_store(self._url, self.server.endpoint)
        return self._store

    async def leader(self) -> ClusterNode:
        """Who leads, as the store says."""
        leader = (await self.facts()).leader
        return next(node for node in self.nodes if node.name == leader)

    async def led_by_another(self, than: ClusterNode) -> None:
        """Wait until another node leads."""
        with trio.fail_after(PATIENCE):
            while await self.leader() is than:
                await trio.sleep(_LOOK_SECONDS)

    async def successor(self, than: ClusterNode) -> ClusterNode:
        """Wait until another node begins to take over; it."""
        since = {node: node.log_size for node in self.nodes if node is not than}
        with trio.fail_after(PATIENCE):
            while True:
                for node, size in since.items():
                    if node.has_said("this node takes over", size):
                        return node
                await trio.sleep(0.02)

    def uploaded(self, stream: str) -> int:
        """Behind what of a stream is in segments of the store."""
        try:
            return find_stream(self.store, "/", stream, counts_since(self.store)).next_offset
        except MissingError:
            return 0
