"""Everything in one data folder: the virtual hosts with their streams, and the catalog."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

import trio

from segments.disk import OsDisk
from streamd.broker import threads
from streamd.broker.catalog import Change, Contents
from streamd.broker.catalog_rows import StreamRow
from streamd.broker.catalog_writer import CatalogWriter, Turn
from streamd.broker.errors import Reason, Refused
from streamd.broker.flusher import Flusher, FlushMode
from streamd.broker.indexer import Indexer
from streamd.broker.resources import ServerResources, StreamQuota
from streamd.broker.standing_selectors import StandingSelector
from streamd.broker.virtual_host import VirtualHost, trash_folder
from streamd.config import RETENTION_SECONDS
from streamd.net.poller import open_poller
from streamd.net.rounds import Rounds

logger = logging.getLogger(__name__)

_AT_ONCE = 8  # streams that are opened at the same time


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Broker:
    """The virtual hosts in one data folder.

    Args:
        data: the folder; exists.
        catalog: changes the catalog of that folder; closed with the broker.
        nursery: runs the writers of the streams.
        now_ms: the wall clock.
        max_streams: limit on the streams in all virtual hosts together.
        flusher: flushes what streams write; by default the system does, when it likes.

    Attributes:
        virtual_hosts: by name.
        now_ms: the wall clock.
        data: the folder.
        catalog: changes the catalog.
        rounds: streams write at the end of each.
        poller: waits for connections; None on systems without one.
    """

    def __init__(
        self,
        data: str,
        catalog: CatalogWriter,
        nursery: trio.Nursery,
        now_ms: Callable[[], int] = wall_clock_ms,
        max_streams: int = 10_000,
        flusher: Flusher | None = None,
    ) -> None:
        self.virtual_hosts: dict[str, VirtualHost] = {}
        self.now_ms = now_ms
        self.data = data
        self.catalog = catalog
        self.rounds = Rounds()
        self.poller = open_poller(self.rounds)
        self._resources = ServerResources(
            data,
            catalog,
            nursery,
            now_ms,
            Indexer(),
            flusher or Flusher(FlushMode.OS, 1),
            self.rounds,
            StreamQuota(max_streams),
        )

    async def open(self, contents: Contents) -> None:
        """Open everything in the catalog."""
        for name in contents.virtual_hosts:
            self.virtual_hosts[name] = VirtualHost(name, self._resources)
        for host in self.virtual_hosts.values():
            host.exchanges.load(
                (row for row in contents.exchanges if row.virtual_host == host.name),
                (row for row in contents.bindings if row.virtual_host == host.name),
            )
        rows = contents.streams
        limiter = trio.CapacityLimiter(_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for row in rows:
                standing = contents.selectors.get((row.virtual_host, row.name), ())
                host = self.virtual_hosts[row.virtual_host]
                nursery.start_soon(_open_one, limiter, host, row, standing)
        known = {self.virtual_hosts[row.virtual_host].folder(row.name) for row in rows}
        await threads.in_thread(_clean_up, self._resources.data, known)
        self._resources.nursery.start_soon(self._expire_now_and_then)
        self._resources.nursery.start_soon(self._resources.indexer.run)
        self._resources.nursery.start_soon(self._resources.flusher.run)
        if self.poller is not None:
            self._resources.nursery.start_soon(self.poller.run)

    def check_virtual_host(self, name: str) -> None:
        """Raise Refused when there is no virtual host of that name."""
        if name not in self.virtual_hosts:
            details = f"there is no virtual host {name}"
            raise Refused(Reason.PRECONDITION_FAILED, details)

    async def add_virtual_host(self, turn: Turn, name: str, *more: Change) -> None:
        """Add a virtual host that does not exist yet.

        Args:
            turn: of the change that this belongs to.
            name: of the virtual host.
            more: changes of the catalog to commit with it.

        Raises:
            Refused: the catalog cannot be written.
        """
        await turn.commit(lambda catalog: catalog.add_virtual_host(name), *more)
        self.virtual_hosts[name] = VirtualHost(name, self._resources)

    async def remove_virtual_host(self, turn: Turn, name: str) -> None:
        """Remove a virtual host with everything in it, and the permissions of users there.

        Raises:
            Refused: it does not exist, or the catalog cannot be written.
        """
        self.check_virtual_host(name)
        await turn.commit(lambda catalog: catalog.remove_virtual_host(name))
        await self.virtual_hosts.pop(name).remove()

    async def _expire_now_and_then(self) -> None:
        while True:
            await trio.sleep(RETENTION_SECONDS)
            for host in list(self.virtual_hosts.values()):
                await host.expire()

    def close(self) -> None:
        """Write what is pending and release all files."""
        for host in self.virtual_hosts.values():
            host.close()
        self._resources.catalog.close()


async def _open_one(
    limiter: trio.CapacityLimiter,
    host: VirtualHost,
    row: StreamRow,
    standing: Sequence[StandingSelector],
) -> None:
    async with limiter:
        await host.open_stream(row, standing)


def _clean_up(data: str, known: set[str]) -> None:
    """Move folders that no stream refers to out of the way, so that none comes back to life.

    A stop between two steps of creating or deleting a stream leaves them. They are kept: if the
    catalog got lost, they are all there is.
    """
    for folder in Path(data, "streams").glob("*/*"):
        if str(folder) not in known:
            aside = Path(data, "orphans", f"{folder.name}-{uuid4().hex[:8]}")
            aside.parent.mkdir(exist_ok=True)
            folder.rename(aside)
            logger.warning("%s belongs to no stream; it is now %s", folder, aside)
    if trash_folder(data).is_dir():
        OsDisk().remove_folder(str(trash_folder(data)))
